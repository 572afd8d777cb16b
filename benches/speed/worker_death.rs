//! The time until a killed worker's task is claimed again. The claimer is the next lead, which a supervisor starts at
//! the kill, or a command that retries. Both first end the command of the dead worker.

use std::fs;
use std::time::Instant;

use serde_json::Value;

use super::contracts::{command_that_runs, team_with_command};
use super::report::{Report, Target, format_figure, median, ms, percentile};
use super::workspace::{BenchWorkspace, wait_until};

/// Repetitions of each measurement.
const REPETITIONS: usize = 11;

pub fn measure(report: &mut Report) {
    let (leads, commands) = (time_to_next_lead(), (0..REPETITIONS).map(|_| time_to_next_claimer()).collect::<Vec<_>>());
    let comparison = |times: &[f64]| format!("median {}", format_figure(median(times), "ms"));
    let slowest = |times: &[f64]| percentile(times, 100);
    let title = format!("a killed lead's task claimed by the next lead, slowest of {REPETITIONS}");
    report.add(title, slowest(&leads), "ms", Target::Below(1000.0), comparison(&leads));
    let title = format!("a killed lead's task claimed by command, slowest of {REPETITIONS}");
    report.add(title, slowest(&commands), "ms", Target::Below(1000.0), comparison(&commands));
}

/// The attempt of the only task, if it is in progress.
fn attempt(workspace: &BenchWorkspace) -> Option<u64> {
    let task: Value = serde_json::from_slice(&fs::read(workspace.join(".tasks/task_1.json")).ok()?).ok()?;
    (task["status"] == "in_progress").then(|| task["attempt"].as_u64())?
}

fn time_to_next_lead() -> Vec<f64> {
    let (workspace, mut up, _) = team_with_command();
    let mut times = Vec::new();
    for number in 1..=REPETITIONS as u64 {
        assert_eq!(attempt(&workspace), Some(number));
        let started_at = Instant::now();
        up.0.kill().unwrap();
        up.wait();
        up = workspace.start(&["up", "--headless"]);
        wait_until("the task is claimed", || attempt(&workspace) == Some(number + 1));
        times.push(ms(started_at.elapsed()));
        command_that_runs();
    }
    times
}

fn time_to_next_claimer() -> f64 {
    let (workspace, mut up, _) = team_with_command();
    let started_at = Instant::now();
    up.0.kill().unwrap();
    while attempt(&workspace) != Some(2) {
        workspace.time_of(&["tasks", "claim", "--as", "other"]);
    }
    let time = ms(started_at.elapsed());
    up.wait();
    time
}
