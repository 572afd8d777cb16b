//! What the contracts promise within a time, which no test asserts because a busy machine may take longer: stale reports are
//! put right within 100 ms, and no command outlives its claim or its lead by a second.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::place::{Place, Process, wait_until};
use super::report::{Report, Target, median, ms};
use super::sessions::diligent;

/// How often somebody puts a stale report back.
const STALE: usize = 20;
/// How often a command is made to end.
const ENDED: usize = 5;

pub fn measure(report: &mut Report) {
    let times = stale_reports();
    report.add("a stale report is put right, slowest", slowest(&times), "ms", Target::AtMost(100.0), beside(&times));
    let times = commands_of_lost_claims();
    report.add("a lost claim ends its command, slowest", slowest(&times), "ms", Target::AtMost(1000.0), beside(&times));
    let times: Vec<f64> = (0..ENDED).map(|_| command_of_a_killed_lead()).collect();
    report.add(
        "a killed lead ends its command, slowest",
        slowest(&times),
        "ms",
        Target::AtMost(1000.0),
        beside(&times),
    );
}

fn slowest(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

fn beside(times: &[f64]) -> String {
    format!("{} times, median {}", times.len(), super::report::figure(median(times), "ms"))
}

/// How long what an outsider puts back stands, in milliseconds: written by renaming and in place, turn by turn.
fn stale_reports() -> Vec<f64> {
    let place = Place::new();
    place.write_team(3, &diligent(), "");
    let _up = place.start(&["up", "--headless"]);
    let path = place.join("agent_state.json");
    wait_until("the team is up", || state(&path).is_some_and(|state| state["current_state"] == "continuous"));
    let one = |round| {
        thread::sleep(Duration::from_millis(100 + fastrand::u64(..300)));
        let mut stale = state(&path).expect("it is whole while nobody writes in place");
        stale["current_state"] = json!("run_cleanup");
        stale["teammates"]["m1"]["phase"] = json!("work");
        let text = serde_json::to_string_pretty(&stale).unwrap() + "\n";
        if round % 2 == 0 {
            fs::write(place.join("state.new"), text).unwrap();
            fs::rename(place.join("state.new"), &path).unwrap();
        } else {
            fs::write(&path, text).unwrap();
        }
        ms(wait_until("the report is right again", || {
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

/// A command that would go on for long. The fraction tells it from the commands of others.
fn long_command() -> Vec<String> {
    vec!["sleep".to_owned(), format!("1000.{}", std::process::id())]
}

/// A team whose one member runs that command, and the number of its process.
pub fn team_with_command() -> (Place, Process, u32) {
    let place = Place::new();
    let input = json!({ "command": format!("exec {}", long_command().join(" ")), "timeout": 1000 });
    place.write_team(1, &json!({ "task": [{ "call": [{ "tool": "bash", "input": input }] }] }), "");
    place.write("plan.md", "## Wait for long\n");
    let up = place.start(&["up", "--headless", "--plan", "plan.md"]);
    let command = command_that_runs();
    (place, up, command)
}

/// Waits for the command to run. It cannot say its number: in its own process namespace that is another.
pub fn command_that_runs() -> u32 {
    let wanted = long_command().join("\0") + "\0";
    let is_it = |number: &u32| fs::read_to_string(format!("/proc/{number}/cmdline")).is_ok_and(|line| line == wanted);
    let mut found = None;
    wait_until("the command runs", || {
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let mut numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        found = numbers.find(is_it);
        found.is_some()
    });
    found.unwrap()
}

fn lives(process: u32) -> bool {
    // One that ended and was not waited for is a zombie.
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// From the start of the command that takes the claim away until the work on it has ended.
fn commands_of_lost_claims() -> Vec<f64> {
    let (place, _up, mut command) = team_with_command();
    let mut times = Vec::new();
    for _ in 0..ENDED {
        assert!(lives(command));
        let began = Instant::now();
        place.time_of(&["tasks", "release", "1", "--force", "--reason", "somebody else does it"]);
        wait_until("the command ends", || !lives(command));
        times.push(ms(began.elapsed()));
        // It is claimed again, and the next command runs.
        command = command_that_runs();
    }
    times
}

/// From the death of the lead until its command has ended.
fn command_of_a_killed_lead() -> f64 {
    let (_place, mut up, command) = team_with_command();
    assert!(lives(command));
    let began = Instant::now();
    up.0.kill().unwrap();
    up.wait();
    wait_until("the command ends", || !lives(command));
    ms(began.elapsed())
}
