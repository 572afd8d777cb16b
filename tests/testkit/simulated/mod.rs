//! A disk in memory whose power can be cut: for crash tests.
//!
//! Until [`SimulatedDisk::crash`] it behaves like any file system. A crash keeps everything synced, and of the rest a part that the
//! seed selects. It loses more than real disks do, within these limits:
//!
//! - *Bytes:* an unsynced file has the synced bytes, the new bytes, a beginning of the new bytes, or such a beginning with
//!   zeros up to the new size. Synced bytes stay if the file was only appended to.
//! - *Names:* changes (new files, renames, removals, exchanges, folders) are each kept or lost as a whole, in any combination. A
//!   change that builds on an earlier one is kept only with it. It does so if it concerns a name that the earlier one concerned, or
//!   a name in a folder that the earlier one created. `sync_folder` keeps all changes of names in the folder, with those that they
//!   build on. A kept name does not imply the file's bytes.
//! - *Order:* [`DiskOptions::renames_after_bytes`] behaves like ext4, btrfs and zfs. A rename that replaces a file is kept only
//!   together with the bytes that the renamed file had then. New names and exchanges promise nothing even there.
//!
//! Stamps are exact: no two writes have the same time. Times lie in the past unless [`SimulatedDisk::set_clock`] sets the clock.
//! Watches report everything. They end with the crash, as do locks. For a kill of the process on a running machine, wrap a clone of
//! the disk in [`super::fault_injection`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use brigade::platform;
use brigade::stores::fs::{FileKind, FileStamp, FileSystem, FolderWatch, HeldLock, LOCK_WAIT_MAX, LockTimeout};

mod disk;
mod watch;

/// Unreferenced files are removed after this many new files.
const GARBAGE_FILES_MAX: usize = 4096;

/// The start of the disk's clock (2023-11-14). Only writes advance it, so that runs can be repeated.
const CLOCK_START_NS: i128 = 1_700_000_000_000_000_000;
const TICK_NS: i128 = 1_000_003;
/// The range in which writes at the same clock time differ, in nanoseconds.
const SAME_TIME_RANGE_NS: i128 = 1_000_000;

/// The properties of a simulated disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskOptions {
    /// True if a rename over an existing file becomes durable only after the renamed file's bytes.
    pub renames_after_bytes: bool,
    /// The size of all files together, in bytes. A larger write stores the part that fits and fails.
    pub bytes_max: u64,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self { renames_after_bytes: true, bytes_max: u64::MAX }
    }
}

/// A disk in memory. Clones are the same disk, as seen by several processes.
#[derive(Clone)]
pub struct SimulatedDisk {
    shared: Arc<Shared>,
}

struct Shared {
    options: DiskOptions,
    disk: Mutex<Disk>,
    unlocked: Condvar,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Node {
    Folder,
    File(u64),
}

/// Paths in the order of their bytes: the comparison of `Path` by components is slow.
type Tree = BTreeMap<OsString, Node>;
type Bytes = Arc<Vec<u8>>;

/// A file, independent of its names.
#[derive(Debug, Clone, Default)]
struct Inode {
    bytes: Bytes,
    /// Increases with each write.
    version: u64,
    modified_ns: i128,
    /// The durable bytes, of version `durable_version`.
    durable: Bytes,
    durable_version: u64,
    /// True if all later writes were appends.
    is_append_only: bool,
}

/// One change of names, kept or lost as a whole.
#[derive(Debug, Clone)]
struct NameChange {
    names: Vec<(PathBuf, Option<Node>)>,
    /// Bytes that become durable with it: file, version, bytes.
    carried_bytes: Option<(u64, u64, Bytes)>,
}

#[derive(Debug, Default, Clone)]
struct Disk {
    is_cut: bool,
    inodes: HashMap<u64, Inode>,
    next_inode: u64,
    clock_ns: i128,
    /// The names as processes see them.
    tree: Tree,
    /// The durable names.
    durable: Tree,
    /// The changes that are not durable, oldest first.
    pending: Vec<NameChange>,
    locks: HashSet<PathBuf>,
    watches: watch::Watches,
    /// The time set by [`SimulatedDisk::set_clock`].
    now_ns: Option<i128>,
    garbage_at: usize,
}

impl Default for SimulatedDisk {
    fn default() -> Self {
        Self::new(DiskOptions::default())
    }
}

impl SimulatedDisk {
    /// An empty disk. All folders are simulated; no real file is touched.
    #[must_use]
    pub fn new(options: DiskOptions) -> Self {
        let mut disk =
            Disk { garbage_at: GARBAGE_FILES_MAX, next_inode: 1, clock_ns: CLOCK_START_NS, ..Disk::default() };
        disk.tree.insert(OsString::from("/"), Node::Folder);
        disk.durable = disk.tree.clone();
        Self::of(options, disk)
    }

    fn of(options: DiskOptions, disk: Disk) -> Self {
        Self { shared: Arc::new(Shared { options, disk: Mutex::new(disk), unlocked: Condvar::new() }) }
    }

    /// Cuts the power: every later call on this disk fails. Returns the disk as the next start finds it. `seed` selects the unsynced
    /// changes that survive: seed 0 keeps none, seed 1 keeps all names and the old bytes.
    #[must_use]
    pub fn crash(&self, seed: u64) -> Self {
        let mut disk = self.shared.lock();
        let mut after = disk.disk_after_cut(&mut FaultRandom::new(seed));
        after.clock_ns = disk.clock_ns;
        after.now_ns = disk.now_ns;
        after.next_inode = disk.next_inode;
        disk.is_cut = true;
        disk.watches.end();
        drop(disk);
        self.shared.unlocked.notify_all();
        Self::of(self.shared.options, after)
    }

    /// A copy of this disk, including unsynced changes, without locks.
    #[must_use]
    pub fn fork(&self) -> Self {
        let now = self.shared.lock();
        let copy = Disk { locks: HashSet::new(), watches: watch::Watches::default(), ..now.clone() };
        Self::of(self.shared.options, copy)
    }

    /// Sets the clock for stamps, in nanoseconds since 1970.
    pub fn set_clock(&self, now_ns: i128) {
        self.shared.lock().now_ns = Some(now_ns);
    }

    /// The files and their bytes.
    #[must_use]
    pub fn contents(&self) -> BTreeMap<PathBuf, Arc<Vec<u8>>> {
        let disk = self.shared.lock();
        let bytes = |node: &Node| match node {
            Node::File(id) => disk.inodes.get(id).map(|inode| Arc::clone(&inode.bytes)),
            Node::Folder => None,
        };
        disk.tree.iter().filter_map(|(path, node)| Some((PathBuf::from(path), bytes(node)?))).collect()
    }

    /// The held locks, sorted.
    #[must_use]
    pub fn locks(&self) -> Vec<PathBuf> {
        let mut locks: Vec<PathBuf> = self.shared.lock().locks.iter().cloned().collect();
        locks.sort();
        locks
    }

    /// Makes everything durable, as minutes without activity would.
    pub fn make_all_durable(&self) {
        let mut disk = self.shared.lock();
        let pending = std::mem::take(&mut disk.pending);
        for change in pending {
            disk.make_durable(&change);
        }
        for inode in disk.inodes.values_mut() {
            inode.make_durable();
        }
    }

    fn disk(&self) -> io::Result<MutexGuard<'_, Disk>> {
        let disk = self.shared.lock();
        if disk.is_cut { Err(io::Error::other("the power was cut")) } else { Ok(disk) }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A random generator with a seed (splitmix64).
struct FaultRandom {
    state: u64,
    /// The count of names kept out of 256. Fixed for a crash, so that some crashes lose nearly everything and some nearly nothing.
    keeps_of_256: u64,
    keeps_old_bytes: bool,
}

impl FaultRandom {
    fn new(seed: u64) -> Self {
        let mut random = Self { state: seed, keeps_of_256: 0, keeps_old_bytes: seed <= 1 };
        random.keeps_of_256 = match seed {
            0 => 0,
            1 => 256,
            _ => [16, 128, 240][random.next_random(3)],
        };
        random
    }

    fn next_random(&mut self, sides: usize) -> usize {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((mixed ^ (mixed >> 31)) % sides.max(1) as u64).unwrap_or(0)
    }

    fn keeps_change(&mut self) -> bool {
        (self.next_random(256) as u64) < self.keeps_of_256
    }
}

impl Inode {
    fn make_durable(&mut self) {
        self.durable = Arc::clone(&self.bytes);
        self.durable_version = self.version;
        self.is_append_only = true;
    }

    /// The bytes after a crash.
    fn bytes_after_cut(&self, random: &mut FaultRandom) -> Bytes {
        if self.version == self.durable_version || random.keeps_old_bytes {
            return Arc::clone(&self.durable);
        }
        let certain = if self.is_append_only { self.durable.len() } else { 0 };
        let cut = certain + random.next_random(self.bytes.len() - certain + 1);
        match random.next_random(4) {
            0 => Arc::clone(&self.durable),
            1 => Arc::clone(&self.bytes),
            2 => Arc::new(self.bytes[..cut].to_vec()),
            _ => {
                let mut torn = self.bytes[..cut].to_vec();
                torn.resize(self.bytes.len(), 0);
                Arc::new(torn)
            }
        }
    }
}

impl NameChange {
    fn builds_on(&self, earlier: &Self) -> bool {
        let lies_in = |name: &OsStr, folder: &OsStr| {
            let rest = name.as_encoded_bytes().strip_prefix(folder.as_encoded_bytes());
            rest.is_some_and(|rest| rest.first() == Some(&b'/'))
        };
        let concerns = |name: &OsStr| {
            earlier.names.iter().any(|(other, node)| {
                let other = other.as_os_str();
                other == name || (*node == Some(Node::Folder) && lies_in(name, other))
            })
        };
        self.names.iter().any(|(name, _)| concerns(name.as_os_str()))
    }

    fn concerns(&self, folder: &Path) -> bool {
        self.names.iter().any(|(name, _)| name.parent() == Some(folder))
    }
}

/// Releases a lock when dropped.
struct HeldSimulatedLock {
    shared: Arc<Shared>,
    path: PathBuf,
}

impl Drop for HeldSimulatedLock {
    fn drop(&mut self) {
        self.shared.lock().locks.remove(&self.path);
        self.shared.unlocked.notify_all();
    }
}

impl SimulatedDisk {
    /// Takes the lock on `path` without waiting.
    fn try_lock(&self, disk: &mut Disk, path: &Path) -> io::Result<Option<HeldSimulatedLock>> {
        disk.open(path)?;
        let is_free = disk.locks.insert(path.to_owned());
        if !is_free {
            return Ok(None);
        }
        Ok(Some(HeldSimulatedLock { shared: Arc::clone(&self.shared), path: path.to_owned() }))
    }
}

impl FileSystem for SimulatedDisk {
    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        let disk = self.disk()?;
        match disk.node(folder)? {
            Node::File(_) => Err(io::ErrorKind::NotADirectory.into()),
            Node::Folder => {
                let mut above = folder.as_os_str().as_encoded_bytes().to_vec();
                above.extend((!above.ends_with(b"/")).then_some(b'/'));
                let from = folder.join("").into_os_string();
                let names =
                    disk.tree.range(from..).map_while(|(path, _)| path.as_encoded_bytes().strip_prefix(&above[..]));
                let inside = names.filter(|name| !name.is_empty() && !name.contains(&b'/'));
                Ok(inside.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
            }
        }
    }

    fn stamp(&self, path: &Path) -> io::Result<FileStamp> {
        let mut disk = self.disk()?;
        match disk.node(path)? {
            Node::Folder => Ok(FileStamp { kind: FileKind::Folder, bytes: 0, modified_ns: 0, inode: 0 }),
            Node::File(id) => {
                let inode = disk.inode(id)?;
                let bytes = inode.bytes.len() as u64;
                Ok(FileStamp { kind: FileKind::File, bytes, modified_ns: inode.modified_ns, inode: id })
            }
        }
    }

    fn read(&self, path: &Path, offset: u64, bytes_max: u64) -> io::Result<(Vec<u8>, FileStamp)> {
        let stamp = self.stamp(path)?;
        if stamp.kind != FileKind::File {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain file"));
        }
        let mut disk = self.disk()?;
        let bytes = Arc::clone(&disk.inode(stamp.inode)?.bytes);
        let rest = &bytes[usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len())..];
        if rest.len() as u64 > bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok((rest.to_vec(), stamp))
    }

    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        let mut disk = self.disk()?;
        let mut missing: Vec<&Path> = Vec::new();
        for path in folder.ancestors() {
            match disk.tree.get(path.as_os_str()) {
                Some(Node::Folder) => break,
                Some(Node::File(_)) => return Err(io::ErrorKind::AlreadyExists.into()),
                None => missing.push(path),
            }
        }
        for path in missing.into_iter().rev() {
            disk.change_names(vec![(path.to_owned(), Some(Node::Folder))], None);
            disk.watches.notify(path, None);
        }
        Ok(())
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut disk = self.disk()?;
        let id = disk.open(path)?;
        let inode = disk.inode(id)?;
        inode.is_append_only &= inode.bytes.is_empty();
        inode.bytes = Bytes::default();
        disk.watches.notify(path, None);
        disk.extend(id, bytes, self.shared.options.bytes_max)
    }

    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<u64> {
        let mut disk = self.disk()?;
        let id = disk.open(path)?;
        let before = disk.inode(id)?.bytes.len() as u64;
        disk.watches.notify(path, None);
        disk.extend(id, bytes, self.shared.options.bytes_max).map(|()| before)
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk()?;
        let id = disk.file(path)?;
        disk.inode(id)?.make_durable();
        Ok(())
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        let mut disk = self.disk()?;
        if disk.node(folder)? != Node::Folder {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        disk.sync_folder(folder);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.disk()?;
        let id = disk.file(from)?;
        disk.check_parent(to)?;
        let replaces = match disk.tree.get(to.as_os_str()) {
            Some(Node::Folder) => return Err(io::ErrorKind::IsADirectory.into()),
            other => other.is_some(),
        };
        let carried_inode = (replaces && self.shared.options.renames_after_bytes).then_some(id);
        disk.change_names(vec![(from.to_owned(), None), (to.to_owned(), Some(Node::File(id)))], carried_inode);
        disk.watches.notify(from, None);
        disk.watches.notify(to, Some(from));
        Ok(())
    }

    fn exchange(&self, a: &Path, b: &Path) -> io::Result<()> {
        let mut disk = self.disk()?;
        let (at_a, at_b) = (disk.file(a)?, disk.file(b)?);
        disk.change_names(vec![(a.to_owned(), Some(Node::File(at_b))), (b.to_owned(), Some(Node::File(at_a)))], None);
        disk.watches.notify(a, None);
        disk.watches.notify(b, None);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk()?;
        disk.file(path)?;
        disk.change_names(vec![(path.to_owned(), None)], None);
        disk.watches.notify(path, None);
        Ok(())
    }

    fn locked(&self, path: &Path, critical: &mut dyn FnMut()) -> io::Result<()> {
        let (mut disk, started_at) = (self.disk()?, Instant::now());
        let lock = loop {
            if disk.is_cut {
                return Err(io::Error::other("the power was cut"));
            }
            if let Some(lock) = self.try_lock(&mut disk, path)? {
                break lock;
            }
            let time_left = LOCK_WAIT_MAX.checked_sub(started_at.elapsed()).ok_or_else(|| LockTimeout::of(path))?;
            (disk, _) = self.shared.unlocked.wait_timeout(disk, time_left).unwrap_or_else(PoisonError::into_inner);
        };
        drop(disk);
        critical();
        drop(lock);
        Ok(())
    }

    fn hold(&self, path: &Path) -> io::Result<Option<HeldLock>> {
        let mut disk = self.disk()?;
        Ok(self.try_lock(&mut disk, path)?.map(|lock| Box::new(lock) as HeldLock))
    }

    /// Returns at once: on a simulated disk no other process runs meanwhile.
    fn wait(&self, _time: Duration) {}

    fn now_ns(&self) -> i128 {
        self.shared.lock().now_ns.unwrap_or_else(platform::now_ns)
    }

    fn watch(&self, folder: &Path) -> Option<Box<dyn FolderWatch>> {
        let mut disk = self.disk().ok()?;
        match disk.node(folder).ok()? {
            Node::Folder => Some(disk.watches.start(folder)),
            Node::File(_) => None,
        }
    }

    fn renames_after_bytes(&self, _folder: &Path) -> bool {
        self.shared.options.renames_after_bytes
    }
}
