//! A disk in memory whose power can be cut: for tests of what survives.
//!
//! Until [`SimulatedDisk::crash`] it behaves like any file system. A crash keeps what was synced, and of the rest what its seed
//! picks. It is meaner than the disks people have, within these bounds:
//!
//! - *Bytes* of a file that was not synced since it was written may be the synced ones, the new ones, a beginning of the new
//!   ones, or a beginning and then zeros up to the new size. Bytes that were synced and only appended to stay.
//! - *Names* (new files, renames, removals, exchanges, folders) are each kept or lost as a whole and in any combination, but for this:
//!   one that builds on an earlier one (it concerns a name that one concerned, or lies in a folder that one made) is kept only
//!   with it. `sync_folder` keeps all that concern names in the folder, with what they build on. A name that is kept says nothing
//!   about the file's bytes.
//! - With [`DiskOptions::renames_after_bytes`], as on ext4, btrfs and zfs, a rename that replaces a file is kept only together with the bytes
//!   the renamed file had then. New names and exchanges promise nothing even there.
//!
//! Stamps are exact: no two writes have the same time, which lies in the past unless [`SimulatedDisk::set_clock`] says what time it is.
//! Watches tell all, and end with the crash, as do locks, which are those of one machine. A process that is killed while the machine
//! lives on is [`super::dying`]'s to play, around a clone of the disk.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{FileKind, FileSystem, FolderWatch, HeldLock, LOCK_WAIT_MAX, LockTimeout, Stamp};
use crate::platform;

mod disk;
mod watch;

/// Unreferenced files are thrown away once there are this many more than after the last time.
const GARBAGE_FILES_MAX: usize = 4096;

/// The disk's clock starts here (2023-11-14) and moves with each write alone: runs can be repeated.
const CLOCK_START_NS: i128 = 1_700_000_000_000_000_000;
const TICK_NS: i128 = 1_000_003;
/// Nanoseconds by which writes of one moment are told apart.
const GRAIN_NS: i128 = 1_000_000;

/// What kind of disk it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskOptions {
    /// Whether a rename over an existing file becomes durable only after the renamed file's bytes.
    pub renames_after_bytes: bool,
    /// Bytes all files together may have; a write beyond takes what fits and fails.
    pub bytes_max: u64,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self { renames_after_bytes: true, bytes_max: u64::MAX }
    }
}

/// A disk in memory. Clones are the same disk, as several processes see it.
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

/// Names in the order of their bytes: paths compare by their parts, which takes long.
type Tree = BTreeMap<OsString, Node>;
type Bytes = Arc<Vec<u8>>;

/// A file, whatever its name.
#[derive(Debug, Clone, Default)]
struct Inode {
    bytes: Bytes,
    /// Counts its writes.
    version: u64,
    modified_ns: i128,
    /// What is on the disk for certain, and of which version.
    durable: Bytes,
    durable_version: u64,
    /// Whether all that was written since was appended.
    is_grown_only: bool,
}

/// One change of names, kept or lost as a whole.
#[derive(Debug, Clone)]
struct Renaming {
    names: Vec<(PathBuf, Option<Node>)>,
    /// Bytes that are durable once it is: file, version, bytes.
    carries: Option<(u64, u64, Bytes)>,
}

#[derive(Debug, Default, Clone)]
struct Disk {
    is_cut: bool,
    inodes: HashMap<u64, Inode>,
    next_inode: u64,
    clock_ns: i128,
    /// What processes see.
    tree: Tree,
    /// The names that are on the disk for certain.
    durable: Tree,
    /// What is between the two, oldest first.
    pending: Vec<Renaming>,
    locks: HashSet<PathBuf>,
    watches: watch::Watches,
    /// What time it is, where somebody says so.
    now_ns: Option<i128>,
    garbage_at: usize,
}

impl Default for SimulatedDisk {
    fn default() -> Self {
        Self::new(DiskOptions::default())
    }
}

impl SimulatedDisk {
    /// An empty disk. All folders above and including those made with `create_folder` are simulated; nothing real is touched.
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

    /// Cuts the power: every later call on this disk fails. Returns the disk as the next start finds it; `seed` picks what
    /// of the unsynced survived. Seed 0 keeps none of it; seed 1 keeps all names, and the old bytes.
    #[must_use]
    pub fn crash(&self, seed: u64) -> Self {
        let mut disk = self.shared.lock();
        let mut after = disk.survivors(&mut Dice::new(seed));
        after.clock_ns = disk.clock_ns;
        after.now_ns = disk.now_ns;
        after.next_inode = disk.next_inode;
        disk.is_cut = true;
        disk.watches.end();
        drop(disk);
        self.shared.unlocked.notify_all();
        Self::of(self.shared.options, after)
    }

    /// Another disk that is as this one is now, unsynced things included; no locks are held on it.
    #[must_use]
    pub fn fork(&self) -> Self {
        let now = self.shared.lock();
        let copy = Disk { locks: HashSet::new(), watches: watch::Watches::default(), ..now.clone() };
        Self::of(self.shared.options, copy)
    }

    /// Says what time it is, in nanoseconds since 1970: stamps go by it from now on.
    pub fn set_clock(&self, now_ns: i128) {
        self.shared.lock().now_ns = Some(now_ns);
    }

    /// The files there are, and what is in them.
    #[must_use]
    pub fn contents(&self) -> BTreeMap<PathBuf, Arc<Vec<u8>>> {
        let disk = self.shared.lock();
        let bytes = |node: &Node| match node {
            Node::File(id) => disk.inodes.get(id).map(|inode| Arc::clone(&inode.bytes)),
            Node::Folder => None,
        };
        disk.tree.iter().filter_map(|(path, node)| Some((PathBuf::from(path), bytes(node)?))).collect()
    }

    /// The locks that are held.
    #[must_use]
    pub fn locks(&self) -> Vec<PathBuf> {
        let mut locks: Vec<PathBuf> = self.shared.lock().locks.iter().cloned().collect();
        locks.sort();
        locks
    }

    /// Makes all durable, as minutes of rest would.
    pub fn settle(&self) {
        let mut disk = self.shared.lock();
        let pending = std::mem::take(&mut disk.pending);
        for renaming in pending {
            disk.keep(&renaming);
        }
        for inode in disk.inodes.values_mut() {
            inode.settle();
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

/// Picks by seed (splitmix64).
struct Dice {
    state: u64,
    /// How many of 256 names are kept; fixed for one crash, so that some crashes lose nearly all and some nearly nothing.
    keeps_of_256: u64,
    keeps_old_bytes: bool,
}

impl Dice {
    fn new(seed: u64) -> Self {
        let mut dice = Self { state: seed, keeps_of_256: 0, keeps_old_bytes: seed <= 1 };
        dice.keeps_of_256 = match seed {
            0 => 0,
            1 => 256,
            _ => [16, 128, 240][dice.roll(3)],
        };
        dice
    }

    fn roll(&mut self, sides: usize) -> usize {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((mixed ^ (mixed >> 31)) % sides.max(1) as u64).unwrap_or(0)
    }

    fn keeps(&mut self) -> bool {
        (self.roll(256) as u64) < self.keeps_of_256
    }
}

impl Inode {
    fn settle(&mut self) {
        self.durable = Arc::clone(&self.bytes);
        self.durable_version = self.version;
        self.is_grown_only = true;
    }

    /// The bytes the next start finds.
    fn survivor(&self, dice: &mut Dice) -> Bytes {
        if self.version == self.durable_version || dice.keeps_old_bytes {
            return Arc::clone(&self.durable);
        }
        let certain = if self.is_grown_only { self.durable.len() } else { 0 };
        let cut = certain + dice.roll(self.bytes.len() - certain + 1);
        match dice.roll(4) {
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

impl Renaming {
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

/// Ends a lock when dropped.
struct Locked {
    shared: Arc<Shared>,
    path: PathBuf,
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.shared.lock().locks.remove(&self.path);
        self.shared.unlocked.notify_all();
    }
}

impl SimulatedDisk {
    /// Takes the lock on `path`, at once or never.
    fn try_lock(&self, disk: &mut Disk, path: &Path) -> io::Result<Option<Locked>> {
        disk.open(path)?;
        let is_free = disk.locks.insert(path.to_owned());
        Ok(is_free.then(|| Locked { shared: Arc::clone(&self.shared), path: path.to_owned() }))
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

    fn stamp(&self, path: &Path) -> io::Result<Stamp> {
        let mut disk = self.disk()?;
        match disk.node(path)? {
            Node::Folder => Ok(Stamp { kind: FileKind::Folder, bytes: 0, modified_ns: 0, inode: 0 }),
            Node::File(id) => {
                let inode = disk.inode(id)?;
                let bytes = inode.bytes.len() as u64;
                Ok(Stamp { kind: FileKind::File, bytes, modified_ns: inode.modified_ns, inode: id })
            }
        }
    }

    fn read(&self, path: &Path, offset: u64, bytes_max: u64) -> io::Result<(Vec<u8>, Stamp)> {
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
            disk.watches.tell(path, None);
        }
        Ok(())
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut disk = self.disk()?;
        let id = disk.open(path)?;
        let inode = disk.inode(id)?;
        inode.is_grown_only &= inode.bytes.is_empty();
        inode.bytes = Bytes::default();
        disk.watches.tell(path, None);
        disk.extend(id, bytes, self.shared.options.bytes_max)
    }

    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<u64> {
        let mut disk = self.disk()?;
        let id = disk.open(path)?;
        let before = disk.inode(id)?.bytes.len() as u64;
        disk.watches.tell(path, None);
        disk.extend(id, bytes, self.shared.options.bytes_max).map(|()| before)
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk()?;
        let id = disk.file(path)?;
        disk.inode(id)?.settle();
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
        let carries = (replaces && self.shared.options.renames_after_bytes).then_some(id);
        disk.change_names(vec![(from.to_owned(), None), (to.to_owned(), Some(Node::File(id)))], carries);
        disk.watches.tell(from, None);
        disk.watches.tell(to, Some(from));
        Ok(())
    }

    fn exchange(&self, a: &Path, b: &Path) -> io::Result<()> {
        let mut disk = self.disk()?;
        let (at_a, at_b) = (disk.file(a)?, disk.file(b)?);
        disk.change_names(vec![(a.to_owned(), Some(Node::File(at_b))), (b.to_owned(), Some(Node::File(at_a)))], None);
        disk.watches.tell(a, None);
        disk.watches.tell(b, None);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk()?;
        disk.file(path)?;
        disk.change_names(vec![(path.to_owned(), None)], None);
        disk.watches.tell(path, None);
        Ok(())
    }

    fn locked(&self, path: &Path, critical: &mut dyn FnMut()) -> io::Result<()> {
        let (mut disk, began) = (self.disk()?, Instant::now());
        let lock = loop {
            if disk.is_cut {
                return Err(io::Error::other("the power was cut"));
            }
            if let Some(lock) = self.try_lock(&mut disk, path)? {
                break lock;
            }
            let left = LOCK_WAIT_MAX.checked_sub(began.elapsed()).ok_or_else(|| LockTimeout::of(path))?;
            (disk, _) = self.shared.unlocked.wait_timeout(disk, left).unwrap_or_else(PoisonError::into_inner);
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

    /// Nobody else gets anything done meanwhile on a disk in memory.
    fn wait(&self, _time: Duration) {}

    fn now_ns(&self) -> i128 {
        self.shared.lock().now_ns.unwrap_or_else(platform::now_ns)
    }

    fn watch(&self, folder: &Path) -> Option<Box<dyn FolderWatch>> {
        let mut disk = self.disk().ok()?;
        (disk.node(folder).ok()? == Node::Folder).then(|| disk.watches.start(folder))
    }

    fn free_bytes(&self, _folder: &Path) -> io::Result<u64> {
        Ok(self.shared.options.bytes_max.saturating_sub(self.disk()?.used_bytes()))
    }

    fn renames_after_bytes(&self, _folder: &Path) -> bool {
        self.shared.options.renames_after_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(options: DiskOptions) -> (SimulatedDisk, PathBuf) {
        let disk = SimulatedDisk::new(options);
        let folder = PathBuf::from("/w");
        disk.create_folder(&folder).unwrap();
        disk.sync_folder(Path::new("/")).unwrap();
        (disk, folder)
    }

    /// What the file may hold after a crash; `None` where it is missing.
    fn outcomes(disk: &SimulatedDisk, path: &Path) -> HashSet<Option<Vec<u8>>> {
        (0..200).map(|seed| disk.fork().crash(seed).read(path, 0, 100).ok().map(|(bytes, _)| bytes)).collect()
    }

    fn only(texts: &[Option<&str>]) -> HashSet<Option<Vec<u8>>> {
        texts.iter().map(|text| text.map(|text| text.as_bytes().to_vec())).collect()
    }

    #[test]
    fn what_is_synced_stays_and_what_is_not_may_be_torn() {
        let (disk, folder) = disk(DiskOptions::default());
        let path = folder.join("a");
        disk.write(&path, b"old").unwrap();
        assert!(outcomes(&disk, &path).is_superset(&only(&[None, Some(""), Some("o"), Some("old"), Some("o\0\0")])));
        disk.sync_file(&path).unwrap();
        assert_eq!(outcomes(&disk, &path), only(&[None, Some("old")]));
        disk.sync_folder(&folder).unwrap();
        assert_eq!(outcomes(&disk, &path), only(&[Some("old")]));
        assert_eq!(disk.append(&path, b"er").unwrap(), 3);
        let grown = only(&[Some("old"), Some("olde"), Some("older"), Some("olde\0"), Some("old\0\0")]);
        assert_eq!(outcomes(&disk, &path), grown);
        disk.settle();
        assert_eq!(outcomes(&disk, &path), only(&[Some("older")]));
    }

    #[test]
    fn a_replacing_rename_carries_the_bytes_only_where_the_disk_says_so() {
        for renames_after_bytes in [true, false] {
            let (disk, folder) = disk(DiskOptions { renames_after_bytes, ..DiskOptions::default() });
            let (path, new) = (folder.join("a"), folder.join("t"));
            disk.write(&path, b"old").unwrap();
            disk.settle();
            disk.write(&new, b"new").unwrap();
            disk.rename(&new, &path).unwrap();
            let outcomes = outcomes(&disk, &path);
            let whole = only(&[Some("old"), Some("new")]);
            assert!(outcomes.is_superset(&whole));
            assert_eq!(outcomes == whole, renames_after_bytes, "{outcomes:?}");
        }
    }

    #[test]
    fn names_are_lost_in_any_combination_but_never_halfway() {
        let (disk, folder) = disk(DiskOptions::default());
        let [a, b, c] = ["a", "b", "c"].map(|name| folder.join(name));
        disk.write(&a, b"a").unwrap();
        disk.settle();
        disk.rename(&a, &b).unwrap();
        disk.rename(&b, &c).unwrap();
        disk.write(&folder.join("d"), b"d").unwrap();
        let mut seen = HashSet::new();
        for seed in 0..100 {
            let copy = disk.fork();
            seen.insert(copy.crash(seed).list(&folder).unwrap().concat());
            assert!(copy.list(&folder).is_err(), "the power was cut");
        }
        assert_eq!(seen, ["a", "b", "c", "ad", "bd", "cd"].map(str::to_owned).into());
    }

    #[test]
    fn a_full_disk_takes_what_fits() {
        let (disk, folder) = disk(DiskOptions { bytes_max: 5, ..DiskOptions::default() });
        disk.write(&folder.join("a"), b"123").unwrap();
        let error = disk.write(&folder.join("b"), b"456").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(disk.read(&folder.join("b"), 0, 9).unwrap().0, b"45");
        assert_eq!(disk.free_bytes(&folder).unwrap(), 0);
    }

    #[test]
    fn one_at_a_time_has_a_lock_and_a_crash_frees_it() {
        let (disk, folder) = disk(DiskOptions::default());
        let path = folder.join(".lock");
        let held = disk.hold(&path).unwrap().unwrap();
        assert!(disk.hold(&path).unwrap().is_none());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| disk.locked(&path, &mut || ()));
            drop(held);
            waiter.join().unwrap().unwrap();
        });
        let _held = disk.hold(&path).unwrap().unwrap();
        let after = disk.crash(3);
        assert!(after.hold(&path).unwrap().is_some());
    }

    #[test]
    fn exchanged_files_have_each_others_bytes() {
        let (disk, folder) = disk(DiskOptions::default());
        let [a, b] = ["a", "b"].map(|name| folder.join(name));
        disk.write(&a, b"a").unwrap();
        disk.write(&b, b"b").unwrap();
        disk.exchange(&a, &b).unwrap();
        assert_eq!(disk.read(&a, 0, 9).unwrap().0, b"b");
        assert_eq!(disk.read(&b, 0, 9).unwrap().0, b"a");
        assert!(disk.exchange(&a, &folder.join("missing")).is_err());
    }
}
