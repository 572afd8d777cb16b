//! Asking a model: paid for each time, and again with back-off and jitter after errors that may pass, honouring what the
//! provider asks for.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::agent::Agent;
use super::progress::Activity;
use super::purse::{BudgetSpent, NotPaid, Reservation};
use super::reins::Pace;
use super::words::{Ear, Saying};
use crate::domain::context::block_bytes;
use crate::domain::event::Fact;
use crate::domain::measure::duration;
use crate::domain::time::UnixMs;
use crate::domain::transcript::Usage;
use crate::ports::{Listener, ModelError, ModelRequest, ModelResponse};

/// The first wait; each further one doubles.
const WAIT_FIRST: Duration = Duration::from_millis(500);
/// The shortest wait: a provider that asks for none is not asked again without end at once.
const WAIT_MIN: Duration = Duration::from_millis(250);
/// The longest wait of our own choice.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The most by which a wait that was asked for is made longer.
const LATER_MAX: Duration = Duration::from_secs(5);
/// The longest wait within a turn that a provider can ask for; for a longer one the claim is given back.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);
/// How long a request may wait for those of others to leave enough of the budget; each of them has a bound of its own.
const BUDGET_WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Why there is no answer.
#[derive(Debug)]
pub enum Unanswered {
    /// The turn was broken off.
    BrokenOff,
    /// The team's budget does not allow it.
    BudgetSpent(BudgetSpent),
    /// The model's last error, when retries are used up, cannot help, or nothing more is to be begun.
    Model(ModelError),
}

impl Agent {
    /// Sends `request`, which can use `most`, and again after temporary errors, up to the team's limit. Each time it is paid for.
    ///
    /// # Errors
    /// See [`Unanswered`].
    pub(super) async fn request(&self, request: &ModelRequest, most: Usage) -> Result<ModelResponse, Unanswered> {
        let limits = &self.shared.limits;
        let mut retries = 0;
        loop {
            let (message, retry_after) = match self.request_once(request, most).await {
                Err(Unanswered::Model(ModelError::Temporary { message, retry_after })) => (message, retry_after),
                outcome => return outcome,
            };
            retries += 1;
            let chance = chance(retries, &request.teammate, self.shared.clock.now());
            let wait = match retry_after {
                Some(asked) => later(asked.max(WAIT_MIN), chance),
                None => backoff(retries, chance),
            };
            let given_up = || Err(Unanswered::Model(ModelError::Temporary { message: message.clone(), retry_after }));
            if retries > limits.model_retries_max || retry_after > Some(RETRY_AFTER_MAX) {
                return given_up();
            }
            self.shared.notes.fact(Fact::ModelRetried {
                teammate: request.teammate.to_string(),
                reason: message.clone(),
                wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
                retries,
            });
            let until = self.shared.clock.now().plus(wait);
            let retry = format!("retry {retries} of {}", limits.model_retries_max);
            let again = match retry_after {
                Some(_) => format!("limited until {} ({}; {retry})", until.to_clock(), duration(wait)),
                None => format!("asked again at {} ({retry})", until.to_clock()),
            };
            let again = Activity::AskingAgain(format!("{again}: {message}").into());
            let waiting = self.progress.busy(again, wait + limits.stall_timeout);
            tokio::select! {
                biased;
                () = self.reins.reaches(Pace::Finish) => return given_up(),
                () = tokio::time::sleep(wait) => {}
            }
            drop(waiting);
        }
    }

    async fn request_once(&self, request: &ModelRequest, most: Usage) -> Result<ModelResponse, Unanswered> {
        let paid = self.pay(request, most).await?;
        let _busy = self.progress.busy(Activity::AskingModel, self.shared.limits.stall_timeout);
        // A summary is for the model itself; nobody is told its words.
        let mouth = Some(&self.shared.mouth).filter(|_| !request.is_for_summary());
        let ear = Ear { request, progress: &self.progress, mouth, paid: paid.as_ref(), has_heard: false.into() };
        ear.say(Saying::Begun);
        let outcome = tokio::select! {
            biased;
            () = self.reins.reaches(Pace::LetGo) => return Err(Unanswered::BrokenOff),
            outcome = self.model.request(request.clone(), &ear) => outcome,
            () = self.has_nothing_to_finish(&ear) => return Err(Unanswered::BrokenOff),
        };
        let outcome = outcome.map(|response| {
            response.usage.inspect(|usage| ear.used(*usage));
            ModelResponse { usage: response.usage.filter(|usage| request.can_have_used(*usage)), ..response }
        });
        if paid.as_ref().is_some_and(Reservation::is_misreported) {
            self.warn_of_misreport(&request.model);
        }
        match outcome {
            Ok(response) => {
                ear.say(Saying::Ended);
                let bytes = response.content.iter().map(block_bytes).sum();
                paid.inspect(|paid| paid.answered(response.usage, bytes));
                Ok(response)
            }
            Err(error) => Err(Unanswered::Model(error)),
        }
    }

    /// Says once that a provider reports what cannot be.
    fn warn_of_misreport(&self, model: &str) {
        if !self.is_misreport_told.swap(true, Ordering::Relaxed) {
            let text = format!(
                "the server of {model} reports more tokens than the request can have used; such requests count as the most they can use"
            );
            self.shared.notes.warn(self.name(), text);
        }
    }

    /// Returns once nothing more is to be begun, unless something of the answer came before: that is heard to its end. What does not
    /// think answers at once.
    async fn has_nothing_to_finish(&self, ear: &Ear<'_>) {
        self.reins.reaches(Pace::Finish).await;
        if !self.thinks() || ear.has_heard.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }

    /// Pays for a request, unless that costs nothing; where others' requests have to end first, that is a limit it waits for.
    async fn pay(&self, request: &ModelRequest, most: Usage) -> Result<Option<Reservation>, Unanswered> {
        if !self.thinks() {
            return Ok(None);
        }
        let stores = &self.shared.stores;
        let reserve = self.shared.purse.reserve(stores.ledger.as_ref(), &request.teammate, &request.model, most);
        let _waiting = self.progress.busy(Activity::WaitingForBudget, BUDGET_WAIT_MAX);
        let paid = tokio::select! {
            biased;
            paid = reserve => paid,
            () = self.reins.reaches(Pace::LetGo) => return Err(Unanswered::BrokenOff),
        };
        paid.map(Some).map_err(|error| match error {
            NotPaid::Spent(spent) => Unanswered::BudgetSpent(spent),
            NotPaid::Unrecorded(_) => {
                Unanswered::Model(ModelError::Temporary { message: error.to_string(), retry_after: None })
            }
        })
    }
}

/// The wait before the `retries`-th retry of our own choice: half of it fixed, half of it by chance.
fn backoff(retries: u32, chance: f64) -> Duration {
    let full = WAIT_FIRST.saturating_mul(1 << retries.saturating_sub(1).min(16)).min(WAIT_MAX);
    full / 2 + (full / 2).mul_f64(chance)
}

/// A wait that was asked for, never shortened: a limit of all teammates ends for all at once.
fn later(asked: Duration, chance: f64) -> Duration {
    asked + (asked / 10).min(LATER_MAX).mul_f64(chance)
}

/// Between 0 and 1, by who asks and when, so that teammates do not ask in step and a simulation repeats itself.
fn chance(retries: u32, teammate: &str, now: UnixMs) -> f64 {
    let mut hasher = DefaultHasher::new();
    (retries, teammate, now).hash(&mut hasher);
    (hasher.finish() % 1000) as f64 / 1000.0
}
