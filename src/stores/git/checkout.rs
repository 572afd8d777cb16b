//! The person's checkout: brought along when a merge moves its branch. What the person has in it is never touched, whether git knows of it
//! or not. Where that is in the way the checkout is put on a branch of its own at the commit it is at, so that nothing that is committed
//! there undoes a merge; it comes back once nothing is in the way. What a checkout that was broken off left half done is told from what the
//! person wrote by its contents.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::commits::named;
use super::run::At;
use super::worktrees::POINTER_FILE;
use super::{CHECKOUT_REF, Inner, checked_out, small};
use crate::ports::RepositoryError;

/// What the branches begin with that the person's checkout is put on.
const YOURS: &str = "brigade-yours";
/// How many of them there may be.
const YOURS_MAX: u32 = 9;
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
    for folder in ["rebase-merge", "rebase-apply"] {
        if small::text(&main.git_dir.join(folder).join("head-name")).is_some_and(|head| head.trim_end() == name) {
            return Some(format!("a rebase of {into} is under way here: git rebase --continue, or git rebase --abort"));
        }
    }
    let linked = fs::read_dir(main.common_dir.join("worktrees")).into_iter().flatten().flatten();
    let others = linked.map(|entry| entry.path()).chain([main.common_dir.clone()]);
    let head = format!("ref: {name}");
    let has_it = |other: &PathBuf| {
        *other != main.git_dir && small::text(&other.join("HEAD")).is_some_and(|text| text.trim_end() == head)
    };
    let other = others.into_iter().find(has_it)?;
    let place = small::text(&other.join(POINTER_FILE)).unwrap_or_else(|| other.display().to_string());
    let place = place.trim_end().trim_end_matches("/.git");
    // One that was removed and is still listed is in nobody's way.
    Path::new(place).is_dir().then(|| {
        format!(
            "{into} is checked out in {place} too, where a commit would undo what is merged: have another branch there (git switch --detach)"
        )
    })
}

/// What git says is in the way: the files, where it names any.
fn in_words(said: &str) -> String {
    let names: Vec<String> = said.split('\'').skip(1).step_by(2).map(str::to_owned).collect();
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
    pub(super) fn follow(&self, left: Left) -> Result<Option<String>, RepositoryError> {
        match Stand::of(&self.main, &self.into)? {
            Stand::Here => {
                let Some(old) = self.ref_at(CHECKOUT_REF)? else { return Ok(None) };
                let new = self.commit_of(&self.target_ref())?;
                let why = self.bring(&old, &new, left)?;
                self.settle(&old, why)
            }
            Stand::Parted(branch) => {
                // Only where it was coming back can anything of ours be half done.
                let was_coming = self.ref_at(CHECKOUT_REF)?.is_some();
                self.come_back(&branch, if was_coming { left } else { Left::Whole })
            }
            Stand::Elsewhere => {
                // Whoever checks it out again has it as it is then.
                self.main.git(["update-ref", "-d", CHECKOUT_REF]).ok()?;
                Ok(None)
            }
        }
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
        // It exits 1 where files differ, which is the next question.
        self.main.git(["update-index", "-q", "--refresh"]).run()?;
        let said = self.main.git(["read-tree", "-m", "-u", "--dry-run", old, new]).run()?;
        if said.code != 0 {
            return Ok(Some(in_words(&said.err)));
        }
        let unknown = self.unknown_in_the_way(old, new)?;
        Ok((!unknown.is_empty()).then(|| format!("git does not keep {}, which the merge has", named(&unknown))))
    }

    /// What git does not keep, ignored or not, and would write over.
    fn unknown_in_the_way(&self, old: &str, new: &str) -> Result<Vec<String>, RepositoryError> {
        let options = ["diff-tree", "-r", "-z", "--name-only", "--no-renames", "--diff-filter=A"];
        let added = self.main.git(options.iter().chain(&[old, new])).ok()?;
        let mut there = BTreeSet::new();
        for path in added.fields() {
            let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
            for part in ends.map(|end| &path[..end]) {
                let Ok(metadata) = self.main.work_tree.join(part).symlink_metadata() else { break };
                if part == path || !metadata.is_dir() {
                    there.insert(part.to_owned());
                    break;
                }
            }
        }
        let mut unknown = Vec::new();
        for paths in there.into_iter().collect::<Vec<_>>().chunks(PATHS_MAX) {
            let paths = paths.iter().map(|path| format!(":(top,literal){path}"));
            let options = ["ls-files", "--others", "-z", "--"].map(str::to_owned);
            unknown.extend(self.main.git(options.into_iter().chain(paths)).ok()?.fields());
        }
        Ok(unknown)
    }

    /// Puts the checkout on a branch of its own at `old`, with all that is in it, and says so; nothing where that cannot be.
    pub(super) fn part(&self, old: &str, why: &str) -> Result<Option<String>, RepositoryError> {
        let into = &self.into;
        for branch in (1..=YOURS_MAX).map(|number| yours(into, number)) {
            let name = format!("refs/heads/{branch}");
            if self.main.git(["update-ref", &name, old, ""]).run()?.code != 0 {
                // There is one: of another time, with commits of the person's.
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
        Ok(Some(format!("your checkout is on {} again, with all merges", self.into)))
    }

    /// Puts files back to `old` that hold what a merge since then put there: git writes the files first and its index last, and
    /// was ended in between. Says whether there were any.
    fn put_back(&self, old: &str, new: &str, left: Left) -> Result<bool, RepositoryError> {
        if self.main.git_dir.join("index.lock").exists() {
            // Perhaps a git is at work.
            return Ok(false);
        }
        let staged: HashSet<String> = self
            .main
            .git(["diff-index", "--cached", "--name-only", "--no-renames", "-z", old])
            .ok()?
            .fields()
            .collect();
        let mut written = self.written_between(old, new)?;
        written.retain(|path, _| {
            let is_file = fs::symlink_metadata(self.main.work_tree.join(path)).is_ok_and(|file| file.is_file());
            // Git is told of paths by lines here.
            is_file && !staged.contains(path) && !path.contains('\n')
        });
        let paths: String = written.keys().map(|path| format!("{path}\n")).collect();
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
    fn written_between(&self, old: &str, new: &str) -> Result<BTreeMap<String, Vec<String>>, RepositoryError> {
        let range = format!("{old}..{new}");
        let options = ["log", "--format=", "--raw", "-z", "--no-abbrev", "--no-renames", "-m", "--first-parent"];
        let said = self.main.git(options.iter().chain(&[range.as_str()])).ok()?;
        let (mut written, mut fields) = (BTreeMap::<String, Vec<String>>::new(), said.fields());
        while let Some(head) = fields.next() {
            // `:<mode> <mode> <blob> <blob> <kind>`, and the path.
            let Some(head) = head.trim_start().strip_prefix(':').map(str::to_owned) else { continue };
            if let (Some(blob), Some(path)) = (head.split(' ').nth(3), fields.next()) {
                written.entry(path).or_default().push(blob.to_owned());
            }
        }
        Ok(written)
    }

    /// Whether the file holds the beginning of one of these blobs and no more: nothing that would be lost with it.
    fn is_begun(&self, path: &str, blobs: &[String]) -> Result<bool, RepositoryError> {
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
    fn is_at(&self, commit: &str, path: &str, hash: &str) -> Result<bool, RepositoryError> {
        let said = self.main.git(["rev-parse", "--verify", "--quiet", &format!("{commit}:{path}")]).run()?;
        Ok(said.code == 0 && said.line() == hash)
    }

    /// Puts the file back to what the index has of it, which is what the commit has.
    fn restore(&self, commit: &str, path: &str) -> Result<(), RepositoryError> {
        let is_there =
            self.main.git(["rev-parse", "--verify", "--quiet", &format!("{commit}:{path}")]).run()?.code == 0;
        if is_there {
            return self.main.git(["checkout-index", "--force", "--index", "--", path]).ok().map(drop);
        }
        let file = self.main.work_tree.join(path);
        fs::remove_file(&file).map_err(|error| RepositoryError::Failed {
            action: format!("remove {}", file.display()),
            reason: error.to_string(),
        })
    }
}
