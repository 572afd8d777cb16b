//! `brigade run`.

use super::context::Context;
use super::error::CliResult;
use super::launch::{LaunchArguments, Launcher, Lifetime, mode_parser};
use super::output::CommandAnswer;
use crate::domain::state::Mode;

/// Run one session of a team, then exit
///
/// A session ends when no task is claimable or in progress, no mail waits, and the lead has reported. Exit code 0: all
/// tasks are completed. Exit code 1: tasks failed, are blocked or pending, or the goal is not met. Exit code 5: a model gave no answer
/// for too long.
#[derive(Debug, clap::Args)]
pub struct Run {
    #[command(flatten)]
    arguments: LaunchArguments,
    /// The mode of the session
    #[arg(long, value_parser = mode_parser(&[Mode::RunOnce, Mode::RunCleanup]))]
    mode: Option<Mode>,
    /// A run is always headless
    #[arg(long, hide = true)]
    headless: bool,
    /// The same as --mode run_cleanup
    #[arg(long, alias = "cleanup-session", hide = true, conflicts_with = "mode")]
    cleanup: bool,
}

impl Run {
    /// Runs the session.
    ///
    /// # Errors
    /// The config is invalid, or the team cannot be launched.
    pub fn run(self, context: &Context, launcher: Launcher) -> CliResult<CommandAnswer> {
        let mode = self.mode();
        self.arguments.launch(context, Lifetime::Session(mode), false, launcher)
    }

    fn mode(&self) -> Mode {
        if self.cleanup { Mode::RunCleanup } else { self.mode.unwrap_or(Mode::RunOnce) }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        run: Run,
    }

    fn mode_of(words: &[&str]) -> Option<Mode> {
        Some(Line::try_parse_from([&["run"], words].concat()).ok()?.run.mode())
    }

    #[test]
    fn run_accepts_only_modes_of_one_session() {
        for (words, mode) in [
            (&[][..], Mode::RunOnce),
            (&["t", "a goal", "--mode", "run_once", "--headless"], Mode::RunOnce),
            (&["t", "--mode", "run_cleanup"], Mode::RunCleanup),
            (&["--cleanup"], Mode::RunCleanup),
            (&["--cleanup-session"], Mode::RunCleanup),
        ] {
            assert_eq!(mode_of(words), Some(mode), "{words:?}");
        }
        assert_eq!((mode_of(&["t", "--mode", "continuous"]), mode_of(&["--mode", "pause"])), (None, None));
        assert!(Line::try_parse_from(["run", "t", "goal", "--goal", "other"]).is_err(), "two goals");
        assert!(Line::try_parse_from(["run", "--cleanup", "--mode", "run_once"]).is_err(), "two modes");
    }
}
