//! An agent of another program is a colleague as soon as it is in the roster. People and members write to it, answer it and approve its
//! plans.

use std::fs::{self, OpenOptions};
use std::io::Write as _;

use serde_json::{Value, json};

use crate::testkit::process::wait_until;
use crate::testkit::workspace::TestWorkspace;

/// Adds `pat` to the roster as a program without locks does: in place.
fn join(workspace: &TestWorkspace) {
    let mut roster: Value = serde_json::from_str(&workspace.read(".team/config.json")).unwrap();
    let pat = json!({ "name": "pat", "role": "tutor", "status": "working", "desk": [1, 2] });
    roster["members"].as_array_mut().unwrap().push(pat);
    workspace.write(".team/config.json", &roster.to_string());
}

fn append_mail(workspace: &TestWorkspace, to: &str, message: &Value) {
    let path = workspace.join(&format!(".team/inbox/{to}.jsonl"));
    let mut inbox = OpenOptions::new().create(true).append(true).open(path).unwrap();
    inbox.write_all(format!("{message}\n").as_bytes()).unwrap();
}

/// The mail that `pat` finds in its inbox.
fn inbox_of_pat(workspace: &TestWorkspace) -> Vec<Value> {
    let text = fs::read_to_string(workspace.join(".team/inbox/pat.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn outside_agent_gets_mail_and_approvals() {
    let workspace = TestWorkspace::with_idle_team(1);
    let mut up = workspace.start(&["up", "--headless"]);
    wait_until("the team is up", || workspace.join(".team/config.json").exists() && workspace.events().len() > 2);
    assert_ne!(workspace.run(&["send", "pat", "hello"]).code, Some(0), "that name is not known");
    join(&workspace);
    wait_until("pat is in the roster", || {
        let team = workspace.json(&["team"]);
        team["members"].as_array().unwrap().iter().any(|row| row["name"] == "pat" && row["phase"] == "work")
    });
    let sent = workspace.run(&["send", "pat", "hello"]);
    assert_eq!(sent.code, Some(0), "{sent:?}");
    assert_eq!(inbox_of_pat(&workspace)[0]["content"], "hello");
    let sent = workspace.run(&["send", "all", "hear this"]);
    assert!(sent.out.contains("all 2 members"), "{sent:?}");
    assert_eq!(inbox_of_pat(&workspace)[1]["content"], "hear this");

    let plan = json!({ "type": "plan_approval_response", "from": "pat", "content": "", "timestamp": 1.5,
        "request_id": "tutor-1", "plan": "one, two" });
    append_mail(&workspace, "lead", &plan);
    wait_until("the plan waits for the person", || {
        workspace.json(&["plan"]).as_array().unwrap().iter().any(|plan| plan["id"] == "tutor-1")
    });
    assert_eq!(workspace.run(&["plan", "approve", "tutor-1"]).code, Some(0));
    wait_until("pat has the answer", || {
        inbox_of_pat(&workspace).iter().any(|mail| mail["request_id"] == "tutor-1" && mail["approve"] == true)
    });
    up.signal("INT");
    assert_eq!(up.code(), Some(0), "{}", up.output_so_far());
    // It stays a colleague while no team runs.
    let sent = workspace.run(&["send", "pat", "still there?"]);
    assert!(sent.err.contains("reads its mail when it asks for it"), "no launch delivers it: {sent:?}");
    let roster: Value = serde_json::from_str(&workspace.read(".team/config.json")).unwrap();
    let pat = roster["members"].as_array().unwrap().iter().find(|row| row["name"] == "pat").cloned().unwrap();
    assert_eq!(pat, json!({ "name": "pat", "role": "tutor", "status": "working", "desk": [1, 2] }));
}

#[test]
fn completion_by_outside_agent_unblocks_at_once() {
    let workspace = TestWorkspace::with_idle_team(1);
    workspace.write(".tasks/task_1.json", r#"{"id": 1, "subject": "Theirs", "status": "in_review", "owner": "pat"}"#);
    workspace.write(
        ".tasks/task_2.json",
        r#"{"id": 2, "subject": "Next", "description": "```sh\ntrue\n```", "status": "pending", "blockedBy": [1]}"#,
    );
    let shown = workspace.run(&["tasks"]);
    assert!(shown.out.contains("in_review") && !shown.err.contains("invalid"), "{shown:?}");
    let why = workspace.run(&["why", "1"]);
    assert!(why.out.contains("in_review"), "{why:?}");
    let mut up = workspace.start(&["up", "--headless"]);
    wait_until("the team is up", || workspace.events().iter().any(|event| event["kind"] == "teammate_phase"));
    assert!(workspace.join(".tasks/task_1.json").exists(), "it stays where it is");
    workspace.write(".tasks/task_1.json", r#"{"id": 1, "subject": "Theirs", "status": "completed", "owner": "pat"}"#);
    wait_until("the next task is done", || workspace.task(2)["status"] == "completed");
    assert_eq!(workspace.task(2)["blockedBy"], json!([]));
    up.signal("INT");
    up.code();
}
