//! Runs `git` with limits on time and output. Each call gets everything that it depends on:
//!
//! - Program: the first `git` in `PATH` at the first call, for the life of the process.
//! - Place: each call names the repository and the worktree, so a changed `.git` file has no effect.
//! - Environment: Brigade's own without secrets and without `GIT_*` variables, which could redirect git.
//! - Other programs: git starts none outside of the sandbox. Hooks, monitors, signatures, editors, pagers and transports are off. Filters
//!   and merge drivers run in the sandbox; see [`super::settings`].

use std::ffi::{OsStr, OsString};
use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use super::pipes::{find_pipe, folders_of};
use super::settings::Settings;
use super::worktrees::failed;
use crate::platform::processes::{self, GroupSignal};
use crate::platform::terminal::with_stops_blocked;
use crate::ports::RepositoryError;
use crate::sandbox::environment;

/// The longest wait for a git of an earlier process.
const ORPHAN_WAIT_MAX: Duration = Duration::from_secs(20);
/// The wait after which a warning is logged.
const ORPHAN_WAIT_UNLOGGED: Duration = Duration::from_secs(1);
/// The time after which a search for pipes that block a call starts. The next search starts after twice that time.
const PIPE_SEARCH_DELAY: Duration = Duration::from_secs(2);
/// The time limit of a call. The longest calls are checkouts.
const TIME_MAX: Duration = Duration::from_secs(600);
/// The limit of a call's output, in bytes. More is an error.
pub(super) const OUTPUT_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// The end of stderr that is kept, in bytes.
const STDERR_BYTES_MAX: usize = 8 * 1024;
/// The first and the longest pause between checks whether a call has ended.
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// Commands that write and remove files by path and may take long. A lock marks that they run.
const COMMANDS_BY_PATH: [&str; 7] = ["worktree", "read-tree", "checkout", "checkout-index", "clean", "merge", "switch"];

const PROGRAM: &str = if cfg!(windows) { "git.exe" } else { "git" };

/// Options of every call, each passed with `-c`.
const SETTINGS: &[&str] = &[
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.preferSymlinkRefs=false",
    "core.quotePath=false",
    "core.untrackedCache=false",
    // One pack is one set of files.
    "pack.packSizeLimit=0",
    "commit.gpgSign=false",
    "log.showSignature=false",
    "merge.verifySignatures=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "merge.conflictStyle=merge",
    "rerere.enabled=false",
    // A git that works in a submodule does not get these settings.
    "submodule.recurse=false",
    "diff.submodule=short",
    "status.submoduleSummary=false",
    "status.showUntrackedFiles=normal",
    "diff.noprefix=false",
];

/// Environment variables of every call.
const VARIABLES: [(&str, &str); 10] = [
    ("LC_ALL", "C"),
    ("GIT_TERMINAL_PROMPT", "0"),
    // Git must ask nothing and open no editor: these values start no program.
    ("GIT_ASKPASS", ""),
    ("GIT_EDITOR", ":"),
    // An object that a partial clone lacks is an error: git starts no remote helper, ssh or proxy for it.
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_ALLOW_PROTOCOL", ""),
    // Otherwise settings could make git write a trace to any file.
    ("GIT_TRACE2", "0"),
    ("GIT_TRACE2_EVENT", "0"),
    ("GIT_TRACE2_PERF", "0"),
    // Otherwise a `refs/replace` ref could merge another object than the verified one.
    ("GIT_NO_REPLACE_OBJECTS", "1"),
];

/// Variables that make a shell run a file first.
const SHELL_VARIABLES: [&str; 2] = ["BASH_ENV", "ENV"];

/// Texts of git about an object that it did not fetch: since 2.44, and before.
const LACKS_OBJECT: [&str; 2] = ["lazy fetching disabled", "from promisor remote"];

/// Advice for a partial clone that lacks an object.
const HOW_TO_FETCH: &str = "the repository is a partial clone, and Brigade does not fetch. hint: `git fetch --refetch --no-filter` gets all objects";

/// The paths and settings of a checkout that git works in.
#[derive(Debug, Clone)]
pub(super) struct RepoPath {
    /// The git folder of this checkout alone, with its HEAD and its index.
    pub git_dir: PathBuf,
    /// The git folder that all checkouts share.
    pub common_dir: PathBuf,
    /// The top folder of its files.
    pub work_tree: PathBuf,
    /// A file that is locked while a git of this workspace runs; see [`RepoPath::wait_for_orphan_git`].
    pub running_lock_file: PathBuf,
    /// The settings that each call gets.
    pub settings: Arc<Settings>,
}

/// The result of a call.
#[derive(Debug)]
pub(super) struct GitOutput {
    /// The exit code.
    pub code: i32,
    /// All of stdout.
    pub out: Vec<u8>,
    /// The end of stderr.
    pub err: String,
}

/// The messages of ENOSPC and EDQUOT in the C locale (strerror(3)). Git's messages end with them too.
const DISK_FULL: [&str; 2] = ["No space left on device", "Disk quota exceeded"];

/// The error for `action`, which failed with this message of git or the system.
pub(super) fn failure(action: String, message: &str) -> RepositoryError {
    let reason = message.trim().to_owned();
    if DISK_FULL.iter().any(|full| reason.contains(full)) {
        return RepositoryError::DiskFull { action, reason };
    }
    RepositoryError::Failed { action, reason }
}

impl GitOutput {
    /// Stdout as text, without the last line ends.
    pub(super) fn line(&self) -> String {
        String::from_utf8_lossy(&self.out).trim_end_matches('\n').to_owned()
    }

    /// Stdout, split at NUL characters. Paths may not be UTF-8: see [`path_of`].
    pub(super) fn fields(&self) -> impl Iterator<Item = &[u8]> {
        self.out.split(|byte| *byte == 0).filter(|field| !field.is_empty())
    }
}

/// A call of git.
pub(super) struct GitCommand<'a> {
    at: Option<&'a RepoPath>,
    /// The folder in which git starts its own search for the repository.
    folder: Option<PathBuf>,
    arguments: Vec<OsString>,
    input: Vec<u8>,
    variables: Vec<(&'static str, String)>,
    /// `true` if git reads its settings from files, not from the environment.
    reads_settings_files: bool,
}

/// `git` with these arguments, without a repository.
pub(super) fn git<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> GitCommand<'static> {
    let arguments = arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect();
    GitCommand {
        at: None,
        folder: None,
        arguments,
        input: Vec::new(),
        variables: Vec::new(),
        reads_settings_files: false,
    }
}

/// `git` with these arguments, in the repository that contains `folder`.
pub(super) fn git_in<A: AsRef<OsStr>>(folder: &Path, arguments: impl IntoIterator<Item = A>) -> GitCommand<'static> {
    GitCommand { folder: Some(folder.to_owned()), ..git(arguments) }
}

pub(super) fn no_git() -> RepositoryError {
    RepositoryError::NoGit("cannot use isolation: no git was found in PATH".to_owned())
}

impl RepoPath {
    /// Waits for git processes that an earlier process started in this workspace. They survive their caller, and clean up by paths that
    /// the next launch may use.
    ///
    /// # Errors
    /// One still runs after [`ORPHAN_WAIT_MAX`], or the lock file cannot be used.
    pub(super) fn wait_for_orphan_git(&self) -> Result<(), RepositoryError> {
        let started_at = Instant::now();
        let file =
            File::create(&self.running_lock_file).map_err(|error| failed("open", &self.running_lock_file, &error))?;
        let mut is_logged = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(()),
                Err(TryLockError::WouldBlock) if started_at.elapsed() < ORPHAN_WAIT_MAX => {
                    if !is_logged && started_at.elapsed() > ORPHAN_WAIT_UNLOGGED {
                        tracing::warn!("waiting for a git process of an earlier run");
                        is_logged = true;
                    }
                    thread::sleep(PAUSE_MAX);
                }
                Err(TryLockError::WouldBlock) => {
                    let reason = format!(
                        "a git process of an earlier run is still running. hint: launch again when it has ended. If no git runs, end the program that a filter or merge driver left running, or remove {}",
                        self.running_lock_file.display()
                    );
                    return Err(failed("work in", &self.work_tree, &reason));
                }
                Err(TryLockError::Error(error)) => return Err(failed("lock", &self.running_lock_file, &error)),
            }
        }
    }

    /// Takes the lock that git, and every process that git starts, holds through its empty stdin until it ends.
    fn lock_as_running(&self) -> Option<File> {
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(&self.running_lock_file).ok()?;
        file.lock_shared().ok()?;
        Some(file)
    }

    /// `git` with these arguments in this checkout.
    pub(super) fn git<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> GitCommand<'_> {
        GitCommand { at: Some(self), ..git(arguments) }
    }
}

/// The first `git` in the absolute folders of `PATH`.
pub(super) fn program() -> Option<&'static Path> {
    static GIT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).filter(|folder| folder.is_absolute());
        folders.map(|folder| folder.join(PROGRAM)).find(|program| is_program(program))
    };
    GIT.get_or_init(find).as_deref()
}

fn is_program(path: &Path) -> bool {
    let Ok(metadata) = path.metadata() else { return false };
    #[cfg(unix)]
    let is_executable = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o111 != 0;
    #[cfg(not(unix))]
    let is_executable = true;
    metadata.is_file() && is_executable
}

/// The environment of every call, fixed at the first call.
fn environment() -> &'static [(OsString, OsString)] {
    static ENVIRONMENT: OnceLock<Vec<(OsString, OsString)>> = OnceLock::new();
    ENVIRONMENT.get_or_init(|| {
        let is_inherited = |name: &OsString| {
            let name = name.to_string_lossy();
            !name.starts_with("GIT_") && !SHELL_VARIABLES.contains(&&*name)
        };
        let own = environment::command_environment(&environment::launch_environment(), &[]).into_iter();
        let own = own.filter(|(name, _)| is_inherited(name));
        own.chain(VARIABLES.map(|(name, value)| (name.into(), value.into()))).collect()
    })
}

impl GitCommand<'_> {
    /// Sets stdin.
    pub(super) fn input(self, input: impl Into<Vec<u8>>) -> Self {
        Self { input: input.into(), ..self }
    }

    /// Adds environment variables.
    pub(super) fn variables(mut self, variables: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        self.variables.extend(variables);
        self
    }

    /// Makes git read its settings from files.
    pub(super) fn with_settings_files(self) -> Self {
        Self { reads_settings_files: true, ..self }
    }

    fn description(&self) -> String {
        let words = self.arguments.iter().take(2).map(|word| word.to_string_lossy());
        format!("run git {}", words.collect::<Vec<_>>().join(" "))
    }

    fn failed(&self, reason: impl Into<String>) -> RepositoryError {
        failure(self.description(), &reason.into())
    }

    fn command(&self) -> Result<Command, RepositoryError> {
        let mut command = Command::new(program().ok_or_else(no_git)?);
        command.env_clear().envs(environment().iter().map(|(name, value)| (name, value)));
        if let Some(at) = self.at {
            command.current_dir(&at.work_tree).env("GIT_DIR", &at.git_dir);
            command.env("GIT_COMMON_DIR", &at.common_dir).env("GIT_WORK_TREE", &at.work_tree);
            if !self.reads_settings_files {
                command.envs(at.settings.variables(at)?);
            }
        }
        if let Some(folder) = &self.folder {
            command.arg("-C").arg(folder);
        } else if self.at.is_none() {
            // It needs no settings, and a pipe in place of a settings file would block it.
            command.envs([("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_NOSYSTEM", "1")]);
        }
        for setting in SETTINGS {
            command.args(["-c", setting]);
        }
        command.args(&self.arguments).envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        // A Ctrl-C in the terminal is for the team. It must not end git in the middle of a step.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        Ok(command)
    }

    /// A pipe that this call may be waiting for.
    fn pipe(&self) -> Option<PathBuf> {
        match (self.at, &self.folder) {
            (Some(at), _) => find_pipe(&[at.git_dir.clone(), at.common_dir.clone()], Some(&at.work_tree)),
            (None, Some(folder)) => {
                let (git_folder, top) = folders_of(folder);
                find_pipe(&[git_folder], Some(&top))
            }
            (None, None) => find_pipe(&[], None),
        }
    }

    /// Runs git, with any exit code.
    ///
    /// # Errors
    /// Git cannot be started, is killed, exceeds [`TIME_MAX`] or prints more than [`OUTPUT_BYTES_MAX`].
    pub(super) fn run(self) -> Result<GitOutput, RepositoryError> {
        let has_input = !self.input.is_empty();
        let mut command = self.command()?;
        let is_by_path = self.arguments.iter().any(|word| COMMANDS_BY_PATH.iter().any(|command| word == command));
        let running_lock = self.at.filter(|_| !has_input && is_by_path).and_then(RepoPath::lock_as_running);
        command.stdin(if has_input { Stdio::piped() } else { running_lock.map_or_else(Stdio::null, Stdio::from) });
        let mut child = with_stops_blocked(|| command.spawn()).map_err(|error| self.failed(error.to_string()))?;
        // Only the child keeps the lock open.
        drop(command);
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(self.failed("its output pipes are missing"));
        };
        let input = &self.input;
        let outcome = thread::scope(|scope| {
            let stdin = child.stdin.take();
            let (stdout_ended, wait_for_stdout) = mpsc::channel();
            let start = || {
                if let Some(mut stdin) = stdin {
                    // Git may end without reading all of it.
                    let write = move || drop(stdin.write_all(input).map(|()| drop(stdin)));
                    thread::Builder::new().spawn_scoped(scope, write)?;
                }
                let out = thread::Builder::new().spawn_scoped(scope, move || {
                    let out = read(stdout, OUTPUT_BYTES_MAX);
                    // The receiver may have given up.
                    let _ = stdout_ended.send(());
                    out
                })?;
                let err = thread::Builder::new().spawn_scoped(scope, || read(stderr, OUTPUT_BYTES_MAX))?;
                Ok((out, err))
            };
            let (out, err) = start().map_err(|error: io::Error| {
                kill(&mut child);
                format!("cannot start a thread: {error}")
            })?;
            Ok::<_, String>((wait(&mut child, &wait_for_stdout, || self.pipe())?, out.join(), err.join()))
        });
        match outcome {
            Ok((code, Ok(Some(out)), Ok(err))) => {
                let mut err = last_bytes_of(&err.unwrap_or_default());
                if let Some(at) = self.at.filter(|_| code != 0 && !self.reads_settings_files) {
                    err = at.settings.with_original_values(at, err);
                }
                if code != 0 && LACKS_OBJECT.iter().any(|text| err.contains(text)) {
                    err = format!("{}: {HOW_TO_FETCH}", err.trim_end());
                }
                Ok(GitOutput { code, out, err })
            }
            Err(reason) => Err(self.failed(reason)),
            _ => Err(self.failed(format!("it printed more than {OUTPUT_BYTES_MAX} bytes"))),
        }
    }

    /// Runs git, which must exit with 0.
    ///
    /// # Errors
    /// As [`GitCommand::run`], and any other exit code, with git's stderr as the reason.
    pub(super) fn ok(self) -> Result<GitOutput, RepositoryError> {
        let description = self.description();
        let output = self.run()?;
        if output.code == 0 {
            return Ok(output);
        }
        let reason = if output.err.trim().is_empty() { format!("exit status {}", output.code) } else { output.err };
        Err(failure(description, &reason))
    }

    /// Runs git, which answers yes with exit code 0 and no with 1.
    ///
    /// # Errors
    /// As [`GitCommand::ok`], for any other exit code.
    pub(super) fn exit_as_bool(self) -> Result<bool, RepositoryError> {
        let description = self.description();
        let output = self.run()?;
        match output.code {
            0 => Ok(true),
            1 => Ok(false),
            _ => Err(failure(description, &output.err)),
        }
    }
}

/// Reads to the end. Returns `None` if there are more than `bytes_max` bytes.
fn read(mut pipe: impl Read, bytes_max: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let is_read = (&mut pipe).take(bytes_max).read_to_end(&mut bytes).is_ok();
    let more = std::io::copy(&mut pipe, &mut std::io::sink()).unwrap_or(0);
    (is_read && more == 0).then_some(bytes)
}

pub(super) fn last_bytes_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(STDERR_BYTES_MAX)..]).into_owned()
}

/// Kills git and the processes of its group, which also hold its output open.
fn kill(child: &mut Child) {
    // Each step fails if it has just ended.
    let group = i32::try_from(child.id()).unwrap_or(0);
    let _ = processes::signal_group(group, GroupSignal::Kill);
    let _ = child.kill();
    let _ = child.wait();
}

/// Waits until git ends and returns its exit code. Git closes its stdout before that.
fn wait(
    child: &mut Child,
    wait_for_stdout: &mpsc::Receiver<()>,
    pipe: impl Fn() -> Option<PathBuf>,
) -> Result<i32, String> {
    let (started_at, mut pause) = (Instant::now(), PAUSE_MIN);
    let mut time = PIPE_SEARCH_DELAY;
    while wait_for_stdout.recv_timeout(time) == Err(RecvTimeoutError::Timeout) && started_at.elapsed() < TIME_MAX {
        if let Some(pipe) = pipe() {
            kill(child);
            return Err(format!("{} is a pipe, and git waits for it. hint: remove it", pipe.display()));
        }
        time = (time * 2).min(TIME_MAX.saturating_sub(started_at.elapsed()));
    }
    loop {
        match child.try_wait() {
            // A killed git has given no answer, so it must not count as an exit code.
            Ok(Some(status)) => return status.code().ok_or_else(|| "it was killed".to_owned()),
            Ok(None) if started_at.elapsed() > TIME_MAX => {
                kill(child);
                return Err(format!("it took longer than {} s", TIME_MAX.as_secs()));
            }
            Ok(None) => thread::sleep(pause),
            Err(error) => return Err(error.to_string()),
        }
        pause = (pause * 3 / 2).min(PAUSE_MAX);
    }
}

/// A path that git printed.
pub(super) fn path_of(bytes: &[u8]) -> PathBuf {
    #[cfg(unix)]
    return <OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(bytes).into();
    #[cfg(not(unix))]
    return String::from_utf8_lossy(bytes).into_owned().into();
}

/// A pathspec for exactly this path, relative to the top folder. `magic` adds pathspec magic; see gitglossary(7).
pub(super) fn pathspec(magic: &str, path: &Path) -> OsString {
    let mut spec = OsString::from(format!(":(top,literal{magic})"));
    spec.push(path);
    spec
}

/// Paths for git's stdin, each ended by `end`.
pub(super) fn paths_ended_by<'a>(end: u8, paths: impl IntoIterator<Item = &'a PathBuf>) -> Vec<u8> {
    paths.into_iter().flat_map(|path| path.as_os_str().as_encoded_bytes().iter().copied().chain([end])).collect()
}

/// A path as text. Invalid UTF-8 is replaced.
pub(super) fn text_of(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn killed_git_process_is_an_error() {
        assert_eq!(git(["-c", "alias.end=!exit 3", "end"]).run().unwrap().code, 3);
        let error = git(["-c", "alias.die=!kill -9 $PPID", "die"]).run().unwrap_err();
        assert!(error.to_string().contains("it was killed"), "{error}");
        assert!(git(["-c", "alias.die=!kill -9 $PPID", "die"]).exit_as_bool().is_err());
    }
}
