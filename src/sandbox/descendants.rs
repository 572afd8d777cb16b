//! Signals all processes that a process has started, including those that left its process group.
//!
//! The caller is a subreaper: orphaned processes become its children, so all can be found by their parents.

use std::collections::BTreeSet;

use rustix::process::{Pid, Signal, getpgrp, getpid, kill_process, kill_process_group};

use crate::platform::processes::descendants;

/// Sends `signal` to the group and to all descendants of this process. It misses only processes that start meanwhile.
///
/// It signals whole groups, so that a process that forks at that moment cannot escape. A descendant's group has no other
/// members, because this process leads its own session.
pub(super) fn signal_all(group: Pid, signal: Signal) {
    // Every error here means that the process has ended or belongs to another user. The caller checks again.
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
