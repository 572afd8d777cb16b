//! Tests that repeat a run with many seeds.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The number in this variable of the environment.
pub fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

/// The seeds from the variable `first` on, or from 1, as many as the variable `count` says, or `count_default`.
pub fn seeds(first: &str, count: &str, count_default: u64) -> Range<u64> {
    let first = number(first).unwrap_or(1);
    first..first + number(count).unwrap_or(count_default)
}

/// Runs each seed, on all cores, until one run returns false.
pub fn run_seeds(seeds: Range<u64>, run: impl Fn(u64) -> bool + Sync) {
    let (next, has_failed) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !has_failed.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    if !run(seed) {
                        has_failed.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}
