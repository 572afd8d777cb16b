//! Signals everything a process has started, also what left its process group.
//!
//! The caller is a subreaper: whoever loses its parent becomes the caller's child, so following parents finds all.

use std::collections::BTreeSet;

use rustix::process::{Pid, Signal, getpgrp, getpid, kill_process, kill_process_group};

use crate::platform::processes::descendants;

/// Sends `signal` to the group and to all descendants of this process; misses only what starts while it looks.
///
/// Groups are signalled as groups: a process that forks at that moment cannot slip away. A group of a descendant has no
/// outsiders in it, because this process leads a session of its own.
pub(super) fn signal_all(group: Pid, signal: Signal) {
    // Every error here means that the process is gone or not ours to signal; the caller looks again.
    let _ = kill_process_group(group, signal);
    let own_group = getpgrp().as_raw_nonzero().get();
    let mut groups = BTreeSet::from([group.as_raw_nonzero().get()]);
    for descendant in descendants(getpid().as_raw_nonzero().get()) {
        let (Some(process), Some(its_group)) = (Pid::from_raw(descendant.pid), Pid::from_raw(descendant.group)) else {
            continue;
        };
        if descendant.group == own_group {
            let _ = kill_process(process, signal);
        } else if groups.insert(descendant.group) {
            let _ = kill_process_group(its_group, signal);
        }
    }
}
