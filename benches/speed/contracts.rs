//! Times that the contracts promise and that no test asserts, because a busy machine may take longer. Stale reports
//! are corrected within 100 ms. A command ends within a second after its claim or its lead is lost.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::report::{Report, Target, median, ms};
use super::sessions::diligent;
use super::workspace::{BenchWorkspace, Process, wait_until};

/// Stale reports that are written.
const STALE: usize = 20;
/// Commands that are ended.
const ENDED: usize = 5;

pub fn measure(report: &mut Report) {
    let times = stale_reports();
    report.add(
        "a stale report is put right, slowest",
        slowest(&times),
        "ms",
        Target::AtMost(100.0),
        comparison(&times),
    );
    let times = commands_of_lost_claims();
    report.add(
        "a lost claim ends its command, slowest",
        slowest(&times),
        "ms",
        Target::AtMost(1000.0),
        comparison(&times),
    );
    let times: Vec<f64> = (0..ENDED).map(|_| command_of_a_killed_lead()).collect();
    report.add(
        "a killed lead ends its command, slowest",
        slowest(&times),
        "ms",
        Target::AtMost(1000.0),
        comparison(&times),
    );
}

fn slowest(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

fn comparison(times: &[f64]) -> String {
    format!("{} times, median {}", times.len(), super::report::format_figure(median(times), "ms"))
}

/// The time until a stale report is corrected, in milliseconds. Reports are written by a rename and in place, in turn.
fn stale_reports() -> Vec<f64> {
    let workspace = BenchWorkspace::new();
    workspace.write_team(3, &diligent(), "");
    let _up = workspace.start(&["up", "--headless"]);
    let path = workspace.join("agent_state.json");
    wait_until("the team is up", || state(&path).is_some_and(|state| state["current_state"] == "continuous"));
    let one = |round| {
        thread::sleep(Duration::from_millis(100 + fastrand::u64(..300)));
        let mut stale = state(&path).expect("the file is complete while no process writes in place");
        stale["current_state"] = json!("run_cleanup");
        stale["teammates"]["m1"]["phase"] = json!("work");
        let text = serde_json::to_string_pretty(&stale).unwrap() + "\n";
        if round % 2 == 0 {
            fs::write(workspace.join("state.new"), text).unwrap();
            fs::rename(workspace.join("state.new"), &path).unwrap();
        } else {
            fs::write(&path, text).unwrap();
        }
        ms(wait_until("the report is corrected", || {
            state(&path).is_some_and(|state| {
                state["current_state"] == "continuous" && state["teammates"]["m1"]["phase"] != "work"
            })
        }))
    };
    (0..STALE).map(one).collect()
}

fn state(path: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// A command that runs for long. The fraction distinguishes it from other commands.
fn long_command() -> Vec<String> {
    vec!["sleep".to_owned(), format!("1000.{}", std::process::id())]
}

/// A team whose one member runs that command, and the id of the command's process.
pub fn team_with_command() -> (BenchWorkspace, Process, u32) {
    let workspace = BenchWorkspace::new();
    let input = json!({ "command": format!("exec {}", long_command().join(" ")), "timeout": 1000 });
    workspace.write_team(1, &json!({ "task": [{ "call": [{ "tool": "bash", "input": input }] }] }), "");
    workspace.write("plan.md", "## Wait for long\n");
    let up = workspace.start(&["up", "--headless", "--plan", "plan.md"]);
    let command = command_that_runs();
    (workspace, up, command)
}

/// Waits for the command and returns its process id. The command itself would report an id of its own process
/// namespace.
pub fn command_that_runs() -> u32 {
    let command_line = long_command().join("\0") + "\0";
    let is_it =
        |number: &u32| fs::read_to_string(format!("/proc/{number}/cmdline")).is_ok_and(|line| line == command_line);
    let mut process = None;
    wait_until("the command runs", || {
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let mut numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        process = numbers.find(is_it);
        process.is_some()
    });
    process.unwrap()
}

fn is_running(process: u32) -> bool {
    // An ended process that was not reaped is a zombie.
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// The time from the command that takes the claim away to the end of the work on it.
fn commands_of_lost_claims() -> Vec<f64> {
    let (workspace, _up, mut command) = team_with_command();
    let mut times = Vec::new();
    for _ in 0..ENDED {
        assert!(is_running(command));
        let started_at = Instant::now();
        workspace.time_of(&["tasks", "release", "1", "--force", "--reason", "another worker does it"]);
        wait_until("the command ends", || !is_running(command));
        times.push(ms(started_at.elapsed()));
        // The task is claimed again, and the next command runs.
        command = command_that_runs();
    }
    times
}

/// The time from the lead's death to the end of its command.
fn command_of_a_killed_lead() -> f64 {
    let (_place, mut up, command) = team_with_command();
    assert!(is_running(command));
    let started_at = Instant::now();
    up.0.kill().unwrap();
    up.wait();
    wait_until("the command ends", || !is_running(command));
    ms(started_at.elapsed())
}
