//! The program of an external agent under the guard: Brigade writes lines to it and reads its lines.
//!
//! The program and all that it started end within a second after its claim is lost, the owner is dropped or Brigade is killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::ServiceError;
use super::command::{CommandContext, claim_end};
use super::guarded_process::{GuardedProcess, not_started};
use crate::domain::records::GuardProcess;
use crate::secrets::masked;

/// The longest line that is read, in bytes. The rest of a longer one is skipped.
const LINE_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// The most lines that wait for the reader. The program waits if there are more.
const LINES_WAITING_MAX: usize = 256;
/// The longest time for a program to take one line.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time that a program has after the end of its claim, if it waits for the answer to a call then.
const CALL_GRACE: Duration = Duration::from_millis(500);

/// A running program. Dropping it ends the program and all that it started.
pub struct AgentProcess {
    lines: mpsc::Receiver<String>,
    input: OwnedWriteHalf,
    pid: Option<u32>,
    guard: GuardProcess,
    /// True while the program waits for the answer to a call.
    has_call: Arc<AtomicBool>,
    /// Ends the program when it is dropped.
    owner: Option<oneshot::Sender<()>>,
    end: JoinHandle<()>,
}

impl AgentProcess {
    /// Starts the program that `script` executes, confined like a command of this context.
    ///
    /// # Errors
    /// [`ServiceError::Refused`] if it cannot be started; [`ServiceError::Failed`] if the system lacks files, processes or memory for its
    /// guard, or if it cannot be recorded.
    pub async fn start(script: &str, context: &CommandContext) -> Result<Self, ServiceError> {
        context.check_confinement()?;
        let mut claim = context.claim.clone();
        let claimed_attempt = *claim.borrow_and_update();
        let variables = context.command_variables(claimed_attempt);
        let prepared = context
            .sandbox
            .prepare_conversation(script, &context.working_dir, &context.rules, &variables)
            .map_err(|error| not_started(&error.to_string()))?;
        let socket = into_tokio(prepared.socket).map_err(|error| not_started(&error.to_string()))?;
        let (mut process, _) = GuardedProcess::start(prepared.command, Arc::clone(&context.registry)).await?;
        let (pid, guard) = (process.pid(), process.guard());
        let (output, input) = socket.into_split();
        let (sender, lines) = mpsc::channel(LINES_WAITING_MAX);
        tokio::spawn(read_lines(output, sender));
        let (owner, mut owner_gone) = oneshot::channel::<()>();
        let has_call = Arc::new(AtomicBool::new(false));
        let has_call_now = Arc::clone(&has_call);
        let end = tokio::spawn(async move {
            let claim_over = async {
                claim_end(&mut claim, claimed_attempt).await;
                if has_call_now.load(Ordering::SeqCst) {
                    sleep(CALL_GRACE).await;
                }
            };
            tokio::select! {
                _ = &mut owner_gone => {}
                () = claim_over => {}
                // Its output ends too, so the owner learns of it.
                _ = process.wait_for_exit() => {}
            }
            let survivors = process.end().await;
            if !survivors.is_empty() {
                tracing::warn!(?survivors, "processes of an agent could not be ended");
            }
        });
        Ok(Self { lines, input, pid, guard, has_call, owner: Some(owner), end })
    }

    /// Returns the id of its process.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Returns its guard, which is an ancestor of all processes that it starts.
    #[must_use]
    pub fn guard(&self) -> GuardProcess {
        self.guard
    }

    /// Records whether the program waits for the answer to a call. The call can end the claim, as a report does: then the program has
    /// half a second to end its turn.
    pub fn set_has_call(&self, has_call: bool) {
        self.has_call.store(has_call, Ordering::SeqCst);
    }

    /// Writes a line.
    ///
    /// # Errors
    /// The program has ended, or does not read. It is ended then, because it may have a part of the line.
    pub async fn write_line(&mut self, line: &str) -> std::io::Result<()> {
        let bytes = [line.as_bytes(), b"\n"].concat();
        let written = timeout(WRITE_TIMEOUT, self.input.write_all(&bytes)).await;
        let written = written.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
        if written.is_err() {
            drop(self.owner.take());
        }
        written
    }

    /// Returns the next line of its stdout or stderr; `None` after its end. Cancel safe.
    pub async fn next_line(&mut self) -> Option<String> {
        self.lines.recv().await
    }

    /// Ends the program and all that it started, and waits for that.
    pub async fn end(mut self) {
        drop(self.owner.take());
        let _ = (&mut self.end).await;
    }
}

fn into_tokio(socket: std::os::unix::net::UnixStream) -> std::io::Result<UnixStream> {
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

/// Reads lines until the end of the output. Text that is not UTF-8 is replaced, and secrets are masked.
async fn read_lines(output: OwnedReadHalf, lines: mpsc::Sender<String>) {
    let mut output = BufReader::new(output);
    let mut is_rest_of_long_line = false;
    loop {
        let mut line = Vec::new();
        match (&mut output).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let is_whole = line.ends_with(b"\n");
        let is_start = !std::mem::replace(&mut is_rest_of_long_line, !is_whole);
        let text = String::from_utf8_lossy(&line);
        if is_start && lines.send(masked(text.trim_end().to_owned())).await.is_err() {
            return;
        }
    }
}
