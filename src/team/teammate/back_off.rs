//! The errors of a teammate's model and workspace, and the waits after them.

use std::time::Duration;

use tokio::time::Instant;

use crate::agents::ModelFailureKind;
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

/// The reason why a teammate can do no task, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberError {
    /// Its model has given no answer for too long. It continues to ask, and an answer ends the error.
    ModelOutOfReach(String),
    /// The server, the key or the model in its settings is wrong. It lasts until a retry.
    WrongModelSetting(String),
    /// Another permanent error of its model. It lasts until a retry.
    Model(String),
    /// A permanent error of its tools or workspace. It lasts until a retry.
    Workspace(String),
}

impl MemberError {
    /// Returns the reason.
    #[must_use]
    pub fn reason(&self) -> &str {
        let (Self::ModelOutOfReach(reason)
        | Self::WrongModelSetting(reason)
        | Self::Model(reason)
        | Self::Workspace(reason)) = self;
        reason
    }

    fn is_permanent(&self) -> bool {
        !matches!(self, Self::ModelOutOfReach(_))
    }

    fn waiting_for(&self) -> WaitingFor {
        match self {
            Self::Workspace(reason) => WaitingFor::Other(format!("its workspace: {reason}")),
            _ => WaitingFor::Model(self.reason().to_owned()),
        }
    }
}

/// The failed requests to a model since its last answer.
#[derive(Debug)]
struct Outage {
    /// The start of the first failed turn.
    since: Instant,
    /// The end of the wait after the last one.
    waits_until: Instant,
}

/// The last errors of a teammate. While it backs off, it starts nothing.
#[derive(Debug, Default)]
pub(super) struct BackOff {
    error: Option<MemberError>,
    outage: Option<Outage>,
    /// The start of the last turn.
    turn_started: Option<Instant>,
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
        !self.has_permanent_error() && self.until.is_none_or(|until| Instant::now() >= until)
    }

    fn has_permanent_error(&self) -> bool {
        self.error.as_ref().is_some_and(MemberError::is_permanent)
    }

    /// Returns the reason why it can do no task.
    pub fn error(&self) -> Option<&MemberError> {
        self.error.as_ref()
    }

    /// Returns the last error, for the next holder of the task.
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
        match &self.error {
            Some(error) => Some(error.waiting_for()),
            None if !self.can_work() => Some(WaitingFor::Other(self.cause.clone())),
            None => None,
        }
    }

    /// Returns the rest of the wait, if it ends without help.
    pub fn time_left(&self) -> Option<Duration> {
        let until = self.until.filter(|_| !self.has_permanent_error())?;
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
        (self.error, self.until, self.outage) = (None, None, None);
    }

    /// Records the start of a turn.
    pub fn record_turn_start(&mut self) {
        self.turn_started = Some(Instant::now());
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

    /// Records a model failure that may end by itself, and begins a wait. After `outage_max` without an answer, the model is out of
    /// reach. Returns true if it is the first failure in a row.
    pub fn record_model_failure(
        &mut self,
        reason: &str,
        retry_after: Option<Duration>,
        outage_max: Option<Duration>,
        now: UnixMs,
    ) -> bool {
        let is_first = self.model_failures == 0;
        let since = self.outage_start(outage_max);
        let outage = since.elapsed();
        // The last request of an outage is at its end.
        let time_left = outage_max.map(|outage_max| outage_max.saturating_sub(outage));
        let is_out_of_reach = time_left == Some(Duration::ZERO);
        self.error = is_out_of_reach
            .then(|| MemberError::ModelOutOfReach(format!("gave no answer for {}: {reason}", duration(outage))));
        let own_wait = self.next_model_wait();
        let own_wait = time_left.filter(|_| !is_out_of_reach).map_or(own_wait, |time_left| own_wait.min(time_left));
        let wait = own_wait.max(retry_after.unwrap_or_default());
        self.outage = Some(Outage { since, waits_until: Instant::now() + wait });
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

    /// Returns the start of the outage that the failure of the last turn belongs to. A teammate that had no reason to ask its model
    /// for `outage_max` begins a new one.
    fn outage_start(&self, outage_max: Option<Duration>) -> Instant {
        let turn_started = self.turn_started.unwrap_or_else(Instant::now);
        let continues = |outage: &&Outage| turn_started <= outage.waits_until + outage_max.unwrap_or_default();
        self.outage.as_ref().filter(continues).map_or(turn_started, |outage| outage.since)
    }

    /// Records a model failure that a retry cannot end.
    pub fn record_permanent_model_failure(&mut self, reason: &str, kind: ModelFailureKind) {
        let is_setting = kind == ModelFailureKind::WrongSetting;
        let error = if is_setting { MemberError::WrongModelSetting } else { MemberError::Model };
        self.error = Some(error(reason.to_owned()));
        self.set_last_error(reason);
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
        self.error = has_given_up.then(|| MemberError::Workspace(reason.to_owned()));
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
        assert!(back_off.record_model_failure("busy", None, None, UnixMs(0)), "the first one");
        assert_eq!(back_off.time_left(), Some(MODEL_WAIT_FIRST));
        assert!(!back_off.record_model_failure("busy", None, None, UnixMs(0)) && !back_off.can_work());
        assert_eq!(back_off.time_left(), Some(2 * MODEL_WAIT_FIRST));
        back_off.record_model_failure("limit", Some(Duration::from_secs(900)), None, UnixMs(0));
        assert_eq!(back_off.time_left(), Some(Duration::from_secs(900)));
        tokio::time::advance(Duration::from_secs(900)).await;
        assert!(back_off.can_work() && back_off.end_if_over() && !back_off.end_if_over());
        back_off.record_answer();
        assert!(back_off.record_model_failure("busy", None, None, UnixMs(0)), "the first one again");
    }

    /// Fails one turn, and waits until the next one may start.
    async fn fail_turn(back_off: &mut BackOff, outage_max: Duration) {
        back_off.record_turn_start();
        back_off.record_model_failure("busy", None, Some(outage_max), UnixMs(0));
        tokio::time::advance(back_off.time_left().unwrap()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn model_without_answer_is_out_of_reach_at_limit() {
        let outage_max = Duration::from_secs(100);
        let mut back_off = BackOff::default();
        let begun = Instant::now();
        // Waits of 15, 30 and 55 s: the third one ends at the limit.
        for _ in 0..3 {
            fail_turn(&mut back_off, outage_max).await;
            assert_eq!(back_off.error(), None);
        }
        assert_eq!(begun.elapsed(), outage_max);
        fail_turn(&mut back_off, outage_max).await;
        let out_of_reach = MemberError::ModelOutOfReach("gave no answer for 1 min 40 s: busy".to_owned());
        assert_eq!(back_off.error(), Some(&out_of_reach));
        assert!(back_off.can_work(), "it continues to ask");
        back_off.record_answer();
        assert_eq!(back_off.error(), None);
        fail_turn(&mut back_off, outage_max).await;
        assert_eq!(back_off.error(), None, "an answer ends the outage");
    }

    #[tokio::test(start_paused = true)]
    async fn outage_ends_without_reason_to_ask_the_model() {
        let outage_max = Duration::from_secs(100);
        let mut back_off = BackOff::default();
        fail_turn(&mut back_off, outage_max).await;
        tokio::time::advance(outage_max + Duration::from_secs(1)).await;
        fail_turn(&mut back_off, outage_max).await;
        assert_eq!(back_off.error(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn requested_wait_is_kept_beyond_outage_limit() {
        let outage_max = Duration::from_secs(100);
        let mut back_off = BackOff::default();
        for is_out_of_reach in [false, true] {
            back_off.record_turn_start();
            back_off.record_model_failure("limit", Some(Duration::from_secs(5000)), Some(outage_max), UnixMs(0));
            assert_eq!(back_off.error().is_some(), is_out_of_reach);
            assert_eq!(back_off.time_left(), Some(Duration::from_secs(5000)));
            tokio::time::advance(Duration::from_secs(5000)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn permanent_error_lasts_until_retry() {
        let mut back_off = BackOff::default();
        back_off.record_permanent_model_failure("no such model", ModelFailureKind::Permanent);
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
        assert!(back_off.error().is_none());
        back_off.record_finished_task();
        for _ in 0..HARNESS_FAILURES_MAX {
            back_off.record_harness_failure("no disk");
        }
        assert_eq!(back_off.error().map(MemberError::reason), Some("no disk"));
    }
}
