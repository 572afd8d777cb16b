//! Hints of the stores about changes.

use std::collections::BTreeSet;

use tokio::sync::broadcast;

use crate::ports::StoreChange;

/// Changes since the last poll, collected from hints.
#[derive(Debug, Default)]
pub(super) struct PendingChanges {
    pub everything: bool,
    pub board: bool,
    pub state: bool,
    pub mail: BTreeSet<String>,
}

impl PendingChanges {
    pub fn add(&mut self, change: StoreChange) {
        match change {
            StoreChange::Board => self.board = true,
            StoreChange::State => self.state = true,
            StoreChange::Mail(to) => {
                self.mail.insert(to);
            }
            StoreChange::Everything => self.everything = true,
        }
    }

    /// Adds all hints that wait.
    pub fn add_waiting(&mut self, hints: &mut broadcast::Receiver<StoreChange>) {
        loop {
            match hints.try_recv() {
                Ok(change) => self.add(change),
                Err(broadcast::error::TryRecvError::Lagged(_)) => self.add(StoreChange::Everything),
                Err(broadcast::error::TryRecvError::Empty | broadcast::error::TryRecvError::Closed) => return,
            }
        }
    }
}
