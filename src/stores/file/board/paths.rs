//! The paths of the board's files, and the kinds of file names. Accesses no files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::domain::task::TaskId;

/// The board's folder in the workspace.
pub const BOARD_FOLDER: &str = ".tasks";
/// The sidecar lock of the board.
pub const LOCK_FILE: &str = ".lock";
/// The largest task number ever assigned, as plain text.
pub const WATERMARK_FILE: &str = ".highwatermark";
/// The numbers of recently deleted tasks, one a line. A missing task that is neither here nor being deleted was not deleted by
/// Brigade.
pub const DELETIONS_FILE: &str = ".deletions";
/// The size of [`DELETIONS_FILE`] above which its older half is removed, in bytes.
pub const DELETIONS_BYTES_MAX: u64 = 64 * 1024;
/// The quarantine for invalid task files.
pub const QUARANTINE_FOLDER: &str = ".spoiled";
/// The time that an invalid file must stay unchanged before it is quarantined. Until then a program may still be writing it.
pub const QUARANTINE_AFTER: Duration = Duration::from_secs(2);
/// The largest record of tasks created in one call, in bytes.
pub const RECORD_BYTES_MAX: u64 = 256 << 20;

const DELETED_PREFIX: &str = ".deleted-";
const BATCH_PREFIX: &str = ".batch-";
const APPLIED_PREFIX: &str = ".applied-";

/// The board's folder of a workspace.
pub(super) fn board_folder(workspace: &Path) -> PathBuf {
    workspace.join(BOARD_FOLDER)
}

/// The name of a deleted task's file while other tasks name the task.
pub(super) fn deleted_name(id: TaskId) -> String {
    format!("{DELETED_PREFIX}{}", id.0)
}

/// The name of the record of a call that creates several tasks, while some may be missing on the board.
pub(super) fn batch_name(first: TaskId, last: TaskId) -> String {
    format!("{BATCH_PREFIX}{}-{}", first.0, last.0)
}

/// The name of such a record while all its tasks are on the board but may not be durable.
pub(super) fn applied_name(first: TaskId, last: TaskId) -> String {
    format!("{APPLIED_PREFIX}{}-{}", first.0, last.0)
}

/// The kind of a file in the board's folder, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BoardFileKind {
    /// A task.
    Task(TaskId),
    /// A name like a task file's without a valid number.
    Stray,
    /// A deleted task that other tasks may still name.
    Deleted(TaskId),
    /// The record of tasks created together.
    Record {
        /// True if all of them are on the board.
        is_applied: bool,
    },
    /// A file that the board does not read.
    Other,
}

pub(super) fn kind_of(name: &str) -> BoardFileKind {
    if let Some(rest) = name.strip_prefix("task_") {
        return match TaskId::from_file_name(name) {
            Some(id) => BoardFileKind::Task(id),
            None if rest.ends_with(".json") => BoardFileKind::Stray,
            None => BoardFileKind::Other,
        };
    }
    if let Some(digits) = name.strip_prefix(DELETED_PREFIX) {
        return digits.parse().map_or(BoardFileKind::Other, |id| BoardFileKind::Deleted(TaskId(id)));
    }
    match (name.starts_with(BATCH_PREFIX), name.starts_with(APPLIED_PREFIX)) {
        (true, _) => BoardFileKind::Record { is_applied: false },
        (_, true) => BoardFileKind::Record { is_applied: true },
        _ => BoardFileKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn board_file_name_has_one_meaning() {
        for (name, meaning) in [
            ("task_7.json", BoardFileKind::Task(TaskId(7))),
            ("task_07.json", BoardFileKind::Stray),
            ("task_7.json.bak", BoardFileKind::Other),
            (&deleted_name(TaskId(7)), BoardFileKind::Deleted(TaskId(7))),
            (".deleted-x", BoardFileKind::Other),
            (&batch_name(TaskId(7), TaskId(9)), BoardFileKind::Record { is_applied: false }),
            (&applied_name(TaskId(7), TaskId(9)), BoardFileKind::Record { is_applied: true }),
            (LOCK_FILE, BoardFileKind::Other),
            (WATERMARK_FILE, BoardFileKind::Other),
            (QUARANTINE_FOLDER, BoardFileKind::Other),
            (".tmp-1-2-3", BoardFileKind::Other),
        ] {
            assert_eq!(kind_of(name), meaning, "{name}");
        }
    }
}
