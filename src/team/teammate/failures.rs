//! Failures of a teammate's model, tools and workspace.

use std::sync::Arc;

use super::{Teammate, claims};
use crate::agents::ModelFailureKind;
use crate::domain::phase::{Phase, PhaseEvent};

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
        let is_first = match kind {
            ModelFailureKind::Temporary { retry_after } => {
                let outage_max = services.spec.limits.model.outage_limit();
                let now = services.clock.now();
                let is_first = self.back_off.record_model_failure(reason, retry_after, outage_max, now);
                services.events.warn(self.host.name(), format!("its model: {}", self.back_off.last_error()));
                is_first
            }
            ModelFailureKind::Quota { until } => {
                let account = self.host.spec.model.account();
                let now = services.clock.now();
                let is_first = services.budget.quota_until(&account).is_none();
                services.budget.record_quota(&account, until);
                self.back_off.begin_quota_wait(until, now);
                services.events.warn_once(
                    "quota",
                    &format!("{account} has used up its quota until {}: {reason}", until.to_clock_or_date(now)),
                );
                is_first
            }
            ModelFailureKind::WrongSetting | ModelFailureKind::Permanent => {
                services.events.warn_once("model", reason);
                self.back_off.record_permanent_model_failure(reason, kind);
                true
            }
        };
        if is_first {
            claims::notify_lead_of_model(&self.host, self.control.phase.claim(), reason).await;
        }
        PhaseEvent::ModelFailed
    }

    /// Begins to wait if the quota of its account is used up.
    pub(super) fn wait_for_quota(&mut self) {
        let until = self.host.services.budget.quota_until(&self.host.spec.model.account());
        if let Some(until) = until
            && self.back_off.can_work()
        {
            self.back_off.begin_quota_wait(until, self.host.services.clock.now());
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
