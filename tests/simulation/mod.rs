//! All of Brigade except the machine. The real file stores are on a simulated disk, and the real team loop has scripted models. Several
//! processes, a person and other programs act. All run in one thread in paused time, from a seed. The invariants must hold under every
//! fault.

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
mod plan;
mod replies;
mod shrink;
mod spending;
mod store_observer;
mod tools;
mod world;

use std::sync::Mutex;

use crate::testkit::seeds::{run_seeds, seeds};
use plan::Plan;
use world::run;

/// The first seed and the number of seeds: `BRIGADE_SIM_SEED=7 BRIGADE_SIM_COUNT=1 cargo test --test engine
/// simulation_keeps`.
const SEED: &str = "BRIGADE_SIM_SEED";
const COUNT: &str = "BRIGADE_SIM_COUNT";
/// A quick run; `.ci/run` runs more seeds.
const COUNT_DEFAULT: u64 = 300;

#[test]
fn simulation_keeps_invariants() {
    let failed = Mutex::new(Vec::new());
    run_seeds(seeds(SEED, COUNT, COUNT_DEFAULT), |seed| {
        let plan = Plan::of(seed);
        let is_kept = run(&plan).violations.is_empty();
        if !is_kept {
            failed.lock().unwrap().push(plan);
        }
        is_kept
    });
    let failed = failed.into_inner().unwrap();
    if let Some(plan) = failed.iter().min_by_key(|plan| plan.seed) {
        let seeds: Vec<String> = failed.iter().map(|plan| plan.seed.to_string()).collect();
        eprintln!("seeds that fail: {}", seeds.join(", "));
        eprintln!("again: {SEED}={} {COUNT}=1 cargo test --test engine simulation_keeps", plan.seed);
        panic!("{}", shrink::report(plan));
    }
}

/// Seeds beyond the quick run that once found a bug: two teammates that asked for a review without end after the clock was set back, and
/// an approval of a claim that a power cut had undone.
#[test]
fn simulation_keeps_invariants_for_old_bugs() {
    for seed in [303, 925, 9204] {
        assert_eq!(run(&Plan::of(seed)).violations, Vec::<String>::new(), "seed {seed}");
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
