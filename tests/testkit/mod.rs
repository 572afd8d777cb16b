//! Shared parts of tests and benches: answers of models, clocks, interceptors of stores, file systems that fail, stop or lose power, and the real
//! program in a workspace.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "each group of tests uses some of it, and test helpers may panic"
)]

pub mod answers;
pub mod clock;
pub mod fault_injection;
pub mod interceptors;
pub mod model_server;
pub mod process;
pub mod seeds;
pub mod simulated;
pub mod workspace;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, also after a panic of another holder.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
