//! The interfaces between a team and its environment, one file each. Each says what holds after a crash. Every implementation
//! passes the same contract tests.
//!
//! All calls are asynchronous. An implementation that blocks must not stop the runtime's other tasks. It excludes other processes
//! for one call at most. The ports of storage assume neither files nor locks, nor that all processes run on one machine.

#![warn(missing_docs)]

use std::sync::Arc;

mod accounts;
mod board;
mod changes;
mod clock;
mod durability;
mod event_log;
mod interceptor;
mod leadership;
mod ledger;
mod mailbox;
mod model;
mod repository;
mod requests;
mod roster;
mod state;
mod store_error;
mod transcripts;
mod wait_limit;
mod webhook;
mod workers;

pub use accounts::AccountStore;
pub use board::{Board, BoardView, Claimant, InvalidEntry, MissingTask, QuarantinedTask, ReclaimRequest, Reclaimed};
pub use changes::StoreChange;
pub use clock::Clock;
pub use durability::Durability;
pub use event_log::{EventLog, EventReader, Runs};
pub use interceptor::{Call, Interceptor};
pub use leadership::{CurrentLead, LeadHolder, LeadObstacle, Leadership, LeadershipCheck};
pub use ledger::Ledger;
pub use mailbox::{Delivery, Mailbox};
pub use model::{
    ChatMessage, Listener, ModelClient, ModelError, ModelRequest, ModelResponse, RequestPurpose, StopReason, ToolSpec,
    blocks_tokens_max, escaped_bytes,
};
pub use repository::{
    Assignment, CommandPlace, CommitOutcome, LaunchedRepository, LeftoverWork, Merge, MergeOutcome, MergeRequest,
    PORTS_PER_WORKTREE, PendingSetup, PublishOutcome, RecordedMerge, Repository, RepositoryError, Setup, SetupPlace,
    TEAMMATES_DOMAIN, TeamWorktree, UnmergedWork, WorkInspector, Worktree, WorktreeOutcome,
};
pub use requests::Requests;
pub use roster::Roster;
pub use state::StateStore;
pub use store_error::{IoAction, StoreError, StoreResult};
pub use transcripts::Transcripts;
pub use wait_limit::WaitLimit;
pub use webhook::Webhook;
pub use workers::{WorkerSurvey, Workers};

/// All stores of one workspace.
#[derive(Clone)]
pub struct Stores {
    /// The task board.
    pub board: Arc<dyn Board>,
    /// The inboxes.
    pub mailbox: Arc<dyn Mailbox>,
    /// The transcripts.
    pub transcripts: Arc<dyn Transcripts>,
    /// Requests that wait for an answer.
    pub requests: Arc<dyn Requests>,
    /// The desired state, and the team's reports.
    pub state: Arc<dyn StateStore>,
    /// The roster of members, which other programs also read and write.
    pub roster: Arc<dyn Roster>,
    /// The event log.
    pub events: Arc<dyn EventLog>,
    /// The usage of model requests.
    pub ledger: Arc<dyn Ledger>,
    /// The processes that run teammates.
    pub workers: Arc<dyn Workers>,
    /// The leadership: one process at a time leads the workspace.
    pub leadership: Arc<dyn Leadership>,
    /// The limit for waits of all stores.
    pub wait_limit: WaitLimit,
    /// Hints about changes by this and other processes.
    pub changes: tokio::sync::broadcast::Sender<StoreChange>,
}
