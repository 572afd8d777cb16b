//! The location of a command, from its flags and the environment of the process, and its forms for people.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::error::{CliError, CliResult};
use super::output::Color;
use crate::api::Location;
use crate::config::{Environment, UnknownVariable, VARIABLE_PREFIX};
use crate::domain::text::{one_line, shell_word};
use crate::front::text::style::warning;
use crate::sandbox::protected_paths::user_config_file;

/// Options of every command.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Global {
    /// The config file [default: the nearest brigade.toml in this folder or above]
    #[arg(long, global = true, value_name = "FILE", env = "BRIGADE_CONFIG", hide_env_values = true)]
    pub config: Option<PathBuf>,
    /// The folder that the team works in [default: the folder of the config]
    #[arg(long, global = true, value_name = "DIR", env = "BRIGADE_WORKSPACE", hide_env_values = true)]
    pub workspace: Option<PathBuf>,
    /// Print JSON, for programs
    #[arg(long, global = true)]
    pub json: bool,
    /// Use colours; auto: on terminals, unless NO_COLOR is set
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t)]
    pub color: Color,
}

/// Reads the current folder, the path of the user's config and the `BRIGADE_` variables.
///
/// # Errors
/// The current folder does not exist.
pub fn read(global: Global) -> CliResult<Location> {
    let current_folder =
        std::env::current_dir().map_err(|error| CliError::usage(format!("cannot use the current folder: {error}")))?;
    let variables: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .filter(|(name, _)| name.starts_with(VARIABLE_PREFIX))
        .collect();
    let environment = Environment { current_folder, user_file: user_config_file(), variables };
    Ok(Location::new(global.config, global.workspace, environment))
}

/// Warnings about variables that may be misspelt settings.
pub fn variable_warnings(location: &Location) -> Vec<String> {
    let warning = |unknown: UnknownVariable| {
        let meant = unknown.meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
        warning(&format!("unknown variable `{}`{meant}", one_line(&unknown.name)))
    };
    location.environment().unknown_variables().into_iter().map(warning).collect()
}

/// The flags `--config` and `--workspace` as they were typed. Hints repeat them.
pub fn flags(location: &Location) -> String {
    let named = [("--config", &location.config), ("--workspace", &location.workspace)];
    let flags = named
        .into_iter()
        .filter_map(|(flag, path)| Some(format!("{flag} {}", shell_word(&path.as_ref()?.to_string_lossy()))));
    flags.collect::<Vec<_>>().join(" ")
}

/// A path as people read it: relative if it is below the current folder.
pub fn display(location: &Location, path: &Path) -> String {
    match path.strip_prefix(location.current_folder()) {
        Ok(relative) if relative.as_os_str().is_empty() => ".".to_owned(),
        Ok(relative) => relative.display().to_string(),
        Err(_) => path.display().to_string(),
    }
}
