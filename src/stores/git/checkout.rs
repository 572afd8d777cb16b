//! The person's checkout: brought along when a merge moves its branch. What the person has in it is never touched, whether git knows of it
//! or not. Where that is in the way the checkout is put on a branch of its own at the commit it is at, so that nothing that is committed
//! there undoes a merge; it comes back once nothing is in the way. What a checkout that was broken off left half done is told from what the
//! person wrote by its contents.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use super::commits::named;
use super::index::{REPOSITORY_MODE, is_occupied};
use super::merges::modes;
use super::run::{At, git, path_of, paths_ended_by, pathspec, text_of};
use super::worktrees::POINTER_FILE;
use super::{CHECKOUT_REF, Inner, checked_out, small};
use crate::domain::merge::FOLLOWS_AGAIN;
use crate::ports::RepositoryError;

/// What the branches begin with that the person's checkout is put on.
const YOURS: &str = "brigade-yours";
/// How many of them there may be.
const YOURS_MAX: u32 = 99;
/// How long somebody else's git may have the index to itself, and the pause between two looks.
const INDEX_WAIT: Duration = Duration::from_secs(2);
const INDEX_PAUSE: Duration = Duration::from_millis(10);
/// Paths that one call of git is given.
const PATHS_MAX: usize = 500;

/// What may lie about in a checkout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// Whole files alone: nothing was killed since.
    Whole,
    /// Also files that were being written when the process before was killed or the disk was full.
    Torn,
}

/// Where the person's checkout stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stand {
    /// On the branch that is merged into.
    Here,
    /// On this branch, where it was put because it could not follow.
    Parted(String),
    /// Wherever the person had it go.
    Elsewhere,
}

impl Stand {
    /// Where the checkout `main` stands, of which merges go into `into`.
    pub(super) fn of(main: &At, into: &str) -> Result<Self, RepositoryError> {
        Ok(match checked_out(main)? {
            Some(branch) if branch == into => Self::Here,
            Some(branch) if parted_from(&branch) == Some(into) => Self::Parted(branch),
            _ => Self::Elsewhere,
        })
    }
}

/// The `number`-th branch that a checkout of `into` is put on.
fn yours(into: &str, number: u32) -> String {
    let end = if number > 1 { format!("-{number}") } else { String::new() };
    format!("{YOURS}{end}/{into}")
}

/// The branch that a checkout was on before it was put on `branch`.
pub(super) fn parted_from(branch: &str) -> Option<&str> {
    let (end, into) = branch.strip_prefix(YOURS)?.split_once('/')?;
    let is_number = end.strip_prefix('-').is_some_and(|number| number.parse::<u32>().is_ok());
    (end.is_empty() || is_number).then_some(into)
}

/// Why a branch is not to be moved by anybody else: a person is at work on it where a merge would be undone unsaid. The person's checkout in
/// `main` itself is brought along.
pub(super) fn barrier(main: &At, into: &str) -> Option<String> {
    let name = format!("refs/heads/{into}");
    let is_rebased = |git_dir: &Path| {
        ["rebase-merge", "rebase-apply"].into_iter().any(|folder| {
            small::text(&git_dir.join(folder).join("head-name")).is_some_and(|head| head.trim_end() == name)
        })
    };
    let rebase =
        |place: &str| format!("a rebase of {into} is under way {place}: git rebase --continue, or git rebase --abort");
    if is_rebased(&main.git_dir) {
        return Some(rebase("here"));
    }
    let linked = fs::read_dir(main.common_dir.join("worktrees")).into_iter().flatten().flatten();
    let head = format!("ref: {name}");
    for other in linked.map(|entry| entry.path()).chain([main.common_dir.clone()]) {
        let is_rebased = is_rebased(&other);
        let has_it = small::text(&other.join("HEAD")).is_some_and(|text| text.trim_end() == head);
        if other == main.git_dir || !(is_rebased || has_it) {
            continue;
        }
        let place = small::text(&other.join(POINTER_FILE)).unwrap_or_else(|| other.display().to_string());
        let place = place.trim_end().trim_end_matches("/.git");
        // One that was removed and is still listed is in nobody's way, nor is a repository without a checkout.
        if !Path::new(place).is_dir() || (other == main.common_dir && is_bare(&other)) {
            continue;
        }
        return Some(if is_rebased {
            rebase(&format!("in {place}"))
        } else {
            format!(
                "{into} is checked out in {place} too, where a commit would undo what is merged: have another branch there (git switch --detach)"
            )
        });
    }
    None
}

/// Whether a repository has no checkout of its own.
fn is_bare(git_dir: &Path) -> bool {
    let git_dir = text_of(git_dir);
    let said = git(["--git-dir", &git_dir, "rev-parse", "--is-bare-repository"]).run();
    said.is_ok_and(|said| said.line() == "true")
}

/// What git says is in the way: the files, where it names any.
fn in_words(said: &str) -> String {
    let names: Vec<PathBuf> = said.split('\'').skip(1).step_by(2).map(PathBuf::from).collect();
    if names.is_empty() { said.trim().replace('\n', " ") } else { format!("in the way: {}", named(&names)) }
}

/// How a person has their checkout follow again.
pub(super) fn how_to_follow(branch: &str, into: &str) -> String {
    format!(
        "Commit, stash or take back what you changed; once nothing is in the way the next merge or launch switches back to {into} by itself. By hand: git switch {into}, and git merge {branch} where you committed"
    )
}

impl Inner {
    /// Brings the person's checkout to where its branch is, if it is behind because of a merge. Where something of the person's is in the
    /// way it is put on a branch of its own, and the text says so.
    pub(super) fn follow(&self) -> Result<Option<String>, RepositoryError> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let behind = self.ref_at(CHECKOUT_REF)?;
        if behind.is_some() && *left == Left::Torn && self.is_index_locked() {
            // Whether it is half done can be mended only once no git can be at work; until then nothing can be committed there.
            let lock = self.main.git_dir.join("index.lock");
            return Ok(Some(format!(
                "{} was moved by a merge, and the workspace's files cannot be brought along while {} is there: a git is at work, or was killed. Once none is, remove that file; the next merge or launch goes on",
                self.into,
                lock.display()
            )));
        }
        let told = match Stand::of(&self.main, &self.into)? {
            Stand::Here => match behind {
                None => None,
                Some(old) => {
                    let new = self.commit_of(&self.target_ref())?;
                    let why = self.bring(&old, &new, *left)?;
                    self.settle(&old, why)?
                }
            },
            // Only where it was coming back can anything of ours be half done.
            Stand::Parted(branch) => self.come_back(&branch, if behind.is_some() { *left } else { Left::Whole })?,
            Stand::Elsewhere => {
                // Whoever checks it out again has it as it is then.
                self.main.git(["update-ref", "-d", CHECKOUT_REF]).ok()?;
                None
            }
        };
        *left = Left::Whole;
        Ok(told)
    }

    /// Whether another git has the index to itself and does not give it back, as one that was killed.
    fn is_index_locked(&self) -> bool {
        let (lock, began) = (self.main.git_dir.join("index.lock"), Instant::now());
        while lock.symlink_metadata().is_ok() {
            if began.elapsed() > INDEX_WAIT {
                return true;
            }
            thread::sleep(INDEX_PAUSE);
        }
        false
    }

    /// Notes that the checkout was brought along from `old`; where that could not be, puts it on a branch of its own and says so.
    pub(super) fn settle(&self, old: &str, why: Option<String>) -> Result<Option<String>, RepositoryError> {
        let told = match why {
            None => None,
            Some(why) => match self.part(old, &why)? {
                None => {
                    let (old, into) = (&old[..old.len().min(12)], &self.into);
                    return Ok(Some(format!(
                        "{into} was moved by a merge, and the workspace's files are still those of {old} ({why}): a commit made there now would undo the merge"
                    )));
                }
                parted => parted,
            },
        };
        self.main.git(["update-ref", "-d", CHECKOUT_REF]).ok()?;
        Ok(told)
    }

    /// Brings the person's files from one commit to the other; says what is in the way where something is, and changes nothing then.
    pub(super) fn bring(&self, old: &str, new: &str, left: Left) -> Result<Option<String>, RepositoryError> {
        let mut why = self.in_the_way(old, new)?;
        if why.is_some() && self.put_back(old, new, left)? {
            why = self.in_the_way(old, new)?;
        }
        if why.is_some() {
            return Ok(why);
        }
        self.bring_free(old, new)
    }

    /// The same, of files that nothing is in the way of.
    pub(super) fn bring_free(&self, old: &str, new: &str) -> Result<Option<String>, RepositoryError> {
        let said = self.main.git(["read-tree", "-m", "-u", old, new]).run()?;
        Ok((said.code != 0).then(|| in_words(&said.err)))
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

    /// Puts the checkout on a branch of its own at `old`, with all that is in it, and says so; nothing where that cannot be.
    pub(super) fn part(&self, old: &str, why: &str) -> Result<Option<String>, RepositoryError> {
        let into = &self.into;
        for branch in (1..=YOURS_MAX).map(|number| yours(into, number)) {
            let name = format!("refs/heads/{branch}");
            let former = self.ref_at(&name)?;
            let is_free = match &former {
                None => true,
                // Of another time: taken again where the person committed nothing there that is not merged.
                Some(former) => self.is_ancestor(former, old)? && !self.is_taken(&branch)?,
            };
            let former = former.unwrap_or_default();
            if !is_free || self.main.git(["update-ref", &name, old, &former]).run()?.code != 0 {
                continue;
            }
            let reason = format!("brigade: {into} is moved by a merge");
            if self.main.git(["symbolic-ref", "-m", &reason, "HEAD", &name]).run()?.code == 0 {
                let how = how_to_follow(&branch, into);
                return Ok(Some(format!(
                    "{into} is moved by a merge that your checkout cannot follow ({why}). It stays as it is and is on the branch {branch} now, so that no commit of yours undoes the merge. {how}"
                )));
            }
            self.main.git(["update-ref", "-d", &name, old]).ok()?;
            return Ok(None);
        }
        Ok(None)
    }

    /// Brings a checkout that was put on `branch` back to where it was, where nothing is in the way and nothing was committed there, and
    /// says so.
    pub(super) fn come_back(&self, branch: &str, left: Left) -> Result<Option<String>, RepositoryError> {
        let name = format!("refs/heads/{branch}");
        let (old, new) = (self.commit_of(&name)?, self.commit_of(&self.target_ref())?);
        let is_busy = [
            "MERGE_HEAD",
            "CHERRY_PICK_HEAD",
            "REVERT_HEAD",
            "rebase-merge",
            "rebase-apply",
            "sequencer",
            "BISECT_LOG",
        ]
        .into_iter()
        .any(|file| self.main.git_dir.join(file).exists());
        if is_busy || !self.is_ancestor(&old, &new)? {
            return Ok(None);
        }
        if left == Left::Whole {
            if self.in_the_way(&old, &new)?.is_some() {
                return Ok(None);
            }
            self.main.git(["update-ref", CHECKOUT_REF, &old]).ok()?;
        }
        if self.bring(&old, &new, left)?.is_some() {
            self.main.git(["update-ref", "-d", CHECKOUT_REF]).ok()?;
            return Ok(None);
        }
        let reason = format!("brigade: back to {}", self.into);
        self.main.git(["symbolic-ref", "-m", &reason, "HEAD", &self.target_ref()]).ok()?;
        // What somebody committed there this moment stays.
        self.main.git(["update-ref", "-d", &name, &old]).run()?;
        self.main.git(["update-ref", "-d", CHECKOUT_REF]).ok()?;
        Ok(Some(format!("your checkout is on {}{FOLLOWS_AGAIN}", self.into)))
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
        let Ok(there) = fs::read(self.main.work_tree.join(path)) else { return Ok(false) };
        for blob in blobs {
            let said = self.main.git(["cat-file", "blob", blob]).run()?;
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
