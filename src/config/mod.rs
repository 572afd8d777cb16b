//! The config: from `brigade.toml`, the user's file, variables and flags to a checked team. It starts nothing and knows
//! nothing of stores.
//!
//! [`settings`] has the tables everything else goes by; [`mod@file`] takes one file apart; [`resolve`] puts a team together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::platform::reading::Accept;
pub use crate::ports::Durability;

mod bounds;
pub mod file;
mod members;
pub mod problem;
pub mod resolve;
pub mod schema;
pub mod search;
pub mod settings;

use file::{ConfigFile, Value};
use problem::{ConfigError, nearest};
pub use resolve::{Resolved, Shown, Source};

/// The name of a workspace's config file.
pub const CONFIG_FILE: &str = "brigade.toml";

/// Serializes a path, which may be no text, as the text people see.
///
/// # Errors
/// The serializer's.
pub fn path_as_text<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// What surrounds a command: handed in, so that the config reads no environment itself.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// The current folder.
    pub current_folder: PathBuf,
    /// The user's config file, where there could be one.
    pub user_file: Option<PathBuf>,
    /// The environment variables that begin with `BRIGADE_`.
    pub variables: BTreeMap<String, String>,
}

/// What flags say of a team.
#[derive(Debug, Clone, Default)]
pub struct TeamFlags {
    /// `--goal`.
    pub goal: Option<String>,
    /// `--plan`.
    pub plan: Option<PathBuf>,
}

/// All that was said about teams.
#[derive(Debug, Clone, Default)]
pub struct Config {
    surroundings: Surroundings,
    workspace_file: Option<ConfigFile>,
    user_file: Option<ConfigFile>,
}

impl Config {
    /// Reads the config: `file`, where a person or a program named one, and the user's. Both may be links.
    ///
    /// # Errors
    /// [`ConfigError`]: a file cannot be read, or things are wrong in it.
    pub fn load(file: Option<&Path>, surroundings: Surroundings) -> Result<Self, ConfigError> {
        Self::load_accepting(file.map(|file| (file, Accept::Files)), surroundings)
    }

    /// The same, with a file that nobody named and that was found in a folder: it is no link out of that folder.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_found(file: Option<&Path>, surroundings: Surroundings) -> Result<Self, ConfigError> {
        Self::load_accepting(file.map(|file| (file, Accept::within_folder_of(file))), surroundings)
    }

    fn load_accepting(file: Option<(&Path, Accept<'_>)>, surroundings: Surroundings) -> Result<Self, ConfigError> {
        let read = |(path, accept): (&Path, Accept<'_>)| {
            let shown = path.strip_prefix(&surroundings.current_folder).unwrap_or(path);
            file::read(path, shown, accept)
        };
        let workspace_file = file.map(read).transpose()?;
        let user_file = surroundings.user_file.as_deref().filter(|path| path.is_file());
        let user_file = user_file.map(|path| read((path, Accept::Files))).transpose()?;
        Ok(Self { surroundings, workspace_file, user_file })
    }

    /// The files, the strongest first.
    fn files(&self) -> impl Iterator<Item = &ConfigFile> {
        self.workspace_file.iter().chain(&self.user_file)
    }

    /// Whether `file` is the user's config file, which `--config` may name.
    fn is_user_file(&self, file: &ConfigFile) -> bool {
        self.surroundings.user_file.as_ref() == Some(&file.source.path)
    }

    fn current_folder(&self) -> &Path {
        &self.surroundings.current_folder
    }

    /// The variable, unless it is empty.
    fn variable<'a>(&'a self, name: &'a str) -> Option<(&'a str, &'a str)> {
        self.surroundings.variables.get(name).filter(|text| !text.is_empty()).map(|text| (name, text.as_str()))
    }

    /// The names of the teams that the workspace's file names. The user's file gives defaults to these and adds none: a team
    /// of that file has commands and addresses that this workspace never asked for.
    #[must_use]
    pub fn team_names(&self) -> Vec<String> {
        names_in(self.workspace_file.as_ref())
    }

    /// The team that is meant: the one that is named, or the only one.
    ///
    /// # Errors
    /// [`ConfigError`]: there is none of that name, or more than one to choose from.
    pub fn select(&self, name: Option<&str>) -> Result<String, ConfigError> {
        let mut known = self.team_names();
        match name {
            Some(name) if known.iter().any(|known| known == name) => Ok(name.to_owned()),
            Some(name) => Err(self
                .only_in_user_file(Some(name))
                .unwrap_or_else(|| ConfigError::UnknownTeam { name: name.to_owned(), known })),
            None if known.len() > 1 => Err(ConfigError::WhichTeam(known)),
            None => known.pop().ok_or_else(|| self.only_in_user_file(None).unwrap_or_else(|| self.no_team())),
        }
    }

    /// The error for a team that only the user's file names: this one, or any.
    fn only_in_user_file(&self, name: Option<&str>) -> Option<ConfigError> {
        let file = self.user_file.as_ref()?;
        let names: Vec<String> =
            names_in(Some(file)).into_iter().filter(|known| name.is_none_or(|name| name == known)).collect();
        (!names.is_empty()).then(|| ConfigError::OnlyInUserFile { names, file: file.source.path.clone() })
    }

    fn no_team(&self) -> ConfigError {
        match &self.workspace_file {
            Some(file) => ConfigError::NoTeam(file.source.shown.clone()),
            None => ConfigError::NotFound(self.current_folder().to_owned()),
        }
    }

    /// The team `name`, checked.
    ///
    /// # Errors
    /// [`ConfigError`]: there is none, or things are wrong about it.
    pub fn team(&self, name: &str, flags: &TeamFlags) -> Result<Resolved, ConfigError> {
        let name = self.select(Some(name))?;
        resolve::resolve(self, &name, flags).map_err(ConfigError::Problems)
    }

    /// What the workspace's accepted work survives: the strongest that any of its teams asks for.
    #[must_use]
    pub fn durability(&self) -> Durability {
        let names = self.team_names();
        let of_team = |name: &String| self.team(name, &TeamFlags::default()).map(|resolved| resolved.durability);
        if names.is_empty() {
            let word = self.variable("BRIGADE_DURABILITY").map(|(_, word)| Value::Text(word.to_owned()));
            let word = word.or_else(|| resolve::outside_teams(self, "durability").cloned());
            return match word {
                Some(Value::Text(word)) => Durability::from_word(&word),
                _ => Durability::default(),
            };
        }
        let all_process = names.iter().all(|name| matches!(of_team(name), Ok(Durability::Process)));
        if all_process { Durability::Process } else { Durability::Power }
    }

    /// Variables that look like settings and are none, each with what was meant.
    #[must_use]
    pub fn unknown_variables(&self) -> Vec<(String, Option<&'static str>)> {
        let known: Vec<&'static str> = settings::variables().chain(settings::OTHER_VARIABLES).collect();
        let names = self.surroundings.variables.keys().filter(|name| !known.contains(&name.as_str()));
        names.map(|name| (name.clone(), nearest(name, known.iter().copied()))).collect()
    }
}

fn names_in(file: Option<&ConfigFile>) -> Vec<String> {
    file.into_iter().flat_map(|file| &file.teams).map(|(name, _)| name.clone()).collect()
}

#[cfg(test)]
mod tests;
