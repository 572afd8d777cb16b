//! The confinement of a team's members: the sandbox of their commands, the control files, and the repository.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{STORE, SystemClock};
use crate::config::{CONFIG_FILE, Durability};
use crate::domain::agent::access::PathRule;
use crate::domain::team::team_spec::{Isolation, TeamSpec};
use crate::git::{GitOptions, GitRepository};
use crate::ports::Repository;
use crate::sandbox::protected_paths::{accounts_folder, home_rules, trust_folder};
use crate::sandbox::{self, Sandbox, SandboxError};
use crate::stores::fs::RealFileSystem;
use crate::team::LaunchError;

/// Brigade's files in a workspace, which no member's tool can write.
const WORKSPACE_CONTROL_FILES: [&str; 4] = ["agent_state.json", ".tasks", ".team", CONFIG_FILE];

/// Folders with files that can become the state file while commands run; see `stores::file::exchange_file`.
const STATE_FILE_FOLDERS: [&str; 2] = [".team/spare", ".team/aside"];

/// Opens the repository of a team with isolation; `None` without isolation.
pub(super) async fn open_repository(
    spec: &TeamSpec,
    folder: &Path,
    control_files: &[PathBuf],
    durability: Durability,
    sandbox: &Sandbox,
) -> Result<Option<Arc<dyn Repository>>, LaunchError> {
    if spec.isolation == Isolation::None {
        return Ok(None);
    }
    let options = GitOptions {
        team: spec.name.to_string(),
        merge_into: spec.merge_into.clone(),
        keep: spec.keep.clone(),
        control_files: control_files.to_vec(),
        setup: spec.setup.clone(),
        setup_timeout: spec.limits.setup_timeout,
        files: Arc::new(RealFileSystem::default()),
        clock: Arc::new(SystemClock),
        durability,
        program: sandbox::filter::own_program_path(),
        sandbox: sandbox.clone(),
    };
    Ok(Some(Arc::new(GitRepository::open(folder, options).await?)))
}

/// Opens the sandbox of commands in `workspace`. The control files, the user's config and the programs of the home folder are
/// read-only, except the folders in `writable`. Lock files are hidden. Blocks for some milliseconds.
///
/// # Errors
/// [`SandboxError`]: a path that exists cannot be protected, or the guard cannot be started.
pub fn open_sandbox(
    workspace: &Path,
    control_files: &[PathBuf],
    writable: &[PathBuf],
) -> Result<Sandbox, SandboxError> {
    let guard = sandbox::own_guard().map_err(|error| SandboxError::Guard(error.to_string()))?;
    let mut rules: Vec<PathRule> =
        STATE_FILE_FOLDERS.iter().map(|folder| PathRule::read_only_files(workspace.join(folder))).collect();
    // A config that the person named can be a link. `open` has refused every other control file that is one.
    let real = |file: PathBuf| file.canonicalize().unwrap_or(file);
    let controls = control_files.iter().map(|file| real(workspace.join(file)));
    // A link without a target can only be the user's config, which the rules for the home folder protect. A missing config is not
    // protected: if a command creates a link there, commands still run, and the next launch refuses the link.
    let is_own = |file: &PathBuf| file.starts_with(workspace) && !file.ends_with(CONFIG_FILE);
    let is_protected = |file: &PathBuf| !file.is_symlink() && (file.exists() || is_own(file));
    rules.extend(controls.filter(is_protected).map(PathRule::read_only));
    rules.extend(STORE.hidden_paths.iter().map(|path| PathRule::hidden(workspace.join(path))));
    rules.extend(home_rules(workspace, writable));
    let mut paths = BTreeSet::new();
    rules.retain(|rule| paths.insert(rule.path.clone()));
    Sandbox::open(guard, workspace, rules)
}

/// The paths that no member's tool can write: Brigade's files, the trust entries and the configs, relative to the workspace if they are in it. A plan
/// and prompts outside the workspace are included. Members may write a plan or prompts inside it.
pub fn default_control_files(workspace: &Path, configs: &[PathBuf], plans: &[PathBuf]) -> Vec<PathBuf> {
    let canonical = |path: PathBuf| path.canonicalize().unwrap_or(path);
    let relative = |path: &Path| path.strip_prefix(workspace).ok().map(Path::to_owned);
    let mut controls: Vec<PathBuf> = WORKSPACE_CONTROL_FILES.map(PathBuf::from).into();
    for config in configs {
        let prompts = config.parent().map(|folder| canonical(folder.join("prompts")));
        let config = canonical(config.clone());
        controls.push(relative(&config).unwrap_or(config));
        controls.extend(prompts.filter(|prompts| relative(prompts).is_none()));
    }
    // Only a workspace that contains the home folder has it.
    let records = trust_folder().into_iter().chain(accounts_folder());
    controls.extend(records.filter_map(|folder| relative(&canonical(folder))));
    controls.extend(plans.iter().map(|plan| canonical(plan.clone())).filter(|plan| relative(plan).is_none()));
    // A folder that contains the workspace cannot be read-only.
    controls.retain(|path| !workspace.starts_with(path));
    let mut paths = BTreeSet::new();
    controls.retain(|path| paths.insert(path.clone()));
    controls
}
