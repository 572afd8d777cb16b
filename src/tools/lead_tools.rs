//! The lead's tools for the team: `spawn_teammate`, `list_teammates` and `goal_done`.

use serde_json::Value;

use super::adapter::{TypedTool, text_argument};
use super::arguments::{Arguments, Parameter, ParameterType, required};
use super::{ToolContext, ToolEffect, ToolError, ToolOutput};
use crate::domain::name::Name;

pub(super) struct SpawnTeammate;

#[async_trait::async_trait]
impl TypedTool for SpawnTeammate {
    const NAME: &'static str = "spawn_teammate";
    const DESCRIPTION: &'static str = "Starts a new teammate, or a stopped one again. It claims tasks from the board. Give it a role that tasks can require, and instructions for all its work, not for a single task. Call `list_teammates` first: an idle teammate costs nothing and takes the next task. Start a new one only if a role is missing or more tasks can be done in parallel.";
    const PARAMETERS: &'static [Parameter] = &[
        required("name", ParameterType::Text, "Its name: letters, digits, `_` and `-`"),
        required("role", ParameterType::Text, "Its role"),
        required("prompt", ParameterType::Text, "Instructions for all its work"),
    ];

    fn about(&self, input: &Value) -> String {
        format!("{} ({})", text_argument(input, "name"), text_argument(input, "role"))
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let name =
            Name::new(arguments.text("name").trim()).map_err(|error| ToolError::Recoverable(error.to_string()))?;
        if name.is_reserved() {
            return Err(ToolError::Recoverable(format!("the name `{name}` is reserved")));
        }
        let (role, prompt) = (arguments.text("role").trim(), arguments.text("prompt"));
        if role.is_empty() {
            return Err(ToolError::Recoverable("argument `role` is empty".to_owned()));
        }
        let spawned = context.team_control.spawn_teammate(&name, role, prompt).await;
        spawned.map(ToolOutput::text).map_err(ToolError::Recoverable)
    }
}

pub(super) struct ListTeammates;

#[async_trait::async_trait]
impl TypedTool for ListTeammates {
    const NAME: &'static str = "list_teammates";
    const DESCRIPTION: &'static str = "Lists every teammate: role, status, task, and what it waits for. Do not ask teammates for their status: use this.";
    const PARAMETERS: &'static [Parameter] = &[];

    fn about(&self, _: &Value) -> String {
        String::new()
    }

    async fn run(&self, _: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        Ok(ToolOutput::text(context.team_control.list_teammates().await))
    }
}

pub(super) struct GoalDone;

#[async_trait::async_trait]
impl TypedTool for GoalDone {
    const NAME: &'static str = "goal_done";
    const DESCRIPTION: &'static str = "Reports that the team's goal is met, and ends the team's work on it. Completed tasks are not enough: call it only after you have checked every part of the goal (run a command, read a file).";
    const PARAMETERS: &'static [Parameter] = &[required("summary", ParameterType::Text, "The result and the evidence")];

    fn about(&self, input: &Value) -> String {
        text_argument(input, "summary")
    }

    async fn run(&self, arguments: Arguments, _: &ToolContext) -> Result<ToolOutput, ToolError> {
        let summary = arguments.text("summary").trim().to_owned();
        if summary.is_empty() {
            return Err(ToolError::Recoverable("argument `summary` is empty".to_owned()));
        }
        Ok(ToolOutput { text: "recorded: the goal is met".to_owned(), effect: ToolEffect::GoalDone { summary } })
    }
}
