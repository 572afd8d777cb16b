//! An address that gets notifications.

use async_trait::async_trait;

/// Sends JSON to an address of the person.
#[async_trait]
pub trait Webhook: Send + Sync {
    /// Posts the JSON text to this URL. Nothing is retried.
    ///
    /// # Errors
    /// The URL is invalid, its server gave no answer within 10 s, or the status of the answer is no success. The reason is for people.
    async fn post(&self, url: &str, json: String) -> Result<(), String>;
}
