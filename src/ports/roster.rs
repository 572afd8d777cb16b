//! The roster.

use async_trait::async_trait;

use super::StoreResult;
use crate::domain::team::records::RosterMember;

/// The roster, which other programs also read and write.
#[async_trait]
pub trait Roster: Send + Sync {
    /// Writes the status of these members. Members and fields of other programs are kept. An empty `team` keeps the team's name.
    async fn report(&self, team: &str, members: &[RosterMember]) -> StoreResult<()>;

    /// Removes members of these names that Brigade started. Members of other programs stay.
    async fn remove(&self, team: &str, names: &[String]) -> StoreResult<()>;

    /// Returns all members in the roster. Reports and removals of this process are stored again if another program has overwritten them.
    async fn read(&self) -> StoreResult<Vec<RosterMember>>;
}
