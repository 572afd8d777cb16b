//! Asking a model again: back-off with jitter for errors that may pass, honouring what the provider asks for.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::agent::Shared;
use super::progress::Progress;
use super::reins::{Pace, Reins};
use super::words::{Ear, Saying};
use crate::domain::event::Fact;
use crate::domain::time::UnixMs;
use crate::ports::{ModelClient, ModelError, ModelRequest, ModelResponse};

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

/// Why there is no answer.
#[derive(Debug)]
pub enum Unanswered {
    /// The turn was broken off.
    BrokenOff,
    /// The model's last error, when retries are used up, cannot help, or nothing more is to be begun.
    Model(ModelError),
}

/// Sends `request`, and again after temporary errors, up to the team's limit.
///
/// # Errors
/// See [`Unanswered`].
pub async fn request(
    model: &dyn ModelClient,
    request: &ModelRequest,
    shared: &Shared,
    progress: &Progress,
    reins: &Reins,
) -> Result<ModelResponse, Unanswered> {
    let mut retries = 0;
    loop {
        let busy = progress.busy("waiting for its model", shared.limits.stall_timeout);
        // A summary is for the model itself; nobody is told its words.
        let mouth = Some(&shared.mouth).filter(|_| !request.is_for_summary());
        let ear = Ear { teammate: &request.teammate, progress, mouth };
        ear.say(Saying::Begun);
        let outcome = tokio::select! {
            biased;
            () = reins.reaches(Pace::LetGo) => return Err(Unanswered::BrokenOff),
            outcome = model.request(request.clone(), &ear) => outcome,
        };
        drop(busy);
        let (message, retry_after) = match outcome {
            Ok(response) => {
                ear.say(Saying::Ended);
                return Ok(response);
            }
            Err(ModelError::Temporary { message, retry_after }) => (message, retry_after),
            Err(error) => return Err(Unanswered::Model(error)),
        };
        retries += 1;
        let chance = chance(retries, &request.teammate, shared.clock.now());
        let wait = match retry_after {
            Some(asked) => later(asked.max(WAIT_MIN), chance),
            None => backoff(retries, chance),
        };
        let given_up = || Err(Unanswered::Model(ModelError::Temporary { message: message.clone(), retry_after }));
        if retries > shared.limits.model_retries_max || retry_after > Some(RETRY_AFTER_MAX) {
            return given_up();
        }
        shared.notes.fact(Fact::ModelRetried {
            teammate: request.teammate.to_string(),
            reason: message.clone(),
            wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
            retries,
        });
        let waiting = progress.busy("waiting for a limit", wait + shared.limits.stall_timeout);
        tokio::select! {
            () = reins.reaches(Pace::Finish) => return given_up(),
            () = tokio::time::sleep(wait) => {}
        }
        drop(waiting);
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
