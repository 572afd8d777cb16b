//! `brigade up`.

use super::context::Context;
use super::error::CliResult;
use super::launch::{LaunchArguments, Launcher, Lifetime, mode_parser};
use super::output::CommandAnswer;
use crate::domain::state::Mode;

/// Launch a team, and keep it running until it is stopped
///
/// The team follows agent_state.json. `--mode` sets the mode in it; without the file the mode is `continuous`.
#[derive(Debug, clap::Args)]
pub struct Up {
    #[command(flatten)]
    arguments: LaunchArguments,
    /// The mode to run in
    #[arg(long, value_parser = mode_parser(&Mode::ALL))]
    mode: Option<Mode>,
    /// Print events and read nothing from the terminal
    #[arg(long)]
    headless: bool,
}

impl Up {
    /// Launches the team.
    ///
    /// # Errors
    /// The config is invalid, or the team cannot be launched.
    pub fn run(self, context: &Context, launcher: Launcher) -> CliResult<CommandAnswer> {
        let (lifetime, may_interact) = (Lifetime::FollowState(self.mode), !self.headless);
        self.arguments.launch(context, lifetime, may_interact, launcher)
    }
}
