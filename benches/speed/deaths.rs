//! How soon a killed worker's task is in other hands: in those of the next lead, which is started at the kill as a supervisor would,
//! and in those of a claimer by command, which tries again and again. Either first ends the command of the dead.

use std::fs;
use std::time::Instant;

use serde_json::Value;

use super::contracts::{command_that_runs, team_with_command};
use super::place::{Place, wait_until};
use super::report::{Report, Target, figure, median, ms, percentile};

/// How often each is measured.
const TIMES: usize = 11;

pub fn measure(report: &mut Report) {
    let (leads, commands) = (by_the_next_lead(), (0..TIMES).map(|_| by_a_command()).collect::<Vec<_>>());
    let beside = |times: &[f64]| format!("median {}", figure(median(times), "ms"));
    let slowest = |times: &[f64]| percentile(times, 100);
    let what = format!("a killed lead's task claimed by the next lead, slowest of {TIMES}");
    report.add(what, slowest(&leads), "ms", Target::Below(1000.0), beside(&leads));
    let what = format!("a killed lead's task claimed by command, slowest of {TIMES}");
    report.add(what, slowest(&commands), "ms", Target::Below(1000.0), beside(&commands));
}

/// The attempt of the one task, if it is in progress.
fn attempt(place: &Place) -> Option<u64> {
    let task: Value = serde_json::from_slice(&fs::read(place.join(".tasks/task_1.json")).ok()?).ok()?;
    (task["status"] == "in_progress").then(|| task["attempt"].as_u64())?
}

fn by_the_next_lead() -> Vec<f64> {
    let (place, mut up, _) = team_with_command();
    let mut times = Vec::new();
    for number in 1..=TIMES as u64 {
        assert_eq!(attempt(&place), Some(number));
        let began = Instant::now();
        up.0.kill().unwrap();
        up.wait();
        up = place.start(&["up", "--headless"]);
        wait_until("the task is claimed", || attempt(&place) == Some(number + 1));
        times.push(ms(began.elapsed()));
        command_that_runs();
    }
    times
}

fn by_a_command() -> f64 {
    let (place, mut up, _) = team_with_command();
    let began = Instant::now();
    up.0.kill().unwrap();
    while attempt(&place) != Some(2) {
        place.time_of(&["tasks", "claim", "--as", "other"]);
    }
    let time = ms(began.elapsed());
    up.wait();
    time
}
