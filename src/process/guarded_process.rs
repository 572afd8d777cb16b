//! A process under the guard: its start, its end, and its record. See [`crate::sandbox`].

use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::CommandError;
use super::command::CommandRegistry;
use crate::domain::team::records::{GuardProcess, RunningCommand};
use crate::platform::terminal::with_stops_blocked;
use crate::platform::{is_resource_shortage, processes};
use crate::ports::StoreResult;
use crate::sandbox::{self, CommandExit, GuardMessage, PreparedCommand, START_BYTE};

/// The longest wait until the guard has prepared a command.
const READY_TIMEOUT: Duration = Duration::from_secs(15);
/// The longest wait until the guard has ended all processes. After it, the guard and the remaining processes are killed.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest message of a guard, in bytes.
const LINE_BYTES_MAX: u64 = 64 * 1024;

/// A process under its guard. Dropping it closes `guard_stdin`, which ends the process and all that it started.
pub(super) struct GuardedProcess {
    guard_stdin: Option<ChildStdin>,
    messages: BufReader<ChildStderr>,
    guard_handle: GuardHandle,
}

impl GuardedProcess {
    /// Starts the process, and records its process group before that. Returns its output too, if it is a pipe.
    ///
    /// # Errors
    /// [`CommandError::Refused`] if it cannot be started; [`CommandError::Failed`] if the system lacks files, processes or memory for its
    /// guard, or if it cannot be recorded.
    pub async fn start(
        prepared: PreparedCommand,
        registry: Arc<dyn CommandRegistry>,
    ) -> Result<(Self, Option<ChildStdout>), CommandError> {
        let mut child = with_stops_blocked(|| Command::from(prepared.process).spawn()).map_err(|error| {
            if is_resource_shortage(&error) {
                CommandError::Failed(format!("the command was not started: cannot start its guard: {error}"))
            } else {
                not_started(&error.to_string())
            }
        })?;
        let output = child.stdout.take();
        let (Some(guard_stdin), Some(messages)) = (child.stdin.take(), child.stderr.take()) else {
            return Err(CommandError::Failed("the guard was started without its pipes".to_owned()));
        };
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0);
        let started_ms = processes::process(pid).map_or(0, |process| process.started_ms);
        let guard_handle = GuardHandle {
            guard: Some(child),
            process: GuardProcess { pid, started_ms },
            group: None,
            registry,
            survivors: Vec::new(),
        };
        let guard_stdin = Some(guard_stdin);
        let messages = BufReader::new(messages);
        let mut process = Self { guard_stdin, messages, guard_handle };
        process.start_command(&prepared.encoded_spec).await?;
        Ok((process, output))
    }

    /// Returns the id of the process that runs the command, which leads its process group.
    pub fn pid(&self) -> Option<u32> {
        self.guard_handle.group.and_then(|group| u32::try_from(group).ok())
    }

    /// Returns the guard, which is an ancestor of all processes of the command.
    pub fn guard(&self) -> GuardProcess {
        self.guard_handle.process
    }

    /// Sends the command spec to the guard, records the process group, and then lets the command start.
    async fn start_command(&mut self, encoded_spec: &[u8]) -> Result<(), CommandError> {
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
            .map_err(|error| CommandError::Failed(format!("the command was not started: cannot record it: {error}")))?;
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
    pub async fn wait_for_exit(&mut self) -> Result<CommandExit, String> {
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

    /// Ends all processes that are left. Returns those that still run.
    pub async fn end(&mut self) -> Vec<i32> {
        drop(self.guard_stdin.take());
        self.guard_handle.end().await
    }
}

impl Drop for GuardedProcess {
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

pub(super) fn not_started(reason: &str) -> CommandError {
    CommandError::Refused(format!("cannot start the command: {reason}"))
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
        self.registry.record_start(RunningCommand { group, guard: self.process }).await
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
            self.registry.record_end(RunningCommand { group, guard: self.process }).await;
        }
    }

    /// Moves the guard and its record out. Returns `None` if the guard is gone.
    fn take(&mut self) -> Option<Self> {
        Some(Self {
            guard: Some(self.guard.take()?),
            process: self.process,
            group: self.group.take(),
            registry: Arc::clone(&self.registry),
            survivors: Vec::new(),
        })
    }
}
