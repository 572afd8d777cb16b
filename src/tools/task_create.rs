//! `task_create`: new work on the board.

use serde_json::Value;

use super::arguments::{Arguments, Kind, Parameter, optional, required};
use super::checked::{Checked, text_of};
use super::{ToolContext, ToolError, ToolOutput};
use crate::domain::change::{Actor, ActorKind};
use crate::domain::task::NewTask;

/// The longest subject, in characters.
pub(super) const SUBJECT_CHARS_MAX: usize = 200;
/// The longest description, in bytes.
pub(super) const DESCRIPTION_BYTES_MAX: usize = 64 * 1024;

pub(super) struct TaskCreate;

#[async_trait::async_trait]
impl Checked for TaskCreate {
    const NAME: &'static str = "task_create";
    const DESCRIPTION: &'static str = "Puts a task on the board; a fit teammate claims it by itself. One task has one outcome that can be checked, and can be done by somebody who reads nothing but it. Gives back its number.";
    const PARAMETERS: &'static [Parameter] = &[
        required("subject", Kind::Text, "What is to be done, in one line"),
        required(
            "description",
            Kind::Text,
            "All that is needed to do it: which files, what is wanted, how one sees that it is done",
        ),
        optional("blocked_by", Kind::Tasks, "Numbers of the tasks that must be completed first, and only those"),
        optional(
            "requires",
            Kind::Texts,
            "Roles or capabilities, one of which is needed; left out when anyone can do it",
        ),
        optional("verify", Kind::Text, "A shell command that must exit 0 before it counts as completed"),
        optional("priority", Kind::Integer, "Higher is claimed first; 0 if not given"),
    ];

    fn about(&self, input: &Value) -> String {
        text_of(input, "subject")
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let task = NewTask {
            subject: checked_subject(arguments.text("subject"))?,
            description: checked_description(arguments.text("description"))?,
            blocked_by: arguments.tasks("blocked_by"),
            requires: arguments.texts("requires").unwrap_or_default(),
            verify: arguments.optional_text("verify").filter(|verify| !verify.trim().is_empty()).map(str::to_owned),
            priority: arguments.integer("priority").unwrap_or(0),
            ..NewTask::default()
        };
        let created = context.stores.board.create(&actor(context), vec![task], false).await?;
        let lines: Vec<String> =
            created.iter().map(|task| format!("created task {}: {}", task.id, task.subject)).collect();
        Ok(ToolOutput::text(lines.join("\n")))
    }
}

/// The caller, without a claim.
pub(super) fn actor(context: &ToolContext) -> Actor {
    Actor::new(context.name.as_str(), if context.is_lead { ActorKind::Lead } else { ActorKind::Teammate })
}

/// A subject as the board takes it: one line, not too long.
pub(super) fn checked_subject(subject: &str) -> Result<String, ToolError> {
    let subject = subject.trim();
    let says = if subject.is_empty() {
        "argument `subject` is empty".to_owned()
    } else if subject.contains(['\n', '\r']) {
        "argument `subject` must be one line; the rest belongs into `description`".to_owned()
    } else if subject.chars().count() > SUBJECT_CHARS_MAX {
        format!("argument `subject` has more than {SUBJECT_CHARS_MAX} characters; the rest belongs into `description`")
    } else {
        return Ok(subject.to_owned());
    };
    Err(ToolError::Mendable(says))
}

/// A description as the board takes it.
pub(super) fn checked_description(description: &str) -> Result<String, ToolError> {
    if description.len() > DESCRIPTION_BYTES_MAX {
        return Err(ToolError::Mendable(format!(
            "argument `description` has {} bytes, at most {DESCRIPTION_BYTES_MAX} are taken; write it into a file and name that",
            description.len()
        )));
    }
    Ok(description.to_owned())
}
