//! The files in a task's place that git ignores and that the task made.
//!
//! The files of the set-up are told by a list of stamps in the place, which is written when the set-up ends. Times alone would not tell
//! them: a folder that a task moves keeps the times of its files, and a clock can jump. Without a list, all files are the task's.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::fs::Metadata;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::branch::recorded_base;
use super::command::{GitOutput, RepoPath, path_of, text_of};
use super::files::{self, failed};
use crate::domain::agent::path_pattern;
use crate::domain::git::caches;
use crate::domain::git::ignored_files::{FileList, FileSize};
use crate::platform::open_for_appending;
use crate::platform::reading::{self, AllowedKinds};
use crate::ports::RepositoryError;

/// The option of `git status` that lists ignored files too. A folder with nothing else counts as one.
pub(super) const WITH_IGNORED: &str = "--ignored=traditional";
/// The file, in a worktree, with the stamps of the ignored files that its set-up made.
const SETUP_LIST_FILE: &str = ".agent/made-by-setup";
/// The most entries of folders that a walk visits. A place with more is kept.
const ENTRIES_MAX: usize = 200_000;
/// The most folders for which git is asked if they are builds. All others are the task's.
const LOOKUPS_MAX: usize = 500;
/// The bytes of a stamp in the list.
const STAMP_BYTES: usize = size_of::<u64>();
/// The largest list that is read, in bytes.
const LIST_BYTES_MAX: u64 = (2 * ENTRIES_MAX * STAMP_BYTES) as u64;

/// A file, or an entry that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WorkFile {
    /// Relative to the place.
    pub path: PathBuf,
    pub bytes: u64,
    /// True if it is a plain file, and no link.
    pub is_plain: bool,
    /// True if a pattern of the setting `keep` names it.
    pub is_kept: bool,
}

impl WorkFile {
    /// An entry that cannot be read. It stays in the place.
    fn unread(path: PathBuf) -> Self {
        Self { path, bytes: 0, is_plain: false, is_kept: false }
    }
}

/// Returns the ignored entries in an output of [`RepoPath::changes`], and the number of the others.
pub(super) fn split_ignored(status: &GitOutput) -> (Vec<PathBuf>, usize) {
    let (ignored, changed): (Vec<_>, Vec<_>) = status.fields().partition(|entry| entry.starts_with(b"!! "));
    // The path of a folder ends with a slash.
    let path = |entry: &[u8]| path_of(entry[3..].strip_suffix(b"/").unwrap_or(&entry[3..]));
    (ignored.into_iter().map(path).collect(), changed.len())
}

/// Returns the entries of the top folder that have these files.
pub(super) fn summary(work: &[WorkFile]) -> FileList {
    let mut sizes: BTreeMap<String, u64> = BTreeMap::new();
    for WorkFile { path, bytes, .. } in work {
        let top = path.iter().next().map(|top| text_of(Path::new(top))).unwrap_or_default();
        let top = if path.iter().nth(1).is_some() { format!("{top}/") } else { top };
        *sizes.entry(top).or_default() += bytes;
    }
    FileList::of(sizes.into_iter().map(|(path, bytes)| FileSize { path, bytes }).collect())
}

/// A walk through the ignored files of a place.
pub(super) struct IgnoredWalk<'a> {
    /// The person's checkout.
    main: &'a RepoPath,
    at: &'a RepoPath,
    /// The patterns of the setting `keep`. They are stronger than the table of caches.
    keep: &'a [String],
    /// The commit that the task started from. Its ignore files name the folders of builds; those of the task could name any.
    base: Option<String>,
    /// The stamps of the files of the set-up.
    of_setup: HashSet<u64>,
    /// Folders that are caches, and others.
    caches: HashMap<PathBuf, bool>,
    entries_left: usize,
    lookups_left: usize,
}

impl<'a> IgnoredWalk<'a> {
    pub(super) fn new(main: &'a RepoPath, at: &'a RepoPath, keep: &'a [String]) -> Self {
        Self {
            main,
            at,
            keep,
            base: recorded_base(&at.work_tree),
            of_setup: setup_list(&at.work_tree).unwrap_or_default(),
            caches: HashMap::new(),
            entries_left: ENTRIES_MAX,
            lookups_left: LOOKUPS_MAX,
        }
    }

    /// Returns the files of the task among these ignored entries and below them, sorted. `is_ours` returns true for files of Brigade.
    pub(super) fn task_files(
        &mut self,
        entries: Vec<PathBuf>,
        is_ours: impl Fn(&Path) -> bool,
    ) -> Result<Vec<WorkFile>, RepositoryError> {
        let mut work = Vec::new();
        let mut paths: Vec<(PathBuf, bool)> = Vec::new();
        for entry in entries.into_iter().filter(|entry| !is_ours(entry)) {
            let is_in_cache = self.is_below_cache(&entry)?;
            paths.push((entry, is_in_cache));
        }
        while let Some((path, is_in_cache)) = paths.pop() {
            let file = self.at.work_tree.join(&path);
            let metadata = file.symlink_metadata();
            let Some(entries_left) = self.entries_left.checked_sub(1) else {
                work.push(WorkFile::unread(path));
                break;
            };
            self.entries_left = entries_left;
            match metadata {
                Ok(metadata) if metadata.is_dir() => {
                    let is_cache = is_in_cache || self.is_cache_folder(&path)?;
                    let can_match = |pattern: &String| path_pattern::can_match_below(&text_of(&path), pattern);
                    if is_cache && !self.keep.iter().any(can_match) {
                        continue;
                    }
                    match reading::list(&file, self.entries_left) {
                        Ok(entries) => {
                            paths.extend(entries.iter().map(|entry| (path.join(entry.file_name()), is_cache)));
                        }
                        Err(_) => work.push(WorkFile::unread(path)),
                    }
                }
                Ok(metadata) if metadata.is_file() || metadata.is_symlink() => {
                    let name = path.file_name().unwrap_or_default().to_string_lossy();
                    let is_cache = is_in_cache || caches::is_cache_file(&name) || caches::is_cache_folder(&name);
                    let matches = |pattern: &String| path_pattern::matches_at_or_above(&text_of(&path), pattern);
                    let is_kept = self.keep.iter().any(matches);
                    if (is_kept || !is_cache) && !self.of_setup.contains(&stamp(&path, &metadata)) {
                        work.push(WorkFile { path, bytes: metadata.len(), is_plain: metadata.is_file(), is_kept });
                    }
                }
                // A pipe, a socket or a device has no content. A missing file was removed meanwhile.
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(_) => work.push(WorkFile::unread(path)),
            }
        }
        work.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Ok(work)
    }

    /// Returns true if a folder above the entry is a cache.
    fn is_below_cache(&mut self, entry: &Path) -> Result<bool, RepositoryError> {
        for above in entry.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
            if self.is_cache_folder(above)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_cache_folder(&mut self, path: &Path) -> Result<bool, RepositoryError> {
        if let Some(is_cache) = self.caches.get(path) {
            return Ok(*is_cache);
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let tag = self.at.work_tree.join(path).join(caches::TAG_FILE);
        let is_cache = caches::is_cache_folder(&name)
            || files::bytes(&tag).is_some_and(|text| text.starts_with(caches::TAG_SIGNATURE))
            || caches::may_be_build_folder(&name) && self.is_build_folder(path, &name)?;
        self.caches.insert(path.to_owned(), is_cache);
        Ok(is_cache)
    }

    /// Returns true if the task started with a tool's file beside the folder, and with an ignore file there or in the top folder that names
    /// the folder.
    fn is_build_folder(&mut self, path: &Path, name: &str) -> Result<bool, RepositoryError> {
        let (Some(base), Some(lookups_left)) = (&self.base, self.lookups_left.checked_sub(1)) else { return Ok(false) };
        self.lookups_left = lookups_left;
        let above = path.parent().unwrap_or(Path::new(""));
        let of_base = |path: &Path| [OsString::from(format!("{base}:")), path.into()].into_iter().collect::<OsString>();
        let list = ["ls-tree", "--name-only", "-z"].map(OsString::from).into_iter().chain([of_base(above)]);
        let beside: Vec<String> = self.main.git(list).run()?.fields().map(|field| text_of(&path_of(field))).collect();
        if !caches::is_build_folder(name, &beside) {
            return Ok(false);
        }
        for (folder, path) in [(Path::new(""), text_of(path)), (above, name.to_owned())] {
            let file = of_base(&folder.join(".gitignore"));
            let output = self.main.git(["cat-file".into(), "blob".into(), file]).run()?;
            if output.code == 0 && caches::names_folder(&String::from_utf8_lossy(&output.out), &path) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Records the ignored files that exist in a place when its set-up ends, unless an earlier call did. Later files are the task's.
pub(super) fn record_setup_files(main: &RepoPath, at: &RepoPath, keep: &[String]) -> Result<(), RepositoryError> {
    if setup_list(&at.work_tree).is_some() {
        return Ok(());
    }
    let (ignored, _) = split_ignored(&at.changes(&[WITH_IGNORED])?);
    let files = IgnoredWalk::new(main, at, keep).task_files(ignored, |_| false)?;
    let stamps = files.iter().filter_map(|file| stamp_at(&at.work_tree, &file.path)).collect::<Vec<u64>>();
    write_list(&at.work_tree, &stamps)
}

/// Records that a place has no files of a set-up, unless an earlier call recorded some.
pub(super) fn record_no_setup_files(root: &Path) -> Result<(), RepositoryError> {
    if setup_list(root).is_some() { Ok(()) } else { write_list(root, &[]) }
}

/// Adds a file that a later set-up wrote again, if there is a list.
pub(super) fn add_setup_file(root: &Path, path: &Path) -> Result<(), RepositoryError> {
    let list = root.join(SETUP_LIST_FILE);
    let Some(stamp) = stamp_at(root, path).filter(|_| list.symlink_metadata().is_ok()) else { return Ok(()) };
    let added = open_for_appending(&list).and_then(|mut list| list.write_all(&stamp.to_le_bytes()));
    added.map_err(|error| failed("write", &list, &error))
}

fn write_list(root: &Path, stamps: &[u64]) -> Result<(), RepositoryError> {
    let bytes: Vec<u8> = stamps.iter().flat_map(|stamp| stamp.to_le_bytes()).collect();
    files::replace_bytes(&root.join(SETUP_LIST_FILE), &bytes)
}

fn setup_list(root: &Path) -> Option<HashSet<u64>> {
    let bytes = reading::read(&root.join(SETUP_LIST_FILE), AllowedKinds::FilesHere, LIST_BYTES_MAX).ok()?;
    let stamps = bytes.chunks_exact(STAMP_BYTES).filter_map(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
    Some(stamps.collect())
}

fn stamp_at(root: &Path, path: &Path) -> Option<u64> {
    Some(stamp(path, &root.join(path).symlink_metadata().ok()?))
}

/// A hash of a file's path, inode, size and last change. Programs cannot set this time. Another version of the hash only makes all
/// files the task's.
fn stamp(path: &Path, metadata: &Metadata) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    (metadata.ino(), metadata.len(), metadata.ctime(), metadata.ctime_nsec()).hash(&mut hasher);
    hasher.finish()
}
