//! The guard under which every command runs, as the program that starts it sees it.
//!
//! A command is three processes. The *worker* (Brigade) starts the *guard*: this very program with [`GUARD_ARGUMENT`] as its
//! first argument. The guard enters namespaces for its children and starts the *init* in them, again this program; the init
//! mounts what the command is to see and, once it is told to, starts the shell.
//!
//! ```text
//! worker -- stdin: the leash --> guard -- socket --> init (1 in its process namespace) --> shell
//!        <- stderr: GuardSays --       <- socket: how it ended --
//!        <------------------------- stdout: what the command prints -------------------------
//! ```
//!
//! 1. The guard names the init's group, the worker records it, writes one byte, and only then the command begins.
//! 2. When the leash is let go (the worker was killed, the call dropped, the claim lost, the time is over) the guard lets the
//!    init go: SIGTERM to everything in the namespace, [`GRACE`], and the init ends. The system kills what is left.
//! 3. When the command ends by itself, what it left in the background is ended in the same way: a call leaves
//!    nothing running. Then the guard says how it ended, and exits 0 only if the command did.
//! 4. When the guard is killed the init dies with it (parent death signal), and everything else with the init.
//! 5. Nothing inside sees, signals or looks into the guard, the worker, or the init's secrets: their numbers mean nothing there.
//!
//! Where the system refuses process namespaces (see [`Confinement`]) a *stage* takes the init's place and becomes the shell. The
//! guard finds what the command started by following parents, as its subreaper. A command can stop or kill such a guard:
//! the worker then ends them all ([`end_by_force`]), or the next worker to take over does. What left the group of a guard
//! that was killed is not found any more. Other Unix systems than Linux have no subreapers either: there, what left the
//! group by `setsid` is not found. Windows has no guard; commands are refused.
//!
//! It knows nothing of tools, tasks or runtimes: it prepares a [`Command`] and reads lines.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::platform::processes;

#[cfg(unix)]
mod descendants;
pub mod environment;
pub mod filter;
#[cfg(unix)]
mod guard;
#[cfg(target_os = "linux")]
mod init;
#[cfg(target_os = "linux")]
mod namespaces;
#[cfg(unix)]
mod reexec;

/// The first argument that makes a program of ours the guard.
pub const GUARD_ARGUMENT: &str = "__guard";

/// How long processes have between SIGTERM and SIGKILL.
pub const GRACE: Duration = Duration::from_millis(200);

/// What lets the command begin.
pub const GO: &[u8] = b"g";

/// The variable that switches confinement off with `off`, `0` or `no`, and with `mounts` the process namespaces alone.
pub const CONFINEMENT_VARIABLE: &str = "BRIGADE_CONFINEMENT";

/// Whether [`run_if_asked`] was called: without it, a program that is started as the guard of a command does its own work anew.
static WAS_ASKED: AtomicBool = AtomicBool::new(false);

/// Whether this program can be the guard of its commands.
#[must_use]
pub fn was_asked() -> bool {
    WAS_ASKED.load(Ordering::Relaxed)
}

/// Becomes the guard when the first argument says so, and then never returns. To be called first thing in `main`, before
/// threads, runtimes and argument parsing, by every program whose own path is handed to tools as their guard.
pub fn run_if_asked() {
    WAS_ASKED.store(true, Ordering::Relaxed);
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().as_deref() == Some(OsStr::new(GUARD_ARGUMENT)) {
        std::process::exit(run(&arguments.collect::<Vec<_>>()));
    }
}

#[cfg(unix)]
fn run(arguments: &[OsString]) -> i32 {
    let code = match arguments {
        [what, order @ ..] if what == "run" => guard::run(order),
        #[cfg(target_os = "linux")]
        [what, order @ ..] if what == "init" => init::run(order),
        #[cfg(target_os = "linux")]
        [what, order @ ..] if what == "map" => namespaces::map_for(order),
        [what, order @ ..] if what == "stage" => reexec::run(order),
        [what, order @ ..] if what == "filter" => filter::run(order),
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
    /// Files and folders, absolute or relative to `folder`, that it sees read-only where the system can do that. One that ends
    /// in `/*` stands for each file of a folder, which stays read-only whatever it is renamed to; one behind `!` stays writable
    /// inside a folder that is read-only.
    pub read_only: &'a [PathBuf],
    /// How it is confined; a guard that cannot do that says [`GuardSays::Refused`].
    pub level: Level,
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
        process.args(first).arg("run").arg(self.level.as_word()).arg(shell()).arg(self.command).args(self.read_only);
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
    Group(i32),
    /// The system refuses to confine it so, for this reason.
    Refused(String),
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
        match (word, rest.parse()) {
            ("group", Ok(id)) => Self::Group(id),
            ("exit", Ok(code)) => Self::Ended(CommandEnd::Exit(code)),
            ("signal", Ok(signal)) => Self::Ended(CommandEnd::Signal(signal)),
            ("refused", _) => Self::Refused(rest.to_owned()),
            ("failed", _) => Self::Failed(rest.to_owned()),
            _ => Self::Failed(format!("the guard said `{}`", line.escape_debug())),
        }
    }

    /// The line, with its newline.
    #[must_use]
    pub fn to_line(&self) -> String {
        let one_line = |text: &str| text.replace(['\n', '\r'], " ");
        match self {
            Self::Group(id) => format!("group {id}\n"),
            Self::Ended(CommandEnd::Exit(code)) => format!("exit {code}\n"),
            Self::Ended(CommandEnd::Signal(signal)) => format!("signal {signal}\n"),
            Self::Refused(reason) => format!("refused {}\n", one_line(reason)),
            Self::Failed(reason) => format!("failed {}\n", one_line(reason)),
        }
    }
}

/// How a guard is asked to confine its command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// As [`Confinement::Whole`].
    Whole,
    /// As [`Confinement::MountsOnly`].
    Mounts,
    /// Not at all.
    Plain,
}

impl Level {
    fn as_word(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Mounts => "mounts",
            Self::Plain => "plain",
        }
    }

    #[cfg(unix)]
    fn from_word(word: &str) -> Option<Self> {
        [Self::Whole, Self::Mounts, Self::Plain].into_iter().find(|level| level.as_word() == word)
    }
}

/// How commands are confined.
///
/// A confined command runs in a mount namespace of its own, in which the control files are mounted read-only over themselves,
/// and in a process namespace of its own, whose `/proc` shows the command's processes and no others: with `CAP_SYS_ADMIN`
/// directly, otherwise inside a user namespace that maps ids to themselves. User, group, home and the owners of new files are
/// the same as outside. What differs: `CAP_SYS_ADMIN`, `CAP_SYS_PTRACE` and `CAP_PERFMON` are gone, so that neither can be undone (`mount`
/// does not work, even for root); process ids are others than outside; inside a user namespace files of other users
/// show `nobody` as their owner and set-user-id programs such as `sudo` gain nothing.
///
/// It is no jail: a command runs as the user who started the team, and may ask a service of that user (`systemd-run`,
/// `docker`, `at`) to run something outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Confinement {
    /// Control files are read-only, and nothing outside the command can be seen or signalled.
    Whole,
    /// Control files are read-only; process namespaces are not to be had, for this reason.
    MountsOnly(String),
    /// They are not confined, for this reason.
    Unavailable(String),
}

impl Confinement {
    /// What a guard is asked for.
    #[must_use]
    pub fn level(&self) -> Level {
        match self {
            Self::Whole => Level::Whole,
            Self::MountsOnly(_) => Level::Mounts,
            Self::Unavailable(_) => Level::Plain,
        }
    }

    /// What to try once the system has refused this, for that reason; `None` when nothing is weaker.
    #[must_use]
    pub fn weaker(&self, reason: String) -> Option<Self> {
        match self {
            Self::Whole => Some(Self::MountsOnly(reason)),
            Self::MountsOnly(_) => Some(Self::Unavailable(reason)),
            Self::Unavailable(_) => None,
        }
    }
}

/// What was refused so far. One that worked says nothing of another workspace.
static KNOWN: Mutex<Option<Confinement>> = Mutex::new(None);

/// How the next command is to be confined: as strictly as was not refused yet. With anything less than
/// [`Confinement::Whole`] commands can see this process, so it hides what is in it from then on.
#[must_use]
pub fn confinement_to_try() -> Confinement {
    let asked = std::env::var(CONFINEMENT_VARIABLE).unwrap_or_default();
    let by_variable = || format!("asked for by {CONFINEMENT_VARIABLE}={asked}");
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let confinement = match asked.as_str() {
        "off" | "0" | "no" => Confinement::Unavailable(by_variable()),
        _ if !cfg!(target_os = "linux") => Confinement::Unavailable("only Linux has namespaces".to_owned()),
        "mounts" => known.unwrap_or_else(|| Confinement::MountsOnly(by_variable())),
        _ => known.unwrap_or(Confinement::Whole),
    };
    if confinement != Confinement::Whole {
        processes::hide_this_process();
    }
    confinement
}

/// Lets the commands from here on skip what was refused.
pub fn remember(weaker: &Confinement) {
    *KNOWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(weaker.clone());
}

/// How commands are confined that run in `folder` and see these files read-only; tried by one that does nothing. It blocks for
/// some milliseconds.
#[must_use]
pub fn confinement(guard: &[OsString], folder: &Path, read_only: &[PathBuf]) -> Confinement {
    let mut trying = confinement_to_try();
    loop {
        let command =
            GuardedCommand { guard, command: "exit 0", folder, environment: &[], read_only, level: trying.level() };
        let refused = match probe(&command) {
            Ok(GuardSays::Group(_)) => return trying,
            Ok(GuardSays::Refused(reason) | GuardSays::Failed(reason)) => reason,
            Ok(GuardSays::Ended(_)) => "the guard ended early".to_owned(),
            Err(error) => error.to_string(),
        };
        match trying.weaker(refused) {
            Some(weaker) => trying = weaker,
            None => return trying,
        }
    }
}

fn probe(command: &GuardedCommand<'_>) -> std::io::Result<GuardSays> {
    use std::io::{BufRead, BufReader};
    let mut child = command.prepare()?.spawn()?;
    let mut line = String::new();
    if let Some(says) = child.stderr.take() {
        BufReader::new(says).read_line(&mut line)?;
    }
    drop(child.stdin.take());
    child.wait()?;
    Ok(GuardSays::parse(&line))
}

/// How long a guard that did not end everything in time gets to do so once it was told to go on, in case it was stopped.
const SECOND_CHANCE: Duration = Duration::from_millis(500);
/// How long killing everything itself may take.
const FORCE_TIME: Duration = Duration::from_secs(2);

/// Ends a guard that did not end, and all its command has started; returns the processes that are left, if any could not be
/// ended. Blocks for at most some seconds.
#[must_use]
pub fn end_by_force(guard: i32, group: Option<i32>) -> Vec<i32> {
    let _ = processes::proceed(guard);
    let began = std::time::Instant::now();
    while processes::process(guard).is_some_and(|process| !process.has_ended) {
        if began.elapsed() >= SECOND_CHANCE {
            return processes::kill_tree(guard, group, FORCE_TIME);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_guard_says_is_read_as_it_was_said() {
        for says in [
            GuardSays::Group(77),
            GuardSays::Refused("user namespaces: no".to_owned()),
            GuardSays::Ended(CommandEnd::Exit(3)),
            GuardSays::Ended(CommandEnd::Signal(9)),
            GuardSays::Failed("no such folder".to_owned()),
        ] {
            assert_eq!(GuardSays::parse(&says.to_line()), says);
        }
        assert!(matches!(GuardSays::parse("thread panicked"), GuardSays::Failed(text) if text.contains("panicked")));
    }
}
