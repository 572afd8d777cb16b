//! The sandbox of one launch: which level of confinement holds, which paths are protected, which environment commands get.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use super::order::Order;
use super::{CONFINEMENT_VARIABLE, GuardMessage, Level, WORKER_VARIABLE, environment};
use crate::domain::access::PathRule;
use crate::platform::{processes, terminal};

/// The most bytes of a command's text. Linux takes 128 KiB for one variable, its name included.
const SCRIPT_BYTES_MAX: usize = 128 * 1024 - 256;

/// How commands are confined, and why not more strictly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confinement {
    /// The level.
    pub level: Level,
    /// The reason that it is below [`Level::Full`]; empty where it is not.
    pub reason: String,
}

/// The sandbox of one launch. It is decided when it is opened, and nothing lowers it later.
#[derive(Debug, Clone)]
pub struct Sandbox(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    guard: Arc<[OsString]>,
    confinement: Confinement,
    rules: Vec<PathRule>,
    environment: Vec<(OsString, OsString)>,
}

/// Why a sandbox cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The guard cannot be started.
    #[error("cannot start the guard of commands: {0}")]
    Guard(String),
    /// [`CONFINEMENT_VARIABLE`] has a value that is none of its own.
    #[error("cannot use {CONFINEMENT_VARIABLE}={0}: expected full, mounts or off")]
    Setting(String),
    /// A path that exists cannot be protected from commands.
    #[error("cannot protect control files from commands: {0}")]
    Unprotected(String),
}

/// Why a command cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// There is no guard for this system.
    #[error("commands need a Unix system")]
    Unsupported,
    /// The sandbox was made by [`Sandbox::without_guard`].
    #[error("this team has no guard for commands")]
    NoGuard,
    /// Its text is too long.
    #[error("a command of {0} bytes is too long (at most {SCRIPT_BYTES_MAX}): write it into a file and run that")]
    TooLong(usize),
    /// Its text has a NUL character.
    #[error("the command has a NUL character")]
    Nul,
}

/// A command that is ready to be started. Its stdin takes the order and is the leash then, its stderr carries [`GuardMessage`]
/// lines, its stdout what the command prints to stdout and stderr. All three are pipes.
#[derive(Debug)]
pub struct Prepared {
    /// The guard's process.
    pub process: Command,
    /// What is written to its stdin first.
    pub order: Vec<u8>,
}

impl Sandbox {
    /// Decides how commands are confined: as strictly as the system and [`CONFINEMENT_VARIABLE`] allow, with these rules for paths.
    /// `folder` is where a command that does nothing is tried. It blocks for some milliseconds.
    ///
    /// # Errors
    /// [`SandboxError`].
    pub fn open(guard: Arc<[OsString]>, folder: &Path, rules: Vec<PathRule>) -> Result<Self, SandboxError> {
        let environment = environment::of_launch();
        let mut confinement = strictest()?;
        loop {
            let tried = Self(Arc::new(Inner {
                guard: Arc::clone(&guard),
                confinement: confinement.clone(),
                rules: rules.clone(),
                environment: environment.clone(),
            }));
            let reason = match tried.probe(folder)? {
                GuardMessage::Group(_) => return Ok(tried),
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

    /// A sandbox that refuses every command: for teams whose members run none.
    #[must_use]
    pub fn without_guard() -> Self {
        let confinement = Confinement { level: Level::Full, reason: String::new() };
        Self(Arc::new(Inner { guard: Arc::default(), confinement, rules: Vec::new(), environment: Vec::new() }))
    }

    /// How commands are confined.
    #[must_use]
    pub fn confinement(&self) -> &Confinement {
        &self.0.confinement
    }

    /// The rules for paths that hold for every command.
    #[must_use]
    pub fn rules(&self) -> &[PathRule] {
        &self.0.rules
    }

    /// Prepares a command that runs `script` in `folder`, with these rules besides those of the launch, and with the environment of the
    /// launch and these variables.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn prepare(
        &self,
        script: &str,
        folder: &Path,
        rules: &[PathRule],
        variables: &[(&str, String)],
    ) -> Result<Prepared, CommandError> {
        if cfg!(not(unix)) {
            return Err(CommandError::Unsupported);
        }
        let [program, first @ ..] = &*self.0.guard else { return Err(CommandError::NoGuard) };
        if script.contains('\0') {
            return Err(CommandError::Nul);
        }
        if script.len() > SCRIPT_BYTES_MAX {
            return Err(CommandError::TooLong(script.len()));
        }
        let mut all = self.0.rules.clone();
        all.extend(rules.iter().filter(|rule| !self.0.rules.contains(rule)).cloned());
        let order = Order { level: self.0.confinement.level, script: script.into(), rules: all }.encode();
        let (mut process, mark) = (Command::new(program), processes::own_mark());
        process.args(first).arg(&mark).arg("run").current_dir(folder);
        process.env_clear().envs(environment::of_command(&self.0.environment, variables)).env(WORKER_VARIABLE, mark);
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(Prepared { process, order })
    }

    /// The guard's answer to a command that does nothing and is never told to begin.
    fn probe(&self, folder: &Path) -> Result<GuardMessage, SandboxError> {
        let prepared =
            self.prepare("exit 0", folder, &[], &[]).map_err(|error| SandboxError::Guard(error.to_string()))?;
        answer(prepared).map_err(|error| SandboxError::Guard(error.to_string()))
    }
}

fn answer(mut prepared: Prepared) -> std::io::Result<GuardMessage> {
    let mut child: Child = terminal::with_stops_blocked(|| prepared.process.spawn())?;
    let mut line = String::new();
    if let (Some(mut stdin), Some(stderr)) = (child.stdin.take(), child.stderr.take()) {
        // A guard that ends without reading says why on its stderr.
        let _ = stdin.write_all(&prepared.order);
        BufReader::new(stderr).read_line(&mut line)?;
    }
    child.wait()?;
    Ok(GuardMessage::parse(&line))
}

/// The strictest level that may be tried.
fn strictest() -> Result<Confinement, SandboxError> {
    let wanted = std::env::var(CONFINEMENT_VARIABLE).unwrap_or_default();
    let level = match wanted.as_str() {
        "" | "full" => Level::Full,
        "mounts" => Level::MountsOnly,
        "off" | "0" | "no" => Level::Off,
        _ => return Err(SandboxError::Setting(wanted)),
    };
    let by_variable = format!("{CONFINEMENT_VARIABLE}={wanted}");
    Ok(match level {
        Level::Full if cfg!(target_os = "linux") => Confinement { level, reason: String::new() },
        Level::Full => Confinement { level: Level::Off, reason: "only Linux has namespaces".to_owned() },
        _ if cfg!(target_os = "linux") => Confinement { level, reason: by_variable },
        _ => Confinement { level: Level::Off, reason: by_variable },
    })
}
