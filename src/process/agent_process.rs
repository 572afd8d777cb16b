//! The program of an external agent under the guard: Brigade writes lines to it and reads its lines.
//!
//! The program and all that it started end within a second after its claim is lost, the owner is dropped or Brigade is killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::CommandError;
use super::command::{CommandContext, claim_end};
use super::guarded_process::{GuardedProcess, not_started};
use crate::domain::team::records::GuardProcess;
use crate::secrets::masked;

/// The longest line that is read, in bytes: the largest answer of a model's server, with documents, has 32 MB.
const LINE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// The most lines that wait for the reader. The program waits if there are more.
const LINES_WAITING_MAX: usize = 16;
/// The longest time for a program to take one line.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time that a program has after the end of its claim, if it waits for the answer to a call then.
const CALL_GRACE: Duration = Duration::from_millis(500);

/// The error for a line of the program that is too long. It is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a line of more than {LINE_BYTES_MAX} bytes")]
pub struct LineTooLong;

/// A running program. Dropping it ends the program and all that it started.
pub struct AgentProcess {
    lines: mpsc::Receiver<Result<String, LineTooLong>>,
    input: OwnedWriteHalf,
    pid: Option<u32>,
    guard: GuardProcess,
    /// True while the program waits for the answer to a call.
    has_call: Arc<AtomicBool>,
    /// Ends the program when it is dropped.
    owner: Option<oneshot::Sender<()>>,
    end: JoinHandle<()>,
    /// Closed after the program and all that it started have ended.
    end_mark: watch::Receiver<()>,
}

impl AgentProcess {
    /// Starts the program that `script` executes, confined like a command of this context.
    ///
    /// # Errors
    /// [`CommandError::Refused`] if it cannot be started; [`CommandError::Failed`] if the system lacks files, processes or memory for its
    /// guard, or if it cannot be recorded.
    pub async fn start(script: &str, context: &CommandContext) -> Result<Self, CommandError> {
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
        let (running_mark, end_mark) = watch::channel(());
        let has_call = Arc::new(AtomicBool::new(false));
        let has_call_now = Arc::clone(&has_call);
        let end = tokio::spawn(async move {
            let _running_mark = running_mark;
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
        Ok(Self { lines, input, pid, guard, has_call, owner: Some(owner), end, end_mark })
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
    pub async fn next_line(&mut self) -> Option<Result<String, LineTooLong>> {
        self.lines.recv().await
    }

    /// Waits until the program and all that it started have ended. It reads no line: a program that writes more than what may wait
    /// waits too. Cancel safe.
    pub async fn wait_for_end(&self) {
        while self.end_mark.clone().changed().await.is_ok() {}
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
async fn read_lines(output: impl AsyncRead + Unpin, lines: mpsc::Sender<Result<String, LineTooLong>>) {
    let mut output = BufReader::new(output);
    let mut is_rest_of_long_line = false;
    loop {
        let mut line = Vec::new();
        match (&mut output).take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let is_too_long = line.len() == LINE_BYTES_MAX && !line.ends_with(b"\n");
        if std::mem::replace(&mut is_rest_of_long_line, is_too_long) {
            continue;
        }
        let text = || masked(String::from_utf8_lossy(&line).trim_end().to_owned());
        if lines.send(if is_too_long { Err(LineTooLong) } else { Ok(text()) }).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing takes the lines, as while a permission waits. Their writer waits after the limit, and goes on as lines are taken.
    #[tokio::test(start_paused = true)]
    async fn endless_lines_wait_within_limit() {
        let (mut program, output) = tokio::io::duplex(4096);
        let (sender, mut lines) = mpsc::channel(LINES_WAITING_MAX);
        let reader = tokio::spawn(read_lines(output, sender));
        let mut written = 0;
        while timeout(Duration::from_secs(1), program.write_all(b"123456789\n")).await.is_ok() {
            written += 1;
            assert!(written < 100_000, "the writer never waits");
        }
        assert_eq!(lines.len(), LINES_WAITING_MAX);
        assert_eq!(lines.recv().await.unwrap().unwrap(), "123456789");
        drop(program);
        let mut taken = 1;
        while lines.recv().await.is_some() {
            taken += 1;
        }
        reader.await.unwrap();
        assert!(taken >= written);
    }

    #[tokio::test]
    async fn line_beyond_limit_is_refused() {
        let (sender, mut lines) = mpsc::channel(LINES_WAITING_MAX);
        let output = [vec![b'x'; LINE_BYTES_MAX + 1], b"\nnext\n".to_vec()].concat();
        read_lines(output.as_slice(), sender).await;
        assert!(lines.recv().await.unwrap().is_err());
        assert_eq!(lines.recv().await.unwrap().unwrap(), "next");
    }
}
