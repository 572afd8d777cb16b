//! The leadership of a workspace.

use async_trait::async_trait;

use super::StoreResult;
use crate::domain::team::records::LeadRecord;

/// The holder of a workspace's leadership, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeadHolder {
    /// Name of its team.
    pub team: String,
    /// Its process, as people find it.
    pub process: String,
}

/// The process that leads a workspace, as another process sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CurrentLead {
    /// No process leads, as far as this one can see. The last lead may be known.
    None(Option<LeadRecord>),
    /// This process leads.
    Known(LeadRecord),
    /// No process can lead, because of this obstacle.
    Obstructed(LeadObstacle),
}

/// A process that is not known as a lead, but keeps others from leading. The store describes it for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeadObstacle {
    /// The process and the thing that it keeps, as a sentence without a full stop.
    pub reason: String,
    /// The steps that remove the obstacle.
    pub remedy: String,
}

/// The result of a check of the own leadership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeadershipCheck {
    /// This process leads.
    Held,
    /// This process leads. The proof of it was missing and is restored.
    Restored,
    /// Another process leads now.
    Lost(LeadHolder),
    /// The workspace was removed or moved.
    NoWorkspace,
}

/// The leadership of the workspace. One process at a time leads it, from its opening as lead until that is dropped.
///
/// After a crash of the lead another process can lead, at once or after a lease.
#[async_trait]
pub trait Leadership: Send + Sync {
    /// Returns the process that leads. Changes nothing.
    async fn current(&self) -> StoreResult<CurrentLead>;

    /// Checks that this process still leads, and restores a missing proof of it. Never takes the lead from another process.
    /// A process that is no lead has nothing to lose.
    async fn check(&self) -> StoreResult<LeadershipCheck>;
}
