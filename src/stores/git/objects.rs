//! Objects that nobody can exchange any more: teammates' commands write objects, and git does not look whether what it reads is what it is
//! named by. What counts is packed, each object looked at; packs are not theirs to write, and git reads packs first.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{MutexGuard, PoisonError};

use super::Inner;
use super::worktrees::failed;
use crate::ports::{Durability, RepositoryError};

/// In the checkout's git folder: packs that are not looked at yet.
const FOLDER: &str = "brigade-objects";
/// Objects that are named because something is wrong with them; more are not looked for.
const WRONG_MAX: usize = 20;
/// The files of a pack; the last one is what makes git see it.
const ENDS: [&str; 3] = ["rev", "pack", "idx"];

impl Inner {
    /// Keeps all objects that are in no pack, so that no command can change what was there before the team. Says what is wrong with which.
    pub(super) fn keep_all(&self) -> Result<Vec<String>, RepositoryError> {
        let ids = self.loose()?;
        let mut wrong = Vec::new();
        self.keep_each(&ids, &mut wrong)?;
        if wrong.is_empty() && !ids.is_empty() {
            self.main.git(["prune-packed", "--quiet"]).ok()?;
        }
        *self.kept() = self.ref_at(&self.target_ref())?;
        Ok(wrong)
    }

    /// Keeps these, but for those with which something is wrong: they are found by halves, and keep the others from nothing.
    fn keep_each(&self, ids: &[String], wrong: &mut Vec<String>) -> Result<(), RepositoryError> {
        if ids.is_empty() || wrong.len() >= WRONG_MAX {
            return Ok(());
        }
        let Some(why) = self.keep(&[], ids.concat())? else { return Ok(()) };
        let (first, second) = ids.split_at(ids.len() / 2);
        if first.is_empty() {
            wrong.push(format!("the git object {} is left as it is: {why}", ids[0].trim_end()));
            return Ok(());
        }
        self.keep_each(first, wrong)?;
        self.keep_each(second, wrong)
    }

    /// Keeps what the branch that is merged into got since by others than the team. Says what is wrong with it.
    pub(super) fn keep_target(&self, onto: &str) -> Result<Option<String>, RepositoryError> {
        let before = self.kept().clone();
        let beyond = before.filter(|before| before != onto);
        let wrong = beyond.map_or(Ok(None), |before| self.keep_commit(onto, &before))?;
        if wrong.is_none() {
            *self.kept() = Some(onto.to_owned());
        }
        Ok(wrong)
    }

    /// Keeps what a commit has beyond another one. Says what is wrong with it.
    pub(super) fn keep_commit(&self, commit: &str, beyond: &str) -> Result<Option<String>, RepositoryError> {
        self.keep(&["--revs"], format!("{commit}\n^{beyond}\n"))
    }

    pub(super) fn kept(&self) -> MutexGuard<'_, Option<String>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, how: &[&str], what: String) -> Result<Option<String>, RepositoryError> {
        // Each checkout has its own: teams in several of one repository do not meet.
        let folder = self.main.git_dir.join(FOLDER);
        // Of a process that was killed.
        super::removal::remove_folder(&folder)?;
        fs::create_dir(&folder).map_err(|error| failed("make", &folder, &error))?;
        let base = folder.join("pack");
        let start = ["pack-objects", "--quiet", "--non-empty", "--delta-base-offset"];
        let base_text = super::text_of(&base);
        let packed = self.main.git(start.iter().chain(how).chain(&[base_text.as_str()])).input(what).run()?;
        let in_words = |wrong: &str| wrong.trim().replace('\n', "; ");
        let wrong = if packed.code == 0 {
            let wrong = self.take_in(&base, packed.line().trim())?;
            wrong.map(|wrong| format!("git objects are not what they are named by: {}", in_words(&wrong)))
        } else {
            let reason = in_words(&packed.err);
            let error = RepositoryError::Failed { action: "pack what is to be kept".to_owned(), reason };
            if error.is_general() {
                super::removal::remove_folder(&folder)?;
                return Err(error);
            }
            Some(format!("git {error}"))
        };
        super::removal::remove_folder(&folder)?;
        Ok(wrong)
    }

    /// Looks at each object of a pack and has git see it; without a name there was nothing to pack.
    fn take_in(&self, base: &Path, name: &str) -> Result<Option<String>, RepositoryError> {
        if name.is_empty() {
            return Ok(None);
        }
        let made = |end: &str| PathBuf::from(format!("{}-{name}.{end}", base.display()));
        let looked = self.main.git(["verify-pack", &super::text_of(&made("idx"))]).run()?;
        if looked.code != 0 {
            return Ok(Some(looked.err));
        }
        let packs = self.main.common_dir.join("objects/pack");
        for end in ENDS {
            let (from, to) = (made(end), packs.join(format!("pack-{name}.{end}")));
            // Older gits make no `rev` file.
            if from.exists() {
                fs::rename(&from, &to).map_err(|error| failed("rename", &from, &error))?;
            }
        }
        if self.durability == Durability::Power {
            fs::File::open(&packs)
                .and_then(|packs| packs.sync_all())
                .map_err(|error| failed("sync", &packs, &error))?;
        }
        Ok(None)
    }

    /// The ids of the objects that are files of their own, each a line; see gitrepository-layout(5).
    fn loose(&self) -> Result<Vec<String>, RepositoryError> {
        let objects = self.main.common_dir.join("objects");
        let mut ids = Vec::new();
        for entry in fs::read_dir(&objects).map_err(|error| failed("read", &objects, &error))?.flatten() {
            let start = entry.file_name().to_string_lossy().into_owned();
            if start.len() != 2 || !is_hex(&start) {
                continue;
            }
            for file in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
                let rest = file.file_name().to_string_lossy().into_owned();
                if is_hex(&rest) {
                    ids.push(format!("{start}{rest}\n"));
                }
            }
        }
        Ok(ids)
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
