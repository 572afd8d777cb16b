//! How fast Brigade is, row by row of the promise in ARCHITECTURE.md (Speed).
//!
//! `cargo bench --locked` measures every row, prints one table and writes `target/bench/speed.json`; `cargo bench --locked -- ROW...` measures some.
//! What is compared is measured in the same run, turn by turn; a figure is the median of its rounds. Nothing here fails because
//! a machine is slow: the table says what was reached. What has to run in a process of its own is this program again
//! ([`child`]), or `brigade`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark that cannot go on says so by a panic, and what it finds is printed"
)]

mod child;
mod claims;
mod commands;
mod completions;
mod contracts;
mod crew;
mod crowds;
mod deaths;
mod place;
mod report;
mod resumes;
mod sessions;
mod turns;
mod wakes;
mod worktrees;

use std::process::ExitCode;
use std::time::Instant;

use report::Report;

/// A row: its name on the command line, what it is about, and what measures it.
type Row = (&'static str, &'static str, fn(&mut Report));

const ROWS: [Row; 14] = [
    ("turns", "overhead of a turn: wall time less the model's and the tools'", turns::measure),
    ("session", "20 tasks by 3 teammates, the whole process", sessions::measure_session),
    ("claims", "claims by 8 claimers in 4 processes, and the bare loop", claims::measure_rate),
    ("claim", "one claim in a process that lives, on boards of 10,000 and 100 tasks", claims::measure_one),
    ("cold", "commands, each a process of its own", commands::measure),
    ("completions", "completions that survive a power cut", completions::measure),
    ("wake", "from a new task to the idle teammate's request, and what idling costs", wakes::measure),
    ("idle", "1,000 idle teammates with a long memory", crowds::measure_idle),
    ("crowd", "300 teammates whose model takes a second", crowds::measure_busy),
    ("start", "from nothing to the first request on a board of 10,000 tasks", sessions::measure_start),
    ("resume", "a team of 50 that was killed at work, up again to the first request", resumes::measure),
    ("worktree", "a worktree for a task, and what a merge costs beside git and verify", worktrees::measure),
    ("death", "from the death of a worker to its task in other hands", deaths::measure),
    ("contracts", "what the contracts promise within a time", contracts::measure),
];

fn main() -> ExitCode {
    brigade::sandbox::run_if_asked();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some((role, arguments)) = child::role_of(&arguments) {
        child::play(role, arguments);
        return ExitCode::SUCCESS;
    }
    // Cargo adds flags of its own, such as `--bench`.
    let wanted: Vec<&str> = arguments.iter().map(String::as_str).filter(|word| !word.starts_with('-')).collect();
    if let Some(unknown) = wanted.iter().find(|wanted| !ROWS.iter().any(|(name, ..)| name == *wanted)) {
        eprintln!("there is no row `{unknown}`; there are:");
        ROWS.iter().for_each(|(name, about, _)| eprintln!("  {name:12} {about}"));
        return ExitCode::from(2);
    }
    let mut report = Report::default();
    for (name, about, measure) in ROWS.iter().filter(|(name, ..)| wanted.is_empty() || wanted.contains(name)) {
        let began = Instant::now();
        eprintln!("{name}: {about}");
        report.begin(name);
        measure(&mut report);
        eprintln!("{name}: {:.1} s", began.elapsed().as_secs_f64());
    }
    report.close(wanted.is_empty());
    ExitCode::SUCCESS
}
