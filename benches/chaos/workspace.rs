//! A workspace in a git repository, its processes, and a folder outside that no attack touches.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::testkit::process::{RunningProcess, WAIT_TIME_MAX, command, git_command, running_processes, until};

/// The prefix of the variables that mark the processes of a workspace or of a lead.
const MARK: &str = "CHAOS_MARK";
const LIFE: &str = "CHAOS_LIFE";

pub struct ChaosWorkspace {
    /// The repository, sometimes on a small disk.
    pub root: PathBuf,
    /// The folder for notes of the commands and of this program.
    pub outside: PathBuf,
    mark: String,
    next_log: AtomicU64,
}

impl ChaosWorkspace {
    pub fn new(folder: &Path) -> Self {
        let (root, outside) = (folder.join("repository"), folder.join("outside"));
        for path in [&root, &outside] {
            fs::create_dir_all(path).unwrap();
        }
        let mark = format!("{}-{}", std::process::id(), folder.file_name().unwrap().to_string_lossy());
        Self { root, outside, mark, next_log: AtomicU64::new(0) }
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.join(name)).unwrap_or_default()
    }

    /// The lines noted under `name` outside the workspace.
    pub fn noted(&self, name: &str) -> Vec<Vec<String>> {
        let text = fs::read_to_string(self.outside.join(name)).unwrap_or_default();
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        text.lines().map(words).collect()
    }

    /// A program in the workspace, with the same environment on every machine.
    pub fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = command(program, &self.root);
        command.args(arguments).env("XDG_CONFIG_HOME", self.outside.join("no-config"));
        command.env("XDG_STATE_HOME", self.outside.join("no-state")).env(MARK, &self.mark);
        command
    }

    pub fn brigade(&self, arguments: &[&str]) -> Command {
        self.command(env!("CARGO_BIN_EXE_brigade"), arguments)
    }

    /// Runs Brigade to its end. Kills it and returns `None` if it hangs.
    pub fn run(&self, arguments: &[&str]) -> Option<Output> {
        self.run_within(WAIT_TIME_MAX, arguments)
    }

    /// Runs Brigade with this time limit.
    pub fn run_within(&self, time: Duration, arguments: &[&str]) -> Option<Output> {
        let mut command = self.brigade(arguments);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let waiting = std::thread::spawn(move || child.wait_with_output());
        let in_time = until(time, || waiting.is_finished());
        if !in_time {
            signal(pid, Signal::KILL);
        }
        waiting.join().unwrap().ok().filter(|_| in_time)
    }

    /// The `data` of a command's answer if it succeeded.
    pub fn json(&self, arguments: &[&str]) -> Option<Value> {
        let output = self.run(&[arguments, &["--json"]].concat())?;
        let value: Value = output.status.success().then(|| serde_json::from_slice(&output.stdout).ok())??;
        Some(value["data"].clone())
    }

    /// Starts a lead. Its output goes to a file outside the workspace.
    pub fn launch(&self, arguments: &[&str]) -> Lead {
        let number = self.next_log.fetch_add(1, Ordering::Relaxed);
        let log = self.outside.join(format!("said-{number}.txt"));
        let life = format!("{}-{number}", self.mark);
        let file = fs::File::create(&log).unwrap();
        let mut command = self.brigade(arguments);
        command.env(LIFE, &life).stdout(file.try_clone().unwrap()).stderr(file);
        Lead { child: command.spawn().unwrap(), log, life }
    }

    /// The output of git if it succeeded.
    pub fn git(&self, arguments: &[&str]) -> Option<String> {
        let mut command = git_command(&self.root, arguments);
        let output = command.env(MARK, &self.mark).output().unwrap();
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    }

    /// The tasks as read from their files, and the names of invalid files.
    pub fn tasks(&self) -> (Vec<Value>, Vec<String>) {
        let (mut tasks, mut torn) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(self.join(".tasks")).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            // Planted files have ids that no task of the team reaches.
            let number = name.strip_prefix("task_").and_then(|rest| rest.strip_suffix(".json")?.parse::<u64>().ok());
            if number.is_none_or(|number| number >= PLANTED_FROM) {
                continue;
            }
            match fs::read(entry.path()).map(|bytes| serde_json::from_slice(&bytes)) {
                Ok(Ok(task)) => tasks.push(task),
                Ok(Err(error)) => torn.push(format!("{name}: {error}")),
                // Deleted in the meantime.
                Err(_) => {}
            }
        }
        (tasks, torn)
    }

    pub fn processes(&self) -> Vec<RunningProcess> {
        running(&format!("{MARK}={}", self.mark), &self.root.to_string_lossy())
    }
}

/// The lowest id of planted task files.
pub const PLANTED_FROM: u64 = 700_000;

/// The processes that have this variable in their environment or name this path. A process that hides its environment
/// is found by its command line.
fn running(variable: &str, path: &str) -> Vec<RunningProcess> {
    running_processes(|process| process.has_variable(variable) || (!path.is_empty() && process.command.contains(path)))
}

/// A lead. Dropping it kills the lead and all processes it started.
pub struct Lead {
    child: Child,
    log: PathBuf,
    life: String,
}

impl Lead {
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: Signal) {
        signal(self.id(), name);
    }

    /// Kills the lead and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The exit code after the end; -1 if a signal ended the process.
    pub fn exit_code(&mut self) -> Option<i32> {
        self.child.try_wait().unwrap().map(|status| status.code().unwrap_or(-1))
    }

    /// Waits up to `time` for the exit code.
    pub fn end_within(&mut self, time: Duration) -> Option<i32> {
        let mut code = None;
        until(time, || {
            code = self.exit_code();
            code.is_some()
        });
        code
    }

    pub fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The lead and the running processes that it started.
    pub fn descendants(&self) -> Vec<RunningProcess> {
        running(&format!("{LIFE}={}", self.life), "")
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.kill();
        if !std::thread::panicking() {
            let _ = fs::remove_file(&self.log);
        }
    }
}

pub fn signal(pid: u32, name: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // A process that has ended in the meantime needs no signal.
        let _ = kill_process(pid, name);
    }
}
