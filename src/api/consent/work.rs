//! The work in a workspace that needs the agreement of the person: tasks, members, mail and transcripts that came with it.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::DirEntry;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::list::{ConsentList, Line};
use crate::api::{ApiResult, Refusal, Workspace, members, task};
use crate::config::Config;
use crate::config::resolve::Resolved;
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::domain::team::team_spec::TeamSpec;
use crate::embed::PlanFile;
use crate::git::GitRepository;
use crate::platform::reading;
use crate::stores::file::roster::ROSTER_FILE;
use crate::stores::trust::TrustStore;
use crate::stores::workspace::{BOARD_FOLDER, TEAM_FOLDER};

/// The most entries below a `.team` that came with a workspace.
const TEAM_ENTRIES_MAX: usize = 100_000;

impl ConsentList {
    /// The list for a launch with these plans: the settings of the team, the plans, and the work of others.
    ///
    /// # Errors
    /// The workspace does not exist, or its work cannot be read.
    pub async fn of_launch(
        workspace: &Workspace,
        config: &Config,
        resolved: &Resolved,
        plans: &[PlanFile],
    ) -> ApiResult<Self> {
        let folder = workspace.folder()?;
        let mut list = Self::of_settings(config, resolved, &folder);
        plans.iter().for_each(|plan| list.add_plan(&resolved.spec, plan, &folder));
        list.add_found_work(workspace, &folder, &resolved.spec).await?;
        Ok(list)
    }

    /// Adds board, members and all other files of `.team`: all of them if they are not the user's own, else those that git tracks, because
    /// a pull can have brought them.
    async fn add_found_work(&mut self, workspace: &Workspace, folder: &Path, spec: &TeamSpec) -> ApiResult<()> {
        let [board, team_folder] = [BOARD_FOLDER, TEAM_FOLDER].map(|name| folder.join(name));
        if !board.is_dir() && !team_folder.is_dir() {
            return Ok(());
        }
        let foreign = match TrustStore::of_user().is_own(folder) {
            true => Tracked::of(folder, &[BOARD_FOLDER, TEAM_FOLDER]),
            false => Tracked(None),
        };
        let mut spec = spec.clone();
        if foreign.has(Path::new(TEAM_FOLDER).join(ROSTER_FILE)) && team_folder.is_dir() {
            spec = members::with_spawned(workspace, spec).await?;
            spec.members.iter().filter(|member| member.is_spawned).for_each(|member| self.add_spawned(member, folder));
        }
        if foreign.has_below(TEAM_FOLDER) {
            for file in files_of_team(&team_folder)? {
                let path = Path::new(TEAM_FOLDER).join(&file);
                // The members have lines of their own.
                if foreign.has(&path) && file != Path::new(ROSTER_FILE) {
                    self.add_file(&file, &folder.join(path), folder);
                }
            }
        }
        if foreign.is_empty() || !board.is_dir() {
            return Ok(());
        }
        let view = task::board(workspace).await?;
        let is_listed = |task: &&Arc<Task>| task.status != TaskStatus::Completed && foreign.has(task_file(task.id));
        for task in view.tasks.values().filter(is_listed) {
            self.add_task(&spec, task.id, (&task.subject, &task.description, task.verify.as_deref()));
        }
        Ok(())
    }
}

/// Returns the line of the `verify` command of a task, if the person has not agreed to it and the task was not created here.
///
/// # Errors
/// The workspace does not exist.
pub fn verify_to_ask_about(workspace: &Workspace, task: TaskId, verify: &str) -> ApiResult<Option<Line>> {
    let folder = workspace.folder()?;
    let store = TrustStore::of_user();
    if store.is_own(&folder) && !Tracked::of(&folder, &[BOARD_FOLDER]).has(task_file(task)) {
        return Ok(None);
    }
    let line = Line::verify(task, verify);
    let names = workspace.location.config_if_valid().map(|config| config.team_names()).unwrap_or_default();
    let mut agreements = names.iter().filter_map(|name| store.agreement(&folder, name));
    let is_agreed = agreements.any(|agreement| agreement.lines.iter().any(|agreed| agreed.digest == line.digest));
    Ok((!is_agreed).then_some(line))
}

/// Returns all files and links below `.team` that are not empty, sorted, relative to it. Follows no link.
///
/// # Errors
/// There are more than [`TEAM_ENTRIES_MAX`], or a folder cannot be read. Then a launch could use a file that no list shows.
fn files_of_team(team_folder: &Path) -> ApiResult<Vec<PathBuf>> {
    let refused = |folder: &Path, error: io::Error| {
        let message = format!("cannot list the files of {TEAM_FOLDER}: cannot read {}: {error}", folder.display());
        Refusal::invalid(message).next(format!("move {TEAM_FOLDER} away, if you do not need its mail and transcripts"))
    };
    let mut files = Vec::new();
    let mut folders = vec![team_folder.to_owned()];
    let mut left = TEAM_ENTRIES_MAX;
    while let Some(folder) = folders.pop().filter(|folder| folder.is_dir()) {
        let entries = reading::list(&folder, left).map_err(|error| refused(&folder, error))?;
        left -= entries.len();
        for path in entries.iter().map(DirEntry::path) {
            let metadata = path.symlink_metadata().map_err(|error| refused(&path, error))?;
            if metadata.is_dir() {
                folders.push(path);
            } else if metadata.len() > 0 {
                files.push(path.strip_prefix(team_folder).unwrap_or(&path).to_owned());
            }
        }
    }
    files.sort();
    Ok(files)
}

fn task_file(id: TaskId) -> PathBuf {
    Path::new(BOARD_FOLDER).join(id.file_name())
}

/// The files of some folders that git tracks, in lower case. `None` for all files: git fails, or the workspace is not the user's own.
struct Tracked(Option<HashSet<OsString>>);

impl Tracked {
    fn of(workspace: &Path, folders: &[&str]) -> Self {
        let tracked = GitRepository::tracked(workspace, folders).ok();
        Self(tracked.map(|files| files.iter().map(|file| file.as_os_str().to_ascii_lowercase()).collect()))
    }

    fn is_empty(&self) -> bool {
        self.0.as_ref().is_some_and(HashSet::is_empty)
    }

    /// Returns true if git tracks a file below this folder of the workspace.
    fn has_below(&self, folder: &str) -> bool {
        self.0.as_ref().is_none_or(|files| files.iter().any(|file| Path::new(file).starts_with(folder)))
    }

    /// Returns true if git tracks this file, in any case of its letters, or a folder above it: git lists a submodule by its folder.
    fn has(&self, file: impl AsRef<Path>) -> bool {
        let file = PathBuf::from(file.as_ref().as_os_str().to_ascii_lowercase());
        self.0.as_ref().is_none_or(|files| file.ancestors().any(|above| files.contains(above.as_os_str())))
    }
}
