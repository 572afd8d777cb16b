//! `brigade tasks complete`, `fail`, `release`, `renew`, `retry`, `reopen`: each makes one change by the board's rules.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use super::bulk::change_each;
use super::show::document;
use crate::cli::arguments::{ActingAs, lease, task_id, text};
use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::cli::first_run;
use crate::cli::members;
use crate::cli::output::CommandAnswer;
use crate::cli::running_team::RunningTeam;
use crate::domain::failure_summary;
use crate::domain::name::HUMAN;
use crate::domain::phase::ClaimRef;
use crate::domain::records::RunningCommand;
use crate::domain::state::TeammateReport;
use crate::domain::task::{Task, TaskId, TaskResult, TaskStatus};
use crate::domain::task_error::TaskError;
use crate::domain::team_spec::{Isolation, TeamSpec, ToolLimits};
use crate::domain::time::UnixMs;
use crate::domain::transition::{Action, Actor, ActorKind, Change, permit};
use crate::domain::worktree_name::{WorktreeName, team_folder};
use crate::embed::SystemClock;
use crate::ports::{StoreError, StoreResult, Stores, WorkInspector};
use crate::sandbox::filter::own_program_path;
use crate::service::ServiceError;
use crate::service::command::{CommandContext, CommandRegistry};
use crate::service::completion::{Completion, CompletionGate, Incomplete, TaskReport, WorkPlace};
use crate::service::review::{ReviewCandidate, choose_reviewer};
use crate::service::verify::Verifier;
use crate::stores::git::DriverOptions;
use crate::stores::git::inspection::GitWorkInspector;
use crate::stores::workspace::OpenMode;
use crate::ui::command_form::shell_word;
use crate::ui::text::{ago, one_line};

/// Complete a task
///
/// If the task has a `verify` command, it runs first. Unless it exits 0, nothing changes.
#[derive(Debug, clap::Args)]
pub struct Complete {
    /// The task number
    #[arg(value_parser = task_id)]
    id: TaskId,
    #[command(flatten)]
    by: ActingAs,
    /// A summary of the work
    #[arg(long, alias = "result", value_name = "TEXT", default_value = "", hide_default_value = true)]
    summary: String,
    /// The evidence: a commit, or a command and its exit status
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    evidence: String,
}

impl Complete {
    pub(super) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let by = holder(context, &self.by, Action::Complete, self.id).await?;
        let report = TaskReport { summary: self.summary, evidence: self.evidence, ..TaskReport::default() };
        complete(context, self.id, report, &by).await
    }
}

/// Completes a task if the completion gate allows it.
pub(in crate::cli) async fn complete(
    context: &Context,
    id: TaskId,
    report: TaskReport,
    by: &Actor,
) -> CliResult<CommandAnswer> {
    let task = context.board(OpenMode::Write).await?.get(id).await?;
    // This check comes before any question, so that a refusal comes at once.
    permit(&task, Action::Complete, by).map_err(|error| refusal(error.into(), by))?;
    // With --force a person takes responsibility for work that is not merged or not reviewed.
    let is_override = by.kind == ActorKind::Person && by.force;
    let team = if is_override { None } else { context.location.team_if_valid(None) };
    let inspector = match &team {
        Some(team) if team.isolation == Isolation::Worktree => Some(work_inspector(context, team)?),
        _ => None,
    };
    let inspector = inspector.as_ref().map(|inspector| inspector as &dyn WorkInspector);
    let place = WorkPlace::find(&task, by, None, inspector).await?;
    if let Some(command) = &task.verify {
        first_run::confirm_verify(context, &task, command)?;
    }
    let stores = context.stores(OpenMode::Write).await?;
    let reviewer = match &team {
        Some(team) => reviewer(context, &stores, team, by).await?,
        None => None,
    };
    let gate = CompletionGate {
        stores: &stores,
        clock: &SystemClock,
        by: by.clone(),
        verifier: verifier(context, &task, &by.name)?,
        place,
        reviewer,
        refusals: None,
    };
    let completion = gate.complete(id, report).await.map_err(|error| match error {
        ServiceError::Store(error) => refusal(error, by),
        error => CliError::refused(format!("cannot complete {id}: {error}")),
    })?;
    match completion {
        Completion::Completed(task) => {
            context.output.answer(&document(&task), || change_text(&task, Action::Complete, context.now()))
        }
        Completion::Incomplete(incomplete) => Err(incomplete_error(id, incomplete)),
    }
}

/// Keeps no record of running commands: the guard ends the command together with this process.
struct NoRegistry;

#[async_trait]
impl CommandRegistry for NoRegistry {
    async fn record_start(&self, _: RunningCommand) -> StoreResult<()> {
        Ok(())
    }

    async fn record_end(&self, _: RunningCommand) {}
}

/// Returns the runner of this task's verify command.
fn verifier(context: &Context, task: &Task, by: &str) -> CliResult<Verifier> {
    let team = context.location.team_if_valid(None);
    let limits = team.as_ref().map_or_else(ToolLimits::default, |team| team.limits.tools);
    let claim = watch::Sender::new(Some(ClaimRef::of(task)));
    let command_context = CommandContext {
        working_dir: context.location.workspace()?,
        sandbox: context.location.sandbox(team.as_ref())?,
        rules: Vec::new(),
        registry: Arc::new(NoRegistry),
        output_bytes_max: limits.output_bytes_max,
        team: team.map(|team| team.name.to_string()).unwrap_or_default(),
        teammate: by.to_owned(),
        claim: claim.subscribe(),
        confined_only_reason: None,
        variables: Vec::new(),
    };
    Ok(Verifier { context: command_context, timeout: limits.command_timeout, events: Arc::new(|_| {}) })
}

/// The error of a task that is not completed.
fn incomplete_error(id: TaskId, incomplete: Incomplete) -> CliError {
    let number = id.0;
    match incomplete {
        Incomplete::ReviewPending { id: review, to, rejection } => {
            let (review, to) = (one_line(&review), one_line(&to));
            let mut message = format!("cannot complete {id} yet: it waits for review {review} by {to}");
            if let Some(feedback) = rejection {
                message.push_str(&format!("; an earlier review rejected it: {}", one_line(&feedback)));
            }
            let review = shell_word(&review);
            CliError::refused(message).hint(format!("`brigade review approve {review}`, then complete the task again"))
        }
        Incomplete::ReviewRejected { feedback } => {
            let message = format!("cannot complete {id}: the review rejected it: {}", one_line(&feedback));
            CliError::refused(message)
                .hint(format!("`brigade tasks release {number}`, or `brigade tasks fail {number}`"))
        }
        Incomplete::Refused { refusal, .. } => {
            let evidence = failure_summary::bounded(&refusal.evidence);
            let message = format!("cannot complete {id}: {}\n{evidence}", refusal.sentence);
            CliError::refused(message.trim_end().to_owned())
                .hint("correct the work and complete the task again, or release or fail it")
        }
        Incomplete::NotMerged(work) => {
            let otherwise = "or release it for a teammate; --force skips the merge";
            let hint = match (work.branches.first(), &work.uncommitted_in) {
                (_, Some(folder)) => format!("commit it in {folder} and merge it, {otherwise}"),
                (Some(branch), None) => {
                    let folder =
                        WorktreeName::of_branch(branch).map(|name| team_folder(&name.team)).unwrap_or_default();
                    let merge = format!("git -C {} merge {}", shell_word(&folder), shell_word(branch));
                    format!("`{merge}`, then complete the task again; {otherwise}")
                }
                (None, None) => otherwise.to_owned(),
            };
            CliError::refused(format!("cannot complete {id}: {work}")).hint(hint)
        }
        Incomplete::AttemptFailed { reason } => {
            let message = format!("cannot complete {id}: {}; this attempt has failed", one_line(&reason));
            CliError::refused(message).hint(format!("`brigade why {number}`"))
        }
    }
}

/// Returns what finds unmerged work of this team's tasks.
fn work_inspector(context: &Context, team: &TeamSpec) -> CliResult<GitWorkInspector> {
    Ok(GitWorkInspector {
        workspace: context.location.workspace()?,
        team: team.name.to_string(),
        target: team.target_branch(),
        drivers: DriverOptions {
            program: own_program_path(),
            launch_sandbox: Some(context.location.sandbox(Some(team))?),
        },
    })
}

/// Returns the reviewer of the work, if the team reviews its tasks: a fit member of the running team, or else a person.
async fn reviewer(context: &Context, stores: &Stores, team: &TeamSpec, by: &Actor) -> CliResult<Option<String>> {
    let Some(required) = &team.review else { return Ok(None) };
    members::open_inboxes(context, stores).await?;
    let running = RunningTeam::with_state(context).await?;
    let (Some(state), Some(_)) = (running.state, running.lead) else {
        // Without a running team no member answers, so a person does.
        return Ok(Some(HUMAN.to_owned()));
    };
    let reports = state.teammates();
    let capabilities: Vec<Vec<String>> = reports.iter().map(|(name, report)| reviews_as(team, name, report)).collect();
    let members = reports.iter().zip(&capabilities).map(|((name, report), capabilities)| ReviewCandidate {
        name,
        capabilities,
        report: Some(report.as_ref()),
    });
    Ok(Some(choose_reviewer(required, &by.name, members, team.lead.has_model())))
}

/// Returns the capabilities by which a member can review.
fn reviews_as(team: &TeamSpec, name: &str, report: &TeammateReport) -> Vec<String> {
    match team.members.iter().find(|member| member.name.is_same(name)) {
        Some(member) if member.has_model() => member.capabilities(),
        Some(_) => Vec::new(),
        // The lead spawned it, so it has the lead's model.
        None => vec![report.role.clone()],
    }
}

/// The error of a refused change. Its hint names the actor.
fn refusal(error: StoreError, by: &Actor) -> CliError {
    match &error {
        StoreError::Refused(TaskError::Stale { task, status: TaskStatus::Pending, .. }) => {
            let hint = format!("claim it again: `brigade tasks claim {} --as {}`", task.0, shell_word(&by.name));
            CliError::from(error).hint(hint)
        }
        _ => error.into(),
    }
}

/// Makes one change.
pub(in crate::cli) async fn change(
    context: &Context,
    id: TaskId,
    change: Change,
    by: &Actor,
) -> CliResult<CommandAnswer> {
    let board = context.board(OpenMode::Write).await?;
    let action = change.action();
    let task = board.change(id, change, by).await.map_err(|error| refusal(error, by))?;
    context.output.answer(&document(&task), || change_text(&task, action, context.now()))
}

/// Makes one change to several tasks, or to none if one of them refuses it. In JSON one task is an object, several are a list.
async fn change_all(context: &Context, ids: &[TaskId], change: Change, by: &Actor) -> CliResult<CommandAnswer> {
    let board = context.board(OpenMode::Write).await?;
    let action = change.action();
    let now = context.now();
    let act = async |id| board.change(id, change.clone(), by).await;
    let tasks = change_each(board.as_ref(), ids, action, by, act).await?;
    tasks_answer(context, &tasks, ids.len() > 1, || tasks.iter().map(|task| change_text(task, action, now)).collect())
}

/// Returns the tasks as an answer: in JSON a list, or one object.
pub(super) fn tasks_answer(
    context: &Context,
    tasks: &[Task],
    is_list: bool,
    text: impl FnOnce() -> String,
) -> CliResult<CommandAnswer> {
    let documents: Vec<_> = tasks.iter().map(document).collect();
    match documents.first() {
        Some(one) if !is_list => context.output.answer(one, text),
        _ => context.output.answer(&documents, text),
    }
}

fn change_text(task: &Task, action: Action, now: UnixMs) -> String {
    let rest = match (action, task.status, task.not_before) {
        (Action::Fail, TaskStatus::Failed, _) => "; no attempts are left".to_owned(),
        (Action::Fail, _, Some(until)) if until > now => format!("; retry {}", ago(until, now)),
        (Action::Complete, ..) => {
            let caveat = task.result.as_ref().and_then(TaskResult::caveat);
            caveat.map(|caveat| format!("; {caveat}")).unwrap_or_default()
        }
        _ => String::new(),
    };
    format!("{} {} {}{rest}\n", past_participle(action), task.id, one_line(&task.subject))
}

/// Returns `completed` for `complete`.
pub(super) fn past_participle(action: Action) -> &'static str {
    match action {
        Action::Complete => "completed",
        Action::Fail => "failed",
        Action::Release => "released",
        Action::Renew => "renewed",
        Action::Retry => "retried",
        Action::Reopen => "reopened",
        Action::Delete => "deleted",
        Action::Edit | Action::EditVerify | Action::SetWorktree => "changed",
    }
}

/// Returns the actor: the named holder, or a person with `--force`. If neither is given, the error names the holder.
pub(in crate::cli) async fn holder(context: &Context, by: &ActingAs, action: Action, id: TaskId) -> CliResult<Actor> {
    if (by.name.is_some() && by.attempt.is_some()) || by.force {
        return by.actor();
    }
    let task = context.board(OpenMode::ReadOnly).await?.get(id).await?;
    if task.status != TaskStatus::InProgress {
        return Err(StoreError::from(TaskError::WrongStatus { task: id, action, status: task.status }).into());
    }
    let verb = action.verb();
    let number = id.0;
    let owner = one_line(task.owner.as_deref().unwrap_or("another program"));
    if let Some(name) = by.name.as_deref().filter(|name| !name.eq_ignore_ascii_case(&owner)) {
        return Err(CliError::refused(format!("cannot {verb} {id}: {owner} holds it, not {}", one_line(name)))
            .hint(format!("as a person, override {owner}: `brigade tasks {verb} {number} --force`")));
    }
    let missing = if by.name.is_none() { "--as and --attempt are missing" } else { "--attempt is missing" };
    let claim = format!("--as {} --attempt {}", shell_word(&owner), task.attempt);
    Err(CliError::usage(format!("cannot {verb} {id}: {missing}; {owner} holds it"))
        .hint(format!("`brigade tasks {verb} {number} {claim}`, or --force as a person")))
}

/// Report that an attempt failed
///
/// The task is retried after a back-off until its attempts are used up.
#[derive(Debug, clap::Args)]
pub struct Fail {
    /// The task number
    #[arg(value_parser = task_id)]
    id: TaskId,
    /// The reason
    #[arg(long, short, value_name = "TEXT", value_parser = text)]
    reason: String,
    /// Do not retry the task
    #[arg(long = "final")]
    is_final: bool,
    #[command(flatten)]
    by: ActingAs,
}

impl Fail {
    pub(super) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let by = holder(context, &self.by, Action::Fail, self.id).await?;
        let fail = Change::Fail { reason: self.reason, is_final: self.is_final };
        change(context, self.id, fail, &by).await
    }
}

/// Release claimed tasks, so that others can claim them
#[derive(Debug, clap::Args)]
pub struct Release {
    /// The task numbers
    #[arg(required = true, value_parser = task_id)]
    ids: Vec<TaskId>,
    /// The reason, for the next claimant
    #[arg(long, short, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    by: ActingAs,
}

impl Release {
    pub(super) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let mut by = None;
        for id in &self.ids {
            by = Some(holder(context, &self.by, Action::Release, *id).await?);
        }
        let by = by.map_or_else(|| self.by.actor(), Ok)?;
        let release = Change::Release { reason: self.reason, is_failure: false };
        change_all(context, &self.ids, release, &by).await
    }
}

/// Extend the lease of a claim
#[derive(Debug, clap::Args)]
pub struct Renew {
    /// The task number
    #[arg(value_parser = task_id)]
    id: TaskId,
    /// Length of the lease from now: a time such as 90s, 15m or 2h30m, from 1s to 7d
    #[arg(long, value_name = "TIME", value_parser = lease, default_value = "15m")]
    lease: Duration,
    #[command(flatten)]
    by: ActingAs,
}

impl Renew {
    pub(super) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let by = holder(context, &self.by, Action::Renew, self.id).await?;
        let renew = Change::Renew { expires: context.now().plus(self.lease) };
        change(context, self.id, renew, &by).await
    }
}

/// Retry failed tasks and reset their failures
#[derive(Debug, clap::Args)]
pub struct Retry {
    /// The task numbers
    #[arg(required = true, value_parser = task_id)]
    ids: Vec<TaskId>,
}

impl Retry {
    pub(super) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let by = ActingAs::default().actor()?;
        change_all(context, &self.ids, Change::Retry, &by).await
    }
}

/// Reopen completed tasks
#[derive(Debug, clap::Args)]
pub struct Reopen {
    /// The task numbers
    #[arg(required = true, value_parser = task_id)]
    ids: Vec<TaskId>,
}

impl Reopen {
    pub(super) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let by = ActingAs::default().actor()?;
        change_all(context, &self.ids, Change::Reopen, &by).await
    }
}
