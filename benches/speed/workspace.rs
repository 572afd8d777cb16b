//! A workspace on the project's disk: boards of any size, the program in it, processes that end with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use brigade::domain::task::{Task, TaskId, TaskStatus};
use brigade::embed::SystemClock;
use brigade::ports::Durability;
use brigade::stores::file::board::BoardFiles;
use brigade::stores::fs::RealFileSystem;
use serde_json::Value;
use tokio::sync::broadcast;

pub use crate::testkit::process::WAIT_TIME_MAX;
use crate::testkit::process::brigade;

/// The wall clock in nanoseconds, which is comparable between processes.
pub fn now_ns() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

pub struct BenchWorkspace {
    folder: tempfile::TempDir,
}

/// Makes ext4 put each new subfolder of `folder` into another part of the disk. In a part with thousands of files that were removed in the
/// last minute, ext4 without a journal creates files slowly. So a measurement would disturb the next one.
#[cfg(target_os = "linux")]
pub fn spread_subfolders(folder: &Path) {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

    let folder = fs::File::open(folder).unwrap();
    // Other file systems do not have the flag, and do not need it.
    if let Ok(flags) = ioctl_getflags(&folder) {
        let _ = ioctl_setflags(&folder, flags | IFlags::TOPDIR);
    }
}

#[cfg(not(target_os = "linux"))]
pub fn spread_subfolders(_folder: &Path) {}

impl BenchWorkspace {
    /// An empty workspace on the project's disk, because a folder for temporary files may be in memory.
    pub fn new() -> Self {
        let parent = env!("CARGO_TARGET_TMPDIR");
        spread_subfolders(Path::new(parent));
        Self { folder: tempfile::tempdir_in(parent).unwrap() }
    }

    /// A workspace with these tasks.
    pub fn with_board(tasks: impl IntoIterator<Item = Task>) -> Self {
        let workspace = Self::new();
        workspace.put(tasks);
        workspace
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.join(name), text).unwrap();
    }

    /// Writes each of these tasks to its file.
    pub fn put(&self, tasks: impl IntoIterator<Item = Task>) {
        fs::create_dir_all(self.join(".tasks")).unwrap();
        for task in tasks {
            fs::write(self.join(".tasks").join(task.id.file_name()), task.to_file()).unwrap();
        }
    }

    /// Writes a config with one team `bench` of this many members, whose model follows `script`. `more` is put before
    /// it.
    pub fn write_team(&self, members: usize, script: &Value, more: &str) {
        self.write("script.json", &script.to_string());
        let members: String = (1..=members)
            .map(|number| {
                format!(
                    "[[teams.bench.members]]\nname = \"m{number}\"\nrole = \"worker\"\nprovider = \"scripted\"\nmodel = \"script.json\"\n"
                )
            })
            .collect();
        self.write("brigade.toml", &format!("{more}\n[teams.bench]\n{members}"));
    }

    /// The program with these arguments in the workspace, without output.
    pub fn brigade(&self, arguments: &[&str]) -> Command {
        let mut command = brigade(self.path(), arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// The time that the program takes for these arguments. It must succeed.
    pub fn time_of(&self, arguments: &[&str]) -> Duration {
        time_of(&mut self.brigade(arguments))
    }

    /// Starts the program in the background.
    pub fn start(&self, arguments: &[&str]) -> Process {
        Process(self.brigade(arguments).spawn().unwrap())
    }

    /// Opens the board as a worker process does.
    pub fn open_board(&self, durability: Durability) -> BoardFiles {
        open_board(self.path(), durability)
    }
}

/// Opens the board of `workspace` as a worker process does.
pub fn open_board(workspace: &Path, durability: Durability) -> BoardFiles {
    let files = Arc::new(RealFileSystem::default());
    BoardFiles::open(files, workspace, durability, Arc::new(SystemClock), broadcast::channel(1).0).unwrap()
}

/// The time of a command, which must succeed.
pub fn time_of(command: &mut Command) -> Duration {
    let started_at = Instant::now();
    let status = command.status().unwrap();
    let time = started_at.elapsed();
    assert!(status.success(), "{command:?}: {status}");
    time
}

/// A process that is killed when the value is dropped.
pub struct Process(pub Child);

impl Process {
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.0.wait().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Polls every half millisecond until `condition` holds. Returns the time that took.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) -> Duration {
    let started_at = Instant::now();
    while !condition() {
        assert!(started_at.elapsed() < WAIT_TIME_MAX, "timed out waiting for: {what}");
        std::thread::sleep(Duration::from_micros(500));
    }
    started_at.elapsed()
}

pub fn pending(count: u64) -> impl Iterator<Item = Task> {
    (1..=count).map(|id| Task { description: description(id), ..Task::new(TaskId(id), format!("Task {id}")) })
}

/// A board with random priorities on which 99 of 100 tasks are completed or blocked.
pub fn mostly_closed(count: u64) -> impl Iterator<Item = Task> {
    pending(count).map(|mut task| {
        task.priority = fastrand::i64(0..1000);
        match task.id.0 % 100 {
            0 => {}
            rest if rest < 50 => task.status = TaskStatus::Completed,
            // It waits for the pending task of its hundred, which is never completed here.
            _ => task.blocked_by = vec![TaskId(task.id.0.div_ceil(100) * 100)],
        }
        task
    })
}

fn description(id: u64) -> String {
    format!("Review part {id} of the project, write down its problems, and fix those that can be fixed at once.")
}
