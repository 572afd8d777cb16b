//! Runs commands confined: below a guard process, in namespaces, with control files that they cannot write.
//!
//! A command is three processes. The *worker* (Brigade) starts the *guard*: this same program with [`GUARD_ARGUMENT`] as its
//! first argument. The guard enters namespaces for its children and starts the *init* in them, again this program. The init
//! mounts what the command may see and starts the shell when the guard sends the start byte.
//!
//! ```text
//! worker -- stdin: command spec, then start byte --> guard -- socket --> init (1 in its process namespace) --> shell
//!        <- stderr: GuardMessage --------------------       <- socket: the command's exit --
//!        <--------------------- stdout: output of the command --------------------------------------------------
//! ```
//!
//! 1. The worker writes the command spec (`command_spec::CommandSpec`). The guard names the init's process group, and the worker records it and writes one
//!    byte. Only then the command starts.
//! 2. The worker closes the guard's stdin if it was killed, the call was dropped, the claim was lost or the time is over. The guard then
//!    closes the init's socket. The init sends SIGTERM to every process in the namespace, waits [`GRACE`] and ends. The system kills the
//!    rest.
//! 3. If the command ends, its background processes are ended in the same way. Then the guard reports the exit, and exits with 0 only if
//!    the command did.
//! 4. If the guard is killed, the init dies with it (parent death signal), and every other process with the init.
//! 5. Process ids inside the namespace mean nothing outside: a command cannot see, signal or trace the guard or the worker.
//!
//! Without process namespaces (see [`Level`]) a process that executes itself again replaces the init and becomes the shell.
//! The guard finds the command's processes by their parents, as their subreaper. A command can stop or kill such a guard.
//! Then the worker kills its processes ([`kill_guard_tree`]), or the next worker that takes over does. Processes that left the group of
//! a killed guard are not found. macOS has no subreapers.
//!
//! The program of an external agent is a command too. Its standard input is its output's socket, so that a worker can talk to it
//! ([`Sandbox::prepare_conversation`]).
//!
//! The level of confinement is decided once, when a [`Sandbox`] is opened. If a later command cannot be confined like that, only that
//! command fails. This module does not know tools, tasks or runtimes.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::domain::text::words::words;
use crate::platform::processes;

mod command_spec;
pub mod environment;
pub mod filter;
mod guard;
#[cfg(target_os = "linux")]
mod init;
mod launch;
mod messages;
#[cfg(target_os = "linux")]
mod mounts;
mod multiplexers;
#[cfg(target_os = "linux")]
mod namespaces;
pub mod orphans;
pub mod protected_paths;
mod reexec;

pub use launch::{CommandError, Confinement, PreparedCommand, PreparedConversation, Sandbox, SandboxError};
pub use messages::{CommandExit, GuardMessage};

/// The first argument that makes one of our programs the guard.
pub const GUARD_ARGUMENT: &str = "__guard";

/// The variable that marks a guard's command, and every process it starts, with the process that started the guard: its
/// [`processes::own_mark`]. Guards and inits hide their environment, so they have the same mark as their second argument.
pub const WORKER_VARIABLE: &str = "BRIGADE_WORKER";

/// The time between SIGTERM and SIGKILL.
pub const GRACE: Duration = Duration::from_millis(200);

/// The byte that starts the command.
pub const START_BYTE: &[u8] = b"g";

/// The variable that lowers the level: `off`, `0` or `no` switch confinement off, `mounts` omits process namespaces.
pub const CONFINEMENT_VARIABLE: &str = "BRIGADE_CONFINEMENT";

/// The variable that carries a command's text to its shell. The shell removes it before the command starts.
const SCRIPT_VARIABLE: &str = "BRIGADE_SCRIPT";

/// The shell's own script. The command's text is not an argument, because other users can read arguments.
const SHELL_SCRIPT: &str = r#"set -- "$BRIGADE_SCRIPT"; unset BRIGADE_SCRIPT; eval "shift; $1""#;

words! {
    /// The level of a command's confinement.
    ///
    /// A confined command runs in its own mount namespace. Control files are mounted read-only over themselves, `/sys` and `/proc/sys` are
    /// read-only, and `/dev/pts` has only the command's own terminals. With `CAP_SYS_ADMIN` this is done directly, otherwise inside a user
    /// namespace that maps ids to themselves. User, group, home and the owners of new files are the same as outside. Differences:
    /// `CAP_SYS_ADMIN`, `CAP_SYS_PTRACE` and some more capabilities are missing, so that a command cannot undo the mounts (`mount` does not
    /// work, even for root). Inside a user namespace, files of other users show uid 65534 as their owner, and set-user-id programs such as
    /// `sudo` gain nothing.
    ///
    /// A confined command still runs as the user who started the team. It may ask one of that user's services (`systemd-run`,
    /// `docker`, `at`) to run something outside.
    pub enum Level {
        /// Mounts as above, and a process namespace: `/proc` shows only the command's processes.
        Full = "full",
        /// Mounts as above. The command sees other processes and can signal those of its user.
        MountsOnly = "mounts",
        /// No confinement: the command can write all files that its user can write.
        Off = "off",
    }
}

/// `true` if [`run_if_guard`] was called. Without it, a program that is started as a command's guard would run its own `main` again.
static IS_GUARD_READY: AtomicBool = AtomicBool::new(false);

/// Returns true if this program can be the guard of its commands.
pub fn is_guard_ready() -> bool {
    IS_GUARD_READY.load(Ordering::Relaxed)
}

/// Becomes the guard if the first argument says so; then it never returns. Every program whose own path is used as
/// the guard calls it first in `main`, before threads, runtimes and argument parsing. It hides this process from others of the same user,
/// because its environment has the providers' keys. So it writes no core dump, and only root attaches a debugger.
pub fn run_if_guard() {
    IS_GUARD_READY.store(true, Ordering::Relaxed);
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().as_deref() == Some(OsStr::new(GUARD_ARGUMENT)) {
        close_inherited_files(std::iter::empty());
        std::process::exit(run(&arguments.collect::<Vec<_>>()));
    }
    processes::hide_this_process();
}

/// Closes every file that this process inherited, so that no command and no git inherits it. Standard input, output and error stay
/// open. So do files that an argument names: for example 63 in `--plan /dev/fd/63`, which a shell passes for `--plan <(command)`. A
/// program calls it first in `main`, before it opens a file.
pub fn close_inherited_files(arguments: impl Iterator<Item = OsString>) {
    let number = |argument: OsString| {
        let argument = argument.into_string().ok()?;
        let (_, number) = argument.rsplit_once("/fd/")?;
        number.parse().ok()
    };
    processes::close_files_except(&arguments.filter_map(number).collect::<Vec<_>>());
}

fn run(arguments: &[OsString]) -> i32 {
    let code = match arguments {
        [_mark, role] if role == "run" => guard::run(),
        #[cfg(target_os = "linux")]
        [_mark, role] if role == "init" => init::run(),
        #[cfg(target_os = "linux")]
        [_mark, role, rest @ ..] if role == "map" => namespaces::map_ids_for(rest),
        [_mark, role, rest @ ..] if role == "reexec" => reexec::run(rest),
        [_mark, role, rest @ ..] if role == "filter" => filter::run(rest),
        _ => None,
    };
    code.unwrap_or(64)
}

/// The guard's program and first arguments, for a program that calls [`run_if_guard`]. On Linux it is the running binary,
/// even if its file has been replaced.
///
/// # Errors
/// The system does not tell the path of this program.
pub fn own_guard() -> std::io::Result<Arc<[OsString]>> {
    Ok(Arc::from([own_program()?, GUARD_ARGUMENT.into()]))
}

/// The first arguments of the processes that a guard starts from this program: those of the guard, with its worker's mark.
fn own_arguments() -> [OsString; 2] {
    [GUARD_ARGUMENT.into(), std::env::var_os(WORKER_VARIABLE).unwrap_or_default()]
}

/// Returns true if a process is a guard that the worker with this mark started, or belongs to such a guard's command. A file cannot forge
/// that, because the kernel keeps it with the process.
pub fn is_started_by_worker(pid: i32, mark: &str) -> bool {
    let is_guard = || {
        let arguments = processes::arguments(pid);
        matches!(&arguments[..], [_, guard, argument_mark, ..] if guard == GUARD_ARGUMENT.as_bytes() && argument_mark == mark.as_bytes())
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

/// The shell of commands: bash if it is installed, because models write bash, otherwise the system's `sh`.
pub fn shell() -> &'static Path {
    const SHELLS: [&str; 3] = ["/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"];
    static SHELL: OnceLock<&Path> = OnceLock::new();
    SHELL.get_or_init(|| SHELLS.map(Path::new).into_iter().find(|path| path.exists()).unwrap_or(Path::new("/bin/sh")))
}

/// A process that runs this script in the shell. Bash reads `~/.bashrc` first if its input is a socket, or after a login by ssh; see
/// bash(1), INVOCATION. The file may be slow, print errors or be written by a command, so it is not read.
#[must_use]
pub fn shell_with(script: &str) -> Command {
    let mut process = Command::new(shell());
    if shell().ends_with("bash") {
        process.arg("--norc");
    }
    process.args(["-c", script]);
    process
}

/// A process that runs a command's text in the shell.
fn shell_process(command_spec: &command_spec::CommandSpec) -> std::io::Result<Command> {
    let input = match command_spec.input {
        command_spec::Input::Empty => Stdio::null(),
        command_spec::Input::Conversation => std::io::stdout().as_fd().try_clone_to_owned()?.into(),
    };
    let mut process = shell_with(SHELL_SCRIPT);
    process.env(SCRIPT_VARIABLE, &command_spec.script).stdin(input);
    Ok(process)
}

/// Kills the processes that a killed guard left of its command: `group`, and all processes with this worker's mark that are not
/// this worker's descendants. Returns those that are still alive. Blocks for at most some seconds.
#[must_use]
pub fn kill_orphans(group: Option<i32>) -> Vec<i32> {
    let mark = processes::own_mark();
    processes::kill_orphans(group, |pid| is_started_by_worker(pid, &mark), FORCE_TIME_MAX)
}

/// The time in which a guard must end everything after it is told to continue, in case it was stopped.
const CONTINUE_TIME_MAX: Duration = Duration::from_millis(500);
/// The time limit for killing processes directly.
const FORCE_TIME_MAX: Duration = Duration::from_secs(2);

/// Ends a guard that did not end, and all processes of its command. Returns those that are still alive. Blocks for at most some
/// seconds.
#[must_use]
pub fn kill_guard_tree(guard: i32, group: Option<i32>) -> Vec<i32> {
    // It may have ended.
    let _ = processes::resume(guard);
    let started_at = std::time::Instant::now();
    while processes::process(guard).is_some_and(|process| !process.has_ended) {
        if started_at.elapsed() >= CONTINUE_TIME_MAX {
            return processes::kill_tree(guard, group, FORCE_TIME_MAX);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn shell_reads_no_startup_file() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join(".bashrc"), "echo read").unwrap();
        let (input, _other) = UnixStream::pair().unwrap();
        for input in [Stdio::from(OwnedFd::from(input)), Stdio::null()] {
            let mut shell = shell_with("echo ran");
            shell.env_clear().env("HOME", home.path()).env("SSH_CLIENT", "1 2 3").stdin(input);
            assert_eq!(String::from_utf8(shell.output().unwrap().stdout).unwrap(), "ran\n");
        }
    }
}
