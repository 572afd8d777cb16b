//! An agent of another program that works on the board: its row in the roster, its claim and its messages.

use crate::api::next::Launch;
use std::time::Duration;

use super::lead_status::LeadStatus;
use super::members;
use super::refusal::{ApiResult, Refusal};
use super::workspace::Workspace;
use crate::domain::task::transition::{Actor, Change};
use crate::domain::task::{Task, TaskId};
use crate::domain::team::message::MessageType;
use crate::domain::team::name::Name;
use crate::domain::team::phase::ClaimRef;
use crate::domain::team::records::{MemberStatus, RosterMember, StartedBy};
use crate::ports::{StoreError, Stores};
use crate::service::claims::claim_with_lease;
use crate::service::messages::{SendError, Sender};
use crate::stores::workspace::OpenMode;

/// The role in the roster of an agent without capabilities.
const ROLE_DEFAULT: &str = "agent";

/// An agent of another program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutsideAgent {
    /// Its name in the roster and on the board.
    pub name: Name,
    /// Its capabilities.
    pub capabilities: Vec<String>,
    /// The length of the lease of its claim.
    pub lease: Duration,
}

impl OutsideAgent {
    /// Checks a name for such an agent.
    ///
    /// # Errors
    /// The name is invalid or reserved, or a member has it.
    pub async fn checked_name(workspace: &Workspace, text: &str) -> ApiResult<Name> {
        let name = Name::new(text)?;
        let taken =
            |reason: String| Refusal::invalid(format!("cannot serve an agent as `{name}`: {reason}")).next(Launch::Mcp);
        if name.is_reserved() {
            return Err(taken("the name is reserved".to_owned()));
        }
        let location = &workspace.location;
        let teams = location.config_if_valid().map(|config| config.team_names()).unwrap_or_default();
        for team in teams.iter().filter_map(|team| location.team_if_valid(Some(team))) {
            if team.members.iter().any(|member| member.name.is_same(name.as_str())) {
                return Err(taken(format!("it is a member of team {}", team.name)));
            }
        }
        let roster = workspace.stores(OpenMode::ReadOnly).await?.roster.read().await?;
        if roster.iter().any(|row| !row.is_outside() && name.is_same(&row.name)) {
            return Err(taken("a team's lead has added a member of this name".to_owned()));
        }
        Ok(name)
    }

    /// Adds the agent to the roster and opens its inbox. After a crash, a repetition completes both.
    ///
    /// # Errors
    /// The workspace cannot be written.
    pub async fn join(&self, workspace: &Workspace) -> ApiResult<()> {
        let stores = workspace.stores(OpenMode::Write).await?;
        stores.mailbox.add_inboxes(std::slice::from_ref(&self.name)).await?;
        self.report(workspace, &stores, MemberStatus::Working).await
    }

    /// Releases its task, and reports that the agent has ended. Its inbox stays. After a crash the claim ends with its lease.
    ///
    /// # Errors
    /// The workspace cannot be written.
    pub async fn leave(&self, workspace: &Workspace, claim: Option<ClaimRef>) -> ApiResult<()> {
        let stores = workspace.stores(OpenMode::Write).await?;
        if let Some(claim) = claim {
            let release =
                Change::Release { reason: format!("the MCP client of {} ended", self.name), is_failure: false };
            still_held(stores.board.change(claim.task, release, &self.holder(claim)).await)?;
        }
        self.report(workspace, &stores, MemberStatus::Shutdown).await
    }

    /// Claims a task by the same rules as a teammate: this one, or the best claimable one. Returns `None` if none is claimable. After a
    /// crash the claim ends with its lease.
    ///
    /// # Errors
    /// The named task is not claimable, or the workspace cannot be written.
    pub async fn claim(&self, workspace: &Workspace, task: Option<TaskId>) -> ApiResult<Option<Task>> {
        let stores = workspace.stores(OpenMode::Write).await?;
        Ok(claim_with_lease(&stores, task, &self.name, self.capabilities.clone(), self.lease).await?)
    }

    /// Renews the lease of a claim. Returns false if the claim is lost.
    ///
    /// # Errors
    /// The workspace cannot be written.
    pub async fn renew(&self, workspace: &Workspace, claim: ClaimRef) -> ApiResult<bool> {
        let board = workspace.board(OpenMode::Write).await?;
        let renew = Change::Renew { expires: workspace.now().plus(self.lease) };
        still_held(board.change(claim.task, renew, &self.holder(claim)).await)
    }

    /// Sends a message to a member, to `lead` or to `human`. It is in the inbox when this returns.
    ///
    /// # Errors
    /// The text is empty or too long, or there is no such recipient.
    pub async fn send(&self, workspace: &Workspace, to: &str, text: &str) -> ApiResult<()> {
        if text.trim().is_empty() {
            return Err(Refusal::invalid("cannot send an empty message"));
        }
        let stores = workspace.stores(OpenMode::Write).await?;
        let members = match members::open_inboxes(workspace, &stores).await? {
            Some(team) => members::names_of_team(&team, &stores.roster.read().await?),
            None => Vec::new(),
        };
        let sender = Sender { name: &self.name, is_lead: false, members };
        let outbox = workspace.outbox(&stores);
        let sent = outbox.send_from_member(&sender, to, MessageType::Message, text).await;
        sent.map_err(|error| match error {
            SendError::Store(error) => error.into(),
            error => Refusal::refused(error.to_string()),
        })?;
        Ok(())
    }

    fn holder(&self, claim: ClaimRef) -> Actor {
        Actor::holder(self.name.as_str(), claim.attempt)
    }

    /// Reports the agent's status in the roster.
    async fn report(&self, workspace: &Workspace, stores: &Stores, status: MemberStatus) -> ApiResult<()> {
        let role = if self.capabilities.is_empty() { ROLE_DEFAULT.to_owned() } else { self.capabilities.join(", ") };
        let row = RosterMember { name: self.name.to_string(), role, status, started_by: StartedBy::Outside };
        let team = LeadStatus::of(workspace).await?.spec(&workspace.location);
        let team = team.map(|team| team.name.to_string()).unwrap_or_default();
        Ok(stores.roster.report(&team, &[row]).await?)
    }
}

/// Returns false if the board refused a change because the claim is lost.
fn still_held<T>(changed: Result<T, StoreError>) -> ApiResult<bool> {
    match changed {
        Ok(_) => Ok(true),
        Err(StoreError::Refused(_) | StoreError::NoTask(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
