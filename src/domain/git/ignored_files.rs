//! The files of a task that git ignores. No commit has them, so Brigade moves them into the workspace or keeps their worktree.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::domain::text::units::bytes;

/// The files that a list names. It gives only the number of the others.
pub const NAMED_MAX: usize = 5;

/// The files that a completed task made and git ignores, without those of its set-up and without caches.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IgnoredFiles {
    /// The files that the setting `keep` moved into the workspace, with their paths there.
    #[serde(skip_serializing_if = "FileList::is_empty")]
    pub moved: FileList,
    /// The entries of the worktree's top folder that have other files. The worktree is kept.
    #[serde(skip_serializing_if = "FileList::is_empty")]
    pub left: FileList,
    /// Files that the setting `keep` names and that were not moved: at most [`NAMED_MAX`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_moved: Vec<NotMovedFile>,
}

/// A file that was not moved into the workspace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NotMovedFile {
    /// Its path in the worktree.
    pub path: String,
    /// The reason, for people.
    pub reason: String,
}

/// A sentence without a full stop.
impl fmt::Display for NotMovedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot keep {}: {}", self.path.escape_debug(), self.reason.escape_debug())
    }
}

impl IgnoredFiles {
    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.moved.is_empty() && self.left.is_empty()
    }

    /// Returns a sentence without a full stop for each file that was not moved.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        // Others may have written the file with the list.
        self.not_moved.iter().take(NAMED_MAX).map(ToString::to_string)
    }
}

/// The names of some files, and the number of the others.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FileList {
    /// At most [`NAMED_MAX`] entries. The path of a folder ends with `/`.
    pub entries: Vec<FileSize>,
    /// The number of other entries.
    #[serde(skip_serializing_if = "is_zero")]
    pub more: usize,
}

/// A file or folder and its size.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FileSize {
    /// The path.
    pub path: String,
    /// The size in bytes. That of a folder is the size of these files in it.
    pub bytes: u64,
}

impl FileList {
    /// Returns the list of these entries, the largest first.
    pub fn of(mut entries: Vec<FileSize>) -> Self {
        entries.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.path.cmp(&b.path)));
        let more = entries.len().saturating_sub(NAMED_MAX);
        entries.truncate(NAMED_MAX);
        Self { entries, more }
    }

    /// Returns true if it has no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.more == 0
    }
}

impl fmt::Display for FileList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Others may have written the file with the list.
        let shown = self.entries.iter().take(NAMED_MAX);
        let texts = shown.map(|FileSize { path, bytes: size }| format!("{} ({})", path.escape_debug(), bytes(*size)));
        f.write_str(&texts.collect::<Vec<_>>().join(", "))?;
        if self.more > 0 { write!(f, " and {} more", self.more) } else { Ok(()) }
    }
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_names_largest_files_and_counts_others() {
        let file = |path: &str, bytes| FileSize { path: path.to_owned(), bytes };
        let entries = (1..=6).map(|number| file(&format!("{number}.bin"), number)).chain([file("out/", 2048)]);
        let list = FileList::of(entries.collect());
        assert_eq!(
            list.to_string(),
            "out/ (2.0 KiB), 6.bin (6 bytes), 5.bin (5 bytes), 4.bin (4 bytes), 3.bin (3 bytes) and 2 more"
        );
        let hostile = FileList::of(vec![file("a\u{1b}[2J\n", 0)]);
        assert_eq!(hostile.to_string(), "a\\u{1b}[2J\\n (0 bytes)");
        let text = serde_json::to_string(&list).unwrap();
        assert_eq!(serde_json::from_str::<FileList>(&text).unwrap(), list);
    }
}
