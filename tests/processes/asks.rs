//! A sub-agent with real commands: under its member's claim, and gone after a kill.

use std::fs;

use serde_json::{Value, json};

use crate::testkit::process::wait_until;
use crate::testkit::workspace::TestWorkspace;

/// A workspace with a member that asks; the sub-agent runs this command and then answers.
fn workspace(command: &str) -> TestWorkspace {
    let workspace = TestWorkspace::new();
    let complete = json!({ "task_id": "{{task}}", "status": "completed", "result": "done" });
    let script = json!({
        "task": [
            { "call": [{ "tool": "ask", "input": { "question": "How many lines?" } }] },
            { "call": [{ "tool": "task_update", "input": complete }] },
        ],
        "question": [{ "call": [{ "tool": "bash", "input": { "command": command } }] }, { "say": "There are 42." }],
    });
    workspace.write("script.json", &script.to_string());
    workspace.write("plan.md", "## First\n");
    workspace.write(
        "brigade.toml",
        "durability = \"process\"\n[teams.crew]\nplan = \"plan.md\"\nask = true\n\
         [[teams.crew.members]]\nname = \"m1\"\nprovider = \"scripted\"\nmodel = \"script.json\"\n",
    );
    workspace
}

fn transcript(workspace: &TestWorkspace) -> String {
    fs::read_to_string(workspace.join(".team/transcripts/m1.jsonl")).unwrap_or_default()
}

#[test]
fn sub_agent_runs_commands_under_claim_of_its_member() {
    let workspace = workspace("echo $BRIGADE_TEAMMATE $BRIGADE_TASK $BRIGADE_ATTEMPT > who.txt");
    let run = workspace.run(&["run", "crew"]);
    assert_eq!(run.code, Some(0), "{}", run.out);
    assert_eq!(fs::read_to_string(workspace.join("who.txt")).unwrap(), "m1 1 1\n");
    let transcript = transcript(&workspace);
    assert!(transcript.contains("There are 42.") && !transcript.contains("who.txt"), "{transcript}");
    let started = workspace.json(&["log", "--kind", "tool_started"]);
    let tools: Vec<&Value> = started.as_array().unwrap().iter().map(|event| &event["tool"]).collect();
    assert_eq!(tools, ["ask", "bash", "task_update"]);
    assert!(run.out.contains("ask How many lines?"), "{}", run.out);
}

#[test]
fn killed_sub_agent_leaves_open_call() {
    let workspace = workspace("test -e begun.txt || { touch begun.txt; sleep 300; }");
    let mut run = workspace.start(&["up", "--headless"]);
    wait_until("the command runs", || workspace.join("begun.txt").exists());
    run.signal("KILL");
    run.code();
    workspace.assert_nothing_is_left_running();
    let mut run = workspace.start(&["up", "--headless"]);
    wait_until("the task is completed", || workspace.task(1)["status"] == "completed");
    assert!(transcript(&workspace).contains("Interrupted: Brigade ended during this call of `ask`"));
    run.signal("KILL");
    run.code();
}
