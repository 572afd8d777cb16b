//! An agent of another program that `brigade mcp` serves: its row in the roster, its claim and its mail.

use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tokio::sync::Mutex;

use super::tools::McpToolEntry;
use crate::api::lead_status::LeadStatus;
use crate::cli::arguments::ActingAs;
use crate::cli::context::Context;
use crate::cli::error::CliResult;
use crate::cli::inbox::UnreadMail;
use crate::cli::output::{Color, Output};
use crate::domain::task::TaskId;
use crate::domain::task::transition::{Actor, ActorKind, Change};
use crate::domain::team::name::Name;
use crate::domain::team::phase::ClaimRef;
use crate::domain::team::records::{MemberStatus, RosterMember, StartedBy};
use crate::ports::{StoreError, Stores};
use crate::stores::workspace::OpenMode;
use crate::ui::text::WIDTH_UNBOUNDED;

/// The role in the roster of an agent without capabilities.
const ROLE_DEFAULT: &str = "agent";
/// The number of times that a claim is renewed within its lease.
const RENEWALS_PER_LEASE: u32 = 3;

/// An agent of another program.
pub struct OutsideAgent {
    /// Its name in the roster and on the board.
    pub name: Name,
    /// Its capabilities.
    pub capabilities: Vec<String>,
    /// The length of the lease of its claim.
    pub lease: Duration,
    context: Context,
    /// Locked by the running call, so that calls run one after the other.
    running_call: Mutex<()>,
    /// Its claim and its mail.
    pub held: Mutex<ClaimAndMail>,
}

/// The claim and the mail of an agent.
#[derive(Default)]
pub struct ClaimAndMail {
    /// Its claim, which may have been lost.
    pub claim: Option<ClaimRef>,
    /// The mail in the result of the last `read_inbox`, and the time of that result. A later call confirms that the agent has it.
    pub mail: Option<(UnreadMail, Instant)>,
}

impl OutsideAgent {
    /// Creates the agent. It is not in the roster yet.
    pub fn new(name: Name, capabilities: Vec<String>, lease: Duration, context: &Context) -> Self {
        let output = Output { json: false, color: Color::Never, columns: WIDTH_UNBOUNDED };
        Self {
            name,
            capabilities,
            lease,
            context: context.for_next_command(output),
            running_call: Mutex::default(),
            held: Mutex::default(),
        }
    }

    /// The introduction that clients show to their model.
    pub fn instructions(&self) -> String {
        format!(
            "You are `{}` on the task board of a Brigade team. To work on a task: `claim_task`, do the work, then `task_update` with \
             `completed` or `failed`. Read `read_inbox` for messages of the team. Write to `lead`, `human` or a member with `send_message`.",
            self.name
        )
    }

    /// Calls a tool. Each call opens the workspace, as a command does.
    pub async fn call(&self, entry: &McpToolEntry, arguments: Map<String, Value>) -> CliResult<String> {
        let called_at = Instant::now();
        let _running_call = self.running_call.lock().await;
        let context = self.context.for_next_command(self.context.output);
        self.confirm_mail(&context, called_at).await?;
        (entry.run)(Value::Object(arguments), self, &context).await
    }

    /// Adds the agent to the roster and opens its inbox.
    pub async fn join(&self) -> CliResult<()> {
        let stores = self.context.workspace.stores(OpenMode::Write).await?;
        stores.mailbox.add_inboxes(std::slice::from_ref(&self.name)).await?;
        self.report(&self.context, &stores, MemberStatus::Working).await
    }

    /// Releases its task, and reports that the agent has ended. Its inbox stays.
    pub async fn leave(&self) {
        let context = self.context.for_next_command(self.context.output);
        if let Err(error) = self.release_and_report(&context).await {
            tracing::warn!("cannot record that {} has ended: {}", self.name, error.message);
        }
    }

    async fn release_and_report(&self, context: &Context) -> CliResult<()> {
        let stores = context.workspace.stores(OpenMode::Write).await?;
        let claim = self.held.lock().await.claim.take();
        if let Some(claim) = claim {
            let release =
                Change::Release { reason: format!("the MCP client of {} ended", self.name), is_failure: false };
            still_held(stores.board.change(claim.task, release, &self.holder(claim)).await)?;
        }
        self.report(context, &stores, MemberStatus::Shutdown).await
    }

    /// Reports the agent's status in the roster.
    async fn report(&self, context: &Context, stores: &Stores, status: MemberStatus) -> CliResult<()> {
        let role = if self.capabilities.is_empty() { ROLE_DEFAULT.to_owned() } else { self.capabilities.join(", ") };
        let row = RosterMember { name: self.name.to_string(), role, status, started_by: StartedBy::Outside };
        let team = LeadStatus::of(&context.workspace).await?.spec(&context.workspace.location);
        let team = team.map(|team| team.name.to_string()).unwrap_or_default();
        Ok(stores.roster.report(&team, &[row]).await?)
    }

    /// Records the mail of the last `read_inbox` as read, if this call came after its result.
    async fn confirm_mail(&self, context: &Context, called_at: Instant) -> CliResult<()> {
        let confirmed = self.held.lock().await.mail.take_if(|(_, returned_at)| *returned_at < called_at);
        let Some((mail, _)) = confirmed else { return Ok(()) };
        let stores = context.workspace.stores(OpenMode::Write).await?;
        mail.settle(&stores, self.name.as_str(), context.workspace.now()).await
    }

    /// Renews the claim repeatedly, while this process lives.
    pub async fn renew_repeatedly(&self) {
        loop {
            tokio::time::sleep(self.lease / RENEWALS_PER_LEASE).await;
            let Some(claim) = self.held.lock().await.claim else { continue };
            let context = self.context.for_next_command(self.context.output);
            match self.renew(claim, &context).await {
                Ok(true) => {}
                Ok(false) => self.forget(claim).await,
                Err(error) => tracing::warn!("cannot renew the claim of {}: {}", claim.task, error.message),
            }
        }
    }

    /// Renews the lease of a claim. Returns false if the claim is lost.
    pub async fn renew(&self, claim: ClaimRef, context: &Context) -> CliResult<bool> {
        let board = context.workspace.stores(OpenMode::Write).await?.board;
        let renew = Change::Renew { expires: context.workspace.now().plus(self.lease) };
        still_held(board.change(claim.task, renew, &self.holder(claim)).await)
    }

    /// Forgets a claim that has ended.
    pub async fn forget(&self, claim: ClaimRef) {
        let mut held = self.held.lock().await;
        if held.claim == Some(claim) {
            held.claim = None;
        }
    }

    /// The agent as an actor without a claim.
    pub fn actor(&self) -> Actor {
        Actor::new(self.name.as_str(), ActorKind::Teammate)
    }

    fn holder(&self, claim: ClaimRef) -> Actor {
        Actor::holder(self.name.as_str(), claim.attempt)
    }

    /// The agent as it acts on a task: with the given attempt, or with that of its claim.
    pub async fn acting_on(&self, task: TaskId, attempt: Option<u32>) -> ActingAs {
        let claim = self.held.lock().await.claim.filter(|claim| claim.task == task);
        let attempt = attempt.or(claim.map(|claim| claim.attempt));
        ActingAs { name: Some(self.name.to_string()), attempt, force: false }
    }
}

/// Returns false if the board refused a change because the claim is lost.
fn still_held<T>(changed: Result<T, StoreError>) -> CliResult<bool> {
    match changed {
        Ok(_) => Ok(true),
        Err(StoreError::Refused(_) | StoreError::NoTask(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
