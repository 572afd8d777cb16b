//! Changes of tasks, each by the rules of the board.
//!
//! A change is on the board when its function returns. After a crash in between, the board has all of it or nothing.

use crate::api::next::OrderForm;
use crate::api::question::Question;
use std::collections::HashSet;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use crate::api::outcome::{TaskDocument, task_document};
use crate::api::workspace::Workspace;
use crate::api::{ApiResult, Refusal, members};
use crate::domain::task::plan_update::plan_of;
use crate::domain::task::task_error::TaskError;
use crate::domain::task::transition::{Action, Actor, Change, TaskEdit, permit};
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::domain::team::name::{ALL, Name, SYSTEM};
use crate::domain::text::units::join_up_to;
use crate::ports::{Board, BoardView, StoreError, StoreResult};
use crate::service::completion::TaskReport;
use crate::stores::workspace::OpenMode;

/// Checks the name that a program acts under.
///
/// # Errors
/// The name is invalid, or reserved for broadcasts or for Brigade.
pub fn acting_name(text: &str) -> ApiResult<Name> {
    let name = Name::new(text)?;
    if name.is_same(ALL) || name.is_same(SYSTEM) {
        return Err(Refusal::invalid(format!("cannot act as `{name}`: the name is reserved")));
    }
    Ok(name)
}

/// Returns the task from its file.
///
/// # Errors
/// There is no such task, or its file is invalid.
pub async fn find(workspace: &Workspace, id: TaskId) -> ApiResult<Task> {
    Ok(workspace.board(OpenMode::ReadOnly).await?.get(id).await?)
}

/// Returns the board: all tasks, and the files that are none.
///
/// # Errors
/// The workspace does not exist, or the board cannot be read.
pub async fn board(workspace: &Workspace) -> ApiResult<Arc<BoardView>> {
    Ok(workspace.board(OpenMode::ReadOnly).await?.view().await?)
}

/// The refusal of a change. If the claim is over and the task is pending, its next step is that this actor claims it again.
pub(super) fn refusal(error: StoreError, by: &Actor) -> Refusal {
    match &error {
        StoreError::Refused(TaskError::Stale { task, status: TaskStatus::Pending, .. }) => {
            let next = OrderForm::Claim { task: Some(*task), by: Some(by.name.clone()) };
            Refusal::from(error).next(next)
        }
        _ => error.into(),
    }
}

/// Makes one change to a task. Returns the task after it.
///
/// # Errors
/// The board refuses the change, or cannot be written.
pub async fn change(workspace: &Workspace, id: TaskId, change: Change, by: &Actor) -> ApiResult<Task> {
    let board = workspace.board(OpenMode::Write).await?;
    board.change(id, change, by).await.map_err(|error| refusal(error, by))
}

/// Changes the texts, the dependencies or the limits of a task. Returns the task after it.
///
/// # Errors
/// As [`change`]. Or the task does not wait for a dependency that is to be removed, or cannot be reserved for this owner.
pub async fn edit(workspace: &Workspace, id: TaskId, edit: TaskEdit, by: &Actor) -> ApiResult<Task> {
    check_owner(workspace, edit.owner.as_deref()).await?;
    let task = find(workspace, id).await?;
    if let Some(other) = edit.remove_blocked_by.iter().find(|other| !task.blocked_by.contains(other)) {
        return Err(Refusal::refused(format!("cannot change {id}: it does not wait for {other}"))
            .next(Question::Task { task: id }));
    }
    change(workspace, id, Change::Edit(edit), by).await
}

/// Refuses a reserved name, and a teammate's name in another case: claims compare names exactly. Other names may belong to agents of
/// other programs.
pub(super) async fn check_owner(workspace: &Workspace, owner: Option<&str>) -> ApiResult<()> {
    let Some(owner) = owner.filter(|owner| !owner.is_empty()) else { return Ok(()) };
    acting_name(owner)?;
    let teammates = members::all_names(workspace).await;
    let meant = teammates.iter().find(|name| name.eq_ignore_ascii_case(owner));
    match meant.filter(|name| *name != owner) {
        Some(name) => {
            let message = format!("cannot reserve the task for `{owner}`: there is no such teammate");
            Err(Refusal::refused(message).next(format!("did you mean `{name}`?")))
        }
        None => Ok(()),
    }
}

/// The change that gives a task another status.
#[derive(Debug, Clone)]
pub enum StatusChange {
    /// The task is completed with this report.
    Complete(TaskReport),
    /// The board changes it.
    Change(Box<Change>),
}

impl StatusChange {
    /// Returns the change that gives this task `status`: `pending` retries a failed task, reopens a completed one and releases one in
    /// progress.
    ///
    /// # Errors
    /// Only a claim sets `in_progress`, the task is pending already, or its status is a word of another program.
    pub fn of(task: &Task, status: TaskStatus, reason: String) -> ApiResult<Self> {
        let id = task.id;
        Ok(match (task.status, status) {
            (TaskStatus::Unknown, _) => {
                let refusal = Refusal::refused(format!("cannot change {id}: its status is another program's word"));
                return Err(refusal.next(Question::Why { task: Some(id) }));
            }
            (_, TaskStatus::InProgress | TaskStatus::Unknown) => {
                return Err(Refusal::invalid("cannot set `in_progress`: only a claim does that")
                    .next(OrderForm::Claim { task: Some(id), by: None }));
            }
            (_, TaskStatus::Completed) => Self::Complete(TaskReport { summary: reason, ..TaskReport::default() }),
            (_, TaskStatus::Failed) => Self::Change(Box::new(Change::Fail { reason, is_final: true })),
            (TaskStatus::Failed, _) => Self::Change(Box::new(Change::Retry)),
            (TaskStatus::Completed, _) => Self::Change(Box::new(Change::Reopen)),
            (TaskStatus::InProgress, _) => Self::Change(Box::new(Change::Release { reason, is_failure: false })),
            (TaskStatus::Pending, _) => return Err(Refusal::refused(format!("task {id} is already pending"))),
        })
    }
}

/// Makes one change to several tasks. All are checked first, so that a wrong number changes nothing. Returns them after it.
///
/// # Errors
/// A task refuses the change: nothing was changed. Or a change failed: the refusal names the tasks that were changed before.
pub async fn change_each(workspace: &Workspace, ids: &[TaskId], change: Change, by: &Actor) -> ApiResult<Vec<Task>> {
    let board = workspace.board(OpenMode::Write).await?;
    let act = |id| board.change(id, change.clone(), by);
    act_on_each(board.as_ref(), ids, change.action(), by, act).await
}

/// A task that was deleted.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct DeletedTask {
    /// The task.
    #[serde(serialize_with = "task_document")]
    #[schemars(with = "TaskDocument")]
    pub task: Task,
    /// The folder of its worktree, relative to the workspace, if it is still there.
    pub worktree: Option<String>,
    /// The plan that adds the task again at its next import.
    pub plan: Option<String>,
}

/// Deletes tasks. Their numbers are never used again. Their worktrees stay.
///
/// # Errors
/// As [`change_each`].
pub async fn delete_each(workspace: &Workspace, ids: &[TaskId], by: &Actor) -> ApiResult<Vec<DeletedTask>> {
    let board = workspace.board(OpenMode::Write).await?;
    let delete = |id| board.delete(id, by);
    let tasks = act_on_each(board.as_ref(), ids, Action::Delete, by, delete).await?;
    let folder = workspace.folder()?;
    let deleted = |task: Task| DeletedTask {
        worktree: task.worktree.clone().filter(|worktree| folder.join(worktree).is_dir()),
        plan: task.source().and_then(|source| plan_of(&source, &task.subject).map(str::to_owned)),
        task,
    };
    Ok(tasks.into_iter().map(deleted).collect())
}

/// Calls `act` for each task if `by` may do `action` to all of them.
async fn act_on_each<F: Future<Output = StoreResult<Task>> + Send>(
    board: &dyn Board,
    ids: &[TaskId],
    action: Action,
    by: &Actor,
    act: impl Fn(TaskId) -> F,
) -> ApiResult<Vec<Task>> {
    let mut seen = HashSet::new();
    let ids: Vec<TaskId> = ids.iter().copied().filter(|id| seen.insert(*id)).collect();
    let mut refusals = Vec::new();
    for &id in &ids {
        let permitted = board.get(id).await.and_then(|task| permit(&task, action, by).map_err(StoreError::from));
        refusals.extend(permitted.err().map(|error| refusal(error, by)));
    }
    if let Some(refusal) = join(refusals) {
        let done = action.past_participle();
        let message = if ids.len() > 1 { format!("{}; no task was {done}", refusal.message) } else { refusal.message };
        return Err(Refusal { message, ..refusal });
    }
    let mut tasks = Vec::with_capacity(ids.len());
    for id in ids {
        match act(id).await {
            Ok(task) => tasks.push(task),
            Err(error) => return Err(partial_failure(refusal(error, by), &tasks, action)),
        }
    }
    Ok(tasks)
}

/// Joins the refusals into one, with the first next step.
fn join(refusals: Vec<Refusal>) -> Option<Refusal> {
    let messages: Vec<String> = refusals.iter().map(|refusal| refusal.message.clone()).collect();
    let first = refusals.into_iter().next()?;
    Some(Refusal { message: messages.join("; "), ..first })
}

fn partial_failure(refusal: Refusal, tasks: &[Task], action: Action) -> Refusal {
    if tasks.is_empty() {
        return refusal;
    }
    let done: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
    let named = join_up_to(done.iter(), usize::MAX);
    let message = format!("{}; {} before that: {named}", refusal.message, action.past_participle());
    Refusal { message, done, ..refusal }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::task::NewTask;
    use crate::domain::task::transition::ActorKind;
    use crate::domain::team::name::HUMAN;
    use crate::embed::SystemClock;
    use crate::stores::memory::board::MemoryBoard;

    #[tokio::test]
    async fn bulk_change_refusal_lists_tasks_already_changed() {
        let board = MemoryBoard::new(Arc::new(SystemClock), tokio::sync::broadcast::channel(8).0);
        let person = Actor::new(HUMAN, ActorKind::Person);
        let new = |subject: &str| NewTask { subject: subject.to_owned(), ..NewTask::default() };
        board.create(&person, vec![new("a"), new("b"), new("c")], false).await.unwrap();
        let delete = Action::Delete;
        let ids = [3, 3, 1, 2].map(TaskId);
        // Another actor deletes the second task after the check.
        let act = async |id| {
            if id == TaskId(1) {
                board.delete(id, &person).await?;
            }
            board.delete(id, &person).await
        };
        let outcome = act_on_each(&board, &ids, delete, &person, act);
        let refusal = outcome.await.unwrap_err();
        assert_eq!(refusal.message, "there is no task #1 on the board; deleted before that: #3");
        assert_eq!(refusal.done, [TaskId(3)]);
        assert!(board.get(TaskId(2)).await.is_ok());
        let retry = Action::Retry;
        let change = |id| board.change(id, Change::Retry, &person);
        let refusal = act_on_each(&board, &[TaskId(2), TaskId(9)], retry, &person, change).await.unwrap_err();
        assert!(refusal.message.ends_with("there is no task #9 on the board; no task was retried"));
        assert_eq!(refusal.done, []);
    }
}
