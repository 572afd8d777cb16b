//! The [`Sandbox`] of one launch: its level of confinement, path rules and environment. It prepares the team's commands.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::command_spec::{CommandSpec, Input};
use super::{CONFINEMENT_VARIABLE, CommandExit, GuardMessage, Level, START_BYTE, WORKER_VARIABLE, environment};
use crate::domain::agent::access::PathRule;
use crate::platform::{processes, terminal};

/// The limit of a command's text in bytes. Linux limits one variable, with its name, to 128 KiB.
const SCRIPT_BYTES_MAX: usize = 128 * 1024 - 256;

/// The most bytes that [`Sandbox::output_of`] returns.
const SHORT_OUTPUT_BYTES_MAX: u64 = 64 * 1024;
/// The most bytes of a guard's messages that are read. At level off, its command can write there too.
const GUARD_OUTPUT_BYTES_MAX: u64 = 64 * 1024;

/// The level of confinement, and the reason if it is not the strictest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confinement {
    /// The level.
    pub level: Level,
    /// The reason why it is below [`Level::Full`]; empty at that level.
    pub reason: String,
}

/// The sandbox of one launch. Its level is decided when it is opened and never lowered later.
#[derive(Debug, Clone)]
pub struct Sandbox(Arc<SandboxInner>);

#[derive(Debug)]
struct SandboxInner {
    guard: Arc<[OsString]>,
    confinement: Confinement,
    rules: Vec<PathRule>,
    environment: Vec<(OsString, OsString)>,
}

/// The reason why a sandbox cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The guard cannot be started.
    #[error("cannot start the guard of commands: {0}")]
    Guard(String),
    /// [`CONFINEMENT_VARIABLE`] has an unknown value.
    #[error("cannot use {CONFINEMENT_VARIABLE}={0}: expected full, mounts or off")]
    Setting(String),
    /// An existing path cannot be protected from commands.
    #[error("cannot protect control files from commands: {0}")]
    Unprotected(String),
}

/// The reason why a command cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The sandbox was created by [`Sandbox::without_guard`].
    #[error("this team has no guard for commands")]
    NoGuard,
    /// The text is too long, in bytes.
    #[error("the command has {0} bytes, and the limit is {SCRIPT_BYTES_MAX}: write it into a file and run that")]
    TooLong(usize),
    /// The text has a NUL character.
    #[error("the command has a NUL character")]
    Nul,
    /// The socket for its input and output cannot be created.
    #[error("cannot create a socket: {0}")]
    Socket(io::Error),
}

/// A command that is ready to start, with three pipes. Stdin takes the command spec, and stays open while the command may run. Stderr
/// carries [`GuardMessage`] lines. Stdout carries stdout and stderr of the command.
#[derive(Debug)]
pub struct PreparedCommand {
    /// The guard's process.
    pub process: Command,
    /// The bytes to write to its stdin first.
    pub encoded_spec: Vec<u8>,
}

/// A command that is ready to start, and the other end of its standard input and output.
#[derive(Debug)]
pub struct PreparedConversation {
    /// The command.
    pub command: PreparedCommand,
    /// Takes the command's input, and carries its stdout and stderr.
    pub socket: UnixStream,
}

impl Sandbox {
    /// Opens a sandbox at the strictest level that the system and [`CONFINEMENT_VARIABLE`] allow, with these path rules.
    /// To find the level, it prepares an empty command in `folder` at each level. Blocks for some milliseconds.
    ///
    /// # Errors
    /// [`SandboxError`].
    pub fn open(guard: Arc<[OsString]>, folder: &Path, rules: Vec<PathRule>) -> Result<Self, SandboxError> {
        let environment = environment::launch_environment();
        let mut confinement = strictest_confinement()?;
        loop {
            let candidate = Self(Arc::new(SandboxInner {
                guard: Arc::clone(&guard),
                confinement: confinement.clone(),
                rules: rules.clone(),
                environment: environment.clone(),
            }));
            let reason = match candidate.probe(folder)? {
                GuardMessage::Group(_) => return Ok(candidate),
                GuardMessage::Refused(reason) => reason,
                GuardMessage::Failed(reason) => return Err(SandboxError::Unprotected(reason)),
                GuardMessage::Ended(_) => return Err(SandboxError::Guard("it ended too early".to_owned())),
            };
            let level = match confinement.level {
                Level::Full => Level::MountsOnly,
                Level::MountsOnly => Level::Off,
                Level::Off => return Err(SandboxError::Guard(reason)),
            };
            confinement = Confinement { level, reason };
        }
    }

    /// A sandbox that refuses every command, for teams whose members run none.
    pub fn without_guard() -> Self {
        let confinement = Confinement { level: Level::Full, reason: String::new() };
        Self(Arc::new(SandboxInner { guard: Arc::default(), confinement, rules: Vec::new(), environment: Vec::new() }))
    }

    /// The level of confinement.
    pub fn confinement(&self) -> &Confinement {
        &self.0.confinement
    }

    /// The path rules that hold for every command.
    pub fn rules(&self) -> &[PathRule] {
        &self.0.rules
    }

    /// Prepares a command that runs `script` in `folder`. `rules` and `variables` are added to the rules and the environment of the
    /// launch.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn prepare(
        &self,
        script: &str,
        folder: &Path,
        rules: &[PathRule],
        variables: &[(&str, String)],
    ) -> Result<PreparedCommand, CommandError> {
        self.prepare_with(Input::Empty, script, folder, rules, variables)
    }

    /// As [`Self::prepare`], for a command that talks to its worker.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn prepare_conversation(
        &self,
        script: &str,
        folder: &Path,
        rules: &[PathRule],
        variables: &[(&str, String)],
    ) -> Result<PreparedConversation, CommandError> {
        let mut command = self.prepare_with(Input::Conversation, script, folder, rules, variables)?;
        let (socket, other_end) = UnixStream::pair().map_err(CommandError::Socket)?;
        command.process.stdout(OwnedFd::from(other_end));
        Ok(PreparedConversation { command, socket })
    }

    fn prepare_with(
        &self,
        input: Input,
        script: &str,
        folder: &Path,
        rules: &[PathRule],
        variables: &[(&str, String)],
    ) -> Result<PreparedCommand, CommandError> {
        let [program, first @ ..] = &*self.0.guard else { return Err(CommandError::NoGuard) };
        if script.contains('\0') {
            return Err(CommandError::Nul);
        }
        if script.len() > SCRIPT_BYTES_MAX {
            return Err(CommandError::TooLong(script.len()));
        }
        let mut all_rules = self.0.rules.clone();
        all_rules.extend(rules.iter().filter(|rule| !self.0.rules.contains(rule)).cloned());
        let encoded_spec =
            CommandSpec { level: self.0.confinement.level, input, script: script.into(), rules: all_rules }.encode();
        let mut process = Command::new(program);
        let mark = processes::own_mark();
        process.args(first).arg(&mark).arg("run").current_dir(folder);
        process
            .env_clear()
            .envs(environment::command_environment(&self.0.environment, variables))
            .env(WORKER_VARIABLE, mark);
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(PreparedCommand { process, encoded_spec })
    }

    /// Runs a command with little output in `folder`. Blocks until it and all its processes have ended, for at most `time_max` and
    /// [`super::GRACE`]. They end with the calling process too. Returns its exit, and at most 64 KiB of its output.
    ///
    /// # Errors
    /// `TimedOut` after `time_max`; otherwise the command could not be started.
    pub fn output_of(&self, script: &str, folder: &Path, time_max: Duration) -> io::Result<(CommandExit, String)> {
        self.output_with(script, folder, &[], time_max)
    }

    /// As [`Self::output_of`], with `variables` in addition to those of the launch.
    ///
    /// # Errors
    /// Those of [`Self::output_of`].
    pub fn output_with(
        &self,
        script: &str,
        folder: &Path,
        variables: &[(String, String)],
        time_max: Duration,
    ) -> io::Result<(CommandExit, String)> {
        let variables: Vec<(&str, String)> =
            variables.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        let mut prepared = self.prepare(script, folder, &[], &variables).map_err(io::Error::other)?;
        let mut guard = terminal::with_stops_blocked(|| prepared.process.spawn())?;
        let (Some(mut stdin), Some(stdout), Some(stderr)) =
            (guard.stdin.take(), guard.stdout.take(), guard.stderr.take())
        else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut output = Vec::new();
            let read = stdout.take(SHORT_OUTPUT_BYTES_MAX).read_to_end(&mut output);
            let mut messages = Vec::new();
            let _ = stderr.take(GUARD_OUTPUT_BYTES_MAX).read_to_end(&mut messages);
            let last = String::from_utf8_lossy(&messages).lines().next_back().unwrap_or_default().to_owned();
            // The receiver is gone after a timeout.
            let _ = sender.send(read.map(|_| (last, output)));
        });
        // If the guard ends without reading, its last message has the reason.
        let _ = stdin.write_all(&prepared.encoded_spec).and_then(|()| stdin.write_all(START_BYTE));
        let ended = receiver.recv_timeout(time_max);
        // The guard ends the command when its input is closed.
        drop(stdin);
        guard.wait()?;
        let (last, output) = ended.map_err(|_| io::ErrorKind::TimedOut)??;
        match GuardMessage::parse(&last) {
            GuardMessage::Ended(exit) => Ok((exit, String::from_utf8_lossy(&output).into_owned())),
            GuardMessage::Failed(reason) | GuardMessage::Refused(reason) => Err(io::Error::other(reason)),
            GuardMessage::Group(_) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// The guard's answer to an empty command, which is prepared but never started.
    fn probe(&self, folder: &Path) -> Result<GuardMessage, SandboxError> {
        let prepared =
            self.prepare("exit 0", folder, &[], &[]).map_err(|error| SandboxError::Guard(error.to_string()))?;
        first_message(prepared).map_err(|error| SandboxError::Guard(error.to_string()))
    }
}

fn first_message(mut prepared: PreparedCommand) -> io::Result<GuardMessage> {
    let mut child: Child = terminal::with_stops_blocked(|| prepared.process.spawn())?;
    let mut line = String::new();
    if let (Some(mut stdin), Some(stderr)) = (child.stdin.take(), child.stderr.take()) {
        // If the guard ends without reading, its stderr has the reason.
        let _ = stdin.write_all(&prepared.encoded_spec);
        BufReader::new(stderr).take(GUARD_OUTPUT_BYTES_MAX).read_line(&mut line)?;
    }
    child.wait()?;
    Ok(GuardMessage::parse(&line))
}

/// The strictest level that this system and [`CONFINEMENT_VARIABLE`] allow, before it is tried.
fn strictest_confinement() -> Result<Confinement, SandboxError> {
    let setting = std::env::var(CONFINEMENT_VARIABLE).unwrap_or_default();
    let level = match setting.as_str() {
        "" | "full" => Level::Full,
        "mounts" => Level::MountsOnly,
        "off" | "0" | "no" => Level::Off,
        _ => return Err(SandboxError::Setting(setting)),
    };
    let by_variable = format!("{CONFINEMENT_VARIABLE}={setting}");
    Ok(match level {
        Level::Full if cfg!(target_os = "linux") => Confinement { level, reason: String::new() },
        Level::Full => Confinement { level: Level::Off, reason: "only Linux has namespaces".to_owned() },
        _ if cfg!(target_os = "linux") => Confinement { level, reason: by_variable },
        _ => Confinement { level: Level::Off, reason: by_variable },
    })
}
