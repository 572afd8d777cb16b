//! The namespaces of a command: a mount namespace, a process namespace, and a user namespace if the system requires one for them.
//!
//! See mount_namespaces(7), pid_namespaces(7) and user_namespaces(7). [`super::Level`] describes the effects on a command.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::process::{Gid, Uid, getegid, geteuid};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};

use super::{START_BYTE, own_arguments, own_program};

/// Enters a mount namespace: directly if allowed, otherwise inside a user namespace that maps ids to themselves. If
/// `with_processes` is true, later children are also in a new process namespace, and the first of them is its init.
pub(super) fn enter(with_processes: bool) -> Result<(), String> {
    let namespaces = if with_processes { UnshareFlags::NEWNS | UnshareFlags::NEWPID } else { UnshareFlags::NEWNS };
    match unshare(namespaces) {
        Ok(()) => {}
        Err(Errno::PERM) => enter_unprivileged(namespaces).map_err(|error| format!("user namespaces: {error}"))?,
        Err(error) => return Err(format!("namespaces: {error}")),
    }
    // Without this, our mounts would also appear outside the namespace, and Brigade itself could no longer write there.
    let propagation = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", propagation).map_err(|error| format!("mount propagation: {error}"))
}

/// Keeps three capabilities for the next executed program. For an unprivileged user, execution drops all capabilities that are not ambient.
///
/// - `SYS_ADMIN`, to mount.
/// - `DAC_READ_SEARCH`, to mount below folders that a command closed to its own user.
/// - `SETPCAP`, to drop capabilities afterwards ([`drop_bounding_capabilities`]).
pub(super) fn raise_ambient_capabilities() -> Result<(), String> {
    let describe = |error: Errno| format!("capabilities: {error}");
    let capabilities = [CapabilitySet::SYS_ADMIN, CapabilitySet::SETPCAP, CapabilitySet::DAC_READ_SEARCH];
    let mut sets = rustix::thread::capabilities(None).map_err(describe)?;
    // A container's root may lack some of them.
    let has = |capability: &CapabilitySet| sets.permitted.contains(*capability);
    let capabilities: Vec<CapabilitySet> = capabilities.into_iter().filter(has).collect();
    capabilities.iter().for_each(|capability| sets.inheritable |= *capability);
    rustix::thread::set_capabilities(None, sets).map_err(describe)?;
    capabilities.into_iter().try_for_each(|capability| {
        rustix::thread::configure_capability_in_ambient_set(capability, true).map_err(describe)
    })
}

#[allow(
    deprecated,
    reason = "rustix deprecates it for what UnshareFlags::FILES can do; the flags here share no descriptors"
)]
fn unshare(flags: UnshareFlags) -> Result<(), Errno> {
    rustix::thread::unshare(flags)
}

fn enter_unprivileged(namespaces: UnshareFlags) -> io::Result<()> {
    // A process inside the namespace can map only its own id. Root has more ids to map, so a process outside must map them.
    let mapper = if geteuid().is_root() { Some(start_mapper()?) } else { None };
    // Read before `unshare`: inside the namespace, these calls return the overflow id until the ids are mapped.
    let (user, group) = (geteuid(), getegid());
    unshare(UnshareFlags::NEWUSER | namespaces)?;
    match mapper {
        Some(mapper) => finish_mapping(mapper)?,
        None => map_id("/proc/self", user, group)?,
    }
    forbid_control_group_namespaces();
    Ok(())
}

/// Prevents commands from creating control group namespaces, where they could mount a control group file system and kill Brigade
/// through it. See cgroup_namespaces(7). The limit applies to all namespaces inside this user namespace.
fn forbid_control_group_namespaces() {
    // If the file is missing or read-only, all other confinement still applies.
    let _ = fs::write("/proc/sys/user/max_cgroup_namespaces", "0");
}

/// Starts a process outside the namespace that runs [`map_ids_for`] this process.
fn start_mapper() -> io::Result<Child> {
    Command::new(own_program()?)
        .args(own_arguments())
        .args(["map", &std::process::id().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
}

/// Tells the mapper that this process is in its namespace, and waits for the result.
fn finish_mapping(mut mapper: Child) -> io::Result<()> {
    if let Some(mut stdin) = mapper.stdin.take() {
        stdin.write_all(START_BYTE)?;
    }
    if mapper.wait()?.success() { Ok(()) } else { Err(io::Error::other("the ids cannot be mapped")) }
}

/// The mapper: waits until the process in `arguments` is in its namespace, and maps its ids. Returns the exit code, or `None` if the
/// arguments are invalid.
pub(super) fn map_ids_for(arguments: &[OsString]) -> Option<i32> {
    let [process] = arguments else { return None };
    let folder = format!("/proc/{}", process.to_str()?.parse::<u32>().ok()?);
    let mut start_byte = [0];
    let is_started = io::stdin().read_exact(&mut start_byte).is_ok() && start_byte == START_BYTE;
    if !is_started {
        return Some(1);
    }
    let mapped = map_all_ids(&folder).or_else(|_| map_id(&folder, geteuid(), getegid()));
    Some(i32::from(mapped.is_err()))
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

/// Maps one user and one group to themselves.
fn map_id(folder: &str, user: Uid, group: Gid) -> io::Result<()> {
    let (user, group) = (user.as_raw(), group.as_raw());
    fs::write(format!("{folder}/setgroups"), "deny")?;
    fs::write(format!("{folder}/uid_map"), format!("{user} {user} 1\n"))?;
    fs::write(format!("{folder}/gid_map"), format!("{group} {group} 1\n"))
}

/// Mounts a `/proc` that shows only the caller's process namespace.
pub(super) fn mount_proc() -> Result<(), String> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("proc", "/proc", "proc", flags, None).map_err(|error| format!("mount /proc: {error}"))
}

/// The caller's process id outside its namespace, where it is unique. Must be called before [`mount_proc`].
pub(super) fn outside_pid() -> Result<u64, String> {
    let link = fs::read_link("/proc/self").map_err(|error| format!("read /proc/self: {error}"))?;
    link.to_str().and_then(|number| number.parse().ok()).ok_or_else(|| "/proc/self is not a number".to_owned())
}

/// The distance between the first process ids of two commands.
const FIRST_PID_DISTANCE: u64 = 64;
/// The lowest first process id: some tools treat smaller ids as those of system processes.
const FIRST_PID_MIN: u64 = 300;

/// Sets the first process id in the namespace, different from that of other commands. Scripts name files by `$$`, which would
/// otherwise be 2 in every command.
pub(super) fn set_first_pid(outside: u64) -> Result<(), String> {
    let describe = |error: io::Error| format!("set the first process id: {error}");
    let max = fs::read_to_string("/proc/sys/kernel/pid_max").map_err(describe)?;
    let pid_range = max.trim().parse::<u64>().unwrap_or(0).saturating_sub(2 * FIRST_PID_MIN).max(1);
    let last = FIRST_PID_MIN + (outside * FIRST_PID_DISTANCE) % pid_range;
    fs::write("/proc/sys/kernel/ns_last_pid", last.to_string()).map_err(describe)
}

/// Drops the capabilities that could undo the mounts or inspect hidden processes, for all programs that are executed from
/// now on. A debugger needs none of them for the user's own processes.
pub(super) fn drop_bounding_capabilities() {
    // DAC_READ_SEARCH opens files without a path, and MKNOD opens a disk as a file: both would bypass the mounts.
    for capability in [
        CapabilitySet::SYS_ADMIN,
        CapabilitySet::SYS_PTRACE,
        CapabilitySet::PERFMON,
        CapabilitySet::DAC_READ_SEARCH,
        CapabilitySet::MKNOD,
        CapabilitySet::SYS_RAWIO,
        CapabilitySet::SYS_MODULE,
    ] {
        // If a capability cannot be removed, the mounts still protect against accidents.
        let _ = rustix::thread::remove_capability_from_bounding_set(capability);
    }
}

/// Drops all capabilities of the caller. Programs that it executes have those of its user.
pub(super) fn drop_capabilities() -> Result<(), String> {
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets).map_err(|error| format!("capabilities: {error}"))
}
