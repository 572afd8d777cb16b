//! Merges: made without a checkout, accounted for line by line, verified in a scratch worktree by whoever asks, and then seen all at
//! once, by one transaction of refs.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

use super::bring::Brought;
use super::checkout::{Stand, barrier};
use super::commits::{message, named};
use super::index::REPOSITORY_MODE;
use super::run::{At, path_of, pathspec, text_of};
use super::worktrees::failed;
use super::{Inner, WORKTREES_FOLDER, identity};
use crate::domain::merge::{DROPS_TRAILER, Lines, short_commit, taken_out, unaccounted};
use crate::ports::{Assignment, Durability, Merge, MergeTry, Publish, RepositoryError, Worktree};

/// The most of a conflict's text that is handed on, in bytes.
const EVIDENCE_BYTES_MAX: usize = 6 * 1024;
/// Lines that a text names; more are counted.
const LINES_NAMED_MAX: usize = 20;

impl Inner {
    pub(super) fn merge(
        &self,
        worktree: &Worktree,
        assignment: &Assignment,
        summary: &str,
        tip: &str,
    ) -> Result<MergeTry, RepositoryError> {
        let _merging = self.merging();
        let [onto, work] = self.parties(tip)?;
        if let Some(wrong) = self.keep_target(&onto)? {
            return Ok(MergeTry::Refused(wrong));
        }
        let base = self.base(&onto, tip)?;
        if base == tip {
            return Ok(MergeTry::Nothing(onto));
        }
        let said = self.main.git(["merge-tree", "--write-tree", "--name-only", "-z", &onto, tip]).run()?;
        // The tree, the files in conflict, and behind an empty field what is for people.
        let mut fields = said.out.split(|byte| *byte == 0).take_while(|field| !field.is_empty());
        let tree = String::from_utf8_lossy(fields.next().unwrap_or_default()).trim().to_owned();
        match said.code {
            0 => {}
            1 => {
                return Ok(MergeTry::Refused(self.conflict(&onto, &tree, &fields.map(path_of).collect::<Vec<_>>())?));
            }
            _ => {
                let error = RepositoryError::Failed { action: "merge".to_owned(), reason: said.err.trim().to_owned() };
                if error.is_general() {
                    return Err(error);
                }
                return Ok(MergeTry::Refused(format!("git cannot merge the branch: {}", said.err.trim())));
            }
        }
        let subject = format!("Merge task {}: {}", assignment.task.0, assignment.subject);
        let call = self.main.git(["commit-tree", &tree, "-p", &onto, "-p", tip, "-F", "-"]);
        let made = call.input(message(&subject, summary, assignment)).variables(identity(assignment)).ok()?;
        let merge = Merge { onto, commit: made.line() };
        // From here on it is what it is: what is looked at is what is verified, and what is seen.
        if let Some(wrong) = self.keep_commit(&merge.commit, &merge.onto)? {
            return Ok(MergeTry::Refused(wrong));
        }
        // Where nobody else has merged meanwhile, the branch itself is what comes of it.
        let is_all_of_it = base == merge.onto && tree == work;
        Ok(match self.refusal(worktree, &merge.onto, [&base, tip, &tree], is_all_of_it)? {
            Some(refusal) => MergeTry::Refused(refusal),
            None => MergeTry::Made(merge),
        })
    }

    /// Why a merge of `tip` that comes to `tree` is not to be seen; the two parted at `base`.
    fn refusal(
        &self,
        worktree: &Worktree,
        onto: &str,
        [base, tip, tree]: [&str; 3],
        is_all_of_it: bool,
    ) -> Result<Option<String>, RepositoryError> {
        if let Some(refusal) = self.foreign(onto, tree)? {
            return Ok(Some(refusal));
        }
        let merges = self.main.git(["rev-list", "--min-parents=2", tip, &format!("^{onto}")]).ok()?.line();
        for commit in merges.lines() {
            if let Some(refusal) = self.own_merge(commit)? {
                return Ok(Some(refusal));
            }
        }
        if !is_all_of_it && let Some(refusal) = self.dropped(onto, tip, tree)? {
            return Ok(Some(refusal));
        }
        self.undone(worktree, base, onto, tip, tree)
    }

    /// The commit to merge into, and the tree of what is merged.
    fn parties(&self, tip: &str) -> Result<[String; 2], RepositoryError> {
        let names = [format!("{}^{{commit}}", self.target_ref()), format!("{tip}^{{tree}}")];
        let said = self.main.git(["rev-parse"].into_iter().chain(names.iter().map(String::as_str))).ok()?.line();
        let parties: Vec<String> = said.lines().map(str::to_owned).collect();
        parties.try_into().map_err(|_| RepositoryError::Failed {
            action: "merge".to_owned(),
            reason: format!("git does not say what {} and {tip} are", self.into),
        })
    }

    /// Where two commits parted; without a common past, the empty tree.
    pub(super) fn base(&self, ours: &str, theirs: &str) -> Result<String, RepositoryError> {
        let base = self.main.git(["merge-base", ours, theirs]).run()?;
        if base.code == 0 { Ok(base.line()) } else { Ok(self.main.git(["mktree"]).ok()?.line()) }
    }

    /// What a merge would change that no branch may.
    fn foreign(&self, onto: &str, tree: &str) -> Result<Option<String>, RepositoryError> {
        let said = self.main.git(["diff-tree", "-r", "-z", "--raw", "--no-renames", onto, tree]).ok()?;
        let (mut controls, mut repositories, mut impossible) = (Vec::new(), Vec::new(), Vec::new());
        let mut fields = said.fields();
        while let (Some(head), Some(path)) = (fields.next(), fields.next()) {
            let ([before, after], path) = (modes(head), path_of(path));
            let is_repository = before != REPOSITORY_MODE && after == REPOSITORY_MODE;
            if self.is_control(&path) {
                controls.push(path);
            } else if is_repository {
                repositories.push(path);
            } else if text_of(&path).split('/').any(is_impossible) {
                impossible.push(path);
            }
        }
        Ok(if !controls.is_empty() {
            Some(format!(
                "your branch changes what says how the team runs, which is the person's: {}. Undo that: git restore --staged --source={} -- FILE, and commit",
                named(&controls),
                self.into
            ))
        } else if !repositories.is_empty() {
            Some(format!(
                "your branch has repositories within: {}. Take them out: git rm --cached -- FOLDER, and commit; or remove their .git to keep the files",
                named(&repositories)
            ))
        } else {
            (!impossible.is_empty())
                .then(|| format!("your branch has paths that git checks out nowhere: {}", named(&impossible)))
        })
    }

    fn is_control(&self, path: &Path) -> bool {
        // Where names differ by case alone, some systems have one file.
        let path = PathBuf::from(path.as_os_str().to_ascii_lowercase());
        let own = [".agent", WORKTREES_FOLDER].map(Path::new);
        let mut controls = self.control_files.iter().map(PathBuf::as_path).chain(own);
        controls.any(|control| path.starts_with(control.as_os_str().to_ascii_lowercase()))
    }

    /// Refuses to undo unsaid what others merged since the task was begun: a branch that took it in and dropped it again, as a rebase can.
    fn undone(
        &self,
        worktree: &Worktree,
        base: &str,
        onto: &str,
        tip: &str,
        tree: &str,
    ) -> Result<Option<String>, RepositoryError> {
        let Some(begun) = self.begun_at(worktree) else { return Ok(None) };
        if begun == onto || begun == base || !self.is_ancestor(&begun, onto)? {
            return Ok(None);
        }
        let lost = taken_out(&self.diff(&begun, onto)?, &self.diff(onto, tree)?);
        let said = format!("--format=%(trailers:key={DROPS_TRAILER},valueonly)");
        let range = format!("{onto}..{tip}");
        if lost.is_empty() || !self.main.git(["log", &said, &range]).ok()?.line().trim().is_empty() {
            return Ok(None);
        }
        Ok(Some(format!(
            "your branch takes out lines that others added since you began:\n{}\nPut them back. Where it must be so, say why in a commit's message: git commit --amend --no-edit --trailer '{DROPS_TRAILER}: WHY'",
            shown(&lost)
        )))
    }

    /// What is wrong with a merge that the branch has: it leaves out lines of either side and does not say so.
    fn own_merge(&self, commit: &str) -> Result<Option<String>, RepositoryError> {
        let parents = self.main.git(["rev-parse", &format!("{commit}^@")]).ok()?.line();
        let [first, second] = parents.lines().collect::<Vec<_>>()[..] else {
            return Ok(Some(format!("the merge {commit} has more than two parents: merge one branch at a time")));
        };
        let trailer = format!("--format=%(trailers:key={DROPS_TRAILER},valueonly)");
        if !self.main.git(["log", "-1", &trailer, commit]).ok()?.line().trim().is_empty() {
            return Ok(None);
        }
        let lost = self.lost(second, first, commit)?;
        Ok((!lost.is_empty()).then(|| {
            format!(
                "your merge {} leaves out lines that one side added:\n{}\nPut them back. Where it must be so, say why in the merge's message: git commit --amend --no-edit --trailer '{DROPS_TRAILER}: WHY'",
                short_commit(commit),
                shown(&lost)
            )
        }))
    }

    /// Refuses what git merged without a conflict and yet not with all lines, as a merge driver of the config can have it.
    fn dropped(&self, onto: &str, tip: &str, tree: &str) -> Result<Option<String>, RepositoryError> {
        let lost = self.lost(onto, tip, tree)?;
        Ok((!lost.is_empty()).then(|| {
            format!(
                "merging it would drop lines, though git sees no conflict:\n{}\nMerge {} into your branch yourself (git merge {}), with all lines of both sides",
                shown(&lost),
                self.into,
                self.into
            )
        }))
    }

    /// The lines that are in neither `merged` nor accounted for, when `theirs` is merged into `ours`.
    fn lost(&self, ours: &str, theirs: &str, merged: &str) -> Result<Vec<Vec<u8>>, RepositoryError> {
        let base = self.base(ours, theirs)?;
        let (by_them, by_merge) = (self.diff(&base, theirs)?, self.diff(ours, merged)?);
        if by_them == by_merge {
            return Ok(Vec::new());
        }
        Ok(unaccounted(&by_them, &self.diff(&base, ours)?, &by_merge))
    }

    pub(super) fn diff(&self, from: &str, to: &str) -> Result<Lines, RepositoryError> {
        let options =
            ["diff-tree", "-r", "-p", "-U0", "--text", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color"];
        Ok(Lines::of_diff(&self.main.git(options.iter().chain(&[from, to])).ok()?.out))
    }

    /// A conflict, for who is to resolve it.
    fn conflict(&self, onto: &str, tree: &str, files: &[PathBuf]) -> Result<String, RepositoryError> {
        let options = ["diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames"];
        let start = options.into_iter().chain([onto, tree, "--"]).map(OsString::from);
        let paths = files.iter().map(|file| pathspec("", file));
        let diff = self.main.git(start.chain(paths)).ok()?.out;
        let shown = &diff[..diff.len().min(EVIDENCE_BYTES_MAX)];
        let rest = if shown.len() < diff.len() { "\n[...]" } else { "" };
        let into = &self.into;
        Ok(format!(
            "your branch and {into} conflict in {}. Merge {into} into your branch (git merge {into}), keep what both sides added, git add, git commit, and report again.\n{}{rest}",
            named(files),
            String::from_utf8_lossy(shown)
        ))
    }

    fn scratch(&self) -> PathBuf {
        self.main.work_tree.join(WORKTREES_FOLDER).join(format!("{}-merge", self.team))
    }

    /// Throws away what an earlier process verified merges in.
    pub(super) fn remove_scratch(&self) -> Result<(), RepositoryError> {
        let scratch = self.scratch();
        match self.at(&scratch) {
            Some(at) => self.discard(&at),
            None => Ok(()),
        }
    }

    pub(super) fn check_out(&self, merge: &Merge) -> Result<PathBuf, RepositoryError> {
        let _merging = self.merging();
        let scratch = self.scratch();
        if let Some(at) = self.at(&scratch)
            && scratch.is_dir()
            && self.unsound(&at).is_none()
            && renew(&at, &merge.commit).is_ok()
        {
            return Ok(scratch);
        }
        self.remove_scratch()?;
        let root = text_of(&scratch);
        let _listing = self.listing();
        self.main.git(["worktree", "add", "--quiet", "--force", "--force", "--detach", &root, &merge.commit]).ok()?;
        Ok(scratch)
    }

    pub(super) fn publish(&self, merge: &Merge, assignment: &Assignment) -> Result<Publish, RepositoryError> {
        let _merging = self.merging();
        let Merge { onto, commit } = merge;
        let (into, merged) = (self.target_ref(), self.merged_ref(assignment));
        if let Some(reason) = barrier(&self.main, &self.into) {
            return Err(RepositoryError::Failed { action: format!("move the branch {}", self.into), reason });
        }
        if self.commit_of(&into)? != *onto {
            return Ok(Publish::Moved);
        }
        let readied = self.ready(onto, commit)?;
        let orders = format!("start\nupdate {into} {commit} {onto}\nupdate {merged} {commit}\nprepare\ncommit\n");
        let reason = format!("brigade: merge {}", assignment.identifier());
        let said = self.main.git(["update-ref", "--create-reflog", "-m", &reason, "--stdin"]).input(orders).run()?;
        // Git gives the refs their new names one by one: a failure may be of the rest alone.
        let is_moved = said.code == 0 || self.commit_of(&into)? == *commit;
        if !is_moved {
            self.unready(&readied, onto)?;
            if self.commit_of(&into)? != *onto {
                return Ok(Publish::Moved);
            }
            let action = format!("move the branch {}", self.into);
            return Err(RepositoryError::Failed { action, reason: said.err.trim().to_owned() });
        }
        if self.durability == Durability::Power {
            self.sync_ref(&into)?;
        }
        *self.kept() = Some(commit.clone());
        // The branch is moved, whatever becomes of the checkout.
        let followed = match readied {
            Readied::Free => self.bring_free(onto, commit).and_then(|brought| self.settle(onto, brought)),
            Readied::Stuck(why) => self.settle(onto, Brought::Nothing(why)),
            Readied::Behind => self.follow(),
            Readied::Parted(told) => Ok(Some(told)),
        };
        Ok(Publish::Done(followed.unwrap_or_else(|error| Some(error.to_string()))))
    }

    /// Has the person's checkout be such that a commit made there undoes no merge that moves its branch from `onto` to `commit`, whoever is
    /// killed when.
    fn ready(&self, onto: &str, commit: &str) -> Result<Readied, RepositoryError> {
        if Stand::of(&self.main, &self.into)? != Stand::Here || self.behind().is_some() {
            return Ok(Readied::Behind);
        }
        let why = self.in_the_way(onto, commit)?;
        if let Some(why) = &why
            && let Some(told) = self.part(onto, why)?
        {
            return Ok(Readied::Parted(told));
        }
        // Before the branch moves: afterwards nobody could tell what the person changed from what the merge did.
        self.note_behind(onto)?;
        Ok(why.map_or(Readied::Free, Readied::Stuck))
    }

    /// Takes back what was readied for a merge onto `onto` that is not made: the checkout is where it was.
    fn unready(&self, readied: &Readied, onto: &str) -> Result<(), RepositoryError> {
        match (readied, Stand::of(&self.main, &self.into)?) {
            (Readied::Parted(_), Stand::Parted(branch)) => self.rejoin(&branch, onto),
            (Readied::Free | Readied::Stuck(_), _) => self.forget_behind(),
            (Readied::Parted(_) | Readied::Behind, _) => Ok(()),
        }
    }

    /// Has a ref that was moved survive a power cut. Git would sync all that it moves with it; of the merge's mark the board needs nothing.
    fn sync_ref(&self, name: &str) -> Result<(), RepositoryError> {
        let path = self.main.common_dir.join(name);
        let folder = path.parent().unwrap_or(&self.main.common_dir);
        let synced = [&path, folder].into_iter().try_for_each(|path| File::open(path)?.sync_all());
        synced.map_err(|error| failed("sync", &path, &error))
    }
}

/// How the person's checkout stands to a merge that is about to be seen.
enum Readied {
    /// It can be brought along.
    Free,
    /// This is in the way, and there is no branch to put it on.
    Stuck(String),
    /// It was behind before, or is not on the branch.
    Behind,
    /// It was put on a branch of its own, which is to be told.
    Parted(String),
}

/// The modes before and after in a line of raw output, `:<mode> <mode> <object> <object> <kind>`; see git-diff-tree(1).
pub(super) fn modes(head: &[u8]) -> [String; 2] {
    let text = String::from_utf8_lossy(head);
    let mut modes = text.trim_start_matches(':').split(' ').map(str::to_owned);
    [modes.next().unwrap_or_default(), modes.next().unwrap_or_default()]
}

/// Has the scratch worktree hold a commit and nothing else, but for what git ignores: builds go on from there.
fn renew(at: &At, commit: &str) -> Result<(), RepositoryError> {
    at.git(["checkout", "--quiet", "--force", "--detach", commit]).ok()?;
    // Also what has become a repository of its own.
    at.git(["clean", "-f", "-f", "-d", "-q"]).ok().map(drop)
}

/// Whether git refuses to check out what has this name, on any system: it would be a repository's own folder, or lead out of it.
fn is_impossible(name: &str) -> bool {
    // Some file systems do not see these.
    let is_seen = |c: &char| !matches!(c, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}');
    let plain: String = name.chars().filter(is_seen).collect::<String>().to_ascii_lowercase();
    let plain = plain.trim_end_matches([' ', '.']);
    [".", ".."].contains(&name) || [".git", "git~1"].contains(&plain) || plain.starts_with(".git:")
}

fn shown(lines: &[Vec<u8>]) -> String {
    let more = lines.len().saturating_sub(LINES_NAMED_MAX);
    let more = if more > 0 { format!("\n  and {more} more") } else { String::new() };
    let shown: Vec<String> =
        lines.iter().take(LINES_NAMED_MAX).map(|line| format!("  {}", String::from_utf8_lossy(line))).collect();
    format!("{}{more}", shown.join("\n"))
}
