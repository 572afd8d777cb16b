//! Kills of the agent, of the lead and of both at lines all over a conversation.

use std::fs;
use std::path::Path;

use super::program::{VERSIONS, play_command, recording, workspace};
use super::scenarios::{PLAN, check_task};
use crate::testkit::process::{signal, wait_until};
use crate::testkit::workspace::TestWorkspace;

/// The number of lines before the end of the first process of a recording.
fn lines(version: &str, scenario: &str) -> usize {
    fs::read_to_string(recording(version, scenario)).unwrap().lines().count() - 1
}

/// Each prompt in Brigade's transcript is in the agent's history at most once.
fn assert_prompts_arrived_once(workspace: &TestWorkspace) {
    let home = workspace.join(".team/agents/claude-code/projects/stand-in");
    let mut keys: Vec<String> = Vec::new();
    for file in fs::read_dir(home).into_iter().flatten().flatten() {
        keys.extend(fs::read_to_string(file.path()).unwrap().lines().map(str::to_owned));
    }
    let count = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), count, "a prompt arrived twice");
}

/// The number of lines between two kills. The full run kills at more lines than the quick one.
fn step() -> usize {
    if std::env::var_os("BRIGADE_CHAOS_COUNT").is_some() { 3 } else { 7 }
}

#[test]
fn agent_killed_anywhere_continues_its_session() {
    for version in VERSIONS {
        for line in (0..lines(version, "task")).step_by(step()) {
            println!("{version}: killed before line {line}");
            let command = play_command(version, "task", &format!("--die-after {line}"));
            let limits = "[teams.crew.limits]\nmodel_retries_max = 3\n";
            let workspace = workspace(&command, "http://127.0.0.1:9", PLAN, limits);
            let mut run = workspace.start(&["run", "crew"]);
            let code = run.code();
            println!("{}", run.output_so_far());
            check_task(&workspace, code);
            assert_prompts_arrived_once(&workspace);
            workspace.assert_nothing_is_left_running();
        }
    }
}

#[test]
fn lead_killed_anywhere_leaves_no_agent() {
    for version in VERSIONS {
        for line in (0..lines(version, "task")).step_by(step()) {
            println!("{version}: the lead is killed before line {line}");
            let command = play_command(version, "task", &format!("--stop-after {line}"));
            let workspace = workspace(&command, "http://127.0.0.1:9", PLAN, "");
            let mut run = workspace.start(&["run", "crew"]);
            let stopped = workspace.join(".team/agents/claude-code/stopped");
            wait_until("the agent hangs", || Path::exists(&stopped));
            if line % 2 == 1 {
                let processes = workspace.processes();
                let agents = processes.iter().filter(|process| process.command.contains("agent_stand_in"));
                agents.for_each(|agent| signal(agent.pid, "KILL"));
            }
            run.kill();
            workspace.assert_nothing_is_left_running();
            let mut run = workspace.start(&["run", "crew"]);
            let code = run.code();
            println!("{}", run.output_so_far());
            check_task(&workspace, code);
            assert_prompts_arrived_once(&workspace);
            let agents = fs::read_dir(workspace.join(".team/agents")).unwrap().flatten();
            assert_eq!(agents.map(|entry| entry.file_name()).collect::<Vec<_>>(), ["claude-code"], "a socket is left");
        }
    }
}
