//! The waits of a process for other processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The limit for a process's waits for other processes. Each wait is limited by the store. Clones share the limit.
#[derive(Debug, Clone, Default)]
pub struct WaitLimit {
    state: Arc<WaitState>,
}

#[derive(Debug, Default)]
struct WaitState {
    /// True if the process waits no more after the first wait that was too long.
    is_shared: bool,
    is_over: AtomicBool,
}

impl WaitLimit {
    /// The limit for one command: all its waits together take at most as long as one.
    pub fn for_command() -> Self {
        Self { state: Arc::new(WaitState { is_shared: true, ..WaitState::default() }) }
    }

    /// Ends all waits, now and later, because the process ends.
    pub fn end(&self) {
        self.state.is_over.store(true, Ordering::Relaxed);
    }

    /// Returns true if a call must not wait.
    pub fn is_over(&self) -> bool {
        self.state.is_over.load(Ordering::Relaxed)
    }

    /// Records that a wait was too long.
    pub fn record_timeout(&self) {
        self.state.is_over.fetch_or(self.state.is_shared, Ordering::Relaxed);
    }
}
