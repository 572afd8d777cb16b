//! The parts that the agents of a team share.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::isolation::WorktreeService;
use crate::domain::log::snapshot::{MemberSnapshot, bounded_text};
use crate::domain::team::phase::Phase;
use crate::domain::team::team_spec::{MemberSpec, TeamSpec};
use crate::domain::team::waiting_for::WaitingFor;
use crate::domain::time::UnixMs;
use crate::ports::{Clock, Stores};
use crate::run::accounts::Accounts;
use crate::run::budget::BudgetGuard;
use crate::run::event_sink::EventSink;
use crate::run::stream::OutputBroadcast;
use crate::sandbox::Sandbox;
use crate::service::messages::Outbox;

/// Everything that the agents of a team share.
#[derive(Clone)]
pub struct AgentServices {
    /// The team.
    pub spec: Arc<TeamSpec>,
    /// The stores.
    pub stores: Stores,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// The time of the launch.
    pub launched_at: UnixMs,
    /// The folder of the run. With isolation, members work in worktrees.
    pub workspace: WorkspaceAccess,
    /// Prepares a separate worktree for each task, if the team uses isolation.
    pub isolation: Option<WorktreeService>,
    /// Reserves budget for requests.
    pub budget: Arc<BudgetGuard>,
    /// The limits of the members' accounts.
    pub accounts: Arc<Accounts>,
    /// Receives events.
    pub events: EventSink,
    /// Receives the models' output while it is streamed.
    pub output: OutputBroadcast,
    /// Wakes the lead when a member reports.
    pub member_reported: Arc<tokio::sync::Notify>,
}

/// The workspace, and the bounds on what agents do in it.
#[derive(Clone)]
pub struct WorkspaceAccess {
    /// Its absolute path.
    pub root: PathBuf,
    /// Files that no tool may write, relative to the root.
    pub control_files: Arc<[PathBuf]>,
    /// Confines commands.
    pub sandbox: Sandbox,
}

impl AgentServices {
    /// Returns the folder with the merged work: the workspace or, with isolation, the team worktree.
    pub fn work_folder(&self) -> &Path {
        self.isolation.as_ref().map_or(&self.workspace.root, |isolation| &isolation.team_worktree.root)
    }

    /// Returns the outbox of the messages that the harness sends.
    pub fn outbox(&self) -> Outbox<'_> {
        Outbox { stores: &self.stores, now: self.clock.now(), events: Some(self.events.facts()) }
    }

    /// Returns the row of a member in this phase for the event log.
    pub fn member_row(
        &self,
        spec: &MemberSpec,
        phase: Phase,
        since: UnixMs,
        waiting_for: Option<&WaitingFor>,
    ) -> MemberSnapshot {
        let used = self.budget.used_by(spec.name.as_str());
        MemberSnapshot {
            name: spec.name.to_string(),
            role: bounded_text(&spec.role),
            phase: phase.reported(),
            task: phase.claim().map(|claim| claim.task),
            attempt: phase.claim().map(|claim| claim.attempt),
            since: Some(since),
            tokens: used.tokens,
            cost_usd: used.reported_usd(),
            wait: waiting_for.map(WaitingFor::wait),
            waiting_for: waiting_for.map(|reason| bounded_text(&reason.to_file_text())),
        }
    }
}
