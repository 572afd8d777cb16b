//! The texts that tell a member who it is: the system prompt, and the identity block.

use super::AgentHost;
use crate::domain::agent::prompt::{HeldTask, identity_block};
use crate::domain::team::records::{MemberStatus, RosterMember};
use crate::domain::team::team_spec::MemberSpec;

/// The paragraph about isolation in the system prompt of a teammate.
const ABOUT_ISOLATION: &str = "Each task has its own git worktree and branch. The claim names it, and your tools start there. Write nowhere else. Servers that you start use the ten ports from $BRIGADE_PORT_BASE on. When you report the task completed, your changes are committed, and the commit that is checked out is merged: no other branch, no tag, no stash. After a conflict, or if verify fails on the merged result, fix it in your worktree and report again. A merge that drops lines or words of others is refused.";

/// The paragraph about isolation in the system prompt of the lead.
const ABOUT_TEAM_WORKTREE: &str = "Each task is done in its own git worktree and merged after its verify command passed. This folder is the worktree of the branch with all merges; its files follow each merge. You cannot commit here, and your changes are not part of the result: add a task for each change.";

/// The paragraph for a member with `plan_first` in its system prompt.
const ABOUT_PLAN_FIRST: &str = "You hand in a plan first. For each task you claim: read what you need, which requires no approval. Then call plan_approval and say what you will change, in which files, how you will show that it is right, and what could go wrong. Then end your turn. Until the plan is approved, your tools and commands write nothing in the workspace, and you cannot report the task completed. A rejected plan comes back with feedback: hand in a new one.";

/// Returns the system prompt of a member: who it is, the instructions of its kind, and its own ones.
pub(super) fn system_prompt(host: &AgentHost, teammate_instructions: &str) -> String {
    let services = &host.services;
    let spec = &host.spec;
    let is_lead = host.context.caller.is_lead;
    let instructions = if is_lead { &services.spec.prompts.lead } else { teammate_instructions };
    let mut rules = String::new();
    if services.isolation.is_some() {
        rules.push_str(&format!("\n{}\n", if is_lead { ABOUT_TEAM_WORKTREE } else { ABOUT_ISOLATION }));
    }
    if spec.plan_first {
        rules.push_str(&format!("\n{ABOUT_PLAN_FIRST}\n"));
    }
    let system = format!(
        "{}, at {}.\n\n{}\n{rules}One WORK phase has at most {} turns.\n\n{}",
        host.profile().introduction(),
        services.work_folder().display(),
        instructions.trim(),
        services.spec.limits.turns_max,
        spec.prompt.trim()
    );
    system.trim_end().to_owned()
}

/// Returns the identity block from durable state. Brigade's own agent gets it at the start of each context. An external agent gets
/// it after it shortened its context.
pub(super) async fn render(host: &AgentHost) -> String {
    let mut roster = host.services.stores.roster.read().await.unwrap_or_default();
    roster.retain(|member| member.is_colleague_in(host.services.spec.name.as_str()));
    let team = team_rows(&roster, &host.services.spec.members);
    let claim = host.turn_control.claim();
    let task = match claim {
        Some(claim) => host.services.stores.board.get(claim.task).await.ok(),
        None => None,
    };
    let location = host.worktree_note();
    let is_in_context = claim.is_some_and(|claim| host.conversation.describes(claim));
    let held = task.as_ref().map(|task| HeldTask { task, location: location.as_deref(), is_in_context });
    identity_block(host.profile(), &team, held)
}

/// Returns the names and roles of the team: those of the roster that have not stopped, and all that are configured. At a launch,
/// the roster may not have the new team yet.
fn team_rows<'a>(roster: &'a [RosterMember], members: &'a [MemberSpec]) -> Vec<(&'a str, &'a str)> {
    let is_configured = |row: &&RosterMember| members.iter().any(|member| member.name.as_str() == row.name);
    let listed = roster.iter().filter(|row| row.status != MemberStatus::Shutdown || is_configured(row));
    let mut team: Vec<(&str, &str)> = listed.map(|row| (row.name.as_str(), row.role.as_str())).collect();
    for member in members {
        if team.iter().all(|(name, _)| *name != member.name.as_str()) {
            team.push((member.name.as_str(), member.role.as_str()));
        }
    }
    team
}
