//! Invalid task files that another program may still be writing.

use std::time::Duration;

use crate::stores::file::stable_value::StableValue;
use crate::stores::fs::FileStamp;

use super::paths::QUARANTINE_AFTER;

/// An invalid file, and since when it is unchanged. It counts as invalid once it was unchanged for [`QUARANTINE_AFTER`]: before, another
/// program may still be writing it.
pub(super) struct SuspectFile {
    stamp: StableValue<FileStamp>,
    /// The reason why it is invalid.
    pub reason: String,
}

impl SuspectFile {
    /// A file that was read now. One that was not written for [`QUARANTINE_AFTER`] counts as unchanged since then. Otherwise, a command
    /// that reads the board only once would never quarantine a file.
    pub fn new(stamp: FileStamp, reason: String, now_ns: i128) -> Self {
        let settled_ns = i128::try_from(QUARANTINE_AFTER.as_nanos()).unwrap_or(i128::MAX);
        let is_old = now_ns - stamp.modified_ns > settled_ns;
        let age = if is_old { QUARANTINE_AFTER } else { Duration::ZERO };
        Self { stamp: StableValue::with_age(stamp, age), reason }
    }

    /// Records that the file was read again.
    pub fn observe(&mut self, stamp: FileStamp, reason: String) {
        self.stamp.observe(stamp);
        self.reason = reason;
    }

    /// Returns true if no program is writing it.
    pub fn is_settled(&self) -> bool {
        self.stamp.age() >= QUARANTINE_AFTER
    }

    /// Restarts the time that it must be unchanged.
    pub fn restart(&mut self) {
        self.stamp.restart();
    }
}
