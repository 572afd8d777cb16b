//! Who goes first after a restart: each teammate that held a task when the process before ended claims that one again, and the others
//! wait until it has tried, so that nobody takes up what another knows. The wait is bounded.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::name::Name;

/// How long the others wait at most, from when the first of them could claim.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug, Default)]
pub struct Firsts {
    waited_for: Mutex<HashSet<Name>>,
    since: OnceLock<Instant>,
}

impl Firsts {
    /// These go first.
    pub fn of(names: impl IntoIterator<Item = Name>) -> Self {
        Self { waited_for: Mutex::new(names.into_iter().collect()), since: OnceLock::new() }
    }

    fn waited_for(&self) -> MutexGuard<'_, HashSet<Name>> {
        self.waited_for.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody else has to try first.
    pub fn has_others(&self, name: &Name) -> bool {
        let since = *self.since.get_or_init(Instant::now);
        since.elapsed() < WAIT_MAX && self.waited_for().iter().any(|other| other != name)
    }

    /// It has tried. Says whether nobody is waited for any more, and somebody was.
    pub fn has_tried(&self, name: &Name) -> bool {
        let mut waited_for = self.waited_for();
        waited_for.remove(name) && waited_for.is_empty()
    }
}
