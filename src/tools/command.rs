//! Runs one command under the guard: for the bash tool, for a task's `verify`, for a team's `done_when`.
//!
//! Bounded in time and output. The command's group is recorded before it begins; it is ended with all it started when the
//! time is over, when the claim it ran for is lost, and when the caller is dropped or killed. See `platform::guard`.

use std::ffi::OsString;
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
use super::{CommandRegistry, ToolContext, ToolError, environment};
use crate::domain::task::TaskId;
use crate::platform::guard::{self, CommandEnd, GO, GuardSays, GuardedCommand};

/// How long the guard may take to get a command ready.
const READY_TIMEOUT: Duration = Duration::from_secs(15);
/// How long we wait for the guard to end everything; it goes on without us after that.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// How long output may still come once all that could write it has ended.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// What is read of a command at once.
const READ_BYTES: usize = 64 * 1024;

/// The task and the attempt a teammate holds.
pub type Holding = Option<(TaskId, u32)>;

/// Where and for whom commands run.
#[derive(Clone)]
pub struct CommandSetting {
    /// The folder they run in.
    pub workspace: PathBuf,
    /// Files and folders, relative to the workspace, that they see read-only where the system can do that.
    pub control_files: Arc<[PathBuf]>,
    /// The guard's program and first arguments.
    pub guard: Arc<[OsString]>,
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
}

impl CommandSetting {
    /// The setting of this caller's commands.
    #[must_use]
    pub fn of(context: &ToolContext) -> Self {
        Self {
            workspace: context.workspace.clone(),
            control_files: Arc::clone(&context.control_files),
            guard: Arc::clone(&context.guard),
            commands: Arc::clone(&context.commands),
            output_bytes_max: context.limits.output_bytes_max,
            team: context.team.to_string(),
            teammate: context.name.to_string(),
            holding: context.holding.clone(),
        }
    }

    fn environment(&self, holding: Holding) -> Vec<(OsString, OsString)> {
        let mut own = vec![("BRIGADE_TEAM", self.team.clone()), ("BRIGADE_TEAMMATE", self.teammate.clone())];
        if let Some((task, attempt)) = holding {
            own.push(("BRIGADE_TASK", task.0.to_string()));
            own.push(("BRIGADE_ATTEMPT", attempt.to_string()));
        }
        environment::of_command(std::env::vars_os(), &own)
    }
}

/// How a command came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It ended by itself.
    Ended(CommandEnd),
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
}

impl CommandOutcome {
    /// Whether it exited 0.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.ending == Ending::Ended(CommandEnd::Exit(0))
    }

    /// How it came out, for models and people: "exit status 1".
    #[must_use]
    pub fn ending_text(&self) -> String {
        match self.ending {
            Ending::Ended(CommandEnd::Exit(code)) => format!("exit status {code}"),
            Ending::Ended(CommandEnd::Signal(signal)) => format!("ended by signal {signal}{}", signal_name(signal)),
            Ending::TimedOut => "timed out: the command and all it had started were ended".to_owned(),
        }
    }
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
        says = running.hear() => Stop::Said(says),
        () = sleep(time_max) => Stop::Timeout,
        () = lost(&mut holding, held) => Stop::Lost,
    };
    match stop {
        Stop::Said(GuardSays::Ended(end)) => Ok(running.finish(Ending::Ended(end)).await),
        Stop::Said(GuardSays::Failed(reason)) => Err(running.abandon(&reason).await),
        Stop::Said(GuardSays::Group { .. }) => Err(running.abandon("the guard named a second group").await),
        Stop::Timeout => {
            running.end().await;
            Ok(running.finish(Ending::TimedOut).await)
        }
        Stop::Lost => {
            running.end().await;
            running.finish(Ending::TimedOut).await;
            Err(ToolError::ClaimLost(claim_lost(held)))
        }
    }
}

/// Why we stop listening to a command.
enum Stop {
    Said(GuardSays),
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
    recorded: Recorded,
}

impl Running {
    async fn start(command: &str, held: Holding, setting: &CommandSetting) -> Result<Self, ToolError> {
        let mut child = spawn(command, held, setting)?;
        let (Some(leash), Some(says), Some(output)) = (child.stdin.take(), child.stderr.take(), child.stdout.take())
        else {
            return Err(ToolError::Fatal("the guard was started without its pipes".to_owned()));
        };
        let collected = Arc::new(Mutex::new(Collector::new(setting.output_bytes_max)));
        let reading = tokio::spawn(read_into(output, Arc::clone(&collected)));
        let mut running = Self {
            leash: Some(leash),
            says: BufReader::new(says),
            collected,
            reading,
            recorded: Recorded { guard: Some(child), group: None, commands: Arc::clone(&setting.commands) },
        };
        running.begin().await?;
        Ok(running)
    }

    /// Lets the command begin once its group is recorded.
    async fn begin(&mut self) -> Result<(), ToolError> {
        let says = timeout(READY_TIMEOUT, self.hear()).await;
        let (group, confinement) = match says {
            Ok(GuardSays::Group { id, confinement }) => (id, confinement),
            Ok(GuardSays::Failed(reason)) => return Err(not_started(&reason)),
            Ok(GuardSays::Ended(_)) => return Err(not_started("the guard ended before it began")),
            Err(_) => return Err(not_started("the guard did not get ready in time")),
        };
        guard::remember(&confinement);
        self.recorded.group = Some(group);
        self.recorded.commands.started(group).await.map_err(|error| {
            ToolError::Fatal(format!("the command was not started, because it could not be recorded: {error}"))
        })?;
        if let Some(leash) = &mut self.leash {
            // When the guard is gone the next line we wait for never comes, and that is said.
            let _ = leash.write_all(GO).await;
            let _ = leash.flush().await;
        }
        Ok(())
    }

    /// The guard's next line.
    async fn hear(&mut self) -> GuardSays {
        let mut line = String::new();
        match self.says.read_line(&mut line).await {
            Ok(0) => GuardSays::Failed("its guard was killed".to_owned()),
            Ok(_) => GuardSays::parse(&line),
            Err(error) => GuardSays::Failed(format!("its guard cannot be heard: {error}")),
        }
    }

    /// Ends the command and all it started.
    async fn end(&mut self) {
        drop(self.leash.take());
        self.recorded.wait().await;
    }

    /// What it printed, once it is over.
    async fn finish(mut self, ending: Ending) -> CommandOutcome {
        self.recorded.wait().await;
        if timeout(DRAIN_TIMEOUT, &mut self.reading).await.is_err() {
            self.reading.abort();
        }
        let empty = Collector::new(0);
        let collected = std::mem::replace(&mut *self.collected.lock().unwrap_or_else(PoisonError::into_inner), empty);
        CommandOutcome { ending, output: collected.into_text() }
    }

    /// Makes sure that nothing is left of a command whose guard failed.
    async fn abandon(mut self, reason: &str) -> ToolError {
        if let Some(group) = self.recorded.group {
            guard::kill_group(group);
        }
        self.end().await;
        let output = self.finish(Ending::TimedOut).await.output;
        ToolError::Mendable(format!("the command was ended: {reason}\n{output}"))
    }
}

fn spawn(command: &str, held: Holding, setting: &CommandSetting) -> Result<Child, ToolError> {
    let guarded = GuardedCommand {
        guard: &setting.guard,
        command,
        folder: &setting.workspace,
        environment: &setting.environment(held),
        read_only: &setting.control_files,
    };
    let process = guarded.prepare().map_err(|error| not_started(&error.to_string()))?;
    Command::from(process).spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::ArgumentListTooLong => not_started(&format!(
            "a command of {} bytes is too long for the system; write it into a file and run that",
            command.len()
        )),
        std::io::ErrorKind::InvalidInput => not_started("it contains a NUL character"),
        _ => not_started(&error.to_string()),
    })
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

/// The guard process and the record of its command's group, which ends when the guard does: then nothing of the group is
/// left.
struct Recorded {
    guard: Option<Child>,
    group: Option<i32>,
    commands: Arc<dyn CommandRegistry>,
}

impl Recorded {
    /// Waits for the guard, for so long; a guard that takes longer is waited for in the background.
    async fn wait(&mut self) {
        let Some(guard) = &mut self.guard else { return };
        let Ok(ended) = timeout(END_TIMEOUT, guard.wait()).await else { return };
        let _: std::io::Result<ExitStatus> = ended;
        self.guard = None;
        if let Some(group) = self.group.take() {
            self.commands.ended(group).await;
        }
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let (Some(mut guard), Ok(runtime)) = (self.guard.take(), tokio::runtime::Handle::try_current()) else { return };
        let (group, commands) = (self.group.take(), Arc::clone(&self.commands));
        runtime.spawn(async move {
            // The leash is gone by now, or goes in the same drop.
            let _: std::io::Result<ExitStatus> = guard.wait().await;
            if let Some(group) = group {
                commands.ended(group).await;
            }
        });
    }
}
