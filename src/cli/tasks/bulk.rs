//! One change to several tasks, and notes about new tasks that no teammate starts. All tasks are checked first, so that a
//! wrong number changes nothing. If a change fails after others, the error names the tasks that were changed.

use super::change::past_participle;
use crate::api::lead_status::LeadStatus;
use crate::api::members::candidates;
use crate::api::why::no_claimant;
use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::domain::task::transition::{Action, Actor, permit};
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::ports::{Board, StoreError, StoreResult};
use crate::ui::lead_status::pause;
use crate::ui::style::warning;
use crate::ui::text::{join_up_to, one_line};
use crate::ui::why::no_claimant_note;

/// The numbers without repetitions, in the given order.
fn unique(ids: &[TaskId]) -> Vec<TaskId> {
    let mut seen = std::collections::HashSet::new();
    ids.iter().copied().filter(|id| seen.insert(*id)).collect()
}

/// Calls `act` for each task if `by` may do `action` to all of them.
///
/// # Errors
/// A task refuses the action: nothing was changed. Or a change failed: the error names the tasks that were changed before.
pub(super) async fn change_each(
    board: &dyn Board,
    ids: &[TaskId],
    action: Action,
    by: &Actor,
    act: impl AsyncFn(TaskId) -> StoreResult<Task>,
) -> CliResult<Vec<Task>> {
    let ids = unique(ids);
    let done = past_participle(action);
    let mut errors = Vec::new();
    for &id in &ids {
        let permitted = board.get(id).await.and_then(|task| permit(&task, action, by).map_err(StoreError::from));
        errors.extend(permitted.err().map(CliError::from));
    }
    if let Some(error) = join_errors(errors) {
        let message = if ids.len() > 1 { format!("{}; no task was {done}", error.message) } else { error.message };
        return Err(CliError { message, ..error });
    }
    let mut tasks = Vec::with_capacity(ids.len());
    for id in ids {
        match act(id).await {
            Ok(task) => tasks.push(task),
            Err(error) => return Err(partial_failure(error.into(), &tasks, done)),
        }
    }
    Ok(tasks)
}

/// Notes about new tasks that no teammate starts: those that no member of the team can claim, and all of them if the team is paused.
pub(super) async fn waiting_notes<'a>(context: &Context, tasks: impl Iterator<Item = &'a Task>) -> Vec<String> {
    let lead_status = LeadStatus::with_state(&context.workspace).await.unwrap_or_default();
    let candidates = lead_status.spec(&context.workspace.location).as_ref().map(candidates).unwrap_or_default();
    let open = tasks.filter(|task| task.status == TaskStatus::Pending);
    let note = |task: &Task| {
        let text = format!("{} {}: {}", task.id, task.subject, no_claimant_note(&no_claimant(task, &candidates)?));
        Some(warning(&one_line(&text)))
    };
    open.filter_map(note).chain(lead_status.pause().as_ref().map(pause)).collect()
}

/// Joins the errors into one, with the first hint.
fn join_errors(errors: Vec<CliError>) -> Option<CliError> {
    let messages: Vec<String> = errors.iter().map(|error| error.message.clone()).collect();
    let first = errors.into_iter().next()?;
    Some(CliError { message: messages.join("; "), ..first })
}

fn partial_failure(error: CliError, tasks: &[Task], done: &str) -> CliError {
    if tasks.is_empty() {
        return error;
    }
    let ids: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
    let named = join_up_to(ids.iter(), usize::MAX);
    CliError { message: format!("{}; {done} before that: {named}", error.message), done: ids, ..error }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::Arc;

    use crate::domain::task::NewTask;
    use crate::domain::task::transition::{ActorKind, Change};
    use crate::domain::team::name::HUMAN;
    use crate::embed::SystemClock;
    use crate::stores::memory::board::MemoryBoard;

    #[tokio::test]
    async fn bulk_change_error_lists_tasks_already_changed() {
        let board = MemoryBoard::new(Arc::new(SystemClock), tokio::sync::broadcast::channel(8).0);
        let person = Actor::new(HUMAN, ActorKind::Person);
        let new = |subject: &str| NewTask { subject: subject.to_owned(), ..NewTask::default() };
        board.create(&person, vec![new("a"), new("b"), new("c")], false).await.unwrap();
        let delete = Action::Delete;
        let ids = [3, 3, 1, 2].map(TaskId);
        // Another actor deletes the second task after the check.
        let outcome = change_each(&board, &ids, delete, &person, async |id| {
            if id == TaskId(1) {
                board.delete(id, &person).await?;
            }
            board.delete(id, &person).await
        });
        let error = outcome.await.unwrap_err();
        assert_eq!(error.message, "there is no task #1 on the board; deleted before that: #3");
        assert!(error.to_json().contains("\"done\":[3]"), "{}", error.to_json());
        assert!(board.get(TaskId(2)).await.is_ok());
        let retry = Action::Retry;
        let change = async |id| board.change(id, Change::Retry, &person).await;
        let error = change_each(&board, &[TaskId(2), TaskId(9)], retry, &person, change).await.unwrap_err();
        assert!(error.message.ends_with("there is no task #9 on the board; no task was retried"), "{}", error.message);
        assert_eq!(error.done, []);
    }
}
