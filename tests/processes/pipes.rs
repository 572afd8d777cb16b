//! Pipes, devices and links in the place of files that Brigade reads: every command answers, and names the problem.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::testkit::process::ProcessOutput;
use crate::testkit::workspace::TestWorkspace;

const PLAN: &str = "## One\n```sh\ntrue\n```\n";

fn make_pipe(path: &Path) {
    let _ = fs::remove_file(path);
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn prompt_pipe_does_not_hang_commands() {
    let workspace = TestWorkspace::with_team(1, PLAN);
    let config = workspace.read("brigade.toml");
    workspace.write("brigade.toml", &format!("{config}prompt = \"prompts/m1.md\"\n"));
    fs::create_dir(workspace.join("prompts")).unwrap();
    make_pipe(&workspace.join("prompts/m1.md"));
    for command in [
        "tasks",
        "team",
        "config show",
        "doctor",
        "why 1",
        "log",
        "inbox",
        "cost",
        "plan",
        "review",
        "state",
        "clean",
        "send m1 hello",
        "tasks import plan.md",
        "run",
        "up",
        "init --force",
    ] {
        // A command that waits for the pipe fails the test here.
        let arguments: Vec<&str> = command.split(' ').collect();
        let answer = workspace.run(&arguments);
        if ["config show", "run", "up"].contains(&command) {
            assert_eq!(answer.code, Some(2), "{answer:?}");
            assert!(answer.err.contains("prompts/m1.md: it is a pipe, not a plain file"), "{answer:?}");
        }
    }
}

#[test]
fn config_files_as_pipes_or_outside_links_are_refused() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("file"), "").unwrap();
    let workspace = TestWorkspace::with_team(1, PLAN);
    for name in ["prompts/lead.md", "plan.md", "brigade.toml"] {
        let path = workspace.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let before = fs::read_to_string(&path).unwrap_or_default();
        make_pipe(&path);
        let answer = workspace.run(&["config", "show"]);
        assert_eq!(answer.code, Some(2), "{name}: {answer:?}");
        assert!(answer.err.contains(name) && answer.err.contains("it is a pipe"), "{name}: {answer:?}");
        for target in [outside.path().join("file"), "/dev/zero".into()] {
            fs::remove_file(&path).unwrap();
            symlink(target, &path).unwrap();
            let answer = workspace.run(&["config", "show"]);
            assert_eq!(answer.code, Some(2), "{name}: {answer:?}");
            assert!(answer.err.contains(name), "{name}: {answer:?}");
            let is_named = ["leads out of", "outside of the folder"].iter().any(|words| answer.err.contains(words));
            assert!(is_named, "{name}: {answer:?}");
        }
        fs::remove_file(&path).unwrap();
        workspace.write("inside", &before);
        symlink(if name.contains('/') { "../inside" } else { "inside" }, &path).unwrap();
        let answer = workspace.run(&["config", "show"]);
        assert_eq!(answer.code, Some(0), "{name}: {answer:?}");
        fs::remove_file(&path).unwrap();
        fs::write(&path, before).unwrap();
    }
}

#[test]
fn path_arguments_may_be_links_and_pipes() {
    let workspace = TestWorkspace::with_idle_team(1);
    let shell = |script: &str| {
        let mut command = workspace.command("bash");
        command.args(["-c", script]).env("BRIGADE", env!("CARGO_BIN_EXE_brigade"));
        ProcessOutput::of(command)
    };
    let plan = "printf '## One\\n```sh\\ntrue\\n```\\n'";
    let ran = shell(&format!("$BRIGADE run --plan <({plan})"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let imported = shell(&format!("$BRIGADE tasks import <({plan}; echo '## Two')"));
    assert!(imported.out.contains("Two"), "{imported:?}");
    let endless = shell("ulimit -v 3000000; $BRIGADE run --plan /dev/zero");
    assert!(endless.code == Some(2) && endless.err.contains("/dev/zero: it is a device"), "{endless:?}");
    let endless = shell("ulimit -v 3000000; $BRIGADE tasks import <(cat /dev/zero)");
    assert!(endless.code == Some(2) && endless.err.contains("more than 1048576 bytes"), "{endless:?}");
    let elsewhere = tempfile::tempdir().unwrap();
    fs::rename(workspace.join("brigade.toml"), elsewhere.path().join("config")).unwrap();
    symlink(elsewhere.path().join("config"), workspace.join("link.toml")).unwrap();
    let config = workspace.run(&["config", "show", "--config", "link.toml"]);
    assert_eq!(config.code, Some(0), "{config:?}");
    // The user's own config is a link, as dotfile managers make it.
    fs::create_dir_all(workspace.join("no-config/brigade")).unwrap();
    symlink(elsewhere.path().join("config"), workspace.join("no-config/brigade/config.toml")).unwrap();
    workspace.write("brigade.toml", "[teams.crew]\n");
    let config = workspace.run(&["config", "show"]);
    assert_eq!(config.code, Some(0), "{config:?}");
}

#[test]
fn search_ignores_endless_ignore_files() {
    let workspace = TestWorkspace::new();
    workspace.write(
        "brigade.toml",
        "durability = \"process\"\n[teams.crew]\n[[teams.crew.members]]\nname = \"m1\"\nrole = \"worker\"\nprovider = \"scripted\"\nmodel = \"script.json\"\n",
    );
    workspace.write(
        "script.json",
        r#"{"task":[{"call":[{"tool":"glob","input":{"pattern":"**"}},{"tool":"grep","input":{"pattern":"x"}}]},
            {"call":[{"tool":"task_update","input":{"task_id":"{{task}}","status":"completed","result":"done"}}]}]}"#,
    );
    symlink("/dev/zero", workspace.join(".ignore")).unwrap();
    make_pipe(&workspace.join(".gitignore"));
    workspace.write("plan.md", "## One\nLook around.\n");
    let mut command = workspace.command("bash");
    // A lead that reads without end runs out of memory.
    command.args(["-c", "ulimit -v 3000000; exec \"$0\" run --plan plan.md", env!("CARGO_BIN_EXE_brigade")]);
    let ran = ProcessOutput::of(command);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let transcript = workspace.read(".team/transcripts/m1.jsonl");
    assert_eq!(transcript.matches("cannot use the rules in `.gitignore`: it is a pipe").count(), 2, "{transcript}");
}
