//! The report of the team's status: what people and programs see of each member.

use std::sync::Arc;
use std::time::Duration;

use super::Lead;
use crate::domain::log::snapshot::MemberSnapshot;
use crate::domain::task::TaskId;
use crate::domain::team::name::LEAD;
use crate::domain::team::pending_questions;
use crate::domain::team::phase::{Phase, ReportedPhase};
use crate::domain::team::session::SessionStage;
use crate::domain::team::state::{StateReport, TeammateReport};
use crate::domain::team::waiting_for::{WaitKind, WaitingFor};
use crate::domain::time::UnixMs;
use crate::run::progress::Activity;
use crate::team::running_member::{ExitReason, RunningMember};
use crate::team::teammate::TeammateStatus;
use crate::team::write_retry::ClaimPause;

/// Silence of a model after which people see that it is waited for.
const SILENCE_SHOWN_AFTER: Duration = Duration::from_secs(60);

impl Lead {
    /// Builds the report and stores it in the live status. A member without changes keeps its status, so the cost depends on the number
    /// of changes only.
    pub(super) fn build_report(&mut self, is_heartbeat: bool) -> StateReport {
        let heartbeat = is_heartbeat.then(|| self.services.clock.now());
        let waiting_for = self.goal_wait();
        let mut rows = self.live.rows();
        let has_other_approvals = self.approvals.ids().ne(rows.approvals.iter().map(String::as_str));
        let is_due = |member: &&RunningMember| is_heartbeat || has_other_approvals || member.may_have_changed();
        let mut changed = Vec::new();
        for member in self.members.teammates().filter(is_due) {
            let name = member.spec.name.as_str();
            let before = rows.teammates.get(name);
            let row = self.row_of(member, heartbeat, before.map(|before| before.heartbeat.as_str()));
            if before.is_none_or(|before| **before != row) {
                changed.push(MemberSnapshot::of(name, &row));
                Arc::make_mut(&mut rows.teammates).insert(name.to_owned(), Arc::new(row));
            }
        }
        if let Some(member) = self.members.lead() {
            let row = self.row_of(member, heartbeat, rows.lead.as_deref().map(|row| row.heartbeat.as_str()));
            if rows.lead.as_deref() != Some(&row) {
                changed.push(MemberSnapshot::of(LEAD, &row));
                rows.lead = Some(Arc::new(row));
            }
        }
        self.services.events.record_members(changed);
        if has_other_approvals {
            rows.approvals = self.approvals.ids().map(str::to_owned).collect();
        }
        rows.waiting_for.clone_from(&waiting_for);
        let (teammates, lead) = (Arc::clone(&rows.teammates), rows.lead.clone());
        drop(rows);
        self.members.by_name.values_mut().for_each(|member| member.recorded.is_report_due = false);
        let team = self.services.spec.name.to_string();
        let current = Some(self.current_mode());
        StateReport { team, current, teammates, lead, waiting_for }
    }

    /// Returns the row of a member for the event log.
    pub(super) fn member_row(&self, member: &RunningMember) -> MemberSnapshot {
        MemberSnapshot::of(member.spec.name.as_str(), &self.row_of(member, None, None))
    }

    /// Returns the status of a member. `now` is the time of its heartbeat, and `last_heartbeat` the one in its last status.
    fn row_of(&self, member: &RunningMember, now: Option<UnixMs>, last_heartbeat: Option<&str>) -> TeammateReport {
        let is_lead = member.spec.name.as_str() == LEAD;
        // Before the status is borrowed. A second borrow would deadlock with a writer that waits for the first.
        let goal_wait = if is_lead { self.goal_wait() } else { None };
        let status = member.status.borrow();
        let claim = member.progress.claim();
        let used = self.services.budget.used_by(member.spec.name.as_str());
        let waiting_for = match self.waiting_for(member, &status, claim.map(|claim| claim.task)) {
            Some(WaitingFor::MailOrTask) if is_lead => Some(self.wait_of_lead(&status, goal_wait)),
            waiting_for => waiting_for,
        };
        TeammateReport {
            role: member.spec.role.clone(),
            phase: self.reported_phase(member, status.phase),
            task: claim.map(|claim| claim.task),
            attempt: claim.map(|claim| claim.attempt),
            since: member.recorded.since.to_iso(),
            heartbeat: match (now, last_heartbeat) {
                (Some(now), _) if member.exit.is_none() => now.to_iso(),
                (_, Some(last_heartbeat)) => last_heartbeat.to_owned(),
                _ => member.recorded.since.to_iso(),
            },
            tokens: used.tokens,
            cost_usd: used.reported_usd(),
            waiting_for,
            fallback: member.progress.fallback().map(|model| model.to_string()),
        }
    }

    /// Returns the thing that the idle lead waits for: the answer to the question in its last text, if it asks one.
    fn wait_of_lead(&self, status: &TeammateStatus, goal_wait: Option<WaitingFor>) -> WaitingFor {
        let question = status.last_text.as_deref().and_then(pending_questions::trailing_question);
        match (question, goal_wait, self.session.stage) {
            (Some(question), ..) => WaitingFor::Person(question.to_owned()),
            (None, Some(goal_wait), _) => goal_wait,
            (None, None, SessionStage::NoSession) => WaitingFor::MailOrTask,
            (None, None, _) => WaitingFor::detail(WaitKind::Teammates, ""),
        }
    }

    /// Returns the reason why a member waits.
    fn waiting_for(&self, member: &RunningMember, status: &TeammateStatus, task: Option<TaskId>) -> Option<WaitingFor> {
        match &member.exit {
            Some(ExitReason::Requested) => return None,
            Some(ExitReason::Idle) => return Some(WaitingFor::MailOrTask),
            Some(ExitReason::Failed(reason)) => return Some(WaitingFor::detail(WaitKind::Nothing, reason.as_str())),
            None => {}
        }
        if matches!(status.phase, Phase::Work { .. } | Phase::Stopping { .. }) {
            let wait = busy_wait_reason(member);
            if wait.is_none() && member.has_stop_request {
                return Some(WaitingFor::detail(WaitKind::TurnEnd, ""));
            }
            return wait;
        }
        if status.error.is_some() {
            return status.waiting_for.clone();
        }
        // It holds a task, but has not begun to work.
        if member.progress.activity() == Some(Activity::SettingUpWorktree) {
            return busy_wait_reason(member);
        }
        // A missing answer is shown before mail and tasks.
        let reason = self.approvals.answer_awaited_by(&member.spec.name, task).or_else(|| match status.waiting_for {
            Some(WaitingFor::MailOrTask) => {
                let pause = self.members.spawn_context.storage.claim_pause();
                pause.map(|ClaimPause { obstacle, reason }| WaitingFor::Other(format!("{obstacle}: {reason}")))
            }
            _ => None,
        });
        reason.or_else(|| status.waiting_for.clone())
    }

    /// Returns the phase of a member that its report shows.
    fn reported_phase(&self, member: &RunningMember, phase: Phase) -> ReportedPhase {
        let half_stall_timeout = self.services.spec.limits.stall_timeout / 2;
        // The caller has borrowed the status. A second borrow would deadlock with a writer that waits for the first.
        let takes_turns = matches!(phase, Phase::Work { .. } | Phase::Stopping { .. });
        let is_silent =
            || takes_turns && member.progress.silent_for().is_some_and(|silence| silence > half_stall_timeout);
        match &member.exit {
            Some(ExitReason::Requested | ExitReason::Idle) => ReportedPhase::Stopped,
            Some(ExitReason::Failed(_)) => ReportedPhase::Dead,
            None if is_silent() => ReportedPhase::Stalled,
            None if takes_turns && member.has_stop_request => ReportedPhase::Stopping,
            None => phase.reported(),
        }
    }
}

/// Returns the reason why a working member waits.
fn busy_wait_reason(member: &RunningMember) -> Option<WaitingFor> {
    let reason = match member.progress.activity() {
        Some(Activity::WaitingForPermission(id)) => Some(WaitingFor::Permission(id.to_string())),
        Some(Activity::RetryingModel(description)) => {
            Some(WaitingFor::from_file_text(&format!("its model, {description}")))
        }
        Some(Activity::WaitingForBudget) => Some(WaitingFor::detail(WaitKind::OtherRequests, "")),
        Some(Activity::WaitingToWrite(obstacle)) => Some(WaitingFor::Other(obstacle.to_string())),
        Some(Activity::SettingUpWorktree) => Some(WaitingFor::detail(WaitKind::SetUp, "")),
        Some(Activity::AskingModel) => {
            let silence = member.progress.silent_for().filter(|silence| *silence >= SILENCE_SHOWN_AFTER);
            // Only doublings are reported, so that the state file does not change every second.
            let minutes = silence.map(|silence| 1_u64 << (silence.as_secs() / 60).ilog2());
            let unit = if minutes == Some(1) { "minute" } else { "minutes" };
            let text = |minutes| format!("silent for over {minutes} {unit}");
            minutes.map(|minutes| WaitingFor::detail(WaitKind::Model, text(minutes)))
        }
        None | Some(Activity::RunningTool(_) | Activity::CreatingWorktree) => None,
    };
    let question = member.progress.question().map(|question| WaitingFor::detail(WaitKind::SubAgent, &*question));
    reason.or(question)
}
