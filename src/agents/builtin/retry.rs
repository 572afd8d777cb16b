//! Requests to a model: each reserves budget. After temporary errors they are repeated with back-off and jitter, and not before
//! the time that the provider asks for.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::Turn;
use super::model_chain::ChainedModel;
use super::request_prefix::RequestSize;
use super::response_listener::ResponseListener;
use crate::agents::turn_control::StopLevel;
use crate::domain::agent::prompt::text_bytes;
use crate::domain::agent::transcript::Usage;
use crate::domain::team::model_spec::CostSource;
use crate::domain::text::units::{duration, exponential_backoff};
use crate::domain::time::UnixMs;
use crate::ports::{ModelError, ModelRequest, ModelResponse, RequestPurpose, StopReason};
use crate::run::accounts::{Admission, Refusal, WAIT_FIRST, WAIT_IN_TURN_MAX, WAIT_MAX, WAIT_MIN, extended_wait};
use crate::run::budget::{BudgetError, BudgetSpent, Reservation};
use crate::run::progress::{Activity, ActivityGuard};
use crate::run::stream::StreamEvent;

/// The reason for a wait that an earlier request of the account caused.
const LIMITED: &str = "the provider limits its account";

/// The most retries after answers that cannot be read. More of them seldom help, and each is paid for.
const INVALID_ANSWER_RETRIES_MAX: u32 = 3;

/// The reason for a missing answer.
#[derive(Debug)]
pub enum RequestFailure {
    /// The turn was aborted.
    Aborted,
    /// The budget of the team or the member, or the cap of the task, does not allow the request.
    BudgetSpent(Box<BudgetSpent>),
    /// The model's last error: it is permanent, the retries are used up, or nothing new may start.
    Model(ModelError),
}

impl Turn<'_> {
    /// Sends `request` of this size to `model`. Repeats it after temporary errors, up to the team's limit. Each request
    /// reserves budget.
    ///
    /// # Errors
    /// [`RequestFailure`]: there is no answer.
    pub(super) async fn request(
        &self,
        model: &ChainedModel,
        request: &ModelRequest,
        size: RequestSize,
    ) -> Result<ModelResponse, RequestFailure> {
        let most = Usage {
            input_tokens: size.input_tokens_max,
            output_tokens: u64::from(request.output_tokens_max),
            ..Usage::default()
        };
        let limits = &self.host.services.spec.limits;
        let outage_limit = limits.model.outage_limit();
        let started = Instant::now();
        // An answer that cannot be read is no outage, so each has retries of its own.
        let (mut retries, mut invalid_answers) = (0, 0);
        let mut last_error = None;
        loop {
            let outcome = match self.reserve(model, request, most, retries, last_error.take()).await {
                Ok((admission, reservation)) => {
                    let outcome = self.request_once(model, request, size, &reservation, &admission).await;
                    self.record_limit(model, outcome, &admission).await
                }
                Err(failure) => Err(failure),
            };
            let error = match outcome {
                Err(RequestFailure::Model(error)) if may_retry(&error, outage_limit) => error,
                outcome => return outcome,
            };
            let is_invalid = matches!(error, ModelError::InvalidAnswer(_));
            let count = if is_invalid { &mut invalid_answers } else { &mut retries };
            *count += 1;
            let retry = *count;
            let chance = random_fraction(retry, &request.teammate, self.host.services.clock.now());
            let wait = RetryWait::after(&error, retry, chance);
            let is_over_limit = outage_limit.is_some_and(|limit| started.elapsed() >= limit);
            if retry > self.retries_max(Some(&error)) || wait.is_quota || is_over_limit {
                return Err(RequestFailure::Model(error));
            }
            self.host.record_retry(error.to_string(), wait.time, retry);
            if wait.is_of_account {
                // The next request waits until the account may send it.
                last_error = Some(error);
                continue;
            }
            let waiting = self.start_wait(wait.time, wait.is_requested, retry, Some(&error));
            tokio::select! {
                biased;
                () = self.host.turn_control.wait_for_level(StopLevel::FinishTurn) => return Err(RequestFailure::Model(error)),
                () = tokio::time::sleep(wait.time) => {}
            }
            drop(waiting);
        }
    }

    /// Records a limit of the model's account for all its members. The error then has the wait until its end.
    async fn record_limit(
        &self,
        model: &ChainedModel,
        outcome: Result<ModelResponse, RequestFailure>,
        admission: &Admission,
    ) -> Result<ModelResponse, RequestFailure> {
        match outcome {
            Err(RequestFailure::Model(error)) => {
                let services = &self.host.services;
                let (message, refusal) = match error {
                    ModelError::Limited { message, wait, is_quota } => {
                        (message, Refusal { wait, is_quota, is_without_credit: false })
                    }
                    // A provider that asks for a long wait has a quota.
                    ModelError::Temporary { message, retry_after } if retry_after > Some(WAIT_IN_TURN_MAX) => {
                        (message, Refusal { wait: retry_after, is_quota: true, is_without_credit: false })
                    }
                    ModelError::NoCredit(message) => {
                        let refusal = Refusal { wait: None, is_quota: false, is_without_credit: true };
                        services.accounts.record_refusal(&model.account, refusal, admission).await;
                        return Err(RequestFailure::Model(ModelError::NoCredit(message)));
                    }
                    error => return Err(RequestFailure::Model(error)),
                };
                let limit = services.accounts.record_refusal(&model.account, refusal, admission).await;
                let wait = Some(limit.until.since(services.clock.now()));
                Err(RequestFailure::Model(ModelError::Limited { message, wait, is_quota: limit.is_quota }))
            }
            outcome => outcome,
        }
    }

    /// Waits until the account may send the request, after this number of retries because of `last_error`.
    async fn admit(
        &self,
        model: &ChainedModel,
        request: &ModelRequest,
        retries: u32,
        last_error: Option<ModelError>,
    ) -> Result<Admission, RequestFailure> {
        let services = &self.host.services;
        let stall_timeout = services.spec.limits.stall_timeout;
        let now = services.clock.now();
        let chance = random_fraction(retries, &request.teammate, now);
        let admission = services.accounts.admit(&model.account, chance);
        tokio::pin!(admission);
        let limit = services.accounts.limit(&model.account).await;
        let wait = limit.map(|limit| limit.until.since(now));
        let _waiting = wait.map(|wait| self.start_wait(wait, true, retries, last_error.as_ref()));
        let outcome = loop {
            tokio::select! {
                biased;
                outcome = &mut admission => break outcome,
                () = self.host.turn_control.wait_for_level(StopLevel::FinishTurn) => {
                    return Err(last_error.map_or(RequestFailure::Aborted, RequestFailure::Model));
                }
                // Others of the account may go first.
                () = tokio::time::sleep(stall_timeout / 2) => self.host.progress.renew(),
            }
        };
        outcome.map_err(|limit| {
            RequestFailure::Model(if limit.is_window() {
                let wait = Some(limit.until.since(services.clock.now()));
                let message = reason_to_wait(last_error.as_ref());
                ModelError::Limited { message, wait, is_quota: true }
            } else {
                // A member with this error sends nothing until a person acts.
                ModelError::NoCredit(format!(
                    "{} has no credit, as another request showed; after a payment, launch the team again, or pause and \
                     continue it",
                    model.account.name
                ))
            })
        })
    }

    /// Returns the most retries after this error.
    fn retries_max(&self, error: Option<&ModelError>) -> u32 {
        let retries_max = self.host.services.spec.limits.model.retries_max;
        match error {
            Some(ModelError::InvalidAnswer(_)) => retries_max.min(INVALID_ANSWER_RETRIES_MAX),
            _ => retries_max,
        }
    }

    /// Shows the wait before the next request, after this error.
    fn start_wait(
        &self,
        wait: Duration,
        is_limited: bool,
        retries: u32,
        error: Option<&ModelError>,
    ) -> ActivityGuard<'_> {
        let message = reason_to_wait(error);
        let services = &self.host.services;
        let limits = &services.spec.limits;
        let until = services.clock.now().plus(wait).to_clock();
        let retry = format!("retry {retries} of {}", self.retries_max(error));
        let description = match (is_limited, retries) {
            (true, 0) => format!("limited until {until} ({})", duration(wait)),
            (true, _) => format!("limited until {until} ({}; {retry})", duration(wait)),
            (false, _) => format!("next request at {until} ({retry})"),
        };
        let activity = Activity::RetryingModel(format!("{description}: {message}").into());
        self.host.progress.start_activity(activity, wait + limits.stall_timeout)
    }

    /// Waits until the account and the budget allow the request.
    async fn reserve(
        &self,
        model: &ChainedModel,
        request: &ModelRequest,
        most: Usage,
        retries: u32,
        last_error: Option<ModelError>,
    ) -> Result<(Admission, Reservation), RequestFailure> {
        loop {
            let admission = self.admit(model, request, retries, last_error.clone()).await?;
            let reservation = match self.host.reserve_budget(&request.model, most).await {
                Some(Ok(reservation)) => reservation,
                Some(Err(BudgetError::Spent(spent))) => return Err(RequestFailure::BudgetSpent(spent.into())),
                Some(Err(error @ BudgetError::Unrecorded(_))) => {
                    let error = ModelError::Temporary { message: error.to_string(), retry_after: None };
                    return Err(RequestFailure::Model(error));
                }
                None => return Err(RequestFailure::Aborted),
            };
            // A request of the account can have been refused while this one waited for the budget.
            if self.host.services.accounts.known_limit(&model.account).is_none() {
                return Ok((admission, reservation));
            }
            reservation.mark_declined();
        }
    }

    async fn request_once(
        &self,
        model: &ChainedModel,
        request: &ModelRequest,
        size: RequestSize,
        reservation: &Reservation,
        admission: &Admission,
    ) -> Result<ModelResponse, RequestFailure> {
        let _busy =
            self.host.progress.start_activity(Activity::AskingModel, self.host.services.spec.limits.stall_timeout);
        // Summaries and answers of sub-agents are for the model only, so they are not streamed.
        let output_stream =
            if request.purpose == RequestPurpose::Turn { Some(&self.host.services.output) } else { None };
        let listener = ResponseListener {
            request,
            request_text_bytes: size.text_bytes,
            events: &self.host.services.events,
            progress: &self.host.progress,
            output: output_stream,
            reservation,
            admission,
            has_server: model.client.has_server(),
            ignores_bill: model.spec.compat.cost == Some(CostSource::Prices),
            has_received: false.into(),
        };
        listener.publish(StreamEvent::Started);
        let outcome = tokio::select! {
            biased;
            () = self.host.turn_control.wait_for_level(StopLevel::ClaimLost) => return Err(RequestFailure::Aborted),
            outcome = model.client.request(request.clone(), &listener) => outcome,
            () = self.wait_for_stop(&listener) => return Err(RequestFailure::Aborted),
        };
        let outcome = outcome.and_then(|response| {
            admission.accept();
            let cut = if listener.has_server { self.cut_error(model, &size, request, &response) } else { None };
            let bytes = response.content.iter().map(text_bytes).sum();
            let usage = response.usage.and_then(|usage| listener.checked(usage, bytes as u64));
            // The usage of an answer that was ended early is not known.
            let is_ended = matches!(response.stop, StopReason::Repetition | StopReason::TooManyCalls);
            if response.usage.is_none() && !is_ended && listener.has_server {
                self.warn_of_usage(&request.model, "no usage; such requests count by their bytes");
            }
            reservation.record_answer(usage, bytes);
            if let Some(error) = cut {
                return Err(error);
            }
            listener.publish(StreamEvent::Ended);
            Ok(ModelResponse { usage, ..response })
        });
        if let Some(fault) = reservation.usage_fault() {
            self.warn_of_usage(&request.model, &format!("{fault}; such requests count as their maximum"));
        }
        outcome.map_err(RequestFailure::Model)
    }

    /// Warns once of a server that reports wrong usage, or none.
    fn warn_of_usage(&self, model: &str, report: &str) {
        if !self.agent.has_warned_of_usage.swap(true, Ordering::Relaxed) {
            self.host.services.events.warn(self.host.name(), format!("the server of {model} reports {report}"));
        }
    }

    /// Waits until the turn must not start anything new. If a part of the answer has arrived, this waits forever, so that the answer
    /// is received completely. A spent budget has paid for the request, so the answer is received then too.
    async fn wait_for_stop(&self, listener: &ResponseListener<'_>) {
        self.host.turn_control.wait_for_level(StopLevel::FinishTurn).await;
        if listener.has_received.load(Ordering::Relaxed) || self.host.services.budget.spent().is_some() {
            std::future::pending::<()>().await;
        }
    }
}

/// The wait before a retry.
struct RetryWait {
    time: Duration,
    /// True if the provider asked for it.
    is_requested: bool,
    /// True if every request of the account waits.
    is_of_account: bool,
    /// True if a retry within the turn cannot help.
    is_quota: bool,
}

impl RetryWait {
    /// Returns the wait after this error, before retry number `retries`.
    fn after(error: &ModelError, retries: u32, chance: f64) -> Self {
        let (requested, is_of_account, is_quota) = match error {
            ModelError::Limited { wait, is_quota, .. } => (*wait, true, *is_quota),
            ModelError::Temporary { retry_after, .. } => (*retry_after, false, false),
            _ => (None, false, false),
        };
        let time = match requested {
            Some(requested) if is_of_account => requested,
            Some(requested) => extended_wait(requested.max(WAIT_MIN), chance),
            None => backoff(retries, chance),
        };
        Self { time, is_requested: requested.is_some(), is_of_account, is_quota }
    }
}

/// Returns true if the request may be sent again after this error. Without a limit of outages, a server may not be there yet.
fn may_retry(error: &ModelError, outage_limit: Option<Duration>) -> bool {
    match error {
        ModelError::Temporary { .. } | ModelError::Limited { .. } | ModelError::InvalidAnswer(_) => true,
        ModelError::NoServer(_) => outage_limit.is_none(),
        _ => false,
    }
}

/// The reason for a wait after this error, or after an earlier request of the account.
fn reason_to_wait(error: Option<&ModelError>) -> String {
    error.map_or_else(|| LIMITED.to_owned(), ModelError::to_string)
}

/// The wait before retry number `retries`: one half fixed, one half random.
fn backoff(retries: u32, chance: f64) -> Duration {
    let full = exponential_backoff(WAIT_FIRST, retries, WAIT_MAX);
    full / 2 + (full / 2).mul_f64(chance)
}

/// A number from 0 to 1 from teammate and time, so that teammates do not retry at the same time, and simulations are repeatable.
fn random_fraction(retries: u32, teammate: &str, now: UnixMs) -> f64 {
    let mut hasher = DefaultHasher::new();
    (retries, teammate, now).hash(&mut hasher);
    (hasher.finish() % 1000) as f64 / 1000.0
}
