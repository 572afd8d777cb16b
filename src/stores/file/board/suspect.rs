//! Invalid task files that another program may still be writing.

use tokio::time::Instant;

use crate::stores::fs::FileStamp;

use super::paths::QUARANTINE_AFTER;

/// An invalid file, and since when it is unchanged. It counts as invalid once it was unchanged for [`QUARANTINE_AFTER`]: before, another
/// program may still be writing it.
#[derive(Debug, Clone)]
pub(super) struct SuspectFile {
    stamp: FileStamp,
    since: Instant,
    /// The reason why it is invalid.
    pub reason: String,
}

impl SuspectFile {
    /// A file that was read now. `before` is the suspect of an earlier read.
    pub fn new(stamp: FileStamp, reason: String, before: Option<&Self>, now_ns: i128) -> Self {
        let since = match before {
            Some(before) if before.stamp == stamp => before.since,
            _ => suspect_since(&stamp, now_ns),
        };
        Self { stamp, since, reason }
    }

    /// Returns true if no program is writing it.
    pub fn is_settled(&self) -> bool {
        self.since.elapsed() >= QUARANTINE_AFTER
    }

    /// Restarts the time that it must be unchanged.
    pub fn restart(&mut self) {
        self.since = Instant::now();
    }
}

/// The time since which a suspect counts as unchanged: now, or [`QUARANTINE_AFTER`] ago if it was not written since. Without the
/// second case, a command that reads the board only once would never quarantine a file.
fn suspect_since(stamp: &FileStamp, now_ns: i128) -> Instant {
    let now = Instant::now();
    let settled = i128::try_from(QUARANTINE_AFTER.as_nanos()).unwrap_or(i128::MAX);
    let is_old = now_ns - stamp.modified_ns > settled;
    if is_old { now.checked_sub(QUARANTINE_AFTER).unwrap_or(now) } else { now }
}
