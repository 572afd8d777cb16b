//! The lead's orders to a teammate: commands, prompts and its work gate.

use crate::domain::agent::transcript::PromptKind;
use crate::domain::team::name::LEAD;
use crate::domain::team::phase::ClaimRef;
use crate::domain::team::session::{SessionStage, lead_may_read, may_claim};
use crate::domain::team::state::Mode;
use crate::team::handle::Reply;

/// A command to a teammate.
#[derive(Debug, Clone)]
pub enum TeammateCommand {
    /// There may be mail or a task.
    Poll,
    /// A text for its model; the lead gets its goals this way.
    Prompt(Prompt),
    /// Compact the context between two turns, and send the result here.
    Compact(Reply),
    /// The cause of its permanent error may be fixed: try again.
    Retry,
    /// A message waits that must not wait for the turn: abort the turn and read the mail.
    ReadInbox,
    /// Finish the turn, release the claim, end.
    Stop,
    /// Abort the turn and end.
    Abort,
    /// The claim is lost.
    ClaimLost(ClaimRef),
}

/// A text for a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Counts up from 1. The prompt is answered when [`super::TeammateStatus::prompts_answered`] has reached it.
    pub number: u64,
    /// Its kind.
    pub kind: PromptKind,
    /// The text.
    pub text: String,
}

/// The work that idle members may start at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkGates {
    /// Teammates may claim tasks, and read mail that starts a turn.
    pub teammates_work: bool,
    /// The lead's own agent may read mail that starts a turn.
    pub lead_reads: bool,
}

impl WorkGates {
    /// Returns the work gates in this stage of the session.
    pub fn of_stage(stage: SessionStage, desired: Mode) -> Self {
        Self { teammates_work: may_claim(stage, desired), lead_reads: lead_may_read(stage) }
    }

    /// Returns true if this member may claim a task.
    pub fn may_claim(self, name: &str) -> bool {
        self.teammates_work && name != LEAD
    }

    /// Returns true if this member may read mail that starts a turn.
    pub fn may_read(self, name: &str) -> bool {
        if name == LEAD { self.lead_reads } else { self.teammates_work }
    }
}
