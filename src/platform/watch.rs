//! Changes in a folder, by any process: inotify on Linux, nothing elsewhere.
//!
//! The kernel queues an event before the call that caused it returns, so a drain reports all changes that were made before it began.
//! Only local disks have this: network and user-space file systems get no watch.

use std::path::Path;

/// The result of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchEvents {
    /// All changes were reported.
    All,
    /// The kernel dropped events; the watch continues. Check everything.
    SomeLost,
    /// The folder was removed, renamed or unmounted, so the watch has ended. Check everything, and start a new watch.
    Ended,
}

#[cfg(target_os = "linux")]
pub use linux::FolderWatch;
#[cfg(not(target_os = "linux"))]
pub use none::FolderWatch;

#[cfg(target_os = "linux")]
mod linux {
    use std::mem::MaybeUninit;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
    use rustix::io::Errno;

    use super::{Path, WatchEvents};
    use crate::platform::unix::file_system_type;

    const EVENT_BYTES: usize = 16 * 1024;

    /// A watch on one folder, without its subfolders. Its descriptor is readable after a change.
    #[derive(Debug)]
    pub struct FolderWatch {
        inotify: OwnedFd,
        buffer: Box<[MaybeUninit<u8>]>,
    }

    impl FolderWatch {
        /// Watches `folder` from now on. `None` if changes are not reported reliably, or the system has no watch left.
        #[must_use]
        pub fn start(folder: &Path) -> Option<Self> {
            if !is_local(folder) {
                return None;
            }
            let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok()?;
            let event_kinds = WatchFlags::MODIFY
                | WatchFlags::CLOSE_WRITE
                | WatchFlags::ATTRIB
                | WatchFlags::CREATE
                | WatchFlags::DELETE
                | WatchFlags::MOVE
                | WatchFlags::DELETE_SELF
                | WatchFlags::MOVE_SELF
                | WatchFlags::ONLYDIR;
            inotify::add_watch(&inotify, folder, event_kinds).ok()?;
            Some(Self { inotify, buffer: vec![MaybeUninit::uninit(); EVENT_BYTES].into_boxed_slice() })
        }

        /// Calls `each` with every name that changed since the last drain, without waiting. For a renamed file it also passes the name
        /// that the file had in this folder.
        pub fn drain(&mut self, each: &mut dyn FnMut(&str, Option<&str>)) -> WatchEvents {
            let mut reader = Reader::new(&self.inotify, &mut self.buffer);
            let mut drained = WatchEvents::All;
            let mut moved_from: Option<(u32, String)> = None;
            loop {
                let event = match reader.next() {
                    Ok(event) => event,
                    Err(Errno::AGAIN) => return drained,
                    Err(Errno::INTR) => continue,
                    Err(_) => return WatchEvents::Ended,
                };
                let event_kinds = event.events();
                if event_kinds.intersects(
                    ReadFlags::IGNORED | ReadFlags::UNMOUNT | ReadFlags::from_bits_retain(WatchFlags::MOVE_SELF.bits()),
                ) {
                    return WatchEvents::Ended;
                }
                if event_kinds.contains(ReadFlags::QUEUE_OVERFLOW) {
                    drained = WatchEvents::SomeLost;
                }
                let Some(name) = event.file_name().map(|name| name.to_string_lossy()) else {
                    continue;
                };
                if event_kinds.contains(ReadFlags::MOVED_FROM) {
                    moved_from = Some((event.cookie(), name.clone().into_owned()));
                }
                let is_target = event_kinds.contains(ReadFlags::MOVED_TO);
                let from = moved_from.as_ref().filter(|(cookie, _)| is_target && *cookie == event.cookie());
                each(&name, from.map(|(_, name)| name.as_str()));
            }
        }
    }

    impl AsFd for FolderWatch {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.inotify.as_fd()
        }
    }

    /// Returns true if all changes to the folder go through this kernel. Only known local file systems count.
    fn is_local(folder: &Path) -> bool {
        const LOCAL_TYPES: [i64; 8] = [
            0xEF53,      // ext2, ext3, ext4
            0x9123_683E, // btrfs
            0x5846_5342, // xfs
            0x0102_1994, // tmpfs
            0x794C_7630, // overlayfs
            0xF2F5_2010, // f2fs
            0x2FC1_2FC1, // zfs
            0x8584_58F6, // ramfs
        ];
        file_system_type(folder).is_some_and(|kind| LOCAL_TYPES.contains(&kind))
    }
}

#[cfg(not(target_os = "linux"))]
mod none {
    use super::{Path, WatchEvents};

    /// A watch, which this system does not have.
    #[derive(Debug)]
    pub enum FolderWatch {}

    impl FolderWatch {
        /// Always `None`.
        #[must_use]
        pub fn start(_: &Path) -> Option<Self> {
            None
        }

        /// Never called, because there is no watch.
        pub fn drain(&mut self, _: &mut dyn FnMut(&str, Option<&str>)) -> WatchEvents {
            match *self {}
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::fs;

    fn drained(watch: &mut FolderWatch) -> (Vec<(String, Option<String>)>, WatchEvents) {
        let mut seen = Vec::new();
        let end = watch.drain(&mut |name, from| {
            let event = (name.to_owned(), from.map(str::to_owned));
            if seen.last() != Some(&event) {
                seen.push(event);
            }
        });
        (seen, end)
    }

    #[test]
    fn folder_watch_drain_reports_changes_and_renames() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        fs::write(path.join("before"), "x").unwrap();
        let mut watch = FolderWatch::start(path).unwrap();
        assert_eq!(drained(&mut watch), (vec![], WatchEvents::All));
        fs::write(path.join("before"), "y").unwrap();
        fs::write(path.join("t"), "z").unwrap();
        fs::rename(path.join("t"), path.join("after")).unwrap();
        fs::remove_file(path.join("before")).unwrap();
        let (seen, end) = drained(&mut watch);
        let seen: Vec<_> = seen.iter().map(|(name, from)| (name.as_str(), from.as_deref())).collect();
        assert_eq!(seen, [("before", None), ("t", None), ("after", Some("t")), ("before", None)]);
        assert_eq!(end, WatchEvents::All);
    }

    #[test]
    fn folder_watch_ends_when_folder_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        for end in ["remove", "rename"] {
            let path = folder.path().join(end);
            fs::create_dir(&path).unwrap();
            let mut watch = FolderWatch::start(&path).unwrap();
            match end {
                "remove" => fs::remove_dir(&path).unwrap(),
                _ => fs::rename(&path, folder.path().join("other")).unwrap(),
            }
            assert_eq!(drained(&mut watch).1, WatchEvents::Ended, "{end}");
        }
        assert!(FolderWatch::start(&folder.path().join("missing")).is_none());
    }
}
