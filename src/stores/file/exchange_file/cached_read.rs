//! Reads an exchange file and its displaced versions. A version is not parsed again while its fingerprint is known. Changes no file.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::ports::StoreResult;
use crate::stores::file::{failed, if_found};
use crate::stores::fs::FileStamp;

use super::displaced::{DisplacedName, FileContent, fingerprint};
use super::{EXCHANGE_FILE_BYTES_MAX, ExchangeFile, MergeState};

/// The most fingerprints in memory: those of the file, and of the versions that were displaced within one second.
const VALID_FINGERPRINTS_MAX: usize = 16;

/// A second write within this time may not change the stamp: clocks of file systems tick every 1 to 10 ms.
const STAMP_GRANULARITY: Duration = Duration::from_millis(50);

impl ExchangeFile {
    /// Returns true if every later write changes this stamp, because the clock of the file system has moved on.
    pub fn stamp_is_final(&self, stamp: FileStamp) -> bool {
        let granularity_ns = i128::try_from(STAMP_GRANULARITY.as_nanos()).unwrap_or(i128::MAX);
        stamp.modified_ns < self.files.now_ns() - granularity_ns
    }

    pub(super) fn displaced_files(&self, state: &MergeState) -> StoreResult<Vec<(String, DisplacedName)>> {
        let names = if_found("list", &state.displaced_folder, self.files.list(&state.displaced_folder))?;
        let named = |name: String| DisplacedName::parse(&self.name, &name).map(|entry| (name, entry));
        Ok(names.unwrap_or_default().into_iter().filter_map(named).collect())
    }

    pub(super) fn content(&self, path: &Path) -> StoreResult<Option<FileContent>> {
        self.read_content(path).map_err(failed("read", path))
    }

    pub(super) fn read_content(&self, path: &Path) -> io::Result<Option<FileContent>> {
        match self.files.read(path, 0, EXCHANGE_FILE_BYTES_MAX) {
            Ok((bytes, stamp)) => {
                let fingerprint = fingerprint(&bytes);
                Ok(Some(FileContent { fingerprint, is_valid: self.is_valid(fingerprint, &bytes), bytes, stamp }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                let stamp = self.files.stamp(path)?;
                let identity = format!("{} {} {}", stamp.bytes, stamp.modified_ns, stamp.inode);
                Ok(Some(FileContent {
                    bytes: Vec::new(),
                    fingerprint: fingerprint(identity.as_bytes()),
                    is_valid: false,
                    stamp,
                }))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns true if these bytes, with this fingerprint, are valid content.
    fn is_valid(&self, fingerprint: u64, bytes: &[u8]) -> bool {
        if self.valid_fingerprints.lock().contains(&fingerprint) {
            return true;
        }
        let is_valid = (self.is_valid)(bytes);
        if is_valid {
            self.remember_valid(fingerprint);
        }
        is_valid
    }

    pub(super) fn remember_valid(&self, fingerprint: u64) {
        let mut fingerprints = self.valid_fingerprints.lock();
        fingerprints.push_front(fingerprint);
        fingerprints.truncate(VALID_FINGERPRINTS_MAX);
    }
}
