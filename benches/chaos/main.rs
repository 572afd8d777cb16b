//! Kills real teams at random moments, thousands of times, and counts what is lost, doubled, reordered or left over.
//! Every count must be zero.
//!
//! `cargo bench --locked --bench chaos -- --kills 3000 --seed 1` builds the program in release mode and runs the
//! attacks. `--beside N` sets the number of workspaces that run at a time. Each is a git repository whose team keeps
//! every task in a worktree. The seed decides the attacks; their exact moments depend on the machine. The verdict
//! uses none of Brigade's code. It relies on notes that commands write outside the workspace, on the answers that
//! callers got, and on git. The program prints a table, and exits with status 1 after any violation.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program that cannot go on panics, and results are printed"
)]

mod attacks;
mod checks;
mod counts;
mod setup;
#[path = "../../tests/testkit/mod.rs"]
mod testkit;
mod users;
mod workspace;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use counts::Counts;

/// Attacks on one workspace.
const ROUNDS: usize = 40;
/// The interval between two progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(15);

struct Options {
    kills: u64,
    seed: u64,
    beside: usize,
}

fn parse_options() -> Result<Options, String> {
    let mut parse_options = Options { kills: 300, seed: fastrand::u64(..1_000_000), beside: 3 };
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let mut number = || -> Result<u64, String> {
            let text = arguments.next().ok_or_else(|| format!("{flag} needs a number"))?;
            text.parse().map_err(|error| format!("{flag} {text}: {error}"))
        };
        match flag.as_str() {
            "--kills" => parse_options.kills = number()?,
            "--seed" => parse_options.seed = number()?,
            "--beside" => parse_options.beside = usize::try_from(number()?.clamp(1, 64)).unwrap_or(1),
            // Cargo adds this flag.
            "--bench" => {}
            _ => return Err(format!("unknown: {flag}; there are --kills N, --seed N, --beside N")),
        }
    }
    Ok(parse_options)
}

fn main() -> ExitCode {
    let parse_options = match parse_options() {
        Ok(parse_options) => parse_options,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    println!(
        "seed {}: until {} kills, {} workspaces at a time",
        parse_options.seed, parse_options.kills, parse_options.beside
    );
    let (counts, started_at) = (Arc::new(Counts::default()), Instant::now());
    let (next, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..parse_options.beside)
            .map(|_| {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        setup::run_workspace(
                            parse_options.seed.wrapping_mul(1_000_003).wrapping_add(number),
                            ROUNDS,
                            &counts,
                            &is_over,
                        );
                    }
                })
            })
            .collect();
        let mut printed_at = Instant::now();
        while !workers.iter().all(|worker| worker.is_finished()) {
            if counts.of("kills") >= parse_options.kills {
                is_over.store(true, Ordering::Relaxed);
            }
            if printed_at.elapsed() >= PROGRESS_INTERVAL {
                printed_at = Instant::now();
                let (kills, spaces) = (counts.of("kills"), counts.of("workspaces"));
                eprintln!(
                    "{:.0} s: {kills} kills, {spaces} workspaces, {} wrong",
                    started_at.elapsed().as_secs_f64(),
                    counts.all_wrong()
                );
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    println!("\n{}\n", counts.table());
    let wrong = counts.all_wrong();
    println!(
        "seed {}, {:.0} s: {}",
        parse_options.seed,
        started_at.elapsed().as_secs_f64(),
        if wrong == 0 { "nothing is wrong" } else { "WRONG" }
    );
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
