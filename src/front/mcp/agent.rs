//! An agent of another program that `brigade mcp` serves: its row in the roster, its claim and its mail.

use std::time::Instant;

use tokio::sync::{Mutex, MutexGuard};

use crate::api::inbox::UnreadMail;
use crate::api::outside_agent::OutsideAgent;
use crate::api::task::ActingAs;
use crate::domain::task::TaskId;
use crate::domain::team::phase::ClaimRef;
use crate::front::cli::context::Context;
use crate::front::cli::error::CliResult;
use crate::front::cli::output::{Color, Output};
use crate::front::text::lines::WIDTH_UNBOUNDED;

/// The number of times that a claim is renewed within its lease.
const RENEWALS_PER_LEASE: u32 = 3;

/// An agent of another program, while this process serves it.
pub struct ServedAgent {
    /// The agent.
    pub identity: OutsideAgent,
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

impl ServedAgent {
    /// Serves the agent. It is not in the roster yet.
    pub fn new(identity: OutsideAgent, context: &Context) -> Self {
        let output = Output { json: false, color: Color::Never, columns: WIDTH_UNBOUNDED };
        Self {
            identity,
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
            self.identity.name
        )
    }

    /// Begins a call, after the calls before it. The call opens the workspace, as a command does, and ends when the guard is dropped.
    pub async fn begin_call(&self) -> CliResult<(MutexGuard<'_, ()>, Context)> {
        let called_at = Instant::now();
        let running_call = self.running_call.lock().await;
        let context = self.context.for_next_command(self.context.output);
        self.confirm_mail(&context, called_at).await?;
        Ok((running_call, context))
    }

    /// Adds the agent to the roster and opens its inbox.
    pub async fn join(&self) -> CliResult<()> {
        Ok(self.identity.join(&self.context.workspace).await?)
    }

    /// Releases its task, and reports that the agent has ended. Its inbox stays.
    pub async fn leave(&self) {
        let context = self.context.for_next_command(self.context.output);
        let claim = self.held.lock().await.claim.take();
        if let Err(error) = self.identity.leave(&context.workspace, claim).await {
            tracing::warn!("cannot record that {} has ended: {}", self.identity.name, error.message);
        }
    }

    /// Records the mail of the last `read_inbox` as read, if this call came after its result.
    async fn confirm_mail(&self, context: &Context, called_at: Instant) -> CliResult<()> {
        let confirmed = self.held.lock().await.mail.take_if(|(_, returned_at)| *returned_at < called_at);
        let Some((mail, _)) = confirmed else { return Ok(()) };
        Ok(mail.settle(&context.workspace).await?)
    }

    /// Renews the claim repeatedly, while this process lives.
    pub async fn renew_repeatedly(&self) {
        loop {
            tokio::time::sleep(self.identity.lease / RENEWALS_PER_LEASE).await;
            let Some(claim) = self.held.lock().await.claim else { continue };
            let context = self.context.for_next_command(self.context.output);
            match self.identity.renew(&context.workspace, claim).await {
                Ok(true) => {}
                Ok(false) => self.forget(claim).await,
                Err(error) => tracing::warn!("cannot renew the claim of {}: {}", claim.task, error.message),
            }
        }
    }

    /// Forgets a claim that has ended.
    pub async fn forget(&self, claim: ClaimRef) {
        let mut held = self.held.lock().await;
        if held.claim == Some(claim) {
            held.claim = None;
        }
    }

    /// The agent as it adds a task.
    pub fn acting(&self) -> ActingAs {
        ActingAs { name: Some(self.identity.name.to_string()), ..ActingAs::default() }
    }

    /// The agent as it acts on a task: with the given attempt, or with that of its claim.
    pub async fn acting_on(&self, task: TaskId, attempt: Option<u32>) -> ActingAs {
        let claim = self.held.lock().await.claim.filter(|claim| claim.task == task);
        let attempt = attempt.or(claim.map(|claim| claim.attempt));
        ActingAs { attempt, ..self.acting() }
    }
}
