//! What all simulated processes share: the disk, the time, the laws, and a story of what happened.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use brigade::domain::task::TaskId;
use brigade::domain::time::UnixMs;
use brigade::ports::{Clock, StoreChange};
use brigade::stores::fs::FileSystem;
use brigade::stores::fs::simulated::{DiskOptions, SimulatedDisk};
use tokio::sync::{Notify, broadcast};
use tokio::time::Instant;

use super::files::ProcessFiles;
use super::laws::Laws;
use super::plan::{Deed, Setup};

/// Where everything lies.
pub const WORKSPACE: &str = "/w";
/// As kernels do with what nobody syncs.
const WRITE_BACK_TIME: Duration = Duration::from_secs(30);
/// How wrong the clock ever goes: a task that waits for its time then waits no longer than a run lasts.
const JUMPED_MS_MAX: i64 = 7_200_000;
/// How many lines of the story are kept.
const STORY_LINES_MAX: usize = 400;

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Act = Box<dyn Fn(&Deed) + Send + Sync>;

/// See the module.
pub struct Nature {
    pub setup: Setup,
    pub laws: Mutex<Laws>,
    /// Told when a process died.
    pub died: Notify,
    begun: Instant,
    jumped_ms: AtomicI64,
    disk: Mutex<SimulatedDisk>,
    processes: Mutex<Vec<Weak<ProcessFiles>>>,
    sections: Mutex<HashSet<PathBuf>>,
    /// Does what an outsider does, at once.
    act: OnceLock<Act>,
    is_acting: AtomicBool,
    hints: Mutex<Option<broadcast::Sender<StoreChange>>>,
    hints_lost_until: Mutex<Option<Instant>>,
    dawdling: Mutex<Option<(u64, Instant)>>,
    troubled_at: Mutex<Instant>,
    written_back_at: Mutex<Instant>,
    is_calm: AtomicBool,
    story: Mutex<Vec<String>>,
}

impl Nature {
    pub fn new(setup: Setup) -> Arc<Self> {
        let options = DiskOptions { renames_after_bytes: setup.renames_after_bytes, ..DiskOptions::default() };
        let disk = SimulatedDisk::new(options);
        let made = disk.create_folder(Path::new(WORKSPACE));
        disk.settle();
        let mut laws = Laws::new(setup);
        if made.is_err() {
            laws.violate("the workspace cannot be made");
        }
        Arc::new(Self {
            setup,
            laws: Mutex::new(laws),
            died: Notify::new(),
            begun: Instant::now(),
            jumped_ms: AtomicI64::new(0),
            disk: Mutex::new(disk),
            processes: Mutex::default(),
            sections: Mutex::default(),
            act: OnceLock::new(),
            is_acting: AtomicBool::new(false),
            hints: Mutex::default(),
            hints_lost_until: Mutex::default(),
            dawdling: Mutex::default(),
            troubled_at: Mutex::new(Instant::now()),
            written_back_at: Mutex::new(Instant::now()),
            is_calm: AtomicBool::new(false),
            story: Mutex::default(),
        })
    }

    pub fn disk(&self) -> SimulatedDisk {
        lock(&self.disk).clone()
    }

    pub fn note(&self, what: impl FnOnce() -> String) {
        let line = format!("{:>8} ms  {}", self.begun.elapsed().as_millis(), what());
        let mut story = lock(&self.story);
        if story.len() >= STORY_LINES_MAX {
            story.remove(0);
        }
        story.push(line);
    }

    pub fn story(&self) -> Vec<String> {
        lock(&self.story).clone()
    }

    pub fn enlist(&self, files: &Arc<ProcessFiles>) {
        lock(&self.processes).push(Arc::downgrade(files));
    }

    pub fn on_meanwhile(&self, act: Act) {
        // Said once, by the world.
        let _ = self.act.set(act);
    }

    /// Somebody else acts in the middle of a call.
    pub fn meanwhile(&self, deed: &Deed) {
        if !self.is_acting.swap(true, Ordering::Relaxed) {
            if let Some(act) = self.act.get() {
                act(deed);
            }
            self.is_acting.store(false, Ordering::Relaxed);
        }
    }

    /// The power goes, and with it all processes; the disk is what the next start finds.
    pub fn cut_power(&self, dice: u64) {
        self.note(|| "the power is cut".to_owned());
        let after = self.disk().crash(dice);
        *lock(&self.disk) = after.clone();
        for process in std::mem::take(&mut *lock(&self.processes)).iter().filter_map(Weak::upgrade) {
            process.kill();
        }
        lock(&self.laws).power_was_cut(&after, Path::new(WORKSPACE));
    }
}

/// Weather.
impl Nature {
    pub fn jump_clock(&self, ms: i64) {
        let jumped_ms = self.jumped_ms.load(Ordering::Relaxed) + ms;
        self.jumped_ms.store(jumped_ms.clamp(-JUMPED_MS_MAX, JUMPED_MS_MAX), Ordering::Relaxed);
    }

    /// Stamps of the disk go by the wall clock.
    pub fn tell_time(&self) {
        let now_ms = self.now().0;
        lock(&self.disk).set_clock(i128::from(now_ms) * 1_000_000);
        self.write_back();
    }

    /// What has not been synced for a while becomes durable by itself.
    fn write_back(&self) {
        let mut written = lock(&self.written_back_at);
        if written.elapsed() >= WRITE_BACK_TIME {
            *written = Instant::now();
            self.disk().settle();
        }
    }

    pub fn hear_hints(&self, changes: broadcast::Sender<StoreChange>) {
        *lock(&self.hints) = Some(changes);
    }

    pub fn lose_hints(&self, time: Duration) {
        *lock(&self.hints_lost_until) = Some(Instant::now() + time);
    }

    pub fn dawdle(&self, ms: u64, time: Duration) {
        *lock(&self.dawdling) = Some((ms, Instant::now() + time));
    }

    /// How long the store takes now, as the dice say.
    pub fn delay(&self) -> Option<Duration> {
        let dawdling = *lock(&self.dawdling);
        let (ms, until) = dawdling?;
        (Instant::now() < until && fastrand::u8(..4) == 0).then(|| Duration::from_millis(fastrand::u64(..=ms)))
    }

    /// Something went wrong just now.
    pub fn trouble(&self) {
        *lock(&self.troubled_at) = Instant::now();
    }

    pub fn was_troubled(&self, within: Duration) -> bool {
        lock(&self.troubled_at).elapsed() < within || lock(&self.dawdling).is_some()
    }

    pub fn calm(&self) {
        self.is_calm.store(true, Ordering::Relaxed);
        *lock(&self.hints_lost_until) = None;
        *lock(&self.dawdling) = None;
        for process in lock(&self.processes).iter().filter_map(Weak::upgrade) {
            process.calm();
        }
    }

    pub fn is_calm(&self) -> bool {
        self.is_calm.load(Ordering::Relaxed)
    }
}

impl Clock for Nature {
    fn now(&self) -> UnixMs {
        let now = UnixMs(1_763_688_000_000).plus(self.begun.elapsed());
        UnixMs(now.0 + self.jumped_ms.load(Ordering::Relaxed))
    }
}

/// What processes do to the disk.
impl Nature {
    /// Something lies at `path` that was not there, or does no more.
    pub fn changed(&self, by: &ProcessFiles, path: &Path) {
        let Ok(place) = path.strip_prefix(WORKSPACE) else { return };
        let name = place.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let hint = match place.parent().and_then(Path::to_str) {
            Some(".tasks") => TaskId::from_file_name(name).map(|id| {
                lock(&self.laws).look_at_task(&self.disk(), path, id, &by.name);
                StoreChange::Board
            }),
            Some(".team/inbox") => {
                let inbox = name.strip_suffix(".jsonl").filter(|name| !name.starts_with('.'));
                let has_mail = self.disk().stamp(path).is_ok_and(|stamp| stamp.bytes > 0);
                inbox.filter(|_| has_mail).map(|inbox| StoreChange::Mail(inbox.to_owned()))
            }
            Some(".team") if name == super::approvals::REQUESTS_FILE => {
                lock(&self.laws).look_at_requests(&self.disk(), path, &by.name);
                None
            }
            Some("") => (name == "agent_state.json").then_some(StoreChange::State),
            _ => None,
        };
        let is_lost = lock(&self.hints_lost_until).is_some_and(|until| Instant::now() < until);
        if let Some((hint, changes)) = hint.filter(|_| !is_lost).zip(lock(&self.hints).as_ref()) {
            // The lead may be gone.
            let _ = changes.send(hint);
        }
    }

    /// Somebody is about to rename or remove a file: no lock in use, and none but those of the dead.
    pub fn moves(&self, by: &ProcessFiles, from: &Path, to: Option<&Path>) {
        let is_lock = |path: &Path| path.extension().is_some_and(|end| end == "lock") || path.ends_with(".lock");
        let is_workers = from.parent().is_some_and(|folder| folder.ends_with("workers"));
        if (is_lock(from) && !is_workers) || to.is_some_and(is_lock) {
            lock(&self.laws).violate(format!("short locks: {} renames or removes {}", by.name, from.display()));
        }
    }

    pub fn is_locked(&self) -> bool {
        !lock(&self.sections).is_empty()
    }

    /// A section under the lock on `path` begins; it ends when the result is dropped.
    pub fn section<'a>(&'a self, path: &Path) -> impl Drop + use<'a> {
        let is_new = lock(&self.sections).insert(path.to_owned());
        if !is_new {
            lock(&self.laws).violate(format!("short locks: {} is taken within itself", path.display()));
        }
        Section { nature: self, path: path.to_owned() }
    }

    /// What an outsider reads, and writes without any care.
    pub fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.disk().read(path, 0, 1 << 24).map(|(bytes, _)| bytes)
    }
}

struct Section<'a> {
    nature: &'a Nature,
    path: PathBuf,
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        lock(&self.nature.sections).remove(&self.path);
    }
}
