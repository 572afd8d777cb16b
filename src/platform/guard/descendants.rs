//! Finds and signals everything a process has started, also what left its process group.
//!
//! The caller is a subreaper: whoever loses its parent becomes the caller's child, so following parents finds all.

use std::collections::BTreeSet;

use rustix::process::{Pid, Signal, getpgrp, kill_process, kill_process_group};

/// Sends `signal` to the group and to all descendants of this process; misses only what starts while it looks.
///
/// Groups are signalled as groups: a process that forks at that moment cannot slip away. A group of a descendant has no
/// outsiders in it, because this process leads a session of its own.
pub(super) fn signal_all(group: Pid, signal: Signal) {
    // Every error here means that the process is gone or not ours to signal; the caller looks again.
    let _ = kill_process_group(group, signal);
    let own_group = getpgrp();
    let mut groups = BTreeSet::from([group.as_raw_nonzero()]);
    for descendant in descendants() {
        if descendant.group == own_group {
            let _ = kill_process(descendant.process, signal);
        } else if groups.insert(descendant.group.as_raw_nonzero()) {
            let _ = kill_process_group(descendant.group, signal);
        }
    }
}

struct Process {
    process: Pid,
    #[cfg(target_os = "linux")]
    parent: i32,
    group: Pid,
}

#[cfg(target_os = "linux")]
fn descendants() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut others: Vec<Process> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|process: i32| parse_stat(&std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?))
        .collect();
    let mut known = BTreeSet::from([rustix::process::getpid().as_raw_nonzero().get()]);
    let mut found = Vec::new();
    // Each round finds the children of those found before.
    loop {
        let (children, rest): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|process| known.contains(&process.parent));
        if children.is_empty() {
            return found;
        }
        known.extend(children.iter().map(|child| child.process.as_raw_nonzero().get()));
        found.extend(children);
        others = rest;
    }
}

#[cfg(not(target_os = "linux"))]
fn descendants() -> Vec<Process> {
    Vec::new()
}

/// Reads `/proc/<pid>/stat`: `pid (name) state parent group …`; the name may hold anything, also `)`. See proc(5).
#[cfg(target_os = "linux")]
fn parse_stat(stat: &str) -> Option<Process> {
    let process = Pid::from_raw(stat.split(' ').next()?.parse().ok()?)?;
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace().skip(1);
    let parent = fields.next()?.parse().ok()?;
    let group = Pid::from_raw(fields.next()?.parse().ok()?)?;
    Some(Process { process, parent, group })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_cannot_spoil_the_reading() {
        let process = parse_stat("12 (a) R 1 (b) S 7 9 9 0 -1").unwrap();
        assert_eq!((process.process.as_raw_nonzero().get(), process.parent), (12, 7));
        assert_eq!(process.group.as_raw_nonzero().get(), 9);
        assert!(parse_stat("12 (gone").is_none());
    }
}
