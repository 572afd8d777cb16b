//! The order of claims after a restart. Each teammate first reclaims the task that it held before. The others wait until it has tried,
//! for a limited time. So no teammate claims a task that another one has started.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::domain::task::TaskId;
use crate::domain::team::name::Name;

/// The longest wait of the others, from the first claim on.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// The teammates that claim first.
#[derive(Debug, Default)]
pub struct ReclaimOrder {
    /// The former tasks of teammates that have not tried to claim them yet.
    untried: Mutex<HashMap<Name, TaskId>>,
    since: OnceLock<Instant>,
}

impl ReclaimOrder {
    /// Creates an order in which these teammates first claim their former tasks.
    pub fn of(former_tasks: HashMap<Name, TaskId>) -> Self {
        Self { untried: Mutex::new(former_tasks), since: OnceLock::new() }
    }

    /// Returns the task that this teammate held before and has not tried to claim yet.
    pub fn former_task(&self, name: &Name) -> Option<TaskId> {
        self.untried.lock().get(name).copied()
    }

    /// Returns true if this teammate must wait, because another one has to try first.
    pub fn must_wait(&self, name: &Name) -> bool {
        let since = *self.since.get_or_init(Instant::now);
        let untried = self.untried.lock();
        since.elapsed() < WAIT_MAX && !untried.is_empty() && !untried.contains_key(name)
    }

    /// Records that this teammate has tried. Returns true if it was the last one that others waited for.
    pub fn record_try(&self, name: &Name) -> bool {
        let mut untried = self.untried.lock();
        untried.remove(name).is_some() && untried.is_empty()
    }
}
