//! Mounts control files read-only over themselves, in a mount namespace of the calling process.
//!
//! See mount_namespaces(7) and user_namespaces(7). What it changes for a command is said at [`super::Confinement`].

use std::path::Path;

use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::{CapabilitySet, UnshareFlags};

/// Enters a mount namespace: directly where we may, else inside a user namespace whose ids `map` has somebody outside map.
pub(super) fn enter(map: impl FnOnce() -> bool) -> Result<(), String> {
    match unshare(UnshareFlags::NEWNS) {
        Ok(()) => {}
        Err(Errno::PERM) => {
            unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)
                .map_err(|error| format!("user namespaces: {error}"))?;
            if !map() {
                return Err("user namespaces: the ids cannot be mapped".to_owned());
            }
        }
        Err(error) => return Err(format!("mount namespaces: {error}")),
    }
    // Without this our mounts would show outside, and Brigade itself could no longer write.
    let propagation = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", propagation).map_err(|error| format!("mount propagation: {error}"))
}

#[allow(
    deprecated,
    reason = "rustix deprecates it for what UnshareFlags::FILES can do; the flags here share no descriptors"
)]
fn unshare(flags: UnshareFlags) -> Result<(), Errno> {
    rustix::thread::unshare(flags)
}

/// Mounts `path` read-only over itself; one that is not there needs no protection.
pub(super) fn make_read_only(path: &Path) -> Result<(), String> {
    let said = |error: Errno| format!("mount {} read-only: {error}", path.display());
    match rustix::mount::mount_bind_recursive(path, path) {
        Ok(()) => {}
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(said(error)),
    }
    let kept = kept_flags(rustix::fs::statvfs(path).map_err(said)?.f_flag);
    rustix::mount::mount_remount(path, MountFlags::BIND | MountFlags::RDONLY | kept, c"").map_err(said)?;
    let is_read_only = rustix::fs::statvfs(path).map_err(said)?.f_flag.contains(StatVfsMountFlags::RDONLY);
    if is_read_only { Ok(()) } else { Err(format!("{} is not read-only after mounting it so", path.display())) }
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

/// Gives up what could undo the mounts, for all that is executed from here on.
pub(super) fn seal() {
    // Where the set cannot be changed the mounts still guard against accidents, which is what they are for.
    let _ = rustix::thread::remove_capability_from_bounding_set(CapabilitySet::SYS_ADMIN);
}
