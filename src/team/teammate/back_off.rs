//! The errors of a teammate's model and workspace, and the waits after them.

use std::time::Duration;

use tokio::time::Instant;

use crate::domain::team::phase::ReleaseReason;
use crate::domain::team::waiting_for::{WaitKind, WaitingFor};
use crate::domain::text::units::{duration, exponential_backoff};
use crate::domain::time::UnixMs;

/// The first wait after a model failure. Each further wait is twice as long.
const MODEL_WAIT_FIRST: Duration = Duration::from_secs(15);
/// The first wait after a failure of tools or workspace. Each further wait is twice as long.
const HARNESS_WAIT_FIRST: Duration = Duration::from_secs(2);
/// The number of failures of its agent in a row after which the error is permanent.
const AGENT_FAILURES_MAX: u32 = 3;
/// The longest wait, unless the provider demands a longer one.
const WAIT_MAX: Duration = Duration::from_secs(600);
/// The number of failures of tools or workspace without a finished task after which the error is permanent.
const HARNESS_FAILURES_MAX: u32 = 6;

/// The error that keeps a teammate from working.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberError {
    pub kind: MemberErrorKind,
    /// The reason, for people.
    pub reason: String,
}

/// The kind of an error that keeps a teammate from working, the first of which decides about the end of a team.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemberErrorKind {
    /// Its model has given no answer for too long. The teammate keeps asking, and an answer ends the error.
    ModelOutOfReach,
    /// The server, the key or the model in its settings is wrong. It lasts until a retry.
    WrongModelSetting,
    /// Its own budget is spent. It lasts until a retry, and a launch reads the budget.
    BudgetSpent,
    /// Another permanent error of its model. It lasts until a retry.
    Model,
    /// Its agent failed several attempts in a row by itself, left its prompts without an answer, or its program ended again and again. It
    /// lasts until a retry.
    Agent,
    /// A permanent error of its tools or workspace. It lasts until a retry.
    Workspace,
}

impl MemberErrorKind {
    /// Returns the error of this kind with this reason.
    pub fn because(self, reason: impl Into<String>) -> MemberError {
        MemberError { kind: self, reason: reason.into() }
    }
}

impl MemberError {
    fn waiting_for(&self) -> WaitingFor {
        match self.kind {
            MemberErrorKind::Workspace => WaitingFor::detail(WaitKind::Workspace, self.reason.as_str()),
            MemberErrorKind::Agent => WaitingFor::detail(WaitKind::Agent, self.reason.as_str()),
            MemberErrorKind::BudgetSpent => WaitingFor::detail(WaitKind::Budget, self.reason.as_str()),
            _ => WaitingFor::Model(self.reason.clone()),
        }
    }
}

/// The failed requests to a model since its last answer.
#[derive(Debug)]
struct Outage {
    /// The start of the first failed turn.
    since: Instant,
    /// The earliest time of the next request.
    next_request_at: Instant,
}

/// A wait after an error. The teammate starts nothing before its end.
#[derive(Debug)]
struct Wait {
    until: Instant,
    /// The part that failed, for people.
    cause: String,
}

impl Wait {
    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }
}

/// The last errors of a teammate, and the current wait.
#[derive(Debug, Default)]
pub(super) struct BackOff {
    /// The error that keeps the teammate from working.
    pub error: Option<MemberError>,
    outage: Option<Outage>,
    wait: Option<Wait>,
    /// The start of the last turn.
    turn_started_at: Option<Instant>,
    model_failures: u32,
    harness_failures: u32,
    /// The failures of its agent since the last finished task or answered prompt.
    agent_failures: u32,
    /// The ends of its agent's program after model requests without a tool call, since the last tool call, finished task or answered prompt.
    fruitless_ends: u32,
    /// The number of the last prompt that started work without a task; `None` before the first one.
    prompt_started: Option<u64>,
    /// True if this prompt starts work again, because a failure ended that work.
    pub is_prompt_due: bool,
    /// The last error, for the next holder of its task.
    pub last_error: String,
}

impl BackOff {
    /// Returns true if neither a wait nor a permanent error keeps the teammate from starting work.
    pub fn can_work(&self) -> bool {
        !self.has_permanent_error() && self.wait.as_ref().is_none_or(Wait::is_over)
    }

    fn has_permanent_error(&self) -> bool {
        self.error.as_ref().is_some_and(|error| error.kind != MemberErrorKind::ModelOutOfReach)
    }

    /// Returns the reason of a release, for the next holder of the task; `None` if the teammate stops.
    pub fn release_reason(&self, reason: ReleaseReason) -> Option<String> {
        let error = &self.last_error;
        match reason {
            ReleaseReason::Unfinished => Some("ended without a report and changed nothing".to_owned()),
            ReleaseReason::TurnLimit(turns_max) => Some(format!("reached the limit of {turns_max} turns")),
            ReleaseReason::ModelFailed => Some(format!("its teammate's model failed: {error}")),
            ReleaseReason::HarnessFailed => Some(format!("its teammate's tools or workspace failed: {error}")),
            ReleaseReason::AttemptFailed | ReleaseReason::CapReached => Some(error.clone()),
            ReleaseReason::Stopping => None,
        }
    }

    /// Records an error that begins no wait.
    pub fn set_last_error(&mut self, error: impl Into<String>) {
        self.last_error = error.into();
    }

    /// Returns the reason why an idle teammate starts nothing, if there is one.
    pub fn waiting_for(&self) -> Option<WaitingFor> {
        if let Some(error) = &self.error {
            return Some(error.waiting_for());
        }
        let wait = self.wait.as_ref().filter(|wait| !wait.is_over())?;
        Some(WaitingFor::from_file_text(&wait.cause))
    }

    /// Returns the rest of the current wait; `None` without a wait, or after a permanent error.
    pub fn time_left(&self) -> Option<Duration> {
        if self.has_permanent_error() {
            return None;
        }
        Some(self.wait.as_ref()?.until.saturating_duration_since(Instant::now()))
    }

    /// Begins a wait. `cause` names the part that failed, for people.
    pub fn begin_wait(&mut self, cause: impl Into<String>, wait: Duration) {
        self.wait = Some(Wait { until: Instant::now() + wait, cause: cause.into() });
    }

    /// Begins the wait for the end of a quota window, or for the next request before it. It is no failure of the model.
    pub fn begin_quota_wait(&mut self, until: UnixMs, ask_at: UnixMs, now: UnixMs) {
        let mut text = format!("quota until {}", until.to_clock_or_date(now));
        if ask_at < until {
            text = format!("{text}; next request at {}", ask_at.to_clock_or_date(now));
        }
        self.repeat_prompt();
        self.error = None;
        self.last_error.clone_from(&text);
        self.begin_wait(text, ask_at.since(now));
    }

    /// Ends the wait if it is over. Returns true if it ended now.
    pub fn end_wait_if_over(&mut self) -> bool {
        let is_over = self.time_left() == Some(Duration::ZERO);
        if is_over {
            self.wait = None;
        }
        is_over
    }

    /// Lets the teammate try again now.
    pub fn retry(&mut self) {
        self.error = None;
        self.wait = None;
        self.outage = None;
    }

    /// Records the start of a turn.
    pub fn record_turn_start(&mut self) {
        self.turn_started_at = Some(Instant::now());
    }

    /// Records that the model answered.
    pub fn record_answer(&mut self) {
        self.model_failures = 0;
        self.retry();
    }

    /// Records that a task was finished.
    pub fn record_finished_task(&mut self) {
        self.harness_failures = 0;
        self.record_answered_prompts();
    }

    /// Records a turn with tool calls.
    pub fn record_tool_calls(&mut self) {
        self.fruitless_ends = 0;
    }

    /// Records that its agent did its work without a task, and left no prompt without an answer.
    pub fn record_answered_prompts(&mut self) {
        self.agent_failures = 0;
        self.fruitless_ends = 0;
    }

    /// Records that its agent's program ended by itself after model requests without a tool call. It is started again at once, until too
    /// many such ends in a row are a permanent error. Returns true then.
    pub fn record_fruitless_end(&mut self, reason: &str) -> bool {
        self.fruitless_ends += 1;
        let is_permanent = self.fruitless_ends >= AGENT_FAILURES_MAX;
        if is_permanent {
            let error = format!(
                "its agent's program ended by itself {AGENT_FAILURES_MAX} times in a row without a tool call: {reason}; start the program by hand to see the cause, and correct its `command` or its login"
            );
            self.record_permanent_error(MemberErrorKind::Agent, &error);
        }
        is_permanent
    }

    /// Records a failure of its agent. Begins a wait, or a permanent error after too many in a row. Returns true if it is permanent.
    pub fn record_agent_failure(&mut self, reason: &str) -> bool {
        self.agent_failures += 1;
        self.is_prompt_due = true;
        self.set_last_error(reason);
        let is_permanent = self.agent_failures >= AGENT_FAILURES_MAX;
        if is_permanent {
            let reason = format!("{reason} ({AGENT_FAILURES_MAX} failures in a row)");
            self.error = Some(MemberErrorKind::Agent.because(reason));
        } else {
            self.begin_wait(
                format!("its agent: {reason}"),
                exponential_backoff(HARNESS_WAIT_FIRST, self.agent_failures, WAIT_MAX),
            );
        }
        is_permanent
    }

    /// Lets the last prompt start work again after the failure of its model, its tools or its workspace.
    fn repeat_prompt(&mut self) {
        self.is_prompt_due = true;
    }

    /// Records that the prompt with this number is to start work without a task. Returns true if it has not started any before.
    pub fn begin_prompt(&mut self, number: u64) -> bool {
        let is_new = self.prompt_started.replace(number) != Some(number);
        if is_new {
            self.is_prompt_due = false;
        }
        is_new
    }

    /// Begins that work, unless a wait or an error keeps the teammate from it. Returns true if it may begin.
    pub fn take_due_prompt(&mut self) -> bool {
        self.can_work() && std::mem::take(&mut self.is_prompt_due)
    }

    /// Records a temporary model failure, and begins a wait. After `outage_max` without an answer, the model is out of reach. Returns
    /// true if it is the first failure in a row.
    pub fn record_model_failure(
        &mut self,
        reason: &str,
        retry_after: Option<Duration>,
        outage_max: Option<Duration>,
        now: UnixMs,
    ) -> bool {
        self.model_failures += 1;
        self.repeat_prompt();
        let since = self.outage_start(outage_max);
        let outage = since.elapsed();
        let mut own_wait = exponential_backoff(MODEL_WAIT_FIRST, self.model_failures, WAIT_MAX);
        self.error = None;
        match outage_max {
            // The wait ends at the limit, so that one more request is made there.
            Some(outage_max) if outage < outage_max => own_wait = own_wait.min(outage_max - outage),
            Some(_) => {
                let reason = format!("gave no answer for {}: {reason}", duration(outage));
                self.error = Some(MemberErrorKind::ModelOutOfReach.because(reason));
            }
            None => {}
        }
        let wait = own_wait.max(retry_after.unwrap_or_default());
        self.outage = Some(Outage { since, next_request_at: Instant::now() + wait });
        let until = now.plus(wait).to_clock();
        if retry_after.is_some_and(|requested| requested >= own_wait) {
            self.last_error = format!("limited until {until} ({}): {reason}", duration(wait));
            self.begin_wait(format!("its model, limited until {until}: {reason}"), wait);
        } else {
            self.last_error = format!("{reason}; next request at {until}");
            self.begin_wait(format!("its model, next request at {until}: {reason}"), wait);
        }
        self.model_failures == 1
    }

    /// Returns the start of the outage to which the failure of the last turn belongs. The last turn starts a new outage if it began more
    /// than `outage_max` after a request was possible again.
    fn outage_start(&self, outage_max: Option<Duration>) -> Instant {
        let turn_started_at = self.turn_started_at.unwrap_or_else(Instant::now);
        match &self.outage {
            Some(outage) if turn_started_at <= outage.next_request_at + outage_max.unwrap_or_default() => outage.since,
            _ => turn_started_at,
        }
    }

    /// Records an error that lasts until a retry.
    pub fn record_permanent_error(&mut self, kind: MemberErrorKind, reason: &str) {
        self.repeat_prompt();
        self.set_last_error(reason);
        self.error = Some(kind.because(reason));
    }

    /// Records a failure of tools or workspace. Begins a wait, or a permanent error after too many.
    pub fn record_harness_failure(&mut self, reason: &str) {
        self.harness_failures += 1;
        self.repeat_prompt();
        self.set_last_error(reason);
        self.error = None;
        if self.harness_failures >= HARNESS_FAILURES_MAX {
            self.error = Some(MemberErrorKind::Workspace.because(reason));
        } else {
            self.begin_wait("its workspace", exponential_backoff(HARNESS_WAIT_FIRST, self.harness_failures, WAIT_MAX));
        }
    }
}

/// Sleeps for this time. Without a time it never ends.
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
        assert!(back_off.can_work() && back_off.end_wait_if_over() && !back_off.end_wait_if_over());
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
        let started = Instant::now();
        // Waits of 15, 30 and 55 s: the third one ends at the limit.
        for _ in 0..3 {
            fail_turn(&mut back_off, outage_max).await;
            assert_eq!(back_off.error, None);
        }
        assert_eq!(started.elapsed(), outage_max);
        fail_turn(&mut back_off, outage_max).await;
        let out_of_reach = MemberErrorKind::ModelOutOfReach.because("gave no answer for 1 min 40 s: busy");
        assert_eq!(back_off.error, Some(out_of_reach.clone()));
        assert!(back_off.can_work(), "it continues to ask");
        back_off.record_answer();
        assert_eq!(back_off.error, None);
        fail_turn(&mut back_off, outage_max).await;
        assert_eq!(back_off.error, None, "an answer ends the outage");
    }

    #[tokio::test(start_paused = true)]
    async fn outage_ends_without_reason_to_ask_the_model() {
        let outage_max = Duration::from_secs(100);
        let mut back_off = BackOff::default();
        fail_turn(&mut back_off, outage_max).await;
        tokio::time::advance(outage_max + Duration::from_secs(1)).await;
        fail_turn(&mut back_off, outage_max).await;
        assert_eq!(back_off.error, None);
    }

    #[tokio::test(start_paused = true)]
    async fn requested_wait_is_kept_beyond_outage_limit() {
        let outage_max = Duration::from_secs(100);
        let mut back_off = BackOff::default();
        for is_out_of_reach in [false, true] {
            back_off.record_turn_start();
            back_off.record_model_failure("limit", Some(Duration::from_secs(5000)), Some(outage_max), UnixMs(0));
            assert_eq!(back_off.error.is_some(), is_out_of_reach);
            assert_eq!(back_off.time_left(), Some(Duration::from_secs(5000)));
            tokio::time::advance(Duration::from_secs(5000)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn permanent_error_lasts_until_retry() {
        let mut back_off = BackOff::default();
        back_off.record_permanent_error(MemberErrorKind::Model, "no such model");
        tokio::time::advance(WAIT_MAX).await;
        assert!(!back_off.can_work() && !back_off.end_wait_if_over() && back_off.time_left().is_none());
        assert_eq!(back_off.waiting_for(), Some(WaitingFor::Model("no such model".to_owned())));
        back_off.retry();
        assert!(back_off.can_work());
    }

    #[tokio::test(start_paused = true)]
    async fn agent_failures_in_a_row_become_permanent() {
        let mut back_off = BackOff::default();
        assert!(back_off.begin_prompt(1) && !back_off.begin_prompt(1) && !back_off.take_due_prompt());
        assert!(!back_off.record_agent_failure("no answer"));
        assert!(back_off.is_prompt_due && !back_off.take_due_prompt(), "it waits first");
        tokio::time::advance(HARNESS_WAIT_FIRST).await;
        assert!(back_off.take_due_prompt() && !back_off.take_due_prompt(), "once after each failure");
        back_off.record_answered_prompts();
        for _ in 1..AGENT_FAILURES_MAX {
            assert!(!back_off.record_agent_failure("no answer"));
        }
        assert!(back_off.record_agent_failure("no answer"));
        tokio::time::advance(WAIT_MAX).await;
        assert!(!back_off.can_work() && !back_off.take_due_prompt());
        assert_eq!(
            back_off.waiting_for(),
            Some(WaitingFor::detail(WaitKind::Agent, "no answer (3 failures in a row)"))
        );
        back_off.retry();
        assert!(back_off.take_due_prompt());
        assert!(back_off.begin_prompt(2), "another prompt");
    }

    #[tokio::test(start_paused = true)]
    async fn fruitless_ends_in_a_row_become_permanent() {
        let mut back_off = BackOff::default();
        let progress = [BackOff::record_tool_calls, BackOff::record_finished_task, BackOff::record_answered_prompts];
        for record_progress in progress {
            assert!((1..AGENT_FAILURES_MAX).all(|_| !back_off.record_fruitless_end("ended")) && back_off.can_work());
            record_progress(&mut back_off);
        }
        assert!((1..AGENT_FAILURES_MAX).all(|_| !back_off.record_fruitless_end("ended")));
        assert!(back_off.record_fruitless_end("ended") && !back_off.can_work());
    }

    #[tokio::test(start_paused = true)]
    async fn harness_failures_become_permanent() {
        let mut back_off = BackOff::default();
        for _ in 1..HARNESS_FAILURES_MAX {
            back_off.record_harness_failure("no disk");
        }
        assert!(back_off.error.is_none());
        back_off.record_finished_task();
        for _ in 0..HARNESS_FAILURES_MAX {
            back_off.record_harness_failure("no disk");
        }
        assert_eq!(back_off.error.as_ref().map(|error| &*error.reason), Some("no disk"));
    }
}
