//! The shared state.

use async_trait::async_trait;

use super::StoreResult;
use crate::domain::team::state::{SharedState, StateUpdate};

/// The shared state: the state that the person wants, and the reports of the team. People and other programs change it, too.
#[async_trait]
pub trait StateStore: Send + Sync {
    /// Returns the state, or `None` if there is none. An invalid state is read again until it is valid or unchanged for a second.
    /// Then it is set aside, and a state with pause/pause replaces it.
    async fn read(&self) -> StoreResult<Option<SharedState>>;

    /// Merges `update` into the state without losing changes of other writers, and returns the result. Changes of the desired or
    /// current state are stored when this returns. Other reports are stored within 250 ms, the last one only, also if the store
    /// is dropped. A report that another writer overwrites is restored within 100 ms.
    async fn update(&self, update: StateUpdate) -> StoreResult<SharedState>;
}
