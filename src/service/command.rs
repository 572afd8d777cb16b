//! Runs one command under the guard: for the tool `bash`, a task's `verify` or a team's `done_when`.
//!
//! Time and output are bounded. The command's process group is recorded before it starts. The command and all its processes end
//! after the timeout, if its claim is lost, and if the caller is dropped or killed. See [`crate::sandbox`].

use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::ServiceError;
use crate::domain::access::PathRule;
use crate::domain::failure_summary;
use crate::domain::output::OutputBuffer;
use crate::domain::phase::ClaimRef;
use crate::domain::records::{GuardProcess, RunningCommand};
use crate::domain::verify_run::VerifyRun;
use crate::platform::processes;
use crate::platform::terminal::with_stops_blocked;
use crate::ports::StoreResult;
use crate::sandbox::{self, CommandExit, GuardMessage, Level, START_BYTE, Sandbox};

/// The longest wait until the guard has prepared a command.
const READY_TIMEOUT: Duration = Duration::from_secs(15);
/// The longest wait until the guard has ended all processes. After it, the guard and the remaining processes are killed.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest wait for the last output after all its writers have ended.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// The longest message of a guard, in bytes.
const LINE_BYTES_MAX: u64 = 64 * 1024;
/// The most surviving processes that a text names.
const SURVIVORS_NAMED_MAX: usize = 10;
/// The size of one read of output.
const READ_BYTES: usize = 64 * 1024;

/// The record of running commands. A process that reclaims a task ends the task's commands first.
#[async_trait]
pub trait CommandRegistry: Send + Sync {
    /// Records that this command runs for the caller. The command starts after the record is written.
    async fn started(&self, command: RunningCommand) -> StoreResult<()>;

    /// Records that the command has ended, with all that it started.
    async fn ended(&self, command: RunningCommand);
}

/// The place, the caller and the limits of commands.
#[derive(Clone)]
pub struct CommandContext {
    /// The working directory.
    pub workspace: PathBuf,
    /// The confinement.
    pub sandbox: Sandbox,
    /// Rules for paths, in addition to those of the sandbox.
    pub rules: Vec<PathRule>,
    /// Records the process groups of running commands.
    pub registry: Arc<dyn CommandRegistry>,
    /// The longest output, in bytes.
    pub output_bytes_max: usize,
    /// The team's name.
    pub team: String,
    /// The caller's name.
    pub teammate: String,
    /// The claim that the caller holds now.
    pub claim: watch::Receiver<Option<ClaimRef>>,
    /// The reason why no command may run unconfined. It is set for a caller that must not write.
    pub confined_only_reason: Option<&'static str>,
    /// Additional environment variables.
    pub variables: Vec<(&'static str, String)>,
    /// Returns true for lines of output to leave out.
    pub is_ignored_line: fn(&str) -> bool,
}

impl CommandContext {
    /// The variables that a command gets in addition to those of the launch.
    fn command_variables(&self, claim: Option<ClaimRef>) -> Vec<(&'static str, String)> {
        let mut variables = vec![("BRIGADE_TEAM", self.team.clone()), ("BRIGADE_TEAMMATE", self.teammate.clone())];
        if let Some(claim) = claim {
            variables.push(("BRIGADE_TASK", claim.task.0.to_string()));
            variables.push(("BRIGADE_ATTEMPT", claim.attempt.to_string()));
        }
        variables.extend(self.variables.iter().cloned());
        variables
    }
}

/// The end of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandEnd {
    /// It exited, or a signal ended it.
    Ended(CommandExit),
    /// It was ended after its timeout.
    TimedOut,
}

/// The outcome of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutcome {
    /// The end of the command.
    pub end: CommandEnd,
    /// Its stdout and stderr in order, bounded and without control characters.
    pub output: String,
    /// The processes that could not be ended.
    pub survivors: Vec<i32>,
}

impl CommandOutcome {
    /// Removes these lines from the output.
    fn without_lines(mut self, is_ignored: fn(&str) -> bool) -> Self {
        if self.output.lines().any(is_ignored) {
            self.output = self.output.split_inclusive('\n').filter(|line| !is_ignored(line.trim_end())).collect();
        }
        self
    }

    /// Returns true if it exited 0.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.end == CommandEnd::Ended(CommandExit::Code(0))
    }

    /// Converts this outcome of a verify command for the task's result.
    #[must_use]
    pub fn to_verify_run(&self, command: &str) -> VerifyRun {
        let status = match self.end {
            CommandEnd::Ended(CommandExit::Code(code)) => Some(code),
            CommandEnd::Ended(CommandExit::Signal(_)) | CommandEnd::TimedOut => None,
        };
        VerifyRun::new(command, status, &self.output)
    }

    /// The failure in one bounded line.
    #[must_use]
    pub fn headline(&self) -> String {
        failure_summary::summary_of(&self.report())
    }

    /// The output, and below it the end of the command.
    #[must_use]
    pub fn report(&self) -> String {
        let output = self.output.trim_end();
        let line = if output.is_empty() { "" } else { "\n" };
        format!("{output}{line}[{}]", self.ending_text())
    }

    /// The end of the command for models and people, such as "exit status 1".
    #[must_use]
    pub fn ending_text(&self) -> String {
        match self.end {
            CommandEnd::Ended(CommandExit::Code(code)) => format!("exit status {code}"),
            CommandEnd::Ended(CommandExit::Signal(signal)) => {
                format!("ended by signal {signal}{}", signal_name(signal))
            }
            CommandEnd::TimedOut if self.survivors.is_empty() => {
                "timed out: the command and all its processes were ended".to_owned()
            }
            CommandEnd::TimedOut => format!("timed out{}", survivors_text(&self.survivors)),
        }
    }
}

fn survivors_text(survivors: &[i32]) -> String {
    if survivors.is_empty() {
        return String::new();
    }
    let named: Vec<String> = survivors.iter().take(SURVIVORS_NAMED_MAX).map(i32::to_string).collect();
    format!("; {} of its processes could not be ended and still run: {}", survivors.len(), named.join(", "))
}

fn signal_name(signal: i32) -> &'static str {
    // These numbers are the same on every Unix system.
    match signal {
        1 => " (SIGHUP)",
        2 => " (SIGINT)",
        6 => " (SIGABRT)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        13 => " (SIGPIPE)",
        15 => " (SIGTERM)",
        _ => "",
    }
}

/// Runs `command` in the shell, for at most `time_max`. Dropping the future ends it.
///
/// # Errors
/// [`ServiceError::ClaimLost`] if the caller loses the claim: the command ends within a second.
/// [`ServiceError::Refused`] if it cannot be started; [`ServiceError::Failed`] if it cannot be recorded.
pub async fn run(command: &str, time_max: Duration, context: &CommandContext) -> Result<CommandOutcome, ServiceError> {
    let mut claim = context.claim.clone();
    let claimed_attempt = *claim.borrow_and_update();
    let mut running = GuardedCommand::start(command, claimed_attempt, context).await?;
    let wait_end = tokio::select! {
        exit = running.wait_for_exit() => WaitEnd::Exited(exit),
        () = sleep(time_max) => WaitEnd::Timeout,
        () = claim_end(&mut claim, claimed_attempt) => WaitEnd::ClaimLost,
    };
    match wait_end {
        WaitEnd::Exited(Ok(end)) => {
            Ok(running.finish(CommandEnd::Ended(end)).await.without_lines(context.is_ignored_line))
        }
        WaitEnd::Exited(Err(reason)) => Err(running.guard_error(&reason).await),
        WaitEnd::Timeout => Ok(running.finish(CommandEnd::TimedOut).await.without_lines(context.is_ignored_line)),
        WaitEnd::ClaimLost => {
            let survivors = running.finish(CommandEnd::TimedOut).await.survivors;
            Err(ServiceError::ClaimLost(claim_lost_text(claimed_attempt) + &survivors_text(&survivors)))
        }
    }
}

/// The reason to stop waiting for a command.
enum WaitEnd {
    Exited(Result<CommandExit, String>),
    Timeout,
    ClaimLost,
}

/// Returns after the claim `claimed_attempt` is lost. Never returns if `claimed_attempt` is `None`.
async fn claim_end(claim: &mut watch::Receiver<Option<ClaimRef>>, claimed_attempt: Option<ClaimRef>) {
    if claimed_attempt.is_some() && claim.wait_for(|now| *now != claimed_attempt).await.is_ok() {
        return;
    }
    // There was no claim, or its sender is gone. Then the end of the caller ends the command.
    std::future::pending().await
}

pub(super) fn claim_lost_text(claimed_attempt: Option<ClaimRef>) -> String {
    let of = match claimed_attempt {
        Some(ClaimRef { task, attempt }) => format!(" of task {task} (attempt {attempt})"),
        None => String::new(),
    };
    format!("the claim{of} was lost, and all its commands were ended. Stop working on it.")
}

/// A command under its guard. Dropping it closes `guard_stdin`, which ends the command.
struct GuardedCommand {
    guard_stdin: Option<ChildStdin>,
    messages: BufReader<ChildStderr>,
    output: Arc<Mutex<OutputBuffer>>,
    reader_task: JoinHandle<()>,
    guard_handle: GuardHandle,
}

impl GuardedCommand {
    /// Starts the command under the confinement of the launch. An error affects only this command.
    async fn start(
        command: &str,
        claimed_attempt: Option<ClaimRef>,
        context: &CommandContext,
    ) -> Result<Self, ServiceError> {
        if let Some(reason) = context.confined_only_reason
            && context.sandbox.confinement().level == Level::Off
        {
            return Err(ServiceError::Refused(format!(
                "{reason}. Until then no command runs, because this system cannot confine commands: use `read_file`, `grep` and `glob`"
            )));
        }
        let prepared = context
            .sandbox
            .prepare(command, &context.workspace, &context.rules, &context.command_variables(claimed_attempt))
            .map_err(|error| not_started(&error.to_string()))?;
        let child = with_stops_blocked(|| Command::from(prepared.process).spawn())
            .map_err(|error| not_started(&error.to_string()))?;
        let mut running = Self::from_child(child, context)?;
        running.start_command(&prepared.encoded_spec).await?;
        Ok(running)
    }

    fn from_child(mut child: Child, context: &CommandContext) -> Result<Self, ServiceError> {
        let (Some(guard_stdin), Some(messages), Some(output)) =
            (child.stdin.take(), child.stderr.take(), child.stdout.take())
        else {
            return Err(ServiceError::Failed("the guard was started without its pipes".to_owned()));
        };
        let collected = Arc::new(Mutex::new(OutputBuffer::new(context.output_bytes_max)));
        let reader_task = tokio::spawn(read_output(output, Arc::clone(&collected)));
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0);
        let started_ms = processes::process(pid).map_or(0, |process| process.started_ms);
        let guard_handle = GuardHandle {
            guard: Some(child),
            process: GuardProcess { pid, started_ms },
            group: None,
            registry: Arc::clone(&context.registry),
            survivors: Vec::new(),
        };
        Ok(Self {
            guard_stdin: Some(guard_stdin),
            messages: BufReader::new(messages),
            output: collected,
            reader_task,
            guard_handle,
        })
    }

    /// Sends the command spec to the guard, records the process group, and then lets the command start.
    async fn start_command(&mut self, encoded_spec: &[u8]) -> Result<(), ServiceError> {
        if let Some(guard_stdin) = &mut self.guard_stdin {
            // If the guard is gone, its message is missing below.
            let _ = guard_stdin.write_all(encoded_spec).await;
            let _ = guard_stdin.flush().await;
        }
        let group = match timeout(READY_TIMEOUT, self.next_message()).await {
            Ok(GuardMessage::Group(group)) => group,
            Ok(GuardMessage::Refused(reason) | GuardMessage::Failed(reason)) => return Err(not_started(&reason)),
            Ok(GuardMessage::Ended(_)) => return Err(not_started("the guard ended before the command started")),
            Err(_) => return Err(not_started("the guard was not ready in time")),
        };
        self.guard_handle
            .record(group)
            .await
            .map_err(|error| ServiceError::Failed(format!("the command was not started: cannot record it: {error}")))?;
        if let Some(guard_stdin) = &mut self.guard_stdin {
            // If the guard is gone, `wait_for_exit` notices it.
            let _ = guard_stdin.write_all(START_BYTE).await;
            let _ = guard_stdin.flush().await;
        }
        Ok(())
    }

    /// Reads the guard's next message.
    async fn next_message(&mut self) -> GuardMessage {
        let mut line = String::new();
        match (&mut self.messages).take(LINE_BYTES_MAX).read_line(&mut line).await {
            Ok(0) => GuardMessage::Failed("its guard was killed".to_owned()),
            Ok(_) => GuardMessage::parse(&line),
            Err(error) => GuardMessage::Failed(format!("its guard's messages cannot be read: {error}")),
        }
    }

    /// Waits for the guard and returns the end of its command, or the reason why it is unknown.
    ///
    /// A message alone proves nothing: a command that can write to its guard's stderr can imitate it. So the guard's exit status
    /// must agree with it.
    async fn wait_for_exit(&mut self) -> Result<CommandExit, String> {
        let message = self.next_message().await;
        let status = self.guard_handle.wait().await;
        let is_success = |end: CommandExit| end == CommandExit::Code(0);
        match (message, status.and_then(|status| status.code())) {
            (GuardMessage::Ended(end), Some(code)) if is_success(end) == (code == 0) => Ok(end),
            (GuardMessage::Ended(_), Some(_)) => {
                Err("a message in its guard's name did not come from the guard".to_owned())
            }
            (GuardMessage::Ended(_), None) => Err("its guard was killed".to_owned()),
            (GuardMessage::Failed(reason) | GuardMessage::Refused(reason), _) => Err(reason),
            (GuardMessage::Group(_), _) => Err("its guard reported a second process group".to_owned()),
        }
    }

    /// Ends all processes that are left, and returns the output.
    async fn finish(mut self, ending: CommandEnd) -> CommandOutcome {
        drop(self.guard_stdin.take());
        let survivors = self.guard_handle.end().await;
        if timeout(DRAIN_TIMEOUT, &mut self.reader_task).await.is_err() {
            self.reader_task.abort();
        }
        let empty = OutputBuffer::new(0);
        let collected = std::mem::replace(&mut *self.output.lock().unwrap_or_else(PoisonError::into_inner), empty);
        CommandOutcome { end: ending, output: collected.into_text(), survivors }
    }

    async fn guard_error(self, reason: &str) -> ServiceError {
        let outcome = self.finish(CommandEnd::TimedOut).await;
        ServiceError::Refused(format!(
            "the command was ended: {reason}{}\n{}",
            survivors_text(&outcome.survivors),
            outcome.output
        ))
    }
}

impl Drop for GuardedCommand {
    fn drop(&mut self) {
        let (Some(mut guard_handle), Ok(runtime)) = (self.guard_handle.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        runtime.spawn(async move {
            // The same drop closes `guard_stdin`.
            if !guard_handle.end().await.is_empty() {
                // The command stays on record until it ends, for the process that reclaims the task.
                let _: Option<ExitStatus> = guard_handle.wait().await;
            }
        });
    }
}

fn not_started(reason: &str) -> ServiceError {
    ServiceError::Refused(format!("cannot start the command: {reason}"))
}

/// Reads to the end, so that the command never waits for a reader. The buffer bounds the memory.
async fn read_output(mut output: ChildStdout, collected: Arc<Mutex<OutputBuffer>>) {
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(count @ 1..) = output.read(&mut buffer).await {
        collected.lock().unwrap_or_else(PoisonError::into_inner).push(&buffer[..count]);
    }
}

/// The guard process and the record of its command. The record ends with the guard, after all processes of the command.
struct GuardHandle {
    guard: Option<Child>,
    process: GuardProcess,
    group: Option<i32>,
    registry: Arc<dyn CommandRegistry>,
    /// Processes that could not be ended after the guard was killed.
    survivors: Vec<i32>,
}

impl GuardHandle {
    async fn record(&mut self, group: i32) -> StoreResult<()> {
        self.group = Some(group);
        self.registry.started(RunningCommand { group, guard: self.process }).await
    }

    /// Waits for the end of the guard, without a timeout.
    async fn wait(&mut self) -> Option<ExitStatus> {
        let status = self.guard.as_mut()?.wait().await.ok();
        self.end_record(status).await;
        status
    }

    /// Waits for the guard for [`END_TIMEOUT`], then kills it and its command. Returns the processes that still run.
    async fn end(&mut self) -> Vec<i32> {
        let Some(guard) = &mut self.guard else { return std::mem::take(&mut self.survivors) };
        let status = match timeout(END_TIMEOUT, guard.wait()).await {
            Ok(status) => status.ok(),
            Err(_) => {
                let (pid, group) = (self.process.pid, self.group);
                // No call has reaped it yet, so its pid is still its own.
                let kill_result = tokio::task::spawn_blocking(move || sandbox::kill_guard_tree(pid, group)).await;
                let survivors = kill_result.unwrap_or_else(|_| vec![pid]);
                if !survivors.is_empty() {
                    tracing::warn!(?survivors, "processes of a command could not be ended");
                    return survivors;
                }
                guard.wait().await.ok()
            }
        };
        self.end_record(status).await;
        std::mem::take(&mut self.survivors)
    }

    /// Ends the record of a command whose guard is gone. If the guard was killed, this first ends its processes. The record stays if
    /// some of them cannot be ended.
    async fn end_record(&mut self, status: Option<ExitStatus>) {
        self.guard = None;
        if status.and_then(|status| status.code()).is_none() {
            let group = self.group;
            self.survivors =
                tokio::task::spawn_blocking(move || sandbox::kill_orphans(group)).await.unwrap_or_default();
        }
        if !self.survivors.is_empty() {
            tracing::warn!(survivors = ?self.survivors, "processes of a command whose guard was killed could not be ended");
        } else if let Some(group) = self.group.take() {
            self.registry.ended(RunningCommand { group, guard: self.process }).await;
        }
    }

    /// Moves the guard and its record out. Returns `None` if the guard is gone.
    fn take(&mut self) -> Option<Self> {
        let (guard, process) = (Some(self.guard.take()?), self.process);
        Some(Self {
            guard,
            process,
            group: self.group.take(),
            registry: Arc::clone(&self.registry),
            survivors: Vec::new(),
        })
    }
}
