//! A workspace in a git repository, its processes, and what lies beside it where no attack reaches.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Longer than anything here may take; what takes longer hangs.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The variables by which processes are found again: those of a workspace, and those that a lead has started.
const MARK: &str = "TORTURE_MARK";
const LIFE: &str = "TORTURE_LIFE";

/// Variables that reach no process of a workspace.
const KEPT_BACK: [&str; 3] = ["BRIGADE_", "GIT_", "TORTURE_"];

/// A workspace.
pub struct Place {
    /// Where the repository is, perhaps on a small disk of its own.
    pub root: PathBuf,
    /// What is written down outside, by commands and by this program.
    pub outside: PathBuf,
    mark: String,
    next_log: AtomicU64,
}

impl Place {
    /// The workspace `folder/repository`, with `folder/outside` beside it.
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

    /// The lines that were written down outside.
    pub fn noted(&self, name: &str) -> Vec<Vec<String>> {
        let text = fs::read_to_string(self.outside.join(name)).unwrap_or_default();
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        text.lines().map(words).collect()
    }

    /// Any program here, with an environment that is the same everywhere.
    pub fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.root).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if KEPT_BACK.iter().any(|start| name.starts_with(start)) || name.ends_with("_API_KEY") {
                command.env_remove(name);
            }
        }
        command.env("XDG_CONFIG_HOME", self.outside.join("no-config")).env(MARK, &self.mark);
        command
    }

    /// The program.
    pub fn brigade(&self, arguments: &[&str]) -> Command {
        self.command(env!("CARGO_BIN_EXE_brigade"), arguments)
    }

    /// Runs the program to its end and returns how that was; one that hangs is killed and gives nothing.
    pub fn run(&self, arguments: &[&str]) -> Option<Output> {
        self.run_within(PATIENCE, arguments)
    }

    /// The same with less patience.
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

    /// The `data` of a command's answer, if it was a good one.
    pub fn json(&self, arguments: &[&str]) -> Option<Value> {
        let output = self.run(&[arguments, &["--json"]].concat())?;
        let value: Value = output.status.success().then(|| serde_json::from_slice(&output.stdout).ok())??;
        Some(value["data"].clone())
    }

    /// Starts a lead. What it says goes to a file outside.
    pub fn launch(&self, arguments: &[&str]) -> Lead {
        let number = self.next_log.fetch_add(1, Ordering::Relaxed);
        let log = self.outside.join(format!("said-{number}.txt"));
        let life = format!("{}-{number}", self.mark);
        let file = fs::File::create(&log).unwrap();
        let mut command = self.brigade(arguments);
        command.env(LIFE, &life).stdout(file.try_clone().unwrap()).stderr(file);
        Lead { child: command.spawn().unwrap(), log, life }
    }

    /// What git prints, if it succeeds.
    pub fn git(&self, arguments: &[&str]) -> Option<String> {
        let person = ["-c", "user.name=Person", "-c", "user.email=person@example.invalid"];
        let output = self.command("git", &[&person, arguments].concat()).output().unwrap();
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    }

    /// The tasks, as their files say. A file that is none is left out and named.
    pub fn tasks(&self) -> (Vec<Value>, Vec<String>) {
        let (mut tasks, mut torn) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(self.join(".tasks")).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            // What is planted by an attack has a number that no task of the team gets to.
            let number = name.strip_prefix("task_").and_then(|rest| rest.strip_suffix(".json")?.parse::<u64>().ok());
            if number.is_none_or(|number| number >= PLANTED_FROM) {
                continue;
            }
            match fs::read(entry.path()).map(|bytes| serde_json::from_slice(&bytes)) {
                Ok(Ok(task)) => tasks.push(task),
                Ok(Err(error)) => torn.push(format!("{name}: {error}")),
                // Deleted meanwhile.
                Err(_) => {}
            }
        }
        (tasks, torn)
    }

    /// All living processes of this workspace.
    pub fn processes(&self) -> Vec<Running> {
        running(&format!("{MARK}={}", self.mark), &self.root.to_string_lossy())
    }
}

/// Numbers of task files that only attacks write.
pub const PLANTED_FROM: u64 = 700_000;

/// A process.
#[derive(Debug, Clone)]
pub struct Running {
    pub pid: u32,
    pub command: String,
}

/// The processes that carry this variable, or name this path: one that hides itself shows its command line alone.
fn running(variable: &str, path: &str) -> Vec<Running> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        // One that has ended and was not waited for has no command line any more.
        let command = fs::read(entry.path().join("cmdline")).ok().filter(|command| !command.is_empty())?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let carries = environment.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes());
        (pid != std::process::id() && (carries || (!path.is_empty() && command.contains(path))))
            .then_some(Running { pid, command })
    });
    found.collect()
}

/// A lead, killed with all it has started when this is dropped.
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

    /// Kills it and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Its exit code, once it has ended; -1 where a signal ended it.
    pub fn ended(&mut self) -> Option<i32> {
        self.child.try_wait().unwrap().map(|status| status.code().unwrap_or(-1))
    }

    /// The same, waited for.
    pub fn end_within(&mut self, time: Duration) -> Option<i32> {
        let mut code = None;
        until(time, || {
            code = self.ended();
            code.is_some()
        });
        code
    }

    pub fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// What it has started and lives, and itself.
    pub fn family(&self) -> Vec<Running> {
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

/// Sends a signal to one process.
pub fn signal(pid: u32, name: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // One that has ended meanwhile needs none.
        let _ = kill_process(pid, name);
    }
}

/// Waits until `condition` holds; whether it did in time.
pub fn until(time: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !condition() {
        if began.elapsed() > time {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// All files below a folder.
pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(files_below(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}
