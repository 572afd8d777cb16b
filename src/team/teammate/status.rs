//! A teammate's reports: to the lead as its status, and to people as events.

use std::time::Duration;

use tokio::sync::watch;

use super::back_off::{BackOff, MemberError};
use crate::agents::AgentHost;
use crate::domain::log::event::{EventKind, NewEvent};
use crate::domain::team::name::LEAD;
use crate::domain::team::phase::Phase;
use crate::domain::team::waiting_for::WaitingFor;
use crate::domain::time::UnixMs;

/// A teammate's status, as the lead reads it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TeammateStatus {
    /// Its phase.
    pub phase: Phase,
    /// The start of its phase.
    pub since: UnixMs,
    /// The reason why it waits.
    pub waiting_for: Option<WaitingFor>,
    /// The reason why it can do no task.
    pub error: Option<MemberError>,
    /// True while a temporary or permanent error keeps it from work.
    pub cannot_work: bool,
    /// True if its model has not answered a message or a prompt.
    pub has_unanswered: bool,
    /// The number of its reports.
    pub reports: u64,
    /// The number of its polls for mail and tasks.
    pub polls: u64,
    /// The number of the last answered prompt.
    pub prompts_answered: u64,
    /// The model's last text since its last prompt.
    pub last_text: Option<String>,
    /// The number of its model's texts since it was started. The last text may be older.
    pub new_texts: u64,
    /// Its calls of `goal_done`.
    pub goal_reports: GoalReports,
}

/// A lead's reports that the goal is met.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GoalReports {
    /// The number of reports.
    pub count: u64,
    /// The summary of the last one.
    pub last_summary: String,
}

/// Reports the status of one teammate to the lead.
pub(super) struct StatusReporter(pub watch::Sender<TeammateStatus>);

impl StatusReporter {
    /// Returns the time until the teammate ends because it is idle, if it ends so. One that an error keeps from work waits.
    pub fn time_to_idle_shutdown(&self, host: &AgentHost, phase: Phase, back_off: &BackOff) -> Option<Duration> {
        let limit = host.services.spec.limits.idle_shutdown;
        let ends = !limit.is_zero() && phase.is_idle() && host.name() != LEAD && back_off.can_work();
        ends.then(|| limit.saturating_sub(host.services.clock.now().since(self.0.borrow().since)))
    }

    /// Records a poll. It finds everything from before, so the lead knows that later news needs another wake-up.
    pub fn record_poll(&self) {
        self.0.send_modify(|status| status.polls += 1);
    }

    /// Records that the lead's model reports the goal as met.
    pub fn record_goal(&self, summary: String) {
        self.0.send_modify(|status| {
            status.goal_reports.count += 1;
            status.goal_reports.last_summary = summary;
        });
    }

    /// Shows a phase before its report.
    pub fn show_phase(&self, phase: Phase) {
        self.0.send_modify(|status| status.phase = phase);
    }

    /// Reports the status. `prompts_taken` is the number of the last prompt in the transcript.
    pub fn report(&self, host: &AgentHost, phase: Phase, back_off: &BackOff, prompts_taken: u64) {
        let is_idle = phase.is_idle();
        let waiting_for = match phase {
            _ if is_idle => Some(back_off.waiting_for().unwrap_or(WaitingFor::MailOrTask)),
            // The lead knows the plans and reviews that members wait for.
            Phase::Waiting { .. } if host.awaits_answer_to_question() => Some(WaitingFor::Member),
            _ => None,
        };
        let since = {
            let before = self.0.borrow();
            let is_same_phase = before.reports > 0 && before.phase.reported() == phase.reported();
            if is_same_phase { before.since } else { host.services.clock.now() }
        };
        let kind = EventKind::TeammatePhase {
            teammate: host.name().to_owned(),
            phase: phase.reported(),
            task: phase.claim().map(|claim| claim.task),
            wait: waiting_for.as_ref().map(WaitingFor::wait),
            waiting_for: waiting_for.clone(),
        };
        let row = host.services.member_row(&host.spec, phase, since, waiting_for.as_ref());
        host.services.events.record(NewEvent::with_member(kind, row));
        let prompts = &host.conversation.prompts;
        let has_unanswered = prompts.is_answer_due;
        let (last_text, new_texts) = (prompts.last_text.clone(), prompts.new_texts);
        let prompts_answered = (is_idle && !has_unanswered).then_some(prompts_taken);
        self.0.send_modify(|status| {
            status.phase = phase;
            status.since = since;
            status.waiting_for = waiting_for;
            status.error = back_off.error.clone();
            status.cannot_work = !back_off.can_work();
            status.has_unanswered = has_unanswered;
            status.reports += 1;
            (status.last_text, status.new_texts) = (last_text, new_texts);
            status.prompts_answered = prompts_answered.unwrap_or(status.prompts_answered);
        });
        host.progress.set_new_message(false);
        host.services.member_reported.notify_one();
    }
}
