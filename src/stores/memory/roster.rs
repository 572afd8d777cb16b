//! The roster in memory.

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;

use crate::domain::records::RosterMember;
use crate::ports::{Roster, StoreResult};

/// The roster in memory.
#[derive(Default)]
pub struct MemoryRoster {
    members: Mutex<Vec<RosterMember>>,
}

#[async_trait]
impl Roster for MemoryRoster {
    async fn report(&self, _team: &str, members: &[RosterMember]) -> StoreResult<()> {
        let mut rows = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        for member in members {
            match rows.iter_mut().find(|row| row.name.eq_ignore_ascii_case(&member.name)) {
                Some(row) => row.clone_from(member),
                None => rows.push(member.clone()),
            }
        }
        Ok(())
    }

    async fn remove(&self, _team: &str, names: &[String]) -> StoreResult<()> {
        let is_named = |row: &RosterMember| names.iter().any(|name| name.eq_ignore_ascii_case(&row.name));
        let mut rows = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        rows.retain(|row| row.is_outside() || !is_named(row));
        Ok(())
    }

    async fn read(&self) -> StoreResult<Vec<RosterMember>> {
        Ok(self.members.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}
