//! The shared state in memory. No other program writes it.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tokio::sync::broadcast::Sender;

use crate::domain::state::{SharedState, StateUpdate};
use crate::ports::{Clock, StateStore, StoreChange, StoreResult};

/// The shared state in memory.
pub struct MemoryState {
    clock: Arc<dyn Clock>,
    changes: Sender<StoreChange>,
    state: Mutex<Option<SharedState>>,
}

impl MemoryState {
    /// No state yet.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, changes: Sender<StoreChange>) -> Self {
        Self { clock, changes, state: Mutex::new(None) }
    }
}

#[async_trait]
impl StateStore for MemoryState {
    async fn read(&self) -> StoreResult<Option<SharedState>> {
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    async fn update(&self, update: StateUpdate) -> StoreResult<SharedState> {
        let now = self.clock.now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let next = state.take().unwrap_or_else(|| SharedState::paused(now)).merge(&update, now);
        *state = Some(next.clone());
        drop(state);
        if update.desired.is_some() {
            // There may be no listener.
            let _ = self.changes.send(StoreChange::State);
        }
        Ok(next)
    }
}
