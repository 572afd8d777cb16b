//! Kills real teams at random moments, thousands of times, and counts what is lost, doubled, reordered or left over: all of it
//! must be zero.
//!
//! `cargo bench --locked --bench torture -- --kills 3000 --seed 1` builds the program as a release and tortures it; `--beside N` is how many
//! workspaces live at a time. Each is a git repository whose team keeps every task in a worktree. Its seed decides what is done to it;
//! the moments are the machine's. What was lost is decided without any of Brigade's code: by what commands wrote down outside,
//! what those who asked were told, and git. It ends with a table, and with status 1 if anything is wrong.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program that cannot go on says so by a panic, and what it finds is printed"
)]

mod attacks;
mod checks;
mod counts;
mod people;
mod place;
mod world;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use counts::Counts;

/// Attacks on one workspace.
const ROUNDS: usize = 40;
/// How often it says how far it is.
const SAY_INTERVAL: Duration = Duration::from_secs(15);

/// What was asked for.
struct Wanted {
    kills: u64,
    seed: u64,
    beside: usize,
}

fn wanted() -> Result<Wanted, String> {
    let mut wanted = Wanted { kills: 300, seed: fastrand::u64(..1_000_000), beside: 3 };
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let mut number = || -> Result<u64, String> {
            let text = arguments.next().ok_or_else(|| format!("{flag} needs a number"))?;
            text.parse().map_err(|error| format!("{flag} {text}: {error}"))
        };
        match flag.as_str() {
            "--kills" => wanted.kills = number()?,
            "--seed" => wanted.seed = number()?,
            "--beside" => wanted.beside = usize::try_from(number()?.clamp(1, 64)).unwrap_or(1),
            // Cargo adds it.
            "--bench" => {}
            _ => return Err(format!("unknown: {flag}; there are --kills N, --seed N, --beside N")),
        }
    }
    Ok(wanted)
}

fn main() -> ExitCode {
    let wanted = match wanted() {
        Ok(wanted) => wanted,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    println!("seed {}: until {} kills, {} workspaces at a time", wanted.seed, wanted.kills, wanted.beside);
    let (counts, began) = (Arc::new(Counts::default()), Instant::now());
    let (next, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..wanted.beside)
            .map(|_| {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        world::live(
                            wanted.seed.wrapping_mul(1_000_003).wrapping_add(number),
                            ROUNDS,
                            &counts,
                            &is_over,
                        );
                    }
                })
            })
            .collect();
        let mut said = Instant::now();
        while !workers.iter().all(|worker| worker.is_finished()) {
            if counts.of("kills") >= wanted.kills {
                is_over.store(true, Ordering::Relaxed);
            }
            if said.elapsed() >= SAY_INTERVAL {
                said = Instant::now();
                let (kills, spaces) = (counts.of("kills"), counts.of("workspaces"));
                eprintln!(
                    "{:.0} s: {kills} kills, {spaces} workspaces, {} wrong",
                    began.elapsed().as_secs_f64(),
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
        wanted.seed,
        began.elapsed().as_secs_f64(),
        if wrong == 0 { "nothing is wrong" } else { "WRONG" }
    );
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
