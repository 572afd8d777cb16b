//! Stores whose calls a closure watches, refuses or stops.

use std::any::Any;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use brigade::ports::{Call, Interceptor, StoreError, StoreResult, Stores};

/// The outcome that a closure chooses for a call.
pub enum CallFate {
    Proceeds,
    /// It proceeds, and its result arrives later.
    AnswersLate(Duration),
    Fails(StoreError),
    Hangs,
}

struct FateOf<C>(C);

impl<C: Fn(Call<'_>) -> CallFate + Send + Sync + 'static> Interceptor for FateOf<C> {
    async fn intercept<T, F>(&self, call: Call<'_>, perform: impl Fn() -> F + Send + Sync) -> StoreResult<T>
    where
        T: Any + Send + Sync,
        F: Future<Output = StoreResult<T>> + Send,
    {
        match (self.0)(call) {
            CallFate::Proceeds => perform().await,
            CallFate::AnswersLate(delay) => {
                let result = perform().await;
                tokio::time::sleep(delay).await;
                result
            }
            CallFate::Fails(error) => Err(error),
            CallFate::Hangs => std::future::pending().await,
        }
    }
}

/// The same stores, after `choose` for each call.
pub fn with_fates(stores: &Stores, choose: impl Fn(Call<'_>) -> CallFate + Send + Sync + 'static) -> Stores {
    stores.with_interceptor(&Arc::new(FateOf(choose)))
}

/// The same stores, with the claimant of each poll for a task passed to `note`.
pub fn with_polls_noted(stores: &Stores, note: impl Fn(&str) + Send + Sync + 'static) -> Stores {
    with_fates(stores, move |call| {
        if let Call::ClaimNext(claimant) = call {
            note(&claimant.name);
        }
        CallFate::Proceeds
    })
}
