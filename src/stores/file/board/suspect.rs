//! Invalid task files that another program may still be writing.

use std::time::Duration;

use crate::stores::file::stable_value::StableValue;
use crate::stores::fs::FileStamp;

use super::paths::QUARANTINE_AFTER;

/// A file with invalid content, and how long it has stayed unchanged. It is settled after [`QUARANTINE_AFTER`]. Before that, another
/// program may still be writing it.
pub(super) struct SuspectFile {
    stamp: StableValue<FileStamp>,
    /// The reason why it is invalid.
    pub reason: String,
}

impl SuspectFile {
    /// A file that was read now. If its last write is older than [`QUARANTINE_AFTER`], it is settled at once. Otherwise, a command that
    /// reads the board only once would never quarantine a file.
    pub fn new(stamp: FileStamp, reason: String, now_ns: i128) -> Self {
        let quarantine_after_ns = i128::try_from(QUARANTINE_AFTER.as_nanos()).unwrap_or(i128::MAX);
        let is_old = now_ns - stamp.modified_ns > quarantine_after_ns;
        let age = if is_old { QUARANTINE_AFTER } else { Duration::ZERO };
        Self { stamp: StableValue::with_age(stamp, age), reason }
    }

    /// Records that the file was read again.
    pub fn observe(&mut self, stamp: FileStamp, reason: String) {
        self.stamp.observe(stamp);
        self.reason = reason;
    }

    /// Returns true if the file has stayed unchanged for [`QUARANTINE_AFTER`].
    pub fn is_settled(&self) -> bool {
        self.stamp.age() >= QUARANTINE_AFTER
    }

    /// Starts the wait for unchanged content again.
    pub fn restart(&mut self) {
        self.stamp.restart();
    }
}
