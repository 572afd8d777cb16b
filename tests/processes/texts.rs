//! Brigade's texts are for people and models. No decision of Brigade depends on their words.

use serde_json::Value;

use crate::testkit::workspace::TestWorkspace;

/// A plan whose run leaves a failed task, a blocked one, a released one, a completed one and one that no member can do.
const PLAN: &str = "\
## Fail\n\n```sh\necho no compiler; test -f repaired\n```\n
## After the failure\nafter: Fail\n\n```sh\ntrue\n```\n
## Done\nverify: true\n\n```sh\necho done\n```\n
## Gpu\nrequires: gpu\n\n```sh\ntrue\n```\n
## Released\nrequires: gpu\n\n```sh\ntrue\n```\n";

/// Words that no text of Brigade has.
const OTHER_WORDS: &str = "Keine Angabe.";

/// The status of all tasks, and all kinds of reasons that `why` gives.
fn decisions(workspace: &TestWorkspace) -> Vec<String> {
    let mut decisions = Vec::new();
    for task in workspace.tasks() {
        let facts = ["id", "status", "owner", "attempt", "failures", "blockedBy"].map(|key| task[key].to_string());
        let why = workspace.json(&["why", &task["id"].to_string()]);
        let kinds = why["reasons"].as_array().unwrap().iter().map(|reason| reason["kind"].to_string());
        decisions.push(format!("{}: {}", facts.join(" "), kinds.collect::<Vec<_>>().join(", ")));
    }
    decisions
}

/// Replaces what people read in the board's files and the state file.
fn change_texts(workspace: &TestWorkspace) {
    for id in 1..=5 {
        let name = format!(".tasks/task_{id}.json");
        let mut task: Value = serde_json::from_str(&workspace.read(&name)).unwrap();
        for key in ["summary", "evidence"] {
            // A view may leave out an empty text.
            if let Some(text) = task.pointer_mut(&format!("/result/{key}")).filter(|text| **text != "") {
                *text = OTHER_WORDS.into();
            }
        }
        workspace.write(&name, &task.to_string());
    }
    let mut state = workspace.state();
    state["note"] = OTHER_WORDS.into();
    workspace.write("agent_state.json", &state.to_string());
}

/// Runs a team that leaves tasks of every status, and then a second one that continues it. Returns the decisions after each.
fn run_twice(between: fn(&TestWorkspace)) -> [Vec<String>; 2] {
    let workspace = TestWorkspace::with_team(1, PLAN);
    workspace.run(&["run"]);
    assert_eq!(workspace.run(&["tasks", "claim", "5", "--as", "ann", "--can", "gpu"]).code, Some(0));
    assert_eq!(workspace.run(&["tasks", "release", "5", "--force"]).code, Some(0));
    between(&workspace);
    let first = decisions(&workspace);
    workspace.write("repaired", "");
    assert_eq!(workspace.run(&["tasks", "retry", "1"]).code, Some(0));
    workspace.run(&["run"]);
    [first, decisions(&workspace)]
}

#[test]
fn changed_texts_change_no_decision() {
    let expected = run_twice(|_| {});
    assert!(expected[0].iter().any(|line| line.contains("failed")), "{expected:#?}");
    assert!(expected[1].iter().filter(|line| line.contains("completed")).count() >= 3, "{expected:#?}");
    assert_eq!(run_twice(change_texts), expected);
}
