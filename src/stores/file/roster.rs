//! `.team/config.json`: the team's members and their status. Other programs keep members and fields of their own in it;
//! [`super::exchange_file`] and [`crate::domain::team::records`] merge them. The reports of this process have precedence over the file.

use std::collections::BTreeSet;

use async_trait::async_trait;
use indexmap::IndexMap;
use parking_lot::Mutex;

use crate::domain::team::records::{RosterMember, merge_roster, read_roster};
use crate::ports::{Roster, StoreResult};

use super::exchange_file::{CurrentContent, ExchangeFile, MergeResult, merge_with_retry, read_or_repair};

/// The file's name.
pub const ROSTER_FILE: &str = "config.json";

/// The roster in a file.
pub struct FileRoster {
    file: ExchangeFile,
    reports: Mutex<Reports>,
}

/// The reports of this process.
#[derive(Default)]
struct Reports {
    team: String,
    members: IndexMap<String, RosterMember>,
    /// The names of removed members, in lower case.
    removed: BTreeSet<String>,
    /// The last text with all reports. It is not rendered again while the file contains it.
    rendered: Option<String>,
}

impl FileRoster {
    /// The roster in `file`.
    pub fn new(file: ExchangeFile) -> Self {
        Self { file, reports: Mutex::default() }
    }

    /// Returns true if these bytes are a roster.
    pub fn is_valid(bytes: &[u8]) -> bool {
        read_roster(bytes).is_ok()
    }

    /// Changes what this process reports, and writes it.
    async fn change(&self, team: &str, change: impl FnOnce(&mut Reports)) -> StoreResult<()> {
        {
            let mut reports = self.reports.lock();
            team.clone_into(&mut reports.team);
            change(&mut reports);
            reports.rendered = None;
        }
        self.write().await.map(drop)
    }

    /// Writes all reports of this process, and returns the file.
    async fn write(&self) -> StoreResult<Option<Vec<u8>>> {
        merge_with_retry(&self.file, None, |base| self.render(base)).await
    }

    fn render(&self, base: CurrentContent<'_>) -> Option<String> {
        let current = match base {
            CurrentContent::Valid(bytes) => Some(bytes),
            CurrentContent::Missing | CurrentContent::Invalid { .. } => None,
        };
        let mut reports = self.reports.lock();
        if current.is_some() && current == reports.rendered.as_deref().map(str::as_bytes) {
            return None;
        }
        let members: Vec<RosterMember> = reports.members.values().cloned().collect();
        // The exchange file passes only valid rosters, so this is `Some`.
        let text = merge_roster(current, &reports.team, &members, &reports.removed).ok()?;
        reports.rendered = Some(text.clone());
        Some(text)
    }

    /// Reads the file. Quarantines and replaces an invalid one, unless this process only reads.
    async fn read_file(&self) -> StoreResult<Option<Vec<u8>>> {
        let read = read_or_repair(&self.file, |base| self.render(base)).await?;
        Ok(if let MergeResult::Content(bytes) = read { Some(bytes) } else { None })
    }
}

#[async_trait]
impl Roster for FileRoster {
    async fn report(&self, team: &str, members: &[RosterMember]) -> StoreResult<()> {
        self.change(team, |reports| {
            for member in members {
                let name = member.name.to_ascii_lowercase();
                reports.removed.remove(&name);
                reports.members.insert(name, member.clone());
            }
        })
        .await
    }

    async fn remove(&self, team: &str, names: &[String]) -> StoreResult<()> {
        self.change(team, |reports| {
            for name in names.iter().map(|name| name.to_ascii_lowercase()) {
                reports.members.shift_remove(&name);
                reports.removed.insert(name);
            }
        })
        .await
    }

    async fn read(&self) -> StoreResult<Vec<RosterMember>> {
        let has_reports = {
            let reports = self.reports.lock();
            !(reports.members.is_empty() && reports.removed.is_empty())
        };
        let bytes = if has_reports { self.write().await? } else { self.read_file().await? };
        Ok(bytes.and_then(|bytes| read_roster(&bytes).ok()).unwrap_or_default())
    }
}
