//! Requests to a model: each reserves budget. After temporary errors they are repeated with back-off and jitter, and not before
//! the time that the provider asks for.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::Turn;
use super::response_listener::ResponseListener;
use crate::agents::turn_control::StopLevel;
use crate::domain::prompt::block_bytes;
use crate::domain::time::UnixMs;
use crate::domain::transcript::Usage;
use crate::domain::units::{duration, exponential_backoff};
use crate::ports::{ModelError, ModelRequest, ModelResponse, RequestPurpose, StopReason};
use crate::run::budget::{BudgetError, BudgetSpent};
use crate::run::progress::Activity;
use crate::run::stream::StreamEvent;

/// The first wait; each further wait is twice as long.
const WAIT_FIRST: Duration = Duration::from_millis(500);
/// The shortest wait, even if the provider asks for none.
const WAIT_MIN: Duration = Duration::from_millis(250);
/// The longest wait without a request by the provider.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The longest extension of a wait that the provider asks for.
const EXTENSION_MAX: Duration = Duration::from_secs(5);
/// The longest wait within a turn that a provider can ask for. A longer one is the end of a quota window: the claim is released.
pub(super) const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);

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
    /// Sends `request`, which can use at most `most`. Repeats it after temporary errors, up to the team's limit. Each request
    /// reserves budget.
    ///
    /// # Errors
    /// [`RequestFailure`]: there is no answer.
    pub(super) async fn request(&self, request: &ModelRequest, most: Usage) -> Result<ModelResponse, RequestFailure> {
        let limits = &self.host.services.spec.limits;
        let outage_limit = limits.model.outage_limit();
        let started = Instant::now();
        let mut retries = 0;
        loop {
            let (message, retry_after) = match self.request_once(request, most).await {
                Err(RequestFailure::Model(ModelError::Temporary { message, retry_after })) => (message, retry_after),
                Err(RequestFailure::Model(ModelError::NoServer(message))) if outage_limit.is_none() => (message, None),
                outcome => return outcome,
            };
            retries += 1;
            let chance = random_fraction(retries, &request.teammate, self.host.services.clock.now());
            let wait = match retry_after {
                Some(requested) => extended_wait(requested.max(WAIT_MIN), chance),
                None => backoff(retries, chance),
            };
            let failure =
                || Err(RequestFailure::Model(ModelError::Temporary { message: message.clone(), retry_after }));
            let is_over_limit = outage_limit.is_some_and(|limit| started.elapsed() >= limit);
            if retries > limits.model.retries_max || retry_after > Some(RETRY_AFTER_MAX) || is_over_limit {
                return failure();
            }
            self.host.record_retry(message.clone(), wait, retries);
            let until = self.host.services.clock.now().plus(wait);
            let retry = format!("retry {retries} of {}", limits.model.retries_max);
            let description = match retry_after {
                Some(_) => format!("limited until {} ({}; {retry})", until.to_clock(), duration(wait)),
                None => format!("next request at {} ({retry})", until.to_clock()),
            };
            let activity = Activity::RetryingModel(format!("{description}: {message}").into());
            let waiting = self.host.progress.start_activity(activity, wait + limits.stall_timeout);
            tokio::select! {
                biased;
                () = self.host.turn_control.wait_for_level(StopLevel::FinishTurn) => return failure(),
                () = tokio::time::sleep(wait) => {}
            }
            drop(waiting);
        }
    }

    async fn request_once(&self, request: &ModelRequest, most: Usage) -> Result<ModelResponse, RequestFailure> {
        let reservation = match self.host.reserve_budget(&request.model, most).await {
            Some(Ok(reservation)) => reservation,
            Some(Err(BudgetError::Spent(spent))) => return Err(RequestFailure::BudgetSpent(spent.into())),
            Some(Err(error @ BudgetError::Unrecorded(_))) => {
                let error = ModelError::Temporary { message: error.to_string(), retry_after: None };
                return Err(RequestFailure::Model(error));
            }
            None => return Err(RequestFailure::Aborted),
        };
        let _busy =
            self.host.progress.start_activity(Activity::AskingModel, self.host.services.spec.limits.stall_timeout);
        // Summaries and answers of sub-agents are for the model only, so they are not streamed.
        let output_stream =
            if request.purpose == RequestPurpose::Turn { Some(&self.host.services.output) } else { None };
        let listener = ResponseListener {
            request,
            progress: &self.host.progress,
            output: output_stream,
            reservation: &reservation,
            has_server: self.agent.model.has_server(),
            has_received: false.into(),
        };
        listener.publish(StreamEvent::Started);
        let outcome = tokio::select! {
            biased;
            () = self.host.turn_control.wait_for_level(StopLevel::ClaimLost) => return Err(RequestFailure::Aborted),
            outcome = self.agent.model.request(request.clone(), &listener) => outcome,
            () = self.wait_for_stop(&listener) => return Err(RequestFailure::Aborted),
        };
        let outcome = outcome.map(|response| {
            listener.publish(StreamEvent::Ended);
            let bytes = response.content.iter().map(block_bytes).sum();
            let usage = response.usage.and_then(|usage| listener.checked(usage, bytes as u64));
            // The usage of an answer that was ended early is not known.
            if response.usage.is_none() && response.stop != StopReason::Repetition && listener.has_server {
                self.warn_of_usage(&request.model, "no usage; such requests count by their bytes");
            }
            reservation.record_answer(usage, bytes);
            ModelResponse { usage, ..response }
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

/// The wait before retry number `retries`: one half fixed, one half random.
fn backoff(retries: u32, chance: f64) -> Duration {
    let full = exponential_backoff(WAIT_FIRST, retries, WAIT_MAX);
    full / 2 + (full / 2).mul_f64(chance)
}

/// A requested wait, only ever made longer: a limit ends for all teammates at the same time.
fn extended_wait(requested: Duration, chance: f64) -> Duration {
    requested + (requested / 10).min(EXTENSION_MAX).mul_f64(chance)
}

/// A number from 0 to 1 from teammate and time, so that teammates do not retry at the same time, and simulations are repeatable.
fn random_fraction(retries: u32, teammate: &str, now: UnixMs) -> f64 {
    let mut hasher = DefaultHasher::new();
    (retries, teammate, now).hash(&mut hasher);
    (hasher.finish() % 1000) as f64 / 1000.0
}
