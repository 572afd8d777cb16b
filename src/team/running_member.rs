//! One member that was started, as the lead sees it.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use super::teammate::{MemberError, MemberErrorKind, TeammateCommand, TeammateStatus};
use crate::domain::task::claim_queue::{Candidate, TaskScope};
use crate::domain::team::phase::{ClaimRef, Phase};
use crate::domain::team::records::{MemberStatus, RosterMember, SpawnSettings, StartedBy};
use crate::domain::team::state::Mode;
use crate::domain::team::team_spec::{MemberSpec, ModelSpec};
use crate::domain::time::UnixMs;
use crate::run::progress::{Activity, Progress};

/// The reason why a member ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitReason {
    /// It was asked to stop.
    Requested,
    /// It was idle for so long that it ended. The lead starts it again when it is needed.
    Idle,
    /// It failed, for this reason.
    Failed(String),
}

/// A member that was started.
pub struct RunningMember {
    pub spec: MemberSpec,
    /// Its role and its configured capabilities.
    pub capabilities: Vec<String>,
    /// The tasks that it can do.
    pub scope: TaskScope,
    pub status: watch::Receiver<TeammateStatus>,
    /// Its activity, as Brigade observes it.
    pub progress: Arc<Progress>,
    /// The reason why it ended; `None` while it runs.
    pub exit: Option<ExitReason>,
    /// The number of restarts.
    pub respawns: u32,
    /// The status that the supervisor recorded last.
    pub recorded: RecordedStatus,
    pub(super) commands: MemberCommands,
    /// True if a person asked it to stop by mail. It stops after its turn.
    pub has_stop_request: bool,
    /// True for a teammate that the lead spawned: a later launch starts it again, unless it was shut down on request.
    pub is_spawned: bool,
}

/// The last recorded status of a member.
pub struct RecordedStatus {
    /// The start of its current phase, or its end.
    pub since: UnixMs,
    /// Its phase; `None` before the first report.
    phase: Option<Phase>,
    /// True if its end changed since then.
    has_new_exit: bool,
    /// True if its report does not show it yet.
    pub is_report_due: bool,
    /// True if the roster does not show it yet.
    pub is_roster_due: bool,
}

impl RecordedStatus {
    /// Creates the status of a member that starts now.
    pub fn new(now: UnixMs) -> Self {
        Self { since: now, phase: None, has_new_exit: false, is_report_due: false, is_roster_due: false }
    }
}

/// The channel to a member. It remembers which commands were sent and need no repetition.
pub struct MemberCommands {
    sender: mpsc::Sender<TeammateCommand>,
    pub(super) abort_handle: AbortHandle,
    /// The report and poll counts at the last wake-up. Nothing more is sent while they are unchanged.
    counts_at_wake: Option<(u64, u64)>,
    lost_claim_sent: Option<ClaimRef>,
    /// True after a stop command. The member is not restarted, however it ends.
    pub(super) is_stop_sent: bool,
    /// True after the member was aborted because it made no progress.
    pub(super) was_stalled: bool,
}

impl MemberCommands {
    /// Creates the channel to a member that has just started.
    pub fn new(sender: mpsc::Sender<TeammateCommand>, abort_handle: AbortHandle) -> Self {
        Self {
            sender,
            abort_handle,
            counts_at_wake: None,
            lost_claim_sent: None,
            is_stop_sent: false,
            was_stalled: false,
        }
    }

    /// Sends a command. If the queue is full, a poll is dropped, because each queued command causes a poll. A compaction is dropped
    /// too, and its reply channel closes. For any other command the member is aborted, because that command must not be lost.
    pub fn send(&self, command: TeammateCommand) {
        let Err(mpsc::error::TrySendError::Full(command)) = self.sender.try_send(command) else { return };
        if !matches!(command, TeammateCommand::Poll | TeammateCommand::Compact(_)) {
            self.abort();
        }
    }

    /// Tells the member that it lost this claim, once for each claim.
    pub fn send_claim_lost(&mut self, claim: ClaimRef) {
        if self.lost_claim_sent.replace(claim) != Some(claim) {
            self.send(TeammateCommand::ClaimLost(claim));
        }
    }

    /// Aborts the member at its next await point.
    pub fn abort(&self) {
        self.abort_handle.abort();
    }

    /// Aborts the member because it makes no progress.
    pub fn abort_stalled(&mut self) {
        self.was_stalled = true;
        self.abort();
    }

    /// Lets [`RunningMember::wake`] wake the member again, even if it has not polled since the last wake-up.
    pub fn reset_wake_throttle(&mut self) {
        self.counts_at_wake = None;
    }
}

/// Returns the row of a member in the roster of `team`. A spawned one has the settings with which a later launch starts it again.
pub(super) fn roster_row(spec: &MemberSpec, team: &str, status: MemberStatus, is_spawned: bool) -> RosterMember {
    let settings = || SpawnSettings {
        prompt: spec.prompt.clone(),
        provider: spec.model.provider.clone(),
        model: spec.model.model.clone(),
    };
    RosterMember {
        name: spec.name.to_string(),
        role: spec.role.clone(),
        status,
        started_by: StartedBy::Brigade { team: team.to_owned(), spawned: is_spawned.then(settings) },
    }
}

impl RunningMember {
    /// Returns what decides about its claims.
    pub fn as_candidate(&self) -> Candidate<'_> {
        Candidate { name: self.spec.name.as_str(), capabilities: &self.capabilities, scope: self.scope }
    }

    /// Returns true if it waits for work.
    pub fn is_idle(&self) -> bool {
        self.exit.is_none() && self.status.borrow().phase.is_idle()
    }

    /// Returns true if it works, waits for an approval or is stopping. A session does not end while a member is busy.
    pub fn is_busy(&self) -> bool {
        let phase = self.status.borrow().phase;
        self.exit.is_none() && matches!(phase, Phase::Work { .. } | Phase::Waiting { .. } | Phase::Stopping { .. })
    }

    /// Returns true between its first start and its first report. Until then its messages from before are not known.
    pub fn is_starting(&self) -> bool {
        self.exit.is_none() && self.respawns == 0 && self.status.borrow().reports == 0
    }

    /// Returns true if it holds a task and waits for an approval.
    pub fn waits_for_approval(&self) -> bool {
        self.exit.is_none() && matches!(self.status.borrow().phase, Phase::Waiting { .. })
    }

    /// Returns its row in the roster of `team`.
    pub fn roster_row(&self, team: &str) -> RosterMember {
        let has_stopped = self.exit.is_some() || self.status.borrow().phase == Phase::Stopped;
        let status = if has_stopped {
            MemberStatus::Shutdown
        } else if self.is_busy() {
            MemberStatus::Working
        } else {
            MemberStatus::Idle
        };
        roster_row(&self.spec, team, status, self.is_spawned)
    }

    /// Returns true if it may have changed since the last report. This is always true for a working member and for one that sets up
    /// its worktree, because its progress changes without a report.
    pub fn may_have_changed(&self) -> bool {
        self.recorded.is_report_due
            || self.progress.activity() == Some(Activity::SettingUpWorktree)
            || matches!(self.recorded.phase, Some(Phase::Work { .. } | Phase::Stopping { .. }))
    }

    /// Sets the reason why it ended.
    pub fn set_exit(&mut self, reason: ExitReason) {
        self.exit = Some(reason);
        self.recorded.has_new_exit = true;
    }

    /// Records its current status.
    pub(super) fn record_status(&mut self) {
        let has_reported = self.status.has_changed().unwrap_or(self.exit.is_none());
        if !has_reported && self.recorded.phase.is_some() && !self.recorded.has_new_exit {
            return;
        }
        let status = self.status.borrow_and_update();
        let phase = if self.exit.is_some() { Phase::Stopped } else { status.phase };
        if self.exit.is_none() && status.reports > 0 {
            self.recorded.since = status.since;
        }
        drop(status);
        let has_new_phase =
            self.recorded.phase.replace(phase).is_none_or(|before| before.reported() != phase.reported());
        self.recorded.has_new_exit = false;
        self.recorded.is_report_due = true;
        self.recorded.is_roster_due |= has_new_phase;
    }

    /// Returns the first status after a restart: it still has to answer the messages that it has not answered.
    pub fn status_after_exit(&self) -> TeammateStatus {
        let TeammateStatus { has_unanswered, prompts_answered, goal_reports, .. } = self.status.borrow().clone();
        TeammateStatus { has_unanswered, prompts_answered, goal_reports, ..TeammateStatus::default() }
    }

    /// Returns true if it can do tasks, now or after a wait or a start: it has not stopped, and no error keeps it from all tasks.
    pub fn is_usable(&self) -> bool {
        self.has_ended_idle() || self.exit.is_none() && self.status.borrow().error.is_none()
    }

    /// Returns the reason why its own budget does not allow its next request.
    pub fn spent_budget(&self) -> Option<String> {
        let status = self.status.borrow();
        let spent = status.error.as_ref().filter(|error| error.kind == MemberErrorKind::BudgetSpent);
        spent.filter(|_| self.exit.is_none()).map(|error| error.reason.clone())
    }

    /// Returns true if it ended because it was idle, and may be started again.
    pub fn has_ended_idle(&self) -> bool {
        self.exit == Some(ExitReason::Idle) && !self.commands.is_stop_sent
    }

    /// Returns true if the session's end waits for its report: a pause does not wait for a model that is out of reach.
    pub fn is_report_awaited(&self, desired: Mode) -> bool {
        desired != Mode::Pause || !self.status.borrow().cannot_work
    }

    /// Returns true if it is idle and could start work now.
    pub fn is_ready(&self) -> bool {
        self.is_idle() && !self.status.borrow().cannot_work
    }

    /// Returns the reason why it cannot work, if there is one.
    pub fn unusable_reason(&self) -> Option<String> {
        match &self.exit {
            Some(ExitReason::Requested | ExitReason::Idle) => None,
            Some(ExitReason::Failed(reason)) => Some(reason.clone()),
            None => {
                let ModelSpec { provider, model, .. } = &self.spec.model;
                let model = if model.is_empty() { provider.clone() } else { format!("model {model} of {provider}") };
                self.status.borrow().error.as_ref().map(|MemberError { kind, reason }| match kind {
                    MemberErrorKind::ModelOutOfReach => format!("{model} {reason}"),
                    MemberErrorKind::WrongModelSetting => format!("{model}: {reason}"),
                    _ => reason.clone(),
                })
            }
        }
    }

    /// Sends it a stop command. Aborts a member that has not reported yet: it holds no claim.
    pub fn stop(&mut self, command: TeammateCommand) {
        self.commands.is_stop_sent = true;
        self.commands.send(command);
        if self.status.borrow().reports == 0 {
            self.commands.abort();
        }
    }

    /// Sends it a poll command, unless it has not polled since the last one.
    pub fn wake(&mut self) {
        let status = self.status.borrow();
        let counts = (status.reports, status.polls);
        drop(status);
        if self.commands.counts_at_wake.replace(counts) != Some(counts) {
            self.commands.send(TeammateCommand::Poll);
        }
    }
}
