//! Programs in a folder, with the same environment on every machine.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade::sandbox::GUARD_ARGUMENT;

/// A cargo for the profile of this test. Without the variables that cargo sets for a test: they would make it build crates again.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        {
            cargo.env_remove(name);
        }
    }
    cargo.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR"));
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    cargo
}

/// Time limit for a condition on a slow, busy machine.
pub const WAIT_TIME_MAX: Duration = Duration::from_secs(120);

/// Beginnings of variables that programs do not inherit.
const REMOVED_VARIABLES: [&str; 4] = ["ANTHROPIC_", "BRIGADE_", "CHAOS_", "GIT_"];

/// A program in `folder`, without input, settings of the person, and variables of Brigade, git and providers.
pub fn command(program: &str, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if REMOVED_VARIABLES.iter().any(|start| name.starts_with(start)) || name.ends_with("_API_KEY") {
            command.env_remove(name);
        }
    }
    command.env("XDG_CONFIG_HOME", folder.join("no-config")).env("XDG_STATE_HOME", folder.join("no-config/state"));
    // Tests of the question remove this variable.
    command.env("BRIGADE_TRUST", "1").env("COLUMNS", "100");
    command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").env_remove("RUST_BACKTRACE");
    command
}

/// Brigade with these arguments in `folder`.
pub fn brigade(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = command(env!("CARGO_BIN_EXE_brigade"), folder);
    command.args(arguments);
    command
}

/// Brigade as the guard of commands.
pub fn guard() -> Arc<[OsString]> {
    Arc::from([OsString::from(env!("CARGO_BIN_EXE_brigade")), GUARD_ARGUMENT.into()])
}

/// Git with these arguments in `folder`, in the name of a person.
pub fn git_command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = command("git", folder);
    command.args(["-c", "user.name=Person", "-c", "user.email=person@example.invalid"]).args(arguments);
    command
}

/// The output of git in `folder`; it must exit 0.
pub fn git(folder: impl AsRef<Path>, arguments: &[&str]) -> String {
    let answer = ProcessOutput::of(git_command(folder.as_ref(), arguments));
    assert_eq!(answer.code, Some(0), "git {arguments:?}: {answer:?}");
    answer.out.trim_end().to_owned()
}

/// A running process, and its environment if it can be read.
#[derive(Debug, Clone)]
pub struct RunningProcess {
    pub pid: u32,
    pub command: String,
    environment: Vec<u8>,
}

impl RunningProcess {
    /// Returns true if its environment has this entry: `NAME=value`.
    pub fn has_variable(&self, entry: &str) -> bool {
        self.environment.split(|byte| *byte == 0).any(|other| other == entry.as_bytes())
    }
}

/// The other running processes of this machine that `is_wanted` selects.
pub fn running_processes(is_wanted: impl Fn(&RunningProcess) -> bool) -> Vec<RunningProcess> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        // An ended process that was not reaped has no command line.
        let command = fs::read(entry.path().join("cmdline")).ok().filter(|command| !command.is_empty())?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        Some(RunningProcess { pid, command, environment })
    });
    processes.filter(|process| process.pid != std::process::id() && is_wanted(process)).collect()
}

pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            files.extend(files_below(&entry.path()));
        } else {
            files.push(entry.path());
        }
    }
    files
}

/// The output and the end of a command.
#[derive(Debug)]
pub struct ProcessOutput {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl ProcessOutput {
    /// Runs `command` to its end; a hang fails the test.
    pub fn of(mut command: Command) -> Self {
        let command_text = format!("{command:?}");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let read_out = std::thread::spawn(move || read_all(&mut out));
        let read_err = std::thread::spawn(move || read_all(&mut err));
        let mut process = Process { child, log: PathBuf::new() };
        let status = process.end_within(WAIT_TIME_MAX).unwrap_or_else(|| panic!("{command_text} hangs"));
        let (out, err) = (read_out.join().unwrap(), read_err.join().unwrap());
        assert!(!err.contains("panicked at") && !err.contains("RUST_BACKTRACE"), "{command_text}: {err}");
        Self { code: status.code(), out, err }
    }

    pub fn from_output(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

fn read_all(pipe: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    pipe.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A process that is killed when the value is dropped.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`; its output goes to `log`.
    pub fn start(mut command: Command, log: &Path) -> Self {
        let file = fs::File::options().create_new(true).append(true).open(log).unwrap();
        command.stdout(file.try_clone().unwrap()).stderr(file);
        Self { child: command.spawn().unwrap(), log: log.to_owned() }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The output so far.
    pub fn output_so_far(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub fn signal(&self, name: &str) {
        signal(self.id(), name);
    }

    /// Kills the process and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Its exit status, or `None` if it still runs after `time`.
    pub fn end_within(&mut self, time: Duration) -> Option<ExitStatus> {
        let mut status = None;
        until(time, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status
    }

    pub fn code(&mut self) -> Option<i32> {
        let status = self.end_within(WAIT_TIME_MAX);
        let output = self.output_so_far();
        assert!(!output.contains("panicked at"), "{output}");
        status.unwrap_or_else(|| panic!("the process hangs: {output}")).code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn signal(process: u32, name: &str) {
    let _ = Command::new("kill").args([&format!("-{name}"), "--", &process.to_string()]).stderr(Stdio::null()).status();
}

/// Puts a folder in the place of a file, which a team may make again right after its removal.
#[track_caller]
pub fn put_folder(path: &Path) {
    wait_until("a folder is in its place", || {
        let _ = fs::remove_file(path);
        fs::create_dir(path).is_ok()
    });
}

/// Waits until `condition` holds; fails with `what` after the time limit.
#[track_caller]
pub fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    assert!(until(WAIT_TIME_MAX, condition), "timed out waiting for: {what}");
}

/// Waits until `condition` holds, without blocking the runtime; fails with `what` after the time limit.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let started_at = Instant::now();
    while !condition().await {
        assert!(started_at.elapsed() < WAIT_TIME_MAX, "timed out waiting for: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until `condition` holds. Returns false after `time`.
pub fn until(time: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let started_at = Instant::now();
    while !condition() {
        if started_at.elapsed() > time {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Returns true if this machine permits mounts; prints a notice otherwise.
pub fn is_root(test: &str) -> bool {
    let is_root = ProcessOutput::from_output(Command::new("id").arg("-u").output().unwrap()).out.trim() == "0";
    if !is_root {
        println!("{test}: skipped, because mounting needs root");
    }
    is_root
}
