//! Benchmarks for the table of docs/internals/speed.md, one row each.
//!
//! `cargo bench --locked` measures every row except those on request, prints one table and writes `target/bench/speed.json`. `cargo bench
//! --locked -- ROW...` measures some rows. Values that are compared are measured in turn in the same run; a figure is
//! the median of its rounds. A slow machine never fails a benchmark: the table reports what was reached. Work that
//! needs another process runs in this program again ([`child`]), or in `brigade`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark that cannot go on panics, and results are printed"
)]

mod agents;
mod apis;
mod child_process;
mod claims;
mod commands;
mod completions;
mod contracts;
mod report;
mod resumes;
mod scale;
mod sessions;
mod team;
#[path = "../../tests/testkit/mod.rs"]
mod testkit;
mod turns;
mod wakeups;
mod worker_death;
mod workspace;
mod worktrees;

use std::process::ExitCode;
use std::time::Instant;

use report::Report;

/// A row: its name on the command line, its title, and its function.
type Row = (&'static str, &'static str, fn(&mut Report));

const ROWS: [Row; 17] = [
    ("turns", "overhead of a turn: wall time minus the time of model and tools", turns::measure),
    ("apis", "overhead of a turn with a server that answers at once, in each API", apis::measure),
    ("session", "20 tasks by 3 teammates, the whole process", sessions::measure_session),
    ("claims", "claims by 8 claimers in 4 processes, and the bare loop", claims::measure_rate),
    ("claim", "one claim in a running process, on boards of 10,000 and 100 tasks", claims::measure_one),
    ("cold", "commands, each a process of its own", commands::measure),
    ("completions", "completions that survive a power cut", completions::measure),
    ("wake", "from a new task to the idle teammate's request, and what idling costs", wakeups::measure),
    ("idle", "1,000 idle teammates with a long memory", scale::measure_idle),
    ("crowd", "300 teammates whose model takes a second", scale::measure_busy),
    ("server", "300 members on one server whose model takes a second", apis::measure_crowd),
    ("start", "from process start to the first request, on a board of 10,000 tasks", sessions::measure_start),
    ("resume", "a killed team of 50: from relaunch to the first request", resumes::measure),
    ("worktree", "a worktree for a task, and the extra time of a merge over git and verify", worktrees::measure),
    ("death", "from the death of a worker to the next claim of its task", worker_death::measure),
    ("contracts", "contracts with a time limit", contracts::measure),
    ("agents", "Claude Code as a member, compared with the program alone", agents::measure),
];

/// Rows that need much time and space. They are measured only if they are named.
const ROWS_ON_REQUEST: [Row; 1] =
    [("worktree-large", "a worktree for a task in a repository of 1 GB", worktrees::measure_large)];

fn main() -> ExitCode {
    brigade::sandbox::run_if_guard();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some((role, arguments)) = child_process::role_of(&arguments) {
        child_process::run_role(role, arguments);
        return ExitCode::SUCCESS;
    }
    // Cargo adds flags, such as `--bench`.
    let selected_rows: Vec<&str> = arguments.iter().map(String::as_str).filter(|word| !word.starts_with('-')).collect();
    let all = || ROWS.iter().chain(&ROWS_ON_REQUEST);
    if let Some(unknown) = selected_rows.iter().find(|row| !all().any(|(name, ..)| name == *row)) {
        eprintln!("there is no row `{unknown}`; there are:");
        all().for_each(|(name, about, _)| eprintln!("  {name:14} {about}"));
        return ExitCode::from(2);
    }
    let selected: Vec<&Row> = match selected_rows.is_empty() {
        true => ROWS.iter().collect(),
        false => all().filter(|(name, ..)| selected_rows.contains(name)).collect(),
    };
    let mut report = Report::default();
    for (name, about, measure) in selected {
        let started_at = Instant::now();
        eprintln!("{name}: {about}");
        report.begin(name);
        measure(&mut report);
        eprintln!("{name}: {:.1} s", started_at.elapsed().as_secs_f64());
    }
    report.close(selected_rows.is_empty());
    ExitCode::SUCCESS
}
