//! Starts and resumes an agent's session.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::board_server::BoardRequest;
use super::connection::AgentConnection;
use super::protocol::{AgentEvent, AgentFailure, AgentMessage, ControlResponse, SessionStart};
use super::running_agent::{ProcessScope, RunningAgent, random_uuid};
use super::{AGENTS_FOLDER, AgentState, ExternalAgent, Turn};
use crate::agents::turn_control::StopLevel;
use crate::agents::{AgentError, AgentHost, ModelFailureKind, TurnOutcome, identity};
use crate::domain::access::PathRule;
use crate::domain::phase::PhaseEvent;
use crate::domain::transcript::{Role, SentPrompt};
use crate::run::progress::{Activity, AgentProgramStatus};
use crate::sandbox::environment;
use crate::service::ServiceError;

/// The longest time from the start of a program until it accepts prompts.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// The prompt if the agent has all messages and its last turn was interrupted.
const GO_ON: &str = "Your last turn was interrupted. Continue your work.";

/// The prompt of a new session after one was lost.
const SESSION_LOST: &str = "Your earlier session on this work is lost, and this is a new one. Your changes of files are still there: look at them first, with git status and git log. Your last words were:\n";

/// The longest account of a lost session, in bytes.
const RECAP_BYTES_MAX: usize = 8 * 1024;

/// The result of a start.
enum Start {
    Ready,
    /// The agent does not know its session.
    SessionLost,
    Failed(TurnOutcome),
}

impl ExternalAgent {
    /// Lets the agent run in the scope of its task. Returns the outcome of the turn if it cannot.
    pub(super) async fn ensure_running(&mut self, host: &mut AgentHost) -> Result<Option<TurnOutcome>, AgentError> {
        let scope = scope_of(host);
        if self.running.as_ref().is_some_and(|running| running.scope == scope) {
            return Ok(None);
        }
        self.end().await;
        leave_other_session(host).await?;
        loop {
            match self.start(host, &scope).await {
                Start::Ready => return Ok(None),
                Start::Failed(outcome) => {
                    self.end().await;
                    return Ok(Some(outcome));
                }
                // The next session has a new id, so it cannot be lost in the same way.
                Start::SessionLost => {
                    self.end().await;
                    self.state.leave_lost_session(host);
                }
            }
        }
    }

    async fn start(&mut self, host: &mut AgentHost, scope: &ProcessScope) -> Start {
        let session = match host.conversation.session() {
            Some(session) => session.last_prompt.clone(),
            None => SentPrompt { session: random_uuid(), folder: scope.folder.clone(), ..SentPrompt::default() },
        };
        let agent = &mut self.state;
        let history = agent.find_history(&session.session).await;
        if history.is_none() && host.conversation.session().is_some() && host.conversation.has_answers() {
            return Start::SessionLost;
        }
        if !agent.has_last_prompt(&history, &session.key).await {
            host.conversation.mark_last_prompt_unsent();
        }
        agent.session.clone_from(&session.session);
        agent.is_identity_due |= history.is_none();
        match agent.start_program(host, scope, history.is_some()).await {
            Ok(running) => agent.wait_until_ready(self.running.insert(running), host).await,
            Err(error) => Start::Failed(start_failure(error)),
        }
    }
}

fn scope_of(host: &AgentHost) -> ProcessScope {
    let working_dir = &host.context.working_dir;
    ProcessScope {
        folder: working_dir.root.display().to_string(),
        claim: host.turn_control.claim(),
        is_read_only: working_dir.read_only.is_some(),
    }
}

impl AgentState {
    /// Lets the next process begin a new session, with an account of the work.
    pub(super) fn leave_lost_session(&mut self, host: &mut AgentHost) {
        host.conversation.forget_session();
        self.needs_recap = true;
    }

    pub(super) async fn find_history(&self, session: &str) -> Option<PathBuf> {
        let (program, home, session) = (self.program, self.home.clone(), session.to_owned());
        tokio::task::spawn_blocking(move || program.history(&home, &session)).await.unwrap_or_default()
    }

    /// Returns true if the session's history has the prompt. An unreadable history counts as one that has it: a prompt that is
    /// missing is noticed, and one that arrives twice may not be.
    pub(super) async fn has_last_prompt(&self, history: &Option<PathBuf>, key: &str) -> bool {
        let Some(history) = history.clone() else { return false };
        let (program, key) = (self.program, key.to_owned());
        let found = tokio::task::spawn_blocking(move || program.has_prompt(&history, &key)).await;
        !matches!(found, Ok(Ok(false)))
    }

    async fn start_program(
        &self,
        host: &AgentHost,
        scope: &ProcessScope,
        is_known: bool,
    ) -> Result<RunningAgent, ServiceError> {
        let spec = &host.spec;
        let limits = &host.services.spec.limits;
        let home = &self.home;
        create_private_folder(home)
            .map_err(|error| ServiceError::Failed(format!("cannot create {}: {error}", home.display())))?;
        let mut context = host.context.command_context();
        context.rules.push(PathRule::writable(home));
        context.variables.extend(environment::passed_variables(&spec.model.pass_env));
        let system_prompt = identity::system_prompt(host, &host.services.spec.prompts.external);
        let start = SessionStart {
            session: &self.session,
            is_known,
            system_prompt: &system_prompt,
            model: &spec.model.model,
            base_url: spec.model.base_url.as_deref(),
            home,
            permissions: &spec.permissions,
            command_timeout: limits.tools.command_timeout,
            command_timeout_max: limits.tools.command_timeout_max,
            retries_max: limits.model.retries_max,
        };
        let command = spec.model.command.as_deref().unwrap_or_else(|| self.program.default_command());
        let protocol = self.program.protocol();
        let sockets = host.services.workspace.root.join(AGENTS_FOLDER);
        let connection = AgentConnection::open(protocol, command, &start, &sockets, context).await?;
        self.show_program(&connection);
        Ok(RunningAgent::new(connection, scope.clone()))
    }

    /// Shows the program and its session in the state of the worktree.
    fn show_program(&self, connection: &AgentConnection) {
        self.progress.set_program(AgentProgramStatus { session: self.session.clone(), pid: connection.pid() });
    }

    /// Waits until the agent accepts prompts. It may list the board's tools before.
    async fn wait_until_ready(&mut self, running: &mut RunningAgent, host: &mut AgentHost) -> Start {
        let progress = Arc::clone(&host.progress);
        let _busy = progress.start_activity(Activity::AskingModel, READY_TIMEOUT * 2);
        let turn_control = Arc::clone(&host.turn_control);
        let is_ready = timeout(READY_TIMEOUT, async {
            loop {
                let event = tokio::select! {
                    biased;
                    () = turn_control.wait_for_level(StopLevel::FinishTurn) => {
                        return Start::Failed(TurnOutcome::Event(PhaseEvent::TurnEnded));
                    }
                    event = running.connection.next_event() => event,
                };
                match event {
                    Some(AgentEvent::Ready { session }) => {
                        if let Some(session) = session {
                            self.session = session;
                            self.show_program(&running.connection);
                        }
                        return Start::Ready;
                    }
                    Some(AgentEvent::McpRequest { request_id, message, .. }) => {
                        let answer = match BoardRequest::read(&message, &self.tool_specs) {
                            BoardRequest::Answered(answer) => Some(answer),
                            BoardRequest::Notification | BoardRequest::Call(_) => None,
                        };
                        running.connection.respond(&request_id, ControlResponse::Mcp(answer.as_ref())).await;
                    }
                    Some(AgentEvent::UnknownControlRequest(request_id)) => {
                        running.connection.respond(&request_id, ControlResponse::Refuse).await;
                    }
                    Some(AgentEvent::PromptCompleted { failure: Some(AgentFailure::SessionUnknown), .. }) => {
                        return Start::SessionLost;
                    }
                    Some(AgentEvent::PromptCompleted { failure: Some(failure), .. }) => {
                        return Start::Failed(self.outcome_of(failure, host));
                    }
                    Some(_) => {}
                    None => {
                        let reason = format!("{} ended: {}", self.program.name(), running.connection.diagnostics());
                        return Start::Failed(temporary_failure(reason));
                    }
                }
            }
        });
        match is_ready.await {
            Ok(start) => start,
            Err(_) => {
                let name = self.program.name();
                let seconds = READY_TIMEOUT.as_secs();
                let diagnostics = Some(running.connection.diagnostics()).filter(|text| !text.is_empty());
                let diagnostics = diagnostics.map(|text| format!(": {text}")).unwrap_or_default();
                Start::Failed(temporary_failure(format!("{name} was not ready within {seconds} s{diagnostics}")))
            }
        }
    }
}

impl Turn<'_> {
    /// Sends the messages that the session does not have. Without any, an agent that waits for nothing is told to continue.
    pub(super) async fn send_unsent(&mut self) -> Result<(), AgentError> {
        if self.agent.needs_recap {
            self.agent.needs_recap = false;
            let words = self.host.conversation.tail_text(Some(Role::Assistant), RECAP_BYTES_MAX);
            self.host.append_message(format!("{SESSION_LOST}{words}")).await?;
        }
        let goes_on = !self.running.withheld.is_empty() || self.running.has_open_prompt;
        if self.host.conversation.unsent_texts().is_empty() {
            if goes_on {
                return Ok(());
            }
            self.host.append_message(GO_ON.to_owned()).await?;
        }
        let text = self.host.conversation.unsent_texts().join("\n\n");
        let prompt = SentPrompt {
            session: self.agent.session.clone(),
            folder: self.running.scope.folder.clone(),
            key: random_uuid(),
            ..SentPrompt::default()
        };
        let key = prompt.key.clone();
        self.host.conversation.record_sent(prompt).await?;
        if !std::mem::replace(&mut self.running.has_open_prompt, true) {
            self.running.has_taken_prompt = false;
        }
        self.running.usage.record_prompt(text.len());
        self.running.connection.send(&AgentMessage::Prompt { key: &key, text: &text }).await;
        Ok(())
    }
}

/// Begins a new context if the session was in another folder: it belongs to another task. Mail that the agent has not answered stays.
pub(super) async fn leave_other_session(host: &mut AgentHost) -> Result<(), AgentError> {
    let folder = host.context.working_dir.root.display().to_string();
    if host.conversation.session().is_some_and(|session| session.last_prompt.folder != folder) {
        host.reset_conversation().await?;
    }
    Ok(())
}

fn start_failure(error: ServiceError) -> TurnOutcome {
    match error {
        ServiceError::ClaimLost(_) => TurnOutcome::Aborted,
        ServiceError::Refused(reason) => temporary_failure(reason),
        ServiceError::Store(_) | ServiceError::Failed(_) => TurnOutcome::HarnessFailed(error.to_string()),
    }
}

/// The outcome of a turn whose agent failed for a reason that may end by itself.
pub(super) fn temporary_failure(reason: String) -> TurnOutcome {
    TurnOutcome::ModelFailed { reason, kind: ModelFailureKind::Temporary { retry_after: None } }
}

/// Creates a folder that only its owner can read. Commands of the agent may have changed the mode of an old one.
fn create_private_folder(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};

    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::external::claude::ClaudeCode;

    #[tokio::test]
    async fn unreadable_history_counts_as_having_prompt() {
        let home = tempfile::tempdir().unwrap();
        let agent = AgentState::new(&ClaudeCode, home.path().to_owned(), Vec::new(), Arc::default());
        let missing = agent.find_history("s").await;
        assert!(missing.is_none() && !agent.has_last_prompt(&missing, "k").await);
        let folder = home.path().join("projects/x");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("s.jsonl"), "{\"uuid\":\"k\"}\n").unwrap();
        let history = agent.find_history("s").await;
        assert_eq!(history, Some(folder.join("s.jsonl")));
        assert!(agent.has_last_prompt(&history, "k").await && !agent.has_last_prompt(&history, "other").await);
        assert!(agent.has_last_prompt(&Some(folder), "other").await, "a folder cannot be read as a file");
    }
}
