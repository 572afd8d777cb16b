//! The TOOLS table: every tool, and whose it is. A new tool is one file and one line here.

use std::sync::Arc;

use super::checked::Safe;
use super::{
    Tool, bash, broadcast, claim_task, edit_file, glob, grep, idle, plan_approval, read_file, read_inbox, review,
    send_message, shutdown, task_create, task_get, task_list, task_update, team, todo, write_file,
};

/// Whose a tool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// Every member's, the lead's too.
    All,
    /// A teammate's; the lead has another of the same name, or none.
    Teammate,
    /// The lead's.
    Lead,
}

/// One line of the table.
pub struct ToolEntry {
    /// The name a model calls it by.
    pub name: &'static str,
    /// Whose it is.
    pub audience: Audience,
    /// Makes one. A member keeps its own for its whole life: some tools remember what they saw of an attempt.
    pub build: fn() -> Arc<dyn Tool>,
}

/// All tools, in the order models see them.
#[rustfmt::skip]
pub const TOOLS: [ToolEntry; 25] = [
    ToolEntry { name: "bash", audience: Audience::All, build: || Arc::new(Safe(bash::Bash)) },
    ToolEntry { name: "read_file", audience: Audience::All, build: || Arc::new(Safe(read_file::ReadFile)) },
    ToolEntry { name: "write_file", audience: Audience::All, build: || Arc::new(Safe(write_file::WriteFile)) },
    ToolEntry { name: "edit_file", audience: Audience::All, build: || Arc::new(Safe(edit_file::EditFile)) },
    ToolEntry { name: "glob", audience: Audience::All, build: || Arc::new(Safe(glob::Glob)) },
    ToolEntry { name: "grep", audience: Audience::All, build: || Arc::new(Safe(grep::Grep)) },
    ToolEntry { name: "send_message", audience: Audience::All, build: || Arc::new(Safe(send_message::SendMessage)) },
    ToolEntry { name: "read_inbox", audience: Audience::All, build: || Arc::new(Safe(read_inbox::ReadInbox)) },
    ToolEntry { name: "task_create", audience: Audience::All, build: || Arc::new(Safe(task_create::TaskCreate)) },
    ToolEntry { name: "task_get", audience: Audience::All, build: || Arc::new(Safe(task_get::TaskGet)) },
    ToolEntry { name: "task_list", audience: Audience::All, build: || Arc::new(Safe(task_list::TaskList)) },
    ToolEntry { name: "task_update", audience: Audience::All, build: || Arc::new(Safe(task_update::TaskUpdate::default())) },
    ToolEntry { name: "claim_task", audience: Audience::All, build: || Arc::new(Safe(claim_task::ClaimTask)) },
    ToolEntry { name: "review", audience: Audience::All, build: || Arc::new(Safe(review::Review)) },
    ToolEntry { name: "todo", audience: Audience::All, build: || Arc::new(Safe(todo::Todo)) },
    ToolEntry { name: "idle", audience: Audience::All, build: || Arc::new(Safe(idle::Idle)) },
    ToolEntry { name: "plan_approval", audience: Audience::Teammate, build: || Arc::new(Safe(plan_approval::SubmitPlan)) },
    ToolEntry { name: "shutdown_response", audience: Audience::Teammate, build: || Arc::new(Safe(shutdown::AnswerShutdown)) },
    ToolEntry { name: "plan_approval", audience: Audience::Lead, build: || Arc::new(Safe(plan_approval::AnswerPlan)) },
    ToolEntry { name: "shutdown_request", audience: Audience::Lead, build: || Arc::new(Safe(shutdown::ShutdownRequest)) },
    ToolEntry { name: "shutdown_response", audience: Audience::Lead, build: || Arc::new(Safe(shutdown::ShutdownStatus)) },
    ToolEntry { name: "spawn_teammate", audience: Audience::Lead, build: || Arc::new(Safe(team::SpawnTeammate)) },
    ToolEntry { name: "list_teammates", audience: Audience::Lead, build: || Arc::new(Safe(team::ListTeammates)) },
    ToolEntry { name: "broadcast", audience: Audience::Lead, build: || Arc::new(Safe(broadcast::Broadcast)) },
    ToolEntry { name: "goal_done", audience: Audience::Lead, build: || Arc::new(Safe(team::GoalDone)) },
];

/// The tools of a member, made for it.
#[must_use]
pub fn tools_of(is_lead: bool) -> Vec<Arc<dyn Tool>> {
    let others = if is_lead { Audience::Teammate } else { Audience::Lead };
    TOOLS.iter().filter(|entry| entry.audience != others).map(|entry| (entry.build)()).collect()
}
