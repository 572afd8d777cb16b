//! The lead's tools for the team itself: `spawn_teammate`, `list_teammates`, `goal_done`.

use serde_json::Value;

use super::arguments::{Arguments, Kind, Parameter, required};
use super::checked::{Checked, text_of};
use super::{ToolContext, ToolEffect, ToolError, ToolOutput};
use crate::domain::name::Name;

pub(super) struct SpawnTeammate;

#[async_trait::async_trait]
impl Checked for SpawnTeammate {
    const NAME: &'static str = "spawn_teammate";
    const DESCRIPTION: &'static str = "Starts a new teammate, or a stopped one again. It claims tasks from the board by itself; give it a role that tasks can require, and instructions that hold for all its work, not a single task. Look at list_teammates first: an idle teammate is free and will take the next task, so start one only when more work can really be done at the same time or a role is missing.";
    const PARAMETERS: &'static [Parameter] = &[
        required("name", Kind::Text, "Its name: letters, digits, `_` and `-`"),
        required("role", Kind::Text, "Its role"),
        required("prompt", Kind::Text, "Instructions for all its work"),
    ];

    fn about(&self, input: &Value) -> String {
        format!("{} ({})", text_of(input, "name"), text_of(input, "role"))
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let name = Name::new(arguments.text("name").trim()).map_err(|error| ToolError::Mendable(error.to_string()))?;
        if name.is_reserved() {
            return Err(ToolError::Mendable(format!("the name `{name}` is reserved")));
        }
        let (role, prompt) = (arguments.text("role").trim(), arguments.text("prompt"));
        if role.is_empty() {
            return Err(ToolError::Mendable("argument `role` is empty".to_owned()));
        }
        let spawned = context.control.spawn_teammate(&name, role, prompt).await;
        spawned.map(ToolOutput::text).map_err(ToolError::Mendable)
    }
}

pub(super) struct ListTeammates;

#[async_trait::async_trait]
impl Checked for ListTeammates {
    const NAME: &'static str = "list_teammates";
    const DESCRIPTION: &'static str = "Shows every teammate: role, whether it works, is idle or stopped, its task, and what it waits for. The harness knows this; do not ask teammates how they stand.";
    const PARAMETERS: &'static [Parameter] = &[];

    fn about(&self, _: &Value) -> String {
        String::new()
    }

    async fn run(&self, _: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        Ok(ToolOutput::text(context.control.list_teammates().await))
    }
}

pub(super) struct GoalDone;

#[async_trait::async_trait]
impl Checked for GoalDone {
    const NAME: &'static str = "goal_done";
    const DESCRIPTION: &'static str = "Says that the team's goal is met, and ends the team's work on it. Call it only when all that the goal asks for is there and something shows it (a command you ran, a file you looked at), not because the tasks are over.";
    const PARAMETERS: &'static [Parameter] = &[required("summary", Kind::Text, "What was reached and what shows it")];

    fn about(&self, input: &Value) -> String {
        text_of(input, "summary")
    }

    async fn run(&self, arguments: Arguments, _: &ToolContext) -> Result<ToolOutput, ToolError> {
        let summary = arguments.text("summary").trim().to_owned();
        if summary.is_empty() {
            return Err(ToolError::Mendable("argument `summary` is empty".to_owned()));
        }
        Ok(ToolOutput { text: "noted: the goal is met".to_owned(), effect: ToolEffect::GoalDone { summary } })
    }
}
