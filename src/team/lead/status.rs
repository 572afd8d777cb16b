//! The lead's reports: the team's status in the state file, and the result at the end.

use super::Lead;
use super::session::SessionResult;
use super::steering::DesiredState;
use crate::domain::log::event::EventKind;
use crate::domain::team::session::SessionStage;
use crate::domain::team::state::Mode;
use crate::domain::team::state_note::StateNote;
use crate::domain::team::waiting_for::{WaitKind, WaitingFor};
use crate::team::handle::{TeamEnd, TeamOutcome};
use crate::team::teammate::TeammateCommand;

impl Lead {
    pub(super) fn current_mode(&self) -> Mode {
        match self.session.stage {
            SessionStage::Running(mode) | SessionStage::Reporting(mode) => mode,
            SessionStage::NoSession if self.steering.desired == Mode::Continuous && !self.stop.is_in_progress() => {
                Mode::Continuous
            }
            SessionStage::NoSession => Mode::Pause,
        }
    }

    /// Returns the check of the goal while it runs, and the thing that a `continuous` team without a session waits for, if its goal is
    /// not met.
    pub(super) fn goal_wait(&self) -> Option<WaitingFor> {
        if self.session.done_when.is_running() {
            let command = self.services.spec.done_when.as_deref().unwrap_or_default();
            return Some(WaitingFor::detail(WaitKind::GoalCheck, format!("(`{command}`)")));
        }
        if self.session.stage != SessionStage::NoSession || self.current_mode() != Mode::Continuous {
            return None;
        }
        let spec = &self.services.spec;
        let lead = self.members.lead();
        let has_lead_reported = lead.is_some_and(|lead| lead.status.borrow().goal_reports.count > 0);
        let goal = match (&spec.done_when, &self.session.done_when.result) {
            (Some(_), Some(result)) if result.is_met => return None,
            (Some(_), Some(result)) => format!("the goal is not met ({})", result.for_event().evidence),
            (Some(command), None) => format!("the goal is not checked yet (`{command}`)"),
            (None, _) if spec.goal.is_some() && lead.is_some() && !has_lead_reported => {
                "the lead has not reported in this run that the goal is met".to_owned()
            }
            (None, _) => return None,
        };
        let or_message = if lead.is_some() { " or a message to the lead" } else { "" };
        Some(WaitingFor::detail(WaitKind::Task, format!("{or_message}: {goal}")))
    }

    /// Follows a desired state from now on. Reports a change, and a state file that had to be replaced.
    pub(super) fn follow(&mut self, DesiredState { mode, note }: DesiredState) {
        let is_file_replaced =
            matches!(StateNote::from_file_text(&note), StateNote::FileMissing | StateNote::FileInvalid(_));
        if mode == self.steering.desired && (!is_file_replaced || note == self.steering.note) {
            return;
        }
        if self.steering.desired == Mode::Pause {
            // The person may have fixed the cause of a permanent error.
            let unusable = self.members.by_name.values().filter(|member| member.exit.is_none() && !member.is_usable());
            unusable.for_each(|member| member.commands.send(TeammateCommand::Retry));
        }
        self.steering.desired = mode;
        self.steering.note.clone_from(&note);
        let current = self.current_mode();
        self.services.events.record(EventKind::ModeChanged { desired: mode, current, note });
    }

    /// Ends the current mode, unless the person chose another one meanwhile.
    pub(super) async fn end_mode(&mut self, ended: Mode, note: &str) {
        self.steering.end_mode(ended, note);
        self.write_end().await;
    }

    pub(super) async fn write_end(&mut self) {
        if !self.steering.has_unwritten_end() {
            return;
        }
        let report = self.build_report(false);
        if let Some(desired) = self.steering.write_end(&self.services, report).await {
            self.follow(desired);
        }
    }

    /// Reports the team's status if it changed, or as a heartbeat.
    pub(super) async fn report(&mut self, is_heartbeat: bool) {
        let report = self.build_report(is_heartbeat);
        if let Some(desired) = self.steering.write_report(&self.services, report).await {
            self.follow(desired);
        }
    }

    pub(super) async fn write_worker_record(&self) {
        if let Err(error) = self.members.spawn_context.worker.write().await {
            tracing::warn!("cannot write the worker's record: {error}");
        }
    }

    /// Writes state, roster and worker record as a later launch expects them, and returns the result.
    pub(super) async fn finish(mut self, end: TeamEnd) -> TeamOutcome {
        self.reclaim_rest().await;
        self.members.refresh_status();
        self.members.write_roster().await;
        self.session.stage = SessionStage::NoSession;
        self.steering.desired = Mode::Pause;
        let report = self.build_report(true);
        self.steering.write_report(&self.services, report).await;
        // The record then has no running commands, so that it can go with the worker.
        self.write_worker_record().await;
        self.poll_board().await;
        if let (TeamEnd::BudgetSpent, Some(spent)) = (end, self.services.budget.spent()) {
            self.session.result.error = Some(format!("{}.", with_capital(&spent.to_string())));
        }
        self.poll_mail().await;
        let has_asked_lead = self.members.lead().is_some_and(|lead| self.mail.has_mail_to_answer(lead));
        // The stop may have come before the session ended and found its errors.
        if end == TeamEnd::Interrupted && self.session.result.error.is_none() {
            let unanswered = if has_asked_lead { Some("The lead has not answered its mail.".to_owned()) } else { None };
            self.session.result.error = self.board.vanished_text().or(unanswered);
        }
        let reason = match (end, &self.session.result.error) {
            (TeamEnd::Interrupted, _) => "on request".to_owned(),
            (TeamEnd::BudgetSpent, _) => "the next request does not fit its budget".to_owned(),
            (TeamEnd::ModelOutOfReach | TeamEnd::WrongModelSetting, _) => {
                end.model_problem().unwrap_or_default().to_owned()
            }
            (TeamEnd::LeadershipLost, error) => error.clone().unwrap_or_else(|| "it could not continue".to_owned()),
            // The end of the session has named what went wrong.
            (TeamEnd::SessionOver, _) => "its session is over".to_owned(),
        };
        self.services.events.request_requests_read();
        self.services.events.record(EventKind::TeamStopped { team: self.services.spec.name.to_string(), reason });
        self.services.budget.flush().await;
        self.services.events.flush().await;
        let SessionResult { summary, error, .. } = self.session.result;
        TeamOutcome { end, task_counts: self.board.task_counts(), summary, error }
    }
}

fn with_capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
