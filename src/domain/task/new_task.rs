//! Tasks to create.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::plan_update::ImportRecord;
use crate::domain::task::{MAX_ATTEMPTS_DEFAULT, Task, TaskId, non_blank, trimmed_words};
use crate::domain::time::UnixMs;

/// A task to create. The board assigns its id.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NewTask {
    /// A summary in one line.
    pub subject: String,
    /// The full description.
    pub description: String,
    /// Blockers on the board.
    pub blocked_by: Vec<TaskId>,
    /// Blockers among the tasks of the same call, by index.
    #[serde(skip)]
    pub blocked_by_new: Vec<usize>,
    /// The subject in the progressive form.
    pub active_form: Option<String>,
    /// Priority. Higher numbers go first.
    pub priority: i64,
    /// Roles or capabilities, one of which the claimant needs.
    pub requires: Vec<String>,
    /// A command that must exit 0 before completion.
    pub verify: Option<String>,
    /// Number of failures after which it is not retried; `None` means the default.
    pub max_attempts: Option<u32>,
    /// The most tokens of all its attempts. `None`: as the team says.
    pub tokens_max: Option<u64>,
    /// The member it is reserved for.
    pub owner: Option<String>,
    /// Its source, so that a second import creates no duplicate. Stored as `metadata.source`.
    #[serde(skip)]
    pub source: Option<String>,
    /// The line of the plan in which it starts, from 1.
    #[serde(skip)]
    pub source_line: Option<usize>,
}

impl NewTask {
    /// Returns the task as a board stores it: without spaces around its texts, empty words and empty commands.
    #[must_use]
    pub fn trimmed(self) -> Self {
        Self {
            subject: self.subject.trim().to_owned(),
            requires: trimmed_words(&self.requires),
            verify: self.verify.as_deref().and_then(non_blank),
            owner: self.owner.as_deref().and_then(non_blank),
            ..self
        }
    }

    /// Returns the task with this `id`, created by `by` at `now`. `ids` are the ids of all tasks of the call.
    pub fn into_task(self, id: TaskId, ids: &[TaskId], by: &str, now: UnixMs) -> Task {
        let mut task = Task::new(id, self.subject);
        task.description = self.description;
        task.blocked_by = self.blocked_by;
        task.blocked_by.extend(self.blocked_by_new.iter().filter_map(|index| ids.get(*index).copied()));
        task.blocked_by.sort_unstable();
        task.blocked_by.dedup();
        task.active_form = self.active_form;
        task.priority = self.priority;
        task.requires = self.requires;
        task.verify = self.verify;
        task.owner = self.owner;
        task.max_attempts = self.max_attempts.unwrap_or(MAX_ATTEMPTS_DEFAULT);
        task.tokens_max = self.tokens_max;
        task.created_by = Some(by.to_owned());
        task.created_at = Some(now);
        task.updated_at = Some(now);
        if let Some(source) = self.source {
            // The standard fields come first in the file.
            task.document = task.to_document();
            task.document.put("metadata", &serde_json::json!({ "source": source }));
            ImportRecord::of(&task).store_in(&mut task);
        }
        task
    }
}
