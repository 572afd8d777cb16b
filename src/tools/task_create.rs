//! `task_create`: adds a task to the board.

use super::prelude::*;
use crate::domain::task::transition::{Actor, ActorKind};
use crate::domain::task::{NewTask, TaskId};
use crate::service::task_creation::add_task;

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
        let task = NewTask {
            subject: self.subject,
            description: self.description,
            blocked_by: self.blocked_by,
            requires: self.requires,
            verify: self.verify,
            priority: self.priority,
            ..NewTask::default()
        };
        context.count_task()?;
        let created = add_task(context.stores.board.as_ref(), &actor(context), task).await?;
        Ok(ToolOutput::text(format!("created task {}: {}", created.id, created.subject)))
    }
}

pub(super) fn actor(context: &ToolContext) -> Actor {
    Actor::new(context.caller.name.as_str(), if context.caller.is_lead { ActorKind::Lead } else { ActorKind::Teammate })
}
