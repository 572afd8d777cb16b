//! The `TOOLS` table: every tool and its audience. A new tool is one file and one line here.

use std::sync::Arc;

use super::adapter::ToolAdapter;
use super::{
    Tool, bash, broadcast, claim_task, edit_file, glob, grep, idle, lead_tools, plan_approval, read_file, read_inbox,
    review, send_message, shutdown, task_create, task_get, task_list, task_update, todo, write_file,
};

/// The members that have a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// Every member, the lead too.
    All,
    /// Teammates only. The lead can have another tool of the same name.
    Teammate,
    /// The lead only.
    Lead,
}

/// One line of the table.
pub struct ToolEntry {
    /// The name in a tool call.
    pub name: &'static str,
    /// The members that have this tool.
    pub audience: Audience,
    /// Builds the tool. A member keeps it for its whole life: some tools count the failures of an attempt.
    pub build: fn() -> Arc<dyn Tool>,
}

/// All tools, in the order that models see.
#[rustfmt::skip]
pub const TOOLS: [ToolEntry; 25] = [
    ToolEntry { name: "bash", audience: Audience::All, build: || Arc::new(ToolAdapter(bash::Bash)) },
    ToolEntry { name: "read_file", audience: Audience::All, build: || Arc::new(ToolAdapter(read_file::ReadFile)) },
    ToolEntry { name: "write_file", audience: Audience::All, build: || Arc::new(ToolAdapter(write_file::WriteFile)) },
    ToolEntry { name: "edit_file", audience: Audience::All, build: || Arc::new(ToolAdapter(edit_file::EditFile)) },
    ToolEntry { name: "glob", audience: Audience::All, build: || Arc::new(ToolAdapter(glob::Glob)) },
    ToolEntry { name: "grep", audience: Audience::All, build: || Arc::new(ToolAdapter(grep::Grep)) },
    ToolEntry { name: "send_message", audience: Audience::All, build: || Arc::new(ToolAdapter(send_message::SendMessage)) },
    ToolEntry { name: "read_inbox", audience: Audience::All, build: || Arc::new(ToolAdapter(read_inbox::ReadInbox)) },
    ToolEntry { name: "task_create", audience: Audience::All, build: || Arc::new(ToolAdapter(task_create::TaskCreate)) },
    ToolEntry { name: "task_get", audience: Audience::All, build: || Arc::new(ToolAdapter(task_get::TaskGet)) },
    ToolEntry { name: "task_list", audience: Audience::All, build: || Arc::new(ToolAdapter(task_list::TaskList)) },
    ToolEntry { name: "task_update", audience: Audience::All, build: || Arc::new(ToolAdapter(task_update::TaskUpdate::default())) },
    ToolEntry { name: "claim_task", audience: Audience::All, build: || Arc::new(ToolAdapter(claim_task::ClaimTask)) },
    ToolEntry { name: "review", audience: Audience::All, build: || Arc::new(ToolAdapter(review::Review)) },
    ToolEntry { name: "todo", audience: Audience::All, build: || Arc::new(ToolAdapter(todo::Todo)) },
    ToolEntry { name: "idle", audience: Audience::All, build: || Arc::new(ToolAdapter(idle::Idle)) },
    ToolEntry { name: "plan_approval", audience: Audience::Teammate, build: || Arc::new(ToolAdapter(plan_approval::SubmitPlan)) },
    ToolEntry { name: "shutdown_response", audience: Audience::Teammate, build: || Arc::new(ToolAdapter(shutdown::AnswerShutdown)) },
    ToolEntry { name: "plan_approval", audience: Audience::Lead, build: || Arc::new(ToolAdapter(plan_approval::AnswerPlan)) },
    ToolEntry { name: "shutdown_request", audience: Audience::Lead, build: || Arc::new(ToolAdapter(shutdown::ShutdownRequest)) },
    ToolEntry { name: "shutdown_response", audience: Audience::Lead, build: || Arc::new(ToolAdapter(shutdown::ShutdownStatus)) },
    ToolEntry { name: "spawn_teammate", audience: Audience::Lead, build: || Arc::new(ToolAdapter(lead_tools::SpawnTeammate)) },
    ToolEntry { name: "list_teammates", audience: Audience::Lead, build: || Arc::new(ToolAdapter(lead_tools::ListTeammates)) },
    ToolEntry { name: "broadcast", audience: Audience::Lead, build: || Arc::new(ToolAdapter(broadcast::Broadcast)) },
    ToolEntry { name: "goal_done", audience: Audience::Lead, build: || Arc::new(ToolAdapter(lead_tools::GoalDone)) },
];

/// Builds the tools of one member.
#[must_use]
pub fn tools_for(is_lead: bool) -> Vec<Arc<dyn Tool>> {
    let others = if is_lead { Audience::Teammate } else { Audience::Lead };
    TOOLS.iter().filter(|entry| entry.audience != others).map(|entry| (entry.build)()).collect()
}
