//! `task_create`: adds a task to the board.

use std::sync::Arc;

use super::prelude::*;
use crate::domain::task::{NewTask, Task, TaskId, TaskStatus};
use crate::domain::transition::{Actor, ActorKind};

/// The longest subject, in characters.
pub(super) const SUBJECT_CHARS_MAX: usize = 200;
/// The longest description, in bytes.
const DESCRIPTION_BYTES_MAX: usize = 64 * 1024;

/// Adds a task with one outcome that can be checked. Returns its number.
#[derive(Deserialize, JsonSchema)]
pub(super) struct TaskCreate {
    subject: String,
    /// Files, goal, how to check
    description: String,
    /// Tasks to complete first
    #[serde(default)]
    blocked_by: Vec<TaskId>,
    /// Roles that can do it; omit for all
    #[serde(default)]
    requires: Vec<String>,
    /// Command that exits 0 once it is done
    verify: Option<String>,
    /// Higher is claimed first
    #[serde(default)]
    #[schemars(extend("shown_to" = "lead"))]
    priority: i64,
}

impl TypedTool for TaskCreate {
    const NAME: &'static str = "task_create";

    fn about(&self) -> String {
        self.subject.clone()
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let (subject, description) = (checked_subject(&self.subject)?, checked_description(self.description)?);
        refuse_copy(&subject, &description, self.verify.as_deref(), context).await?;
        let task = NewTask {
            subject,
            description,
            blocked_by: self.blocked_by,
            requires: self.requires,
            verify: self.verify.filter(|verify| !verify.trim().is_empty()),
            priority: self.priority,
            ..NewTask::default()
        };
        let created = context.stores.board.create(&actor(context), vec![task], false).await?;
        let lines: Vec<String> =
            created.iter().map(|task| format!("created task {}: {}", task.id, task.subject)).collect();
        Ok(ToolOutput::text(lines.join("\n")))
    }
}

/// Refuses a copy of an open task, and a task with the subject of the one that the member holds. Small models add them in place of the
/// work, again and again.
async fn refuse_copy(
    subject: &str,
    description: &str,
    verify: Option<&str>,
    context: &ToolContext,
) -> Result<(), ToolError> {
    let held = context.caller.claim.borrow().map(|claim| claim.task);
    let view = context.stores.board.view().await?;
    let is_copy = |task: &&Arc<Task>| {
        let is_open = matches!(task.status, TaskStatus::Pending | TaskStatus::InProgress);
        let is_same = task.subject.trim().eq_ignore_ascii_case(subject);
        let has_same_content =
            task.description == description || (verify.is_some() && task.verify.as_deref() == verify);
        is_open && is_same && (held == Some(task.id) || has_same_content)
    };
    match view.tasks.values().find(is_copy) {
        Some(task) if held == Some(task.id) => Err(ToolError::Recoverable(format!(
            "you hold this task already: it is task {}; do it, and report it with `task_update`",
            task.id
        ))),
        Some(task) => Err(ToolError::Recoverable(format!("task {} is the same, and is not done yet", task.id))),
        None => Ok(()),
    }
}

pub(super) fn actor(context: &ToolContext) -> Actor {
    Actor::new(context.caller.name.as_str(), if context.caller.is_lead { ActorKind::Lead } else { ActorKind::Teammate })
}

/// Checks a subject: one line of at most [`SUBJECT_CHARS_MAX`].
pub(super) fn checked_subject(subject: &str) -> Result<String, ToolError> {
    let subject = subject.trim();
    let error = if subject.is_empty() {
        "argument `subject` is empty".to_owned()
    } else if subject.contains(['\n', '\r']) {
        "argument `subject` must be one line; put the rest into `description`".to_owned()
    } else if subject.chars().count() > SUBJECT_CHARS_MAX {
        format!("argument `subject` has more than {SUBJECT_CHARS_MAX} characters; put the rest into `description`")
    } else {
        return Ok(subject.to_owned());
    };
    Err(ToolError::Recoverable(error))
}

pub(super) fn checked_description(description: String) -> Result<String, ToolError> {
    check_size("description", &description, DESCRIPTION_BYTES_MAX, "; write it into a file and name the file")?;
    Ok(description)
}
