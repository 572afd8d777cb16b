//! The identity block that begins a context. It is rendered once, before the first request of the context, and recorded.

use super::Turn;
use crate::agents::{AgentError, AgentHost};
use crate::domain::prompt::{HeldTask, identity_block};
use crate::domain::records::{MemberStatus, RosterMember};
use crate::domain::team_spec::MemberSpec;

impl Turn<'_> {
    /// Records the identity block, unless the context has it. A new role makes a new block.
    ///
    /// # Errors
    /// The transcript cannot be written.
    pub(super) async fn begin_context(&mut self) -> Result<(), AgentError> {
        let host = &mut *self.host;
        if host.conversation.identity().is_some_and(|block| host.profile().is_introduced_by(block)) {
            return Ok(());
        }
        self.agent.has_warned_of_text_call = false;
        let block = render(host).await;
        Ok(host.conversation.set_identity(block).await?)
    }
}

async fn render(host: &AgentHost) -> String {
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
