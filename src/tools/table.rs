//! The `TOOLS` table: every tool and the members that have it. A new tool is one file and one line here.
//!
//! The team's settings decide which tools a member has, never the moment: the tools are at the start of each request, and providers
//! cache it.

use std::sync::{Arc, LazyLock};

use serde_json::Value;

use super::adapter::typed_for;
use super::write_file::WRITE_TOOL;
use super::{
    Tool, TypedTool, ask, bash, broadcast, claim_task, delete_file, edit_file, glob, grep, idle, lead_tools,
    plan_approval, read_file, read_inbox, review, sanitized, send_message, shutdown, task_create, task_get, task_list,
    task_update, todo, write_file,
};
use crate::domain::agent::permission::{PermissionCall, ToolKind};
use crate::domain::team::name::{HUMAN, LEAD};
use crate::domain::team::request_text::CallDetails;
use crate::domain::team::team_spec::{Isolation, MemberSpec, TeamSpec};

/// The role that a tool is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// Every member, the lead too.
    All,
    /// Teammates only. The lead can have another tool of the same name.
    Teammate,
    /// The lead only.
    Lead,
}

/// A member and its team, as far as they decide about its tools.
#[derive(Debug, Clone, Copy)]
pub struct ToolUser<'a> {
    /// The team.
    pub team: &'a TeamSpec,
    /// The member.
    pub member: &'a MemberSpec,
}

impl ToolUser<'_> {
    fn is_lead(&self) -> bool {
        self.member.name.as_str() == LEAD
    }

    /// The number of teammates in the config. The tools of a lead do not change with those that it spawns, so a restarted team sends the
    /// same requests.
    fn configured_teammates(&self) -> usize {
        self.team.members.iter().filter(|member| !member.is_spawned).count()
    }

    /// Returns true for a teammate, and for a lead without configured teammates.
    fn does_tasks(&self) -> bool {
        !self.is_lead() || self.configured_teammates() == 0
    }

    /// Returns true if it can claim tasks. With isolation, only a teammate gets a worktree.
    fn can_claim(&self) -> bool {
        self.does_tasks() && (!self.is_lead() || self.team.isolation == Isolation::None)
    }

    /// Returns true if it may change files. With isolation, the lead's changes are not part of the result.
    fn changes_files(&self) -> bool {
        !self.is_lead() || self.team.isolation == Isolation::None
    }

    /// Returns true if it can be asked for a review. The lead replaces every missing reviewer.
    fn is_reviewer(&self) -> bool {
        let Some(required) = self.team.review.as_deref() else { return false };
        if self.is_lead() { !required.eq_ignore_ascii_case(HUMAN) } else { self.member.can(required) }
    }
}

/// One line of the table.
pub struct ToolEntry {
    /// The name in a tool call.
    pub name: &'static str,
    /// The role that it is for.
    pub audience: Audience,
    /// Its effects. The permission rules depend on them.
    pub kind: ToolKind,
    /// The tool. All members share it.
    pub tool: Arc<dyn Tool>,
    /// Returns true if a member of the audience has a use for it.
    is_useful_to: fn(&ToolUser<'_>) -> bool,
}

/// All tools, in the order that models see.
pub static TOOLS: LazyLock<Vec<ToolEntry>> = LazyLock::new(|| {
    use Audience::{All, Lead, Teammate};
    use ToolKind::{Board, Command, Edit, Read};
    vec![
        entry::<bash::Bash>(All, Command),
        entry::<read_file::ReadFile>(All, Read),
        entry::<write_file::WriteFile>(All, Edit).only_if(|user| user.changes_files()),
        entry::<edit_file::EditFile>(All, Edit).only_if(|user| user.changes_files()),
        entry::<delete_file::DeleteFile>(All, Edit).only_if(|user| user.does_tasks() && user.changes_files()),
        entry::<glob::Glob>(All, Read),
        entry::<grep::Grep>(All, Read),
        entry::<send_message::SendMessage>(All, Board),
        // For agents that fetch their mail. Brigade's own get it between turns, without a call.
        entry::<read_inbox::ReadInbox>(All, Board).only_if(|_| false),
        entry::<task_create::TaskCreate>(Teammate, Board),
        entry::<task_create::TaskCreate>(Lead, Board),
        entry::<task_get::TaskGet>(All, Board),
        entry::<task_list::TaskList>(Teammate, Board),
        entry::<task_list::TaskList>(Lead, Board),
        entry::<task_update::TaskUpdate>(Teammate, Board),
        entry::<task_update::TaskUpdate>(Lead, Board),
        entry::<claim_task::ClaimTask>(All, Board).only_if(|user| user.can_claim()),
        entry::<review::Review>(All, Board).only_if(|user| user.is_reviewer()),
        entry::<todo::Todo>(All, Board).only_if(|user| user.does_tasks()),
        entry::<ask::Ask>(All, Board).only_if(|user| user.team.ask),
        entry::<idle::Idle>(All, Board).only_if(|user| !user.is_lead()),
        // A run without a lead that answers would wait for the person.
        entry::<plan_approval::SubmitPlan>(Teammate, Board)
            .only_if(|user| user.team.lead.has_model() || user.member.plan_first),
        entry::<shutdown::AnswerShutdown>(Teammate, Board).only_if(|user| user.team.lead.has_model()),
        // Agents of other programs send plans too.
        entry::<plan_approval::AnswerPlan>(Lead, Board),
        entry::<shutdown::ShutdownRequest>(Lead, Board),
        entry::<shutdown::ShutdownStatus>(Lead, Board),
        entry::<lead_tools::SpawnTeammate>(Lead, Board),
        entry::<lead_tools::ListTeammates>(Lead, Board),
        entry::<broadcast::Broadcast>(Lead, Board).only_if(|user| user.configured_teammates() > 1),
        entry::<lead_tools::GoalDone>(Lead, Board),
    ]
});

fn entry<T: TypedTool + 'static>(audience: Audience, kind: ToolKind) -> ToolEntry {
    let tool = sanitized(Arc::new(typed_for::<T>(audience)));
    ToolEntry { name: T::NAME, audience, kind, tool, is_useful_to: |_| true }
}

impl ToolEntry {
    fn only_if(self, is_useful_to: fn(&ToolUser<'_>) -> bool) -> Self {
        Self { is_useful_to, ..self }
    }

    fn is_for(&self, is_lead: bool) -> bool {
        self.audience != if is_lead { Audience::Teammate } else { Audience::Lead }
    }
}

/// The tools of one member.
pub fn tools_for(user: &ToolUser<'_>) -> Vec<Arc<dyn Tool>> {
    let permissions = &user.member.permissions;
    let has_it = |entry: &&ToolEntry| {
        entry.is_for(user.is_lead()) && (entry.is_useful_to)(user) && !permissions.excludes(entry.name, entry.kind)
    };
    TOOLS.iter().filter(has_it).map(|entry| Arc::clone(&entry.tool)).collect()
}

/// The tool of the lead or of teammates with this name, whatever the team's settings.
pub fn tool_named(name: &str, is_lead: bool) -> Option<Arc<dyn Tool>> {
    let entry = TOOLS.iter().find(|entry| entry.name == name && entry.is_for(is_lead))?;
    Some(Arc::clone(&entry.tool))
}

/// Returns the kind of a tool. The effects of tools of an embedding program are not known.
pub fn kind_of(tool: &str) -> ToolKind {
    TOOLS.iter().find(|entry| entry.name == tool).map_or(ToolKind::Other, |entry| entry.kind)
}

/// Returns the argument that the rules of a member are about; `None` for a tool whose effects are not known.
fn subject_field(kind: ToolKind) -> Option<&'static str> {
    match kind {
        ToolKind::Other => None,
        ToolKind::Command => Some("command"),
        ToolKind::Board | ToolKind::Read | ToolKind::Edit | ToolKind::Web => Some("path"),
    }
}

/// Returns the call for which the rules of a member decide.
pub fn permission_call(tool: &str, input: &Value) -> PermissionCall {
    let kind = kind_of(tool);
    let subject = match subject_field(kind) {
        None => input.to_string(),
        // A tool takes a number for a text.
        Some(field) => match &input[field] {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => String::new(),
        },
    };
    PermissionCall { tool: tool.to_owned(), kind, subject }
}

/// Returns the arguments of a call that its subject does not name, for the person who is asked about it.
pub fn permission_details(tool: &str, input: &Value) -> CallDetails {
    let change = match tool {
        "edit_file" => Some(["old_text", "new_text"]),
        WRITE_TOOL => Some(["", "content"]),
        _ => None,
    };
    match subject_field(kind_of(tool)) {
        // The subject has all arguments.
        None => CallDetails::of_whole_subject(tool, input),
        subject => CallDetails::of(tool, input, subject, change),
    }
}

/// Returns the path of the file whose content an agent knows after a call.
pub fn shown_file<'a>(tool: &str, input: &'a Value) -> Option<&'a str> {
    if ["read_file", "edit_file", WRITE_TOOL].contains(&tool) { input["path"].as_str() } else { None }
}

/// All tools of the lead or of teammates, whatever the team's settings.
pub fn all_tools(is_lead: bool) -> Vec<Arc<dyn Tool>> {
    TOOLS.iter().filter(|entry| entry.is_for(is_lead)).map(|entry| Arc::clone(&entry.tool)).collect()
}
