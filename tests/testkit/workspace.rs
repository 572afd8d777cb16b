//! A workspace for the real program. Its processes end with the test in every case.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::process::{
    Process, ProcessOutput, RunningProcess, command, files_below, running_processes, signal, wait_until,
};

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
    workspace.processes().iter().filter(|process| process.command.trim_end() == "sleep 300").count()
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
        let mut command = command(program, &self.root);
        command.env(MARK, &self.mark);
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

    /// The events about requests of all runs, each as its kind, the request and its kind.
    pub fn request_events(&self) -> Vec<Value> {
        let kinds = ["request_made", "request_answered", "request_withdrawn"];
        let options = kinds.iter().flat_map(|kind| ["--kind", kind]);
        let events = self.json(&["log", "--run", "all"].into_iter().chain(options).collect::<Vec<_>>());
        let shown = |event: &Value| json!([event["kind"], event["request_kind"], event["request"]]);
        events.as_array().unwrap().iter().map(shown).collect()
    }

    pub fn state(&self) -> Value {
        let text = self.read("agent_state.json");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("agent_state.json is torn: {error}: {text}"))
    }

    /// The running processes of this workspace.
    pub fn processes(&self) -> Vec<RunningProcess> {
        let variable = format!("{MARK}={}", self.mark);
        running_processes(|process| process.has_variable(&variable))
    }

    /// Waits until no process of this workspace runs any more.
    pub fn assert_nothing_is_left_running(&self) {
        wait_until("no process is left running", || self.processes().is_empty());
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

impl AsRef<Path> for TestWorkspace {
    fn as_ref(&self) -> &Path {
        &self.root
    }
}

impl Drop for TestWorkspace {
    fn drop(&mut self) {
        // A failed test may have left processes without a `Process`.
        for process in self.processes() {
            signal(process.pid, "KILL");
        }
    }
}
