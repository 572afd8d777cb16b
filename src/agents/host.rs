//! The parts of a member that every kind of agent uses: its transcript, claim and worktree, and its access to the team.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::conversation::Conversation;
use super::permissions::{CallNotMade, PermissionRequests};
use super::services::AgentServices;
use super::turn_control::{StopLevel, TurnControl};
use super::{AgentError, TurnOutcome};
use crate::domain::agent::permission::{PermissionCall, PermissionDecision};
use crate::domain::agent::prompt::{AgentProfile, claimed_block};
use crate::domain::agent::transcript::{Block, MessageRecord, PromptKind, Role, Usage};
use crate::domain::agent::turn_count::TurnCount;
use crate::domain::log::event::{EventKind, REPORT_TOOL, VERIFY_STEP};
use crate::domain::task::failure_summary;
use crate::domain::task::{Task, TaskId};
use crate::domain::team::account::Account;
use crate::domain::team::budget::TaskCap;
use crate::domain::team::message::{Message, MessageType};
use crate::domain::team::phase::{ClaimRef, PhaseEvent};
use crate::domain::team::request_text::CallDetails;
use crate::domain::team::team_spec::MemberSpec;
use crate::domain::time::UnixMs;
use crate::ports::{ModelResponse, StoreError, StoreResult};
use crate::run::budget::{BudgetError, Reservation};
use crate::run::progress::{Activity, Progress};
use crate::service::attempt_quota::AttemptLimit;
use crate::service::request_mail::TURN_INTERRUPTED;
use crate::service::step::Step;
use crate::tools::{ToolContext, ToolEffect, ToolError};

/// The failure reason of a tool call that was interrupted because its turn ended.
pub(super) const ABORTED: &str = "the turn was aborted during this call";

/// The longest wait for other requests to leave enough of the budget. Each of them has its own time limit.
const BUDGET_WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// One member, as its agent sees it.
pub struct AgentHost {
    pub(crate) spec: MemberSpec,
    /// The accounts of its models, or of its program. It has at least one.
    pub(crate) accounts: Vec<Account>,
    pub(crate) services: Arc<AgentServices>,
    pub(crate) conversation: Conversation,
    pub(crate) progress: Arc<Progress>,
    pub(crate) turn_control: Arc<TurnControl>,
    /// Everything that its tools and commands can reach.
    pub(crate) context: ToolContext,
    /// The number of its current turn.
    pub(crate) turn_count: TurnCount,
    pub(super) permission_requests: PermissionRequests,
    /// The claim for which its plan was approved.
    pub(super) approved_claim: Option<ClaimRef>,
    /// True while the transcript has mail that is not yet settled in the mailbox.
    pub(super) has_unsettled_mail: bool,
}

impl AgentHost {
    /// Opens the member's transcript and continues at its end.
    ///
    /// # Errors
    /// The transcript or the mailbox cannot be read or written.
    pub async fn resume(
        spec: MemberSpec,
        accounts: Vec<Account>,
        services: Arc<AgentServices>,
        context: ToolContext,
        turn_control: Arc<TurnControl>,
    ) -> Result<Self, AgentError> {
        let name = spec.name.as_str();
        let stores = &services.stores;
        let mut conversation =
            Conversation::resume(name, Arc::clone(&stores.transcripts), Arc::clone(&services.clock)).await?;
        stores.mailbox.settle(name, conversation.synced_keys().await?).await?;
        conversation.todo_list.clone_into(&mut context.caller.todos.lock());
        let permission_requests =
            PermissionRequests::new(spec.name.clone(), Arc::clone(&services), Arc::clone(&turn_control));
        let mut host = Self {
            spec,
            accounts,
            services,
            conversation,
            progress: Arc::clone(&turn_control.progress),
            turn_control,
            context,
            turn_count: TurnCount::default(),
            permission_requests,
            approved_claim: None,
            has_unsettled_mail: false,
        };
        host.permission_requests.try_withdraw(TURN_INTERRUPTED).await?;
        host.refresh_working_dir().await;
        Ok(host)
    }

    pub fn name(&self) -> &str {
        self.spec.name.as_str()
    }

    /// Returns its name, role and team.
    pub fn profile(&self) -> AgentProfile<'_> {
        AgentProfile { name: self.name(), role: &self.spec.role, team: self.services.spec.name.as_str() }
    }

    /// Sends the lead a text in the member's name. The lead tells itself nothing.
    pub(crate) async fn tell_lead(&self, text: String) {
        if self.context.caller.is_lead {
            return;
        }
        self.notify_lead(Message::new(MessageType::Message, self.name(), text, self.services.clock.now())).await;
    }

    /// Sends the lead a message. A full inbox or disk must not end the member.
    pub(crate) async fn notify_lead(&self, message: Message) {
        if let Err(error) = self.services.outbox().notify_lead(message).await {
            self.services.events.warn(self.name(), format!("cannot send a message to the lead: {error}"));
        }
    }

    /// Returns the claimed task.
    pub fn task(&self) -> Option<TaskId> {
        self.turn_control.claim().map(|claim| claim.task)
    }

    /// Adds a message for the agent, and records its current task with it.
    pub async fn append_message(&mut self, text: String) -> Result<(), AgentError> {
        let message = self.message_with_claim(Role::User, vec![Block::text(text)]);
        Ok(self.conversation.record(message).await?)
    }

    /// Adds the text of the task that was just claimed.
    pub async fn append_claimed_task(&mut self, task: &Task) -> Result<(), AgentError> {
        self.append_message(claimed_block(task, self.worktree_note().as_deref())).await?;
        self.conversation.mark_described(ClaimRef::of(task));
        Ok(())
    }

    /// Adds a prompt for the agent, which it must answer.
    pub async fn append_prompt(&mut self, kind: PromptKind, text: String) -> Result<(), AgentError> {
        let message = self.message_with_claim(Role::User, vec![Block::text(text)]);
        Ok(self.conversation.record(MessageRecord { prompt: Some(kind), ..message }).await?)
    }

    /// Records the result of a call.
    pub async fn record_result(&mut self, id: String, text: String, is_error: bool) -> Result<(), AgentError> {
        let result = Block::ToolResult { tool_use_id: id, content: text, is_error };
        if !self.count_record(std::slice::from_ref(&result)) {
            return Ok(());
        }
        let message = self.message_with_claim(Role::User, vec![result]);
        Ok(self.conversation.record(message).await?)
    }

    pub(super) fn message_with_claim(&self, role: Role, content: Vec<Block>) -> MessageRecord {
        self.with_claim(MessageRecord::new(role, content))
    }

    pub(super) fn with_claim(&self, message: MessageRecord) -> MessageRecord {
        let claim = self.turn_control.claim();
        MessageRecord { task: claim.map(|claim| claim.task), attempt: claim.map(|claim| claim.attempt), ..message }
    }

    /// Records the start of a turn.
    pub(crate) fn begin_turn(&mut self, turn_count: TurnCount) {
        self.turn_count = turn_count;
        match self.turn_control.claim() {
            Some(claim) => self.context.caller.attempt_log.begin_turn(claim),
            None if turn_count.turn == 1 => self.context.caller.attempt_quota.begin_without_task(),
            None => {}
        }
    }

    /// Counts a record of the attempt. Returns false if it is too long to be made.
    fn count_record(&self, content: &[Block]) -> bool {
        let bytes = serde_json::to_vec(content).map_or(0, |json| json.len());
        let limit = self.context.caller.attempt_quota.add_record(self.turn_control.claim(), bytes);
        !matches!(limit, Err(AttemptLimit::RecordBytes(_)))
    }

    /// Returns true if the attempt has passed a limit.
    pub(super) fn has_passed_limit(&self) -> bool {
        self.context.caller.attempt_quota.passed(self.turn_control.claim()).is_some()
    }

    /// Returns the outcome of an attempt that has passed a limit. Its context ends, so that the transcript can be archived.
    pub(super) async fn limit_outcome(&mut self) -> Result<Option<TurnOutcome>, AgentError> {
        let Some(limit) = self.context.caller.attempt_quota.passed(self.turn_control.claim()) else { return Ok(None) };
        self.reset_conversation().await?;
        Ok(Some(TurnOutcome::AgentFailed(limit.to_string())))
    }

    /// Records an answer of the agent. Its texts become events, and the last words of its attempt. A record that is too long is not made.
    pub(super) async fn record_answer(&mut self, content: &[Block], usage: Option<Usage>) -> Result<(), AgentError> {
        self.record_message(MessageRecord { usage, ..MessageRecord::new(Role::Assistant, content.to_vec()) }).await
    }

    /// Records an answer of a model, as [`Self::record_answer`].
    pub(super) async fn record_response(&mut self, response: &ModelResponse) -> Result<(), AgentError> {
        let usage = response.usage.filter(|usage| usage.total() > 0);
        let message = MessageRecord::new(Role::Assistant, response.content.clone());
        self.record_message(MessageRecord { usage, origin: response.origin.clone(), ..message }).await
    }

    async fn record_message(&mut self, message: MessageRecord) -> Result<(), AgentError> {
        if !self.count_record(&message.content) {
            return Ok(());
        }
        let message = self.with_claim(message);
        self.conversation.record(message.clone()).await?;
        let content = &message.content;
        let texts: Vec<&str> =
            content.iter().filter_map(Block::as_text).filter(|text| !text.trim().is_empty()).collect();
        for text in &texts {
            self.services.events.record(EventKind::Said {
                teammate: self.name().to_owned(),
                task: self.task(),
                text: (*text).to_owned(),
            });
        }
        if !texts.is_empty()
            && let Some(claim) = self.turn_control.claim()
        {
            self.context.caller.attempt_log.record_words(claim, &texts.join("\n\n"));
        }
        Ok(())
    }

    /// Applies the effect of a tool call, and returns its outcomes.
    pub(super) fn apply_effect(&self, effect: ToolEffect) -> Vec<TurnOutcome> {
        match effect {
            // The answer to a question is the output of its call.
            ToolEffect::None | ToolEffect::FileUnchanged | ToolEffect::Ask { .. } => Vec::new(),
            ToolEffect::Idle => vec![TurnOutcome::Event(PhaseEvent::WorkEnded)],
            ToolEffect::Claimed(claim) => {
                self.turn_control.set_claim(Some(claim));
                vec![TurnOutcome::Event(PhaseEvent::Claimed(claim))]
            }
            ToolEffect::Finished => {
                self.turn_control.clear_reported_claim();
                vec![TurnOutcome::Event(PhaseEvent::Finished)]
            }
            ToolEffect::Stop => vec![TurnOutcome::Event(PhaseEvent::StopRequested)],
            ToolEffect::GoalDone { summary } => vec![TurnOutcome::GoalDone(summary)],
        }
    }

    /// Reserves budget for a request that can use at most `most`. May wait for other requests to end. Returns `None` if the turn control
    /// ended the turn.
    pub(super) async fn reserve_budget(&self, model: &str, most: Usage) -> Option<Result<Reservation, BudgetError>> {
        let services = &self.services;
        let task = match self.task_cap().await {
            Ok(task) => task,
            Err(error) => return Some(Err(BudgetError::Unrecorded(error))),
        };
        let _waiting = self.progress.start_activity(Activity::WaitingForBudget, BUDGET_WAIT_MAX);
        tokio::select! {
            biased;
            reservation = services.budget.reserve(services.stores.ledger.as_ref(), self.name(), task, model, most) => {
                Some(reservation)
            }
            () = self.turn_control.wait_for_level(StopLevel::ClaimLost) => None,
        }
    }

    /// Returns the time at which one of its accounts can be used again; `None` if one can be used now.
    pub(crate) async fn used_up_until(&self) -> Option<UnixMs> {
        let ends = self.quota_ends().await;
        let are_all = ends.len() == self.accounts.len();
        ends.into_iter().map(|(_, until)| until).min().filter(|_| are_all)
    }

    /// Returns the account whose quota window ends first, and its end, among those of its models; `None` if none is used up.
    pub(crate) async fn first_quota_end(&self) -> Option<(Account, UnixMs)> {
        self.quota_ends().await.into_iter().min_by_key(|(_, until)| *until)
    }

    async fn quota_ends(&self) -> Vec<(Account, UnixMs)> {
        let mut ends = Vec::new();
        for account in &self.accounts {
            let limit = self.services.accounts.limit(account).await.filter(|limit| limit.is_window());
            ends.extend(limit.map(|limit| (account.clone(), limit.until)));
        }
        ends
    }

    /// Returns the task that it holds, with its cap as it is now: a person may change it at any time.
    pub(super) async fn task_cap(&self) -> StoreResult<Option<TaskCap>> {
        let Some(task) = self.task() else { return Ok(None) };
        let limits = &self.services.spec.limits;
        let tokens_max = match self.services.stores.board.get(task).await {
            Ok(task) => limits.tokens_max_of(&task),
            // The claim is lost, and its work ends.
            Err(StoreError::NoTask(_)) => None,
            Err(error) => return Err(error),
        };
        Ok(Some(TaskCap { task, tokens_max }))
    }

    /// Counts usage for which no budget was reserved.
    pub(super) fn record_usage(&self, usage: Usage) {
        self.services.budget.record(self.name(), self.task(), self.spec.model.usage_name(), usage);
    }

    /// Records the start of a model request.
    pub(super) fn record_request_start(&self) {
        self.services.events.record(EventKind::TurnStarted { teammate: self.name().to_owned(), task: self.task() });
    }

    /// Records the end of a model request that was sent then.
    pub(super) fn record_request_end(&self, usage: Usage, started: Option<Instant>) {
        self.services.events.record(EventKind::TurnFinished {
            teammate: self.name().to_owned(),
            task: self.task(),
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            cache_read_tokens: usage.cache_read_tokens,
            cache_write_tokens: usage.cache_write_tokens,
            ms: started.map_or(0, elapsed_ms),
        });
    }

    /// Records that a model request is sent again after this wait.
    pub(super) fn record_retry(&self, reason: String, wait: Duration, retries: u32) {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let teammate = self.name().to_owned();
        self.services.events.record(EventKind::ModelRetried { teammate, reason, wait_ms, retries });
    }

    /// Records the end of a tool call, with the reason if it failed.
    pub(super) fn record_tool_end(&self, tool: String, call: String, ms: u64, failure: Option<&str>) {
        self.record_call_end(tool, call, ms, failure, false);
    }

    /// Records that a tool call was not made.
    pub(super) fn record_call_not_made(&self, tool: String, call: String, reason: &str) {
        self.record_call_end(tool, call, 0, Some(reason), true);
    }

    fn record_call_end(&self, tool: String, call: String, ms: u64, failure: Option<&str>, not_made: bool) {
        self.services.events.record(EventKind::ToolFinished {
            teammate: self.name().to_owned(),
            task: self.task(),
            tool,
            call,
            ok: failure.is_none(),
            not_made,
            ms,
            reason: failure.map(failure_summary::first_sentence),
        });
    }

    /// Creates the step of this tool call.
    pub(super) fn step<'a>(&'a self, call: &str, tool: &'a str, about: String) -> Step<'a> {
        Step { teammate: self.name(), task: self.task(), name: tool, call: call.to_owned(), about }
    }

    /// Runs a step, which is a tool call. Returns `None` if the turn control ended the turn before the work was done. `failure` returns
    /// the reason if finished work counts as failed.
    pub(super) async fn run_step<T, E: Into<ToolError>>(
        &self,
        step: Step<'_>,
        work: impl Future<Output = Result<T, E>>,
        failure: impl FnOnce(&T) -> Option<String>,
    ) -> Option<Result<T, ToolError>> {
        self.services.events.wait_for_capacity().await;
        if let Some(claim) = self.turn_control.claim() {
            self.context.caller.attempt_log.record_call(claim);
        }
        let failure = |result: &Option<Result<T, ToolError>>| match result {
            Some(Ok(done)) => failure(done),
            Some(Err(error)) => Some(error.headline()),
            None => Some(ABORTED.to_owned()),
        };
        let work = self.run_to_deadline(step.name, work);
        step.run(&self.context.events, work, failure).await
    }

    /// Runs the work of the tool or command `name`. Returns `None` if the turn control ended the turn before the work was done. A lost
    /// claim does not end a report: the report itself may have ended the claim, and the board refuses it otherwise.
    pub(super) async fn run_to_deadline<T, E: Into<ToolError>>(
        &self,
        name: &str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Option<Result<T, ToolError>> {
        let time_max = self.services.spec.limits.tools.command_timeout_max.saturating_mul(2);
        self.progress.record_tool_call();
        let _activity = self.progress.start_activity(Activity::RunningTool(name.into()), time_max);
        let deadline = async {
            // The completion without a report has the name of its verify command.
            if matches!(name, REPORT_TOOL | VERIFY_STEP) {
                self.turn_control.wait_for_level(StopLevel::Abort).await;
            } else {
                self.turn_control.tool_deadline().await;
            }
        };
        tokio::select! {
            biased;
            result = work => Some(result.map_err(Into::into)),
            () = deadline => None,
        }
    }

    /// Clears the context and the list of the tool `todo`. The transcript keeps everything.
    pub(super) async fn reset_conversation(&mut self) -> Result<(), AgentError> {
        if !self.conversation.is_empty() || self.conversation.summary.is_some() {
            self.conversation.restart().await?;
        }
        self.context.caller.todos.lock().clear();
        Ok(())
    }

    /// Asks for permission for a call. `details` are its other arguments, such as the lines that it changes.
    pub(super) async fn ask_permission(&self, call: &PermissionCall, details: &CallDetails) -> Result<(), CallNotMade> {
        match self.context.decide(call).await {
            PermissionDecision::Allow => Ok(()),
            PermissionDecision::Deny(reason) => Err(CallNotMade::Refused(reason)),
            PermissionDecision::Ask => self.permission_requests.ask(call, details).await,
        }
    }
}

/// Returns the milliseconds since `since`.
pub(super) fn elapsed_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
