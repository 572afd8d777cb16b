//! An agent of another program, which takes no locks and writes in place, on the same files as a running team.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::testkit::process::{ProcessOutput, wait_until};
use crate::testkit::workspace::TestWorkspace;

const TASKS: u64 = 80;
const ROUNDS: &str = "150";

/// The number of times that each message of the other program is in a member's transcript.
fn delivery_counts(workspace: &TestWorkspace, name: &str) -> BTreeMap<String, usize> {
    let text = fs::read_to_string(workspace.join(&format!(".team/transcripts/{name}.jsonl"))).unwrap_or_default();
    let mut times = BTreeMap::new();
    for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let record: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for block in record["content"].as_array().into_iter().flatten() {
            let mut text = block["text"].as_str().unwrap_or_default();
            while let Some((_, rest)) = text.split_once("<<pat ") {
                let (number, rest) = rest.split_once(">>").unwrap();
                *times.entry(format!("<<pat {number}>>")).or_default() += 1;
                text = rest;
            }
        }
    }
    times
}

#[test]
fn program_without_locks_shares_board_with_team() {
    if !Command::new("python3").arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success()) {
        println!("skipped: there is no python3");
        return;
    }
    let workspace = TestWorkspace::with_idle_team(2);
    for id in 1..=TASKS {
        let task = format!(
            "{{\n  \"id\": {id},\n  \"subject\": \"Task {id}\",\n  \"description\": \"```sh\\nsleep 0.0{}\\n```\",\n  \"status\": \"pending\",\n  \"owner\": null,\n  \"blockedBy\": [],\n  \"x_other\": {{ \"keep\": [1.50, {id}] }}\n}}",
            id % 5 + 1
        );
        workspace.write(&format!(".tasks/task_{id}.json"), &task);
    }
    let mut up = workspace.start(&["up", "--headless"]);
    wait_until("the team is up", || workspace.join(".team/config.json").exists());
    let mut program = workspace.command("python3");
    program
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/processes/other_program.py"))
        .arg(workspace.path())
        .arg(ROUNDS);
    let program = ProcessOutput::of(program);
    assert_eq!(program.code, Some(0), "{program:?}");
    let report: Value = serde_json::from_str(&program.out).unwrap();
    assert_eq!(report["torn"], Value::Array(vec![]), "the program read a torn file");

    let sent: Vec<(String, String)> = serde_json::from_value(report["sent"].clone()).unwrap();
    for name in ["m1", "m2"] {
        let expected: BTreeMap<String, usize> =
            sent.iter().filter(|(to, _)| to == name).map(|(_, content)| (content.clone(), 1)).collect();
        assert!(expected.len() > 10);
        wait_until("all mail is delivered", || delivery_counts(&workspace, name).len() >= expected.len());
        assert_eq!(delivery_counts(&workspace, name), expected, "mail of {name}");
    }
    let own: Vec<&String> = sent.iter().filter(|(to, _)| to == "pat").map(|(_, content)| content).collect();
    assert_eq!(serde_json::to_value(own).unwrap(), report["read"], "the program's own inbox differs");

    wait_until("only tasks of the program are not completed", || {
        workspace.tasks().iter().all(|task| task["status"] == "completed" || task["owner"] == "pat")
    });
    assert!(!up.has_ended(), "{}", up.output_so_far());
    up.signal("INT");
    // The program may still hold a task.
    assert!(matches!(up.code(), Some(0 | 130)), "{}", up.output_so_far());
    assert_program_data_is_kept(&workspace, &report);
}

/// Asserts that its tasks, its fields and its row in the roster are as it wrote them, also after another run.
fn assert_program_data_is_kept(workspace: &TestWorkspace, report: &Value) {
    let mut held: Vec<u64> = serde_json::from_value(report["held"].clone()).unwrap();
    held.retain(|id| workspace.task(*id)["status"] == "in_progress");
    assert!(!held.is_empty(), "the program got no task");
    for id in 1..=TASKS {
        let text = workspace.read(&format!(".tasks/task_{id}.json"));
        assert!(workspace.task(id)["x_other"]["keep"] == serde_json::json!([1.5, id]), "{text}");
    }
    let roster: Value = serde_json::from_str(&workspace.read(".team/config.json")).unwrap();
    let member = roster["members"].as_array().unwrap().iter().find(|member| member["name"] == "pat").cloned();
    assert_eq!(member.unwrap()["desk"], serde_json::json!([1, 2]), "{roster}");
    // The member is shown, not waited for, not reclaimed.
    let mut run = workspace.start(&["run"]);
    assert_eq!(run.code(), Some(0), "{}", run.output_so_far());
    for id in held {
        assert_eq!(
            (&workspace.task(id)["status"], &workspace.task(id)["owner"]),
            (&"in_progress".into(), &"pat".into())
        );
        let why = workspace.run(&["why", &id.to_string()]);
        assert!(why.out.contains("pat"), "{why:?}");
    }
    assert!(workspace.run(&["tasks"]).out.contains("pat"));
}
