//! Starts and resumes an agent's session.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::board_server::BoardRequest;
use super::connection::AgentConnection;
use super::protocol::{AgentEvent, AgentFailure, AgentProgram, ControlResponse, SessionStart};
use super::running_agent::{ProcessScope, RunningAgent, random_uuid};
use super::{AGENTS_FOLDER, AgentState, ExternalAgent, Turn};
use crate::agents::turn_control::StopLevel;
use crate::agents::{AgentError, AgentHost, ModelFailureKind, TurnOutcome, identity};
use crate::domain::agent::access::PathRule;
use crate::domain::agent::transcript::{Role, SentPrompt};
use crate::domain::team::phase::PhaseEvent;
use crate::process::CommandError;
use crate::run::progress::{Activity, AgentProgramStatus};
use crate::sandbox::environment;

/// The longest time from the start of a program until it accepts prompts.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// The prompt if the agent has all messages and its last turn was interrupted.
const GO_ON: &str = "Your last turn was interrupted. Continue your work.";

/// The prompt of a new session after one was lost.
const SESSION_LOST: &str = "Your earlier session on this work is lost, and this is a new one. Your changes of files are still there: look at them first, with git status and git log. Your last words were:\n";

/// The number of sessions in a row that an agent may lose before it accepts a prompt.
const SESSIONS_LOST_MAX: u32 = 2;

/// The longest account of a lost session, in bytes.
const RECAP_BYTES_MAX: usize = 8 * 1024;

/// The last prompt of a session in the agent's own files.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LastPrompt {
    /// The file with the session's history; `None` if the agent does not know the session.
    pub history: Option<PathBuf>,
    /// True if the prompt is in the history.
    pub has_arrived: bool,
}

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
        for _ in 0..=SESSIONS_LOST_MAX {
            match self.start(host, &scope).await {
                Start::Ready => return Ok(None),
                Start::Failed(outcome) => {
                    self.end().await;
                    return Ok(Some(outcome));
                }
                // The next session has a new id.
                Start::SessionLost => {
                    self.end().await;
                    self.state.leave_lost_session(host);
                }
            }
        }
        Ok(Some(temporary_failure(session_unknown(self.state.program))))
    }

    async fn start(&mut self, host: &mut AgentHost, scope: &ProcessScope) -> Start {
        let session = match host.conversation.session() {
            Some(session) => session.last_prompt.clone(),
            None => SentPrompt { session: random_uuid(), folder: scope.folder.clone(), ..SentPrompt::default() },
        };
        let agent = &mut self.state;
        let is_resumed = host.conversation.session().is_some();
        let history = match agent.find_last_prompt(&session).await {
            Ok(LastPrompt { history: None, .. }) if is_resumed && host.conversation.has_answers() => {
                return Start::SessionLost;
            }
            Ok(LastPrompt { history, has_arrived }) => {
                if !has_arrived {
                    host.conversation.mark_last_prompt_unsent();
                }
                history
            }
            Err(error) => {
                let text = format!("cannot continue its session, so a new one begins: {error}");
                host.services.events.warn(host.name(), text);
                if is_resumed {
                    return Start::SessionLost;
                }
                None
            }
        };
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

    /// Looks for a prompt in the agent's own files. An unreadable history counts as one that has it: a prompt that is missing is noticed,
    /// and one that arrives twice may not be.
    ///
    /// # Errors
    /// Names the file and the limit that it passes. The agent's commands can write there.
    pub(super) async fn find_last_prompt(&self, prompt: &SentPrompt) -> Result<LastPrompt, String> {
        let (program, home) = (self.program, self.home.clone());
        let SentPrompt { session, key, .. } = prompt.clone();
        let find = move || {
            let refused = |path: &Path, error: &io::Error| format!("cannot read {}: {error}", path.display());
            let history = program.history(&home, &session).map_err(|error| refused(&home, &error))?;
            let Some(path) = &history else { return Ok(LastPrompt::default()) };
            match program.has_prompt(path, &key) {
                Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Err(refused(path, &error)),
                found => Ok(LastPrompt { has_arrived: found.unwrap_or(true), history }),
            }
        };
        tokio::task::spawn_blocking(find).await.unwrap_or_else(|error| Err(error.to_string()))
    }

    async fn start_program(
        &self,
        host: &AgentHost,
        scope: &ProcessScope,
        is_known: bool,
    ) -> Result<RunningAgent, CommandError> {
        let spec = &host.spec;
        let limits = &host.services.spec.limits;
        let home = &self.home;
        create_private_folder(home)
            .map_err(|error| CommandError::Failed(format!("cannot create {}: {error}", home.display())))?;
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
        self.progress.set_program(AgentProgramStatus {
            session: self.session.clone(),
            pid: connection.process.pid().unwrap_or_default(),
        });
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
        self.running.connection.prompt(&key, &text).await;
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

fn start_failure(error: CommandError) -> TurnOutcome {
    match error {
        CommandError::ClaimLost(_) => TurnOutcome::Aborted,
        CommandError::Refused(reason) => temporary_failure(reason),
        CommandError::Failed(_) => TurnOutcome::HarnessFailed(error.to_string()),
    }
}

/// The outcome of a turn whose agent failed for a reason that may end by itself.
pub(super) fn temporary_failure(reason: String) -> TurnOutcome {
    TurnOutcome::ModelFailed { reason, kind: ModelFailureKind::Temporary { retry_after: None } }
}

/// The reason of a failure if an agent does not know a session that it began.
pub(super) fn session_unknown(program: &dyn AgentProgram) -> String {
    format!("{} does not know the session that it has begun", program.name())
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
        let find = async |key: &str| {
            let prompt = SentPrompt { session: "s".to_owned(), key: key.to_owned(), ..SentPrompt::default() };
            agent.find_last_prompt(&prompt).await
        };
        assert_eq!(find("k").await, Ok(LastPrompt::default()));
        let history = home.path().join("projects/x/s.jsonl");
        std::fs::create_dir_all(history.parent().unwrap()).unwrap();
        std::fs::write(&history, "{\"uuid\":\"k\"}\n").unwrap();
        let found = |has_arrived| Ok(LastPrompt { history: Some(history.clone()), has_arrived });
        assert_eq!((find("k").await, find("other").await), (found(true), found(false)));
        let file = std::fs::File::options().write(true).open(&history).unwrap();
        file.set_len(60 << 30).unwrap();
        let refusal = find("k").await.unwrap_err();
        assert!(refusal.contains("s.jsonl: it has more than 1073741824 bytes"), "{refusal}");
        file.set_len(1 << 20).unwrap();
        std::fs::set_permissions(&history, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
        let is_root = std::fs::File::open(&history).is_ok();
        assert!(is_root || find("other").await == found(true));
    }
}
