//! Runs one command under the guard: for the bash tool, for a task's `verify`, for a team's `done_when`.
//!
//! Bounded in time and output. The command's group is recorded before it begins; it is ended with all it started when the
//! time is over, when the claim it ran for is lost, and when the caller is dropped or killed. See [`crate::sandbox`].

use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::output::Collector;
use super::{CommandRegistry, ReadOnly, ToolContext, ToolError};
use crate::domain::access::PathRule;
use crate::domain::reason;
use crate::domain::record::{GuardProcess, RunningCommand};
use crate::domain::task::{TaskId, VerifyRun};
use crate::platform::processes;
use crate::platform::terminal::with_stops_blocked;
use crate::ports::StoreResult;
use crate::sandbox::{self, CommandExit, GO, GuardMessage, Level, Sandbox};

/// How long the guard may take to get a command ready.
const READY_TIMEOUT: Duration = Duration::from_secs(15);
/// How long we wait for the guard to end everything; what is left then is ended by force.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// How long output may still come once all that could write it has ended.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// The longest line a guard says, in bytes.
const LINE_BYTES_MAX: u64 = 64 * 1024;
/// How many processes that could not be ended are named.
const LEFT_SHOWN_MAX: usize = 10;
/// What is read of a command at once.
const READ_BYTES: usize = 64 * 1024;

/// The task and the attempt a teammate holds.
pub type Holding = Option<(TaskId, u32)>;

/// Where and for whom commands run.
#[derive(Clone)]
pub struct CommandSetting {
    /// The folder they run in.
    pub workspace: PathBuf,
    /// What confines them.
    pub sandbox: Sandbox,
    /// Rules for paths besides those of the sandbox.
    pub rules: Vec<PathRule>,
    /// Where their process groups are recorded.
    pub commands: Arc<dyn CommandRegistry>,
    /// The most output in bytes.
    pub output_bytes_max: usize,
    /// The team's name.
    pub team: String,
    /// Who runs them.
    pub teammate: String,
    /// What the teammate holds, as of now.
    pub holding: watch::Receiver<Holding>,
    /// Whether they may run only where that can be seen to: for one that must write nothing.
    pub must_be_confined: bool,
    /// More variables of their environment.
    pub variables: Vec<(&'static str, String)>,
    /// Which lines of their output say nothing that concerns who reads it.
    pub is_noise: fn(&str) -> bool,
}

impl CommandSetting {
    /// The setting of this caller's commands.
    #[must_use]
    pub fn of(context: &ToolContext) -> Self {
        Self {
            workspace: context.workspace.clone(),
            sandbox: context.sandbox.clone(),
            rules: context.boundaries.to_vec(),
            commands: Arc::clone(&context.commands),
            output_bytes_max: context.limits.output_bytes_max,
            team: context.team.to_string(),
            teammate: context.name.to_string(),
            holding: context.holding.clone(),
            must_be_confined: context.read_only == Some(ReadOnly::NoPlan),
            variables: context.lodging.as_ref().map(|lodging| lodging.variables()).unwrap_or_default(),
            is_noise: if context.lodging.is_some() { super::deliver::is_said_in_vain } else { |_| false },
        }
    }

    /// The variables of a command besides those of the launch.
    fn own_variables(&self, holding: Holding) -> Vec<(&'static str, String)> {
        let mut own = vec![("BRIGADE_TEAM", self.team.clone()), ("BRIGADE_TEAMMATE", self.teammate.clone())];
        if let Some((task, attempt)) = holding {
            own.push(("BRIGADE_TASK", task.0.to_string()));
            own.push(("BRIGADE_ATTEMPT", attempt.to_string()));
        }
        own.extend(self.variables.iter().cloned());
        own
    }
}

/// How a command came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It ended by itself.
    Ended(CommandExit),
    /// Its time was over.
    TimedOut,
}

/// What came of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutcome {
    /// How it came out.
    pub ending: Ending,
    /// What it printed to stdout and stderr, in the order it came, harmless and bounded.
    pub output: String,
    /// The processes of the command that could not be ended.
    pub left: Vec<i32>,
}

impl CommandOutcome {
    /// The same without these lines of its output.
    fn without(mut self, is_noise: fn(&str) -> bool) -> Self {
        if self.output.lines().any(is_noise) {
            self.output = self.output.split_inclusive('\n').filter(|line| !is_noise(line.trim_end())).collect();
        }
        self
    }

    /// Whether it exited 0.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.ending == Ending::Ended(CommandExit::Code(0))
    }

    /// What a task's result keeps of it, as a run of its verify command.
    #[must_use]
    pub fn verified(&self, command: &str) -> VerifyRun {
        let status = match self.ending {
            Ending::Ended(CommandExit::Code(code)) => Some(code),
            Ending::Ended(CommandExit::Signal(_)) | Ending::TimedOut => None,
        };
        VerifyRun::new(command, status, &self.output)
    }

    /// Why it failed, in a bounded line.
    #[must_use]
    pub fn headline(&self) -> String {
        reason::short(&self.report())
    }

    /// What it printed, and how it came out.
    #[must_use]
    pub fn report(&self) -> String {
        let output = self.output.trim_end();
        let line = if output.is_empty() { "" } else { "\n" };
        format!("{output}{line}[{}]", self.ending_text())
    }

    /// How it came out, for models and people: "exit status 1".
    #[must_use]
    pub fn ending_text(&self) -> String {
        match self.ending {
            Ending::Ended(CommandExit::Code(code)) => format!("exit status {code}"),
            Ending::Ended(CommandExit::Signal(signal)) => format!("ended by signal {signal}{}", signal_name(signal)),
            Ending::TimedOut if self.left.is_empty() => {
                "timed out: the command and all it had started were ended".to_owned()
            }
            Ending::TimedOut => format!("timed out{}", left_text(&self.left)),
        }
    }
}

/// What could not be ended, if anything.
fn left_text(left: &[i32]) -> String {
    if left.is_empty() {
        return String::new();
    }
    let shown: Vec<String> = left.iter().take(LEFT_SHOWN_MAX).map(i32::to_string).collect();
    format!("; {} of its processes could not be ended and still run: {}", left.len(), shown.join(", "))
}

fn signal_name(signal: i32) -> &'static str {
    // These have the same number on every Unix system.
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
/// [`ToolError::ClaimLost`] when the attempt it was started under is no longer held: the command is ended within a second.
/// [`ToolError::Mendable`] when it cannot be started; [`ToolError::Fatal`] when it cannot be recorded.
pub async fn run(command: &str, time_max: Duration, setting: &CommandSetting) -> Result<CommandOutcome, ToolError> {
    let mut holding = setting.holding.clone();
    let held = *holding.borrow_and_update();
    let mut running = Running::start(command, held, setting).await?;
    let stop = tokio::select! {
        verdict = running.verdict() => Stop::Over(verdict),
        () = sleep(time_max) => Stop::Timeout,
        () = lost(&mut holding, held) => Stop::Lost,
    };
    match stop {
        Stop::Over(Ok(end)) => Ok(running.finish(Ending::Ended(end)).await.without(setting.is_noise)),
        Stop::Over(Err(reason)) => Err(running.abandon(&reason).await),
        Stop::Timeout => Ok(running.finish(Ending::TimedOut).await.without(setting.is_noise)),
        Stop::Lost => {
            let left = running.finish(Ending::TimedOut).await.left;
            Err(ToolError::ClaimLost(claim_lost(held) + &left_text(&left)))
        }
    }
}

/// Why we stop listening to a command.
enum Stop {
    Over(Result<CommandExit, String>),
    Timeout,
    Lost,
}

/// Returns once `held` is no longer held; never when nothing was.
async fn lost(holding: &mut watch::Receiver<Holding>, held: Holding) {
    if held.is_some() && holding.wait_for(|now| *now != held).await.is_ok() {
        return;
    }
    // Whoever kept the claim is gone, or there was none: the caller's own end is what ends the command then.
    std::future::pending().await
}

pub(super) fn claim_lost(held: Holding) -> String {
    let of = held.map(|(task, attempt)| format!(" of task {task} (attempt {attempt})")).unwrap_or_default();
    format!("your claim{of} was lost; what was running for it has been ended. Stop working on it.")
}

/// A command under its guard. Dropping it lets the leash go, which ends the command.
struct Running {
    leash: Option<ChildStdin>,
    says: BufReader<ChildStderr>,
    collected: Arc<Mutex<Collector>>,
    reading: JoinHandle<()>,
    guarded: Guarded,
}

impl Running {
    /// Starts the command under the confinement of the launch. Where that fails only this command does.
    async fn start(command: &str, held: Holding, setting: &CommandSetting) -> Result<Self, ToolError> {
        if setting.must_be_confined && setting.sandbox.confinement().level == Level::Off {
            let text = format!(
                "{}. Commands cannot be confined on this system, so none is run until then: use read_file, grep and glob",
                ReadOnly::NoPlan.words()
            );
            return Err(ToolError::Mendable(text));
        }
        let prepared = setting
            .sandbox
            .prepare(command, &setting.workspace, &setting.rules, &setting.own_variables(held))
            .map_err(|error| not_started(&error.to_string()))?;
        let child = with_stops_blocked(|| Command::from(prepared.process).spawn())
            .map_err(|error| not_started(&error.to_string()))?;
        let mut running = Self::of(child, setting)?;
        running.begin(&prepared.order).await?;
        Ok(running)
    }

    fn of(mut child: Child, setting: &CommandSetting) -> Result<Self, ToolError> {
        let (Some(leash), Some(says), Some(output)) = (child.stdin.take(), child.stderr.take(), child.stdout.take())
        else {
            return Err(ToolError::Fatal("the guard was started without its pipes".to_owned()));
        };
        let collected = Arc::new(Mutex::new(Collector::new(setting.output_bytes_max)));
        let reading = tokio::spawn(read_into(output, Arc::clone(&collected)));
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0);
        let started_ms = processes::process(pid).map_or(0, |process| process.started_ms);
        let guarded = Guarded {
            guard: Some(child),
            process: GuardProcess { pid, started_ms },
            group: None,
            commands: Arc::clone(&setting.commands),
            left: Vec::new(),
        };
        Ok(Self { leash: Some(leash), says: BufReader::new(says), collected, reading, guarded })
    }

    /// Hands the guard its order, and lets the command begin once it is recorded.
    async fn begin(&mut self, order: &[u8]) -> Result<(), ToolError> {
        if let Some(leash) = &mut self.leash {
            // A guard that is gone is noticed by its missing message.
            let _ = leash.write_all(order).await;
            let _ = leash.flush().await;
        }
        let group = match timeout(READY_TIMEOUT, self.hear()).await {
            Ok(GuardMessage::Group(group)) => group,
            Ok(GuardMessage::Refused(reason) | GuardMessage::Failed(reason)) => return Err(not_started(&reason)),
            Ok(GuardMessage::Ended(_)) => return Err(not_started("the guard ended before it began")),
            Err(_) => return Err(not_started("the guard did not get ready in time")),
        };
        self.guarded.record(group).await.map_err(|error| {
            ToolError::Fatal(format!("the command was not started, because it could not be recorded: {error}"))
        })?;
        if let Some(leash) = &mut self.leash {
            // As above.
            let _ = leash.write_all(GO).await;
            let _ = leash.flush().await;
        }
        Ok(())
    }

    /// The guard's next line.
    async fn hear(&mut self) -> GuardMessage {
        let mut line = String::new();
        match (&mut self.says).take(LINE_BYTES_MAX).read_line(&mut line).await {
            Ok(0) => GuardMessage::Failed("its guard was killed".to_owned()),
            Ok(_) => GuardMessage::parse(&line),
            Err(error) => GuardMessage::Failed(format!("its guard cannot be heard: {error}")),
        }
    }

    /// How the command ended, once its guard is gone; the error says why that is not known. A line alone proves nothing: where
    /// commands can reach their guard's stderr, it may be theirs. The guard's exit status is the guard's.
    async fn verdict(&mut self) -> Result<CommandExit, String> {
        let says = self.hear().await;
        let status = self.guarded.gone().await;
        let is_exit_0 = |end: CommandExit| end == CommandExit::Code(0);
        match (says, status.and_then(|status| status.code())) {
            (GuardMessage::Ended(end), Some(code)) if is_exit_0(end) == (code == 0) => Ok(end),
            (GuardMessage::Ended(_), Some(_)) => {
                Err("what was said in its guard's name was not its guard's".to_owned())
            }
            (GuardMessage::Ended(_), None) => Err("its guard was killed".to_owned()),
            (GuardMessage::Failed(reason) | GuardMessage::Refused(reason), _) => Err(reason),
            (GuardMessage::Group(_), _) => Err("its guard named a second group".to_owned()),
        }
    }

    /// Ends what is left of it, and gives what it printed.
    async fn finish(mut self, ending: Ending) -> CommandOutcome {
        drop(self.leash.take());
        let left = self.guarded.end().await;
        if timeout(DRAIN_TIMEOUT, &mut self.reading).await.is_err() {
            self.reading.abort();
        }
        let empty = Collector::new(0);
        let collected = std::mem::replace(&mut *self.collected.lock().unwrap_or_else(PoisonError::into_inner), empty);
        CommandOutcome { ending, output: collected.into_text(), left }
    }

    /// The error of a command whose guard failed.
    async fn abandon(self, reason: &str) -> ToolError {
        let outcome = self.finish(Ending::TimedOut).await;
        ToolError::Mendable(format!("the command was ended: {reason}{}\n{}", left_text(&outcome.left), outcome.output))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let (Some(mut guarded), Ok(runtime)) = (self.guarded.take(), tokio::runtime::Handle::try_current()) else {
            return;
        };
        runtime.spawn(async move {
            // The leash goes in the same drop.
            if !guarded.end().await.is_empty() {
                // It stays on record until it is over, for whoever takes over.
                let _: Option<ExitStatus> = guarded.gone().await;
            }
        });
    }
}

fn not_started(reason: &str) -> ToolError {
    ToolError::Mendable(format!("the command was not started: {reason}"))
}

/// Reads on to the end, so that the command never waits for us; only so much is kept.
async fn read_into(mut output: ChildStdout, collected: Arc<Mutex<Collector>>) {
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(count @ 1..) = output.read(&mut buffer).await {
        collected.lock().unwrap_or_else(PoisonError::into_inner).push(&buffer[..count]);
    }
}

/// The guard process and the record of its command, which ends when the guard does: then nothing of the command is left.
struct Guarded {
    guard: Option<Child>,
    process: GuardProcess,
    group: Option<i32>,
    commands: Arc<dyn CommandRegistry>,
    /// Processes that could not be ended after the guard was killed.
    left: Vec<i32>,
}

impl Guarded {
    async fn record(&mut self, group: i32) -> StoreResult<()> {
        self.group = Some(group);
        self.commands.started(RunningCommand { group, guard: self.process }).await
    }

    /// Waits until the guard is gone, however long it takes.
    async fn gone(&mut self) -> Option<ExitStatus> {
        let status = self.guard.as_mut()?.wait().await.ok();
        self.close(status).await;
        status
    }

    /// Waits for the guard, for so long; then ends it and its command by force. Returns what is left.
    async fn end(&mut self) -> Vec<i32> {
        let Some(guard) = &mut self.guard else { return std::mem::take(&mut self.left) };
        let status = match timeout(END_TIMEOUT, guard.wait()).await {
            Ok(status) => status.ok(),
            Err(_) => {
                let (pid, group) = (self.process.pid, self.group);
                // Not yet waited for, so its number is still its own.
                let forced = tokio::task::spawn_blocking(move || sandbox::end_by_force(pid, group)).await;
                let left = forced.unwrap_or_else(|_| vec![pid]);
                if !left.is_empty() {
                    tracing::warn!(?left, "processes of a command could not be ended");
                    return left;
                }
                guard.wait().await.ok()
            }
        };
        self.close(status).await;
        std::mem::take(&mut self.left)
    }

    /// Forgets a command whose guard is gone. One that was killed could not end its command; what cannot be ended stays on record.
    async fn close(&mut self, status: Option<ExitStatus>) {
        self.guard = None;
        if status.and_then(|status| status.code()).is_none() {
            let group = self.group;
            self.left = tokio::task::spawn_blocking(move || sandbox::end_orphans(group)).await.unwrap_or_default();
        }
        if !self.left.is_empty() {
            tracing::warn!(left = ?self.left, "processes of a command whose guard was killed could not be ended");
        } else if let Some(group) = self.group.take() {
            self.commands.ended(RunningCommand { group, guard: self.process }).await;
        }
    }

    /// Hands it over, unless it is gone.
    fn take(&mut self) -> Option<Self> {
        let (guard, process) = (Some(self.guard.take()?), self.process);
        Some(Self { guard, process, group: self.group.take(), commands: Arc::clone(&self.commands), left: Vec::new() })
    }
}
