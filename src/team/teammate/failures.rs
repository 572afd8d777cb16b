//! Failures of a teammate's model, agent, tools and workspace, and the ends of its budgets.

use std::sync::Arc;
use std::time::Duration;

use super::Teammate;
use super::back_off::MemberErrorKind;
use crate::agents::{ModelFailureKind, TurnOutcome};
use crate::domain::log::event::EventKind;
use crate::domain::team::budget::BudgetScope;
use crate::domain::team::phase::{Phase, PhaseEvent};
use crate::run::budget::BudgetSpent;

/// The wait before a member asks the other models of its chain again, while the quota of one is used up.
const OTHER_MODEL_WAIT: Duration = Duration::from_secs(10 * 60);

impl Teammate {
    /// Records a failed request, unless the teammate is stopping. Tells the lead about a permanent failure and about the first
    /// temporary one.
    ///
    /// Returns the event: the attempt failed if the model refused a context with answers, otherwise the model failed.
    pub(super) async fn model_failed(&mut self, reason: &str, kind: ModelFailureKind) -> PhaseEvent {
        if matches!(self.control.phase, Phase::Stopping { .. }) {
            return PhaseEvent::ModelFailed;
        }
        if kind == ModelFailureKind::Permanent
            && self.control.phase.claim().is_some()
            && self.host.conversation.has_answers()
        {
            // The cause may be in the context, and the next attempt starts with a new context.
            let reason = format!("its teammate's model refused the request: {reason}");
            self.host.services.events.warn(self.host.name(), reason.clone());
            self.back_off.set_last_error(reason);
            return PhaseEvent::AttemptFailed;
        }
        let services = Arc::clone(&self.host.services);
        // The person can correct a setting, but the model with the quota answers earlier.
        let kind = match kind {
            ModelFailureKind::WrongSetting => match self.host.first_quota_end().await {
                Some((account, until)) => ModelFailureKind::Quota { account, until },
                None => kind,
            },
            kind => kind,
        };
        let outage_max = services.spec.limits.model.outage_limit();
        let is_first = match kind {
            ModelFailureKind::Temporary { retry_after } => {
                let now = services.clock.now();
                let is_first = self.back_off.record_model_failure(reason, retry_after, outage_max, now);
                services.events.warn(self.host.name(), format!("its model: {}", self.back_off.last_error));
                is_first
            }
            ModelFailureKind::Quota { account, until } => {
                let now = services.clock.now();
                let (limit, is_first) = services.accounts.record_quota(&account, until).await;
                let all_until = self.host.used_up_until().await;
                // Another one of its models may answer earlier.
                let ask_at = all_until.unwrap_or_else(|| until.min(now.plus(OTHER_MODEL_WAIT)));
                self.back_off.begin_quota_wait(all_until.unwrap_or(until), ask_at, now);
                let until = limit.until.to_clock_or_date(now);
                let warning = format!("{} has used up its quota until {until}: {reason}", account.name);
                services.events.warn_once("quota", &warning);
                is_first
            }
            ModelFailureKind::WrongSetting | ModelFailureKind::Permanent => {
                services.events.warn_once("model", reason);
                let is_setting = kind == ModelFailureKind::WrongSetting;
                let kind = if is_setting { MemberErrorKind::WrongModelSetting } else { MemberErrorKind::Model };
                self.back_off.record_permanent_error(kind, reason);
                true
            }
        };
        if is_first {
            // A member that fails with a claim releases it.
            let released = if self.control.phase.claim().is_some() { "I released my task and wait" } else { "I wait" };
            self.host.tell_lead(format!("My model gave no answer: {reason}. {released}.")).await;
        }
        PhaseEvent::ModelFailed
    }

    /// Records that a budget did not allow a request, and returns the events. A member with a spent budget starts nothing until a retry.
    /// A task at its cap is released, and the member claims another one.
    pub(super) async fn budget_spent(&mut self, spent: &BudgetSpent) -> Vec<PhaseEvent> {
        let reason = spent.to_string();
        match &spent.scope {
            // The lead sees the refusal and stops the team; nothing new starts until then.
            BudgetScope::Team => return vec![PhaseEvent::BudgetSpent, PhaseEvent::TurnEnded],
            BudgetScope::Member(name) => {
                let (limit, used) = (spent.limit.clone(), spent.spent.clone());
                let teammate = Some(name.clone());
                self.host.services.events.record(EventKind::BudgetSpent { limit, spent: used, teammate });
                self.back_off.record_permanent_error(MemberErrorKind::BudgetSpent, &reason);
                let text = format!("I cannot work any more: {reason}. Only a person can raise my budget.");
                self.host.tell_lead(text).await;
            }
            BudgetScope::Task(_) => {
                self.back_off.set_last_error(reason);
                self.claims.cap_reached = self.control.phase.claim().zip(spent.cap);
            }
        }
        vec![PhaseEvent::CapReached]
    }

    /// Records that its model answered, if it did.
    pub(super) fn record_answer(&mut self, outcomes: &[TurnOutcome]) {
        let has_no_answer = |outcome: &TurnOutcome| {
            matches!(
                outcome,
                TurnOutcome::ModelFailed { .. }
                    | TurnOutcome::AgentFailed(_)
                    | TurnOutcome::AgentEnded { .. }
                    | TurnOutcome::BudgetSpent(_)
            )
        };
        if outcomes.iter().any(has_no_answer) {
            return;
        }
        self.back_off.record_answer();
        if outcomes.contains(&TurnOutcome::Event(PhaseEvent::TurnEnded)) {
            self.back_off.record_tool_calls();
        }
        let has_ended = outcomes.contains(&TurnOutcome::Event(PhaseEvent::WorkEnded));
        if has_ended && self.control.phase.claim().is_none() && !self.host.conversation.prompts.is_answer_due {
            self.back_off.record_answered_prompts();
        }
    }

    /// Records a failure of its agent, unless the teammate is stopping. Tells the lead when it becomes permanent.
    pub(super) async fn agent_failed(&mut self, reason: &str) {
        if matches!(self.control.phase, Phase::Stopping { .. }) {
            return;
        }
        self.host.services.events.warn(self.host.name(), format!("its agent failed: {reason}"));
        if self.back_off.record_agent_failure(reason) {
            self.tell_lead_of_agent(reason).await;
        }
    }

    async fn tell_lead_of_agent(&self, reason: &str) {
        self.host.tell_lead(format!("My agent failed again and is not started any more: {reason}.")).await;
    }

    /// Records that the program of its agent ended by itself. Too many fruitless ends in a row are a permanent failure of its agent: tells
    /// the lead. Unless the teammate is stopping, the attempt fails then; otherwise its session continues.
    pub(super) async fn agent_ended(&mut self, reason: &str, is_fruitless: bool) -> PhaseEvent {
        let is_stopping = matches!(self.control.phase, Phase::Stopping { .. });
        if is_fruitless && !is_stopping && self.back_off.record_fruitless_end(reason) {
            let error = &self.back_off.last_error;
            self.host.services.events.warn(self.host.name(), format!("its agent failed: {error}"));
            self.tell_lead_of_agent(error).await;
            return PhaseEvent::AttemptFailed;
        }
        self.host.services.events.warn(self.host.name(), format!("{reason}; its session continues"));
        PhaseEvent::TurnEnded
    }

    /// Returns the events of an idle teammate whose agent has not answered a prompt. A new prompt starts work. One that started work
    /// before counts as a failure, and starts work again after the wait, unless a task comes first.
    pub(super) async fn unanswered_prompt(&mut self) -> Option<PhaseEvent> {
        if self.back_off.begin_prompt(self.host.conversation.prompts.prompts) {
            return Some(PhaseEvent::Mail);
        }
        if !self.back_off.is_prompt_due {
            self.agent_failed("it ended its work without an answer to its mail").await;
            self.report();
        }
        None
    }

    /// Lets the prompt that is due start work if there was no task to claim.
    pub(super) fn prompt_after_claim(&mut self, events: Vec<PhaseEvent>) -> Vec<PhaseEvent> {
        let is_unused = self.control.phase.is_idle() && events == [PhaseEvent::NothingFound];
        let may_answer = self.host.conversation.prompts.is_answer_due && self.may_read();
        if is_unused && may_answer && self.back_off.take_due_prompt() { vec![PhaseEvent::Mail] } else { events }
    }

    /// Begins to wait if the quotas of all its accounts are used up.
    pub(super) async fn wait_for_quota(&mut self) {
        if !self.back_off.can_work() {
            return;
        }
        if let Some(until) = self.host.used_up_until().await {
            self.back_off.begin_quota_wait(until, until, self.host.services.clock.now());
            self.report();
        }
    }

    /// Records a failure of its tools or workspace, unless the teammate is stopping.
    pub(super) fn harness_failed(&mut self, reason: &str) {
        if matches!(self.control.phase, Phase::Stopping { .. }) {
            return;
        }
        self.host.services.events.warn(self.host.name(), format!("its tools or workspace failed: {reason}"));
        self.back_off.record_harness_failure(reason);
    }
}
