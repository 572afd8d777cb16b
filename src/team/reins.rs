//! What holds an agent: the claim its tools act under, and how soon its turn must end. Written by the teammate's loop while
//! the turn runs, heeded by the turn. A turn is never dropped: what it has recorded and what it remembers stay the same.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::progress::Progress;
use crate::domain::phase::Held;
use crate::domain::task::TaskId;

/// How long a tool whose claim was lost may take to end by itself; a report that is being written may be what ended the claim.
const TOOL_GRACE: Duration = Duration::from_millis(500);

/// How soon a turn must end; each is sooner than the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pace {
    /// By itself.
    Free,
    /// By itself, but nothing is waited for and nothing begun anew.
    Finish,
    /// Its claim is lost: no request, no further tool; a running one ends at once.
    LetGo,
    /// Now.
    BreakOff,
}

/// See the module.
pub struct Reins {
    holding: watch::Sender<Option<(TaskId, u32)>>,
    pace: watch::Sender<Pace>,
    progress: Arc<Progress>,
}

impl Reins {
    /// Reins of an agent that holds nothing.
    #[must_use]
    pub fn new(progress: Arc<Progress>) -> Arc<Self> {
        Arc::new(Self { holding: watch::Sender::new(None), pace: watch::Sender::new(Pace::Free), progress })
    }

    /// Where tools read what is held.
    #[must_use]
    pub fn holding(&self) -> watch::Receiver<Option<(TaskId, u32)>> {
        self.holding.subscribe()
    }

    /// Sets what is held; a running command ends when that is not what it was started under.
    pub fn hold(&self, held: Option<Held>) {
        self.holding.send_replace(held.map(|held| (held.task, held.attempt)));
        self.progress.hold(held);
    }

    /// What is held.
    #[must_use]
    pub fn held(&self) -> Option<Held> {
        self.holding.borrow().map(|(task, attempt)| Held { task, attempt })
    }

    /// Sets the pace, whatever it was.
    pub fn set_pace(&self, pace: Pace) {
        self.pace.send_replace(pace);
    }

    /// Makes the pace at least this soon.
    pub fn hasten(&self, pace: Pace) {
        self.pace.send_if_modified(|now| std::mem::replace(now, pace.max(*now)) < pace);
    }

    /// The pace.
    #[must_use]
    pub fn pace(&self) -> Pace {
        *self.pace.borrow()
    }

    /// Returns once the pace is at least this soon.
    pub async fn reaches(&self, pace: Pace) {
        // The sender lives as long as this does.
        let _ = self.pace.subscribe().wait_for(|now| *now >= pace).await;
    }

    /// Returns once a running tool must be dropped.
    pub async fn drops_tools(&self) {
        self.reaches(Pace::LetGo).await;
        tokio::select! {
            biased;
            () = self.reaches(Pace::BreakOff) => {}
            () = tokio::time::sleep(TOOL_GRACE) => {}
        }
    }

    /// The claim ended by the agent's own report: that it is gone is no reason to stop.
    pub fn finished(&self) {
        self.hold(None);
        self.pace.send_if_modified(|now| {
            let was_let_go = *now == Pace::LetGo;
            if was_let_go {
                *now = Pace::Free;
            }
            was_let_go
        });
    }
}
