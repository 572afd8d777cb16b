//! `brigade tasks fail`, `release`, `renew`, `retry`, `reopen`: each makes one change by the board's rules.

use std::time::Duration;

use crate::api::task::{self, document};
use crate::domain::task::task_error::TaskError;
use crate::domain::task::transition::{Action, Actor, ActorKind, Change, permit};
use crate::domain::task::{Task, TaskId, TaskResult, TaskStatus};
use crate::domain::team::name::HUMAN;
use crate::domain::time::UnixMs;
use crate::front::cli::arguments::{ActingAs, lease, number, task_id, text};
use crate::front::cli::context::Context;
use crate::front::cli::error::{CliError, CliResult};
use crate::front::cli::output::CommandAnswer;
use crate::front::text::command_form::shell_word;
use crate::front::text::lines::{ago, one_line};
use crate::ports::StoreError;

/// Changes one task. Returns the changed task as the answer.
pub(in crate::front) async fn change(
    context: &Context,
    id: TaskId,
    change: Change,
    by: &Actor,
) -> CliResult<CommandAnswer> {
    let action = change.action();
    let task = task::change(&context.workspace, id, change, by).await?;
    changed(context, &task, action)
}

/// Returns a changed task as the answer.
pub(super) fn changed(context: &Context, task: &Task, action: Action) -> CliResult<CommandAnswer> {
    context.output.answer(&document(task), || change_text(task, action, context.workspace.now()))
}

/// Makes one change to several tasks, or to none if one of them refuses it.
async fn change_all(context: &Context, ids: &[TaskId], change: Change, by: &Actor) -> CliResult<CommandAnswer> {
    let action = change.action();
    let now = context.workspace.now();
    let tasks = task::change_each(&context.workspace, ids, change, by).await?;
    tasks_answer(context, &tasks, ids.len() > 1, || tasks.iter().map(|task| change_text(task, action, now)).collect())
}

/// Returns the tasks as an answer. In JSON they are a list. Without `is_list`, the first task is the answer.
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
    format!("{} {} {}{rest}\n", action.past_participle(), task.id, one_line(&task.subject))
}

/// Returns the actor: the named holder, or a person with `--force`. If neither is given, the error names the holder.
pub(in crate::front) async fn holder_or_person(
    context: &Context,
    by: &ActingAs,
    action: Action,
    id: TaskId,
) -> CliResult<Actor> {
    if (by.name.is_some() && by.attempt.is_some()) || by.force {
        return by.actor();
    }
    let task = task::find(&context.workspace, id).await?;
    if task.status != TaskStatus::InProgress {
        let word = task.status_word().into_owned();
        return Err(StoreError::from(TaskError::WrongStatus { task: id, action, status: task.status, word }).into());
    }
    Err(not_holder(&task, by, action))
}

/// The error of a change that names neither the holder of the task nor `--force`. Its hint has the options that the board accepts.
fn not_holder(task: &Task, by: &ActingAs, action: Action) -> CliError {
    let (id, verb) = (task.id, action.verb());
    let owner = one_line(task.owner.as_deref().unwrap_or("another program"));
    let (error, claim) = match by.name.as_deref() {
        Some(name) if !name.eq_ignore_ascii_case(&owner) => {
            (CliError::refused(format!("cannot {verb} {id}: {owner} holds it, not {}", one_line(name))), None)
        }
        _ if task.is_foreign() => {
            (CliError::usage(format!("cannot {verb} {id}: {owner} holds it without a claim")), None)
        }
        name => {
            let missing = if name.is_none() { "--as and --attempt are missing" } else { "--attempt is missing" };
            let error = CliError::usage(format!("cannot {verb} {id}: {missing}; {owner} holds it"));
            (error, Some(format!("add `--as {} --attempt {}`", shell_word(&owner), task.attempt)))
        }
    };
    let can_force = permit(task, action, &Actor::new(HUMAN, ActorKind::Person).forcing(true)).is_ok();
    match claim {
        Some(claim) if can_force => error.hint(format!("{claim}, or --force as a person")),
        Some(claim) => error.hint(claim),
        None if can_force => error.hint(format!("add --force to override {owner} as a person")),
        None => error,
    }
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
        let by = holder_or_person(context, &self.by, Action::Fail, self.id).await?;
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
        // The actor is the same for all tasks. An error names the first one.
        let by = holder_or_person(context, &self.by, Action::Release, self.ids[0]).await?;
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
    /// The holder of the task
    #[arg(long = "as", value_name = "NAME")]
    name: Option<String>,
    /// The attempt that `tasks claim` printed, such as 1; an older one is refused
    #[arg(long, value_name = "N", requires = "name", value_parser = number::<u32>(0..=u32::MAX.into()))]
    attempt: Option<u32>,
}

impl Renew {
    pub(super) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let by = ActingAs { name: self.name, attempt: self.attempt, force: false };
        let by = holder_or_person(context, &by, Action::Renew, self.id).await?;
        let renew = Change::Renew { expires: context.workspace.now().plus(self.lease) };
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
