//! An agent's claim, and how soon its turn must end. The teammate's loop sets both while the turn runs, and the turn obeys.
//!
//! The loop never drops the future of a turn, so the transcript and the agent's memory agree. Only a member that must end at once is
//! dropped, together with its turn.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::domain::team::phase::ClaimRef;
use crate::run::progress::Progress;

/// The time that a running tool has to end after the claim was lost.
const TOOL_GRACE: Duration = Duration::from_millis(500);

/// The urgency with which a turn must end. Each level is stricter than the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopLevel {
    /// The turn runs to its own end.
    Run,
    /// The turn runs to its own end, but waits for nothing and starts nothing new.
    FinishTurn,
    /// The claim is lost: no request and no further tool; a running tool ends after a short grace time.
    ClaimLost,
    /// The turn ends now.
    Abort,
}

/// The claim and the stop level of one agent.
pub struct TurnControl {
    level: watch::Sender<StopLevel>,
    /// The agent's signs of life, with its claim.
    pub progress: Arc<Progress>,
}

impl TurnControl {
    /// Creates the control of an agent without a claim.
    pub fn new(progress: Arc<Progress>) -> Arc<Self> {
        Arc::new(Self { level: watch::Sender::new(StopLevel::Run), progress })
    }

    /// Sets the claim. A command that was started under another claim ends.
    pub fn set_claim(&self, claim: Option<ClaimRef>) {
        self.progress.set_claim(claim);
    }

    /// Returns the current claim.
    pub fn claim(&self) -> Option<ClaimRef> {
        self.progress.claim()
    }

    /// Sets the stop level, even to a lower one.
    pub fn set_level(&self, level: StopLevel) {
        self.level.send_replace(level);
    }

    /// Raises the stop level to at least this one.
    pub fn request_stop(&self, level: StopLevel) {
        self.level.send_if_modified(|now| std::mem::replace(now, level.max(*now)) < level);
    }

    /// Returns the stop level.
    pub fn level(&self) -> StopLevel {
        *self.level.borrow()
    }

    /// Waits until the stop level is at least this one.
    pub async fn wait_for_level(&self, level: StopLevel) {
        // The sender lives as long as `self`.
        let _ = self.level.subscribe().wait_for(|now| *now >= level).await;
    }

    /// Waits until the agent no longer has this claim.
    pub async fn wait_for_claim_end(&self, claim: Option<ClaimRef>) {
        // The sender lives as long as `self`.
        let _ = self.progress.claim_receiver().wait_for(|now| *now != claim).await;
    }

    /// Waits until a running tool must be dropped.
    pub async fn tool_deadline(&self) {
        self.wait_for_level(StopLevel::ClaimLost).await;
        tokio::select! {
            biased;
            () = self.wait_for_level(StopLevel::Abort) => {}
            () = tokio::time::sleep(TOOL_GRACE) => {}
        }
    }

    /// Clears the claim after the agent's own report ended it. The turn goes on, even if the loop has already noticed the lost claim.
    pub fn clear_reported_claim(&self) {
        self.set_claim(None);
        self.level.send_if_modified(|now| {
            let is_claim_lost = *now == StopLevel::ClaimLost;
            if is_claim_lost {
                *now = StopLevel::Run;
            }
            is_claim_lost
        });
    }
}
