//! Acts on the events of an external agent.

use std::pin::pin;
use std::sync::Arc;

use serde_json::Value;
use tokio::time::Instant;

use super::board_server::{BoardCall, BoardRequest};
use super::protocol::{AgentEvent, AgentFailure, ControlRequestId, ControlResponse, ReportedUsage};
use super::running_agent::{RunningAgent, RunningTool, WithheldAnswer};
use super::start::{LastPrompt, session_unknown, temporary_failure};
use super::turn::TurnEnd;
use super::{AgentState, Turn};
use crate::agents::host::{ABORTED, elapsed_ms};
use crate::agents::permissions::CallNotMade;
use crate::agents::{AgentError, AgentHost, ModelFailureKind, TurnOutcome, identity};
use crate::domain::agent::permission::{PermissionCall, ToolKind};
use crate::domain::agent::transcript::{Block, Usage};
use crate::domain::log::event::EventKind;
use crate::domain::task::shell_blocks;
use crate::domain::team::budget::UsageFault;
use crate::domain::team::phase::PhaseEvent;
use crate::domain::team::request_text::CallDetails;
use crate::run::budget::Reservation;
use crate::run::stream::StreamEvent;
use crate::tools::{ToolEffect, ToolOutput, sanitized_text};

impl Turn<'_> {
    /// Acts on an event. Returns the outcomes if the turn has ended with it.
    pub(super) async fn handle(&mut self, event: AgentEvent) -> Result<TurnEnd, AgentError> {
        match event {
            AgentEvent::RequestStarted => return Ok(self.start_request().await),
            AgentEvent::TextStreamed(text) => self.publish(StreamEvent::Text(text)),
            AgentEvent::TextCompleted(text) => self.host.record_answer(&[Block::text(text)], None).await?,
            AgentEvent::ToolCalled { call_id: id, tool: name, input } => {
                self.host.record_answer(&[Block::tool_use(id, name, input)], None).await?;
            }
            AgentEvent::RequestEnded(usage) => self.end_request(usage),
            AgentEvent::ToolStarting { request_id, call_id, tool, input } => {
                return Ok(self.start_tool(request_id, call_id, tool, &input).await);
            }
            AgentEvent::ToolEnded { request_id, call_id, failure } => {
                return Ok(self.end_tool(request_id, call_id, failure).await);
            }
            AgentEvent::ToolResult { call_id, text, is_error } => self.record_result(call_id, &text, is_error).await?,
            AgentEvent::PermissionRequested { request_id, tool, input } => {
                match self.ask_permission(&tool, &input).await {
                    Some(Ok(())) => self.respond(&request_id, ControlResponse::GrantPermission(&input)).await,
                    Some(Err(refusal)) => {
                        self.respond(&request_id, ControlResponse::DenyPermission(&refusal.to_string())).await;
                    }
                    None => {}
                }
            }
            AgentEvent::McpRequest { request_id, call_id, message } => {
                return self.answer_board_request(&request_id, call_id, &message).await;
            }
            AgentEvent::PromptTaken(request_id) => {
                self.running.has_taken_prompt = true;
                let text = self.take_due_identity().await;
                self.respond(&request_id, ControlResponse::Continue(text.as_deref())).await;
            }
            AgentEvent::Compacted(request_id) => {
                let text = self.take_due_identity().await;
                self.respond(&request_id, ControlResponse::Continue(text.as_deref())).await;
            }
            AgentEvent::Compacting(request_id) => {
                self.agent.is_identity_due = true;
                self.respond(&request_id, ControlResponse::Continue(None)).await;
            }
            AgentEvent::RequestRetried { reason, is_refused: true, .. } => {
                self.decline_request();
                let kind = ModelFailureKind::WrongSetting;
                return Ok(Some(vec![TurnOutcome::ModelFailed { reason, kind }]));
            }
            AgentEvent::RequestRetried { reason, wait, retries, .. } => {
                self.host.record_retry(reason, wait, retries);
            }
            AgentEvent::QuotaLow { used_percent, until } => {
                let account = self.host.spec.model.account();
                let until = until.to_clock_or_date(self.host.services.clock.now());
                let text = format!("{account} has used {used_percent} % of its quota, which resets at {until}");
                self.host.services.events.warn_once("quota", &text);
            }
            AgentEvent::PromptCompleted { failure, usage } => {
                return Ok(self.complete_prompt(failure, usage).await);
            }
            AgentEvent::UnknownControlRequest(request_id) => self.respond(&request_id, ControlResponse::Refuse).await,
            AgentEvent::AnswerContinued
            | AgentEvent::Ready { .. }
            | AgentEvent::Diagnostic(_)
            | AgentEvent::LineRefused(_) => {}
        }
        Ok(None)
    }

    /// Records what the agent still says while it is stopped. It starts nothing more.
    pub(super) async fn record_while_stopping(&mut self, event: AgentEvent) -> Result<(), AgentError> {
        let quota = &self.host.context.caller.attempt_quota;
        if let Some(bytes) = event.kept_bytes()
            && quota.add_record(self.host.turn_control.claim(), bytes).is_err()
        {
            return Ok(());
        }
        match event {
            AgentEvent::ToolStarting { request_id, .. } => {
                self.respond(&request_id, ControlResponse::DenyTool("The team stops.")).await;
            }
            AgentEvent::McpRequest { request_id, .. } => {
                self.respond(&request_id, ControlResponse::Mcp(None)).await;
            }
            AgentEvent::ToolEnded { request_id, .. } => {
                self.respond(&request_id, ControlResponse::Continue(None)).await;
            }
            AgentEvent::UnknownControlRequest(request_id) => self.respond(&request_id, ControlResponse::Refuse).await,
            AgentEvent::ToolResult { call_id, .. } if self.recorded_call.as_ref() == Some(&call_id) => {}
            event @ (AgentEvent::TextCompleted(_)
            | AgentEvent::ToolCalled { .. }
            | AgentEvent::ToolResult { .. }
            | AgentEvent::RequestEnded(_)
            | AgentEvent::QuotaLow { .. }
            | AgentEvent::PromptCompleted { .. }) => drop(self.handle(event).await?),
            _ => {}
        }
        Ok(())
    }

    async fn respond(&mut self, request_id: &str, response: ControlResponse<'_>) {
        self.running.connection.respond(request_id, response).await;
    }

    fn publish(&self, event: StreamEvent) {
        self.host.services.output.publish(&Arc::from(self.host.name()), event);
    }

    /// Records the start of a model request. The first one of a turn has a reservation.
    async fn start_request(&mut self) -> TurnEnd {
        self.agent.ends_in_a_row = 0;
        self.agent.has_requested = true;
        self.running.has_ended_turn = false;
        self.running.request.started = Some(Instant::now());
        self.host.record_request_start();
        self.publish(StreamEvent::Started);
        self.reserve_budget().await.map(|outcome| vec![outcome])
    }

    fn end_request(&mut self, reported: Usage) {
        let fault = self.running.usage.request_fault(reported);
        let usage = if fault.is_some() { Usage::default() } else { reported };
        let running = &mut *self.running;
        running.usage.record_request(usage);
        let started = running.request.started.take();
        let reservation = running.request.reservation.take();
        match (fault, reservation) {
            (Some(fault), reservation) => self.count_as_maximum(fault, reservation),
            (None, Some(reservation)) => reservation.record_answer(Some(usage), 0),
            // The agent began it after the budget was spent.
            (None, None) => self.host.record_usage(usage),
        }
        if fault.is_none() {
            self.running.request.context_tokens = usage.total();
        }
        self.publish(StreamEvent::Ended);
        self.host.record_request_end(usage, started);
    }

    /// Counts a request with wrong usage as the most that it can use, and warns once.
    fn count_as_maximum(&mut self, fault: UsageFault, reservation: Option<Reservation>) {
        match reservation {
            Some(reservation) => reservation.mark_misreported(fault),
            None => self.host.record_usage(self.request_max()),
        }
        self.warn_of_misreport(fault);
    }

    fn warn_of_misreport(&mut self, fault: UsageFault) {
        if !std::mem::replace(&mut self.agent.has_warned_of_misreport, true) {
            let name = self.agent.program.name();
            let text = format!("{name} reports {fault}; such requests count as their maximum");
            self.host.services.events.warn(self.host.name(), text);
        }
    }

    async fn record_result(&mut self, call_id: String, text: &str, is_error: bool) -> Result<(), AgentError> {
        let text = sanitized_text(text, self.host.context.limits.output_bytes_max);
        self.host.record_result(call_id, text, is_error).await
    }

    /// Asks for permission for a call, by the rules or by the person. Returns `None` if the program ended meanwhile.
    async fn ask_permission(&mut self, tool: &str, input: &Value) -> Option<Result<(), CallNotMade>> {
        let running = &mut *self.running;
        let folder = &running.scope.folder;
        let call = match running.connection.protocol.permission_call(tool, input, folder) {
            Ok(call) => call,
            Err(reason) => return Some(Err(CallNotMade::Refused(reason))),
        };
        if call.changes_file_outside() {
            return Some(Err(CallNotMade::Refused(format!("change only files in {folder}"))));
        }
        if call.is_search() && self.host.context.search_would_show_hidden(&call).await {
            let reason =
                "your rules hide files below this folder, and this search would show them: search other folders";
            return Some(Err(CallNotMade::Refused(reason.to_owned())));
        }
        if call.kind == ToolKind::Edit
            && let Err(error) = self.host.context.real_path_to_write(&call.subject).await
        {
            return Some(Err(CallNotMade::Refused(error.to_string())));
        }
        let details = running.connection.protocol.permission_details(tool, input);
        let host = &*self.host;
        tokio::select! {
            biased;
            answer = host.ask_permission(&call, &details) => return Some(answer),
            () = running.connection.process.wait_for_end() => {}
        }
        host.permission_requests.withdraw("its program ended").await;
        None
    }

    /// Lets a tool run if it has permission. A turn whose claim is lost handles no event.
    async fn start_tool(
        &mut self,
        request_id: ControlRequestId,
        call_id: String,
        tool: String,
        input: &Value,
    ) -> TurnEnd {
        if let Err(refusal) = self.ask_permission(&tool, input).await? {
            self.host.record_call_not_made(tool, call_id, refusal.reason());
            let reason = refusal.to_string();
            return self.end_turn_with(WithheldAnswer { request_id, refusal: Some(reason) }).await;
        }
        let running = &mut *self.running;
        // A board tool records its own step.
        if running.connection.protocol.board_tool(&tool).is_none() {
            let about = running.connection.protocol.about(&tool, input);
            self.host.services.events.wait_for_capacity().await;
            self.host.services.events.record(EventKind::ToolStarted {
                teammate: self.host.name().to_owned(),
                task: self.host.task(),
                tool: tool.clone(),
                call: call_id.clone(),
                about: shell_blocks::script_headline(&about),
            });
            self.host.progress.record_tool_call();
            if let Some(claim) = running.scope.claim {
                self.host.context.caller.attempt_log.record_call(claim);
            }
            let call = running.connection.protocol.permission_call(&tool, input, "");
            let is_command = call.as_ref().is_ok_and(|call| call.kind == ToolKind::Command);
            let is_work = call.is_ok_and(|call| call.is_work());
            running.tools.insert(call_id, RunningTool { name: tool, is_work, is_command, started: Instant::now() });
        }
        self.respond(&request_id, ControlResponse::AllowTool).await;
        None
    }

    /// Records the end of a tool. The first one of a model request ends the turn.
    async fn end_tool(&mut self, request_id: ControlRequestId, call_id: String, failure: Option<String>) -> TurnEnd {
        if let Some(tool) = self.running.tools.remove(&call_id) {
            let has_run = failure.is_none() || tool.is_command;
            if tool.is_work
                && has_run
                && let Some(claim) = self.running.scope.claim
            {
                self.host.context.caller.attempt_log.record_work(claim);
            }
            self.host.record_tool_end(tool.name, call_id, elapsed_ms(tool.started), failure.as_deref());
        }
        self.end_turn_with(WithheldAnswer { request_id, refusal: None }).await
    }

    /// Ends the turn before the agent's next model request: withholds the first answer of the current one. Sends later ones.
    async fn end_turn_with(&mut self, answer: WithheldAnswer) -> TurnEnd {
        self.agent.has_called = true;
        let running = &mut *self.running;
        running.withheld.push(answer);
        if running.has_ended_turn {
            running.release(None).await;
            return None;
        }
        running.has_ended_turn = true;
        running.turn_notice = self.host.turn_count.notice(self.host.task().is_some());
        Some(vec![TurnOutcome::Event(PhaseEvent::TurnEnded)])
    }

    /// Records the end of the tools whose end the agent does not report.
    pub(super) fn record_aborted_tools(&mut self) {
        for (call_id, tool) in std::mem::take(&mut self.running.tools) {
            self.host.record_tool_end(tool.name, call_id, elapsed_ms(tool.started), Some(ABORTED));
        }
    }

    async fn answer_board_request(
        &mut self,
        request_id: &str,
        call_id: Option<String>,
        message: &Value,
    ) -> Result<TurnEnd, AgentError> {
        match BoardRequest::read(message, &self.agent.tool_specs) {
            BoardRequest::Answered(answer) => self.respond(request_id, ControlResponse::Mcp(Some(&answer))).await,
            BoardRequest::Notification => self.respond(request_id, ControlResponse::Mcp(None)).await,
            BoardRequest::Call(call) => {
                let call_id = call_id.unwrap_or_else(|| request_id.to_owned());
                return self.call_board_tool(request_id, call_id, call).await;
            }
        }
        Ok(None)
    }

    /// Runs a board tool. Returns the outcomes if the agent must not go on after it.
    async fn call_board_tool(&mut self, request_id: &str, id: String, call: BoardCall) -> Result<TurnEnd, AgentError> {
        let Some(tool) = self.agent.tools.iter().find(|tool| tool.spec().name == call.tool).cloned() else {
            let response = call.response(&format!("There is no tool `{}`.", call.tool), true);
            self.respond(request_id, ControlResponse::Mcp(Some(&response))).await;
            return Ok(None);
        };
        let permission = PermissionCall { tool: call.tool.clone(), kind: ToolKind::Board, subject: String::new() };
        if let Err(refusal) = self.host.ask_permission(&permission, &CallDetails::default()).await {
            let response = call.response(&refusal.to_string(), true);
            self.respond(request_id, ControlResponse::Mcp(Some(&response))).await;
            return Ok(None);
        }
        let input =
            if call.arguments.is_null() { Value::Object(serde_json::Map::new()) } else { call.arguments.clone() };
        let host = &*self.host;
        let step = host.step(&id, &call.tool, tool.about(&input));
        let work = host.run_step(step, tool.run(input, &host.context), |_| None);
        let result = finish_call(self.running, host, work).await;
        self.agent.has_called = true;
        let (text, is_error, end) = match result {
            Some(Ok(ToolOutput { text, effect })) => (text, false, self.apply_effect(effect)),
            Some(Err(error)) => (error.to_string(), true, TurnOutcome::of_error(&error).map(|outcome| vec![outcome])),
            None => return Ok(Some(vec![TurnOutcome::Aborted])),
        };
        let response = call.response(&text, is_error);
        match end {
            // The agent ends before it reports the result. Without a response, it makes no further request.
            Some(_) => {
                self.record_result(id.clone(), &text, is_error).await?;
                self.recorded_call = Some(id);
            }
            None => {
                self.running.connection.process.set_has_call(false);
                self.respond(request_id, ControlResponse::Mcp(Some(&response))).await;
            }
        }
        Ok(end)
    }

    /// Applies the effect of a board tool. The session ends with the claim, so the agent's last words are not asked for.
    fn apply_effect(&self, effect: ToolEffect) -> TurnEnd {
        let mut outcomes = self.host.apply_effect(effect);
        if matches!(outcomes.last()?, TurnOutcome::Event(PhaseEvent::Finished) | TurnOutcome::GoalDone(_)) {
            outcomes.push(TurnOutcome::Event(PhaseEvent::WorkEnded));
        }
        Some(outcomes)
    }

    /// Returns the identity block, once after each compaction.
    pub(super) async fn take_due_identity(&mut self) -> Option<String> {
        if !std::mem::take(&mut self.agent.is_identity_due) {
            return None;
        }
        Some(identity::render(self.host).await)
    }

    async fn complete_prompt(&mut self, failure: Option<AgentFailure>, usage: Option<ReportedUsage>) -> TurnEnd {
        if failure.is_none() && !self.has_taken_prompt().await {
            // The agent has ended a turn that it began by itself, such as after a background command.
            self.count_unreported(usage, false);
            return None;
        }
        self.record_aborted_tools();
        self.running.has_open_prompt = false;
        self.running.turn_notice = self.host.turn_count.notice(self.host.task().is_some());
        if failure.is_some() {
            self.decline_request();
        }
        self.count_unreported(usage, failure.is_none());
        Some(vec![match failure {
            None => TurnOutcome::Event(PhaseEvent::WorkEnded),
            Some(AgentFailure::SessionUnknown) => {
                self.agent.leave_lost_session(self.host);
                self.continue_session(session_unknown(self.agent.program))
            }
            Some(failure) => self.agent.outcome_of(failure, self.host),
        }])
    }

    /// Returns true if the agent has taken its last prompt. It does not ask about one that it takes in the middle of a turn, so its
    /// history counts too.
    async fn has_taken_prompt(&self) -> bool {
        if self.running.has_taken_prompt {
            return true;
        }
        let Some(session) = self.host.conversation.session() else { return true };
        match self.agent.find_last_prompt(&session.last_prompt).await {
            Ok(LastPrompt { history, has_arrived }) => history.is_none() || has_arrived,
            // The next start begins a new session.
            Err(_) => true,
        }
    }

    /// Counts no usage for a request that its server refused, or that was not made.
    pub(super) fn decline_request(&mut self) {
        let request = &mut self.running.request;
        if request.started.is_none()
            && let Some(reservation) = request.reservation.take()
        {
            reservation.mark_declined();
        }
    }

    /// Counts the usage of requests that had no events, such as those for titles. `has_answer` is true if the agent answered its prompt.
    fn count_unreported(&mut self, reported: Option<ReportedUsage>, has_answer: bool) {
        let running = &mut *self.running;
        // A request that was cut off counts by the reported usage. If that does not show it, it counts as its maximum.
        let cut_off = running.request.reservation.take();
        let has_started = running.request.started.is_some();
        let Some(reported) = reported else { return };
        let shows_request = running.usage.shows_uncounted(reported);
        let rest = running.usage.take_uncounted(reported);
        let fault = if shows_request { running.usage.rest_fault(rest, has_answer) } else { None };
        match (cut_off, fault) {
            (Some(reservation), Some(fault)) => self.count_as_maximum(fault, Some(reservation)),
            (None, Some(fault)) => self.warn_of_misreport(fault),
            (Some(_), None) if !shows_request && has_started => {}
            (Some(reservation), None) => reservation.record_answer(Some(rest), 0),
            (None, None) if rest.total() > 0 => self.host.record_usage(rest),
            (None, None) => {}
        }
    }
}

/// Waits for a call of the program that can end its claim, as a report does. The program ends soon after that, so its turn is
/// interrupted at once.
async fn finish_call<T>(running: &mut RunningAgent, host: &AgentHost, call: impl Future<Output = T>) -> T {
    let claim = host.turn_control.claim();
    let mut call = pin!(call);
    running.connection.process.set_has_call(true);
    tokio::select! {
        biased;
        result = &mut call => return result,
        () = host.turn_control.wait_for_claim_end(claim) => {}
    }
    running.connection.interrupt().await;
    call.await
}

impl AgentState {
    /// Returns the outcome of a turn in which the agent gave up its prompt.
    pub(super) fn outcome_of(&self, failure: AgentFailure, host: &AgentHost) -> TurnOutcome {
        let (reason, kind) = match failure {
            AgentFailure::Interrupted => return TurnOutcome::Event(PhaseEvent::TurnEnded),
            AgentFailure::Stopped(limit) => {
                let reason = format!("{} stopped its agent: {limit}", self.program.name());
                return TurnOutcome::AttemptFailed(reason);
            }
            AgentFailure::SessionUnknown => return temporary_failure(session_unknown(self.program)),
            AgentFailure::WrongSetting(reason) => (reason, ModelFailureKind::WrongSetting),
            AgentFailure::Permanent(reason) => (reason, ModelFailureKind::Permanent),
            AgentFailure::Quota { reason, until } if until > host.services.clock.now() => {
                (reason, ModelFailureKind::Quota { account: host.accounts[0].clone(), until })
            }
            AgentFailure::Temporary(reason) | AgentFailure::Quota { reason, .. } => {
                (reason, ModelFailureKind::Temporary { retry_after: None })
            }
        };
        TurnOutcome::ModelFailed { reason, kind }
    }
}
