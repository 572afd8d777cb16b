//! `brigade up`.

use super::context::Context;
use super::error::CliResult;
use super::launch::{LaunchArguments, Launcher, Lifetime};
use super::output::Answer;

/// Launch a team, and keep it running until it is stopped
///
/// The team follows agent_state.json. `--mode` sets the mode in it; without the file the mode is `continuous`.
#[derive(Debug, clap::Args)]
pub struct Up {
    #[command(flatten)]
    arguments: LaunchArguments,
}

impl Up {
    /// Launches the team.
    ///
    /// # Errors
    /// The config is invalid, or the team cannot be launched.
    pub fn run(self, context: &Context, launcher: Launcher) -> CliResult<Answer> {
        let (lifetime, may_interact) = (Lifetime::Obey(self.arguments.mode), !self.arguments.headless);
        self.arguments.launch(context, lifetime, may_interact, launcher)
    }
}
