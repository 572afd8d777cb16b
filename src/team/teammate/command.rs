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

/// The work that an idle member may start at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkGate {
    /// It may claim a task.
    pub claim: bool,
    /// It may read mail that starts a turn.
    pub read_mail: bool,
}

/// The current work gates of all members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkGates {
    /// The work gate of teammates.
    pub teammates: WorkGate,
    /// The work gate of the lead's own agent.
    pub lead: WorkGate,
}

impl WorkGates {
    /// Returns the work gates in this stage of the session.
    pub fn of_stage(stage: SessionStage, desired: Mode) -> Self {
        let can_work = may_claim(stage, desired);
        let teammates = WorkGate { claim: can_work, read_mail: can_work };
        Self { teammates, lead: WorkGate { claim: false, read_mail: lead_may_read(stage) } }
    }

    /// Returns the work gate of this member.
    pub fn of(self, name: &str) -> WorkGate {
        if name == LEAD { self.lead } else { self.teammates }
    }
}
