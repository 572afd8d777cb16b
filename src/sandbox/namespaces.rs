//! Namespaces of a command: one of mounts, one of processes, and a user namespace where the others need one.
//!
//! See mount_namespaces(7), pid_namespaces(7) and user_namespaces(7). [`super::Level`] says what they change for a command.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::process::{Gid, Uid, getegid, geteuid};
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

/// Lets what this process executes next mount as well, also below folders that a command closed to its own user, and then seal itself:
/// of an ordinary user's process, execution takes all capabilities that are not ambient.
pub(super) fn hand_on_capabilities() -> Result<(), String> {
    let said = |error: Errno| format!("capabilities: {error}");
    let wanted = [CapabilitySet::SYS_ADMIN, CapabilitySet::SETPCAP, CapabilitySet::DAC_READ_SEARCH];
    let mut sets = rustix::thread::capabilities(None).map_err(said)?;
    // A container's root may lack the last one.
    let has = |capability: &CapabilitySet| sets.permitted.contains(*capability);
    let wanted: Vec<CapabilitySet> = wanted.into_iter().filter(has).collect();
    wanted.iter().for_each(|capability| sets.inheritable |= *capability);
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
    // Inside, ids that are not mapped yet are unknown.
    let (user, group) = (geteuid(), getegid());
    unshare(UnshareFlags::NEWUSER | wanted)?;
    match mapper {
        Some(mapper) => have_mapped(mapper)?,
        None => map_id("/proc/self", user, group)?,
    }
    forbid_control_group_namespaces();
    Ok(())
}

/// Keeps commands from control group namespaces: they could mount a control group file system there, and kill Brigade through it. See
/// cgroup_namespaces(7). A limit holds for all namespaces inside of this user namespace.
fn forbid_control_group_namespaces() {
    // If the file is missing or read-only, commands are confined in all other respects.
    let _ = fs::write("/proc/sys/user/max_cgroup_namespaces", "0");
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
    Some(i32::from(!is_told || map_all_ids(&folder).or_else(|_| map_id(&folder, geteuid(), getegid())).is_err()))
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

fn map_id(folder: &str, user: Uid, group: Gid) -> io::Result<()> {
    let (user, group) = (user.as_raw(), group.as_raw());
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
