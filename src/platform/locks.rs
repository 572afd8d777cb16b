//! Lock files: opened so that only their owner can lock them, and the process that holds one.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use super::{processes, system};

/// The process that holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockHolder {
    /// Its number.
    pub pid: u32,
    /// Its program's name; `None` where the process has ended and left the lock to one it started.
    pub program: Option<String>,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.program {
            Some(program) => write!(to, "process {} ({program})", self.pid),
            None => write!(to, "a process that process {} started", self.pid),
        }
    }
}

/// Opens a lock file, and creates it where it is missing. Only its owner can open it (mode 0600): an earlier version's file is
/// changed to that. It never follows a symbolic link.
///
/// # Errors
/// The error of the system.
pub fn open_lock_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    system::no_follow(&mut options);
    system::only_for_owner(&mut options);
    let file = options.open(path).map_err(system::named)?;
    system::keep_for_owner(&file)?;
    Ok(file)
}

/// The process that holds the lock on `path`, where the system tells it: Linux does, on file systems whose device numbers are the
/// same in `/proc/locks` and in stat(2). Btrfs and overlays have others.
#[must_use]
pub fn lock_holder(path: &Path) -> Option<LockHolder> {
    let (major, minor, inode) = system::device_and_inode(path)?;
    let pid = holder_in(&std::fs::read_to_string("/proc/locks").ok()?, &format!("{major:02x}:{minor:02x}:{inode}"))?;
    let program = i32::try_from(pid).ok().and_then(processes::program);
    Some(LockHolder { pid, program })
}

/// The holder of the lock on `file` in a table of locks (proc_locks(5)). Lines with an arrow are waiters.
fn holder_in(table: &str, file: &str) -> Option<u32> {
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, locked, ..] = fields.as_slice() else { return None };
        if *locked == file { pid.parse().ok() } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_table_names_holders_and_not_waiters() {
        let table = "1: POSIX  ADVISORY  READ 7 fd:00:99 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 8 fd:00:99 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 4711 fd:00:99 0 EOF\n";
        assert_eq!(holder_in(table, "fd:00:99"), Some(4711));
        assert_eq!(holder_in(table, "fd:00:9"), None);
        assert_eq!(holder_in("nonsense\n1: FLOCK", "fd:00:99"), None);
    }

    #[cfg(unix)]
    #[test]
    fn lock_file_is_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let (new, old) = (folder.path().join("new"), folder.path().join("old"));
        std::fs::write(&old, "").unwrap();
        std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o644)).unwrap();
        for path in [&new, &old] {
            open_lock_file(path).unwrap();
            assert_eq!(mode(path), 0o600, "{}", path.display());
        }
    }
}
