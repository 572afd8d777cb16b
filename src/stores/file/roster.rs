//! `.team/config.json`: the team's members and their status. Other programs keep members and fields of their own in it;
//! [`super::exchange_file`] and [`crate::domain::records`] merge them.
//!
//! The reports of this process have precedence over the file. Reports within `WRITE_INTERVAL` are written together.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use indexmap::IndexMap;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::domain::records::{RosterMember, merge_roster, read_roster};
use crate::ports::{Roster, StoreResult};

use super::blocking;
use super::exchange_file::{CurrentContent, ExchangeFile, MergeResult, SETTLE_TIME, merge_with_retry, read_settled};

/// The file's name.
pub const ROSTER_FILE: &str = "config.json";

/// The least time between two writes.
const WRITE_INTERVAL: Duration = Duration::from_millis(250);

/// The roster in a file.
pub struct FileRoster {
    inner: Arc<RosterInner>,
}

struct RosterInner {
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
    /// Counts the reports. `written_version` is smaller while a report waits.
    version: u64,
    written_version: u64,
    written_at: Option<Instant>,
    is_background_running: bool,
    /// The last rendered text and its version. It is not rendered again while the file contains it.
    rendered: Option<(u64, String)>,
}

impl FileRoster {
    /// The roster in `file`.
    pub fn new(file: ExchangeFile) -> Self {
        Self { inner: Arc::new(RosterInner { file, reports: Mutex::default() }) }
    }

    /// Returns true if these bytes are a roster.
    pub fn is_valid(bytes: &[u8]) -> bool {
        read_roster(bytes).is_ok()
    }
}

#[async_trait]
impl Roster for FileRoster {
    async fn report(&self, team: &str, members: &[RosterMember]) -> StoreResult<()> {
        self.inner
            .change(team, |reports| {
                for member in members {
                    let name = member.name.to_ascii_lowercase();
                    reports.removed.remove(&name);
                    reports.members.insert(name, member.clone());
                }
            })
            .await
    }

    async fn remove(&self, team: &str, names: &[String]) -> StoreResult<()> {
        self.inner
            .change(team, |reports| {
                for name in names.iter().map(|name| name.to_ascii_lowercase()) {
                    reports.members.shift_remove(&name);
                    reports.removed.insert(name);
                }
            })
            .await
    }

    async fn read(&self) -> StoreResult<Vec<RosterMember>> {
        if self.inner.has_reported() {
            self.inner.write().await?;
        }
        let inner = &self.inner;
        let bytes = match blocking(|| inner.file.read()).await? {
            MergeResult::Missing => None,
            MergeResult::Content(bytes) => Some(bytes),
            MergeResult::Unsettled if inner.file.is_read_only() => match read_settled(&inner.file).await? {
                MergeResult::Content(bytes) => Some(bytes),
                MergeResult::Missing | MergeResult::Unsettled => None,
            },
            MergeResult::Unsettled => {
                let repair = |base: CurrentContent<'_>| match base {
                    CurrentContent::Invalid { .. } => inner.render(base),
                    CurrentContent::Missing | CurrentContent::Valid(_) => None,
                };
                merge_with_retry(&inner.file, None, repair).await?
            }
        };
        Ok(bytes.and_then(|bytes| read_roster(&bytes).ok()).unwrap_or_default())
    }
}

impl RosterInner {
    /// Changes what this process reports, and writes it if the last write is long enough ago.
    async fn change(self: &Arc<Self>, team: &str, change: impl FnOnce(&mut Reports)) -> StoreResult<()> {
        let is_due = {
            let mut reports = self.reports.lock();
            team.clone_into(&mut reports.team);
            change(&mut reports);
            reports.version += 1;
            reports.written_at.is_none_or(|written| written.elapsed() >= WRITE_INTERVAL)
        };
        if is_due {
            self.write().await?;
        }
        self.start_background();
        Ok(())
    }

    fn has_reported(&self) -> bool {
        self.reports.lock().version > 0
    }

    fn has_waiting_report(&self) -> bool {
        let reports = self.reports.lock();
        reports.version > reports.written_version
    }

    fn render(&self, base: CurrentContent<'_>) -> Option<String> {
        let mut reports = self.reports.lock();
        let is_current = |(version, text): &(u64, String)| {
            *version == reports.version && matches!(base, CurrentContent::Valid(bytes) if bytes == text.as_bytes())
        };
        if reports.rendered.as_ref().is_some_and(is_current) {
            return None;
        }
        let members: Vec<RosterMember> = reports.members.values().cloned().collect();
        let current = match base {
            CurrentContent::Valid(bytes) => Some(bytes),
            CurrentContent::Missing | CurrentContent::Invalid { .. } => None,
        };
        // The exchange file passes only valid rosters, so this is `Some`.
        let text = merge_roster(current, &reports.team, &members, &reports.removed).ok()?;
        reports.rendered = Some((reports.version, text.clone()));
        Some(text)
    }

    async fn write(&self) -> StoreResult<()> {
        let version = self.reports.lock().version;
        merge_with_retry(&self.file, None, |base| self.render(base)).await?;
        let mut reports = self.reports.lock();
        reports.written_version = reports.written_version.max(version);
        reports.written_at = Some(Instant::now());
        Ok(())
    }

    /// Starts the task that writes waiting reports, and that merges displaced versions until they settle.
    fn start_background(self: &Arc<Self>) {
        let mut reports = self.reports.lock();
        if !reports.is_background_running {
            reports.is_background_running = true;
            tokio::spawn(write_in_background(Arc::downgrade(self)));
        }
    }

    fn stop_background_if_done(&self, has_displaced: bool) -> bool {
        let mut reports = self.reports.lock();
        reports.is_background_running = has_displaced || reports.version > reports.written_version;
        !reports.is_background_running
    }
}

async fn write_in_background(inner: Weak<RosterInner>) {
    loop {
        let wait = match inner.upgrade() {
            None => return,
            Some(inner) if inner.has_waiting_report() => WRITE_INTERVAL,
            Some(_) => SETTLE_TIME,
        };
        tokio::time::sleep(wait).await;
        let Some(inner) = inner.upgrade() else { return };
        if let Err(error) = inner.write().await {
            tracing::warn!(%error, "cannot write the roster; retrying");
        }
        if inner.stop_background_if_done(inner.file.has_displaced()) {
            return;
        }
    }
}

impl Drop for RosterInner {
    fn drop(&mut self) {
        if self.has_waiting_report() {
            // The last report must not be lost with the process. No caller is left for an error.
            let _ = self.file.merge(None, &mut |base| self.render(base));
        }
    }
}
