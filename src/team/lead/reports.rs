//! What the lead says: to the shared state and the roster how the team stands, at the end how it came out.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Lead;
use crate::domain::event::Fact;
use crate::domain::mode::Stage;
use crate::domain::record::{MemberStatus, RosterMember};
use crate::domain::state::{Expected, Mode, SetDesired, StateUpdate};
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::domain::time::UnixMs;
use crate::team::handle::{End, Outcome};
use crate::team::members::Member;
use crate::team::teammate::Control;

/// A session that waits for others is said to after this long.
const WAIT_SAID_AFTER: Duration = Duration::from_secs(5);
/// Tasks that are named then.
const WAITS_NAMED_MAX: usize = 4;

fn what_it_waits_for(task: &Task, now: UnixMs) -> String {
    match (&task.claim, task.not_before) {
        (Some(_), _) => {
            format!("{} is claimed by {}", task.id, task.owner.as_deref().unwrap_or("somebody outside the team"))
        }
        (None, Some(until)) => format!("{} is tried again in {} s", task.id, until.since(now).as_secs() + 1),
        (None, None) => task.id.to_string(),
    }
}

impl Lead {
    pub(in crate::team) fn current_mode(&self) -> Mode {
        match self.session.stage {
            Stage::Running(mode) | Stage::Reporting(mode) => mode,
            Stage::Between if self.desired == Mode::Continuous && self.state.stopping.is_none() => Mode::Continuous,
            Stage::Between => Mode::Pause,
        }
    }

    /// Takes in what the person wants. An ending that is not written yet counts as if it were.
    pub(super) fn set_desired(&mut self, desired: Mode, note: &str) {
        let is_ended =
            self.state.unwritten_end.as_ref().is_some_and(|end| end.only_if == Some(Expected::Mode(desired)));
        let desired = if is_ended { Mode::Pause } else { desired };
        if desired == self.desired {
            return;
        }
        if self.desired == Mode::Pause {
            // A person who lets the team go on may have mended what kept a model out of reach.
            let down = self.members.by_name.values().filter(|member| member.gone.is_none() && !member.is_usable());
            down.for_each(|member| member.tell(Control::TryAgain));
        }
        self.desired = desired;
        let current = self.current_mode();
        self.shared.notes.fact(Fact::ModeChanged { desired, current, note: note.to_owned() });
    }

    /// Says once what a session waits for, when nobody of the team works and nothing would be seen of it otherwise.
    pub(super) fn say_what_is_waited_for(&mut self) {
        let now = self.shared.clock.now();
        if !matches!(self.session.stage, Stage::Running(_)) || self.members.by_name.values().any(Member::works) {
            self.state.waits_for = None;
            return;
        }
        let waits = |task: &&Arc<Task>| match task.status {
            TaskStatus::InProgress => task.claim.is_some(),
            TaskStatus::Pending => task.not_before.is_some_and(|until| until > now),
            _ => false,
        };
        let tasks: Vec<&Arc<Task>> = self.view.tasks.values().filter(waits).collect();
        let ids: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
        match &mut self.state.waits_for {
            Some((known, since, is_said)) if *known == ids => {
                if *is_said || ids.is_empty() || since.elapsed() < WAIT_SAID_AFTER {
                    return;
                }
                *is_said = true;
            }
            other => {
                *other = Some((ids, Instant::now(), false));
                return;
            }
        }
        let named: Vec<String> = tasks.iter().take(WAITS_NAMED_MAX).map(|task| what_it_waits_for(task, now)).collect();
        let more = if tasks.len() > WAITS_NAMED_MAX { ", …" } else { "" };
        self.shared.notes.warn("session", format!("it waits: {}{more}", named.join(", ")));
    }

    pub(super) async fn beat(&mut self) {
        if let Err(error) = self.worker.beat().await {
            tracing::warn!("cannot write the worker's record: {error}");
        }
        self.report(true).await;
    }

    /// Reports how the team stands, when that changed, or as a sign of life.
    pub(super) async fn report(&mut self, is_heartbeat: bool) {
        let report = self.live.report(self, is_heartbeat.then(|| self.shared.clock.now()));
        if self.state.last_report.as_ref() == Some(&report) {
            return;
        }
        self.state.last_report = Some(report.clone());
        let update = StateUpdate { report: Some(report), desired: None };
        match self.shared.stores.state.update(update).await {
            Ok(state) => self.set_desired(state.desired, &state.note),
            Err(error) => self.tell_of_state_file(error.to_string()),
        }
    }

    /// Says in the roster who is in another phase since it was last said.
    pub(super) async fn report_roster(&mut self) {
        let rows: Vec<RosterMember> = self
            .members
            .turned_since(self.state.roster_round)
            .map(|member| RosterMember {
                name: member.spec.name.to_string(),
                role: member.spec.role.clone(),
                status: match () {
                    () if member.has_stopped() => MemberStatus::Shutdown,
                    () if member.works() => MemberStatus::Working,
                    () => MemberStatus::Idle,
                },
            })
            .collect();
        match self.shared.stores.roster.report(self.spec.name.as_str(), &rows).await {
            Ok(()) => self.state.roster_round = self.members.round(),
            // It is said with what turns next, or at the end.
            Err(error) => self.shared.notes.warn("roster", error.to_string()),
        }
    }

    /// Once the budget is spent: nothing more is begun, what runs is finished as far as it is paid for, and the team ends. A later
    /// launch with a larger budget goes on.
    pub(super) async fn heed_budget(&mut self) {
        let Some(spent) = self.shared.purse.spent().filter(|_| self.state.stopping.is_none()) else { return };
        self.shared.notes.fact(Fact::BudgetSpent { limit: spent.limit.clone(), spent: spent.spent.clone() });
        self.stop(Control::Stop, self.spec.limits.stop_timeout, End::BudgetSpent);
        if self.desired != Mode::Pause {
            self.end_mode(self.desired, &spent.to_string()).await;
        }
    }

    /// Ends the mode that ran, unless the person chose another meanwhile.
    pub(in crate::team) async fn end_mode(&mut self, ended: Mode, note: &str) {
        self.state.unwritten_end = Some(SetDesired {
            mode: Mode::Pause,
            by: "agent".to_owned(),
            note: note.to_owned(),
            only_if: Some(Expected::Mode(ended)),
        });
        self.write_end().await;
    }

    /// Writes an ending. While that fails the team keeps to it all the same, and tries again at each poll.
    pub(super) async fn write_end(&mut self) {
        let Some(desired) = self.state.unwritten_end.clone() else { return };
        let note = desired.note.clone();
        let update = StateUpdate { report: Some(self.live.report(self, None)), desired: Some(desired) };
        match self.shared.stores.state.update(update).await {
            Ok(state) => {
                self.state.unwritten_end = None;
                self.set_desired(state.desired, &state.note);
            }
            Err(error) => {
                self.shared.notes.warn("agent_state.json", format!("cannot end the mode: {error}"));
                self.set_desired(self.desired, &note);
            }
        }
    }

    /// Leaves everything as a later start wants to find it.
    pub(super) async fn finish(mut self, end: End) -> Outcome {
        self.members.note_phases();
        self.report_roster().await;
        self.session.stage = Stage::Between;
        self.state.last_report = None;
        self.desired = Mode::Pause;
        let update =
            StateUpdate { report: Some(self.live.report(&self, Some(self.shared.clock.now()))), desired: None };
        if let Err(error) = self.shared.stores.state.update(update).await {
            tracing::warn!("cannot write agent_state.json: {error}");
        }
        // The record says that no command runs any more, so that it goes with the worker.
        if let Err(error) = self.worker.beat().await {
            tracing::warn!("cannot write the worker's record: {error}");
        }
        self.look_at_board().await;
        if let (End::BudgetSpent, Some(spent)) = (end, self.shared.purse.spent()) {
            self.session.trouble = Some(format!("{}.", capital(&spent.to_string())));
        }
        let reason = match (end, &self.session.trouble) {
            (End::Interrupted, _) => "interrupted".to_owned(),
            (End::BudgetSpent, _) => "its budget is spent".to_owned(),
            (End::GivenUp, trouble) => trouble.clone().unwrap_or_else(|| "it could not go on".to_owned()),
            (End::SessionOver, None) => "its session is over".to_owned(),
            (End::SessionOver, Some(trouble)) => format!("its session is over: {trouble}"),
        };
        self.shared.notes.fact(Fact::TeamStopped { team: self.spec.name.to_string(), reason });
        self.shared.purse.flush().await;
        self.shared.notes.flush().await;
        Outcome {
            end,
            tally: self.tally(),
            summary: self.session.summary.clone(),
            trouble: self.session.trouble.clone(),
        }
    }
}

/// A sentence begins with a capital.
fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
