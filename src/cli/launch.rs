//! From `up` and `run` to a team that can be launched: config, plan and flags, checked. Launching is the team's.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::context::{Context, candidates};
use super::error::{CliError, CliResult};
use super::exit::Exit;
use super::first_run;
use super::headless::{OutputFormat, Report};
use super::session::Session;
use crate::config::settings::PROVIDER_DEFAULT;
use crate::config::{Durability, TeamFlags};
use crate::domain::state::Mode;
use crate::domain::task::NewTask;
use crate::embed::read_plan;
use crate::models::{self, runbook};
use crate::platform::terminal;
use crate::team::spec::TeamSpec;
use crate::ui::style::{WARN, paint};
use crate::ui::text::one_line;

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
    /// The config file that the person named.
    pub named_config: Option<PathBuf>,
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
        let mut resolved = config.team(&name, &self.flags)?;
        self.refuse_what_is_dropped(&resolved.spec)?;
        let workspace = context.workspace()?;
        let read = |path: &PathBuf| read_plan(path, &workspace, resolved.accepts_for_plan());
        let plan = resolved.spec.plan.as_ref().map(read).transpose()?.unwrap_or_default();
        // A pipe is read once, and nothing that stays.
        resolved.spec.plan = resolved.spec.plan.filter(|path| path.is_file());
        let control_files = context.control_files(resolved.spec.plan.as_deref())?;
        let named = |task: &NewTask| format!("line {}, {}", task.source_line.unwrap_or(0), task.subject);
        let tasks: Vec<_> = plan.iter().map(|task| (named(task), task.description.as_str())).collect();
        note_blocks(context, Some(&resolved.spec), &tasks);
        let format = match self.format {
            Some(format) => format,
            None if context.output.json => OutputFormat::Json,
            None => OutputFormat::Text,
        };
        let is_at_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        // In the background of a shell the terminal is the shell's.
        let has_terminal = format == OutputFormat::Text && is_at_terminal && terminal::is_ours();
        let may_ask = format == OutputFormat::Text && first_run::may_ask();
        first_run::confirm(context, &workspace, &resolved.spec, &plan, may_ask)?;
        let wants_to_talk = self.may_interact && format == OutputFormat::Text && is_at_terminal;
        let is_interactive = self.may_interact && has_terminal;
        if wants_to_talk && !is_interactive {
            context.note("the team runs in the background: brigade team shows it, brigade stop stops it");
        }
        Ok(Launch {
            session: is_interactive.then(|| Session::new(context.clone(), name.clone())),
            report: Report::new(format, context.output, name, workspace.clone()).of(
                candidates(&resolved.spec),
                context.flags(),
                resolved.spec.goal.is_some(),
            ),
            spec: resolved.spec,
            durability: resolved.durability,
            lifetime: self.lifetime,
            plan,
            workspace,
            control_files,
            named_config: context.named_config(),
        })
    }
}

impl Wanted {
    /// A lead that goes by rule can use neither a goal nor a session that tidies up: nothing that was asked for is dropped in
    /// silence.
    fn refuse_what_is_dropped(&self, spec: &TeamSpec) -> CliResult<()> {
        let mode = match self.lifetime {
            Lifetime::Session(mode) => Some(mode),
            Lifetime::Obey(mode) => mode,
        };
        let goal = self.flags.goal.as_deref().filter(|goal| !goal.trim().is_empty());
        let is_cleanup = mode == Some(Mode::RunCleanup);
        // A model that cannot be had is the launch's to name.
        let goes_by_rule = || models::connect(&spec.lead.model).is_ok_and(|model| !model.thinks());
        if (goal.is_none() && !is_cleanup) || !goes_by_rule() {
            return Ok(());
        }
        let provider = &spec.lead.model.provider;
        let think = "give the lead a model that thinks: provider and model in [teams.NAME.lead]";
        let (text, hint) = match goal {
            Some(goal) => (
                format!(
                    "the lead goes by rule (provider `{provider}`) and has no use for a goal: `{}`",
                    one_line(goal)
                ),
                format!("leave it out to work on the plan and the board, or {think}"),
            ),
            None => (
                format!("the lead goes by rule (provider `{provider}`) and cannot lead a session that tidies up"),
                format!("put tasks on the board and use brigade run, or {think}"),
            ),
        };
        Err(CliError::usage(text).hint(hint))
    }
}

/// Says which blocks of a plan's tasks are not run, where a member would run the others.
pub(in crate::cli) fn note_blocks(context: &Context, spec: Option<&TeamSpec>, tasks: &[(String, &str)]) {
    let runs_blocks = |spec: &TeamSpec| spec.members.iter().any(|member| member.model.provider == PROVIDER_DEFAULT);
    if context.output.json || !spec.is_some_and(runs_blocks) {
        return;
    }
    for (name, description) in tasks {
        for language in runbook::blocks_not_run(description) {
            let shells = runbook::SHELLS.join(", ");
            let text = format!("{name}: its `{language}` block is not run: only {shells}");
            context.note(&format!("{} {}", paint(WARN, "warning:"), one_line(&text)));
        }
    }
}

/// Reads a mode.
#[must_use]
pub fn mode_parser() -> impl TypedValueParser<Value = Mode> {
    PossibleValuesParser::new(Mode::ALL.map(Mode::as_str)).map(|word| Mode::from_word(&word).unwrap_or(Mode::Pause))
}
