//! The order of claims after a restart. Each teammate first reclaims the task that it held before. The others wait until it has tried,
//! for a limited time. So no teammate claims a task that another one has started.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::name::Name;

/// The longest wait of the others, from the first claim on.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// The teammates that claim first.
#[derive(Debug, Default)]
pub struct ReclaimOrder {
    /// Teammates that have not tried to claim yet.
    untried: Mutex<HashSet<Name>>,
    since: OnceLock<Instant>,
}

impl ReclaimOrder {
    /// Creates an order in which these teammates claim first.
    pub fn of(names: impl IntoIterator<Item = Name>) -> Self {
        Self { untried: Mutex::new(names.into_iter().collect()), since: OnceLock::new() }
    }

    fn untried(&self) -> MutexGuard<'_, HashSet<Name>> {
        self.untried.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if this teammate must wait, because another one has to try first.
    pub fn must_wait(&self, name: &Name) -> bool {
        let since = *self.since.get_or_init(Instant::now);
        since.elapsed() < WAIT_MAX && self.untried().iter().any(|other| other != name)
    }

    /// Records that this teammate has tried. Returns true if it was the last one that others waited for.
    pub fn record_try(&self, name: &Name) -> bool {
        let mut untried = self.untried();
        untried.remove(name) && untried.is_empty()
    }
}
