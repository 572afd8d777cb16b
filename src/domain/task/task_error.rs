//! Reasons why a change of a task is refused. [`super::transition`] decides who may change what.

use super::transition::Action;
use crate::domain::task::{TaskId, TaskStatus};
use TaskStatus::{Completed, Failed, InProgress, Pending, Unknown};

/// The reason why a change is refused. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// The holder's attempt is not the current one: it lost its claim.
    #[error("cannot change task {task} in attempt {attempt}: {}; stop working on it", describe_stale(*attempt, *current_attempt, *status, owner))]
    Stale {
        /// The task.
        task: TaskId,
        /// The attempt of the request.
        attempt: u32,
        /// The task's current attempt.
        current_attempt: u32,
        /// Its status.
        status: TaskStatus,
        /// Its owner.
        owner: String,
    },
    /// Another member holds the task.
    #[error("{}", describe_not_holder(*task, owner, by))]
    NotHolder {
        /// The task.
        task: TaskId,
        /// Its holder.
        owner: String,
        /// The requester.
        by: String,
    },
    /// The task's status does not allow the change.
    #[error("cannot {} task {task}: it is {word}{}", action.verb(), status_hint(*action, *status))]
    WrongStatus {
        /// The task.
        task: TaskId,
        /// The requested change.
        action: Action,
        /// Its status.
        status: TaskStatus,
        /// The word of its status in the file.
        word: String,
    },
    /// The requester may never make this change.
    #[error("{by} may not {} task {task}: only {} may", action.verb(), permitted_actors(*action))]
    NotAllowed {
        /// The task.
        task: TaskId,
        /// The requested change.
        action: Action,
        /// The requester.
        by: String,
    },
    /// The requester may make this change only with force.
    #[error("task {task} is held by {owner}: {} it with force only", action.verb())]
    NeedsForce {
        /// The task.
        task: TaskId,
        /// The requested change.
        action: Action,
        /// Its holder.
        owner: String,
    },
}

fn describe_stale(attempt: u32, current_attempt: u32, status: TaskStatus, owner: &str) -> String {
    match status {
        InProgress => format!("{owner} holds it in attempt {current_attempt}"),
        Pending if attempt > current_attempt => "it was not claimed in this attempt, and it has no holder".to_owned(),
        Pending => "its lease expired or it was released, and it has no holder".to_owned(),
        Completed | Failed => format!("it is {status}"),
        Unknown => "it has a status of another program".to_owned(),
    }
}

fn describe_not_holder(task: TaskId, owner: &str, by: &str) -> String {
    if owner == by {
        return format!(
            "task {task} is held by {owner}, who must name the attempt; only a person or the lead may use force"
        );
    }
    format!("task {task} is held by {owner}, not by {by}")
}

fn status_hint(action: Action, status: TaskStatus) -> &'static str {
    match action {
        _ if action.is_for_holder() && status == Pending => ", and this needs a task in progress; claim it first",
        Action::Delete => ", a status of another program; only force deletes it",
        _ if action.is_for_holder() => ", and this needs a task in progress",
        Action::Retry => ", and only a failed task can be retried",
        Action::Reopen => ", and only a completed task can be reopened",
        _ => "",
    }
}

fn permitted_actors(action: Action) -> &'static str {
    match action {
        Action::Edit => "the lead, a person, its creator or its holder",
        Action::EditVerify => "the lead, a person or its creator",
        Action::Retry | Action::Reopen | Action::Delete => "the lead or a person",
        _ => "its holder",
    }
}
