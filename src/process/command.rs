//! Runs one command under the guard: for the tool `bash`, a task's `verify` or a team's `done_when`.
//!
//! Time and output are bounded. The command's process group is recorded before it starts. The command and all its processes end
//! after the timeout, if its claim is lost, and if the caller is dropped or killed. See [`crate::sandbox`].

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::process::ChildStdout;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::CommandError;
use super::guarded_process::{GuardedProcess, not_started};
use crate::domain::agent::access::PathRule;
use crate::domain::task::failure_summary;
use crate::domain::task::verify_run::VerifyRun;
use crate::domain::team::phase::ClaimRef;
use crate::domain::team::records::RunningCommand;
use crate::domain::text::output::OutputBuffer;
use crate::domain::text::units::duration;
use crate::ports::StoreResult;
use crate::sandbox::{CommandExit, Level, Sandbox};
use crate::secrets::StreamMasker;

/// The longest wait for the last output after all its writers have ended.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// The most surviving processes that a text names.
const SURVIVORS_NAMED_MAX: usize = 10;
/// The size of one read of output.
const READ_BYTES: usize = 64 * 1024;

/// The record of running commands. A process that reclaims a task ends the task's commands first.
#[async_trait]
pub trait CommandRegistry: Send + Sync {
    /// Records that this command runs for the caller. The command starts after the record is written.
    async fn record_start(&self, command: RunningCommand) -> StoreResult<()>;

    /// Records that the command has ended, with all that it started.
    async fn record_end(&self, command: RunningCommand);
}

/// The place, the caller and the limits of commands.
#[derive(Clone)]
pub struct CommandContext {
    /// The folder in which they run.
    pub working_dir: PathBuf,
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
    pub variables: Vec<(String, String)>,
}

impl CommandContext {
    /// Returns an error for a caller that must not write, on a system that cannot confine commands.
    pub(super) fn check_confinement(&self) -> Result<(), CommandError> {
        match self.confined_only_reason {
            Some(reason) if self.sandbox.confinement().level == Level::Off => Err(CommandError::Refused(format!(
                "{reason}. Until then no command runs, because this system cannot confine commands: use `read_file`, `grep` and `glob`"
            ))),
            _ => Ok(()),
        }
    }

    /// The variables that a command gets in addition to those of the launch.
    pub(super) fn command_variables(&self, claim: Option<ClaimRef>) -> Vec<(&str, String)> {
        let mut variables = vec![("BRIGADE_TEAM", self.team.clone()), ("BRIGADE_TEAMMATE", self.teammate.clone())];
        if let Some(claim) = claim {
            variables.push(("BRIGADE_TASK", claim.task.0.to_string()));
            variables.push(("BRIGADE_ATTEMPT", claim.attempt.to_string()));
        }
        variables.extend(self.variables.iter().map(|(name, value)| (name.as_str(), value.clone())));
        variables
    }
}

/// The longest run of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeLimit {
    /// The time after which the command is ended.
    pub time_max: Duration,
    /// The setting with this time, if it is one of the config.
    pub setting: Option<&'static str>,
}

impl TimeLimit {
    /// Creates the limit of a command whose call sets none.
    pub fn of_command(time_max: Duration) -> Self {
        Self { time_max, setting: Some("limits.command_timeout_ms") }
    }

    /// Creates the limit of a worktree's set-up.
    pub fn of_setup(time_max: Duration) -> Self {
        Self { time_max, setting: Some("limits.setup_timeout_ms") }
    }
}

impl From<Duration> for TimeLimit {
    fn from(time_max: Duration) -> Self {
        Self { time_max, setting: None }
    }
}

/// The end of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandEnd {
    /// It exited, or a signal ended it.
    Ended(CommandExit),
    /// It was ended after this limit.
    TimedOut(TimeLimit),
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
    /// Hints for the agent that ran it.
    pub hints: Vec<String>,
}

impl CommandOutcome {
    /// Returns true if it exited 0.
    pub fn is_success(&self) -> bool {
        self.end == CommandEnd::Ended(CommandExit::Code(0))
    }

    /// Converts this outcome of a verify command for the task's result.
    pub fn to_verify_run(&self, command: &str) -> VerifyRun {
        let status = match self.end {
            CommandEnd::Ended(CommandExit::Code(code)) => Some(code),
            CommandEnd::Ended(CommandExit::Signal(_)) | CommandEnd::TimedOut(_) => None,
        };
        VerifyRun::new(command, status, &self.output)
    }

    /// The failure in one bounded line.
    pub fn headline(&self) -> String {
        failure_summary::summary_of_command(&self.ending_text(), &self.output)
    }

    /// The output, and below it the end of the command and the hints.
    pub fn report(&self) -> String {
        let output = self.output.trim_end();
        let line = if output.is_empty() { "" } else { "\n" };
        self.with_hints(&format!("{output}{line}[{}]", self.ending_text()))
    }

    /// The text, and below it the hints.
    pub fn with_hints(&self, text: &str) -> String {
        self.hints.iter().fold(text.to_owned(), |text, hint| format!("{text}\nhint: {hint}"))
    }

    /// The end of the command for models and people, such as "exit status 1".
    pub fn ending_text(&self) -> String {
        match self.end {
            CommandEnd::Ended(CommandExit::Code(code)) => format!("exit status {code}"),
            CommandEnd::Ended(CommandExit::Signal(signal)) => {
                format!("ended by signal {signal}{}", signal_name(signal))
            }
            CommandEnd::TimedOut(TimeLimit { time_max, setting }) => {
                let setting = setting.map(|setting| format!(" ({setting})")).unwrap_or_default();
                let rest = match survivors_text(&self.survivors) {
                    rest if rest.is_empty() => ": the command and all its processes were ended".to_owned(),
                    rest => rest,
                };
                format!("timed out after {}{setting}{rest}", duration(time_max))
            }
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

/// Runs `command` in the shell, for at most `limit`. Dropping the future ends it.
///
/// # Errors
/// [`CommandError::ClaimLost`] if the caller loses the claim: the command ends within a second.
/// [`CommandError::Refused`] if it cannot be started; [`CommandError::Failed`] if it cannot be recorded.
pub async fn run(
    command: &str,
    limit: impl Into<TimeLimit>,
    context: &CommandContext,
) -> Result<CommandOutcome, CommandError> {
    let limit = limit.into();
    let mut claim = context.claim.clone();
    let claimed_attempt = *claim.borrow_and_update();
    let mut running = RunningShellCommand::start(command, claimed_attempt, context).await?;
    let end = tokio::select! {
        exit = running.process.wait_for_exit() => match exit {
            Ok(exit) => CommandEnd::Ended(exit),
            Err(reason) => return Err(running.guard_error(&reason).await),
        },
        () = sleep(limit.time_max) => CommandEnd::TimedOut(limit),
        () = claim_end(&mut claim, claimed_attempt) => {
            let survivors = running.end().await.survivors;
            return Err(CommandError::ClaimLost(claim_lost_text(claimed_attempt) + &survivors_text(&survivors)));
        }
    };
    let EndedCommand { output, survivors } = running.end().await;
    Ok(CommandOutcome { end, output, survivors, hints: Vec::new() })
}

/// Returns after the claim `claimed_attempt` is lost. Never returns if `claimed_attempt` is `None`.
pub async fn claim_end(claim: &mut watch::Receiver<Option<ClaimRef>>, claimed_attempt: Option<ClaimRef>) {
    if claimed_attempt.is_some() && claim.wait_for(|now| *now != claimed_attempt).await.is_ok() {
        return;
    }
    // There was no claim, or its sender is gone. Then the end of the caller ends the command.
    std::future::pending().await
}

/// Returns the text for the holder of a lost claim, whose command was ended.
pub fn claim_lost_text(claimed_attempt: Option<ClaimRef>) -> String {
    let of = match claimed_attempt {
        Some(ClaimRef { task, attempt }) => format!(" of task {task} (attempt {attempt})"),
        None => String::new(),
    };
    format!("the claim{of} was lost, and all its commands were ended. Stop working on it.")
}

/// The output of a command that has ended, and the processes that could not be ended.
struct EndedCommand {
    output: String,
    survivors: Vec<i32>,
}

/// A command under its guard, and its output so far. Dropping it ends the command.
struct RunningShellCommand {
    process: GuardedProcess,
    output: Arc<Mutex<OutputBuffer>>,
    reader_task: JoinHandle<()>,
}

impl RunningShellCommand {
    /// Starts the command under the confinement of the launch. An error affects only this command.
    async fn start(
        command: &str,
        claimed_attempt: Option<ClaimRef>,
        context: &CommandContext,
    ) -> Result<Self, CommandError> {
        context.check_confinement()?;
        let variables = context.command_variables(claimed_attempt);
        let prepared = context
            .sandbox
            .prepare(command, &context.working_dir, &context.rules, &variables)
            .map_err(|error| not_started(&error.to_string()))?;
        let (process, stdout) = GuardedProcess::start(prepared, Arc::clone(&context.registry)).await?;
        let output = Arc::new(Mutex::new(OutputBuffer::new(context.output_bytes_max)));
        let reader_task = tokio::spawn(read_output(stdout, Arc::clone(&output)));
        Ok(Self { process, output, reader_task })
    }

    /// Ends all processes that are left, and returns the output.
    async fn end(mut self) -> EndedCommand {
        let survivors = self.process.end().await;
        if timeout(DRAIN_TIMEOUT, &mut self.reader_task).await.is_err() {
            self.reader_task.abort();
        }
        let empty = OutputBuffer::new(0);
        let collected = std::mem::replace(&mut *self.output.lock(), empty);
        EndedCommand { output: collected.into_text(), survivors }
    }

    async fn guard_error(self, reason: &str) -> CommandError {
        let EndedCommand { output, survivors } = self.end().await;
        CommandError::Refused(format!("the command was ended: {reason}{}\n{output}", survivors_text(&survivors)))
    }
}

/// Reads to the end, so that the command never waits for a reader. The buffer bounds the memory, and has no secrets.
async fn read_output(output: Option<ChildStdout>, collected: Arc<Mutex<OutputBuffer>>) {
    let Some(mut output) = output else { return };
    let mut buffer = vec![0; READ_BYTES];
    let mut masker = StreamMasker::default();
    while let Ok(count @ 1..) = output.read(&mut buffer).await {
        collected.lock().push(&masker.take(&buffer[..count]));
    }
    collected.lock().push(&masker.rest());
}
