//! The lead's tools for the team: `spawn_teammate`, `list_teammates` and `goal_done`.

use super::prelude::*;
use crate::domain::log::event::GOAL_TOOL;
use crate::domain::team::name::Name;

/// Starts a new teammate, or a stopped one again, if a role is missing or more tasks can be done in parallel. It begins with its
/// instructions, then claims tasks. Idle teammates cost nothing and take the next task.
#[derive(Deserialize, JsonSchema)]
pub(super) struct SpawnTeammate {
    name: String,
    /// Tasks can require it
    role: String,
    /// Instructions for all its work, not for one task
    prompt: String,
}

impl TypedTool for SpawnTeammate {
    const NAME: &'static str = "spawn_teammate";

    fn about(&self) -> String {
        format!("{} ({})", self.name.clone(), self.role.clone())
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let name = Name::new(self.name.trim()).map_err(|error| ToolError::Recoverable(error.to_string()))?;
        if name.is_reserved() {
            return Err(ToolError::Recoverable(format!("the name `{name}` is reserved")));
        }
        let role = self.role.trim();
        check_not_empty("role", role)?;
        let spawned = context.team_control.spawn_teammate(&name, role, &self.prompt).await;
        spawned.map(ToolOutput::text).map_err(ToolError::Recoverable)
    }
}

/// Lists the teammates: role, status, task, and what each waits for.
#[derive(Deserialize, JsonSchema)]
pub(super) struct ListTeammates {}

impl TypedTool for ListTeammates {
    const NAME: &'static str = "list_teammates";

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let mut text = context.team_control.list_teammates().await;
        for agent in context.outside_agents().await? {
            text.push_str(&format!("\n{} ({}): {}, agent of another program", agent.name, agent.role, agent.status));
        }
        Ok(ToolOutput::text(text))
    }
}

/// Ends the team's work on the goal. Call it only after you have checked every part of the goal yourself.
#[derive(Deserialize, JsonSchema)]
pub(super) struct GoalDone {
    /// Result and evidence
    summary: String,
}

impl TypedTool for GoalDone {
    const NAME: &'static str = GOAL_TOOL;

    fn about(&self) -> String {
        self.summary.clone()
    }

    async fn run(self, _: &ToolContext) -> Result<ToolOutput, ToolError> {
        let summary = self.summary.trim().to_owned();
        check_not_empty("summary", &summary)?;
        Ok(ToolOutput { text: "recorded: the goal is met".to_owned(), effect: ToolEffect::GoalDone { summary } })
    }
}
