//! Runs git in the sandbox, and the filters and merge drivers of a git outside of it.
//!
//! Git starts these drivers itself, by a shell command from its settings. [`DriverSandbox::wrap`] rewrites such a command, so that git
//! starts this program instead. It runs the original command in the same namespaces as commands, with git's pipes as stdin and stdout.
//! [`DriverSandbox::command`] runs git itself like that; its drivers need no sandbox of their own. A git without drivers starts no
//! program of others: it needs no process namespace, and at [`Level::MountsOnly`] the process that confines itself becomes git.
//!
//! ```text
//! git -- exec brigade __guard filter … --> outer --> inner (1 in its process namespace) --> sh -c COMMAND
//! Brigade ------------------------------> git, in the same process, if no driver can run
//! ```
//!
//! The outer process dies with its parent, the inner one with the outer one, and everything in the namespace with the inner one. Without a
//! process namespace the outer process kills what the command started. A driver that cannot be confined fails with an exit code that git
//! treats as an error.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::command_spec::{CommandSpec, Input};
use super::guard::{PAUSE_MIN, has_children, signal_all, wait_for};
use super::reexec::confine;
use super::{CommandExit, GUARD_ARGUMENT, Level, own_arguments, own_program};
use crate::domain::agent::access::{Access, PathRule};
use crate::domain::text::words::words;
use crate::platform::{open_for_reading, processes, remove_folder};

/// Replaces every command if no program can confine it.
const UNAVAILABLE: &str = "echo 'brigade: this program cannot confine filters and merge drivers' >&2; exit 255";

/// Prefix of the folders of merge drivers. A killed driver leaves its folder.
pub const SCRATCH_PREFIX: &str = ".driver-";

/// The exit code of a driver that could not run. For a merge driver, git treats codes above 128 as errors, not as conflicts.
const FAILED_EXIT_CODE: i32 = 255;
/// The shell that git uses for drivers.
const SHELL: &str = "/bin/sh";
/// The time limit for killing what a driver without a process namespace left running.
const KILL_TIME_MAX: Duration = Duration::from_secs(2);
/// Variables of Brigade's git that a git started by a driver must not inherit.
const GIT_VARIABLES: [&str; 6] = [
    "GIT_ALLOW_PROTOCOL",
    "GIT_CONFIG_COUNT",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_CONFIG_PARAMETERS",
    "GIT_NO_LAZY_FETCH",
];

words! {
    /// A kind of command in git's settings.
    pub enum DriverKind {
        /// `filter.*.clean` and `filter.*.smudge`: git replaces `%f` with the quoted path.
        Filter = "filter",
        /// `filter.*.process`: git replaces nothing.
        Process = "process",
        /// `merge.*.driver`: git replaces `%O %A %B %L %P %S %X %Y`; see gitattributes(5).
        Merge = "merge",
    }
}

impl DriverKind {
    /// The letters that git replaces after a `%`.
    fn placeholders(self) -> &'static [u8] {
        match self {
            Self::Filter => b"f",
            Self::Process => b"",
            Self::Merge => b"OABLPSXY",
        }
    }
}

/// The sandbox of git, or of its filters and merge drivers.
#[derive(Debug, Clone)]
pub struct DriverSandbox {
    /// A program that calls [`super::run_if_guard`]. Without one, every driver fails.
    pub program: Option<PathBuf>,
    /// The level of confinement.
    pub level: Level,
    /// The path rules.
    pub rules: Vec<PathRule>,
    /// The folder for files of merge drivers, relative to git's working folder. Commands must not be able to write it.
    pub scratch: PathBuf,
}

/// The path of the running program, for [`DriverSandbox::program`]. `None` if it did not call [`super::run_if_guard`].
pub fn own_program_path() -> Option<PathBuf> {
    if super::is_guard_ready() { std::env::current_exe().ok() } else { None }
}

impl DriverSandbox {
    /// The shell command that git starts instead of `command`.
    pub fn wrap(&self, kind: DriverKind, command: &[u8]) -> Vec<u8> {
        let command_spec = CommandSpec {
            level: self.level,
            input: Input::Empty,
            script: OsStr::from_bytes(command).to_owned(),
            rules: self.rules.clone(),
        };
        let fields = command_spec.fields();
        let count = fields.len().to_string();
        let mut words = vec![kind.as_str().as_bytes(), self.scratch.as_os_str().as_encoded_bytes(), count.as_bytes()];
        words.extend(fields.into_iter().map(OsStr::as_encoded_bytes));
        let Some(mut text) = self.call(&words) else { return UNAVAILABLE.into() };
        if kind != DriverKind::Process {
            text = without_placeholders(&text);
        }
        for placeholder in kind.placeholders() {
            text.extend([b' ', b'%', *placeholder]);
        }
        text
    }

    /// A command that runs the program `words[0]` with the other words as its arguments. It inherits stdin, stdout, stderr, the
    /// environment and the folder. `None` without a program that confines it.
    pub fn command(&self, words: &[OsString]) -> Option<Command> {
        let spec =
            CommandSpec { level: self.level, input: Input::Empty, script: OsString::new(), rules: self.rules.clone() };
        let mut command = Command::new(self.program.as_ref()?);
        let mark = processes::own_mark();
        let role = if self.level == Level::Full { "outer" } else { "become" };
        command.args([GUARD_ARGUMENT, &mark, "filter", role]).args(Job { spec, words: words.to_vec() }.arguments());
        Some(command)
    }

    /// The shell command of a filter that changes nothing.
    pub fn identity(&self) -> Vec<u8> {
        self.call(&[b"identity"]).map_or_else(|| UNAVAILABLE.into(), |text| without_placeholders(&text))
    }

    fn call(&self, words: &[&[u8]]) -> Option<Vec<u8>> {
        let program = self.program.as_ref()?;
        let mark = processes::own_mark();
        let first = [program.as_os_str().as_encoded_bytes(), GUARD_ARGUMENT.as_bytes(), mark.as_bytes(), b"filter"];
        let mut text = b"exec".to_vec();
        for word in first.iter().chain(words) {
            text.push(b' ');
            text.extend(shell_quoted(word));
        }
        Some(text)
    }
}

/// Escapes `%`, so that git leaves the text unchanged when it replaces placeholders.
fn without_placeholders(text: &[u8]) -> Vec<u8> {
    text.split(|byte| *byte == b'%').collect::<Vec<_>>().join(b"%%".as_slice())
}

/// Quotes a word for the shell.
fn shell_quoted(word: &[u8]) -> Vec<u8> {
    let inner = word.split(|byte| *byte == b'\'').collect::<Vec<_>>().join(b"'\\''".as_slice());
    [b"'", inner.as_slice(), b"'"].concat()
}

/// Replaces the placeholders of a driver's command as git does: names of git's own files stay unquoted, all other values are quoted.
fn expanded(kind: DriverKind, command: &[u8], values: &[Vec<u8>]) -> Vec<u8> {
    let mut text = Vec::new();
    let mut rest = command;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        let placeholder = if *byte == b'%' { after.first() } else { None };
        let value = placeholder.and_then(|letter| {
            let number = kind.placeholders().iter().position(|known| known == letter)?;
            values.get(number)
        });
        match (placeholder, value) {
            (Some(letter), Some(value)) => {
                let is_plain = kind == DriverKind::Merge && b"OABL".contains(letter);
                text.extend(if is_plain { value.clone() } else { shell_quoted(value) });
                rest = &rest[1..];
            }
            (Some(b'%'), None) if kind != DriverKind::Process => {
                text.push(b'%');
                rest = &rest[1..];
            }
            _ => text.push(*byte),
        }
    }
    text
}

/// Runs one driver for git. Returns `None` if the arguments are invalid.
pub(super) fn run(arguments: &[OsString]) -> Option<i32> {
    let [what, rest @ ..] = arguments else { return None };
    let result = match what.to_str()? {
        "identity" => io::copy(&mut io::stdin(), &mut io::stdout()).map(|_| 0).map_err(|error| error.to_string()),
        "outer" => outer(&Job::from_arguments(rest)?),
        "become" => inner(&Job::from_arguments(rest)?),
        "inner" => inner(&Job::from_arguments(rest)?),
        kind => driver(DriverKind::from_word(kind)?, rest)?,
    };
    Some(result.unwrap_or_else(|reason| {
        // Git forwards stderr.
        let _ = writeln!(io::stderr(), "brigade: cannot run git or its driver in the sandbox: {reason}");
        FAILED_EXIT_CODE
    }))
}

fn driver(kind: DriverKind, arguments: &[OsString]) -> Option<Result<i32, String>> {
    let [scratch, rest @ ..] = arguments else { return None };
    let Job { spec: mut command_spec, words } = Job::from_arguments(rest)?;
    let values: Vec<Vec<u8>> = words.into_iter().map(OsString::into_vec).collect();
    if kind == DriverKind::Merge {
        return Some(merge(command_spec, values, Path::new(scratch)));
    }
    command_spec.script = OsString::from_vec(expanded(kind, command_spec.script.as_bytes(), &values));
    Some(outer(&Job { spec: command_spec, words: Vec::new() }))
}

/// A command with its confinement: a program with its arguments, or without one the script of the spec.
struct Job {
    spec: CommandSpec,
    words: Vec<OsString>,
}

impl Job {
    /// The number of the spec's fields, the fields and the words.
    fn arguments(&self) -> Vec<OsString> {
        let fields = self.spec.fields();
        let count = OsString::from(fields.len().to_string());
        let fields = fields.into_iter().map(OsStr::to_owned);
        [count].into_iter().chain(fields).chain(self.words.iter().cloned()).collect()
    }

    fn from_arguments(arguments: &[OsString]) -> Option<Self> {
        let [count, rest @ ..] = arguments else { return None };
        let (fields, words) = rest.split_at_checked(count.to_str()?.parse().ok()?)?;
        Some(Self { spec: CommandSpec::from_fields(fields.iter().cloned())?, words: words.to_vec() })
    }

    fn process(&self) -> Command {
        if let [program, arguments @ ..] = &self.words[..] {
            let mut process = Command::new(program);
            process.args(arguments);
            return process;
        }
        let mut shell = Command::new(SHELL);
        shell.arg("-c").arg(&self.spec.script);
        let is_setting = |name: &str| name.starts_with("GIT_CONFIG_KEY_") || name.starts_with("GIT_CONFIG_VALUE_");
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if GIT_VARIABLES.contains(&&*text) || is_setting(&text) {
                shell.env_remove(&name);
            }
        }
        shell
    }
}

/// Runs a merge driver on copies of git's files in a scratch folder: a driver may not write where git's files are.
fn merge(mut command_spec: CommandSpec, mut values: Vec<Vec<u8>>, scratch: &Path) -> Result<i32, String> {
    let describe = |error: io::Error| format!("copy the files to merge: {error}");
    let scratch = ScratchFolder::new(scratch).map_err(describe)?;
    let [base, ours, theirs, ..] = &mut values[..] else { return Err("git named no files to merge".to_owned()) };
    let result = PathBuf::from(OsString::from_vec(ours.clone()));
    for file in [base, ours, theirs] {
        let from = PathBuf::from(OsString::from_vec(file.clone()));
        let to = scratch.0.join(from.file_name().unwrap_or_default());
        fs::copy(&from, &to).map_err(describe)?;
        *file = to.into_os_string().into_vec();
    }
    let merged = PathBuf::from(OsString::from_vec(values[1].clone()));
    command_spec.script = OsString::from_vec(expanded(DriverKind::Merge, command_spec.script.as_bytes(), &values));
    command_spec.rules.push(PathRule::writable(scratch.0.canonicalize().map_err(describe)?));
    // The driver's process enters the namespaces; this one stays outside to write the result.
    let mut outer = Command::new(own_program().map_err(describe)?);
    outer.args(own_arguments()).args(["filter", "outer"]);
    outer.args(Job { spec: command_spec, words: Vec::new() }.arguments());
    let code = outer.status().map_err(describe)?.code().unwrap_or(FAILED_EXIT_CODE);
    let mut merged = open_for_reading(&merged).map_err(describe)?;
    let mut result = File::create(result).map_err(describe)?;
    io::copy(&mut merged, &mut result).map_err(describe)?;
    Ok(code)
}

/// The folder of one merge driver. It is removed when dropped.
struct ScratchFolder(PathBuf);

impl ScratchFolder {
    fn new(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let own = folder.join(format!("{SCRATCH_PREFIX}{}", std::process::id()));
        // A killed driver with the same process id may have left it.
        let _ = remove_folder(&own);
        DirBuilder::new().mode(0o700).create(&own)?;
        Ok(Self(own))
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        // If this fails, the next launch removes it.
        let _ = remove_folder(&self.0);
    }
}

/// Enters the process namespace for its children and waits for the inner process.
fn outer(job: &Job) -> Result<i32, String> {
    let command_spec = &job.spec;
    let describe = |error: io::Error| error.to_string();
    // A missing folder could not be kept writable inside a read-only one.
    for rule in command_spec.rules.iter().filter(|rule| rule.access == Access::Writable) {
        fs::create_dir_all(&rule.path).map_err(describe)?;
    }
    #[cfg(target_os = "linux")]
    {
        let refused = |error: rustix::io::Errno| error.to_string();
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(refused)?;
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(refused)?;
        if command_spec.level == Level::Full {
            super::namespaces::enter(true)?;
            super::namespaces::raise_ambient_capabilities()?;
            // Entering a namespace may have cleared it.
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(refused)?;
        }
    }
    let mut inner = Command::new(own_program().map_err(describe)?);
    inner.args(own_arguments()).args(["filter", "inner"]).args(job.arguments());
    if command_spec.level != Level::Full {
        inner.process_group(0);
    }
    let leader = start(&mut inner).map_err(describe)?;
    let code = code_of(wait_for(leader).map_err(describe)?);
    if command_spec.level != Level::Full {
        kill_leftovers(leader);
    }
    Ok(code)
}

/// Confines this process and runs the command.
fn inner(job: &Job) -> Result<i32, String> {
    let mut process = job.process();
    let failed = |error: io::Error| format!("{}: {error}", job.process().get_program().display());
    confine(&job.spec).map_err(|error| error.reason)?;
    if job.spec.level == Level::Full {
        return wait_for(start(&mut process).map_err(failed)?).map(code_of).map_err(|error| error.to_string());
    }
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| error.to_string())?;
    Err(failed(process.exec()))
}

#[allow(clippy::zombie_processes, reason = "the caller reaps all its children by waitpid")]
fn start(command: &mut Command) -> io::Result<Pid> {
    let child = command.spawn()?;
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn code_of(end: CommandExit) -> i32 {
    match end {
        CommandExit::Code(code) => code,
        CommandExit::Signal(signal) => 128 + signal,
    }
}

/// Kills what a driver without a process namespace left running.
fn kill_leftovers(group: Pid) {
    let started_at = Instant::now();
    while has_children() && started_at.elapsed() < KILL_TIME_MAX {
        signal_all(group, Signal::KILL);
        std::thread::sleep(PAUSE_MIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(program: &str) -> DriverSandbox {
        DriverSandbox {
            program: Some(program.into()),
            level: Level::Off,
            rules: vec![PathRule::read_only("/a b")],
            scratch: ".s".into(),
        }
    }

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn wrapped_command_keeps_quotes_and_percents() {
        let wrapped = text(sandbox("/b%c/it's").wrap(DriverKind::Filter, b"x 'y' -- %f"));
        let mark = processes::own_mark();
        let head = format!("exec '/b%%c/it'\\''s' '__guard' '{mark}' 'filter' 'filter' '.s' '5' 'off' 'empty'");
        assert_eq!(wrapped, format!("{head} 'x '\\''y'\\'' -- %%f' 'read-only' '/a b' %f"));
        let process = text(sandbox("/b%c").wrap(DriverKind::Process, b"x %f"));
        let head = format!("exec '/b%c' '__guard' '{mark}' 'filter' 'process' '.s' '5' 'off' 'empty'");
        assert_eq!(process, format!("{head} 'x %f' 'read-only' '/a b'"));
    }

    #[test]
    fn placeholders_are_replaced_as_git_does() {
        let path = [b"a 'b'; rm".to_vec()];
        assert_eq!(text(expanded(DriverKind::Filter, b"x %f %% %P", &path)), "x 'a '\\''b'\\''; rm' % %P");
        assert_eq!(text(expanded(DriverKind::Process, b"x %f %%", &[])), "x %f %%");
        let values: Vec<Vec<u8>> = ["o", "a", "b", "7", "p q"].iter().map(|value| value.as_bytes().to_vec()).collect();
        assert_eq!(text(expanded(DriverKind::Merge, b"\"%A\" %O %B %L %P %S", &values)), "\"a\" o b 7 'p q' %S");
    }

    #[test]
    fn driver_without_a_program_fails() {
        let none = DriverSandbox { program: None, ..sandbox("x") };
        assert!(text(none.wrap(DriverKind::Process, b"cat")).ends_with("exit 255"));
        assert!(text(none.identity()).ends_with("exit 255"));
    }
}
