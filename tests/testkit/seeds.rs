//! Tests that repeat a run with many seeds or for many items.

use std::num::NonZero;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The checks that run at once if each starts processes: they wait most of the time.
pub const PROCESS_CHECKS_AT_ONCE: usize = 4;

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
    let has_failed = AtomicBool::new(false);
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    run_in_threads(threads, seeds, |seed| {
        if !has_failed.load(Ordering::Relaxed) && !run(seed) {
            has_failed.store(true, Ordering::Relaxed);
        }
    });
}

/// Runs a check for each item, in this many threads.
pub fn run_in_threads<T>(threads: usize, items: impl IntoIterator<Item = T, IntoIter: Send>, run: impl Fn(T) + Sync) {
    let items = Mutex::new(items.into_iter());
    let next = || items.lock().unwrap().next();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(item) = next() {
                    run(item);
                }
            });
        }
    });
}
