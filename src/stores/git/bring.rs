//! Brings the files of the person's checkout from one commit to another, where nothing of the person's is in the way. What a git that was
//! broken off left half done is told from what the person wrote by its contents.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::Inner;
use super::commits::named;
use super::index::{REPOSITORY_MODE, is_occupied};
use super::merges::modes;
use super::run::{OUTPUT_BYTES_MAX, path_of, paths_ended_by, pathspec};
use crate::platform::reading::{self, Accept};
use crate::ports::RepositoryError;

/// Paths that one call of git is given.
const PATHS_MAX: usize = 500;
/// How long somebody else's git may have the index to itself, and the pause between two looks.
const INDEX_WAIT: Duration = Duration::from_secs(2);
const INDEX_PAUSE: Duration = Duration::from_millis(10);

/// What may lie about in a checkout that is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// Whole files alone: nothing was killed since.
    Whole,
    /// Also files that were being written when the process before was killed or the disk was full.
    Torn,
}

/// What came of bringing the checkout along.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Brought {
    /// It holds what it should.
    All,
    /// Something of the person's is in the way, in words: nothing was changed.
    Nothing(String),
    /// Git failed on the way, in words: what it wrote lies about.
    Part(String),
}

/// What git says is in the way: the files, where it names any.
fn in_words(said: &str) -> String {
    // "error: Entry 'f.txt' not uptodate. Cannot merge." and its like, of paths from the top folder on.
    let quoted = |line: &str| line.split('\'').nth(1).filter(|name| !name.starts_with('/')).map(PathBuf::from);
    let names: Vec<PathBuf> = said.lines().filter_map(quoted).collect();
    if names.is_empty() { said.trim().replace('\n', " ") } else { format!("in the way: {}", named(&names)) }
}

impl Inner {
    /// Brings the person's files from one commit to the other.
    pub(super) fn bring(&self, old: &str, new: &str, left: Left) -> Result<Brought, RepositoryError> {
        let mut why = self.in_the_way(old, new)?;
        if why.is_some() && self.put_back(old, new, left)? {
            why = self.in_the_way(old, new)?;
        }
        match why {
            Some(why) => Ok(Brought::Nothing(why)),
            None => self.bring_free(old, new),
        }
    }

    /// The same, of files that nothing is in the way of.
    pub(super) fn bring_free(&self, old: &str, new: &str) -> Result<Brought, RepositoryError> {
        let why = match self.main.git(["read-tree", "-m", "-u", old, new]).run() {
            Ok(said) if said.code == 0 => return Ok(Brought::All),
            Ok(said) => in_words(&said.err),
            Err(error) => error.to_string(),
        };
        // Git writes files first and its index last: what it wrote goes again, as far as a full disk lets it.
        Ok(match self.put_back(old, new, Left::Torn) {
            Ok(true) if self.in_the_way(old, new)?.is_none() => Brought::Nothing(why),
            _ => Brought::Part(why),
        })
    }

    /// What of the person's keeps the files from being brought from one commit to the other.
    pub(super) fn in_the_way(&self, old: &str, new: &str) -> Result<Option<String>, RepositoryError> {
        // Who has the index now tells of it below.
        self.is_index_locked();
        // It exits 1 where files differ, which is the next question.
        self.main.git(["update-index", "-q", "--refresh"]).run()?;
        let said = self.main.git(["read-tree", "-m", "-u", "--dry-run", old, new]).run()?;
        if said.code != 0 {
            return Ok(Some(in_words(&said.err)));
        }
        let unknown = self.unknown_in_the_way(old, new)?;
        Ok((!unknown.is_empty()).then(|| format!("git does not keep {}, which the merge has", named(&unknown))))
    }

    /// What git does not keep, ignored or not, and would write over or remove.
    fn unknown_in_the_way(&self, old: &str, new: &str) -> Result<Vec<PathBuf>, RepositoryError> {
        let options = ["diff-tree", "-r", "-z", "--raw", "--no-renames", "--diff-filter=ADT"];
        let said = self.main.git(options.iter().chain(&[old, new])).ok()?;
        let (mut unknown, mut there) = (Vec::new(), BTreeSet::new());
        let mut fields = said.fields();
        while let (Some(head), Some(path)) = (fields.next(), fields.next()) {
            let ([before, _], path) = (modes(head), path_of(path));
            if before == REPOSITORY_MODE {
                // All that is in the folder of a submodule is the person's: git looks at none of it.
                unknown.extend(is_occupied(&self.main.work_tree.join(&path)).then_some(path));
            } else if !head.ends_with(b"D") {
                there.extend(self.first_that_is_there(&path));
            }
        }
        for paths in there.into_iter().collect::<Vec<_>>().chunks(PATHS_MAX) {
            let options = ["ls-files", "--others", "-z", "--"].map(OsString::from);
            let paths = paths.iter().map(|path| pathspec("", path));
            unknown.extend(self.main.git(options.into_iter().chain(paths)).ok()?.fields().map(path_of));
        }
        Ok(unknown)
    }

    /// What lies where git would write `path`: there, or in place of a folder above it.
    fn first_that_is_there(&self, path: &Path) -> Option<PathBuf> {
        let above: Vec<&Path> = path.ancestors().filter(|above| !above.as_os_str().is_empty()).collect();
        for part in above.into_iter().rev() {
            let metadata = self.main.work_tree.join(part).symlink_metadata().ok()?;
            if part == path || !metadata.is_dir() {
                return Some(part.to_owned());
            }
        }
        None
    }

    /// Whether another git has the index to itself and does not give it back, as one that was killed.
    pub(super) fn is_index_locked(&self) -> bool {
        let (lock, began) = (self.main.git_dir.join("index.lock"), Instant::now());
        while lock.symlink_metadata().is_ok() {
            if began.elapsed() > INDEX_WAIT {
                return true;
            }
            thread::sleep(INDEX_PAUSE);
        }
        false
    }

    /// Puts files back to `old` that hold what a merge since then put there: git writes the files first and its index last, and
    /// was ended in between. Says whether there were any.
    fn put_back(&self, old: &str, new: &str, left: Left) -> Result<bool, RepositoryError> {
        if self.is_index_locked() {
            return Ok(false);
        }
        let staged = self.main.git(["diff-index", "--cached", "--name-only", "--no-renames", "-z", old]).ok()?;
        let staged: HashSet<PathBuf> = staged.fields().map(path_of).collect();
        let mut written = self.written_between(old, new)?;
        written.retain(|path, _| {
            // A folder on the way that is a link leads to what is none of git's.
            let is_file = self.first_that_is_there(path).is_some_and(|there| {
                there == *path && self.main.work_tree.join(path).symlink_metadata().is_ok_and(|file| file.is_file())
            });
            // Git is told of paths by lines here.
            is_file && !staged.contains(path) && !path.as_os_str().as_encoded_bytes().contains(&b'\n')
        });
        let paths = paths_ended_by(b'\n', written.keys());
        let hashes = self.main.git(["hash-object", "--stdin-paths"]).input(paths).ok()?.line();
        let mut is_any = false;
        for ((path, blobs), hash) in written.iter().zip(hashes.lines()) {
            let is_ours =
                blobs.iter().any(|blob| blob == hash) || (left == Left::Torn && self.is_begun(path, blobs)?);
            if is_ours && !self.is_at(old, path, hash)? {
                self.restore(old, path)?;
                is_any = true;
            }
        }
        Ok(is_any)
    }

    /// What the commits between put into each file they changed.
    fn written_between(&self, old: &str, new: &str) -> Result<BTreeMap<PathBuf, Vec<String>>, RepositoryError> {
        let range = format!("{old}..{new}");
        let options = ["log", "--format=", "--raw", "-z", "--no-abbrev", "--no-renames", "-m", "--first-parent"];
        let said = self.main.git(options.iter().chain(&[range.as_str()])).ok()?;
        let (mut written, mut fields) = (BTreeMap::<PathBuf, Vec<String>>::new(), said.fields());
        while let Some(head) = fields.next() {
            // `:<mode> <mode> <blob> <blob> <kind>`, and the path.
            let Some(head) = head.trim_ascii_start().strip_prefix(b":") else { continue };
            if let (Some(blob), Some(path)) = (head.split(|byte| *byte == b' ').nth(3), fields.next()) {
                written.entry(path_of(path)).or_default().push(String::from_utf8_lossy(blob).into_owned());
            }
        }
        Ok(written)
    }

    /// Whether the file holds the beginning of one of these blobs and no more: nothing that would be lost with it.
    fn is_begun(&self, path: &Path, blobs: &[String]) -> Result<bool, RepositoryError> {
        let file = self.main.work_tree.join(path);
        let Ok(there) = reading::read(&file, Accept::FilesHere, OUTPUT_BYTES_MAX) else { return Ok(false) };
        for blob in blobs {
            // As a checkout would write it, with the line ends and filters of this path.
            let mut place = OsString::from("--path=");
            place.push(path);
            let call = ["cat-file", "--filters"].map(OsString::from).into_iter().chain([place, blob.into()]);
            let said = self.main.git(call).run()?;
            if said.code == 0 && said.out.starts_with(&there) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the file has this content in the commit.
    fn is_at(&self, commit: &str, path: &Path, hash: &str) -> Result<bool, RepositoryError> {
        Ok(self.blob_at(commit, path)?.is_some_and(|blob| blob == hash))
    }

    /// What the commit has at a path.
    fn blob_at(&self, commit: &str, path: &Path) -> Result<Option<String>, RepositoryError> {
        let mut name = OsString::from(format!("{commit}:"));
        name.push(path);
        let options = ["rev-parse", "--verify", "--quiet"].map(OsString::from);
        let said = self.main.git(options.into_iter().chain([name])).run()?;
        Ok((said.code == 0).then(|| said.line()))
    }

    /// Puts the file back to what the index has of it, which is what the commit has.
    fn restore(&self, commit: &str, path: &Path) -> Result<(), RepositoryError> {
        if self.blob_at(commit, path)?.is_some() {
            let options = ["checkout-index", "--force", "--index", "--"].map(OsStr::new);
            return self.main.git(options.iter().copied().chain([path.as_os_str()])).ok().map(drop);
        }
        let file = self.main.work_tree.join(path);
        fs::remove_file(&file).map_err(|error| RepositoryError::Failed {
            action: format!("remove {}", file.display()),
            reason: error.to_string(),
        })
    }
}
