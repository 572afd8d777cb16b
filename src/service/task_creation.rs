//! Adds a task for a member, a person, or an agent of another program.

use std::sync::Arc;

use super::ServiceError;
use crate::domain::task::transition::{Actor, ActorKind};
use crate::domain::task::{NewTask, Task, TaskStatus};
use crate::ports::{Board, StoreError};

/// The longest description that a member writes, in bytes. It becomes a part of other members' contexts.
const DESCRIPTION_BYTES_MAX: usize = 64 * 1024;

/// Adds a task.
///
/// # Errors
/// The board refuses it or fails. A member adds a copy, or a long description.
pub async fn add_task(board: &dyn Board, by: &Actor, task: NewTask) -> Result<Task, ServiceError> {
    let task = task.trimmed();
    if by.kind != ActorKind::Person {
        check_description(&task.description)?;
        refuse_copy(board, by, &task).await?;
    }
    let created = board.create(by, vec![task], false).await?.pop();
    Ok(created.ok_or_else(|| StoreError::Invalid("the board took no task".to_owned()))?)
}

/// Refuses a long description of a member.
///
/// # Errors
/// The limit.
pub fn check_description(description: &str) -> Result<(), ServiceError> {
    let bytes = description.len();
    if bytes <= DESCRIPTION_BYTES_MAX {
        return Ok(());
    }
    Err(ServiceError::Refused(format!(
        "the description has {bytes} bytes, at most {DESCRIPTION_BYTES_MAX} are allowed; write it into a file and name the file"
    )))
}

/// Refuses a copy of an open task, and a task with the subject of the one that the member holds. Small models add them in place of the
/// work, again and again.
async fn refuse_copy(board: &dyn Board, by: &Actor, new: &NewTask) -> Result<(), ServiceError> {
    let is_held = |task: &Task| {
        let is_own = task.owner.as_deref().is_some_and(|owner| owner.eq_ignore_ascii_case(&by.name));
        task.status == TaskStatus::InProgress && is_own
    };
    let is_copy = |task: &&Arc<Task>| {
        let is_open = matches!(task.status, TaskStatus::Pending | TaskStatus::InProgress);
        let is_same = task.subject.trim().eq_ignore_ascii_case(&new.subject);
        let has_same_content =
            task.description == new.description || (new.verify.is_some() && task.verify == new.verify);
        is_open && is_same && (is_held(task) || has_same_content)
    };
    let text = match board.view().await?.tasks.values().find(is_copy) {
        Some(task) if is_held(task) => {
            format!("you hold this task already: it is task {}; do it, then report it", task.id)
        }
        Some(task) => format!("task {} is the same, and is not done yet", task.id),
        None => return Ok(()),
    };
    Err(ServiceError::Refused(text))
}
