//! From `up` and `run` to a team that can be launched: config, plan and flags, checked. Launching is the team's.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::arguments::text_file;
use super::context::Context;
use super::error::{CliError, CliResult};
use super::exit::Exit;
use super::headless::{OutputFormat, Report};
use super::session::Session;
use crate::config::{Durability, TeamFlags};
use crate::domain::plan::{self, PLAN_BYTES_MAX};
use crate::domain::state::Mode;
use crate::domain::task::NewTask;
use crate::team::spec::TeamSpec;

/// Launches a team and says how the process ends.
pub type Launcher = fn(Launch) -> CliResult<Exit>;

/// How long the team is to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// One session of this mode, then exit.
    Session(Mode),
    /// As the state file says, beginning with this mode where one is named, with `continuous` where there is no file.
    Obey(Option<Mode>),
}

/// A team that is to be launched, and all that was said about how.
#[derive(Debug)]
pub struct Launch {
    /// The team.
    pub spec: TeamSpec,
    /// The tasks of its plan.
    pub plan: Vec<NewTask>,
    /// The workspace: absolute, and there.
    pub workspace: PathBuf,
    /// What no tool of a member may write; see [`Context::control_files`].
    pub control_files: Vec<PathBuf>,
    /// What accepted work survives.
    pub durability: Durability,
    /// How long it runs.
    pub lifetime: Lifetime,
    /// What a person who sits at a terminal and wants to talk to the team is given.
    pub session: Option<Session>,
    /// Shows what happens, where nobody does.
    pub report: Report,
}

/// What `up` and `run` have in common.
#[derive(Debug)]
pub struct Wanted {
    /// The team.
    pub team: Option<String>,
    /// What flags say of it.
    pub flags: TeamFlags,
    /// How long it runs.
    pub lifetime: Lifetime,
    /// How what happens is shown.
    pub format: Option<OutputFormat>,
    /// Whether the terminal may be talked to.
    pub may_interact: bool,
}

impl Wanted {
    /// Checks everything there is to check before a team is launched.
    ///
    /// # Errors
    /// What is wrong with the config, the plan or the workspace.
    pub fn prepare(self, context: &Context) -> CliResult<Launch> {
        let config = context.config()?;
        let name = config.select(self.team.as_deref())?;
        let resolved = config.team(&name, &self.flags)?;
        let workspace = context.workspace()?;
        let control_files = context.control_files(resolved.spec.plan.as_deref())?;
        let plan = resolved.spec.plan.as_ref().map(|path| read_plan(path)).transpose()?.unwrap_or_default();
        let format = match self.format {
            Some(format) => format,
            None if context.output.json => OutputFormat::Json,
            None => OutputFormat::Text,
        };
        let at_terminal = || std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        let is_interactive = self.may_interact && format == OutputFormat::Text && at_terminal();
        Ok(Launch {
            session: is_interactive.then(|| Session::new(context.clone(), name.clone())),
            report: Report::new(format, context.output, name, workspace.clone()),
            spec: resolved.spec,
            durability: resolved.durability,
            lifetime: self.lifetime,
            plan,
            workspace,
            control_files,
        })
    }
}

/// The tasks of a plan file.
///
/// # Errors
/// The file cannot be read, or is no plan: with its name before each line.
pub fn read_plan(path: &std::path::Path) -> CliResult<Vec<NewTask>> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let text = text_file(path, PLAN_BYTES_MAX as u64)?;
    plan::parse(&name, &text).map_err(|errors| {
        let lines: Vec<String> = errors.0.iter().map(|error| format!("{name}, {error}")).collect();
        CliError::usage(lines.join("\n"))
    })
}

/// Reads a mode.
#[must_use]
pub fn mode_parser() -> impl TypedValueParser<Value = Mode> {
    PossibleValuesParser::new(Mode::ALL.map(Mode::as_str)).map(|word| Mode::from_word(&word).unwrap_or(Mode::Pause))
}
