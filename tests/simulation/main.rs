//! All of Brigade except for the machine: the real file stores on a simulated disk, the real team loop with scripted
//! models, several processes, a person and other programs. All run in one thread in paused time, from a seed. The
//! invariants must hold under every fault.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a failure must stop the test, and print how to repeat it"
)]

mod actions;
mod agents;
mod approvals;
mod calls;
mod files;
mod host;
mod invariants;
mod ledger_checks;
mod plan;
mod replies;
mod shrink;
mod spending;
#[path = "../testkit/mod.rs"]
mod testkit;
mod tools;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use plan::Plan;
use world::run;

/// The first seed and the number of seeds: `BRIGADE_SIM_SEED=7 BRIGADE_SIM_COUNT=1 cargo test --test simulation
/// invariants`.
const SEED: &str = "BRIGADE_SIM_SEED";
const COUNT: &str = "BRIGADE_SIM_COUNT";
const COUNT_DEFAULT: u64 = 2_000;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn simulation_keeps_invariants() {
    let first = number(SEED, 1);
    let (next, end) = (AtomicU64::new(first), first + number(COUNT, COUNT_DEFAULT));
    let (failed, has_failed) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !has_failed.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let plan = Plan::of(seed);
                    if !run(&plan).violations.is_empty() {
                        has_failed.store(true, Ordering::Relaxed);
                        failed.lock().unwrap().push(plan);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    if let Some(plan) = failed.iter().min_by_key(|plan| plan.seed) {
        let seeds: Vec<String> = failed.iter().map(|plan| plan.seed.to_string()).collect();
        eprintln!("seeds that fail: {}", seeds.join(", "));
        eprintln!("again: {SEED}={} {COUNT}=1 cargo test --test simulation invariants", plan.seed);
        panic!("{}", shrink::report(plan));
    }
}

#[test]
fn same_seed_gives_same_simulation() {
    for seed in 1..=20 {
        let plan = Plan::of(seed);
        let (once, again) = (run(&plan), run(&plan));
        assert_eq!(once.log, again.log, "seed {seed}");
        assert_eq!(once.digest, again.digest, "seed {seed}: the disks differ");
    }
}
