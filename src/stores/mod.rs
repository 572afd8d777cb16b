//! Storage. Locks and blocking I/O are only used in these modules.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub mod approvals;
pub mod board_engine;
pub mod file;
pub mod fs;
pub mod git;
pub mod memory;
pub mod workspace;

/// Locks data that is valid even if a thread panicked while it had the lock.
fn lock_data<T>(data: &Mutex<T>) -> MutexGuard<'_, T> {
    data.lock().unwrap_or_else(PoisonError::into_inner)
}
