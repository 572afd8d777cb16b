//! The copies of invalid versions, next to the file.

use std::path::Path;

use super::ExchangeFile;
use crate::ports::StoreResult;
use crate::stores::file::failed;

/// The part of a quarantined copy's name between the file's name and a number.
pub const QUARANTINE_SUFFIX: &str = ".malformed-";
/// The most quarantined copies of one file.
const QUARANTINED_COPIES_MAX: usize = 5;

impl ExchangeFile {
    /// The numbers of the quarantined copies, in order.
    fn quarantine_numbers(&self) -> StoreResult<Vec<u64>> {
        let names = self.files.list(&self.folder).map_err(failed("list", &self.folder))?;
        let number = |name: &String| name.strip_prefix(&self.name)?.strip_prefix(QUARANTINE_SUFFIX)?.parse().ok();
        let mut numbers: Vec<u64> = names.iter().filter_map(number).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn quarantine_name(&self, number: u64) -> String {
        format!("{}{QUARANTINE_SUFFIX}{number}", self.name)
    }

    /// The name of the next quarantined copy.
    pub(super) fn next_quarantine_name(&self) -> StoreResult<String> {
        Ok(self.quarantine_name(self.quarantine_numbers()?.last().copied().unwrap_or(0) + 1))
    }

    /// Renames an invalid version to the next quarantined copy.
    pub(super) fn quarantine(&self, from: &Path) -> StoreResult<()> {
        let numbers = self.quarantine_numbers()?;
        let copy = self.folder.join(self.next_quarantine_name()?);
        self.files.rename(from, &copy).map_err(failed("quarantine", &copy))?;
        tracing::warn!(file = %self.path().display(), copy = %copy.display(), "quarantined and replaced an invalid file");
        for old in numbers.iter().rev().skip(QUARANTINED_COPIES_MAX - 1) {
            // If this fails, the next call tries again.
            let _ = self.files.remove(&self.folder.join(self.quarantine_name(*old)));
        }
        Ok(())
    }
}
