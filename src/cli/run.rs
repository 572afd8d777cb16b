//! `brigade run`.

use std::path::PathBuf;

use super::context::Context;
use super::error::CliResult;
use super::headless::OutputFormat;
use super::launch::{Launcher, Lifetime, Wanted};
use super::output::Answer;
use crate::config::TeamFlags;
use crate::domain::state::Mode;

/// Run one session of a team, then exit
///
/// A session goes on until nothing is claimable or in progress, no mail waits, and the lead has reported. The exit code
/// says how it came out: 0 when everything is done, 1 when tasks failed or are left.
#[derive(Debug, clap::Args)]
pub struct Run {
    /// The team [default: the only one]
    team: Option<String>,
    /// What it is to reach
    goal: Option<String>,
    /// A plan file to import tasks from
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Tidy up instead: a session led by prompts/cleanup.md
    #[arg(long)]
    cleanup: bool,
    /// How what happens is printed
    #[arg(long, value_enum, value_name = "FORMAT")]
    output_format: Option<OutputFormat>,
}

impl Run {
    /// Runs the session.
    ///
    /// # Errors
    /// The config is wrong, or the team cannot be launched.
    pub fn run(self, context: &Context, launcher: Launcher) -> CliResult<Answer> {
        let wanted = Wanted {
            team: self.team,
            flags: TeamFlags { goal: self.goal, plan: self.plan },
            lifetime: Lifetime::Session(if self.cleanup { Mode::RunCleanup } else { Mode::RunOnce }),
            format: self.output_format,
            may_interact: false,
        };
        let exit = launcher(wanted.prepare(context)?)?;
        Ok(Answer { text: String::new(), notes: Vec::new(), exit })
    }
}
