//! Where the board's things lie and what their names mean. It touches no file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::domain::task::TaskId;

/// The board's folder in the workspace.
pub const BOARD_FOLDER: &str = ".tasks";
/// The sidecar lock of the board.
pub const LOCK_FILE: &str = ".lock";
/// The largest number ever given, as plain text.
pub const WATERMARK_FILE: &str = ".highwatermark";
/// The numbers of the tasks deleted last, a line each: what is in neither place was not deleted by Brigade.
pub const DELETIONS_FILE: &str = ".deletions";
/// The most of them that is kept, in bytes; with more, the older half goes.
pub const DELETIONS_BYTES_MAX: u64 = 64 * 1024;
/// Where files go that are no tasks.
pub const SPOILED_FOLDER: &str = ".spoiled";
/// How long a file must stay the same before it counts as spoiled rather than being written.
pub const SPOILED_AFTER: Duration = Duration::from_secs(2);
/// The largest record of tasks created in one call.
pub const RECORD_BYTES_MAX: u64 = 256 << 20;

const DELETED_PREFIX: &str = ".deleted-";
const BATCH_PREFIX: &str = ".batch-";
const APPLIED_PREFIX: &str = ".applied-";

/// The board's folder of a workspace.
pub(super) fn board_folder(workspace: &Path) -> PathBuf {
    workspace.join(BOARD_FOLDER)
}

/// The name a task's file has from its deletion until nobody names it any more.
pub(super) fn deleted_name(id: TaskId) -> String {
    format!("{DELETED_PREFIX}{}", id.0)
}

/// The name of the record of a call that creates several tasks: some may be missing on the board.
pub(super) fn batch_name(first: TaskId, last: TaskId) -> String {
    format!("{BATCH_PREFIX}{}-{}", first.0, last.0)
}

/// The same once all of them were put on the board, and until they are durable there.
pub(super) fn applied_name(first: TaskId, last: TaskId) -> String {
    format!("{APPLIED_PREFIX}{}-{}", first.0, last.0)
}

/// What a name in the board's folder says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// A task.
    Task(TaskId),
    /// A name like a task's that is nobody's.
    Stray,
    /// A deleted task whose references are being pruned.
    Deleted(TaskId),
    /// The record of tasks created together.
    Record {
        /// Whether all of them were put on the board.
        is_applied: bool,
    },
    /// Nothing the board reads.
    Other,
}

pub(super) fn meaning_of(name: &str) -> Meaning {
    if let Some(rest) = name.strip_prefix("task_") {
        return match TaskId::from_file_name(name) {
            Some(id) => Meaning::Task(id),
            None if rest.ends_with(".json") => Meaning::Stray,
            None => Meaning::Other,
        };
    }
    if let Some(digits) = name.strip_prefix(DELETED_PREFIX) {
        return digits.parse().map_or(Meaning::Other, |id| Meaning::Deleted(TaskId(id)));
    }
    match (name.starts_with(BATCH_PREFIX), name.starts_with(APPLIED_PREFIX)) {
        (true, _) => Meaning::Record { is_applied: false },
        (_, true) => Meaning::Record { is_applied: true },
        _ => Meaning::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_means_one_thing() {
        for (name, meaning) in [
            ("task_7.json", Meaning::Task(TaskId(7))),
            ("task_07.json", Meaning::Stray),
            ("task_7.json.bak", Meaning::Other),
            (&deleted_name(TaskId(7)), Meaning::Deleted(TaskId(7))),
            (".deleted-x", Meaning::Other),
            (&batch_name(TaskId(7), TaskId(9)), Meaning::Record { is_applied: false }),
            (&applied_name(TaskId(7), TaskId(9)), Meaning::Record { is_applied: true }),
            (LOCK_FILE, Meaning::Other),
            (WATERMARK_FILE, Meaning::Other),
            (SPOILED_FOLDER, Meaning::Other),
            (".tmp-1-2-3", Meaning::Other),
        ] {
            assert_eq!(meaning_of(name), meaning, "{name}");
        }
    }
}
