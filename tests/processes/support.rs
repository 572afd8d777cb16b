//! A workspace, and processes that end with the test in every case.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Time limit for a condition on a slow, busy machine.
pub const WAIT_TIME_MAX: Duration = Duration::from_secs(90);

/// The variable that marks the processes of one workspace; commands inherit it.
const MARK: &str = "CHAOS_MARK";

/// Two tasks that run until they are ended, and a third that waits for a free teammate.
pub const ENDLESS: &str = "## One\n```sh\nsleep 300\n```\n## Two\n```sh\nsleep 300\n```\n## Three\n```sh\ntrue\n```\n";

/// Starts a team of two with the plan [`ENDLESS`], and waits until both commands run. They are shown and recorded before.
pub fn start_working(workspace: &TestWorkspace, arguments: &[&str]) -> Process {
    let run = workspace.start(arguments);
    let are_shown = || run.output_so_far().matches("bash sleep 300").count() == 2;
    wait_until("two commands run", || are_shown() && endless_commands(workspace) == 2);
    run
}

/// The number of running commands of [`ENDLESS`].
pub fn endless_commands(workspace: &TestWorkspace) -> usize {
    workspace.processes().iter().filter(|(_, command)| command.trim_end() == "sleep 300").count()
}

pub struct TestWorkspace {
    root: PathBuf,
    mark: String,
    _folder: tempfile::TempDir,
}

impl TestWorkspace {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self::at(folder.path().canonicalize().unwrap(), folder)
    }

    /// A folder of this name inside an empty one.
    pub fn named(name: &OsStr) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap().join(name);
        fs::create_dir(&root).unwrap();
        Self::at(root, folder)
    }

    fn at(root: PathBuf, folder: tempfile::TempDir) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mark = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self { root, mark, _folder: folder }
    }

    /// A workspace with a team `crew` of this many runbook members, `m1`, `m2`, ..., and this plan.
    pub fn with_team(members: usize, plan: &str) -> Self {
        let workspace = Self::new();
        workspace.write("plan.md", plan);
        workspace.write_team(members, "plan = \"plan.md\"");
        workspace
    }

    /// A workspace with a team and without a plan.
    pub fn with_idle_team(members: usize) -> Self {
        let workspace = Self::new();
        workspace.write_team(members, "");
        workspace
    }

    /// Writes a config with the team `crew`, and `more` in its table.
    pub fn write_team(&self, members: usize, more: &str) {
        let members: String = (1..=members)
            .map(|number| format!("[[teams.crew.members]]\nname = \"m{number}\"\nrole = \"worker\"\n"))
            .collect();
        self.write("brigade.toml", &format!("durability = \"process\"\n[teams.crew]\n{more}\n{members}"));
    }

    pub fn path(&self) -> &Path {
        &self.root
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        let path = self.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The program with these arguments, in the workspace, without Brigade's variables in the environment.
    pub fn brigade(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_brigade"));
        command.args(arguments);
        command
    }

    /// A program in the workspace, with the same environment on every machine.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("BRIGADE_") || name.ends_with("_API_KEY") || name.starts_with("GIT_") {
                command.env_remove(name);
            }
        }
        command.env("XDG_CONFIG_HOME", self.root.join("no-config")).env("COLUMNS", "100").env(MARK, &self.mark);
        command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").env_remove("RUST_BACKTRACE");
        command
    }

    pub fn run(&self, arguments: &[&str]) -> ProcessOutput {
        ProcessOutput::of(self.brigade(arguments))
    }

    /// Starts the program in the background.
    pub fn start(&self, arguments: &[&str]) -> Process {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let log = format!("said-{}.txt", NEXT.fetch_add(1, Ordering::Relaxed));
        Process::start(self.brigade(arguments), &self.join(&log))
    }

    /// The `data` of a command's JSON answer.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let answer = self.run(&[arguments, &["--json"]].concat());
        assert_eq!(answer.code, Some(0), "{arguments:?}: {answer:?}");
        let value: Value = serde_json::from_str(&answer.out).unwrap_or_else(|error| panic!("{error}: {answer:?}"));
        assert_eq!(value["schema_version"], 1);
        value["data"].clone()
    }

    /// The tasks, read from their files. Each file must be valid at every moment.
    pub fn tasks(&self) -> Vec<Value> {
        let mut tasks: Vec<Value> = fs::read_dir(self.join(".tasks"))
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("task_"))
            .filter_map(|path| Some((fs::read(&path).ok()?, path)))
            .map(|(bytes, path)| {
                serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{} is torn: {error}", path.display()))
            })
            .collect();
        tasks.sort_by_key(|task| task["id"].as_u64());
        tasks
    }

    pub fn task(&self, id: u64) -> Value {
        let text = self.read(&format!(".tasks/task_{id}.json"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("task {id} is torn: {error}: {text}"))
    }

    /// Returns true if the board has tasks and all have this status.
    pub fn all_are(&self, status: &str) -> bool {
        let tasks = self.tasks();
        !tasks.is_empty() && tasks.iter().all(|task| task["status"] == status)
    }

    /// The events of the newest run; each line must be complete.
    pub fn events(&self) -> Vec<Value> {
        let path = self.join(".team/events.jsonl");
        let text = fs::read_to_string(path).unwrap_or_default();
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n') && line.len() > 1);
        whole.map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("event {line}: {error}"))).collect()
    }

    pub fn state(&self) -> Value {
        let text = self.read("agent_state.json");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("agent_state.json is torn: {error}: {text}"))
    }

    /// The ids and commands of all running processes of this workspace.
    pub fn processes(&self) -> Vec<(u32, String)> {
        let variable = format!("{MARK}={}", self.mark);
        let is_marked = |path: &Path| {
            fs::read(path.join("environ"))
                .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes()))
        };
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let marked = entries.filter_map(|entry| {
            let process: u32 = entry.file_name().to_str()?.parse().ok()?;
            let command = fs::read(entry.path().join("cmdline")).ok()?;
            // An ended process that was not reaped has no command line.
            (!command.is_empty() && is_marked(&entry.path()))
                .then(|| (process, String::from_utf8_lossy(&command).replace('\0', " ")))
        });
        marked.collect()
    }

    /// Waits until no process of this workspace runs any more.
    pub fn assert_nothing_is_left_running(&self) {
        let started_at = Instant::now();
        loop {
            let processes = self.processes();
            if processes.is_empty() {
                return;
            }
            assert!(started_at.elapsed() < WAIT_TIME_MAX, "still running: {processes:#?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Asserts that the workspace has no temporary files of Brigade.
    pub fn assert_no_temporaries(&self) {
        let temporaries: Vec<PathBuf> = files_below(&self.root)
            .into_iter()
            .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(".tmp-"))
            .collect();
        assert!(temporaries.is_empty(), "temporary files are left: {temporaries:?}");
    }
}

impl Drop for TestWorkspace {
    fn drop(&mut self) {
        // A failed test may have left processes without a `Process`.
        for (process, _) in self.processes() {
            signal(process, "KILL");
        }
    }
}

/// The output of git in this workspace, with the person's identity.
pub fn git(workspace: &TestWorkspace, arguments: &[&str]) -> String {
    let mut command = workspace.command("git");
    command.args(["-c", "user.name=Person", "-c", "user.email=person@example.invalid"]).args(arguments);
    let answer = ProcessOutput::of(command);
    assert_eq!(answer.code, Some(0), "git {arguments:?}: {answer:?}");
    answer.out.trim_end().to_owned()
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
        let started_at = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status);
            }
            if started_at.elapsed() > time {
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
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
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let started_at = Instant::now();
    while !condition() {
        assert!(started_at.elapsed() < WAIT_TIME_MAX, "timed out waiting for: {what}");
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// Returns true if this machine permits mounts; prints a notice otherwise.
pub fn is_root(test: &str) -> bool {
    let is_root = ProcessOutput::from_output(Command::new("id").arg("-u").output().unwrap()).out.trim() == "0";
    if !is_root {
        println!("{test}: skipped, because mounting needs root");
    }
    is_root
}
