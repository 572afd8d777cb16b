//! Why a change of a task is refused, in words for whoever asked for it. Who may change what is decided in [`super::change`].

use super::change::Action;
use super::task::{TaskId, TaskStatus};
use TaskStatus::{Completed, Failed, InProgress, Pending};

/// Why a change is refused. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The holder's attempt is not the present one: it lost its claim.
    #[error("attempt {given} of task {task} is stale: {}; stop working on it", stale(*present, *status, owner))]
    Stale {
        /// The task.
        task: TaskId,
        /// The attempt that was handed in.
        given: u32,
        /// The attempt the task is at.
        present: u32,
        /// Its status.
        status: TaskStatus,
        /// Its owner, or "nobody".
        owner: String,
    },
    /// The task is held, but not by who asks.
    #[error("{}", not_holder(*task, owner, by))]
    NotHolder {
        /// The task.
        task: TaskId,
        /// Who holds it.
        owner: String,
        /// Who asked.
        by: String,
    },
    /// The task's status does not allow it.
    #[error("cannot {} task {task}: it is {status}{}", action.verb(), from_hint(*action))]
    WrongStatus {
        /// The task.
        task: TaskId,
        /// What was asked.
        action: Action,
        /// Its status.
        status: TaskStatus,
    },
    /// Who asks may never do this.
    #[error("{by} may not {} task {task}: that is for {}", action.verb(), allowed(*action))]
    NotAllowed {
        /// The task.
        task: TaskId,
        /// What was asked.
        action: Action,
        /// Who asked.
        by: String,
    },
    /// Who asks may do this only with force.
    #[error("task {task} is held by {owner}: {} it only with --force", action.verb())]
    NeedsForce {
        /// The task.
        task: TaskId,
        /// What was asked.
        action: Action,
        /// Who holds it.
        owner: String,
    },
}

/// What became of a claim that is no more.
fn stale(present: u32, status: TaskStatus, owner: &str) -> String {
    match status {
        InProgress => format!("{owner} holds it as attempt {present}"),
        Pending => "its lease ran out, or it was given back, and nobody holds it now".to_owned(),
        Completed | Failed => format!("it is {status}"),
    }
}

fn not_holder(task: TaskId, owner: &str, by: &str) -> String {
    if owner == by {
        return format!(
            "task {task} is held by {owner}, who has to say which attempt; only a person or the lead can insist"
        );
    }
    format!("task {task} is held by {owner}, not by {by}")
}

fn from_hint(action: Action) -> &'static str {
    match action {
        _ if action.is_for_holder() => ", and only a task in progress can be; claim it first",
        Action::Retry => ", and only a failed task is retried",
        Action::Reopen => ", and only a completed task is reopened",
        _ => "",
    }
}

fn allowed(action: Action) -> &'static str {
    match action {
        Action::Edit => "the lead, a person, its creator or its holder",
        Action::Retry | Action::Reopen | Action::Delete => "the lead or a person",
        _ => "its holder",
    }
}
