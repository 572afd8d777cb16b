//! The arguments of `brigade run` and `brigade up`, and the checks of config, plan and workspace before a launch.

use crate::api::{OrderForm, Question as ApiQuestion};
use std::io::IsTerminal;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use super::consent::{self, Purpose, Question, TrustFlag};
use super::context::Context;
use super::error::{CliError, CliResult};
use super::exit::Exit;
use super::nesting::nesting_note;
use super::output::CommandAnswer;
use super::progress::Progress;
use super::run_output::{OutputFormat, RunOutput};
use crate::api::state::check_lead_has_model;
use crate::config::diagnostics::ConfigError;
use crate::config::{Config, Durability, TeamFlags};
use crate::domain::task::NewTask;
use crate::domain::task::shell_blocks;
use crate::domain::team::state::Mode;
use crate::domain::team::team_spec::TeamSpec;
use crate::domain::text::{one_line, shell_word};
use crate::embed::read_plans;
use crate::front::repl::Repl;
use crate::front::text::commands::{hint, line};
use crate::front::text::style::warning;
use crate::platform::terminal;

/// Launches a team and returns the exit code of the process.
pub type Launcher = fn(LaunchRequest) -> CliResult<Exit>;

/// The lifetime of a launched team.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// One session of this mode, then exit.
    Session(Mode),
    /// As long as the state file says. A mode given here is written to the file first; without a file it is `continuous`.
    FollowState(Option<Mode>),
}

impl Lifetime {
    /// Returns true if the launch begins with a cleanup session.
    fn is_cleanup(self) -> bool {
        matches!(self, Self::Session(Mode::RunCleanup) | Self::FollowState(Some(Mode::RunCleanup)))
    }

    fn purpose(self) -> Purpose {
        if matches!(self, Self::Session(_)) { Purpose::Run } else { Purpose::Up }
    }
}

/// A team to launch, with everything that the command line and the config say about the launch.
#[derive(Debug)]
pub struct LaunchRequest {
    /// The team.
    pub spec: TeamSpec,
    /// The goal on the command line, which always reaches the lead.
    pub goal: Option<String>,
    /// The tasks of its plan.
    pub plan: Vec<NewTask>,
    /// The workspace: an absolute path that exists.
    pub workspace: PathBuf,
    /// Files that no tool of a member may write; see [`Context::control_files`].
    pub control_files: Vec<PathBuf>,
    /// The config file given with `--config`.
    pub named_config: Option<PathBuf>,
    /// The failures that accepted work survives.
    pub durability: Durability,
    /// The lifetime of the team.
    pub lifetime: Lifetime,
    /// The interactive session; `None` when no person at a terminal steers the team.
    pub repl: Option<Repl>,
    /// Prints what happens.
    pub run_output: RunOutput,
}

/// The arguments that `run` and `up` share.
#[derive(Debug, clap::Args)]
pub struct LaunchArguments {
    /// The team [default: the only one in the config]
    pub team: Option<String>,
    /// The goal of the team [default: the config's]
    goal: Option<String>,
    /// The same as GOAL
    #[arg(long = "goal", value_name = "TEXT", hide = true, conflicts_with = "goal")]
    goal_option: Option<String>,
    /// A plan file to import tasks from
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// The format of what is printed
    #[arg(long, value_enum, value_name = "FORMAT")]
    output_format: Option<OutputFormat>,
    /// The form of the progress if there is no interactive session [default: live on a terminal, else plain]
    #[arg(long, value_enum, value_name = "HOW", env = "BRIGADE_PROGRESS", hide_env_values = true)]
    progress: Option<Progress>,
    #[command(flatten)]
    trust: TrustFlag,
}

/// Launch a team, and keep it running until it is stopped
///
/// The team follows agent_state.json. `--mode` sets the mode in it; without the file the mode is `continuous`.
#[derive(Debug, clap::Args)]
pub struct Up {
    #[command(flatten)]
    arguments: LaunchArguments,
    /// The desired state to start with
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
        let lifetime = Lifetime::FollowState(self.mode);
        let may_interact = !self.headless;
        self.arguments.launch(context, lifetime, may_interact, launcher)
    }
}

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

impl LaunchArguments {
    /// Checks everything and launches the team. `may_interact` allows an interactive session on a terminal.
    ///
    /// # Errors
    /// The config, the plan or the workspace is invalid, or the team cannot be launched.
    pub fn launch(
        self,
        context: &Context,
        lifetime: Lifetime,
        may_interact: bool,
        launcher: Launcher,
    ) -> CliResult<CommandAnswer> {
        let exit = launcher(self.prepare(context, lifetime, may_interact)?)?;
        Ok(CommandAnswer::text(String::new()).exit(exit))
    }

    fn prepare(self, context: &Context, lifetime: Lifetime, may_interact: bool) -> CliResult<LaunchRequest> {
        let config = context.workspace.location.config()?;
        config.check_variables()?;
        let name = self.select_team(&config, lifetime)?;
        let format = self.format(context);
        let flags = TeamFlags { goal: self.goal.or(self.goal_option), plan: self.plan };
        let mut resolved = config.team(&name, &flags)?;
        check_lead_has_model(&resolved.spec, flags.goal.as_deref(), lifetime.is_cleanup())?;
        let workspace = context.workspace.folder()?;
        let plans = read_plans(&resolved.spec.plans, &workspace, resolved.accepts_for_plan())?;
        // A pipe can be read only once.
        resolved.spec.plans.retain(|path| path.is_file());
        let control_files = context.workspace.location.control_files(&resolved.spec.plans)?;
        let tasks: Vec<_> = plans.iter().flat_map(|plan| &plan.tasks).map(named_task).collect();
        warn_of_skipped_blocks(context, Some(&resolved.spec), &tasks);
        if format == OutputFormat::Text
            && let Some(note) = nesting_note(context, &workspace)
        {
            context.note(&note);
        }
        let is_at_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        // A background job of a shell must not read the terminal.
        let has_terminal = format == OutputFormat::Text && is_at_terminal && terminal::is_in_foreground();
        let can_draw = format == OutputFormat::Text && std::io::stdout().is_terminal() && terminal::can_draw();
        let question = Question {
            config: &config,
            resolved: &resolved,
            workspace: &workspace,
            purpose: lifetime.purpose(),
            trust: self.trust,
            is_text: format == OutputFormat::Text,
        };
        consent::confirm_launch(context, &question, &plans)?;
        let plan: Vec<NewTask> = plans.into_iter().flat_map(|plan| plan.tasks).collect();
        let goal = flags.goal.filter(|goal| !goal.trim().is_empty());
        // A plan replaces the goal of the config.
        let has_goal = goal.is_some() || resolved.spec.goal.is_some() && plan.is_empty();
        let is_interactive = may_interact && has_terminal;
        if may_interact && format == OutputFormat::Text && is_at_terminal && !is_interactive {
            let stop = OrderForm::Stop { now: false };
            let hint = hint!["the team runs in the background: ", ApiQuestion::Team, " shows it, ", stop, " stops it"];
            context.note(&context.hint(hint));
        }
        let progress = match self.progress {
            Some(Progress::Live) | None if can_draw && !is_interactive => Progress::Live,
            Some(Progress::Quiet) if !is_interactive => Progress::Quiet,
            _ => Progress::Plain,
        };
        Ok(LaunchRequest {
            repl: is_interactive.then(|| Repl::new(context.clone(), name)),
            run_output: RunOutput::new(
                format,
                progress,
                context.output,
                &resolved.spec,
                workspace.clone(),
                context.commands(),
                has_goal,
            ),
            spec: resolved.spec,
            durability: resolved.durability,
            lifetime,
            goal,
            plan,
            workspace,
            control_files,
            named_config: context.workspace.location.named_config(),
        })
    }

    fn format(&self, context: &Context) -> OutputFormat {
        let default = if context.output.json { OutputFormat::Json } else { OutputFormat::Text };
        self.output_format.unwrap_or(default)
    }

    /// Returns the name of the team. The hint for a wrong name is a whole command: a goal may have been typed in place of the team.
    fn select_team(&self, config: &Config, lifetime: Lifetime) -> CliResult<String> {
        let verb = lifetime.purpose().verb();
        config.select(self.team.as_deref()).map_err(|error| {
            let hint = match &error {
                ConfigError::AmbiguousTeam(known) => {
                    known.first().map(|team| line(format!("{verb} {}", shell_word(team))))
                }
                ConfigError::UnknownTeam { name, known } if name.contains(' ') => {
                    let goal = name.replace(['"', '`', '$', '\\', '!'], "");
                    known.first().map(|team| line(format!("{verb} {} {}", shell_word(team), shell_word(&goal))))
                }
                _ => None,
            };
            let error = CliError::from(error);
            match hint {
                Some(hint) => error.hint(hint),
                None => error,
            }
        })
    }
}

/// Returns the place and the subject of a task of a plan, and its description.
fn named_task(task: &NewTask) -> (String, &str) {
    (format!("line {}, {}", task.source_line.unwrap_or(0), task.subject), &task.description)
}

/// Warns about the code blocks of tasks that a `runbook` member skips.
pub(in crate::front) fn warn_of_skipped_blocks(context: &Context, spec: Option<&TeamSpec>, tasks: &[(String, &str)]) {
    if context.output.json || !spec.is_some_and(TeamSpec::runs_blocks) {
        return;
    }
    for (name, description) in tasks {
        for language in shell_blocks::skipped_languages(description) {
            let shells = shell_blocks::SHELLS.join(", ");
            let text = format!("{name}: its `{language}` block is not run; blocks that run: {shells}");
            context.note(&warning(&one_line(&text)));
        }
    }
}

/// Parses one of these modes. The help lists each and its effect.
pub fn mode_parser(modes: &[Mode]) -> impl TypedValueParser<Value = Mode> + use<> {
    let values: Vec<PossibleValue> =
        modes.iter().map(|mode| PossibleValue::new(mode.as_str()).help(effect(*mode))).collect();
    PossibleValuesParser::new(values).map(|word| Mode::from_word(&word).unwrap_or(Mode::Pause))
}

fn effect(mode: Mode) -> &'static str {
    match mode {
        Mode::Continuous => "Work until the goal is met or the team is stopped",
        Mode::RunOnce => "Run one session, then pause",
        Mode::RunCleanup => "Run one session led by prompts/cleanup.md, then pause",
        Mode::Pause => "Finish running tasks and start no others",
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
