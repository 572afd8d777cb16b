//! `brigade tasks complete`, `fail`, `release`, `renew`, `retry`, `reopen`: each one change by the board's rules.

use std::time::Duration;

use super::several::each;
use super::show::document;
use super::verify;
use crate::cli::arguments::{By, lease, task_id};
use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::cli::first_run;
use crate::cli::output::Answer;
use crate::config::settings::PROVIDER_DEFAULT;
use crate::domain::change::{Action, Actor, ActorKind, Change, permit};
use crate::domain::name::HUMAN;
use crate::domain::request::{About, WAITS_FOR_REVIEW};
use crate::domain::task::{Task, TaskId, TaskResult, TaskStatus};
use crate::domain::time::UnixMs;
use crate::ports::Board;
use crate::stores::git::GitRepository;
use crate::stores::open::Purpose;
use crate::team::spec::{Isolation, MemberSpec, TeamSpec};
use crate::tools::review::{self, Stand, Work};
use crate::ui::text::{ago, one_line};

/// Say that a task is done
///
/// A task with a `verify` command counts as done only once that exits 0: it is run here, and on red nothing changes.
#[derive(Debug, clap::Args)]
pub struct Complete {
    /// The task's number
    #[arg(value_parser = task_id)]
    id: TaskId,
    #[command(flatten)]
    by: By,
    /// What was done
    #[arg(long, alias = "result", value_name = "TEXT", default_value = "", hide_default_value = true)]
    summary: String,
    /// What shows it: a commit, a command and its exit status
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    evidence: String,
}

impl Complete {
    pub(super) async fn run(self, context: &Context) -> CliResult<Answer> {
        let by = holder(context, &self.by, "complete", self.id).await?;
        let result = TaskResult::said(self.summary, self.evidence);
        complete(context, self.id, result, &by).await
    }
}

/// Verifies and completes a task.
pub(super) async fn complete(context: &Context, id: TaskId, mut result: TaskResult, by: &Actor) -> CliResult<Answer> {
    let board = context.board()?;
    let task = board.get(id).await?;
    // Who may not complete it need not wait for the command to be told so.
    permit(&task, Action::Complete, by).map_err(crate::ports::StoreError::from)?;
    let team = context.team_if_valid(None);
    // A person who insists answers for what is not merged or not reviewed.
    let insists = by.kind == ActorKind::Person && by.force;
    if let (Some(team), false) = (&team, insists) {
        merged(context, team, &task)?;
    }
    if let Some(command) = &task.verify {
        first_run::confirm_verify(context, &task, command)?;
        let run = verify::run(context, command, &task, &by.name).await?;
        let evidence = "verify exited 0";
        result.evidence =
            if result.evidence.is_empty() { evidence.to_owned() } else { format!("{}; {evidence}", result.evidence) };
        result.verify = Some(run);
    }
    if let (Some(team), false) = (&team, insists) {
        result.reviewed_by = reviewed(context, team, &task, &result, by).await?;
    }
    change(context, board.as_ref(), id, Change::Complete(result), by, "completed").await
}

/// A task with a worktree is completed by what is merged.
fn merged(context: &Context, team: &TeamSpec, task: &Task) -> CliResult<()> {
    if team.isolation != Isolation::Worktree || task.worktree.is_none() {
        return Ok(());
    }
    let unmerged = GitRepository::unmerged(&context.workspace()?, team.name.as_str(), team.merge_into.clone(), task.id);
    match unmerged.map_err(|error| CliError::refused(error.to_string()))?.as_slice() {
        [] => Ok(()),
        branches => {
            let message = format!("{} is not merged: its work is on {}", task.id, branches.join(", "));
            let hint = "merge it (git merge BRANCH) and complete the task again, or release it for a teammate to merge; --force completes it without";
            Err(CliError::refused(message).hint(hint))
        }
    }
}

/// Who approved it, in a team that has its tasks reviewed; asks for that where nobody did.
async fn reviewed(
    context: &Context,
    team: &TeamSpec,
    task: &Task,
    result: &TaskResult,
    by: &Actor,
) -> CliResult<Option<String>> {
    let Some(what) = &team.review else { return Ok(None) };
    let stores = context.stores(Purpose::Act).await?;
    let about = About::of(task, None);
    let waits = |id: &str, to: &str| {
        let message = format!("{} {WAITS_FOR_REVIEW}{} by {}", task.id, one_line(id), one_line(to));
        Err(CliError::refused(message)
            .hint("complete it again once it is approved: brigade review shows how it stands"))
    };
    match Stand::of(&stores.requests.all().await?, &about) {
        Stand::Approved(by) => Ok(Some(by)),
        Stand::Waits { id, to } => waits(&id, &to),
        Stand::Rejected(words) | Stand::GivenUp(words) => {
            let message = format!("the review of {} rejected it: {}", task.id, one_line(&words));
            Err(CliError::refused(message).hint("release it or fail it"))
        }
        Stand::Unasked => {
            // One that goes by rule reviews nothing.
            let is_fit = |member: &&MemberSpec| {
                !member.name.is_same(&by.name) && member.can(what) && member.model.provider != PROVIDER_DEFAULT
            };
            // No process runs for a claim by command that could read an answer by mail; a person sees it in any case.
            context.open_inboxes(&stores).await?;
            let member =
                team.members.iter().find(is_fit).filter(|_| context.who_runs().is_ok_and(|who| who.lead.is_some()));
            let to = member.map_or(HUMAN, |member| member.name.as_str());
            let (summary, verify) = (result.summary.as_str(), result.verify.as_ref());
            let work = Work { task, about, by: &by.name, summary, verify, place: String::new() };
            let (id, _) = review::ask(&stores, &work, to, context.now()).await?;
            waits(&id, to)
        }
    }
}

/// Makes one change and says so.
pub(super) async fn change(
    context: &Context,
    board: &dyn Board,
    id: TaskId,
    change: Change,
    by: &Actor,
    done: &str,
) -> CliResult<Answer> {
    let task = board.change(id, change, by).await?;
    let now = context.now();
    context.output.answer(&document(&task), || said(&task, done, now))
}

/// Makes one change to several tasks, or to none where one of them would not have it. For programs one task is an object,
/// several are a list.
async fn change_all(
    context: &Context,
    ids: &[TaskId],
    change: Change,
    by: &Actor,
    done: &'static str,
) -> CliResult<Answer> {
    let board = context.board()?;
    let act = async |id| board.change(id, change.clone(), by).await;
    let tasks = each(board.as_ref(), ids, (change.action(), done.trim_end_matches(':')), by, act).await?;
    let now = context.now();
    answer_with(context, &tasks, ids.len() > 1, || tasks.iter().map(|task| said(task, done, now)).collect())
}

/// These tasks as programs read them: a list, or the one.
pub(super) fn answer_with(
    context: &Context,
    tasks: &[Task],
    is_list: bool,
    text: impl FnOnce() -> String,
) -> CliResult<Answer> {
    let documents: Vec<_> = tasks.iter().map(document).collect();
    match documents.first().filter(|_| !is_list) {
        Some(one) => context.output.answer(one, text),
        None => context.output.answer(&documents, text),
    }
}

fn said(task: &Task, done: &str, now: UnixMs) -> String {
    let rest = match (task.status, task.not_before) {
        (TaskStatus::Failed, _) if done == "failed" => "; it is given up".to_owned(),
        (_, Some(until)) if until > now && done == "failed" => format!("; it is tried again {}", ago(until, now)),
        _ => String::new(),
    };
    format!("{done} {} {}{rest}\n", task.id, one_line(&task.subject))
}

/// Who holds the task, or a person who insists. Where neither is said, it is first of all said that nobody holds it.
pub(super) async fn holder(context: &Context, by: &By, verb: &str, id: TaskId) -> CliResult<Actor> {
    let error = match by.holder(verb, id) {
        Ok(actor) => return Ok(actor),
        Err(error) => error,
    };
    let task = context.board_to_look_at()?.get(id).await?;
    let error_of_nobody = |hint: String| {
        let message = format!("nobody holds task {id}: it is {}", task.status);
        Err(CliError::refused(message).hint(hint))
    };
    match task.status {
        TaskStatus::InProgress => Err(error),
        TaskStatus::Pending => error_of_nobody(format!("claim it first: brigade tasks claim {} --as NAME", id.0)),
        TaskStatus::Completed | TaskStatus::Failed => error_of_nobody(format!("brigade tasks show {}", id.0)),
    }
}

/// Say that an attempt failed
///
/// The task is tried again after a back-off, until its attempts are used up.
#[derive(Debug, clap::Args)]
pub struct Fail {
    /// The task's number
    #[arg(value_parser = task_id)]
    id: TaskId,
    /// What went wrong
    #[arg(long, short, value_name = "TEXT")]
    reason: String,
    /// Another attempt could not help: give the task up
    #[arg(long = "final")]
    is_final: bool,
    #[command(flatten)]
    by: By,
}

impl Fail {
    pub(super) async fn run(self, context: &Context) -> CliResult<Answer> {
        let by = holder(context, &self.by, "fail", self.id).await?;
        let fail = Change::Fail { reason: reason(self.reason)?, is_final: self.is_final };
        change(context, context.board()?.as_ref(), self.id, fail, &by, "failed").await
    }
}

fn reason(text: String) -> CliResult<String> {
    if text.trim().is_empty() {
        return Err(CliError::usage("a failure needs a reason: --reason TEXT"));
    }
    Ok(text)
}

/// Give tasks back, for others to claim
#[derive(Debug, clap::Args)]
pub struct Release {
    /// The tasks' numbers
    #[arg(required = true, value_parser = task_id)]
    ids: Vec<TaskId>,
    /// Why, for the next one
    #[arg(long, short, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    by: By,
}

impl Release {
    pub(super) async fn run(self, context: &Context) -> CliResult<Answer> {
        let mut by = None;
        for id in &self.ids {
            by = Some(holder(context, &self.by, "release", *id).await?);
        }
        let by = by.map_or_else(|| self.by.actor(), Ok)?;
        let release = Change::Release { reason: self.reason, counts: false };
        change_all(context, &self.ids, release, &by, "released").await
    }
}

/// Make the lease of a claim longer
#[derive(Debug, clap::Args)]
pub struct Renew {
    /// The task's number
    #[arg(value_parser = task_id)]
    id: TaskId,
    /// How long the claim lives from now
    #[arg(long, value_name = "TIME", value_parser = lease, default_value = "15m")]
    lease: Duration,
    #[command(flatten)]
    by: By,
}

impl Renew {
    pub(super) async fn run(self, context: &Context) -> CliResult<Answer> {
        let by = holder(context, &self.by, "renew", self.id).await?;
        let renew = Change::Renew { expires: context.now().plus(self.lease) };
        change(context, context.board()?.as_ref(), self.id, renew, &by, "renewed").await
    }
}

/// Have failed tasks tried again, their failures forgotten
#[derive(Debug, clap::Args)]
pub struct Retry {
    /// The tasks' numbers
    #[arg(required = true, value_parser = task_id)]
    ids: Vec<TaskId>,
}

impl Retry {
    pub(super) async fn run(self, context: &Context) -> CliResult<Answer> {
        let by = By::default().actor()?;
        change_all(context, &self.ids, Change::Retry, &by, "to be tried again:").await
    }
}

/// Have completed tasks done again
#[derive(Debug, clap::Args)]
pub struct Reopen {
    /// The tasks' numbers
    #[arg(required = true, value_parser = task_id)]
    ids: Vec<TaskId>,
}

impl Reopen {
    pub(super) async fn run(self, context: &Context) -> CliResult<Answer> {
        let by = By::default().actor()?;
        change_all(context, &self.ids, Change::Reopen, &by, "to be done again:").await
    }
}
