//! Runs `git`: bounded in time and output, with all it depends on said in each call. It knows nothing of what it is called for.
//!
//! - Which git: the first in `PATH` when the first call is made, for the life of the process.
//! - Where: the repository and the worktree are named in each call, so that a `.git` file that somebody changed leads nowhere.
//! - The environment: Brigade's own without secrets and without `GIT_*` variables, which could point anywhere.
//! - Programs: git starts none outside of the sandbox. Hooks, monitors, signatures, editors, pagers and transports are off. Filters and merge
//!   drivers run in the sandbox; see [`super::settings`].

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

/// How long is waited for a git of an earlier process.
const OTHERS_TIME_MAX: Duration = Duration::from_secs(20);
/// How long that is done without a word.
const OTHERS_TIME_UNSAID: Duration = Duration::from_secs(1);
/// The time after which a call is searched for pipes that it may wait for. The next search comes after twice that time.
const LOOK_TIME: Duration = Duration::from_secs(2);
/// How long one call may take. The longest is a checkout.
const TIME_MAX: Duration = Duration::from_secs(600);
/// The most of its output that is taken, in bytes; more is an error.
pub(super) const OUTPUT_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// The most of what it says on stderr that is kept, in bytes.
const STDERR_BYTES_MAX: usize = 8 * 1024;
/// The first and the longest pause between two looks whether it has ended.
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// What writes and removes files by their paths, and may go on for long: what is marked as at work.
const BY_PATH: [&str; 7] = ["worktree", "read-tree", "checkout", "checkout-index", "clean", "merge", "switch"];

/// What `git` is called.
const PROGRAM: &str = if cfg!(windows) { "git.exe" } else { "git" };

/// Settings of every call.
const SETTINGS: &[&str] = &[
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.preferSymlinkRefs=false",
    "core.quotePath=false",
    "core.untrackedCache=false",
    // A pack is one file.
    "pack.packSizeLimit=0",
    "commit.gpgSign=false",
    "log.showSignature=false",
    "merge.verifySignatures=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "merge.conflictStyle=merge",
    "rerere.enabled=false",
    // A git that works in a submodule is not told these settings.
    "submodule.recurse=false",
    "diff.submodule=short",
    "status.submoduleSummary=false",
    "status.showUntrackedFiles=normal",
    "diff.noprefix=false",
];

/// Variables of every call.
const VARIABLES: [(&str, &str); 10] = [
    ("LC_ALL", "C"),
    ("GIT_TERMINAL_PROMPT", "0"),
    // Nothing asks, nothing edits: these start no program.
    ("GIT_ASKPASS", ""),
    ("GIT_EDITOR", ":"),
    // An object that a partial clone lacks is an error; no remote helper, ssh or proxy is started for it.
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_ALLOW_PROTOCOL", ""),
    // Settings can have git write what it does to any file.
    ("GIT_TRACE2", "0"),
    ("GIT_TRACE2_EVENT", "0"),
    ("GIT_TRACE2_PERF", "0"),
    // An object that a ref says stands for another would be merged in place of what was verified.
    ("GIT_NO_REPLACE_OBJECTS", "1"),
];

/// Variables that have a shell run a file first.
const SHELL_VARIABLES: [&str; 2] = ["BASH_ENV", "ENV"];

/// How git says that it would have fetched an object: since 2.44, and before.
const LACKS_OBJECT: [&str; 2] = ["lazy fetching disabled", "from promisor remote"];

/// Tells a person how to mend a partial clone that lacks an object.
const HOW_TO_FETCH: &str =
    "the repository is a partial clone, and Brigade fetches nothing: git fetch --refetch --no-filter gets all objects";

/// Where a call works.
#[derive(Debug, Clone)]
pub(super) struct At {
    /// What belongs to this checkout alone: its HEAD, its index.
    pub git_dir: PathBuf,
    /// What all checkouts share.
    pub common_dir: PathBuf,
    /// Its files.
    pub work_tree: PathBuf,
    /// The file that is locked while a git of this workspace's is at work; see [`At::await_others`].
    pub at_work: PathBuf,
    /// The repository's settings.
    pub settings: Arc<Settings>,
}

/// What a call said.
#[derive(Debug)]
pub(super) struct Said {
    /// Its exit code.
    pub code: i32,
    /// What it printed.
    pub out: Vec<u8>,
    /// What it said besides.
    pub err: String,
}

impl Said {
    /// What it printed as one line of text.
    pub(super) fn line(&self) -> String {
        String::from_utf8_lossy(&self.out).trim_end_matches('\n').to_owned()
    }

    /// What it printed, parted by NUL characters. Paths among it need be no text: [`path_of`].
    pub(super) fn fields(&self) -> impl Iterator<Item = &[u8]> {
        self.out.split(|byte| *byte == 0).filter(|field| !field.is_empty())
    }
}

/// A call to be made.
pub(super) struct Call<'a> {
    at: Option<&'a At>,
    /// The folder in which git finds the repository itself.
    folder: Option<PathBuf>,
    arguments: Vec<OsString>,
    input: Vec<u8>,
    variables: Vec<(&'static str, String)>,
    /// Whether it works by the settings in files, rather than by those that it is told.
    is_by_files: bool,
}

/// `git` with these arguments, in no repository that is named.
pub(super) fn git<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Call<'static> {
    let arguments = arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect();
    Call { at: None, folder: None, arguments, input: Vec::new(), variables: Vec::new(), is_by_files: false }
}

/// `git` with these arguments, in the repository that it finds from `folder` on.
pub(super) fn git_in<A: AsRef<OsStr>>(folder: &Path, arguments: impl IntoIterator<Item = A>) -> Call<'static> {
    Call { folder: Some(folder.to_owned()), ..git(arguments) }
}

impl At {
    /// Waits until no git that a process before this one began is at work here: one goes on when that process is killed, and tidies up
    /// after itself by paths that may be somebody else's by then.
    ///
    /// # Errors
    /// One is still at work after so long.
    pub(super) fn await_others(&self) -> Result<(), RepositoryError> {
        let began = Instant::now();
        let file = File::create(&self.at_work).map_err(|error| failed("open", &self.at_work, &error))?;
        let mut is_said = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(()),
                Err(TryLockError::WouldBlock) if began.elapsed() < OTHERS_TIME_MAX => {
                    if !is_said && began.elapsed() > OTHERS_TIME_UNSAID {
                        tracing::warn!("a git that an earlier run began is still at work; it is waited for");
                        is_said = true;
                    }
                    thread::sleep(PAUSE_MAX);
                }
                Err(TryLockError::WouldBlock) => {
                    let reason = format!(
                        "a git that an earlier run began is still at work: launch again once it has ended. Where it is none, but a program that a filter or merge driver left running, end that, or remove {}",
                        self.at_work.display()
                    );
                    return Err(failed("work in", &self.work_tree, &reason));
                }
                Err(TryLockError::Error(error)) => return Err(failed("lock", &self.at_work, &error)),
            }
        }
    }

    /// Held by a git that gets it as its empty stdin, and by what that one begins, for as long as they live.
    fn mark_of_work(&self) -> Option<File> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&self.at_work).ok()?;
        file.lock_shared().ok()?;
        Some(file)
    }

    /// `git` with these arguments, here.
    pub(super) fn git<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Call<'_> {
        Call { at: Some(self), ..git(arguments) }
    }
}

/// Where `git` is: the first in `PATH`, of whose folders those count that do not depend on where one is.
fn program() -> Option<&'static Path> {
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

/// The environment of every call, as it was when the first one was made.
fn environment() -> &'static [(OsString, OsString)] {
    static ENVIRONMENT: OnceLock<Vec<(OsString, OsString)>> = OnceLock::new();
    ENVIRONMENT.get_or_init(|| {
        let is_handed_on = |name: &OsString| {
            let name = name.to_string_lossy();
            !name.starts_with("GIT_") && !SHELL_VARIABLES.contains(&&*name)
        };
        let own = environment::of_command(&environment::of_launch(), &[]).into_iter();
        let own = own.filter(|(name, _)| is_handed_on(name));
        own.chain(VARIABLES.map(|(name, value)| (name.into(), value.into()))).collect()
    })
}

impl Call<'_> {
    /// The same with this on stdin.
    pub(super) fn input(self, input: impl Into<Vec<u8>>) -> Self {
        Self { input: input.into(), ..self }
    }

    /// The same with these variables.
    pub(super) fn variables(mut self, variables: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        self.variables.extend(variables);
        self
    }

    /// The same by the settings in files.
    pub(super) fn by_files(self) -> Self {
        Self { is_by_files: true, ..self }
    }

    fn name(&self) -> String {
        let words = self.arguments.iter().take(2).map(|word| word.to_string_lossy());
        format!("run git {}", words.collect::<Vec<_>>().join(" "))
    }

    fn failed(&self, reason: impl Into<String>) -> RepositoryError {
        RepositoryError::Failed { action: self.name(), reason: reason.into() }
    }

    fn command(&self) -> Result<Command, RepositoryError> {
        let no_git = || RepositoryError::NoGit("isolation needs git, and there is none in PATH".to_owned());
        let mut command = Command::new(program().ok_or_else(no_git)?);
        command.env_clear().envs(environment().iter().map(|(name, value)| (name, value)));
        if let Some(at) = self.at {
            command.current_dir(&at.work_tree).env("GIT_DIR", &at.git_dir);
            command.env("GIT_COMMON_DIR", &at.common_dir).env("GIT_WORK_TREE", &at.work_tree);
            if !self.is_by_files {
                command.envs(at.settings.variables(at)?);
            }
        }
        if let Some(folder) = &self.folder {
            command.arg("-C").arg(folder);
        } else if self.at.is_none() {
            // It needs no settings, and could wait for a pipe in their place.
            command.envs([("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_NOSYSTEM", "1")]);
        }
        for setting in SETTINGS {
            command.args(["-c", setting]);
        }
        command.args(&self.arguments).envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        // The terminal's signals are the team's; git, in the middle of a step, ends it.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        Ok(command)
    }

    /// A pipe that keeps git from going on.
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

    /// Makes the call, whatever its exit code is.
    ///
    /// # Errors
    /// It cannot be started, is killed, takes too long or says too much.
    pub(super) fn run(self) -> Result<Said, RepositoryError> {
        let has_input = !self.input.is_empty();
        let mut command = self.command()?;
        let tidies_up = self.arguments.iter().any(|word| BY_PATH.iter().any(|command| word == command));
        let mark = self.at.filter(|_| !has_input && tidies_up).and_then(At::mark_of_work);
        command.stdin(if has_input { Stdio::piped() } else { mark.map_or_else(Stdio::null, Stdio::from) });
        let mut child = with_stops_blocked(|| command.spawn()).map_err(|error| self.failed(error.to_string()))?;
        // Of the mark only the child has it.
        drop(command);
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(self.failed("it was started without its pipes"));
        };
        let input = &self.input;
        let outcome = thread::scope(|scope| {
            let stdin = child.stdin.take();
            let (has_said_all, all_is_said) = mpsc::channel();
            let start = || {
                if let Some(mut stdin) = stdin {
                    // What it does not read it does not need.
                    let write = move || drop(stdin.write_all(input).map(|()| drop(stdin)));
                    thread::Builder::new().spawn_scoped(scope, write)?;
                }
                let out = thread::Builder::new().spawn_scoped(scope, move || {
                    let out = read(stdout, OUTPUT_BYTES_MAX);
                    // Who waits may have given up.
                    let _ = has_said_all.send(());
                    out
                })?;
                let err = thread::Builder::new().spawn_scoped(scope, || read(stderr, OUTPUT_BYTES_MAX))?;
                Ok((out, err))
            };
            let (out, err) = start().map_err(|error: io::Error| {
                end(&mut child);
                format!("cannot start a thread: {error}")
            })?;
            Ok::<_, String>((wait(&mut child, &all_is_said, || self.pipe())?, out.join(), err.join()))
        });
        match outcome {
            Ok((code, Ok(Some(out)), Ok(err))) => {
                let mut err = end_of(&err.unwrap_or_default());
                if let Some(at) = self.at.filter(|_| code != 0 && !self.is_by_files) {
                    err = at.settings.in_own_words(at, err);
                }
                if code != 0 && LACKS_OBJECT.iter().any(|said| err.contains(said)) {
                    err = format!("{}: {HOW_TO_FETCH}", err.trim_end());
                }
                Ok(Said { code, out, err })
            }
            Err(reason) => Err(self.failed(reason)),
            _ => Err(self.failed(format!("it printed more than {OUTPUT_BYTES_MAX} bytes"))),
        }
    }

    /// Makes a call that must exit 0.
    ///
    /// # Errors
    /// As [`Call::run`], and with what it said where it does not.
    pub(super) fn ok(self) -> Result<Said, RepositoryError> {
        let name = self.name();
        let said = self.run()?;
        if said.code == 0 {
            return Ok(said);
        }
        let reason = if said.err.trim().is_empty() { format!("exit status {}", said.code) } else { said.err };
        Err(RepositoryError::Failed { action: name, reason: reason.trim().to_owned() })
    }

    /// Makes a call that answers by exiting 0 or 1.
    ///
    /// # Errors
    /// As [`Call::ok`], for any other exit code.
    pub(super) fn yes_or_no(self) -> Result<bool, RepositoryError> {
        let name = self.name();
        let said = self.run()?;
        match said.code {
            0 => Ok(true),
            1 => Ok(false),
            _ => Err(RepositoryError::Failed { action: name, reason: said.err.trim().to_owned() }),
        }
    }
}

/// All there is to read, to its end; `None` where that is more than the bound.
fn read(mut pipe: impl Read, bytes_max: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let is_read = (&mut pipe).take(bytes_max).read_to_end(&mut bytes).is_ok();
    let more = std::io::copy(&mut pipe, &mut std::io::sink()).unwrap_or(0);
    (is_read && more == 0).then_some(bytes)
}

fn end_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(STDERR_BYTES_MAX)..]).into_owned()
}

/// Ends git and the gits that it started, which have its output open too.
fn end(child: &mut Child) {
    // It may have ended just now.
    let group = i32::try_from(child.id()).unwrap_or(0);
    let _ = processes::signal_group(group, GroupSignal::Kill);
    let _ = child.kill();
    let _ = child.wait();
}

/// Waits for its end, which comes at once when it has closed its output.
fn wait(
    child: &mut Child,
    all_is_said: &mpsc::Receiver<()>,
    pipe: impl Fn() -> Option<PathBuf>,
) -> Result<i32, String> {
    let (began, mut pause) = (Instant::now(), PAUSE_MIN);
    let mut time = LOOK_TIME;
    while all_is_said.recv_timeout(time) == Err(RecvTimeoutError::Timeout) && began.elapsed() < TIME_MAX {
        if let Some(pipe) = pipe() {
            end(child);
            return Err(format!("{} is a pipe, not a plain file, and git waits for it: remove it", pipe.display()));
        }
        time = (time * 2).min(TIME_MAX.saturating_sub(began.elapsed()));
    }
    loop {
        match child.try_wait() {
            // It answered nothing: no code of its own may be taken for an answer.
            Ok(Some(status)) => return status.code().ok_or_else(|| "it was killed".to_owned()),
            Ok(None) if began.elapsed() > TIME_MAX => {
                end(child);
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

/// What git takes for this path and no other, from the top folder on; `magic` is more to say of it, as gitglossary(7) has it.
pub(super) fn pathspec(magic: &str, path: &Path) -> OsString {
    let mut spec = OsString::from(format!(":(top,literal{magic})"));
    spec.push(path);
    spec
}

/// Paths for git's stdin, each ended by `end`.
pub(super) fn paths_ended_by<'a>(end: u8, paths: impl IntoIterator<Item = &'a PathBuf>) -> Vec<u8> {
    paths.into_iter().flat_map(|path| path.as_os_str().as_encoded_bytes().iter().copied().chain([end])).collect()
}

/// A path as an argument or a text; one that is no text is shown as well as it can be.
pub(super) fn text_of(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_git_that_was_killed_has_said_nothing() {
        assert_eq!(git(["-c", "alias.end=!exit 3", "end"]).run().unwrap().code, 3);
        let error = git(["-c", "alias.die=!kill -9 $PPID", "die"]).run().unwrap_err();
        assert!(error.to_string().contains("it was killed"), "{error}");
        assert!(git(["-c", "alias.die=!kill -9 $PPID", "die"]).yes_or_no().is_err());
    }
}
