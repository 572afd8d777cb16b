//! Worktrees that are set up before work starts there: the setup command, copied files, ports and submodules.

use std::fs;
use std::time::Duration;

use serde_json::json;

use crate::testkit::process::{ProcessOutput, git, wait_until};
use crate::testkit::workspace::TestWorkspace;

/// A repository with an ignored file `.env`, a team of this many members with these settings, and these tasks.
fn repository(members: usize, settings: &str, plan: &str) -> TestWorkspace {
    let workspace = TestWorkspace::with_team(members, plan);
    workspace.write_team(members, &format!("plan = \"plan.md\"\nisolation = \"worktree\"\n{settings}"));
    workspace.write(
        ".gitignore",
        ".tasks/\n.team/\nagent_state.json\nsaid-*\nno-config/\n.env\ninstalled\nlog\nblock\nports\nbrigade.toml\n",
    );
    workspace.write(".env", "KEY=1\n");
    git(workspace.path(), &["init", "-q", "-b", "main", "."]);
    git(workspace.path(), &["add", "-A"]);
    git(workspace.path(), &["commit", "-q", "-m", "Begin"]);
    workspace
}

fn releases(workspace: &TestWorkspace) -> usize {
    workspace.events().iter().filter(|event| event["kind"] == "task_released").count()
}

fn finished_setups(workspace: &TestWorkspace) -> usize {
    let is_end = |event: &&serde_json::Value| event["kind"] == "tool_finished" && event["tool"] == "setup";
    workspace.events().iter().filter(is_end).count()
}

/// Returns true if a setup command `sleep 300` runs.
fn is_setup_running(workspace: &TestWorkspace) -> bool {
    workspace.processes().iter().any(|process| process.command.trim_end() == "sleep 300")
}

#[test]
fn setup_prepares_work_verify_and_done_when() {
    let task = |number: u64| {
        format!(
            "## Task {number}\nverify: test -f installed && test -f .env && test \"$BRIGADE_PORT_BASE\" -gt 0\n```sh\n\
             test -f installed\ntest \"$(cat .env)\" = KEY=1\nmkdir -p out\n(cat port; echo $BRIGADE_PORT_BASE) | uniq > out/port-{number}.txt\n\
             echo x > out/file-{number}.txt\ngit add -A\ngit commit -q -m Mine\n```\n"
        )
    };
    let plan: String = (1..=3).map(task).collect();
    let settings = "setup = \"test -f .env && touch installed && echo $BRIGADE_PORT_BASE > port\"\ncopy = [\".env\"]\n\
        done_when = \"test -f installed && test -f .env && test -f out/file-3.txt\"";
    let workspace = repository(2, settings, &plan);
    workspace.write(".gitignore", &format!("{}port\n", workspace.read(".gitignore")));
    git(workspace.path(), &["commit", "-q", "-a", "-m", "Ignore"]);
    let run = workspace.run(&["run"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(workspace.all_are("completed"), "{:?}", workspace.tasks());
    let files = git(workspace.path(), &["ls-tree", "-r", "--name-only", "brigade/crew"]);
    assert!(files.contains("file-3.txt") && !files.contains(".env") && !files.contains("installed"), "{files}");
    let ports: Vec<String> =
        (1..=3).map(|id| git(workspace.path(), &["show", &format!("brigade/crew:out/port-{id}.txt")])).collect();
    assert!(ports.iter().all(|port| port.parse::<u16>().is_ok()), "setup and work have the same port: {ports:?}");
    // Each task's worktree, the one of merges and the team worktree.
    assert_eq!(finished_setups(&workspace), 5, "{:#?}", workspace.events());
}

#[test]
fn failed_setup_counts_no_attempt_and_lead_knows() {
    let plan = "## One\nverify: true\n```sh\ntrue\n```\n";
    let settings = "setup = \"cat log; echo is-missing >&2; test -f /tmp/no-such-folder/x\"";
    let workspace = repository(1, settings, plan);
    let mut run = workspace.start(&["run"]);
    wait_until("the task was released twice", || releases(&workspace) >= 2 || run.has_ended());
    assert!(!run.has_ended(), "{}", run.output_so_far());
    run.kill();
    let task = workspace.task(1);
    assert_eq!((task["status"].as_str(), task.get("failures")), (Some("pending"), None), "{task}");
    let why = workspace.run(&["why", "1"]).out;
    assert!(why.contains("setup `cat log;") && why.contains("is-missing"), "{why}");
    let mail = workspace.read(".team/transcripts/lead.jsonl");
    assert_eq!(mail.matches("cannot set up the worktree of task #1").count(), 1, "{mail}");
    assert!(mail.contains("is-missing"), "{mail}");
    workspace.write_team(1, "plan = \"plan.md\"\nisolation = \"worktree\"\nsetup = \"true\"");
    assert_eq!(workspace.run(&["run"]).code, Some(0));
    assert!(workspace.all_are("completed"));
}

#[test]
fn hanging_setup_times_out_and_counts_no_attempt() {
    let settings = "setup = \"sleep 300\"\n[teams.crew.limits]\nsetup_timeout_ms = 200";
    let workspace = repository(1, settings, "## One\n```sh\ntrue\n```\n");
    let mut run = workspace.start(&["run"]);
    wait_until("the task was released", || releases(&workspace) >= 1 || run.has_ended());
    let task = workspace.task(1);
    let reason = "timed out after 200 ms (limits.setup_timeout_ms)";
    assert!(task["result"]["summary"].as_str().unwrap().contains(reason), "{task}");
    assert_eq!(task.get("failures"), None);
    run.kill();
    workspace.assert_nothing_is_left_running();
}

#[test]
fn killed_setup_runs_again_in_same_worktree() {
    let settings = "setup = \"echo run >> log; if test -f ../../block; then sleep 300; fi; touch installed\"";
    let workspace = repository(1, settings, "## One\nverify: true\n```sh\ntest -f installed\ncp log all.txt\n```\n");
    workspace.write("block", "");
    let mut run = workspace.start(&["run"]);
    wait_until("the setup runs", || is_setup_running(&workspace) || run.has_ended());
    run.kill();
    workspace.assert_nothing_is_left_running();
    fs::remove_file(workspace.join("block")).unwrap();
    let run = workspace.run(&["run"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(git(workspace.path(), &["show", "brigade/crew:all.txt"]), "run\nrun");
    assert_eq!(workspace.task(1).get("failures"), None);
}

#[test]
fn stop_and_release_end_running_setup() {
    let workspace = repository(1, "setup = \"sleep 300\"", "## One\n```sh\ntrue\n```\n");
    let mut run = workspace.start(&["run"]);
    wait_until("the setup runs", || is_setup_running(&workspace) || run.has_ended());
    let reason = || workspace.json(&["team"])["members"][0]["waiting_for"].to_string();
    wait_until("its status is shown", || reason().contains("the set-up of its worktree"));
    assert_eq!(workspace.run(&["tasks", "release", "1", "--force"]).code, Some(0));
    wait_until("the task was claimed again", || workspace.task(1)["attempt"] == 2 && is_setup_running(&workspace));
    let stop = workspace.run(&["stop", "--wait", "10"]);
    assert_eq!(stop.code, Some(0), "{stop:?}");
    assert!(run.end_within(Duration::from_secs(10)).is_some(), "{}", run.output_so_far());
    assert_eq!(workspace.task(1)["status"], "pending");
    workspace.assert_nothing_is_left_running();
}

#[test]
fn committed_copy_is_refused_until_undone() {
    let call = |tool: &str, input: serde_json::Value| json!({ "call": [{ "tool": tool, "input": input }] });
    let bash = |command: &str| call("bash", json!({ "command": command }));
    let report = call("task_update", json!({ "task_id": "{{task}}", "status": "completed", "result": "done" }));
    let reset = "git reset -q --soft $(git merge-base HEAD brigade/crew)";
    let commit = "echo x > file.txt; git add -f .env file.txt && git commit -q -m All";
    let script = json!({ "task": [bash(commit), report, bash(reset), report] });
    let workspace = repository(0, "copy = [\".env\"]", "## One\n");
    let config = workspace.read("brigade.toml");
    let member = "[[teams.crew.members]]\nname = \"m1\"\nprovider = \"scripted\"\nmodel = \"script.json\"\n";
    workspace.write("brigade.toml", &format!("{config}{member}"));
    workspace.write("script.json", &script.to_string());
    let run = workspace.run(&["run"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(workspace.all_are("completed"));
    let transcript = workspace.read(".team/transcripts/m1.jsonl");
    assert!(transcript.contains("contain .env, which Brigade copied into your worktree"), "{transcript}");
    assert_eq!(git(workspace.path(), &["log", "--format=%h", "brigade/crew", "--", ".env"]), "");
    assert_eq!(git(workspace.path(), &["show", "brigade/crew:file.txt"]), "x");
}

/// The task changes a file that the setup depends on, so the failed setup counts as its failure.
#[test]
fn merge_whose_setup_fails_is_refused() {
    let plan = "## One\nverify: true\n```sh\necho broken > list\n```\n";
    let workspace = repository(1, "setup = \"! grep broken list\"", plan);
    git(workspace.path(), &["add", "--force", "brigade.toml"]);
    git(workspace.path(), &["commit", "-q", "-m", "Config"]);
    let run = workspace.run(&["run"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    let shown = workspace.json(&["tasks", "show", "1"]).to_string();
    assert!(shown.contains("setup `! grep broken list` failed on the trial merge into brigade/crew"), "{shown}");
    assert_eq!(workspace.task(1)["status"], "failed");
}

/// The task changes nothing that the setup depends on, so the failed setup does not count as its failure.
#[test]
fn failed_setup_of_merge_counts_no_attempt() {
    let plan = "## One\nverify: true\n```sh\nmkdir -p out\necho x > out/file.txt\n```\n";
    let setup = "case $PWD in *.merge) test -f ../../block;; esac";
    let workspace = repository(1, &format!("setup = \"{setup}\""), plan);
    let mut run = workspace.start(&["run"]);
    wait_until("the task was released", || releases(&workspace) >= 1 || run.has_ended());
    let task = workspace.task(1);
    assert!(task["result"]["summary"].to_string().contains("setup `case $PWD"), "{task}");
    workspace.write("block", "");
    assert_eq!(run.code(), Some(0), "{}", run.output_so_far());
    assert_eq!((workspace.task(1)["status"].as_str(), workspace.task(1).get("failures")), (Some("completed"), None));
    assert_eq!(git(workspace.path(), &["show", "brigade/crew:out/file.txt"]), "x");
}

#[test]
fn submodules_are_filled_in_everywhere() {
    let lib = TestWorkspace::new();
    lib.write("f.txt", "lib\n");
    git(lib.path(), &["init", "-q", "-b", "main", "."]);
    git(lib.path(), &["add", "-A"]);
    git(lib.path(), &["commit", "-q", "-m", "Lib"]);
    let plan = "## One\nverify: grep lib lib/f.txt\n```sh\ngrep lib lib/f.txt\necho x > file.txt\n```\n";
    let settings = "submodules = true\nsetup = \"test -f lib/f.txt\"\ndone_when = \"grep lib lib/f.txt\"";
    let workspace = repository(1, settings, plan);
    let url = lib.path().to_string_lossy().into_owned();
    git(workspace.path(), &["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", &url, "lib"]);
    git(workspace.path(), &["commit", "-q", "-m", "Submodule"]);
    let config = workspace.read(".git/config");
    let mut run = workspace.brigade(&["run"]);
    // Git clones no submodule from a local path without this.
    run.env("GIT_ALLOW_PROTOCOL", "file");
    let run = ProcessOutput::of(run);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(workspace.all_are("completed"), "{:?}", workspace.tasks());
    assert!(!workspace.join(".worktrees/crew-task-1").exists(), "it is merged and clean");
    assert_eq!(workspace.read(".git/config"), config);
}
