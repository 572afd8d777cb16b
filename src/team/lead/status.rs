//! The lead's reports: the team's status in state file and roster, and the result at the end.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Lead;
use super::memory::SessionWait;
use crate::domain::event::EventKind;
use crate::domain::records::{MemberStatus, RosterMember};
use crate::domain::session::SessionStage;
use crate::domain::state::{DesiredStateChange, Mode, StatePrecondition, StateUpdate};
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::domain::time::UnixMs;
use crate::team::handle::{TeamEnd, TeamOutcome};
use crate::team::running_member::RunningMember;
use crate::team::teammate::TeammateCommand;

/// Time after which the lead reports the tasks that a session waits for.
const WAIT_REPORTED_AFTER: Duration = Duration::from_secs(5);
/// Tasks named in that report; more are left out.
const WAITS_NAMED_MAX: usize = 4;

fn wait_reason(task: &Task, now: UnixMs) -> String {
    match (&task.claim, task.not_before) {
        (Some(_), _) => {
            format!("{} is claimed by {}", task.id, task.owner.as_deref().unwrap_or("a program outside the team"))
        }
        (None, Some(until)) => format!("{} is retried in {} s", task.id, until.since(now).as_secs() + 1),
        (None, None) => task.id.to_string(),
    }
}

impl Lead {
    pub(in crate::team) fn current_mode(&self) -> Mode {
        match self.session.stage {
            SessionStage::Running(mode) | SessionStage::Reporting(mode) => mode,
            SessionStage::NoSession if self.desired == Mode::Continuous && self.state.stopping.is_none() => {
                Mode::Continuous
            }
            SessionStage::NoSession => Mode::Pause,
        }
    }

    /// Sets the desired state. An end of a mode that is not written yet counts as written.
    pub(super) fn set_desired(&mut self, desired: Mode, note: &str) {
        let is_ended = self
            .state
            .state_file
            .unwritten_end
            .as_ref()
            .is_some_and(|end| end.only_if == Some(StatePrecondition::Mode(desired)));
        let desired = if is_ended { Mode::Pause } else { desired };
        if desired == self.desired {
            return;
        }
        if self.desired == Mode::Pause {
            // The person may have fixed the cause of a permanent error.
            let unusable = self.members.by_name.values().filter(|member| member.exit.is_none() && !member.is_usable());
            unusable.for_each(|member| member.send(TeammateCommand::Retry));
        }
        self.desired = desired;
        let current = self.current_mode();
        self.services.events.record(EventKind::ModeChanged { desired, current, note: note.to_owned() });
    }

    /// Reports once the tasks that a session waits for if no member works. Nothing else would show them.
    pub(super) fn report_waiting(&mut self) {
        let now = self.services.clock.now();
        if !matches!(self.session.stage, SessionStage::Running(_))
            || self.members.by_name.values().any(RunningMember::is_busy)
        {
            self.state.session_wait = None;
            return;
        }
        let waits = |task: &&Arc<Task>| match task.status {
            TaskStatus::InProgress => task.claim.is_some(),
            TaskStatus::Pending => task.not_before.is_some_and(|until| until > now),
            _ => false,
        };
        let tasks: Vec<&Arc<Task>> = self.view.tasks.values().filter(waits).collect();
        let ids: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
        match &mut self.state.session_wait {
            Some(wait) if wait.tasks == ids => {
                if wait.is_reported || ids.is_empty() || wait.since.elapsed() < WAIT_REPORTED_AFTER {
                    return;
                }
                wait.is_reported = true;
            }
            other => {
                *other = Some(SessionWait { tasks: ids, since: Instant::now(), is_reported: false });
                return;
            }
        }
        let reasons: Vec<String> = tasks.iter().take(WAITS_NAMED_MAX).map(|task| wait_reason(task, now)).collect();
        let more = if tasks.len() > WAITS_NAMED_MAX { ", …" } else { "" };
        self.services.events.warn("session", format!("waits, because {}{more}", reasons.join(", ")));
    }

    pub(super) async fn write_heartbeat(&mut self) {
        if let Err(error) = self.worker.write().await {
            tracing::warn!("cannot write the worker's record: {error}");
        }
        self.report(true).await;
    }

    /// Reports the team's status if it changed, or as a heartbeat.
    pub(super) async fn report(&mut self, is_heartbeat: bool) {
        let report = self.live.report(self, is_heartbeat.then(|| self.services.clock.now()));
        if self.state.state_file.last_report.as_ref() == Some(&report) {
            return;
        }
        self.state.state_file.last_report = Some(report.clone());
        let update = StateUpdate { report: Some(report), desired: None };
        match self.services.stores.state.update(update).await {
            Ok(state) => self.set_desired(state.desired, &state.note),
            Err(error) => self.report_state_file(error.to_string()),
        }
    }

    /// Writes the members whose phase changed since the last report into the roster.
    pub(super) async fn report_roster(&mut self) {
        let rows: Vec<RosterMember> = self
            .members
            .phase_changed_since(self.state.roster_generation)
            .map(|member| RosterMember {
                name: member.spec.name.to_string(),
                role: member.spec.role.clone(),
                status: roster_status(member),
            })
            .collect();
        match self.services.stores.roster.report(self.spec.name.as_str(), &rows).await {
            Ok(()) => self.state.roster_generation = self.members.generation(),
            // Written with the next change, or at the end.
            Err(error) => self.services.events.warn("roster", error.to_string()),
        }
    }

    /// Ends the team once the budget is spent: nothing new starts, running turns finish within their reservations. A later launch
    /// with a larger budget continues.
    pub(super) async fn check_budget(&mut self) {
        let Some(spent) = self.services.budget.spent().filter(|_| self.state.stopping.is_none()) else { return };
        self.services.events.record(EventKind::BudgetSpent { limit: spent.limit.clone(), spent: spent.spent.clone() });
        self.stop(TeammateCommand::Stop, self.spec.limits.stop_timeout, TeamEnd::BudgetSpent);
        if self.desired != Mode::Pause {
            self.end_mode(self.desired, &spent.state_note().to_file_text()).await;
        }
    }

    /// Ends the current mode, unless the person chose another one meanwhile.
    pub(in crate::team) async fn end_mode(&mut self, ended: Mode, note: &str) {
        self.state.state_file.unwritten_end = Some(DesiredStateChange {
            mode: Mode::Pause,
            by: "agent".to_owned(),
            note: note.to_owned(),
            only_if: Some(StatePrecondition::Mode(ended)),
        });
        self.write_end().await;
    }

    /// Writes the end of a mode. If that fails, the team behaves as if it were written and retries at each poll.
    pub(super) async fn write_end(&mut self) {
        let Some(desired) = self.state.state_file.unwritten_end.clone() else { return };
        let note = desired.note.clone();
        let update = StateUpdate { report: Some(self.live.report(self, None)), desired: Some(desired) };
        match self.services.stores.state.update(update).await {
            Ok(state) => {
                self.state.state_file.unwritten_end = None;
                self.set_desired(state.desired, &state.note);
            }
            Err(error) => {
                self.services.events.warn("agent_state.json", format!("cannot end the mode: {error}"));
                self.set_desired(self.desired, &note);
            }
        }
    }

    /// Writes state, roster and worker record as a later launch expects them, and returns the result.
    pub(super) async fn finish(mut self, end: TeamEnd) -> TeamOutcome {
        self.members.refresh_status();
        self.report_roster().await;
        self.session.stage = SessionStage::NoSession;
        self.state.state_file.last_report = None;
        self.desired = Mode::Pause;
        let update =
            StateUpdate { report: Some(self.live.report(&self, Some(self.services.clock.now()))), desired: None };
        if let Err(error) = self.services.stores.state.update(update).await {
            tracing::warn!("cannot write agent_state.json: {error}");
        }
        // The record then has no running commands, so that it can go with the worker.
        if let Err(error) = self.worker.write().await {
            tracing::warn!("cannot write the worker's record: {error}");
        }
        self.poll_board().await;
        if let (TeamEnd::BudgetSpent, Some(spent)) = (end, self.services.budget.spent()) {
            self.session.error = Some(format!("{}.", with_capital(&spent.to_string())));
        }
        let reason = match (end, &self.session.error) {
            (TeamEnd::Interrupted, _) => "on request".to_owned(),
            (TeamEnd::BudgetSpent, _) => "its budget is spent".to_owned(),
            (TeamEnd::LeadershipLost, error) => error.clone().unwrap_or_else(|| "it could not continue".to_owned()),
            // The end of the session has named what went wrong.
            (TeamEnd::SessionOver, _) => "its session is over".to_owned(),
        };
        self.services.events.record(EventKind::TeamStopped { team: self.spec.name.to_string(), reason });
        self.services.budget.flush().await;
        self.services.events.flush().await;
        TeamOutcome {
            end,
            task_counts: self.task_counts(),
            summary: self.session.summary.clone(),
            error: self.session.error.clone(),
        }
    }
}

/// Returns the status that the roster shows.
fn roster_status(member: &RunningMember) -> MemberStatus {
    if member.has_stopped() {
        MemberStatus::Shutdown
    } else if member.is_busy() {
        MemberStatus::Working
    } else {
        MemberStatus::Idle
    }
}

fn with_capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
