//! Members without a model: the blocks of a task, the failure reasons, and the reports.

use crate::testkit::process::ProcessOutput;
use crate::testkit::workspace::TestWorkspace;

/// More members than 64 open files suffice for.
const MEMBERS: usize = 24;

fn summary(workspace: &TestWorkspace, id: u64) -> String {
    workspace.task(id)["result"]["summary"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn runbook_runs_blocks_in_order_until_one_fails() {
    let one = "## One\n```sh\necho first >> trace\n```\ntext\n~~~bash\necho second >> trace\necho the end\n~~~\n```rust\nno\n```\n";
    let two = "## Two\n```sh\necho third >> trace\n```\n```sh\necho before\nfalse\necho never >> trace\n```\n```sh\nnever\n```\n";
    let workspace = TestWorkspace::with_team(1, &format!("{one}{two}"));
    let run = workspace.run(&["run"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert_eq!(workspace.read("trace"), "first\nsecond\nthird\nthird\nthird\n", "three attempts");
    assert_eq!((workspace.task(1)["status"].as_str(), summary(&workspace, 1).as_str()), (Some("completed"), "the end"));
    assert!(workspace.task(1)["result"].get("unverified").is_none(), "a runbook reports");
    assert_eq!(workspace.task(2)["status"], "failed");
    assert_eq!(summary(&workspace, 2), "block 2 of 3: exit status 1\nbefore");
    let transcript = workspace.read(".team/transcripts/m1.jsonl");
    assert!(transcript.contains("echo before") && transcript.contains("[exit status 1]"), "{transcript}");
}

#[test]
fn runbook_leaves_task_without_blocks() {
    let workspace = TestWorkspace::with_team(1, "## One\nnothing to run\n\n## Two\n```sh\ntrue\n```\n");
    let run = workspace.run(&["run"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.out.contains("no member can do #1 (One): it has no `sh` block"), "{run:?}");
    assert_eq!((&workspace.task(1)["status"], &workspace.task(2)["status"]), (&"pending".into(), &"completed".into()));
    assert!(workspace.task(1).get("attempt").is_none_or(|attempt| *attempt == 0), "it was not claimed");
    let why = workspace.run(&["why", "1"]);
    assert!(why.out.contains("It has no `sh` block, and no member with a model may do it."), "{why:?}");
}

#[test]
fn runbook_fails_attempt_if_verify_fails() {
    let plan = "## One\nverify: echo looked; test -e built\n\n```sh\ntest -e first && touch built; touch first\n```\n";
    let workspace = TestWorkspace::with_team(1, plan);
    let run = workspace.run(&["run"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!((&workspace.task(1)["status"], &workspace.task(1)["attempt"]), (&"completed".into(), &2.into()));
    assert!(run.out.contains("verify `echo looked; test -e built` failed: exit status 1"), "{run:?}");
}

/// A run in which all members work at once, after `ulimit` with these arguments.
fn run_under_limit(limit: &str) -> (TestWorkspace, ProcessOutput) {
    let plan: String = (1..=MEMBERS).map(|number| format!("## Task {number}\n```sh\nsleep 0.5\n```\n\n")).collect();
    let workspace = TestWorkspace::with_team(MEMBERS, &plan);
    let mut command = workspace.command("sh");
    command.args(["-c", &format!("ulimit {limit}; exec \"$0\" run"), env!("CARGO_BIN_EXE_brigade")]);
    let run = ProcessOutput::of(command);
    (workspace, run)
}

#[test]
fn soft_limit_of_open_files_is_raised() {
    let (workspace, run) = run_under_limit("-Sn 64");
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!((1..=MEMBERS as u64).all(|id| workspace.task(id)["attempt"] == 1), "{run:?}");
}

#[test]
fn lack_of_open_files_fails_no_attempt() {
    let (workspace, run) = run_under_limit("-n 64");
    assert!(format!("{}{}", run.out, run.err).contains("cannot start its guard: Too many open files"), "{run:?}");
    let failed: Vec<u64> = (1..=MEMBERS as u64).filter(|id| workspace.task(*id)["status"] == "failed").collect();
    assert!(failed.is_empty(), "{failed:?}: {run:?}");
}
