//! The folder and the config of a workspace.

use std::path::{Path, PathBuf};

use super::refusal::{ApiResult, Refusal};
use crate::config::diagnostics::ConfigError;
use crate::config::search::{check_owner, find_folder_upwards, find_upwards};
use crate::config::{Config, Environment, TeamFlags};
use crate::domain::team::team_spec::TeamSpec;
use crate::domain::text::system_error;
use crate::embed;
use crate::sandbox::Sandbox;
use crate::stores::workspace::{BOARD_FOLDER, TEAM_FOLDER};
use crate::team::write_retry::low_disk_reason;

/// The current folder of a front end, and the paths and variables that select the config and the workspace.
#[derive(Debug, Clone)]
pub struct Location {
    /// The path of the config, as the person named it.
    pub config: Option<PathBuf>,
    /// The path of the workspace, as the person named it.
    pub workspace: Option<PathBuf>,
    environment: Environment,
}

impl Location {
    /// Creates a location. Paths are relative to the current folder of `environment`; an empty one counts as none.
    pub fn new(config: Option<PathBuf>, workspace: Option<PathBuf>, environment: Environment) -> Self {
        let [config, workspace] = [config, workspace].map(|path| path.filter(|path| !path.as_os_str().is_empty()));
        Self { config, workspace, environment }
    }

    /// The current folder of the process.
    pub fn current_folder(&self) -> &Path {
        &self.environment.current_folder
    }

    /// The current folder, the user's config file and the variables of the process.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The config file: the one from `--config`, or the nearest one upwards. The search starts in the folder from `--workspace`, then in
    /// the current folder.
    ///
    /// # Errors
    /// Another user could have created the nearest file; see [`check_owner`].
    pub fn config_file(&self) -> ApiResult<Option<PathBuf>> {
        if let Some(named) = self.named_config() {
            return Ok(Some(named));
        }
        let of_workspace = self.named_workspace().as_deref().map(find_upwards).transpose()?.flatten();
        Ok(match of_workspace {
            Some(file) => Some(file),
            None => find_upwards(self.current_folder())?,
        })
    }

    /// The config file from `--config`.
    pub fn named_config(&self) -> Option<PathBuf> {
        Some(self.current_folder().join(self.config.as_ref()?))
    }

    fn named_workspace(&self) -> Option<PathBuf> {
        Some(self.current_folder().join(self.workspace.as_ref()?))
    }

    /// The folder of the workspace; see [`Workspace::folder`](super::Workspace::folder).
    pub(super) fn workspace(&self) -> ApiResult<PathBuf> {
        let folder = match (self.named_workspace(), self.named_config()) {
            (Some(folder), _) => Some(folder),
            (None, Some(file)) => {
                let reason = match file.metadata() {
                    Ok(about) if about.is_dir() => Some("it is a folder".to_owned()),
                    about => about.err().map(|error| system_error::reason(&error)),
                };
                if let Some(reason) = reason {
                    let path = self.config.clone().unwrap_or(file);
                    return Err(ConfigError::Unreadable { path, reason }.into());
                }
                file.parent().map(Path::to_owned)
            }
            (None, None) => self.found_workspace()?,
        };
        let Some(folder) = folder else {
            return Err(ConfigError::NotFound(self.current_folder().to_owned()).into());
        };
        let unusable = |reason: String| {
            let message = format!("cannot use the workspace {}: {reason}", folder.display());
            Refusal::invalid(message).next("name its folder with --workspace DIR or BRIGADE_WORKSPACE")
        };
        match folder.canonicalize() {
            Ok(folder) if folder.is_dir() => Ok(folder),
            Ok(_) => Err(unusable("it is not a folder".to_owned())),
            Err(error) => Err(unusable(system_error::reason(&error))),
        }
    }

    /// The nearest workspace upwards. The owner of its board is checked like the owner of its config.
    fn found_workspace(&self) -> ApiResult<Option<PathBuf>> {
        let here = self.current_folder();
        let boards = [BOARD_FOLDER, TEAM_FOLDER];
        let Some(file) = find_upwards(here)? else { return Ok(find_folder_upwards(here, &boards)?) };
        let folder = file.parent().unwrap_or(here);
        boards.iter().try_for_each(|name| check_owner(&folder.join(name), here))?;
        Ok(Some(folder.to_owned()))
    }

    /// The files that no tool of a member may write; see [`embed::default_control_files`].
    ///
    /// # Errors
    /// The workspace does not exist.
    pub fn control_files(&self, plans: &[PathBuf]) -> ApiResult<Vec<PathBuf>> {
        let workspace = self.workspace()?;
        let configs: Vec<PathBuf> = self.config_file()?.into_iter().chain(self.environment.user_file.clone()).collect();
        Ok(embed::default_control_files(&workspace, &configs, plans))
    }

    /// The sandbox of commands in the workspace.
    ///
    /// # Errors
    /// The workspace does not exist, or a control file cannot be protected.
    pub fn sandbox(&self, team: Option<&TeamSpec>) -> ApiResult<Sandbox> {
        let control_files = self.control_files(team.map_or(&[], |team| team.plans.as_slice()))?;
        let writable = team.map(|team| team.writable.as_slice()).unwrap_or_default();
        embed::open_sandbox(&self.workspace()?, &control_files, writable)
            .map_err(|error| Refusal::refused(error.to_string()))
    }

    /// The folder for a new config: the one from `--workspace`, or the current folder. A missing folder is created.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn new_workspace(&self) -> ApiResult<PathBuf> {
        let folder = self.named_workspace().unwrap_or_else(|| self.current_folder().to_owned());
        std::fs::create_dir_all(&folder)
            .map_err(|error| Refusal::invalid(format!("cannot use {}: {error}", folder.display())))?;
        Ok(folder)
    }

    /// Loads the config.
    ///
    /// # Errors
    /// The config does not exist or is invalid.
    pub fn config(&self) -> ApiResult<Config> {
        let file = self.config_file()?;
        if file.is_none() && self.environment.user_file.as_deref().is_none_or(|path| !path.is_file()) {
            let folder = self.current_folder().to_owned();
            return Err(ConfigError::NotFound(folder).into());
        }
        Ok(self.load(file.as_deref())?)
    }

    fn load(&self, file: Option<&Path>) -> Result<Config, ConfigError> {
        let load = if self.config.is_some() { Config::load } else { Config::load_found };
        load(file, self.environment.clone())
    }

    /// The config, for commands that also work without a valid one.
    pub fn config_if_valid(&self) -> Option<Config> {
        self.load(self.config_file().ok()?.as_deref()).ok()
    }

    /// The team with this name, or the only team of the config. `None` if the config is missing or invalid.
    pub fn team_if_valid(&self, name: Option<&str>) -> Option<TeamSpec> {
        let config = self.config_if_valid()?;
        let name = config.select(name).ok()?;
        Some(config.team(&name, &TeamFlags::default()).ok()?.spec)
    }

    /// The reason why the team takes no work, if its disk has too little free space.
    pub fn low_disk_reason(&self, team: Option<&TeamSpec>) -> Option<String> {
        let limits = team.map(|team| team.limits.clone()).unwrap_or_default();
        low_disk_reason(&self.workspace().ok()?, limits.free_bytes_min)
    }
}
