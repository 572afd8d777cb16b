//! An agent: one member's model, conversation and tools, and the effects of its mail. Lead and teammates are both agents.
//!
//! It knows no phases: [`super::teammate`] decides what follows from a [`TurnOutcome`].

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::budget::{BudgetGuard, BudgetSpent};
use super::cancellation::TurnControl;
use super::context_window::FixedPrompt;
use super::conversation::Conversation;
use super::liveness::Progress;
use super::reclaim_order::ReclaimOrder;
use super::recorder::EventSink;
use super::retry_on_full::DiskMonitor;
use super::spec::{Limits, MemberSpec, Prompts};
use super::stream::OutputBroadcast;
use super::worktree::{ABOUT_ISOLATION, ABOUT_PLAN_FIRST, WorktreeService};
use crate::domain::approval::{PLAN_BYTES_MAX, Request, RequestKind};
use crate::domain::event::EventKind;
use crate::domain::message::{Message, MessageType};
use crate::domain::name::{HUMAN, Name};
use crate::domain::phase::{ClaimRef, PhaseEvent};
use crate::domain::prompt::{AgentProfile, identity_block, mail_record};
use crate::domain::task::{Task, TaskId};
use crate::domain::time::UnixMs;
use crate::domain::transcript::{Block, MessageRecord, PromptKind, Role};
use crate::ports::{Clock, CountTokens, Delivery, ModelClient, StoreError, Stores, ToolSpec};
use crate::sandbox::Sandbox;
use crate::tools::{Tool, ToolContext};

/// Bytes of mail put into a context at once. The rest follows in the next turn.
const MAIL_BYTES_MAX: usize = 64 * 1024;

/// Everything that the agents of a team share.
#[derive(Clone)]
pub struct AgentServices {
    /// The team's name.
    pub team: Name,
    /// The stores.
    pub stores: Stores,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// The time of the launch.
    pub launched_at: UnixMs,
    /// The workspace's root.
    pub workspace: PathBuf,
    /// Files that no tool may write, relative to the workspace.
    pub control_files: Arc<[PathBuf]>,
    /// Prepares a separate worktree for each task, if the team uses isolation.
    pub isolation: Option<WorktreeService>,
    /// Confines commands.
    pub sandbox: Sandbox,
    /// The limits.
    pub limits: Limits,
    /// The instructions for members.
    pub prompts: Arc<Prompts>,
    /// The reviewer of work before its completion: a capability, `lead` or `human`. `None` without reviews.
    pub review: Option<Arc<str>>,
    /// The teammates that claim first after a restart.
    pub reclaim_order: Arc<ReclaimOrder>,
    /// Reserves budget for requests.
    pub budget: Arc<BudgetGuard>,
    /// Counts the tokens of a text.
    pub count_tokens: CountTokens,
    /// Receives events.
    pub events: EventSink,
    /// Receives the models' output while it is streamed.
    pub output: OutputBroadcast,
    /// The disk of the workspace.
    pub disk: Arc<DiskMonitor>,
    /// Wakes the lead when a member reports.
    pub reported: Arc<tokio::sync::Notify>,
}

/// The reason why an agent cannot continue. Its task ends, and the lead restarts it, within a limit.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A store failed, and continuing would lose data.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The phase machine refused an event.
    #[error(transparent)]
    IllegalTransition(#[from] crate::domain::phase::IllegalTransition),
}

/// The result of a turn or of reading the inbox.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnOutcome {
    /// An event of the phase machine.
    Event(PhaseEvent),
    /// The model could not be reached.
    ModelFailed {
        /// The provider's error.
        reason: String,
        /// True if another request cannot help.
        is_permanent: bool,
        /// The wait that the provider asked for.
        retry_after: Option<Duration>,
    },
    /// A tool failed without a fault of the task or the model.
    HarnessFailed(String),
    /// The length limit cut several answers in a row.
    Truncated(String),
    /// The team's budget does not allow the next request.
    BudgetSpent(BudgetSpent),
    /// The turn was aborted by [`TurnControl`].
    Aborted,
    /// The lead requested a shutdown.
    ShutdownRequested {
        /// The request's id.
        request_id: String,
    },
    /// The lead's model reports that the goal is met.
    GoalDone(String),
}

/// One member's model, conversation and tools.
pub struct Agent {
    pub(super) spec: MemberSpec,
    pub(super) services: Arc<AgentServices>,
    pub(super) conversation: Conversation,
    pub(super) progress: Arc<Progress>,
    pub(super) turn_control: Arc<TurnControl>,
    pub(super) model: Arc<dyn ModelClient>,
    pub(super) tools: Vec<Arc<dyn Tool>>,
    pub(super) tool_specs: Arc<[ToolSpec]>,
    pub(super) context: ToolContext,
    pub(super) system: Arc<str>,
    pub(super) compactions_in_a_row: u32,
    pub(super) fixed_prompt: FixedPrompt,
    /// The context window from an error of the model, if it reported one.
    pub(super) reported_window: Option<u64>,
    /// The claim for which its plan was approved.
    pub(super) approved_claim: Option<ClaimRef>,
    /// True if it was told that a tool call as text is not run, and has called no tool since.
    pub(super) has_warned_of_text_call: bool,
    /// Consecutive answers that the length limit cut.
    pub(super) truncated_in_a_row: u32,
    /// True after a warning about an impossible usage report of the provider.
    pub(super) has_warned_of_misreport: AtomicBool,
    identity_block: Option<String>,
    /// True if the mailbox does not know yet that the transcript has the last mail.
    has_unsettled_mail: bool,
}

/// The parts of an agent, apart from the shared ones.
pub struct AgentParts {
    /// The member's configuration.
    pub spec: MemberSpec,
    /// Its model.
    pub model: Arc<dyn ModelClient>,
    /// Its tools.
    pub tools: Vec<Arc<dyn Tool>>,
    /// The descriptions of its tools, in the same order.
    pub tool_specs: Arc<[ToolSpec]>,
    /// Everything its tools can reach.
    pub context: ToolContext,
    /// Its claim, and how soon its turn must end.
    pub turn_control: Arc<TurnControl>,
    /// Its signs of life, as the harness sees them.
    pub progress: Arc<Progress>,
}

impl Agent {
    /// Creates an agent that continues at the end of its transcript.
    pub async fn resume(parts: AgentParts, services: Arc<AgentServices>) -> Result<Self, AgentError> {
        let name = parts.spec.name.as_str();
        let stores = &services.stores;
        let mut conversation =
            Conversation::resume(name, Arc::clone(&stores.transcripts), Arc::clone(&services.clock)).await?;
        stores.mailbox.settle(name, conversation.persisted_keys().await?).await?;
        conversation.todo_list().clone_into(&mut parts.context.todos.lock().unwrap_or_else(PoisonError::into_inner));
        let is_lead = parts.context.is_lead;
        let instructions = if is_lead { &services.prompts.lead } else { &services.prompts.teammate };
        let profile = AgentProfile { name, role: &parts.spec.role, team: services.team.as_str() };
        let mut rules = String::new();
        if services.isolation.is_some() && !is_lead {
            rules.push_str(&format!("\n{ABOUT_ISOLATION}\n"));
        }
        if parts.spec.plan_first {
            rules.push_str(&format!("\n{ABOUT_PLAN_FIRST}\n"));
        }
        let system = format!(
            "{}, at {}.\n\n{}\n{rules}One WORK phase has at most {} turns.\n\n{}",
            profile.introduction(),
            services.workspace.display(),
            instructions.trim(),
            services.limits.turns_max,
            parts.spec.prompt.trim()
        );
        let mut agent = Self {
            conversation,
            fixed_prompt: FixedPrompt::of(&system, &parts.tool_specs),
            reported_window: None,
            system: system.trim_end().into(),
            identity_block: None,
            has_unsettled_mail: false,
            compactions_in_a_row: 0,
            has_warned_of_text_call: false,
            truncated_in_a_row: 0,
            has_warned_of_misreport: AtomicBool::new(false),
            approved_claim: None,
            spec: parts.spec,
            services,
            model: parts.model,
            tools: parts.tools,
            tool_specs: parts.tool_specs,
            context: parts.context,
            turn_control: parts.turn_control,
            progress: parts.progress,
        };
        agent.enter_worktree().await;
        Ok(agent)
    }

    #[must_use]
    pub fn name(&self) -> &str {
        self.spec.name.as_str()
    }

    /// Returns true if it has a model. A `runbook` agent keeps no context between tasks.
    #[must_use]
    pub fn is_llm(&self) -> bool {
        self.model.is_llm()
    }

    pub(super) fn task(&self) -> Option<TaskId> {
        self.turn_control.claim().map(|claim| claim.task)
    }

    /// Adds a message for the model, and records its current task with it.
    pub async fn append_message(&mut self, text: String) -> Result<(), AgentError> {
        let message = self.message_with_claim(Role::User, vec![Block::text(text)]);
        Ok(self.conversation.record(message).await?)
    }

    /// Adds a prompt for the model, which it must answer.
    pub async fn append_prompt(&mut self, kind: PromptKind, text: String) -> Result<(), AgentError> {
        let message = self.message_with_claim(Role::User, vec![Block::text(text)]);
        Ok(self.conversation.record(MessageRecord { prompt: Some(kind), ..message }).await?)
    }

    pub(super) fn message_with_claim(&self, role: Role, content: Vec<Block>) -> MessageRecord {
        self.with_claim(MessageRecord::new(role, content))
    }

    fn with_claim(&self, message: MessageRecord) -> MessageRecord {
        let claim = self.turn_control.claim();
        MessageRecord { task: claim.map(|claim| claim.task), attempt: claim.map(|claim| claim.attempt), ..message }
    }

    /// Renders the identity block again at the next request.
    pub fn forget_identity_block(&mut self) {
        self.identity_block = None;
    }

    /// Returns the identity block, from the roster and the board. It stays the same while the context is long, so that requests
    /// keep a common beginning.
    pub(super) async fn identity_block(&mut self) -> String {
        if let Some(block) = &self.identity_block
            && !self.conversation.is_short()
        {
            return block.clone();
        }
        let roster = self.services.stores.roster.read().await.unwrap_or_default();
        let task = match self.task() {
            Some(id) => self.services.stores.board.get(id).await.ok(),
            None => None,
        };
        let profile = AgentProfile { name: self.name(), role: &self.spec.role, team: self.services.team.as_str() };
        let text = identity_block(profile, &roster, task.as_ref(), self.worktree_note().as_deref());
        self.identity_block = Some(text.clone());
        text
    }

    /// Puts waiting mail into the context and returns its effects. Notices alone have none.
    pub async fn read_inbox(&mut self) -> Result<Vec<TurnOutcome>, AgentError> {
        loop {
            match self.read_mail_batch().await? {
                // Only notices so far; other mail may follow.
                Some(outcomes) if outcomes.is_empty() => {}
                outcomes => return Ok(outcomes.unwrap_or_default()),
            }
        }
    }

    /// Puts the next batch of mail into the context. Returns `None` if none waits.
    async fn read_mail_batch(&mut self) -> Result<Option<Vec<TurnOutcome>>, AgentError> {
        let name = self.spec.name.clone();
        let mailbox = Arc::clone(&self.services.stores.mailbox);
        let mut deliveries = match mailbox.take(name.as_str(), self.conversation.delivered()).await {
            Ok(deliveries) => deliveries,
            // Taking mail needs a lock, reading does not: a person's stop request must work without the lock.
            Err(error) => {
                let waiting = mailbox.peek(name.as_str()).await?;
                let messages: Vec<Message> = waiting.into_iter().map(|delivery| delivery.message).collect();
                let stop = TurnOutcome::Event(PhaseEvent::StopRequested);
                if mail_outcomes(&messages, self.services.launched_at).contains(&stop) {
                    return Ok(Some(vec![stop]));
                }
                return Err(error.into());
            }
        };
        if deliveries.is_empty() {
            if self.has_unsettled_mail {
                self.settle().await;
            }
            return Ok(None);
        }
        deliveries.truncate(batch_len(&deliveries));
        let messages: Vec<Message> = deliveries.iter().map(|delivery| delivery.message.clone()).collect();
        let keys: Vec<String> = deliveries.into_iter().map(|delivery| delivery.key).collect();
        self.conversation.record(self.with_claim(mail_record(&messages, keys.clone()))).await?;
        self.settle().await;
        for (message, key) in messages.iter().zip(keys) {
            self.services.events.record(EventKind::MessageDelivered {
                to: name.to_string(),
                from: message.from.clone(),
                message: key,
            });
            self.record_request(message).await;
        }
        Ok(Some(mail_outcomes(&messages, self.services.launched_at)))
    }

    /// Tells the mailbox the keys of the mail in the transcript. After an error that mail still counts as delivered, and this is
    /// tried again.
    async fn settle(&mut self) {
        let (name, mailbox) = (self.spec.name.clone(), Arc::clone(&self.services.stores.mailbox));
        let settled = match self.conversation.persisted_keys().await {
            Ok(keys) => mailbox.settle(name.as_str(), keys).await,
            Err(error) => Err(error),
        };
        self.has_unsettled_mail = settled.is_err();
        if let Err(error) = settled {
            self.services
                .events
                .warn(self.name(), format!("cannot remove its read mail from the mailbox yet: {error}"));
        }
    }

    /// Records a request that another program sent by mail, so that it can be answered. Our own requests are recorded already.
    async fn record_request(&self, message: &Message) {
        let kind = match message.kind {
            MessageType::PlanApprovalRequest => RequestKind::PlanApproval,
            MessageType::ShutdownRequest if message.from != HUMAN => RequestKind::Shutdown,
            _ => return,
        };
        let Some(request) = request_of(message, kind, self.name(), self.services.clock.now()) else { return };
        if let Err(error) = self.services.stores.requests.record(request).await {
            self.services.events.warn(self.name(), format!("cannot record a request: {error}"));
        }
    }

    /// Starts work on a claimed task. A `runbook` agent first empties its context.
    pub async fn begin_task(&mut self, task: &Task) -> Result<ClaimRef, AgentError> {
        let claim = ClaimRef { task: task.id, attempt: task.attempt };
        self.turn_control.set_claim(Some(claim));
        if !self.is_llm() {
            self.reset_conversation().await?;
        }
        self.append_message(crate::domain::prompt::claimed_block(task, self.worktree_note().as_deref())).await?;
        Ok(claim)
    }
}

/// Returns the approval request in a message of another program, to be answered by `to`. A plan over the size limit stays in the
/// mail only.
pub(super) fn request_of(message: &Message, kind: RequestKind, to: &str, now: UnixMs) -> Option<Request> {
    let request = Request::new(message.request_id.as_deref()?, kind, &message.from, to, now);
    let plan = message.plan.clone().filter(|plan| plan.len() <= PLAN_BYTES_MAX).unwrap_or_default();
    Some(Request { plan, ..request })
}

impl Agent {
    /// Empties the context; the transcript keeps everything.
    pub(super) async fn reset_conversation(&mut self) -> Result<(), AgentError> {
        if !self.conversation.is_empty() {
            self.conversation.compact(String::new(), String::new()).await?;
            self.forget_identity_block();
        }
        Ok(())
    }
}

/// Returns how many of these fit into the context at once: at least one.
fn batch_len(deliveries: &[Delivery]) -> usize {
    let mut bytes = 0;
    let fits = |delivery: &&Delivery| {
        bytes += delivery.message.content.len() + delivery.message.plan.as_ref().map_or(0, String::len);
        bytes <= MAIL_BYTES_MAX
    };
    deliveries.iter().take_while(fits).count().max(1)
}

/// Returns the effects of mail. A shutdown request from before the launch is ignored: it was for an earlier run.
fn mail_outcomes(messages: &[Message], launched_at: UnixMs) -> Vec<TurnOutcome> {
    let mut outcomes = Vec::new();
    for message in messages {
        match message.kind {
            MessageType::ShutdownRequest if message.timestamp < launched_at.as_seconds() => {}
            MessageType::ShutdownRequest if message.from == HUMAN => {
                outcomes.push(TurnOutcome::Event(PhaseEvent::StopRequested));
            }
            MessageType::ShutdownRequest => {
                outcomes.push(TurnOutcome::ShutdownRequested {
                    request_id: message.request_id.clone().unwrap_or_default(),
                });
            }
            kind if kind.is_notice() => {}
            _ => outcomes.push(TurnOutcome::Event(PhaseEvent::Mail)),
        }
    }
    outcomes.dedup();
    outcomes
}
