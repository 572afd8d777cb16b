//! The file systems for tests keep their own promises.

mod fault_injection {
    use std::sync::Arc;

    use crate::testkit::fault_injection::*;
    use brigade::stores::fs::FileSystem;
    use brigade::stores::fs::RealFileSystem;

    fn faulty(fault: CallFault) -> (tempfile::TempDir, FaultyFileSystem) {
        (tempfile::tempdir().unwrap(), FaultyFileSystem::new(Arc::new(RealFileSystem::default()), fault))
    }

    #[test]
    fn injected_crash_fails_all_later_calls() {
        let (folder, files) = faulty(CallFault::CrashBefore(2));
        files.write(&folder.path().join("a"), b"1234").unwrap();
        assert!(files.write(&folder.path().join("b"), b"1234").is_err());
        assert!(files.remove(&folder.path().join("a")).is_err());
        assert!(files.has_failed());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn injected_fault_tears_write() {
        for (fault, continues) in [(CallFault::CrashDuring(1), false), (CallFault::DiskFullFrom(1), true)] {
            let (folder, files) = faulty(fault);
            let path = folder.path().join("a");
            assert!(files.append(&path, b"1234").is_err());
            assert_eq!(std::fs::read(&path).unwrap(), b"12");
            assert_eq!(files.remove(&path).is_ok(), continues);
        }
    }
}

mod simulated {
    use std::collections::HashSet;
    use std::io;
    use std::path::{Path, PathBuf};

    use brigade::stores::fs::FileSystem;

    use crate::testkit::simulated::*;

    fn disk(options: DiskOptions) -> (SimulatedDisk, PathBuf) {
        let disk = SimulatedDisk::new(options);
        let folder = PathBuf::from("/w");
        disk.create_folder(&folder).unwrap();
        disk.sync_folder(Path::new("/")).unwrap();
        (disk, folder)
    }

    /// The possible contents of the file after a crash; `None` if it is missing.
    fn outcomes(disk: &SimulatedDisk, path: &Path) -> HashSet<Option<Vec<u8>>> {
        (0..200).map(|seed| disk.fork().crash(seed).read(path, 0, 100).ok().map(|(bytes, _)| bytes)).collect()
    }

    fn only(texts: &[Option<&str>]) -> HashSet<Option<Vec<u8>>> {
        texts.iter().map(|text| text.map(|text| text.as_bytes().to_vec())).collect()
    }

    #[test]
    fn simulated_crash_keeps_synced_and_tears_unsynced() {
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
        disk.make_all_durable();
        assert_eq!(outcomes(&disk, &path), only(&[Some("older")]));
    }

    #[test]
    fn simulated_rename_order_follows_disk_options() {
        for renames_after_bytes in [true, false] {
            let (disk, folder) = disk(DiskOptions { renames_after_bytes, ..DiskOptions::default() });
            let (path, new) = (folder.join("a"), folder.join("t"));
            disk.write(&path, b"old").unwrap();
            disk.make_all_durable();
            disk.write(&new, b"new").unwrap();
            disk.rename(&new, &path).unwrap();
            let outcomes = outcomes(&disk, &path);
            let whole = only(&[Some("old"), Some("new")]);
            assert!(outcomes.is_superset(&whole));
            assert_eq!(outcomes == whole, renames_after_bytes, "{outcomes:?}");
        }
    }

    #[test]
    fn simulated_crash_loses_names_whole() {
        let (disk, folder) = disk(DiskOptions::default());
        let [a, b, c] = ["a", "b", "c"].map(|name| folder.join(name));
        disk.write(&a, b"a").unwrap();
        disk.make_all_durable();
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
    fn simulated_full_disk_writes_what_fits() {
        let (disk, folder) = disk(DiskOptions { bytes_max: 5, ..DiskOptions::default() });
        disk.write(&folder.join("a"), b"123").unwrap();
        let error = disk.write(&folder.join("b"), b"456").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(disk.read(&folder.join("b"), 0, 9).unwrap().0, b"45");
        let error = disk.write(&folder.join("c"), b"7").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn simulated_lock_is_exclusive_and_freed_by_crash() {
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
    fn simulated_exchange_swaps_contents() {
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
