//! The roster.

use async_trait::async_trait;

use super::StoreResult;
use crate::domain::records::RosterMember;

/// The roster, which other programs also read and write.
#[async_trait]
pub trait Roster: Send + Sync {
    /// Writes the status of these members. Members and fields of other programs are kept.
    async fn report(&self, team: &str, members: &[RosterMember]) -> StoreResult<()>;

    /// Returns all members in the roster.
    async fn read(&self) -> StoreResult<Vec<RosterMember>>;
}
