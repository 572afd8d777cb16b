//! Runs commands confined: under a guard process, in namespaces, with control files that they cannot write.
//!
//! A command is three processes. The *worker* (Brigade) starts the *guard*: this same program with [`GUARD_ARGUMENT`] as its
//! first argument. The guard enters namespaces for its children and starts the *init* in them, again this program. The init
//! mounts what the command sees and, once it is told to, starts the shell.
//!
//! ```text
//! worker -- stdin: the order, then the leash --> guard -- socket --> init (1 in its process namespace) --> shell
//!        <- stderr: GuardMessage --------------       <- socket: how it ended --
//!        <------------------------- stdout: what the command prints -------------------------
//! ```
//!
//! 1. The worker writes the order (`order::Order`). The guard names the init's process group, the worker records it and writes one byte.
//!    Only then the command begins.
//! 2. When the worker closes the leash (it was killed, the call was dropped, the claim was lost, the time is over) the guard closes
//!    the init's socket: SIGTERM to every process in the namespace, [`GRACE`], and the init ends. The system kills the rest.
//! 3. When the command ends by itself, its background processes are ended in the same way. Then the guard reports how the command
//!    ended, and exits 0 only if the command did.
//! 4. When the guard is killed the init dies with it (parent death signal), and every other process with the init.
//! 5. Process numbers inside the namespace mean nothing outside: a command cannot see, signal or trace the guard or the worker.
//!
//! Where the system refuses process namespaces (see [`Level`]) a re-executed process takes the init's place and becomes the shell.
//! The guard finds the command's processes by following parents, as their subreaper. A command can stop or kill such a guard:
//! the worker then kills its processes ([`end_by_force`]), or the next worker that takes over does. Processes that left the group of
//! a killed guard are not found. Other Unix systems than Linux have no subreapers either. Windows has no guard, so commands are refused.
//!
//! The level of confinement is decided once, when a [`Sandbox`] is opened. A command that cannot be confined so later fails by itself.
//! This module knows nothing of tools, tasks or runtimes.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
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
mod launch;
mod messages;
#[cfg(target_os = "linux")]
mod mounts;
#[cfg(unix)]
mod multiplexers;
#[cfg(target_os = "linux")]
mod namespaces;
mod order;
pub mod protected;
#[cfg(unix)]
mod reexec;

pub use launch::{CommandError, Confinement, Prepared, Sandbox, SandboxError};
pub use messages::{CommandExit, GuardMessage};

/// The first argument that makes a program of ours the guard.
pub const GUARD_ARGUMENT: &str = "__guard";

/// The variable that marks a guard's command, and every process it starts, with the process that started the guard: its
/// [`processes::own_mark`]. Guards and inits hide their environment, and have the same mark as their second argument.
pub const WORKER_VARIABLE: &str = "BRIGADE_WORKER";

/// How long processes have between SIGTERM and SIGKILL.
pub const GRACE: Duration = Duration::from_millis(200);

/// The byte that lets the command begin.
pub const GO: &[u8] = b"g";

/// The variable that lowers the level: `off`, `0` or `no` switch confinement off, `mounts` does without process namespaces.
pub const CONFINEMENT_VARIABLE: &str = "BRIGADE_CONFINEMENT";

/// The variable that carries a command's text to its shell. The shell removes it before the command begins.
const SCRIPT_VARIABLE: &str = "BRIGADE_SCRIPT";

/// The shell's own script. The command's text is no argument, because other users can read those.
const SHELL_SCRIPT: &str = r#"set -- "$BRIGADE_SCRIPT"; unset BRIGADE_SCRIPT; eval "shift; $1""#;

/// How strictly a command is confined.
///
/// A confined command runs in a mount namespace of its own, in which control files are mounted read-only over themselves, `/sys` and
/// `/proc/sys` are read-only, and `/dev/pts` has the command's own terminals and no others; with `CAP_SYS_ADMIN`
/// directly, otherwise inside a user namespace that maps ids to themselves. User, group, home and the owners of new files are
/// the same as outside. Differences: `CAP_SYS_ADMIN`, `CAP_SYS_PTRACE` and some more capabilities are gone, so that a command cannot undo
/// the mounts (`mount` does not work, even for root). Inside a user namespace files of other users
/// show `nobody` as their owner, and set-user-id programs such as `sudo` gain nothing.
///
/// A confined command still runs as the user who started the team, and may ask a service of that user (`systemd-run`,
/// `docker`, `at`) to run something outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Mounts as above, and a process namespace of its own, whose `/proc` shows the command's processes and no others.
    Full,
    /// Mounts as above. The command sees other processes and can signal those of its user.
    MountsOnly,
    /// No confinement: the command can write all files that its user can write.
    Off,
}

impl Level {
    const ALL: [Self; 3] = [Self::Full, Self::MountsOnly, Self::Off];

    fn as_word(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::MountsOnly => "mounts",
            Self::Off => "off",
        }
    }

    fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_word() == word)
    }
}

/// Whether [`run_if_asked`] was called: without it, a program that is started as the guard of a command would do its own work again.
static WAS_ASKED: AtomicBool = AtomicBool::new(false);

/// Whether this program can be the guard of its commands.
#[must_use]
pub fn was_asked() -> bool {
    WAS_ASKED.load(Ordering::Relaxed)
}

/// Becomes the guard when the first argument says so, and then never returns. Every program whose own path is handed to tools as
/// their guard calls it first in `main`, before threads, runtimes and argument parsing. It hides this process from others of the same user:
/// its environment has the providers' keys. So there is no core dump, and only root attaches a debugger.
pub fn run_if_asked() {
    WAS_ASKED.store(true, Ordering::Relaxed);
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().as_deref() == Some(OsStr::new(GUARD_ARGUMENT)) {
        close_inherited_files(std::iter::empty());
        std::process::exit(run(&arguments.collect::<Vec<_>>()));
    }
    processes::hide_this_process();
}

/// Closes every file that this process inherited, so that no command and no git inherits it, but for standard input, output and
/// error, and files that an argument names: the 63 of `--plan /dev/fd/63`, which is a shell's `--plan <(command)`. A program calls it
/// first in `main`, before it opens a file.
pub fn close_inherited_files(arguments: impl Iterator<Item = OsString>) {
    let number = |argument: OsString| {
        let argument = argument.into_string().ok()?;
        let (_, number) = argument.rsplit_once("/fd/")?;
        number.parse().ok()
    };
    processes::close_files_but(&arguments.filter_map(number).collect::<Vec<_>>());
}

#[cfg(unix)]
fn run(arguments: &[OsString]) -> i32 {
    let code = match arguments {
        [_mark, role] if role == "run" => guard::run(),
        #[cfg(target_os = "linux")]
        [_mark, role] if role == "init" => init::run(),
        #[cfg(target_os = "linux")]
        [_mark, role, rest @ ..] if role == "map" => namespaces::map_for(rest),
        [_mark, role, rest @ ..] if role == "reexec" => reexec::run(rest),
        [_mark, role, rest @ ..] if role == "filter" => filter::run(rest),
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

/// The first arguments of the processes that a guard starts of this program: as the guard itself, with its worker's mark.
#[cfg(unix)]
fn own_arguments() -> [OsString; 2] {
    [GUARD_ARGUMENT.into(), std::env::var_os(WORKER_VARIABLE).unwrap_or_default()]
}

/// Whether a process is a guard that the worker with this mark started, or belongs to such a guard's command. A file cannot forge
/// that: the system reads it from the process itself.
#[must_use]
pub fn is_of_worker(pid: i32, mark: &str) -> bool {
    let is_guard = || {
        let arguments = processes::arguments(pid);
        matches!(&arguments[..], [_, guard, marked, ..] if guard == GUARD_ARGUMENT.as_bytes() && marked == mark.as_bytes())
    };
    let variable = format!("{WORKER_VARIABLE}={mark}");
    !mark.is_empty() && (is_guard() || processes::environment(pid).iter().any(|entry| entry == variable.as_bytes()))
}

fn own_program() -> std::io::Result<OsString> {
    if cfg!(target_os = "linux") && Path::new("/proc/self/exe").exists() {
        return Ok("/proc/self/exe".into());
    }
    std::env::current_exe().map(PathBuf::into_os_string)
}

/// The shell of commands: bash where it is installed, because models write bash; else the system's `sh`.
#[must_use]
pub fn shell() -> &'static Path {
    const SHELLS: [&str; 3] = ["/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"];
    static SHELL: OnceLock<&Path> = OnceLock::new();
    SHELL.get_or_init(|| SHELLS.map(Path::new).into_iter().find(|path| path.exists()).unwrap_or(Path::new("/bin/sh")))
}

/// The process that runs a command's text in the shell.
#[cfg(unix)]
fn shell_process(script: &OsStr) -> std::process::Command {
    let mut process = std::process::Command::new(shell());
    process.args(["-c", SHELL_SCRIPT]).env(SCRIPT_VARIABLE, script).stdin(std::process::Stdio::null());
    process
}

/// Kills what a guard that was killed left of its command: `group`, and all processes with this worker's mark that are not below it.
/// Returns the processes that are left. Blocks for at most some seconds.
#[must_use]
pub fn end_orphans(group: Option<i32>) -> Vec<i32> {
    let mark = processes::own_mark();
    processes::kill_orphans(group, |pid| is_of_worker(pid, &mark), FORCE_TIME)
}

/// How long a guard that did not end everything in time gets to do so once it was told to go on, in case it was stopped.
const SECOND_CHANCE: Duration = Duration::from_millis(500);
/// How long killing everything itself may take.
const FORCE_TIME: Duration = Duration::from_secs(2);

/// Ends a guard that did not end, and all its command has started; returns the processes that are left, if any could not be
/// ended. Blocks for at most some seconds.
#[must_use]
pub fn end_by_force(guard: i32, group: Option<i32>) -> Vec<i32> {
    // It may be gone already.
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
