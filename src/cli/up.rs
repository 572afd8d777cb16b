//! `brigade up`.

use std::path::PathBuf;

use super::context::Context;
use super::error::CliResult;
use super::headless::OutputFormat;
use super::launch::{Launcher, Lifetime, Wanted, mode_parser};
use super::output::Answer;
use crate::config::TeamFlags;
use crate::domain::state::Mode;

/// Launch a team, and keep it up until it is stopped
///
/// It does what agent_state.json says: `continuous` (where there is no file), `run_once`, `run_cleanup` or `pause`.
#[derive(Debug, clap::Args)]
pub struct Up {
    /// The team [default: the only one]
    team: Option<String>,
    /// What it is to reach
    #[arg(long, value_name = "TEXT")]
    goal: Option<String>,
    /// A plan file to import tasks from
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// What it is to do: sets the desired state
    #[arg(long, value_parser = mode_parser())]
    mode: Option<Mode>,
    /// Take no orders from the terminal; print what happens
    #[arg(long)]
    headless: bool,
    /// How what happens is printed
    #[arg(long, value_enum, value_name = "FORMAT")]
    output_format: Option<OutputFormat>,
}

impl Up {
    /// Launches the team.
    ///
    /// # Errors
    /// The config is wrong, or the team cannot be launched.
    pub fn run(self, context: &Context, launcher: Launcher) -> CliResult<Answer> {
        let wanted = Wanted {
            team: self.team,
            flags: TeamFlags { goal: self.goal, plan: self.plan },
            lifetime: Lifetime::Obey(self.mode),
            format: self.output_format,
            may_interact: !self.headless,
        };
        let exit = launcher(wanted.prepare(context)?)?;
        Ok(Answer { text: String::new(), notes: Vec::new(), exit })
    }
}
