//! Lock files that only their owner can lock, and the process that holds a lock.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::reading::describe_open_error;
use super::{number_of, processes};

/// The process that holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockHolder {
    /// The process id.
    pub pid: u32,
    /// The program's name. `None` if the process has ended and a process that it started holds the lock now.
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

/// Opens or creates a lock file. Only its owner can open it (mode 0600); the file of an earlier version is
/// changed to that mode. It never follows a symbolic link.
///
/// # Errors
/// An error of the system.
pub fn open_lock_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(number_of(OFlags::NOFOLLOW));
    let file = options.open(path).map_err(describe_open_error)?;
    let metadata = file.metadata()?;
    let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
    if is_own && metadata.is_file() && metadata.mode() & 0o077 != 0 {
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    }
    Ok(file)
}

/// The system gives the table of locks in pieces. A line can be missing from all of them if other locks change in between.
const TABLE_READS_MAX: u32 = 5;

/// The process that holds the lock on `path`, if the system tells. Linux does, on file systems whose device numbers are the
/// same in `/proc/locks` and in stat(2). Those of btrfs and overlayfs differ.
pub fn lock_holder(path: &Path) -> Option<LockHolder> {
    let metadata = path.symlink_metadata().ok()?;
    let (major, minor) = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
    let file = format!("{major:02x}:{minor:02x}:{}", metadata.ino());
    let read = |_| holder_in(&std::fs::read_to_string("/proc/locks").ok()?, &file);
    let pid = (0..TABLE_READS_MAX).find_map(read)?;
    let program = i32::try_from(pid).ok().and_then(processes::program);
    Some(LockHolder { pid, program })
}

/// The holder of the lock on `file` in a table of locks (proc_locks(5)). Lines with an arrow are waiters.
fn holder_in(table: &str, file: &str) -> Option<u32> {
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, lock_file, ..] = fields.as_slice() else { return None };
        if *lock_file == file { pid.parse().ok() } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_table_names_holder_not_waiter() {
        let table = "1: POSIX  ADVISORY  READ 7 fd:00:99 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 8 fd:00:99 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 4711 fd:00:99 0 EOF\n";
        assert_eq!(holder_in(table, "fd:00:99"), Some(4711));
        assert_eq!(holder_in(table, "fd:00:9"), None);
        assert_eq!(holder_in("nonsense\n1: FLOCK", "fd:00:99"), None);
    }

    #[test]
    fn lock_file_mode_is_owner_only() {
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
