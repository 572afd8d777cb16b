//! Plays the recordings.

use super::program::{VERSIONS, play_command, workspace};
use super::scenarios::{PLAN, SCENARIOS, check_task};
use crate::testkit::process::wait_until;
use crate::testkit::workspace::TestWorkspace;

/// Runs the team of a workspace to its end.
pub fn run(workspace: &TestWorkspace) -> Option<i32> {
    let mut run = workspace.start(&["run", "crew"]);
    let code = run.code();
    println!("{}", run.output_so_far());
    workspace.assert_nothing_is_left_running();
    code
}

#[test]
fn recorded_conversations_end_as_recorded() {
    for version in VERSIONS {
        for scenario in &SCENARIOS {
            println!("{version} {}", scenario.name);
            let command = play_command(version, scenario.name, "");
            let workspace = workspace(&command, "http://127.0.0.1:9", scenario.plan, "");
            let code = run(&workspace);
            (scenario.check)(&workspace, code);
        }
    }
}

#[test]
fn usage_of_agent_is_counted_once() {
    for version in VERSIONS {
        let workspace = workspace(&play_command(version, "task", ""), "http://127.0.0.1:9", PLAN, "");
        assert_eq!(run(&workspace), Some(0));
        // Two requests of 100 new, 40 cached and 9 output tokens, as the recorded server reported them.
        let cost = workspace.json(&["cost"]);
        assert_eq!(cost["tokens"], 2 * 149, "{version}: {cost}");
    }
}

#[test]
fn call_of_agent_waits_for_permission() {
    for version in VERSIONS {
        let workspace = workspace(&play_command(version, "task", ""), "http://127.0.0.1:9", PLAN, "mode = \"ask\"");
        let mut run = workspace.start(&["run", "crew"]);
        wait_until("a call waits for permission", || workspace.run(&["permission", "approve"]).code == Some(0));
        let code = run.code();
        println!("{}", run.output_so_far());
        check_task(&workspace, code);
        let transcript = workspace.read(".team/events.jsonl");
        assert!(transcript.contains("bash: echo hello > hello.txt"), "{transcript}");
    }
}

#[test]
fn denied_call_of_agent_does_not_run() {
    for version in VERSIONS {
        let rules = "deny = [\"bash(echo:*)\"]";
        let workspace = workspace(&play_command(version, "task", ""), "http://127.0.0.1:9", PLAN, rules);
        let mut run = workspace.start(&["run", "crew"]);
        wait_until("the report is refused", || run.output_so_far().contains("verify"));
        run.kill();
        let is_denied = |event: &serde_json::Value| event["not_made"] == true;
        assert!(workspace.events().iter().any(is_denied), "{}", run.output_so_far());
        assert!(!workspace.join(".worktrees/crew-task-1/hello.txt").exists());
    }
}
