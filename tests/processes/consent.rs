//! The agreement of a person before the files of a workspace run, send, store or hand over something.

use std::fs;
use std::path::Path;

use crate::processes::hostile::is_confined;
use crate::testkit::process::{ProcessOutput, files_below, git};
use crate::testkit::workspace::TestWorkspace;

const CONFIG: &str =
    "durability = \"process\"\n[teams.crew]\nplan = \"plan.md\"\n[[teams.crew.members]]\nname = \"m1\"\n";

/// A plan whose only task writes the file `ran`.
const PLAN: &str = "## One\n```sh\ntouch ran\n```\n";
/// A task with a `verify` command.
const TWO: &str = "## Two\nverify: touch verified\n```sh\ntrue\n```\n";

/// Runs the program in a folder of the workspace, for a person who agreed to nothing in advance.
fn run_in(workspace: &TestWorkspace, folder: &str, arguments: &[&str]) -> ProcessOutput {
    let mut command = workspace.brigade(arguments);
    command.current_dir(workspace.join(folder)).env_remove("BRIGADE_TRUST");
    ProcessOutput::of(command)
}

/// Asserts that the command was refused for want of an agreement, and that its list has these beginnings of lines.
#[track_caller]
fn assert_asks(answer: &ProcessOutput, lines: &[&str]) {
    assert!(answer.code == Some(2) && answer.err.contains("you have not agreed to"), "{answer:?}");
    let is_listed = |line: &&str| answer.err.lines().any(|said| said.trim_start().starts_with(line));
    let missing: Vec<_> = lines.iter().filter(|line| !is_listed(line)).collect();
    assert!(missing.is_empty(), "{missing:?} are not listed: {answer:?}");
}

/// Asserts that the command ran without a question.
#[track_caller]
fn assert_runs(answer: &ProcessOutput) {
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert!(!answer.err.contains("agreed"), "{answer:?}");
}

/// Commits all files of `origin`, and clones it into `clone`.
fn clone_origin(workspace: &TestWorkspace) {
    git(workspace.path(), &["-C", "origin", "init", "-q", "-b", "main"]);
    commit_origin(workspace);
    git(workspace.path(), &["clone", "-q", "origin", "clone"]);
}

fn commit_origin(workspace: &TestWorkspace) {
    git(workspace.path(), &["-C", "origin", "add", "-A", "-f"]);
    git(workspace.path(), &["-C", "origin", "commit", "-q", "-m", "Change"]);
}

/// A clone of a repository that has a config, a plan, a task and a `.team` folder.
fn clone() -> TestWorkspace {
    let workspace = TestWorkspace::new();
    workspace.write("origin/brigade.toml", CONFIG);
    workspace.write("origin/plan.md", &format!("{PLAN}{TWO}"));
    let task = r#"{"id":9,"subject":"theirs","description":"```sh\ntouch planted\n```","status":"pending"}"#;
    workspace.write("origin/.tasks/task_9.json", task);
    workspace.write("origin/.team/FORMAT", "1\n");
    clone_origin(&workspace);
    workspace
}

#[test]
fn launch_of_clone_without_agreement_is_refused() {
    let workspace = clone();
    let before = files_below(&workspace.join("clone"));
    for arguments in
        [&["run"][..], &["up", "--headless"], &["run", "--json"], &["run", "--output-format", "stream-json"]]
    {
        let answer = run_in(&workspace, "clone", arguments);
        let commands = ["runs plan.md: touch ran", "runs #9: touch planted"];
        assert_asks(&answer, &["new: ", "sends the plan plan.md (2 tasks, ", commands[0], commands[1]]);
        assert_asks(&answer, &["runs plan.md, verify of Two: touch verified", "sends #9 on the board: theirs"]);
        assert!(answer.err.contains("--trust") && answer.err.contains("BRIGADE_TRUST=1"), "{answer:?}");
    }
    assert_eq!(files_below(&workspace.join("clone")), before, "a file was written");
    assert!(!workspace.join("no-config/state").exists(), "something was recorded");
    let refused = run_in(&workspace, "clone", &["run", "--plan", "missing.md"]);
    assert!(refused.code == Some(2) && !refused.err.contains("new: "), "a refused launch asks: {refused:?}");
    assert_runs(&run_in(&workspace, "clone", &["run", "--trust"]));
    assert!(workspace.join("clone/planted").exists() && workspace.join("clone/verified").exists());
    assert_runs(&run_in(&workspace, "clone", &["run"]));
}

#[test]
fn variable_agrees_and_is_not_inherited() {
    let workspace = clone();
    workspace.write("clone/plan.md", "## One\n```sh\ntest -z \"${BRIGADE_TRUST+set}\"\n```\n");
    let mut command = workspace.brigade(&["run"]);
    command.current_dir(workspace.join("clone")).env("BRIGADE_TRUST", "yes");
    assert_asks(&ProcessOutput::of(command), &[]);
    let mut command = workspace.brigade(&["run"]);
    command.current_dir(workspace.join("clone")).env("BRIGADE_TRUST", "1");
    assert_runs(&ProcessOutput::of(command));
}

#[test]
fn changed_list_asks_again_with_its_difference() {
    let workspace = clone();
    assert_runs(&run_in(&workspace, "clone", &["run", "--trust"]));
    fs::remove_file(workspace.join("clone/ran")).unwrap();
    let config = CONFIG.replace("plan = ", "done_when = \"touch met\"\nplan = ");
    workspace.write("origin/brigade.toml", &config);
    workspace.write("origin/plan.md", &format!("## One\n```sh\ntouch ran # and more\n```\n{TWO}"));
    commit_origin(&workspace);
    git(workspace.path(), &["-C", "clone", "pull", "-q"]);
    let answer = run_in(&workspace, "clone", &["run"]);
    assert_asks(&answer, &["changed: ", "+ runs done_when = \"touch met\"", "+ runs plan.md: touch ran # and more"]);
    assert!(!answer.err.contains("touch verified"), "a line without a difference is shown: {answer:?}");
    assert!(!workspace.join("clone/ran").exists());
    assert_runs(&run_in(&workspace, "clone", &["run", "--trust"]));
    // A setting that is gone is a difference too: without `deny` more is allowed.
    workspace.write("clone/brigade.toml", CONFIG);
    assert_asks(&run_in(&workspace, "clone", &["run"]), &["- runs done_when = \"touch met\""]);
}

/// An archive can have a `.git` folder of its own, which decides what git tracks.
#[test]
fn archive_that_git_does_not_track_is_asked_about() {
    for has_git in [false, true] {
        let workspace = clone();
        if has_git {
            workspace.write("clone/.git/info/exclude", "*\n");
            git(workspace.path(), &["-C", "clone", "rm", "-r", "-q", "--cached", "."]);
        } else {
            fs::remove_dir_all(workspace.join("clone/.git")).unwrap();
        }
        workspace.write("clone/.team/inbox/m1.jsonl", "{}\n");
        let lines = ["runs plan.md: touch ran", "runs #9: touch planted", "sends the mail .team/inbox/m1.jsonl"];
        assert_asks(&run_in(&workspace, "clone", &["run"]), &lines);
        assert_runs(&run_in(&workspace, "clone", &["run", "--trust"]));
        assert_runs(&run_in(&workspace, "clone", &["run"]));
        // Another archive at the same place has another board.
        fs::rename(workspace.join("clone"), workspace.join("old")).unwrap();
        workspace.write("clone/brigade.toml", CONFIG);
        workspace.write("clone/plan.md", &workspace.read("old/plan.md"));
        workspace
            .write("clone/.tasks/task_1.json", r#"{"id":1,"subject":"x","status":"pending","verify":"touch other"}"#);
        assert_asks(&run_in(&workspace, "clone", &["run"]), &["+ runs verify of #1: touch other"]);
    }
}

#[test]
fn written_config_is_asked_about_once() {
    let workspace = TestWorkspace::with_team(1, PLAN);
    assert_asks(&run_in(&workspace, ".", &["run"]), &["new: ", "runs plan.md: touch ran"]);
    assert_runs(&run_in(&workspace, ".", &["run", "--trust"]));
    run_in(&workspace, ".", &["tasks", "add", "Mine", "--verify", "touch mine", "--description", "```sh\ntrue\n```"]);
    assert_runs(&run_in(&workspace, ".", &["run"]));
}

#[test]
fn files_that_init_wrote_need_no_agreement() {
    let workspace = TestWorkspace::new();
    assert_runs(&run_in(&workspace, ".", &["init"]));
    git(&workspace, &["init", "-q"]);
    git(&workspace, &["add", "-A"]);
    assert_runs(&run_in(&workspace, ".", &["run"]));
    workspace.write("plan.md", PLAN);
    assert_asks(&run_in(&workspace, ".", &["run"]), &["changed: ", "+ runs plan.md: touch ran"]);
}

#[test]
fn init_in_clone_does_not_agree_to_its_files() {
    for (name, line) in
        [("prompts/lead.md", "sends the prompt prompts/lead.md"), ("prompts/coder.md", "sends prompt = ")]
    {
        let workspace = TestWorkspace::new();
        workspace.write(&format!("origin/{name}"), "Obey the clone.");
        clone_origin(&workspace);
        assert_runs(&run_in(&workspace, "clone", &["init"]));
        assert_asks(&run_in(&workspace, "clone", &["run"]), &["new: ", line]);
    }
}

/// The commands that the README shows first run in a new clone, without a terminal.
#[test]
fn demo_of_program_needs_no_agreement() {
    let workspace = TestWorkspace::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in ["brigade.toml", "demo/audit.md", "prompts/lead.md", ".tasks/README.md"] {
        workspace.write(&format!("origin/{name}"), &fs::read_to_string(root.join(name)).unwrap());
    }
    clone_origin(&workspace);
    assert_runs(&run_in(&workspace, "clone", &["run", "demo"]));
    assert!(workspace.join("clone/REPORT.md").exists());
    let plan = workspace.read("clone/demo/audit.md");
    workspace.write("clone/demo/audit.md", &format!("{plan}\n## More\n```sh\ntouch ran\n```\n"));
    assert_asks(&run_in(&workspace, "clone", &["run", "demo"]), &["runs demo/audit.md: "]);
}

/// A clone whose config names only models: its script has tool calls, and its `.team` folder adds a member that runs the task.
#[test]
fn scripts_and_files_of_team_are_listed() {
    let workspace = TestWorkspace::new();
    let model = "provider = \"scripted\"\nmodel = \"script.json\"\n";
    let config = "durability = \"process\"\n[teams.crew]\n[[teams.crew.members]]\nname = \"m1\"\n";
    workspace.write("origin/brigade.toml", &format!("{config}{model}"));
    let complete = r#"{"tool":"task_update","input":{"task_id":"{{task}}","status":"completed","result":"done"}}"#;
    workspace.write("origin/script.json", &format!(r#"{{"task":[{{"call":[{complete}]}}]}}"#));
    let task = r#"{"id":9,"subject":"theirs","description":"```sh\ntouch planted\n```","status":"pending"}"#;
    workspace.write("origin/.tasks/task_9.json", task);
    let member = |name: &str, team: &str| {
        format!(r#"{{"name":"{name}","status":"idle","startedBy":"brigade","team":"{team}","provider":"runbook"}}"#)
    };
    let members = [member("eve", "crew"), member("m1", "crew"), member("other", "others")].join(",");
    workspace.write("origin/.team/config.json", &format!(r#"{{"members":[{members}]}}"#));
    let mail = r#"{"type":"message","from":"human","content":"Obey.","timestamp":1763688000.5}"#;
    workspace.write("origin/.team/inbox/m1.jsonl", &format!("{mail}\n"));
    workspace.write("origin/.team/inbox/.taken/lead-5.jsonl", &format!("{mail}\n"));
    let record =
        r#"{"v":1,"at":1763688000200,"kind":"message","role":"user","content":[{"type":"text","text":"Obey."}]}"#;
    workspace.write("origin/.team/transcripts/m1.jsonl", &format!("{record}\n"));
    // A version of the roster that another program wrote, a change of the ledger, an agent's session, and an empty file.
    let others = ["aside/config.json.1.0.0.0", "ledger.jsonl", "agents/m1/home/.session"];
    others.iter().for_each(|file| workspace.write(&format!("origin/.team/{file}"), "{}"));
    workspace.write("origin/.team/agents/.lock", "");
    clone_origin(&workspace);
    let lines = [
        "runs script.json, a script of a model (",
        "sends provider = \"scripted\" (m1)",
        "sends the member eve in .team/config.json: runbook (",
        "sends the mail .team/inbox/m1.jsonl (",
        "sends the mail .team/inbox/.taken/lead-5.jsonl (",
        "sends the transcript .team/transcripts/m1.jsonl (",
        "sends the file .team/aside/config.json.1.0.0.0 (2 bytes, ",
        "sends the file .team/ledger.jsonl (",
        "sends the file .team/agents/m1/home/.session (",
        "runs #9: touch planted",
    ];
    let answer = run_in(&workspace, "clone", &["run"]);
    assert_asks(&answer, &lines);
    assert!(!answer.err.contains("member other") && !answer.err.contains("member m1"), "{answer:?}");
    assert!(!answer.err.contains(".lock"), "{answer:?}");
    run_in(&workspace, "clone", &["run", "--trust"]);
    let script = workspace.read("clone/script.json");
    workspace.write("clone/script.json", &format!("{script} "));
    assert_asks(&run_in(&workspace, "clone", &["run"]), &["- runs script.json", "+ runs script.json"]);
    run_in(&workspace, "clone", &["run", "--trust"]);
    workspace.write("clone/.team/requests.json", "[]");
    git(workspace.path(), &["-C", "clone", "add", "-f", ".team/requests.json"]);
    assert_asks(&run_in(&workspace, "clone", &["run"]), &["+ sends the file .team/requests.json (2 bytes"]);
}

#[test]
fn merge_of_clone_without_agreement_is_refused() {
    let workspace = TestWorkspace::new();
    let config = "[teams.crew]\nisolation = \"worktree\"\n[[teams.crew.members]]\nname = \"m1\"\n";
    workspace.write("origin/brigade.toml", config);
    git(workspace.path(), &["-C", "origin", "init", "-q", "-b", "main"]);
    commit_origin(&workspace);
    git(workspace.path(), &["-C", "origin", "checkout", "-q", "-b", "brigade/crew"]);
    workspace.write("origin/work", "done\n");
    commit_origin(&workspace);
    git(workspace.path(), &["-C", "origin", "checkout", "-q", "main"]);
    assert_asks(&run_in(&workspace, "origin", &["merge"]), &["new: ", "stores isolation = \"worktree\""]);
    assert!(!workspace.join("origin/work").exists());
    let merged = run_in(&workspace, "origin", &["merge", "--trust"]);
    assert!(merged.code == Some(0) && workspace.join("origin/work").exists(), "{merged:?}");
    assert_eq!(run_in(&workspace, "origin", &["merge"]).code, Some(0), "the agreement was not recorded");
}

#[test]
fn verify_of_clone_without_agreement_is_refused() {
    let workspace = TestWorkspace::new();
    workspace.write("origin/brigade.toml", CONFIG);
    workspace.write("origin/plan.md", PLAN);
    let task = |id: u32| {
        format!(r#"{{"id":{id},"subject":"theirs","status":"in_progress","owner":"x","verify":"touch verified{id}"}}"#)
    };
    workspace.write("origin/.tasks/task_1.json", &task(1));
    workspace.write("origin/.tasks/task_2.json", &task(2));
    clone_origin(&workspace);
    let complete = |id: &str| run_in(&workspace, "clone", &["tasks", "complete", id, "--force"]);
    assert_asks(&complete("1"), &["runs verify of #1: touch verified1"]);
    assert_asks(&run_in(&workspace, "clone", &["tasks", "update", "2", "--status", "completed", "--force"]), &[]);
    let mut command = workspace.brigade(&["tasks", "complete", "1", "--force"]);
    command.current_dir(workspace.join("clone"));
    let trusted = ProcessOutput::of(command);
    assert!(trusted.code == Some(0) && workspace.join("clone/verified1").exists(), "{trusted:?}");
    assert!(!workspace.join("clone/verified2").exists());
}

#[test]
fn verify_of_own_task_needs_no_agreement() {
    let workspace = TestWorkspace::new();
    run_in(&workspace, ".", &["tasks", "add", "Mine", "--verify", "touch mine", "--workspace", "."]);
    run_in(&workspace, ".", &["tasks", "claim", "1", "--as", "me"]);
    let answer = run_in(&workspace, ".", &["tasks", "complete", "1", "--force"]);
    assert!(answer.code == Some(0) && workspace.join("mine").exists(), "{answer:?}");
}

/// The command of an external agent is run to find its version, but not before the person has seen it.
#[test]
fn doctor_runs_no_agent_command_of_clone() {
    let workspace = TestWorkspace::new();
    let config = "[teams.crew]\nisolation = \"worktree\"\n[[teams.crew.members]]\nname = \"m1\"\n\
                  provider = \"claude-code\"\ncommand = \"touch ran; echo 2.1.330 #\"\n";
    workspace.write("brigade.toml", config);
    let doctor = run_in(&workspace, ".", &["doctor"]);
    assert!(doctor.out.contains("its `command` is not run"), "{doctor:?}");
    assert!(!workspace.join("ran").exists());
    let doctor = workspace.run(&["doctor"]);
    assert!(doctor.out.contains("Claude Code 2.1.330") && workspace.join("ran").exists(), "{doctor:?}");
}

#[test]
fn command_of_agent_cannot_write_trust() {
    let home = tempfile::tempdir().unwrap();
    // A workspace can contain the home folder.
    for inside in [false, true] {
        let script = "mv \"$XDG_STATE_HOME/brigade\" \"$XDG_STATE_HOME/moved\" || true; touch \"$XDG_STATE_HOME/brigade/trust/mine\" || touch \"$XDG_STATE_HOME/brigade/accounts/mine\" || touch refused";
        let workspace = TestWorkspace::with_team(1, &format!("## One\n```sh\n{script}\n```\n"));
        if !is_confined(&workspace) {
            println!("skipped: commands are not confined here");
            return;
        }
        let state = if inside { workspace.join("state") } else { home.path().to_owned() };
        let mut run = workspace.brigade(&["run"]);
        run.env("XDG_STATE_HOME", &state);
        let answer = ProcessOutput::of(run);
        assert_eq!(answer.code, Some(0), "{inside}: {answer:?}");
        let is_kept = state.join("brigade/trust").is_dir()
            && !state.join("brigade/trust/mine").exists()
            && !state.join("brigade/accounts/mine").exists();
        assert!(workspace.join("refused").exists() && is_kept, "{inside}: {answer:?}");
    }
}
