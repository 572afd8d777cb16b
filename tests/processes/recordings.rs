//! The traffic of a team is recorded, and a team in another folder works from the recording.

use std::fs;

use serde_json::{Value, json};

use crate::testkit::process::ProcessOutput;
use crate::testkit::workspace::TestWorkspace;

const PLAN: &str = "## First\nverify: test -s out1\nWrite it.\n## Second\nWrite more.\n";

/// Steps whose results contain times, sizes and the path of the workspace.
fn script() -> String {
    let call = |tool: &str, input: Value| json!({ "tool": tool, "input": input });
    let look = call("bash", json!({ "command": "ls -la plan.md; pwd; date +%s%N; echo {{task}} > out{{task}}" }));
    let end = call("task_update", json!({ "task_id": "{{task}}", "status": "completed", "result": "done" }));
    json!({ "task": [{ "say": "I look.", "call": [look] }, { "call": [end] }] }).to_string()
}

fn workspace(settings: &str, member: &str) -> TestWorkspace {
    let workspace = TestWorkspace::new();
    workspace.write("plan.md", PLAN);
    let team = format!("durability = \"process\"\n[teams.crew]\nplan = \"plan.md\"\n{settings}");
    workspace.write("brigade.toml", &format!("{team}\n[[teams.crew.members]]\nname = \"m1\"\n{member}"));
    workspace
}

/// A team that ran with `record`.
fn recorded() -> TestWorkspace {
    let recorded = workspace("record = \"traffic\"", "provider = \"scripted\"\nmodel = \"script.json\"\n");
    recorded.write("script.json", &script());
    let run = recorded.run(&["run"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    recorded
}

/// A team that answers from this recording.
fn replaying(recording: &str) -> TestWorkspace {
    let replaying = workspace("", "provider = \"recorded\"\nmodel = \"traffic\"\n");
    replaying.write("traffic/m1.jsonl", recording);
    replaying
}

#[test]
fn recorded_team_works_again_in_another_folder() {
    let recorded = recorded();
    let recording = recorded.read("traffic/m1.jsonl");
    assert_eq!(recorded.read("traffic/.gitignore"), "*\n");
    assert!(!recording.contains(recorded.path().to_str().unwrap()), "the recording names its folder");
    let replaying = replaying(&recording);
    let run = replaying.run(&["run"]);
    assert!(run.code == Some(0) && replaying.all_are("completed"), "{run:?}");
    assert_eq!(replaying.read("out2"), "2\n");
}

#[test]
fn first_request_that_differs_is_named() {
    let recording = recorded().read("traffic/m1.jsonl");
    let replaying = replaying(&recording);
    replaying.write("plan.md", &PLAN.replace("Write more.", "Write less."));
    let run = replaying.run(&["run"]);
    assert!(!replaying.all_are("completed"), "{run:?}");
    let reason = &replaying.task(2)["failedAttempts"][0]["reason"];
    let reason = reason.as_str().unwrap();
    assert!(reason.contains("traffic/m1.jsonl has no answer: request 3 differs in message 5: recorded `"), "{reason}");
    assert!(reason.contains("Write more.") && reason.contains("Write less."), "{reason}");
}

#[test]
fn cut_line_of_recording_does_not_count() {
    let recorded = recorded();
    let recording = recorded.read("traffic/m1.jsonl");
    let (first, rest) = recording.split_once('\n').unwrap();
    recorded.write("traffic/m1.jsonl", &format!("{first}\n{}", &rest[..100]));
    fs::remove_dir_all(recorded.join(".tasks")).unwrap();
    fs::remove_dir_all(recorded.join(".team")).unwrap();
    assert_eq!(recorded.run(&["run"]).code, Some(0));
    let both = recorded.read("traffic/m1.jsonl");
    assert!(both.starts_with(&format!("{first}\n{}\n{{", &rest[..100])), "{both}");
    let replaying = replaying(&both);
    let run = replaying.run(&["run"]);
    assert!(run.code == Some(0) && replaying.all_are("completed"), "{run:?}");
}

#[test]
fn recordings_ask_and_missing_ones_are_named() {
    let replaying = replaying("");
    let mut run = replaying.brigade(&["run"]);
    run.env_remove("BRIGADE_TRUST");
    let asked = ProcessOutput::of(run);
    assert!(asked.code == Some(2) && asked.err.contains("runs traffic/m1.jsonl, a script of a model ("), "{asked:?}");
    fs::remove_file(replaying.join("traffic/m1.jsonl")).unwrap();
    let refused = replaying.run(&["run"]);
    assert!(refused.code == Some(2) && refused.err.contains("there is no file `MEMBER.jsonl`"), "{refused:?}");
}
