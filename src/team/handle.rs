//! The interface of a running team for front ends: commands in, events out, and the current status of all members.

#![warn(missing_docs)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinHandle;

use super::roster::spawned_member;
use crate::domain::log::event::{Event, TaskCounts};
use crate::domain::team::name::{LEAD, Name};
pub use crate::domain::team::run_verdict::TeamEnd;
use crate::domain::team::state::{TeammateReport, TeammateReports};
use crate::domain::team::team_spec::{MemberSpec, TeamSpec};
use crate::domain::team::waiting_for::WaitingFor;
use crate::run::stream::{OutputBroadcast, StreamChunk};
use crate::service::review::{ReviewCandidate, choose_reviewer};
use crate::tools::TeamControl;

/// Maximum number of commands queued for the lead.
pub(super) const LEAD_COMMANDS_MAX: usize = 64;

/// The reason for which a stopping team refuses a command.
pub(super) const TEAM_STOPPING: &str = "the team is stopping";

/// Sends the result of a command: nothing (its events tell the rest), or the reason why it was refused.
pub type Reply = mpsc::Sender<Result<(), String>>;

/// A front end's command to the team.
#[derive(Debug)]
pub enum TeamCommand {
    /// Finish the running turns, release the claims, end.
    Stop,
    /// End immediately.
    Abort,
    /// Replace a member's context by a summary: at once if it is idle, otherwise after its turn.
    Compact {
        /// The member's name, as typed.
        name: String,
        /// Receives the result.
        reply: Reply,
    },
    /// Start a teammate.
    Spawn {
        /// Its configuration.
        spec: Box<MemberSpec>,
        /// Receives the result: a text for the lead, or the reason for the refusal.
        reply: oneshot::Sender<Result<String, String>>,
    },
}

/// The result of a team's run.
#[derive(Debug, Clone)]
pub struct TeamOutcome {
    /// The reason why it ended.
    pub end: TeamEnd,
    /// The task counts of the board.
    pub task_counts: TaskCounts,
    /// The last session's report.
    pub summary: String,
    /// An error other than failed tasks: no member could work, mail stayed unread, or the goal was not planned.
    pub error: Option<String>,
}

/// A running team.
pub struct TeamHandle {
    pub(super) commands: mpsc::Sender<TeamCommand>,
    pub(super) events: broadcast::Sender<Arc<Event>>,
    /// A receiver from before the first event.
    pub(super) first_events: Mutex<Option<broadcast::Receiver<Arc<Event>>>>,
    pub(super) output_stream: OutputBroadcast,
    pub(super) live: Arc<LiveStatus>,
    pub(super) lead: JoinHandle<TeamOutcome>,
}

impl TeamHandle {
    /// Sends a command. Its effects show in the events. A team that has ended ignores it.
    pub async fn command(&self, command: TeamCommand) {
        let _ = self.commands.send(command).await;
    }

    /// Returns a sender of commands that does not borrow the handle.
    pub fn commands(&self) -> mpsc::Sender<TeamCommand> {
        self.commands.clone()
    }

    /// Returns a receiver of events. The first caller gets all events of the run, later callers those from now on.
    pub fn events(&self) -> broadcast::Receiver<Arc<Event>> {
        let first = self.first_events.lock().take();
        first.unwrap_or_else(|| self.events.subscribe())
    }

    /// Returns true if the lead has a model that answers prompts; a `runbook` lead answers none.
    pub fn lead_has_model(&self) -> bool {
        self.live.lead_has_model
    }

    /// Returns a receiver of the models' output from now on, while it is streamed. It is bounded: a slow receiver loses pieces
    /// (`Lagged`). The events have the complete texts.
    pub fn subscribe_output(&self) -> broadcast::Receiver<Arc<StreamChunk>> {
        self.output_stream.subscribe()
    }

    /// Returns the current status of all members.
    pub fn live(&self) -> &Arc<LiveStatus> {
        &self.live
    }

    /// Aborts the team as the death of its process would: nothing is released, written or reported. Its claims stay with its
    /// worker as long as its stores live.
    pub fn abort(&self) {
        self.lead.abort();
    }

    /// Waits until the team has ended.
    ///
    /// # Errors
    /// The lead panicked, which is a bug in Brigade, or was aborted.
    pub async fn wait(&mut self) -> Result<TeamOutcome, tokio::task::JoinError> {
        (&mut self.lead).await
    }
}

/// The status of all members. The lead updates it; front ends read it at any time.
pub struct LiveStatus {
    rows: Mutex<StatusRows>,
    lead_has_model: bool,
    stop_timeout: Duration,
}

/// The status of all members in the last report.
#[derive(Default)]
pub(super) struct StatusRows {
    pub teammates: Arc<TeammateReports>,
    /// The lead's status, if it has a model.
    pub lead: Option<Arc<TeammateReport>>,
    /// The reason why the team has no session, if its goal is not met.
    pub waiting_for: Option<WaitingFor>,
    /// The ids of the open approvals.
    pub approvals: Vec<String>,
    /// All members but the lead, with the capabilities by which they can review. `runbook` cannot.
    members: BTreeMap<Name, Vec<String>>,
}

impl LiveStatus {
    /// Creates the status of a team whose members have not reported yet.
    pub(super) fn of(spec: &TeamSpec) -> Self {
        let (lead_has_model, stop_timeout) = (spec.lead.has_model(), spec.limits.stop_timeout);
        let live = Self { rows: Mutex::default(), lead_has_model, stop_timeout };
        spec.members.iter().for_each(|member| live.add_member(member));
        live
    }

    /// Returns the time that running turns have to finish after a stop request.
    pub fn stop_timeout(&self) -> Duration {
        self.stop_timeout
    }

    /// Returns the status of each teammate.
    pub fn teammates(&self) -> Arc<TeammateReports> {
        Arc::clone(&self.rows().teammates)
    }

    /// Returns the lead's status, if it has a model.
    pub fn lead(&self) -> Option<Arc<TeammateReport>> {
        self.rows().lead.clone()
    }

    /// Returns the reason why the team has no session, if its goal is not met.
    pub fn waiting_for(&self) -> Option<WaitingFor> {
        self.rows().waiting_for.clone()
    }

    pub(super) fn rows(&self) -> MutexGuard<'_, StatusRows> {
        self.rows.lock()
    }

    /// Returns the names of all members but the lead.
    pub fn members(&self) -> Vec<Name> {
        self.rows().members.keys().cloned().collect()
    }

    pub(super) fn add_member(&self, spec: &MemberSpec) {
        let capabilities = if spec.has_model() { spec.capabilities() } else { Vec::new() };
        self.rows().members.insert(spec.name.clone(), capabilities);
    }
}

/// The team, as the lead's tools reach it.
pub(super) struct TeamControlHandle {
    pub live: Arc<LiveStatus>,
    pub commands: mpsc::Sender<TeamCommand>,
    /// Spawned teammates have its model and its permissions.
    pub lead: MemberSpec,
}

#[async_trait]
impl TeamControl for TeamControlHandle {
    async fn spawn_teammate(&self, name: &Name, role: &str, prompt: &str) -> Result<String, String> {
        let spec = spawned_member(name.clone(), role, prompt, &self.lead);
        let (reply, answer) = oneshot::channel();
        self.commands.send(TeamCommand::Spawn { spec: Box::new(spec), reply }).await.map_err(|_| TEAM_STOPPING)?;
        answer.await.map_err(|_| TEAM_STOPPING)?
    }

    async fn list_teammates(&self) -> String {
        let teammates = self.live.teammates();
        if teammates.is_empty() {
            return "There are no teammates.".to_owned();
        }
        let rows = teammates.iter().map(|(name, report)| {
            let task = report.task.map_or_else(String::new, |task| format!(", task {task}"));
            let waiting =
                report.waiting_for.as_ref().map_or_else(String::new, |reason| format!(", waits for {reason}"));
            format!("{name} ({}): {}{task} since {}{waiting}", report.role, report.phase, report.since)
        });
        rows.collect::<Vec<_>>().join("\n")
    }

    fn members(&self) -> Vec<Name> {
        let mut names = self.live.members();
        names.extend(Name::new(LEAD));
        names.sort();
        names
    }

    fn lead_has_model(&self) -> bool {
        self.live.lead_has_model
    }

    fn reviewer(&self, author: &Name, required: &str) -> String {
        let rows = self.live.rows();
        let members = rows.members.iter().map(|(name, capabilities)| ReviewCandidate {
            name: name.as_str(),
            capabilities,
            report: rows.teammates.get(name.as_str()).map(Arc::as_ref),
        });
        choose_reviewer(required, author.as_str(), members, self.live.lead_has_model)
    }
}
