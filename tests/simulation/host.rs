//! The state that all simulated processes share: the disk, the time, the invariants, and a log of what happened.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use brigade::domain::task::TaskId;
use brigade::domain::time::UnixMs;
use brigade::ports::{Clock, StoreChange};
use brigade::stores::fs::FileSystem;
use tokio::sync::{Notify, broadcast};
use tokio::time::Instant;

use super::files::ProcessFiles;
use super::invariants::Invariants;
use super::plan::{Action, Setup};
pub use crate::testkit::lock;
use crate::testkit::simulated::{DiskOptions, SimulatedDisk};

pub const WORKSPACE: &str = "/w";
/// Kernels write unsynced data back after this time.
const WRITE_BACK_TIME: Duration = Duration::from_secs(30);
/// Maximum clock offset. It is shorter than a run, so that a task in back-off becomes claimable within the run.
const CLOCK_OFFSET_MS_MAX: i64 = 7_200_000;
/// The lines of the log that are kept.
const LOG_LINES_MAX: usize = 400;

type ActionRunner = Box<dyn Fn(&Action) + Send + Sync>;

/// The shared disk, time and faults of a run.
pub struct SimulatedHost {
    pub setup: Setup,
    pub invariants: Mutex<Invariants>,
    /// Notified when a process dies.
    pub died: Notify,
    started_at: Instant,
    clock_offset_ms: AtomicI64,
    disk: Mutex<SimulatedDisk>,
    processes: Mutex<Vec<Weak<ProcessFiles>>>,
    locked_paths: Mutex<HashSet<PathBuf>>,
    /// Performs an action of another process at once.
    concurrent_action: OnceLock<ActionRunner>,
    is_acting: AtomicBool,
    hint_sender: Mutex<Option<broadcast::Sender<StoreChange>>>,
    hints_dropped_until: Mutex<Option<Instant>>,
    slow_stores: Mutex<Option<(u64, Instant)>>,
    last_fault_at: Mutex<Instant>,
    written_back_at: Mutex<Instant>,
    are_faults_cancelled: AtomicBool,
    log: Mutex<Vec<String>>,
}

impl SimulatedHost {
    pub fn new(setup: Setup) -> Arc<Self> {
        let options = DiskOptions { renames_after_bytes: setup.renames_after_bytes, ..DiskOptions::default() };
        let disk = SimulatedDisk::new(options);
        let created = disk.create_folder(Path::new(WORKSPACE));
        disk.make_all_durable();
        let mut invariants = Invariants::new(setup);
        if created.is_err() {
            invariants.violate("the workspace cannot be created");
        }
        Arc::new(Self {
            setup,
            invariants: Mutex::new(invariants),
            died: Notify::new(),
            started_at: Instant::now(),
            clock_offset_ms: AtomicI64::new(0),
            disk: Mutex::new(disk),
            processes: Mutex::default(),
            locked_paths: Mutex::default(),
            concurrent_action: OnceLock::new(),
            is_acting: AtomicBool::new(false),
            hint_sender: Mutex::default(),
            hints_dropped_until: Mutex::default(),
            slow_stores: Mutex::default(),
            last_fault_at: Mutex::new(Instant::now()),
            written_back_at: Mutex::new(Instant::now()),
            are_faults_cancelled: AtomicBool::new(false),
            log: Mutex::default(),
        })
    }

    pub fn disk(&self) -> SimulatedDisk {
        lock(&self.disk).clone()
    }

    pub fn note(&self, what: impl FnOnce() -> String) {
        let line = format!("{:>8} ms  {}", self.started_at.elapsed().as_millis(), what());
        let mut log = lock(&self.log);
        if log.len() >= LOG_LINES_MAX {
            log.remove(0);
        }
        log.push(line);
    }

    pub fn log(&self) -> Vec<String> {
        lock(&self.log).clone()
    }

    pub fn add_process(&self, files: &Arc<ProcessFiles>) {
        lock(&self.processes).push(Arc::downgrade(files));
    }

    pub fn set_concurrent_action(&self, concurrent_action: ActionRunner) {
        // Set once, by the world.
        let _ = self.concurrent_action.set(concurrent_action);
    }

    /// Performs an action of another process during a call.
    pub fn act_concurrently(&self, action: &Action) {
        if !self.is_acting.swap(true, Ordering::Relaxed) {
            if let Some(concurrent_action) = self.concurrent_action.get() {
                concurrent_action(action);
            }
            self.is_acting.store(false, Ordering::Relaxed);
        }
    }

    /// Cuts the power, which ends all processes; the next start finds the disk as it is.
    pub fn cut_power(&self, seed: u64) {
        self.note(|| "the power is cut".to_owned());
        let after = self.disk().crash(seed);
        *lock(&self.disk) = after.clone();
        for process in std::mem::take(&mut *lock(&self.processes)).iter().filter_map(Weak::upgrade) {
            process.kill();
        }
        lock(&self.invariants).power_was_cut(&after, Path::new(WORKSPACE));
    }
}

impl SimulatedHost {
    pub fn jump_clock(&self, ms: i64) {
        let clock_offset_ms = self.clock_offset_ms.load(Ordering::Relaxed) + ms;
        self.clock_offset_ms.store(clock_offset_ms.clamp(-CLOCK_OFFSET_MS_MAX, CLOCK_OFFSET_MS_MAX), Ordering::Relaxed);
    }

    /// Sets the clock of the disk to the simulated wall clock, and writes data back if it is due.
    pub fn update_disk_clock(&self) {
        let now_ms = self.now().0;
        lock(&self.disk).set_clock(i128::from(now_ms) * 1_000_000);
        self.write_back();
    }

    /// Makes all data durable once per [`WRITE_BACK_TIME`].
    fn write_back(&self) {
        let mut written = lock(&self.written_back_at);
        if written.elapsed() >= WRITE_BACK_TIME {
            *written = Instant::now();
            self.disk().make_all_durable();
        }
    }

    pub fn send_hints_to(&self, changes: broadcast::Sender<StoreChange>) {
        *lock(&self.hint_sender) = Some(changes);
    }

    pub fn drop_hints(&self, time: Duration) {
        *lock(&self.hints_dropped_until) = Some(Instant::now() + time);
    }

    pub fn slow_stores_for(&self, ms: u64, time: Duration) {
        *lock(&self.slow_stores) = Some((ms, Instant::now() + time));
    }

    /// A random delay of the store.
    pub fn delay(&self) -> Option<Duration> {
        let slow_stores = *lock(&self.slow_stores);
        let (ms, until) = slow_stores?;
        (Instant::now() < until && fastrand::u8(..4) == 0).then(|| Duration::from_millis(fastrand::u64(..=ms)))
    }

    /// Records that a fault happened just now.
    pub fn note_fault(&self) {
        *lock(&self.last_fault_at) = Instant::now();
    }

    pub fn had_fault_within(&self, within: Duration) -> bool {
        lock(&self.last_fault_at).elapsed() < within || lock(&self.slow_stores).is_some()
    }

    pub fn cancel_faults(&self) {
        self.are_faults_cancelled.store(true, Ordering::Relaxed);
        *lock(&self.hints_dropped_until) = None;
        *lock(&self.slow_stores) = None;
        for process in lock(&self.processes).iter().filter_map(Weak::upgrade) {
            process.cancel_faults();
        }
    }

    pub fn are_faults_cancelled(&self) -> bool {
        self.are_faults_cancelled.load(Ordering::Relaxed)
    }
}

impl Clock for SimulatedHost {
    fn now(&self) -> UnixMs {
        let now = UnixMs(1_763_688_000_000).plus(self.started_at.elapsed());
        UnixMs(now.0 + self.clock_offset_ms.load(Ordering::Relaxed))
    }
}

/// The processes' changes of the disk.
impl SimulatedHost {
    /// Checks a changed file against the invariants, and sends the hint about it.
    pub fn handle_change(&self, by: &ProcessFiles, path: &Path) {
        let Ok(relative_path) = path.strip_prefix(WORKSPACE) else { return };
        let name = relative_path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let hint = match relative_path.parent().and_then(Path::to_str) {
            Some(".tasks") => TaskId::from_file_name(name).map(|id| {
                lock(&self.invariants).check_task_file(&self.disk(), path, id, &by.name);
                StoreChange::Board
            }),
            Some(".team/inbox") => {
                let inbox = name.strip_suffix(".jsonl").filter(|name| !name.starts_with('.'));
                let has_mail = self.disk().stamp(path).is_ok_and(|stamp| stamp.bytes > 0);
                inbox.filter(|_| has_mail).map(|inbox| StoreChange::Mail(inbox.to_owned()))
            }
            Some(".team") if name == super::approvals::REQUESTS_FILE => {
                lock(&self.invariants).check_request_file(&self.disk(), path, &by.name);
                None
            }
            Some("") => (name == "agent_state.json").then_some(StoreChange::State),
            _ => None,
        };
        let is_dropped = lock(&self.hints_dropped_until).is_some_and(|until| Instant::now() < until);
        if let Some((hint, changes)) = hint.filter(|_| !is_dropped).zip(lock(&self.hint_sender).as_ref()) {
            // The lead may be gone.
            let _ = changes.send(hint);
        }
    }

    /// Records a violation if a lock file is renamed or removed. Locks of workers may be, because another process removes those
    /// of dead workers.
    pub fn check_rename(&self, by: &ProcessFiles, from: &Path, to: Option<&Path>) {
        let is_lock = |path: &Path| path.extension().is_some_and(|end| end == "lock") || path.ends_with(".lock");
        let is_workers = from.parent().is_some_and(|folder| folder.ends_with("workers"));
        if (is_lock(from) && !is_workers) || to.is_some_and(is_lock) {
            lock(&self.invariants).violate(format!("short locks: {} renames or removes {}", by.name, from.display()));
        }
    }

    pub fn is_locked(&self) -> bool {
        !lock(&self.locked_paths).is_empty()
    }

    /// Begins a section under the lock on `path`, which ends when the result is dropped.
    pub fn begin_section<'a>(&'a self, path: &Path) -> impl Drop + use<'a> {
        let is_new = lock(&self.locked_paths).insert(path.to_owned());
        if !is_new {
            lock(&self.invariants).violate(format!("short locks: {} is locked twice by one process", path.display()));
        }
        LockedSection { host: self, path: path.to_owned() }
    }

    /// Reads a file as a program without locks does.
    pub fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.disk().read(path, 0, 1 << 24).map(|(bytes, _)| bytes)
    }
}

struct LockedSection<'a> {
    host: &'a SimulatedHost,
    path: PathBuf,
}

impl Drop for LockedSection<'_> {
    fn drop(&mut self) {
        lock(&self.host.locked_paths).remove(&self.path);
    }
}
