//! `.team/config.json`: who is in the team and how each stands. Other programs keep members and fields of their own in it; how
//! they are merged stands in [`super::shared`] and [`crate::domain::record`].
//!
//! What this process reported is authoritative in its memory. Reports within a quarter of a second go out together.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use indexmap::IndexMap;
use tokio::time::Instant;

use crate::domain::record::{RosterMember, merge_roster, read_roster};
use crate::ports::{Roster, StoreResult};

use super::blocking;
use super::shared::{Base, Merged, SETTLE_TIME, SharedFile, merge_patiently};

/// The file's name.
pub const ROSTER_FILE: &str = "config.json";

/// The least time between two writes.
const WRITE_INTERVAL: Duration = Duration::from_millis(250);

/// The roster in its file.
pub struct FileRoster {
    inner: Arc<Inner>,
}

struct Inner {
    file: Arc<SharedFile>,
    own: Mutex<Own>,
}

/// What this process reported.
#[derive(Default)]
struct Own {
    team: String,
    members: IndexMap<String, RosterMember>,
    /// Counts the reports; the written one is behind while one waits.
    version: u64,
    written_version: u64,
    written_at: Option<Instant>,
    is_tended: bool,
    /// What was made last, of which version: it need not be made again while the file says it.
    made: Option<(u64, String)>,
}

impl FileRoster {
    /// The roster in `file`.
    #[must_use]
    pub fn new(file: SharedFile) -> Self {
        Self { inner: Arc::new(Inner { file: Arc::new(file), own: Mutex::default() }) }
    }

    /// Whether these bytes are a roster.
    #[must_use]
    pub fn is_whole(bytes: &[u8]) -> bool {
        read_roster(bytes).is_ok()
    }
}

#[async_trait]
impl Roster for FileRoster {
    async fn report(&self, team: &str, members: &[RosterMember]) -> StoreResult<()> {
        let is_due = {
            let mut own = self.inner.own();
            team.clone_into(&mut own.team);
            for member in members {
                own.members.insert(member.name.to_ascii_lowercase(), member.clone());
            }
            own.version += 1;
            own.written_at.is_none_or(|written| written.elapsed() >= WRITE_INTERVAL)
        };
        if is_due {
            self.inner.write().await?;
        }
        self.inner.start_tending();
        Ok(())
    }

    async fn read(&self) -> StoreResult<Vec<RosterMember>> {
        if self.inner.is_waiting() {
            self.inner.write().await?;
        }
        let file = Arc::clone(&self.inner.file);
        let bytes = match blocking(move || file.read()).await? {
            Merged::Missing => None,
            Merged::Whole(bytes) => Some(bytes),
            Merged::Unsettled => {
                let inner = Arc::clone(&self.inner);
                let mend = move |base: Base<'_>| match base {
                    Base::Malformed => inner.make(base),
                    Base::Missing | Base::Whole(_) => None,
                };
                merge_patiently(&self.inner.file, None, mend).await?
            }
        };
        Ok(bytes.and_then(|bytes| read_roster(&bytes).ok()).unwrap_or_default())
    }
}

impl Inner {
    fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_waiting(&self) -> bool {
        let own = self.own();
        own.version > own.written_version
    }

    fn make(&self, base: Base<'_>) -> Option<String> {
        let mut own = self.own();
        let is_made = |(version, text): &(u64, String)| {
            *version == own.version && matches!(base, Base::Whole(bytes) if bytes == text.as_bytes())
        };
        if own.made.as_ref().is_some_and(is_made) {
            return None;
        }
        let members: Vec<RosterMember> = own.members.values().cloned().collect();
        let found = match base {
            Base::Whole(bytes) => Some(bytes),
            Base::Missing | Base::Malformed => None,
        };
        // Only whole rosters are handed in, so this is `Some`.
        let text = merge_roster(found, &own.team, &members).ok()?;
        own.made = Some((own.version, text.clone()));
        Some(text)
    }

    async fn write(self: &Arc<Self>) -> StoreResult<()> {
        let version = self.own().version;
        let inner = Arc::clone(self);
        merge_patiently(&self.file, None, move |base: Base<'_>| inner.make(base)).await?;
        let mut own = self.own();
        own.written_version = own.written_version.max(version);
        own.written_at = Some(Instant::now());
        Ok(())
    }

    /// Writes later what waits, and looks at what was swapped out until it can go.
    fn start_tending(self: &Arc<Self>) {
        let mut own = self.own();
        if !own.is_tended {
            own.is_tended = true;
            tokio::spawn(tend(Arc::downgrade(self)));
        }
    }

    fn stop_tending_if_done(&self, has_asides: bool) -> bool {
        let mut own = self.own();
        own.is_tended = has_asides || own.version > own.written_version;
        !own.is_tended
    }
}

async fn tend(inner: Weak<Inner>) {
    loop {
        let wait = match inner.upgrade() {
            None => return,
            Some(inner) if inner.is_waiting() => WRITE_INTERVAL,
            Some(_) => SETTLE_TIME,
        };
        tokio::time::sleep(wait).await;
        let Some(inner) = inner.upgrade() else { return };
        if let Err(error) = inner.write().await {
            tracing::warn!(%error, "the roster cannot be written; it is tried again");
        }
        let file = Arc::clone(&inner.file);
        let has_asides = blocking(move || Ok(file.has_asides())).await.unwrap_or(false);
        if inner.stop_tending_if_done(has_asides) {
            return;
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_waiting() {
            // The last report must not be lost with the process; there is nobody left to tell an error to.
            let _ = self.file.merge(None, &mut |base| self.make(base));
        }
    }
}
