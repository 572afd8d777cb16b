//! Protects important objects from exchange. Teammates' commands can write object files, and git does not compare an object with its name.
//! So these objects are packed and each is checked. Commands cannot write packs, and git reads packs first.

use std::fs;
use std::path::{Path, PathBuf};

use super::command::failure;
use super::files::{failed, remove_folder};
use super::team_branch::TeamBranch;
use crate::ports::{Durability, RepositoryError};

/// The folder, in the checkout's git folder, for packs that are not checked yet.
const FOLDER: &str = "brigade-objects";
/// The most invalid objects that are reported. The search stops there.
const PROBLEMS_MAX: usize = 20;
/// The most loose objects. Git itself packs a repository above some thousand.
const LOOSE_OBJECTS_MAX: usize = 1_000_000;
/// The files of a pack. Git sees the pack when the last one exists.
const ENDS: [&str; 3] = ["rev", "pack", "idx"];

impl TeamBranch {
    /// Packs all loose objects, so that no command can change what existed before the team. Returns a text for each invalid object.
    pub(super) fn pack_loose_objects(&self) -> Result<Vec<String>, RepositoryError> {
        let ids = self.loose_objects()?;
        let mut problems = Vec::new();
        self.pack_valid_objects(&ids, &mut problems)?;
        if problems.is_empty() && !ids.is_empty() {
            self.main.git(["prune-packed", "--quiet"]).ok()?;
        }
        *self.verified_commit.lock() = self.main.commit(&self.target_ref())?;
        Ok(problems)
    }

    /// Packs these objects except invalid ones, which it finds by bisection.
    fn pack_valid_objects(&self, ids: &[String], problems: &mut Vec<String>) -> Result<(), RepositoryError> {
        if ids.is_empty() || problems.len() >= PROBLEMS_MAX {
            return Ok(());
        }
        let Some(problem) = self.pack_and_check(&[], ids.concat())? else { return Ok(()) };
        let (first, second) = ids.split_at(ids.len() / 2);
        if first.is_empty() {
            problems.push(format!("the git object {} is not packed: {problem}", ids[0].trim_end()));
            return Ok(());
        }
        self.pack_valid_objects(first, problems)?;
        self.pack_valid_objects(second, problems)
    }

    /// Packs what others added to the target branch since the last call. Returns the problem with it, if any.
    pub(super) fn pack_target(&self, onto: &str) -> Result<Option<String>, RepositoryError> {
        let before = self.verified_commit.lock().clone();
        let beyond = before.filter(|before| before != onto);
        let problem = beyond.map_or(Ok(None), |before| self.pack_commit(onto, &before))?;
        if problem.is_none() {
            *self.verified_commit.lock() = Some(onto.to_owned());
        }
        Ok(problem)
    }

    /// Packs the objects of a commit that `beyond` lacks. Returns the problem with them, if any.
    pub(super) fn pack_commit(&self, commit: &str, beyond: &str) -> Result<Option<String>, RepositoryError> {
        self.pack_and_check(&["--revs"], format!("{commit}\n^{beyond}\n"))
    }

    fn pack_and_check(&self, options: &[&str], input: String) -> Result<Option<String>, RepositoryError> {
        // Each checkout has its own, so that teams in several checkouts do not collide.
        let folder = self.main.git_dir.join(FOLDER);
        // A killed process may have left one.
        remove_folder(&folder)?;
        fs::create_dir(&folder).map_err(|error| failed("create", &folder, &error))?;
        let base = folder.join("pack");
        let start = ["pack-objects", "--quiet", "--non-empty", "--delta-base-offset"];
        let base_text = super::text_of(&base);
        let packed = self.main.git(start.iter().chain(options).chain(&[base_text.as_str()])).input(input).run()?;
        let on_one_line = |text: &str| text.trim().replace('\n', "; ");
        let problem = if packed.code == 0 {
            let problem = self.check_and_install(&base, packed.line().trim())?;
            problem.map(|problem| format!("git objects do not match their ids: {}", on_one_line(&problem)))
        } else {
            let reason = on_one_line(&packed.err);
            let error = failure("pack objects".to_owned(), &reason);
            if error.is_general() {
                remove_folder(&folder)?;
                return Err(error);
            }
            Some(format!("git {error}"))
        };
        remove_folder(&folder)?;
        Ok(problem)
    }

    /// Checks each object of a pack and makes git see the pack. An empty name means that there was nothing to pack.
    fn check_and_install(&self, base: &Path, name: &str) -> Result<Option<String>, RepositoryError> {
        if name.is_empty() {
            return Ok(None);
        }
        let pack_file = |end: &str| PathBuf::from(format!("{}-{name}.{end}", base.display()));
        let checked = self.main.git(["verify-pack", &super::text_of(&pack_file("idx"))]).run()?;
        if checked.code != 0 {
            return Ok(Some(checked.err));
        }
        let packs = self.main.common_dir.join("objects/pack");
        for end in ENDS {
            let (from, to) = (pack_file(end), packs.join(format!("pack-{name}.{end}")));
            // Older versions of git write no `rev` file.
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

    /// The ids of loose objects, one per line; see gitrepository-layout(5).
    fn loose_objects(&self) -> Result<Vec<String>, RepositoryError> {
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
                if ids.len() > LOOSE_OBJECTS_MAX {
                    let reason = format!("it has more than {LOOSE_OBJECTS_MAX} loose objects; pack them: git gc");
                    return Err(failed("read", &objects, &reason));
                }
            }
        }
        Ok(ids)
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
