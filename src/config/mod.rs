//! The config: reads `brigade.toml`, the user's file, variables and flags, and returns a checked team. It starts nothing and
//! uses no stores.
//!
//! [`settings`] has the tables of all settings, [`mod@file`] parses one file, [`resolve`] combines the sources of a team.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::platform::reading::AllowedKinds;
pub use crate::ports::Durability;

pub mod diagnostics;
pub mod effects;
pub mod file;
mod limits;
mod members;
mod models;
mod patterns;
mod permissions;
pub mod resolve;
pub mod schema;
pub mod search;
pub mod settings;

use crate::domain::text::suggestion::nearest;
use diagnostics::ConfigError;
use file::ConfigFile;
pub use resolve::{Resolved, ResolvedValue, Source};

/// The name of a workspace's config file.
pub const CONFIG_FILE: &str = "brigade.toml";

/// The prefix of every variable that Brigade reads.
pub const VARIABLE_PREFIX: &str = "BRIGADE_";

/// Returns a text as a TOML value.
pub fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// Serializes a path as text. Bytes that are not UTF-8 are replaced.
///
/// # Errors
/// The serializer's errors.
pub fn path_as_text<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// The environment of a command. It is passed in: the config reads no environment itself.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    pub current_folder: PathBuf,
    /// The path of the user's config file, which need not exist.
    pub user_file: Option<PathBuf>,
    /// The environment variables that start with `BRIGADE_`.
    pub variables: BTreeMap<String, String>,
}

/// A variable that begins with `BRIGADE_` and is no setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownVariable {
    /// The variable.
    pub name: String,
    /// The known variable with a similar name.
    pub meant: Option<&'static str>,
}

impl Environment {
    /// The variables that begin with `BRIGADE_` and that Brigade does not know.
    pub fn unknown_variables(&self) -> Vec<UnknownVariable> {
        let names: Vec<&'static str> = settings::variables().chain(settings::OTHER_VARIABLES).collect();
        // The prefix alone would make all of them similar.
        let key = |name: &'static str| name.trim_start_matches(VARIABLE_PREFIX);
        let unknown = |name: &String| {
            let meant = nearest(name.trim_start_matches(VARIABLE_PREFIX), names.iter().copied().map(key));
            let meant = meant.and_then(|meant| names.iter().copied().find(|name| key(name) == meant));
            UnknownVariable { name: name.clone(), meant }
        };
        self.variables.keys().filter(|name| !names.contains(&name.as_str())).map(unknown).collect()
    }
}

/// The flags that set values of a team.
#[derive(Debug, Clone, Default)]
pub struct TeamFlags {
    /// `--goal`.
    pub goal: Option<String>,
    /// `--plan`.
    pub plan: Option<PathBuf>,
}

/// The parsed config files and the environment.
#[derive(Debug, Clone, Default)]
pub struct Config {
    environment: Environment,
    workspace_file: Option<ConfigFile>,
    user_file: Option<ConfigFile>,
}

impl Config {
    /// Reads `file`, which a person or a program named, and the user's file. Both may be links.
    ///
    /// # Errors
    /// [`ConfigError`]: a file cannot be read or is invalid.
    pub fn load(file: Option<&Path>, environment: Environment) -> Result<Self, ConfigError> {
        Self::load_accepting(file.map(|file| (file, AllowedKinds::Files)), environment)
    }

    /// Like [`Config::load`], for a file that was found in a folder: it must not be a link out of that folder.
    ///
    /// # Errors
    /// Those of [`Config::load`].
    pub fn load_found(file: Option<&Path>, environment: Environment) -> Result<Self, ConfigError> {
        Self::load_accepting(file.map(|file| (file, AllowedKinds::within_folder_of(file))), environment)
    }

    fn load_accepting(file: Option<(&Path, AllowedKinds<'_>)>, environment: Environment) -> Result<Self, ConfigError> {
        let read = |(path, accept): (&Path, AllowedKinds<'_>)| {
            let display_path = path.strip_prefix(&environment.current_folder).unwrap_or(path);
            file::read(path, display_path, accept)
        };
        let workspace_file = file.map(read).transpose()?;
        let user_file = environment.user_file.as_deref().filter(|path| path.is_file());
        let user_file = user_file.map(|path| read((path, AllowedKinds::Files))).transpose()?;
        Ok(Self { environment, workspace_file, user_file })
    }

    /// The files, in order of precedence.
    fn files(&self) -> impl Iterator<Item = &ConfigFile> {
        self.workspace_file.iter().chain(&self.user_file)
    }

    /// `--config` may name the user's file.
    fn is_user_file(&self, file: &ConfigFile) -> bool {
        self.environment.user_file.as_ref() == Some(&file.source.path)
    }

    fn current_folder(&self) -> &Path {
        &self.environment.current_folder
    }

    /// Returns the variable's name and value, unless it is empty.
    fn variable<'a>(&'a self, name: &'a str) -> Option<(&'a str, &'a str)> {
        self.environment.variables.get(name).filter(|text| !text.is_empty()).map(|text| (name, text.as_str()))
    }

    /// The path and the text of the workspace's file. `None` for the user's own file, also if `--config` names it.
    pub fn workspace_text(&self) -> Option<(&Path, &str)> {
        let file = self.workspace_file.as_ref().filter(|file| !self.is_user_file(file))?;
        Some((&file.source.path, &file.source.text))
    }

    /// Returns the teams of the workspace's file. The user's file sets their defaults and adds no teams. A team of that file has
    /// commands and addresses that this workspace did not ask for.
    pub fn team_names(&self) -> Vec<String> {
        names_in(self.workspace_file.as_ref())
    }

    /// Returns the named team, or the only one.
    ///
    /// # Errors
    /// [`ConfigError`]: the team does not exist, or there are several and `name` is `None`.
    pub fn select(&self, name: Option<&str>) -> Result<String, ConfigError> {
        let mut names = self.team_names();
        match name {
            Some(name) if names.iter().any(|team| team == name) => Ok(name.to_owned()),
            Some(name) => Err(self
                .only_in_user_file(Some(name))
                .unwrap_or_else(|| ConfigError::UnknownTeam { name: name.to_owned(), known: names })),
            None if names.len() > 1 => Err(ConfigError::AmbiguousTeam(names)),
            None => names.pop().ok_or_else(|| self.only_in_user_file(None).unwrap_or_else(|| self.no_team())),
        }
    }

    /// Returns the error for this team, or for any, if only the user's file has it.
    fn only_in_user_file(&self, name: Option<&str>) -> Option<ConfigError> {
        let file = self.user_file.as_ref()?;
        let names: Vec<String> =
            names_in(Some(file)).into_iter().filter(|team| name.is_none_or(|name| name == team)).collect();
        (!names.is_empty()).then(|| ConfigError::OnlyInUserFile { names, file: file.source.path.clone() })
    }

    fn no_team(&self) -> ConfigError {
        match &self.workspace_file {
            Some(file) => ConfigError::NoTeam(file.source.display_path.clone()),
            None => ConfigError::NotFound(self.current_folder().to_owned()),
        }
    }

    /// Returns the team `name`, checked.
    ///
    /// # Errors
    /// [`ConfigError`]: the team does not exist or is invalid.
    pub fn team(&self, name: &str, flags: &TeamFlags) -> Result<Resolved, ConfigError> {
        let name = self.select(Some(name))?;
        resolve::resolve(self, &name, flags).map_err(ConfigError::Problems)
    }

    /// Returns the strongest durability of all teams of the workspace.
    pub fn durability(&self) -> Durability {
        let names = self.team_names();
        let of_team = |name: &String| self.team(name, &TeamFlags::default()).map(|resolved| resolved.durability);
        if names.is_empty() {
            let word = self.variable("BRIGADE_DURABILITY").map(|(_, word)| word);
            let word = word.or_else(|| resolve::outside_teams(self, "durability")?.as_str());
            return word.and_then(Durability::from_word).unwrap_or_default();
        }
        let all_process = names.iter().all(|name| matches!(of_team(name), Ok(Durability::Process)));
        if all_process { Durability::Process } else { Durability::Power }
    }

    /// Checks that no variable is a misspelt setting: without its budget variable a team would start without a budget.
    ///
    /// # Errors
    /// [`ConfigError::UnknownVariable`]: an unknown variable that is spelled much like a known one. Other unknown variables
    /// may belong to other programs.
    pub fn check_variables(&self) -> Result<(), ConfigError> {
        for unknown in self.environment.unknown_variables() {
            if let Some(meant) = unknown.meant {
                return Err(ConfigError::UnknownVariable { name: unknown.name, meant });
            }
        }
        Ok(())
    }
}

fn names_in(file: Option<&ConfigFile>) -> Vec<String> {
    file.into_iter().flat_map(|file| &file.teams).map(|(name, _)| name.clone()).collect()
}

#[cfg(test)]
mod tests;
