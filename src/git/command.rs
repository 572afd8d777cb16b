//! Runs `git` with limits on time and output. Each call gets everything that it depends on:
//!
//! - Program: the first `git` in `PATH` at the first call, for the life of the process.
//! - Place: each call names the repository and the worktree, so a changed `.git` file has no effect.
//! - Environment: Brigade's own without secrets and without `GIT_*` variables, which could redirect git.
//! - Other programs: git starts none outside of the sandbox, except the person's signing program; see [`super::signing`]. Hooks, monitors,
//!   editors, pagers and transports are off. Filters and merge drivers run in the sandbox; see [`super::settings`].
//! - Sandbox: in the place of a task, where commands can write the git folder too, git itself runs in the sandbox of that place.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use super::pipes::{find_pipe, folders_of};
use super::settings::{Settings, Variables};
use super::signing::signing_environment;
use crate::platform::processes::{self, Signal};
use crate::platform::terminal::with_stops_blocked;
use crate::ports::RepositoryError;
use crate::sandbox::environment;

/// The time after which a search for pipes that block a call starts. The next search starts after twice that time.
const PIPE_SEARCH_DELAY: Duration = Duration::from_secs(2);
/// The time limit of a call. The longest calls are checkouts.
const TIME_MAX: Duration = Duration::from_secs(600);
/// The time limit of a call that signs, if no person can answer at a terminal.
const SIGNING_TIME_MAX: Duration = Duration::from_secs(30);
/// The limit of a call's output, in bytes. More is an error.
pub(super) const OUTPUT_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// The end of stderr that is kept, in bytes.
const STDERR_BYTES_MAX: usize = 8 * 1024;
/// Git's exit code for wrong arguments, the highest one. In the sandbox, higher ones tell that git was killed or not started.
const USAGE_EXIT_CODE: i32 = 129;

/// Commands that write and remove files by path, and may go on after a kill of Brigade. A lock marks that they run.
#[rustfmt::skip]
const COMMANDS_BY_PATH: [&str; 10] = [
    "add", "read-tree", "reset", "checkout", "checkout-index", "clean", "merge", "switch", "update-index", "update-ref",
];

/// Options of every call, each passed with `-c`.
const SETTINGS: &[&str] = &[
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.preferSymlinkRefs=false",
    "core.quotePath=false",
    "core.untrackedCache=false",
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

/// The paths and settings of a checkout that git works in: the person's, or a place of the team with a git folder of its own.
#[derive(Debug, Clone)]
pub(super) struct RepoPath {
    /// The git folder of this checkout alone, with its HEAD and its index.
    pub git_dir: PathBuf,
    /// The git folder that all checkouts share.
    pub common_dir: PathBuf,
    /// The top folder of its files.
    pub work_tree: PathBuf,
    /// A file that is locked while a git of this workspace runs; see [`super::running`].
    pub running_lock_file: PathBuf,
    /// The settings that each call gets.
    pub settings: Arc<Settings>,
    /// `true` for the place of a task: commands can write its git folder, so git runs in the sandbox.
    pub is_confined: bool,
    /// `true` if new objects must survive a power cut; see git-config(1), core.fsync.
    pub syncs_objects: bool,
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

/// The output of git on one stream; `None` if it was too much.
type Stream = Option<Vec<u8>>;

/// A call of git.
pub(super) struct GitCommand<'a> {
    at: Option<&'a RepoPath>,
    /// The folder in which git starts its own search for the repository.
    folder: Option<PathBuf>,
    arguments: Vec<OsString>,
    input: Vec<u8>,
    variables: Vec<(&'static str, OsString)>,
    /// `true` if git reads its settings from files, not from the environment.
    reads_settings_files: bool,
    /// The settings of a git that signs. It has the person's environment for that.
    signing: Option<Variables>,
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
        signing: None,
    }
}

/// `git` with these arguments, in the repository that contains `folder`.
pub(super) fn git_in<A: AsRef<OsStr>>(folder: &Path, arguments: impl IntoIterator<Item = A>) -> GitCommand<'static> {
    GitCommand { folder: Some(folder.to_owned()), ..git(arguments) }
}

fn no_git() -> RepositoryError {
    RepositoryError::NoGit("cannot use isolation: no git was found in PATH".to_owned())
}

impl RepoPath {
    /// `git` with these arguments in this checkout.
    pub(super) fn git<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> GitCommand<'_> {
        GitCommand { at: Some(self), ..git(arguments) }
    }
}

/// The first `git` in the absolute folders of `PATH`.
fn program() -> Option<&'static Path> {
    static GIT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).filter(|folder| folder.is_absolute());
        folders.map(|folder| folder.join("git")).find(|program| is_program(program))
    };
    GIT.get_or_init(find).as_deref()
}

fn is_program(path: &Path) -> bool {
    let Ok(metadata) = path.metadata() else { return false };
    let is_executable = metadata.permissions().mode() & 0o111 != 0;
    metadata.is_file() && is_executable
}

/// The environment of every call, fixed at the first call.
pub(super) fn environment() -> &'static [(OsString, OsString)] {
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
    pub(super) fn variables<V: Into<OsString>>(
        mut self,
        variables: impl IntoIterator<Item = (&'static str, V)>,
    ) -> Self {
        self.variables.extend(variables.into_iter().map(|(name, value)| (name, value.into())));
        self
    }

    /// Makes git read its settings from files.
    pub(super) fn with_settings_files(self) -> Self {
        Self { reads_settings_files: true, ..self }
    }

    /// Makes git sign with these settings, which it gets in its environment. A person at the terminal can answer the signing program.
    pub(super) fn signing(self, settings: Variables) -> Self {
        Self { signing: Some(settings), ..self }
    }

    /// Returns true if a person can answer the signing program.
    fn is_interactive(&self) -> bool {
        self.signing.is_some() && io::stdin().is_terminal()
    }

    fn time_max(&self) -> Duration {
        if self.signing.is_some() { SIGNING_TIME_MAX } else { TIME_MAX }
    }

    fn description(&self) -> String {
        let words = self.arguments.iter().take(2).map(|word| word.to_string_lossy());
        format!("run git {}", words.collect::<Vec<_>>().join(" "))
    }

    fn failed(&self, reason: impl Into<String>) -> RepositoryError {
        failure(self.description(), &reason.into())
    }

    /// The program with all arguments.
    fn words(&self) -> Result<Vec<OsString>, RepositoryError> {
        let mut words = vec![program().ok_or_else(no_git)?.into()];
        if let Some(folder) = &self.folder {
            words.extend(["-C".into(), folder.into()]);
        }
        words.extend(SETTINGS.iter().flat_map(|setting| ["-c".into(), OsString::from(setting)]));
        if self.at.is_some_and(|at| at.syncs_objects) {
            words.extend(["-c", "core.fsync=objects"].map(OsString::from));
        }
        words.extend(self.arguments.iter().cloned());
        Ok(words)
    }

    fn command(&self) -> Result<Command, RepositoryError> {
        let words = self.words()?;
        let confined = self.at.filter(|at| at.is_confined).map(|at| at.settings.confined(at, &words)).transpose()?;
        let mut command = confined.flatten().unwrap_or_else(|| {
            let mut git = Command::new(&words[0]);
            git.args(&words[1..]);
            git
        });
        command.env_clear();
        match &self.signing {
            Some(settings) => command.envs(signing_environment()).envs(VARIABLES).envs(settings.iter().cloned()),
            None => command.envs(environment().iter().map(|(name, value)| (name, value))),
        };
        if let Some(at) = self.at {
            command.current_dir(&at.work_tree).env("GIT_DIR", &at.git_dir);
            command.env("GIT_COMMON_DIR", &at.common_dir).env("GIT_WORK_TREE", &at.work_tree);
            if !self.reads_settings_files {
                command.envs(at.settings.variables(at)?);
            }
        }
        if self.folder.is_none() && self.at.is_none() {
            // It needs no settings, and a pipe in place of a settings file would block it.
            command.envs([("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_NOSYSTEM", "1")]);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        // A Ctrl-C in the terminal is for the team. It must not end git in the middle of a step. But only the group of this process may
        // read from the terminal.
        if !self.is_interactive() {
            command.process_group(0);
        }
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
    /// Git cannot be started, is killed, exceeds its time limit or prints more than [`OUTPUT_BYTES_MAX`].
    pub(super) fn run(self) -> Result<GitOutput, RepositoryError> {
        let has_input = !self.input.is_empty();
        let mut command = self.command()?;
        let is_by_path = self.arguments.iter().any(|word| COMMANDS_BY_PATH.iter().any(|command| word == command));
        let running_lock = if has_input || !is_by_path { None } else { self.at.and_then(RepoPath::lock_as_running) };
        command.stdin(if has_input { Stdio::piped() } else { running_lock.map_or_else(Stdio::null, Stdio::from) });
        let child = with_stops_blocked(|| command.spawn()).map_err(|error| self.failed(error.to_string()))?;
        // Only the child keeps the lock open.
        drop(command);
        let (code, [out, err]) = self.wait(child).map_err(|reason| self.failed(reason))?;
        let is_confined = self.at.is_some_and(|at| at.is_confined);
        if is_confined && code > USAGE_EXIT_CODE {
            let err = last_bytes_of(&err.unwrap_or_default());
            return Err(self.failed(if err.trim().is_empty() { "it was killed".to_owned() } else { err }));
        }
        let out = out.ok_or_else(|| self.failed(format!("it printed more than {OUTPUT_BYTES_MAX} bytes")))?;
        let mut err = last_bytes_of(&err.unwrap_or_default());
        if code != 0
            && !self.reads_settings_files
            && let Some(at) = self.at
        {
            err = at.settings.with_original_values(err);
        }
        if code != 0 && LACKS_OBJECT.iter().any(|text| err.contains(text)) {
            err = format!("{}: {HOW_TO_FETCH}", err.trim_end());
        }
        Ok(GitOutput { code, out, err })
    }

    /// Writes the input and reads the output until git ends. Returns the exit code, stdout and stderr.
    fn wait(&self, mut child: Child) -> Result<(i32, [Stream; 2]), String> {
        let group = i32::try_from(child.id()).unwrap_or(0);
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (running, end) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let start = || {
                if let Some(mut stdin) = stdin {
                    // Git may end without reading all of it.
                    let write = move || drop(stdin.write_all(&self.input));
                    thread::Builder::new().spawn_scoped(scope, write)?;
                }
                let err = thread::Builder::new().spawn_scoped(scope, || read(stderr))?;
                let watch = thread::Builder::new().spawn_scoped(scope, move || self.kill_if_stuck(group, &end))?;
                Ok((err, watch))
            };
            let started = start();
            if started.is_err() {
                kill(group);
            }
            let out = read(stdout);
            let status = child.wait().map_err(|error| error.to_string())?;
            drop(running);
            let (err, watch) = started.map_err(|error: io::Error| format!("cannot start a thread: {error}"))?;
            if let Some(reason) = watch.join().unwrap_or_default() {
                return Err(reason);
            }
            // A killed git has given no answer, so it must not count as an exit code.
            let code = status.code().ok_or_else(|| "it was killed".to_owned())?;
            Ok((code, [out, err.join().unwrap_or_default()]))
        })
    }

    /// Kills git if it waits for a pipe or takes too long, and returns the reason.
    fn kill_if_stuck(&self, group: i32, end: &mpsc::Receiver<()>) -> Option<String> {
        if self.is_interactive() {
            return None;
        }
        let (started_at, time_max) = (Instant::now(), self.time_max());
        let mut time = PIPE_SEARCH_DELAY;
        while end.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
            let waited = started_at.elapsed();
            let reason = match self.pipe() {
                Some(pipe) => {
                    format!("{} is a pipe or a device, and git waits for it. hint: remove it", pipe.display())
                }
                None if waited >= time_max => format!("it took longer than {} s", time_max.as_secs()),
                None => {
                    time = (time * 2).min(time_max.saturating_sub(waited));
                    continue;
                }
            };
            kill(group);
            return Some(reason);
        }
        None
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

/// Reads to the end. Returns `None` if there are more than [`OUTPUT_BYTES_MAX`].
fn read(pipe: Option<impl Read>) -> Stream {
    let mut pipe = pipe?;
    let mut bytes = Vec::new();
    let is_read = (&mut pipe).take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes).is_ok();
    let more = std::io::copy(&mut pipe, &mut std::io::sink()).unwrap_or(0);
    (is_read && more == 0).then_some(bytes)
}

fn last_bytes_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(STDERR_BYTES_MAX)..]).into_owned()
}

/// Kills git and the processes of its group, which also hold its output open.
fn kill(group: i32) {
    // It fails if git has just ended.
    let _ = processes::signal_group(group, Signal::KILL);
}

/// A path that git printed.
pub(super) fn path_of(bytes: &[u8]) -> PathBuf {
    OsStr::from_bytes(bytes).into()
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
