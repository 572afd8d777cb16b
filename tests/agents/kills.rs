//! Kills of the agent, of the lead and of both at lines all over a conversation.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::program::{VERSIONS, play_command, recording, workspace};
use super::scenarios::{PLAN, check_task};
use crate::testkit::process::{signal, wait_until};
use crate::testkit::seeds::{PROCESS_CHECKS_AT_ONCE, run_in_threads};
use crate::testkit::workspace::TestWorkspace;

/// The number of lines of a recording before its report.
fn lines(version: &str, scenario: &str) -> usize {
    let recording = fs::read_to_string(recording(version, scenario)).unwrap();
    recording.lines().take_while(|line| !line.contains("\"tools/call\"")).count()
}

/// The number of lines between two kills of the quick run.
const QUICK_STEP: usize = 20;
/// The private folder of the agent.
const HOME: &str = ".team/agents/claude-code/alice";

/// No message for the agent is in its history more often than in Brigade's transcript, even if its prompt was sent again.
fn assert_messages_arrived_once(workspace: &TestWorkspace) {
    // The last line before a kill may be incomplete.
    let records =
        |text: &str| -> Vec<Value> { text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect() };
    let mut prompts = String::new();
    for history in fs::read_dir(workspace.join(HOME).join("projects/stand-in")).unwrap().flatten() {
        for prompt in records(&fs::read_to_string(history.path()).unwrap()) {
            prompts += prompt["message"]["content"].as_str().unwrap();
            prompts += "\n";
        }
    }
    let transcript = records(&workspace.read(".team/transcripts/alice.jsonl"));
    let of_user = transcript.iter().filter(|record| record["role"] == "user");
    let blocks = of_user.flat_map(|record| record["content"].as_array().unwrap());
    let messages: Vec<&str> = blocks.filter_map(|block| block["text"].as_str()).collect();
    let sent = messages.join("\n");
    for message in &messages {
        let (arrived, sent) = (prompts.matches(*message).count(), sent.matches(*message).count());
        assert!(arrived <= sent, "sent {sent} times, arrived {arrived} times: {message}");
    }
    assert!(prompts.contains("<auto-claimed>"), "{prompts}");
}

/// Runs a check for a kill before each of these lines of each version's recording. The quick run has fewer of them, and begins at a
/// random one.
fn check_kills(check: impl Fn(&str, usize) + Sync) {
    let is_full = std::env::var_os("BRIGADE_CHAOS_COUNT").is_some();
    let (first, step) = if is_full { (0, 3) } else { (fastrand::usize(..QUICK_STEP), QUICK_STEP) };
    let kills = VERSIONS
        .into_iter()
        .flat_map(|version| (first..lines(version, "task")).step_by(step).map(move |line| (version, line)));
    run_in_threads(PROCESS_CHECKS_AT_ONCE, kills, |(version, line)| check(version, line));
}

#[test]
fn agent_killed_anywhere_continues_its_session() {
    check_kills(|version, line| {
        println!("{version}: killed before line {line}");
        let command = play_command(version, "task", &format!("--die-after {line}"));
        let limits = "[teams.crew.limits]\nmodel_retries_max = 3\n";
        let workspace = workspace(&command, "http://127.0.0.1:9", PLAN, limits);
        let mut run = workspace.start(&["run", "crew"]);
        let code = run.code();
        println!("{}", run.output_so_far());
        check_task(&workspace, code);
        assert_messages_arrived_once(&workspace);
        workspace.assert_nothing_is_left_running();
    });
}

#[test]
fn lead_killed_anywhere_leaves_no_agent() {
    check_kills(|version, line| {
        println!("{version}: the lead is killed before line {line}");
        let command = play_command(version, "task", &format!("--stop-after {line}"));
        let workspace = workspace(&command, "http://127.0.0.1:9", PLAN, "");
        let mut run = workspace.start(&["run", "crew"]);
        let stopped = workspace.join(HOME).join("stopped");
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
        assert_messages_arrived_once(&workspace);
        let agents = fs::read_dir(workspace.join(".team/agents")).unwrap().flatten();
        assert_eq!(agents.map(|entry| entry.file_name()).collect::<Vec<_>>(), ["claude-code"], "a socket is left");
    });
}
