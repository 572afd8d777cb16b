//! The guard under which every command runs, as the program that starts it sees it.
//!
//! A command is three processes. The *worker* (Brigade) starts the *guard*: this very program with [`GUARD_ARGUMENT`] as its
//! first argument. The guard starts the *stage*, again this program, in a process group of its own; the stage
//! confines itself and becomes the shell once it is told to.
//!
//! ```text
//! worker -- stdin: the leash --> guard -- socket --> stage = shell
//!        <- stderr: GuardSays --       (its children come back to the guard: it is their subreaper)
//!        <----------------- stdout: what the command prints ------------------
//! ```
//!
//! 1. The guard names the group, the worker records it, writes one byte, and only then the command begins.
//! 2. When the leash is let go (the worker was killed, the call dropped, the claim lost, the time is over) the guard ends
//!    the group, then whatever left the group: SIGTERM, [`GRACE`], SIGKILL until nothing is left.
//! 3. When the command ends by itself, what it left in the background is ended in the same way: a call leaves
//!    nothing running. Then the guard says how it ended.
//! 4. When the guard itself is killed the shell dies with it (parent death signal) and the worker ends the group; only what
//!    left the group by then is not found any more.
//!
//! Other Unix systems than Linux have no subreapers: there, what left the group by `setsid` is not found. Windows has no
//! guard; commands are refused.
//!
//! It knows nothing of tools, tasks or runtimes: it prepares a [`Command`] and reads lines.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

#[cfg(target_os = "linux")]
mod confine;
#[cfg(unix)]
mod descendants;
#[cfg(unix)]
mod process;
#[cfg(unix)]
mod stage;

/// The first argument that makes a program of ours the guard.
pub const GUARD_ARGUMENT: &str = "__guard";

/// How long processes have between SIGTERM and SIGKILL.
pub const GRACE: Duration = Duration::from_millis(200);

/// What lets the command begin.
pub const GO: &[u8] = b"g";

/// The variable that switches confinement off with `off`, `0` or `no`.
pub const CONFINEMENT_VARIABLE: &str = "BRIGADE_CONFINEMENT";

/// Becomes the guard when the first argument says so, and then never returns. To be called first thing in `main`, before
/// threads, runtimes and argument parsing, by every program whose own path is handed to tools as their guard.
pub fn run_if_asked() {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().as_deref() == Some(OsStr::new(GUARD_ARGUMENT)) {
        std::process::exit(run(&arguments.collect::<Vec<_>>()));
    }
}

#[cfg(unix)]
fn run(arguments: &[OsString]) -> i32 {
    let code = match arguments {
        [what, order @ ..] if what == "run" => process::run(order),
        [what, order @ ..] if what == "stage" => stage::run(order),
        _ => None,
    };
    code.unwrap_or(64)
}

#[cfg(not(unix))]
fn run(_: &[OsString]) -> i32 {
    64
}

/// Program and first arguments of the guard, for a program that calls [`run_if_asked`]. On Linux it is the running binary
/// itself, also when its file has been replaced since.
///
/// # Errors
/// When the system does not say which program this is.
pub fn own_guard() -> std::io::Result<Arc<[OsString]>> {
    Ok(Arc::from([own_program()?, GUARD_ARGUMENT.into()]))
}

fn own_program() -> std::io::Result<OsString> {
    if cfg!(target_os = "linux") && Path::new("/proc/self/exe").exists() {
        return Ok("/proc/self/exe".into());
    }
    std::env::current_exe().map(PathBuf::into_os_string)
}

/// A command that is to run under the guard.
#[derive(Debug, Clone)]
pub struct GuardedCommand<'a> {
    /// The guard's program and first arguments; see [`own_guard`].
    pub guard: &'a [OsString],
    /// What the shell is given after `-c`.
    pub command: &'a str,
    /// Where it runs.
    pub folder: &'a Path,
    /// All of its environment.
    pub environment: &'a [(OsString, OsString)],
    /// Files and folders, relative to `folder`, that it sees read-only where the system can do that.
    pub read_only: &'a [PathBuf],
}

impl GuardedCommand<'_> {
    /// The process to start: its stdin is the leash, its stderr carries [`GuardSays`] lines, its stdout what the command prints
    /// to stdout and stderr. All three are pipes.
    ///
    /// # Errors
    /// `Unsupported` where there is no guard, `InvalidInput` when `guard` is empty.
    pub fn prepare(&self) -> std::io::Result<Command> {
        if cfg!(not(unix)) {
            return Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "commands need a Unix system"));
        }
        let [program, first @ ..] = self.guard else {
            return Err(std::io::ErrorKind::InvalidInput.into());
        };
        let mut process = Command::new(program);
        process.args(first).arg("run").arg(shell()).arg(self.command);
        if confinement_is_hoped_for() {
            process.args(self.read_only);
        }
        process.current_dir(self.folder).env_clear().envs(self.environment.iter().map(|(name, value)| (name, value)));
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(process)
    }
}

/// The shell of commands: bash where it is, because models write bash; else the system's `sh`.
#[must_use]
pub fn shell() -> &'static Path {
    const SHELLS: [&str; 3] = ["/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"];
    static SHELL: OnceLock<&Path> = OnceLock::new();
    SHELL.get_or_init(|| SHELLS.map(Path::new).into_iter().find(|path| path.exists()).unwrap_or(Path::new("/bin/sh")))
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandEnd {
    /// By itself, with this code.
    Exit(i32),
    /// By this signal.
    Signal(i32),
}

/// A line of the guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuardSays {
    /// The command is ready to begin in this process group.
    Group {
        /// The group.
        id: i32,
        /// Whether it is confined.
        confinement: Confinement,
    },
    /// The command has ended, and with it all it had started.
    Ended(CommandEnd),
    /// The command could not be started.
    Failed(String),
}

impl GuardSays {
    /// Reads a line; one that is none of the guard's is a failure that says so.
    #[must_use]
    pub fn parse(line: &str) -> Self {
        let line = line.trim_end();
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (number, text) = rest.split_once(' ').unwrap_or((rest, ""));
        match (word, number.parse()) {
            ("confined", Ok(id)) => Self::Group { id, confinement: Confinement::Confined },
            ("plain", Ok(id)) => Self::Group { id, confinement: Confinement::Unavailable(text.to_owned()) },
            ("exit", Ok(code)) => Self::Ended(CommandEnd::Exit(code)),
            ("signal", Ok(signal)) => Self::Ended(CommandEnd::Signal(signal)),
            ("failed", _) => Self::Failed(rest.to_owned()),
            _ => Self::Failed(format!("the guard said `{}`", line.escape_debug())),
        }
    }

    /// The line, with its newline.
    #[must_use]
    pub fn to_line(&self) -> String {
        let one_line = |text: &str| text.replace(['\n', '\r'], " ");
        match self {
            Self::Group { id, confinement: Confinement::Confined } => format!("confined {id}\n"),
            Self::Group { id, confinement: Confinement::Unavailable(reason) } => {
                format!("plain {id} {}\n", one_line(reason))
            }
            Self::Ended(CommandEnd::Exit(code)) => format!("exit {code}\n"),
            Self::Ended(CommandEnd::Signal(signal)) => format!("signal {signal}\n"),
            Self::Failed(reason) => format!("failed {}\n", one_line(reason)),
        }
    }
}

/// Whether commands see control files read-only.
///
/// Confined commands run in a mount namespace of their own in which the control files are mounted read-only over
/// themselves: with `CAP_SYS_ADMIN` directly, otherwise inside a user namespace that maps every id to itself. User, group,
/// home and the owners of new files are the same as outside. What differs: `CAP_SYS_ADMIN` is gone, so that the mounts
/// cannot be undone (`mount` does not work, even for root); inside a user namespace files of other users show `nobody` as
/// their owner and set-user-id programs such as `sudo` gain nothing.
///
/// Folders are reliable. A single file is protected until Brigade itself replaces it by a rename, which detaches the
/// mount inside the namespace of commands that run at that moment; the next command is protected again. It is a fence
/// against accidents, not a jail: a command of the same user can still signal Brigade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Confinement {
    /// They do.
    Confined,
    /// They do not, and why.
    Unavailable(String),
}

static KNOWN: OnceLock<Confinement> = OnceLock::new();

/// Whether commands are confined here; tried once by a command that does nothing, then remembered. It blocks for some
/// milliseconds the first time.
#[must_use]
pub fn confinement(guard: &[OsString]) -> Confinement {
    KNOWN.get_or_init(|| probe(guard).unwrap_or_else(|error| Confinement::Unavailable(error.to_string()))).clone()
}

fn confinement_is_hoped_for() -> bool {
    !is_switched_off() && !matches!(KNOWN.get(), Some(Confinement::Unavailable(_)))
}

fn is_switched_off() -> bool {
    std::env::var(CONFINEMENT_VARIABLE).is_ok_and(|value| matches!(value.as_str(), "off" | "0" | "no"))
}

/// Lets the next command skip what did not work for this one. One that worked says nothing of another workspace.
pub fn remember(confinement: &Confinement) {
    if matches!(confinement, Confinement::Unavailable(reason) if !reason.is_empty()) {
        KNOWN.get_or_init(|| confinement.clone());
    }
}

fn probe(guard: &[OsString]) -> std::io::Result<Confinement> {
    use std::io::{BufRead, BufReader};
    if is_switched_off() {
        return Ok(Confinement::Unavailable(format!("switched off by {CONFINEMENT_VARIABLE}")));
    }
    let (folder, read_only) = (Path::new("/"), [std::env::temp_dir()]);
    let command = GuardedCommand { guard, command: "exit 0", folder, environment: &[], read_only: &read_only };
    let mut child = command.prepare()?.spawn()?;
    let mut line = String::new();
    if let Some(says) = child.stderr.take() {
        BufReader::new(says).read_line(&mut line)?;
    }
    drop(child.stdin.take());
    child.wait()?;
    match GuardSays::parse(&line) {
        GuardSays::Group { confinement, .. } => Ok(confinement),
        GuardSays::Failed(reason) => Ok(Confinement::Unavailable(reason)),
        GuardSays::Ended(_) => Ok(Confinement::Unavailable("the guard ended early".to_owned())),
    }
}

/// Kills a process group at once: for a command whose guard is gone.
pub fn kill_group(group: i32) {
    #[cfg(unix)]
    if let Some(group) = rustix::process::Pid::from_raw(group).filter(|_| group > 1) {
        // It may be gone already; there is nobody to tell otherwise.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    #[cfg(not(unix))]
    let _ = group;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_guard_says_is_read_as_it_was_said() {
        let unavailable = Confinement::Unavailable("user namespaces: no".to_owned());
        for says in [
            GuardSays::Group { id: 77, confinement: Confinement::Confined },
            GuardSays::Group { id: 77, confinement: unavailable },
            GuardSays::Ended(CommandEnd::Exit(3)),
            GuardSays::Ended(CommandEnd::Signal(9)),
            GuardSays::Failed("no such folder".to_owned()),
        ] {
            assert_eq!(GuardSays::parse(&says.to_line()), says);
        }
        assert!(matches!(GuardSays::parse("thread panicked"), GuardSays::Failed(text) if text.contains("panicked")));
    }
}
