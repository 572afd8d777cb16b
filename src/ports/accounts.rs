//! The limits of accounts that several processes use.

use async_trait::async_trait;

use super::StoreResult;
use crate::domain::team::account::{AccountId, AccountLimit};
use crate::domain::time::UnixMs;

/// Stores the limits of accounts, for all processes of a user.
#[async_trait]
pub trait AccountStore: Send + Sync {
    /// Returns the recorded limit of an account, if it holds at `now`. A record that is missing or invalid counts as none: the provider tells the limit again.
    async fn limit(&self, account: &AccountId, now: UnixMs) -> Option<AccountLimit>;

    /// Records a limit. It never shortens one that holds. After a crash, the old or the new record holds.
    ///
    /// # Errors
    /// The store cannot be written. The old record still holds.
    async fn record(&self, account: &AccountId, limit: AccountLimit, now: UnixMs) -> StoreResult<()>;
}
