//! The `TOOLS` table: every tool and its audience. A new tool is one file and one line here.

use std::sync::{Arc, LazyLock};

use super::{
    Tool, TypedTool, bash, broadcast, claim_task, edit_file, glob, grep, idle, lead_tools, plan_approval, read_file,
    read_inbox, review, sanitized, send_message, shutdown, task_create, task_get, task_list, task_update, todo, typed,
    write_file,
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
    /// The tool. All members share it.
    pub tool: Arc<dyn Tool>,
}

/// All tools, in the order that models see.
pub static TOOLS: LazyLock<Vec<ToolEntry>> = LazyLock::new(|| {
    vec![
        entry::<bash::Bash>(Audience::All),
        entry::<read_file::ReadFile>(Audience::All),
        entry::<write_file::WriteFile>(Audience::All),
        entry::<edit_file::EditFile>(Audience::All),
        entry::<glob::Glob>(Audience::All),
        entry::<grep::Grep>(Audience::All),
        entry::<send_message::SendMessage>(Audience::All),
        entry::<read_inbox::ReadInbox>(Audience::All),
        entry::<task_create::TaskCreate>(Audience::All),
        entry::<task_get::TaskGet>(Audience::All),
        entry::<task_list::TaskList>(Audience::All),
        entry::<task_update::TaskUpdate>(Audience::All),
        entry::<claim_task::ClaimTask>(Audience::All),
        entry::<review::Review>(Audience::All),
        entry::<todo::Todo>(Audience::All),
        entry::<idle::Idle>(Audience::All),
        entry::<plan_approval::SubmitPlan>(Audience::Teammate),
        entry::<shutdown::AnswerShutdown>(Audience::Teammate),
        entry::<plan_approval::AnswerPlan>(Audience::Lead),
        entry::<shutdown::ShutdownRequest>(Audience::Lead),
        entry::<shutdown::ShutdownStatus>(Audience::Lead),
        entry::<lead_tools::SpawnTeammate>(Audience::Lead),
        entry::<lead_tools::ListTeammates>(Audience::Lead),
        entry::<broadcast::Broadcast>(Audience::Lead),
        entry::<lead_tools::GoalDone>(Audience::Lead),
    ]
});

fn entry<T: TypedTool + 'static>(audience: Audience) -> ToolEntry {
    ToolEntry { name: T::NAME, audience, tool: sanitized(Arc::new(typed::<T>())) }
}

/// The tools of one member.
#[must_use]
pub fn tools_for(is_lead: bool) -> Vec<Arc<dyn Tool>> {
    let others = if is_lead { Audience::Teammate } else { Audience::Lead };
    TOOLS.iter().filter(|entry| entry.audience != others).map(|entry| Arc::clone(&entry.tool)).collect()
}
