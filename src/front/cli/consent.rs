//! The agreement of the person to what the files of a workspace run, send, store and hand over.
//!
//! A clone or an archive can contain a config, a plan, scripts of models, prompts, tasks and a `.team` folder. Brigade lists what
//! they do before it uses them, and asks. It records the list outside of the workspace, and asks again when the list changes, by
//! a pull, an agent or the person. The reasons are in `docs/decisions/consent.md`.

use crate::api::Question as ApiQuestion;
use crate::api::consent::{self as api, ConsentList, Line, Standing, is_trusted, verify_to_ask_about};
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};

use super::context::{Context, on_one_thread};
use super::error::{CliError, CliResult};
use super::surface::Surface;
use crate::api::request::steps;
use crate::api::trust::record_own;
use crate::config::resolve::Resolved;
use crate::config::{Config, TeamFlags};
use crate::domain::task::Task;
use crate::domain::team::approval::Request;
use crate::domain::team::name::Name;
use crate::domain::team::team_spec::TeamSpec;
use crate::domain::text::units::count;
use crate::domain::text::{one_line, shell_word};
use crate::embed::{self, PlanFile};
use crate::front::text::commands::{hint, line};
use crate::front::text::lines::{cut, width};
use crate::front::text::requests;
use crate::front::text::style::{WARN, paint};
use crate::platform::terminal;
use crate::sandbox::environment::TRUST_VARIABLE;

/// The most lines of a list that are shown. The settings come first; the named files contain the rest.
const LINES_SHOWN_MAX: usize = 60;
/// The widest text of a line, in columns.
const LINE_COLUMNS_MAX: usize = 160;

/// The flag by which a person agrees without being asked.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct TrustFlag {
    /// Agree to everything that the workspace's files run, send, store and hand over, without a question
    #[arg(long)]
    trust: bool,
}

/// The command that needs an agreement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Run,
    Up,
    Merge,
}

impl Purpose {
    pub(super) fn verb(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Up => "up",
            Self::Merge => "merge",
        }
    }
}

/// A team for which an agreement is needed.
pub(super) struct Question<'a> {
    pub(super) config: &'a Config,
    pub(super) resolved: &'a Resolved,
    pub(super) workspace: &'a Path,
    pub(super) purpose: Purpose,
    pub(super) trust: TrustFlag,
    /// True if the output is for people.
    pub(super) is_text: bool,
}

impl Question<'_> {
    fn team(&self) -> &Name {
        &self.resolved.spec.name
    }

    /// Asks the person about the list, unless there is an agreement, and records the answer.
    fn confirm(&self, context: &Context, list: &ConsentList) -> CliResult<()> {
        let standing = list.standing(self.workspace, self.team());
        if standing == Standing::Agreed {
            return Ok(());
        }
        if !self.trust.trust && !is_trusted(&context.workspace) {
            self.ask(context, list, standing)?;
        }
        // A merge asks about no work. The agreement to it stays.
        let keeps_work = self.purpose == Purpose::Merge;
        if let Err(error) = list.record(self.workspace, self.team(), context.workspace.now(), keeps_work, shown) {
            context.note(&format!("cannot record your agreement, so you are asked again next time: {error}"));
        }
        Ok(())
    }

    fn ask(&self, context: &Context, list: &ConsentList, standing: Standing) -> CliResult<()> {
        if self.purpose != Purpose::Merge {
            // A launch that would be refused asks nothing.
            on_one_thread(async { Ok(embed::check_launch(&self.resolved.spec, self.workspace).await?) })?;
        }
        note_reason(context, list, standing);
        let (verb, team) = (self.purpose.verb(), shell_word(self.team().as_str()));
        let action = if self.purpose == Purpose::Merge { "merge" } else { "launch the team" };
        if !self.is_text || !may_ask(context) {
            let message = format!("cannot {action}: you have not agreed to the list above, and no person can be asked");
            let command = line(format!("{verb} {team} --trust"));
            let hint = hint!["read the files, then ", command, format!(", or set {TRUST_VARIABLE}=1")];
            return Err(CliError::usage(message).hint(hint));
        }
        let question = if self.purpose == Purpose::Merge { "Merge? [y/N]" } else { "Start the team? [y/N]" };
        if ask_for_consent(context, question)? {
            return Ok(());
        }
        let hint = hint!["read the listed files, then ", line(format!("{verb} {team}")), " again"];
        Err(CliError::usage(format!("cannot {action}: you did not answer yes")).hint(hint))
    }
}

/// Before a launch, asks the person about everything that the files of the workspace do, unless the person agreed to it before.
///
/// # Errors
/// The launch would be refused, or the person does not agree. Then nothing was written.
pub(super) fn confirm_launch(context: &Context, question: &Question<'_>, plans: &[PlanFile]) -> CliResult<()> {
    let Question { config, resolved, .. } = question;
    let list = on_one_thread(async { Ok(ConsentList::of_launch(&context.workspace, config, resolved, plans).await?) })?;
    question.confirm(context, &list)?;
    record_own(question.workspace);
    Ok(())
}

/// Before a merge, asks the person about the settings of the team, unless the person agreed to them before.
///
/// # Errors
/// The person does not agree. Then nothing was changed.
pub(super) fn confirm_merge(context: &Context, team: &TeamSpec, trust: TrustFlag) -> CliResult<()> {
    let (config, workspace) = (context.workspace.location.config()?, context.workspace.folder()?);
    let resolved = config.team(team.name.as_str(), &TeamFlags::default())?;
    let list = ConsentList::of_settings(&config, &resolved, &workspace);
    let is_text = !context.output.json;
    let (config, resolved, workspace) = (&config, &resolved, &*workspace);
    Question { config, resolved, workspace, purpose: Purpose::Merge, trust, is_text }.confirm(context, &list)
}

/// Before the `verify` command of a task runs, asks the person about it, unless the person agreed to it before or the task was
/// created here. In an interactive session a team runs, so the person has already agreed.
///
/// # Errors
/// The person does not agree. Then nothing was run or written.
pub(super) fn confirm_verify(context: &Context, task: &Task, verify: &str) -> CliResult<()> {
    if context.is_in_repl() || is_trusted(&context.workspace) {
        return Ok(());
    }
    let Some(line) = verify_to_ask_about(&context.workspace, task.id, verify)? else { return Ok(()) };
    let what = "you have not agreed yet to this command, which came with the board:";
    context.note(&format!("{} {what}\n  {}", paint(WARN, "new:"), shown(&line)));
    let show = ApiQuestion::Task { task: task.id };
    if context.output.json || !may_ask(context) {
        let message = format!("cannot complete {}: you have not agreed to its verify command", task.id);
        let hint = hint![show, format!(" shows it; set {TRUST_VARIABLE}=1 to run it")];
        return Err(CliError::usage(message).hint(hint));
    }
    if ask_for_consent(context, "Run this command? [y/N]")? {
        return Ok(());
    }
    Err(CliError::usage(format!("cannot complete {}: you did not answer yes", task.id))
        .hint(hint![show, " shows the whole command"]))
}

/// Shows a call that does not fit on one line to the person at the terminal, and asks. Returns its digest; `None` without a question.
///
/// # Errors
/// The person does not agree.
pub(super) fn confirm_call(context: &Context, request: &Request) -> CliResult<Option<String>> {
    let is_at_terminal = !context.output.json && may_ask(context);
    if request.approved_digest(None).is_ok() || request.answer.is_some() || !is_at_terminal {
        return Ok(None);
    }
    let call = requests::card(request, context.workspace.now(), context.output.columns, false);
    context.print_required(&call).map_err(|error| CliError::refused(format!("cannot show the call: {error}")))?;
    if ask_for_consent(context, "Allow this call? [y/N]")? {
        return Ok(Some(request.digest()));
    }
    let [_, _, reject] = steps(request, None);
    Err(CliError::refused("the call is not allowed: you did not answer yes").hint(hint![reject, " refuses it"]))
}

/// Records the agreement to a new team, if each line of its list comes from these files, which `brigade init` wrote.
pub(super) fn record_written(context: &Context, team: &Name, config: &Path, written: &[PathBuf]) {
    if api::record_written(&context.workspace, team, config, written, shown).is_none() {
        tracing::info!("the agreement to the new team is not recorded; its first launch asks");
    }
}

/// A line of a list as people see it.
fn shown(line: &Line) -> String {
    let Line { effect, text, .. } = line;
    if width(text) <= LINE_COLUMNS_MAX {
        return format!("{effect} {text}");
    }
    let (bytes, digest) = (text.len(), line.short_digest());
    format!("{effect} {} ({bytes} bytes, digest {digest})", cut(text, LINE_COLUMNS_MAX))
}

/// Says why the person is asked, and shows the list or its difference.
fn note_reason(context: &Context, list: &ConsentList, standing: Standing) {
    let lines: Vec<String> = match standing {
        Standing::Changed { since, removed, added } => {
            let since = since.to_clock_or_date(context.workspace.now());
            let text = format!("the workspace's files do something else than you agreed to at {since}:");
            context.note(&format!("{} {text}", paint(WARN, "changed:")));
            let removed = removed.into_iter().map(|line| format!("- {line}"));
            removed.chain(added.iter().map(|line| format!("+ {}", shown(line)))).collect()
        }
        Standing::New | Standing::Agreed => {
            let text = "you have not agreed yet to what the files of this workspace do:";
            context.note(&format!("{} {text}", paint(WARN, "new:")));
            list.lines.iter().map(shown).collect()
        }
    };
    for line in lines.iter().take(LINES_SHOWN_MAX) {
        context.note(&format!("  {}", one_line(line)));
    }
    let left = lines.len().saturating_sub(LINES_SHOWN_MAX);
    if left > 0 {
        context.note(&format!("  and {} more: read the files above before you agree", count(left, "line")));
    }
}

/// Returns true if a person at the terminal can answer a question.
pub(super) fn may_ask(context: &Context) -> bool {
    let is_at_terminal = io::stdin().is_terminal() && io::stdout().is_terminal() && io::stderr().is_terminal();
    // A background job must not read the terminal, because it belongs to the shell. Sessions read it themselves.
    let owns_terminal = terminal::is_in_foreground() && matches!(context.surface(), Surface::Streams);
    is_at_terminal && owns_terminal && !is_ci()
}

/// Returns true in continuous integration. Even at a terminal no person answers there.
fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !["", "0", "false"].iter().any(|no| value == *no))
}

/// Asks a question and returns true if the person answers `y` or `yes`. An answer that was typed before the question does not count.
pub(super) fn ask_for_consent(context: &Context, question: &str) -> CliResult<bool> {
    terminal::discard_input();
    context.note(question);
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| CliError::usage(format!("cannot read the answer: {error}")))?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
