//! Namespaces of a command: one of mounts, in which control files are read-only, and one of processes, in which nothing else is.
//!
//! See mount_namespaces(7), pid_namespaces(7) and user_namespaces(7). What it changes for a command is said at
//! [`super::Confinement`].

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::{Access, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::process::{getegid, geteuid};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};

use super::{GO, own_arguments, own_program};

/// Enters a mount namespace: directly where we may, else inside a user namespace that maps ids to themselves. With
/// `processes` the children from here on are in a process namespace too, and the first of them is its init.
pub(super) fn enter(processes: bool) -> Result<(), String> {
    let wanted = if processes { UnshareFlags::NEWNS | UnshareFlags::NEWPID } else { UnshareFlags::NEWNS };
    match unshare(wanted) {
        Ok(()) => {}
        Err(Errno::PERM) => enter_as_nobody_special(wanted).map_err(|error| format!("user namespaces: {error}"))?,
        Err(error) => return Err(format!("namespaces: {error}")),
    }
    // Without this our mounts would show outside, and Brigade itself could no longer write.
    let propagation = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", propagation).map_err(|error| format!("mount propagation: {error}"))
}

/// Lets what this process executes next mount as well, and then seal itself: of an ordinary user's process, execution takes
/// all capabilities that are not ambient.
pub(super) fn hand_on_capabilities() -> Result<(), String> {
    let said = |error: Errno| format!("capabilities: {error}");
    let wanted = [CapabilitySet::SYS_ADMIN, CapabilitySet::SETPCAP];
    let mut sets = rustix::thread::capabilities(None).map_err(said)?;
    sets.inheritable |= wanted[0] | wanted[1];
    rustix::thread::set_capabilities(None, sets).map_err(said)?;
    wanted
        .into_iter()
        .try_for_each(|capability| rustix::thread::configure_capability_in_ambient_set(capability, true).map_err(said))
}

#[allow(
    deprecated,
    reason = "rustix deprecates it for what UnshareFlags::FILES can do; the flags here share no descriptors"
)]
fn unshare(flags: UnshareFlags) -> Result<(), Errno> {
    rustix::thread::unshare(flags)
}

fn enter_as_nobody_special(wanted: UnshareFlags) -> io::Result<()> {
    // From inside a process can map its own id only; root has others to map, and needs somebody who stays outside.
    let mapper = if geteuid().is_root() { Some(start_mapper()?) } else { None };
    unshare(UnshareFlags::NEWUSER | wanted)?;
    match mapper {
        Some(mapper) => have_mapped(mapper),
        None => map_own_id("/proc/self"),
    }
}

fn start_mapper() -> io::Result<Child> {
    Command::new(own_program()?)
        .args(own_arguments())
        .args(["map", &std::process::id().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
}

fn have_mapped(mut mapper: Child) -> io::Result<()> {
    if let Some(mut word) = mapper.stdin.take() {
        word.write_all(GO)?;
    }
    if mapper.wait()?.success() { Ok(()) } else { Err(io::Error::other("the ids cannot be mapped")) }
}

/// Maps the ids of another process once it says that it is in its namespace: the program that [`start_mapper`] starts.
pub(super) fn map_for(arguments: &[OsString]) -> Option<i32> {
    let [process] = arguments else { return None };
    let folder = format!("/proc/{}", process.to_str()?.parse::<u32>().ok()?);
    let mut word = [0];
    let is_told = io::stdin().read_exact(&mut word).is_ok() && word == GO;
    Some(i32::from(!is_told || map_all_ids(&folder).or_else(|_| map_own_id(&folder)).is_err()))
}

/// Maps every id of a new user namespace to itself. See user_namespaces(7).
fn map_all_ids(folder: &str) -> io::Result<()> {
    for file in ["uid_map", "gid_map"] {
        let own = fs::read_to_string(format!("/proc/self/{file}"))?;
        let lines = own.lines().filter_map(|line| {
            let mut fields = line.split_whitespace();
            let (inside, count) = (fields.next()?, fields.nth(1)?);
            Some(format!("{inside} {inside} {count}\n"))
        });
        fs::write(format!("{folder}/{file}"), lines.collect::<String>())?;
    }
    Ok(())
}

fn map_own_id(folder: &str) -> io::Result<()> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    fs::write(format!("{folder}/setgroups"), "deny")?;
    fs::write(format!("{folder}/uid_map"), format!("{user} {user} 1\n"))?;
    fs::write(format!("{folder}/gid_map"), format!("{group} {group} 1\n"))
}

/// Mounts a `/proc` that shows the caller's process namespace and nothing else.
pub(super) fn mount_proc() -> Result<(), String> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("proc", "/proc", "proc", flags, None).map_err(|error| format!("mount /proc: {error}"))
}

/// The caller's process id as it is outside, which no other living process has; to be asked before [`mount_proc`].
pub(super) fn number_outside() -> Result<u64, String> {
    let link = fs::read_link("/proc/self").map_err(|error| format!("read /proc/self: {error}"))?;
    link.to_str().and_then(|number| number.parse().ok()).ok_or_else(|| "/proc/self is no number".to_owned())
}

/// Process ids each command has to itself before it comes to the next one's.
const NUMBERS_APART: u64 = 64;
/// What the first process ids are: those of a system's own processes, whatever a tool takes them for.
const NUMBERS_MIN: u64 = 300;

/// Has the numbers of the namespace's processes begin where those of no other command do. Scripts name files by `$$`, and would
/// otherwise all be number 2.
pub(super) fn number_processes_from(outside: u64) -> Result<(), String> {
    let said = |error: io::Error| format!("number processes: {error}");
    let max = fs::read_to_string("/proc/sys/kernel/pid_max").map_err(said)?;
    let room = max.trim().parse::<u64>().unwrap_or(0).saturating_sub(2 * NUMBERS_MIN).max(1);
    let last = NUMBERS_MIN + (outside * NUMBERS_APART) % room;
    fs::write("/proc/sys/kernel/ns_last_pid", last.to_string()).map_err(said)
}

/// How often files that somebody renames meanwhile are looked for.
const PASSES_MAX: usize = 10;

/// Makes all of these read-only. One that ends in `/*` stands for each file of a folder by itself: a mount stays with its file,
/// so one that is renamed to another name, also to that of a protected file, is read-only there too.
pub(super) fn protect(paths: &[OsString]) -> Result<(), String> {
    let kept = |path: &&OsString| path.as_encoded_bytes().starts_with(b"!");
    let writable: Vec<&Path> =
        paths.iter().filter(kept).filter_map(|path| path.to_str()).map(|path| Path::new(&path[1..])).collect();
    let above = above(paths.iter().filter(|path| !kept(path)).map(Path::new))
        .map_err(|error| format!("look where the command begins: {error}"))?;
    above.iter().try_for_each(|folder| mount_over_itself(folder))?;
    // A mount of its own stays as it is when the folder it lies in becomes read-only.
    writable.iter().try_for_each(|path| mount_over_itself(path))?;
    if !above.is_empty() || !writable.is_empty() {
        enter_again()?;
    }
    let (files, others): (Vec<_>, Vec<_>) =
        paths.iter().filter(|path| !kept(path)).map(Path::new).partition(|path| path.ends_with("*") || path.is_file());
    for pass in 0..PASSES_MAX {
        let mut is_done = true;
        for file in files.iter().flat_map(|file| each_of(file)) {
            if !is_read_only(&file).unwrap_or(true) {
                is_done = false;
                let outcome = make_read_only(&file);
                // Two files may have changed names between two steps; the next pass tells.
                if pass + 1 == PASSES_MAX {
                    outcome?;
                }
            }
        }
        if is_done {
            break;
        }
    }
    // Folders last: what is in them is then no longer found where its own mount was made.
    let shuts_itself_in = !others.is_empty();
    others.into_iter().try_for_each(make_read_only)?;
    if shuts_itself_in { enter_again() } else { Ok(()) }
}

/// The folders above these that could be renamed, the highest first: with another folder in its place there would be other files at the
/// protected paths. What has a mount of its own cannot be renamed; see rename(2), EBUSY. What lies in a protected folder is safe there.
fn above<'a>(paths: impl Iterator<Item = &'a Path>) -> io::Result<BTreeSet<PathBuf>> {
    let here = std::env::current_dir()?;
    let paths: Vec<PathBuf> = paths.map(|path| here.join(path)).collect();
    let is_ours = |folder: &Path| rustix::fs::access(folder, Access::WRITE_OK).is_ok();
    let folders = paths.iter().flat_map(|path| path.ancestors().skip(1));
    let open = folders.filter(|folder| !paths.iter().any(|path| folder.starts_with(path)));
    // One that is not there has nothing in it to be taken away.
    Ok(open.filter(|folder| folder.is_dir() && folder.parent().is_some_and(is_ours)).map(Path::to_owned).collect())
}

/// Enters the current folder as it is mounted now: a process stays in the mount it began in, below those that were made since.
fn enter_again() -> Result<(), String> {
    let here = std::env::current_dir().and_then(std::env::set_current_dir);
    here.map_err(|error| format!("enter the folder again: {error}"))
}

fn mount_over_itself(path: &Path) -> Result<(), String> {
    rustix::mount::mount_bind_recursive(path, path).map_err(|error| format!("mount {}: {error}", path.display()))
}

fn each_of(path: &Path) -> Vec<PathBuf> {
    let Some(folder) = path.parent().filter(|_| path.ends_with("*")) else { return vec![path.to_owned()] };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file())).map(|entry| entry.path()).collect()
}

fn is_read_only(path: &Path) -> Result<bool, Errno> {
    Ok(rustix::fs::statvfs(path)?.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Mounts `path` read-only over itself; one that is not there, or that this user cannot reach, needs no protection.
fn make_read_only(path: &Path) -> Result<(), String> {
    let said = |error: Errno| format!("mount {} read-only: {error}", path.display());
    match rustix::mount::mount_bind_recursive(path, path) {
        Ok(()) => {}
        Err(Errno::NOENT | Errno::ACCESS) => return Ok(()),
        Err(error) => return Err(said(error)),
    }
    let kept = kept_flags(rustix::fs::statvfs(path).map_err(said)?.f_flag);
    rustix::mount::mount_remount(path, MountFlags::BIND | MountFlags::RDONLY | kept, c"").map_err(said)?;
    if is_read_only(path).map_err(said)? {
        Ok(())
    } else {
        Err(format!("{} is not read-only after mounting it so", path.display()))
    }
}

/// A remount must name the flags the mount has: inside a user namespace, leaving one out is refused.
fn kept_flags(has: StatVfsMountFlags) -> MountFlags {
    [
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ]
    .into_iter()
    .filter(|(stat, _)| has.contains(*stat))
    .fold(MountFlags::empty(), |flags, (_, mount)| flags | mount)
}

/// Gives up what could undo the mounts, and what looks into processes that hide themselves, for all that is executed from
/// here on. A debugger of one's own processes needs neither.
pub(super) fn seal() {
    // Where the set cannot be changed the mounts still guard against accidents.
    // Nor what opens a file without its path, or a disk as a file, which would be a way around them.
    for capability in [
        CapabilitySet::SYS_ADMIN,
        CapabilitySet::SYS_PTRACE,
        CapabilitySet::PERFMON,
        CapabilitySet::DAC_READ_SEARCH,
        CapabilitySet::MKNOD,
        CapabilitySet::SYS_RAWIO,
        CapabilitySet::SYS_MODULE,
    ] {
        let _ = rustix::thread::remove_capability_from_bounding_set(capability);
    }
}

/// Gives up all capabilities of the caller itself; what it executes has those of its user.
pub(super) fn give_up_capabilities() -> Result<(), String> {
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets).map_err(|error| format!("capabilities: {error}"))
}
