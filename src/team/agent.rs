//! An agent: one member's model, conversation and tools, and how a turn goes. Lead and teammates are both agents.
//!
//! It knows nothing of phases: [`super::teammate`] decides what follows from what a turn brought.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::conversation::Conversation;
use super::firsts::Firsts;
use super::lodging::{ABOUT_ISOLATION, ABOUT_PLAN_FIRST, Isolation};
use super::patience::Room;
use super::progress::Progress;
use super::purse::{BudgetSpent, Purse};
use super::recorder::Notes;
use super::reins::Reins;
use super::spec::{Limits, MemberSpec, Prompts};
use super::window::Frame;
use super::words::Mouth;
use crate::domain::context::{Identity, identity_block, inbox_block};
use crate::domain::event::Fact;
use crate::domain::message::{Message, MessageType};
use crate::domain::name::{HUMAN, Name};
use crate::domain::phase::{Event, Held};
use crate::domain::request::{PLAN_BYTES_MAX, Request, RequestKind};
use crate::domain::task::{Task, TaskId};
use crate::domain::time::UnixMs;
use crate::domain::transcript::{Block, MessageRecord, Role};
use crate::ports::{Clock, CountTokens, Delivery, ModelClient, StoreError, Stores, ToolSpec};
use crate::sandbox::Sandbox;
use crate::tools::{Tool, ToolContext};

/// The most mail put into a context at once, in bytes; the rest follows with the next turn.
const MAIL_BYTES_MAX: usize = 64 * 1024;

/// What every agent of a team shares.
#[derive(Clone)]
pub struct Shared {
    /// The team's name.
    pub team: Name,
    /// The stores.
    pub stores: Stores,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// When the team was launched.
    pub launched_at: UnixMs,
    /// The workspace's root.
    pub workspace: PathBuf,
    /// What no tool may write, relative to the workspace.
    pub control_files: Arc<[PathBuf]>,
    /// What has each task worked on in a worktree of its own.
    pub isolation: Option<Isolation>,
    /// What confines commands.
    pub sandbox: Sandbox,
    /// The bounds.
    pub limits: Limits,
    /// The texts that tell members what to do.
    pub prompts: Arc<Prompts>,
    /// Who reviews what is done before it is completed, where somebody does.
    pub review: Option<Arc<str>>,
    /// Who claims first after a restart.
    pub firsts: Arc<Firsts>,
    /// What requests are paid from.
    pub purse: Arc<Purse>,
    /// Counts the tokens of a text.
    pub count_tokens: CountTokens,
    /// Where facts go.
    pub notes: Notes,
    /// Where what models say goes while they say it.
    pub mouth: Mouth,
    /// The disk of the workspace.
    pub room: Arc<Room>,
    /// Told whenever a member reports, for the lead.
    pub reported: Arc<tokio::sync::Notify>,
}

/// Why an agent cannot go on; its task ends and the lead starts it again within a bound.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A store failed where going on would lose something.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The loop met an event that cannot happen.
    #[error(transparent)]
    Illegal(#[from] crate::domain::phase::Illegal),
}

/// What a turn or a look at the mail brought.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// An event of the phase machine.
    Event(Event),
    /// The model could not be reached; asking again would not help when `is_final`.
    ModelFailed {
        /// What it said.
        reason: String,
        /// Whether asking again cannot help.
        is_final: bool,
        /// How long it asked us to wait.
        retry_after: Option<Duration>,
    },
    /// A tool could not do its part through no fault of the task or the model.
    HarnessFailed(String),
    /// The model's answers were cut by their length limit, one after the other.
    CutOff(String),
    /// The team's budget does not allow the next request.
    BudgetSpent(BudgetSpent),
    /// The turn was broken off, as its reins say.
    BrokenOff,
    /// A shutdown was asked for by the lead, under this request id.
    ShutdownAsked {
        /// The request.
        request_id: String,
    },
    /// The lead's model says the goal is met.
    GoalDone(String),
}

/// See the module.
pub struct Agent {
    pub(super) spec: MemberSpec,
    pub(super) shared: Arc<Shared>,
    pub(super) conversation: Conversation,
    pub(super) progress: Arc<Progress>,
    pub(super) reins: Arc<Reins>,
    pub(super) model: Arc<dyn ModelClient>,
    pub(super) tools: Vec<Arc<dyn Tool>>,
    pub(super) tool_specs: Arc<[ToolSpec]>,
    pub(super) context: ToolContext,
    pub(super) system: Arc<str>,
    pub(super) compactions_in_a_row: u32,
    pub(super) frame: Frame,
    /// The window its model said it has, once it met its end.
    pub(super) window_learned: Option<u64>,
    /// What it holds, once its plan for that is known to be approved.
    pub(super) approved: Option<Held>,
    /// It was told that a call written as text is none, and has made none since.
    pub(super) told_of_written_call: bool,
    /// Answers in a row that were cut by their length limit.
    pub(super) cut_in_a_row: u32,
    /// Whether it was said that its provider reports what cannot be.
    pub(super) is_misreport_told: AtomicBool,
    identity: Option<String>,
    /// The mailbox was not told yet that the transcript carries the last mail.
    owes_settling: bool,
}

/// What an agent is made of, besides what it shares.
pub struct AgentParts {
    /// Who it is.
    pub spec: MemberSpec,
    /// How its model is reached.
    pub model: Arc<dyn ModelClient>,
    /// Its tools.
    pub tools: Vec<Arc<dyn Tool>>,
    /// What its model is told of them, in the same order.
    pub tool_specs: Arc<[ToolSpec]>,
    /// What its tools reach.
    pub context: ToolContext,
    /// What it holds, and how soon its turns must end.
    pub reins: Arc<Reins>,
    /// What the harness sees of its life.
    pub progress: Arc<Progress>,
}

impl Agent {
    /// An agent that goes on where its transcript ends.
    pub async fn resume(parts: AgentParts, shared: Arc<Shared>) -> Result<Self, AgentError> {
        let name = parts.spec.name.as_str();
        let stores = &shared.stores;
        let mut conversation =
            Conversation::resume(name, Arc::clone(&stores.transcripts), Arc::clone(&shared.clock)).await?;
        stores.mailbox.settle(name, conversation.carried().await?).await?;
        conversation.steps().clone_into(&mut parts.context.todos.lock().unwrap_or_else(PoisonError::into_inner));
        let is_lead = parts.context.is_lead;
        let instructions = if is_lead { &shared.prompts.lead } else { &shared.prompts.teammate };
        let identity = Identity { name, role: &parts.spec.role, team: shared.team.as_str() };
        let rules =
            [(shared.isolation.is_some() && !is_lead, ABOUT_ISOLATION), (parts.spec.plan_first, ABOUT_PLAN_FIRST)];
        let rules: String =
            rules.into_iter().filter(|(holds, _)| *holds).map(|(_, text)| format!("\n{text}\n")).collect();
        let system = format!(
            "{}, at {}.\n\n{}\n{rules}One WORK phase has at most {} turns.\n\n{}",
            identity.line(),
            shared.workspace.display(),
            instructions.trim(),
            shared.limits.turns_max,
            parts.spec.prompt.trim()
        );
        let mut agent = Self {
            conversation,
            frame: Frame::of(&system, &parts.tool_specs),
            window_learned: None,
            system: system.trim_end().into(),
            identity: None,
            owes_settling: false,
            compactions_in_a_row: 0,
            told_of_written_call: false,
            cut_in_a_row: 0,
            is_misreport_told: AtomicBool::new(false),
            approved: None,
            spec: parts.spec,
            shared,
            model: parts.model,
            tools: parts.tools,
            tool_specs: parts.tool_specs,
            context: parts.context,
            reins: parts.reins,
            progress: parts.progress,
        };
        agent.stand_where_due().await;
        Ok(agent)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.spec.name.as_str()
    }

    /// Whether its model thinks; one that does not keeps nothing from task to task.
    #[must_use]
    pub fn thinks(&self) -> bool {
        self.model.thinks()
    }

    /// The task it holds.
    pub(super) fn task(&self) -> Option<TaskId> {
        self.reins.held().map(|held| held.task)
    }

    /// Tells the model something, with the task it holds noted beside it.
    pub async fn tell(&mut self, text: String) -> Result<(), AgentError> {
        let message = self.stamped(Role::User, vec![Block::text(text)]);
        Ok(self.conversation.record(message).await?)
    }

    pub(super) fn stamped(&self, role: Role, content: Vec<Block>) -> MessageRecord {
        let held = self.reins.held();
        MessageRecord {
            task: held.map(|held| held.task),
            attempt: held.map(|held| held.attempt),
            ..MessageRecord::new(role, content)
        }
    }

    /// Renders the identity anew at the next request.
    pub fn forget_identity(&mut self) {
        self.identity = None;
    }

    /// The identity block, from the roster and the board. It stays as it is while the context is long, so that a request's
    /// beginning equals the former one's.
    pub(super) async fn identity(&mut self) -> String {
        if let Some(identity) = &self.identity
            && !self.conversation.is_short()
        {
            return identity.clone();
        }
        let roster = self.shared.stores.roster.read().await.unwrap_or_default();
        let task = match self.task() {
            Some(id) => self.shared.stores.board.get(id).await.ok(),
            None => None,
        };
        let who = Identity { name: self.name(), role: &self.spec.role, team: self.shared.team.as_str() };
        let text = identity_block(who, &roster, task.as_ref(), self.place().as_deref());
        self.identity = Some(text.clone());
        text
    }

    /// Puts waiting mail into the context and says what it brought. Notices alone wake nobody.
    pub async fn read_inbox(&mut self) -> Result<Vec<Outcome>, AgentError> {
        loop {
            match self.read_portion().await? {
                // Only notices so far: there may be more behind them.
                Some(outcomes) if outcomes.is_empty() => {}
                outcomes => return Ok(outcomes.unwrap_or_default()),
            }
        }
    }

    /// Puts the first of the waiting mail into the context; `None` when there is none.
    async fn read_portion(&mut self) -> Result<Option<Vec<Outcome>>, AgentError> {
        let name = self.spec.name.clone();
        let mailbox = Arc::clone(&self.shared.stores.mailbox);
        let mut deliveries = match mailbox.take(name.as_str(), self.conversation.delivered()).await {
            Ok(deliveries) => deliveries,
            // Taking mail needs a lock, looking at it does not: a person who asks a teammate to stop is heard all the same.
            Err(error) => {
                let waiting = mailbox.peek(name.as_str()).await?;
                let messages: Vec<Message> = waiting.into_iter().map(|delivery| delivery.message).collect();
                let stop = Outcome::Event(Event::StopAsked);
                if outcomes_of_mail(&messages, self.shared.launched_at).contains(&stop) {
                    return Ok(Some(vec![stop]));
                }
                return Err(error.into());
            }
        };
        if deliveries.is_empty() {
            if self.owes_settling {
                self.settle().await;
            }
            return Ok(None);
        }
        deliveries.truncate(portion(&deliveries));
        let messages: Vec<Message> = deliveries.iter().map(|delivery| delivery.message.clone()).collect();
        let mut record = self.stamped(Role::User, vec![Block::text(inbox_block(&messages))]);
        record.delivered = deliveries.into_iter().map(|delivery| delivery.key).collect();
        let keys = record.delivered.clone();
        self.conversation.record(record).await?;
        self.settle().await;
        for (message, key) in messages.iter().zip(keys) {
            self.shared.notes.fact(Fact::MessageDelivered {
                to: name.to_string(),
                from: message.from.clone(),
                message: key,
            });
            self.note_request(message).await;
        }
        Ok(Some(outcomes_of_mail(&messages, self.shared.launched_at)))
    }

    /// Tells the mailbox what the transcript carries. What was delivered counts, also when that fails: it is told again later.
    async fn settle(&mut self) {
        let (name, mailbox) = (self.spec.name.clone(), Arc::clone(&self.shared.stores.mailbox));
        let settled = match self.conversation.carried().await {
            Ok(carried) => mailbox.settle(name.as_str(), carried).await,
            Err(error) => Err(error),
        };
        self.owes_settling = settled.is_err();
        if let Err(error) = settled {
            self.shared.notes.warn(self.name(), format!("its mail stays in the mailbox for now: {error}"));
        }
    }

    /// Records a request another program sent by mail, so that it can be answered; ours are recorded already.
    async fn note_request(&self, message: &Message) {
        let kind = match message.kind {
            MessageType::PlanApprovalRequest => RequestKind::PlanApproval,
            MessageType::ShutdownRequest if message.from != HUMAN => RequestKind::Shutdown,
            _ => return,
        };
        let Some(request) = request_of(message, kind, self.name(), self.shared.clock.now()) else { return };
        if let Err(error) = self.shared.stores.requests.open(request).await {
            self.shared.notes.warn(self.name(), format!("a request cannot be recorded: {error}"));
        }
    }

    /// Starts on a claimed task: what it held is set, and the task is told. A model that does not think starts afresh.
    pub async fn begin(&mut self, task: &Task) -> Result<Held, AgentError> {
        let held = Held { task: task.id, attempt: task.attempt };
        self.reins.hold(Some(held));
        if !self.thinks() {
            self.start_afresh().await?;
        }
        self.tell(crate::domain::context::claimed_block(task, self.place().as_deref())).await?;
        Ok(held)
    }
}

/// The request that a message of another program carries, for `to` to answer. A plan that is too long for the book is in the mail.
pub(super) fn request_of(message: &Message, kind: RequestKind, to: &str, now: UnixMs) -> Option<Request> {
    let request = Request::new(message.request_id.as_deref()?, kind, &message.from, to, now);
    let plan = message.plan.clone().filter(|plan| plan.len() <= PLAN_BYTES_MAX).unwrap_or_default();
    Some(Request { plan, ..request })
}

impl Agent {
    /// Empties the context; the transcript keeps all of it.
    pub(super) async fn start_afresh(&mut self) -> Result<(), AgentError> {
        if !self.conversation.is_empty() {
            self.conversation.compact(String::new()).await?;
            self.forget_identity();
        }
        Ok(())
    }
}

/// How many of these are put into the context at once: at least one.
fn portion(deliveries: &[Delivery]) -> usize {
    let mut bytes = 0;
    let fits = |delivery: &&Delivery| {
        bytes += delivery.message.content.len() + delivery.message.plan.as_ref().map_or(0, String::len);
        bytes <= MAIL_BYTES_MAX
    };
    deliveries.iter().take_while(fits).count().max(1)
}

/// What mail means for the one it came to. A request to stop from before the launch was meant for a life that is over.
fn outcomes_of_mail(messages: &[Message], launched_at: UnixMs) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for message in messages {
        match message.kind {
            MessageType::ShutdownRequest if message.timestamp < launched_at.as_seconds() => {}
            MessageType::ShutdownRequest if message.from == HUMAN => {
                outcomes.push(Outcome::Event(Event::StopAsked));
            }
            MessageType::ShutdownRequest => {
                outcomes.push(Outcome::ShutdownAsked { request_id: message.request_id.clone().unwrap_or_default() });
            }
            kind if kind.is_notice() => {}
            _ => outcomes.push(Outcome::Event(Event::Mail)),
        }
    }
    outcomes.dedup();
    outcomes
}
