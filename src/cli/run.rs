//! `brigade run`.

use super::context::Context;
use super::error::{CliError, CliResult};
use super::launch::{LaunchArguments, Launcher, Lifetime};
use super::output::Answer;
use crate::domain::state::Mode;
use crate::ui::text::one_line;

/// Run one session of a team, then exit
///
/// A session ends when no task is claimable or in progress, no mail waits, and the lead has reported. Exit code 0: all
/// tasks are completed. Exit code 1: tasks failed or are left.
#[derive(Debug, clap::Args)]
pub struct Run {
    #[command(flatten)]
    arguments: LaunchArguments,
    /// The same as --mode run_cleanup
    #[arg(long, hide = true, conflicts_with = "mode")]
    cleanup: bool,
}

impl Run {
    /// Runs the session.
    ///
    /// # Errors
    /// The config or the mode is invalid, or the team cannot be launched.
    pub fn run(self, context: &Context, launcher: Launcher) -> CliResult<Answer> {
        let mode = self.mode()?;
        self.arguments.launch(context, Lifetime::Session(mode), false, launcher)
    }

    fn mode(&self) -> CliResult<Mode> {
        match self.arguments.mode {
            _ if self.cleanup => Ok(Mode::RunCleanup),
            None => Ok(Mode::RunOnce),
            Some(mode @ (Mode::RunOnce | Mode::RunCleanup)) => Ok(mode),
            Some(mode @ (Mode::Continuous | Mode::Pause)) => {
                let message =
                    format!("cannot run with mode `{}`: `brigade run` runs one session and exits", mode.as_str());
                let team = self.arguments.team.as_deref().map(|team| format!("{} ", one_line(team)));
                let hint = match mode {
                    Mode::Pause => "`brigade state pause`".to_owned(),
                    _ => format!("`brigade up {}--mode {}`", team.unwrap_or_default(), mode.as_str()),
                };
                Err(CliError::usage(message).hint(hint))
            }
        }
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

    fn mode_of(words: &[&str]) -> CliResult<Mode> {
        Line::try_parse_from([&["run"], words].concat()).unwrap().run.mode()
    }

    #[test]
    fn run_accepts_only_modes_of_one_session() {
        for (words, mode) in [
            (&[][..], Mode::RunOnce),
            (&["t", "a goal", "--mode", "run_once", "--headless"], Mode::RunOnce),
            (&["t", "--mode", "run_cleanup"], Mode::RunCleanup),
            (&["--cleanup"], Mode::RunCleanup),
        ] {
            assert_eq!(mode_of(words).unwrap(), mode, "{words:?}");
        }
        let refused = mode_of(&["t", "--mode", "continuous"]).unwrap_err();
        assert!(refused.message.starts_with("cannot run with mode `continuous`"), "{}", refused.message);
        assert_eq!(refused.hint.as_deref(), Some("`brigade up t --mode continuous`"));
        assert_eq!(mode_of(&["--mode", "pause"]).unwrap_err().hint.as_deref(), Some("`brigade state pause`"));
        assert!(Line::try_parse_from(["run", "t", "goal", "--goal", "other"]).is_err(), "two goals");
        assert!(Line::try_parse_from(["run", "--cleanup", "--mode", "run_once"]).is_err(), "two modes");
    }
}
