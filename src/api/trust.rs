//! The record that board and mail of a workspace are the user's own.

use std::path::Path;

use crate::stores::trust::TrustStore;
use crate::stores::workspace::{BOARD_FOLDER, TEAM_FOLDER};

/// Records that board and mail of a workspace without either are the user's own: this process creates them now.
pub(super) fn record_if_new(folder: &Path) {
    let is_missing = |name: &str| folder.join(name).symlink_metadata().is_err();
    if is_missing(BOARD_FOLDER) && is_missing(TEAM_FOLDER) {
        record_own(folder);
    }
}

/// Records that board and mail are the user's own. Without it, the next launch lists them, and asks. A record that cannot be written
/// is only traced.
pub fn record_own(folder: &Path) {
    let store = TrustStore::of_user();
    if !store.is_own(folder)
        && let Err(error) = store.record_own(folder)
    {
        tracing::info!("cannot record the workspace: {error}");
    }
}
