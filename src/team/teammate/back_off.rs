//! The errors of a teammate's model and workspace, and the waits after them.

use std::time::Duration;

use tokio::time::Instant;

use crate::domain::phase::ReleaseReason;
use crate::domain::time::UnixMs;
use crate::domain::units::duration;
use crate::domain::waiting_for::WaitingFor;

/// The first wait after a model failure; each further wait is twice as long.
const MODEL_WAIT_FIRST: Duration = Duration::from_secs(15);
/// The first wait after a failure of tools or workspace; each further wait is twice as long.
const HARNESS_WAIT_FIRST: Duration = Duration::from_secs(2);
/// The longest wait without a request by the provider.
const WAIT_MAX: Duration = Duration::from_secs(600);
/// Consecutive failures of tools or workspace, without a finished task between them, after which a teammate can do no task.
const HARNESS_FAILURES_MAX: u32 = 6;

/// A permanent error of a part that a teammate needs, with the reason. It lasts until a retry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PermanentError {
    Model(String),
    Workspace(String),
}

impl PermanentError {
    /// Returns the reason.
    pub fn reason(&self) -> &str {
        match self {
            Self::Model(reason) | Self::Workspace(reason) => reason,
        }
    }

    fn waiting_for(&self) -> WaitingFor {
        match self {
            Self::Model(reason) => WaitingFor::Model(reason.clone()),
            Self::Workspace(reason) => WaitingFor::Other(format!("its workspace: {reason}")),
        }
    }
}

/// The last errors of a teammate. While it backs off, it starts nothing.
#[derive(Debug, Default)]
pub(super) struct BackOff {
    permanent_error: Option<PermanentError>,
    /// The end of the current wait.
    until: Option<Instant>,
    /// The cause of that wait, for people.
    cause: String,
    model_failures: u32,
    harness_failures: u32,
    /// The last error, for the next holder of its task.
    last_error: String,
}

impl BackOff {
    /// Returns true if no error keeps the teammate from starting something.
    pub fn can_work(&self) -> bool {
        self.permanent_error.is_none() && self.until.is_none_or(|until| Instant::now() >= until)
    }

    /// Returns the error that lasts until a retry.
    pub fn permanent_error(&self) -> Option<&PermanentError> {
        self.permanent_error.as_ref()
    }

    /// Returns the last error, for the next holder of the task. It is empty if it was reported for the whole team.
    pub fn last_error(&self) -> &str {
        &self.last_error
    }

    /// Returns the reason of a release, for the next holder of the task, if an error or the agent is the cause.
    pub fn release_reason(&self, cause: ReleaseReason) -> Option<String> {
        let error = &self.last_error;
        match cause {
            ReleaseReason::Unfinished => {
                Some("its teammate ended its work twice without a report or any evidence".to_owned())
            }
            ReleaseReason::TurnLimit(turns_max) => Some(format!("reached the limit of {turns_max} turns")),
            // The error was reported once for all members.
            ReleaseReason::ModelFailed if error.is_empty() => Some("its teammate's model failed".to_owned()),
            ReleaseReason::ModelFailed => Some(format!("its teammate's model failed: {error}")),
            ReleaseReason::HarnessFailed => Some(format!("its teammate's tools or workspace failed: {error}")),
            ReleaseReason::Truncated => Some(error.clone()),
            ReleaseReason::Stopping => None,
        }
    }

    /// Records an error that begins no wait.
    pub fn set_last_error(&mut self, error: impl Into<String>) {
        self.last_error = error.into();
    }

    /// Returns the reason why an idle teammate starts nothing, if there is one.
    pub fn waiting_for(&self) -> Option<WaitingFor> {
        match &self.permanent_error {
            Some(error) => Some(error.waiting_for()),
            None if !self.can_work() => Some(WaitingFor::Other(self.cause.clone())),
            None => None,
        }
    }

    /// Returns the rest of the wait, if it ends without help.
    pub fn time_left(&self) -> Option<Duration> {
        let until = self.until.filter(|_| self.permanent_error.is_none())?;
        Some(until.saturating_duration_since(Instant::now()))
    }

    /// Begins a wait. `cause` names the failed part, for people.
    pub fn begin(&mut self, cause: impl Into<String>, wait: Duration) {
        self.until = Some(Instant::now() + wait);
        self.cause = cause.into();
    }

    /// Forgets a wait that is over. Returns true if there was one.
    pub fn end_if_over(&mut self) -> bool {
        let is_over = self.time_left() == Some(Duration::ZERO);
        if is_over {
            self.until = None;
        }
        is_over
    }

    /// Lets the teammate try again now.
    pub fn retry(&mut self) {
        (self.permanent_error, self.until) = (None, None);
    }

    /// Records that the model answered.
    pub fn record_answer(&mut self) {
        self.model_failures = 0;
        self.retry();
    }

    /// Records that a task was finished.
    pub fn record_finished_task(&mut self) {
        self.harness_failures = 0;
    }

    /// Records a model failure that may end by itself, and begins a wait. Returns true if it is the first one in a row.
    pub fn record_model_failure(&mut self, reason: &str, retry_after: Option<Duration>, now: UnixMs) -> bool {
        let is_first = self.model_failures == 0;
        self.permanent_error = None;
        let own_wait = self.next_model_wait();
        let wait = own_wait.max(retry_after.unwrap_or_default());
        let until = now.plus(wait).to_clock();
        let when = if retry_after.is_some_and(|requested| requested >= own_wait) {
            self.last_error = format!("limited until {until} ({}): {reason}", duration(wait));
            format!("limited until {until}")
        } else {
            self.last_error = format!("{reason}; next request at {until}");
            format!("next request at {until}")
        };
        self.begin(format!("its model, {when}: {reason}"), wait);
        is_first
    }

    /// Records a model failure that a retry cannot end.
    pub fn record_permanent_model_failure(&mut self, reason: &str) {
        self.permanent_error = Some(PermanentError::Model(reason.to_owned()));
        // Other members with the same model or key meet the same error, so it is reported once for the team.
        self.last_error = String::new();
        let wait = self.next_model_wait();
        self.begin("its model", wait);
    }

    fn next_model_wait(&mut self) -> Duration {
        self.model_failures += 1;
        doubled(MODEL_WAIT_FIRST, self.model_failures)
    }

    /// Records a failure of tools or workspace. Begins a wait, or a permanent error after too many.
    pub fn record_harness_failure(&mut self, reason: &str) {
        self.harness_failures += 1;
        let has_given_up = self.harness_failures >= HARNESS_FAILURES_MAX;
        self.permanent_error = has_given_up.then(|| PermanentError::Workspace(reason.to_owned()));
        self.begin("its workspace", doubled(HARNESS_WAIT_FIRST, self.harness_failures));
    }
}

/// Returns the wait after this number of failures in a row.
fn doubled(first: Duration, failures: u32) -> Duration {
    first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(WAIT_MAX)
}

/// Sleeps for this time, or forever.
pub(super) async fn sleep_if(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn model_wait_doubles_until_an_answer() {
        let mut back_off = BackOff::default();
        assert!(back_off.can_work());
        assert!(back_off.record_model_failure("busy", None, UnixMs(0)), "the first one");
        assert_eq!(back_off.time_left(), Some(MODEL_WAIT_FIRST));
        assert!(!back_off.record_model_failure("busy", None, UnixMs(0)) && !back_off.can_work());
        assert_eq!(back_off.time_left(), Some(2 * MODEL_WAIT_FIRST));
        back_off.record_model_failure("limit", Some(Duration::from_secs(900)), UnixMs(0));
        assert_eq!(back_off.time_left(), Some(Duration::from_secs(900)));
        tokio::time::advance(Duration::from_secs(900)).await;
        assert!(back_off.can_work() && back_off.end_if_over() && !back_off.end_if_over());
        back_off.record_answer();
        assert!(back_off.record_model_failure("busy", None, UnixMs(0)), "the first one again");
    }

    #[tokio::test(start_paused = true)]
    async fn permanent_error_lasts_until_retry() {
        let mut back_off = BackOff::default();
        back_off.record_permanent_model_failure("no such model");
        tokio::time::advance(WAIT_MAX).await;
        assert!(!back_off.can_work() && !back_off.end_if_over() && back_off.time_left().is_none());
        assert_eq!(back_off.waiting_for(), Some(WaitingFor::Model("no such model".to_owned())));
        back_off.retry();
        assert!(back_off.can_work());
    }

    #[tokio::test(start_paused = true)]
    async fn harness_failures_become_permanent() {
        let mut back_off = BackOff::default();
        for _ in 1..HARNESS_FAILURES_MAX {
            back_off.record_harness_failure("no disk");
        }
        assert!(back_off.permanent_error().is_none());
        back_off.record_finished_task();
        for _ in 0..HARNESS_FAILURES_MAX {
            back_off.record_harness_failure("no disk");
        }
        assert_eq!(back_off.permanent_error().map(PermanentError::reason), Some("no disk"));
    }
}
