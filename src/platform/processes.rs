//! Other processes: who they are, and ending their groups and descendants. It decides nothing about whom to end.
//!
//! Processes are told apart by their start, in milliseconds since boot by a clock that never jumps: a process id is used
//! again, a pair of id and start is not. Only Linux lists processes here (`/proc`); elsewhere nothing is found, so nothing
//! that cannot be identified is ever signalled.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How often is looked whether processes that were killed are gone.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// A process as the system lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Its id.
    pub pid: i32,
    /// Its parent.
    pub parent: i32,
    /// The process group it is in.
    pub group: i32,
    /// When it started, in milliseconds since boot.
    pub started_ms: u64,
    /// Whether it has ended and only waits to be noted by its parent.
    pub has_ended: bool,
    /// Whether it was suspended by a signal, until another has it go on.
    pub is_suspended: bool,
}

/// How a group is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupSignal {
    /// It is asked to end.
    Terminate,
    /// It is ended.
    Kill,
}

/// The process with this id, if it is there and the system says so.
#[must_use]
pub fn process(pid: i32) -> Option<ProcessInfo> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name of the program a process runs, in printable characters.
#[must_use]
pub fn program(pid: i32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).chars().filter(|letter| !letter.is_control()).collect())
}

/// The arguments of a process, its program's name first; empty where they cannot be read.
#[must_use]
pub fn arguments(pid: i32) -> Vec<Vec<u8>> {
    words_of(pid, "cmdline")
}

/// The environment that a process started with, as `NAME=value`; empty where it cannot be read.
#[must_use]
pub fn environment(pid: i32) -> Vec<Vec<u8>> {
    words_of(pid, "environ")
}

fn words_of(pid: i32, file: &str) -> Vec<Vec<u8>> {
    let text = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    text.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect()
}

/// The mark of this process on those it starts: its number and its start, by which it differs from all others of this boot.
#[must_use]
pub fn own_mark() -> String {
    static MARK: OnceLock<String> = OnceLock::new();
    MARK.get_or_init(|| format!("{}-{}", std::process::id(), own_start_ms())).clone()
}

fn all_processes() -> Vec<ProcessInfo> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter_map(process).collect()
}

/// All processes of a group.
#[must_use]
pub fn group_members(group: i32) -> Vec<ProcessInfo> {
    all_processes().into_iter().filter(|process| process.group == group).collect()
}

/// All that a process has started, and what those have started. A subreaper's are found also when those between have ended.
#[must_use]
pub fn descendants(ancestor: i32) -> Vec<ProcessInfo> {
    descendants_among(all_processes(), ancestor)
}

fn descendants_among(mut others: Vec<ProcessInfo>, ancestor: i32) -> Vec<ProcessInfo> {
    let (mut known, mut found) = (BTreeSet::from([ancestor]), Vec::new());
    // Each round finds the children of those found before.
    loop {
        let (children, rest): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|process| known.contains(&process.parent));
        if children.is_empty() {
            return found;
        }
        known.extend(children.iter().map(|child| child.pid));
        found.extend(children);
        others = rest;
    }
}

/// Kills all descendants of a subreaper and all members of `group`, again and again until none is left or the time is over,
/// and then the subreaper itself: last, because without it they are not found any more. Returns what is left. Blocks.
#[must_use]
pub fn kill_tree(subreaper: i32, group: Option<i32>, time_max: Duration) -> Vec<i32> {
    let began = Instant::now();
    let left = |with: Option<i32>| -> Vec<ProcessInfo> {
        let members = group.map(group_members).unwrap_or_default();
        let all = descendants(subreaper).into_iter().chain(members).chain(with.and_then(process));
        all.filter(|process| !process.has_ended).collect()
    };
    let pids = |found: Vec<ProcessInfo>| found.into_iter().map(|process| process.pid).collect();
    let mut with = None;
    loop {
        let found = left(with);
        match (found.is_empty(), with) {
            (true, Some(_)) => return Vec::new(),
            (true, None) => with = Some(subreaper),
            (false, _) if began.elapsed() >= time_max => return pids(found),
            (false, _) => {
                kill_all(&found, subreaper);
                std::thread::sleep(LOOK_INTERVAL);
            }
        }
    }
}

/// Kills `group` and all processes that are not below this one and that `is_orphan` accepts, until none is left or the time is over.
/// Returns what is left. Blocks.
#[must_use]
pub fn kill_orphans(group: Option<i32>, is_orphan: impl Fn(i32) -> bool, time_max: Duration) -> Vec<i32> {
    let (began, own) = (Instant::now(), i32::try_from(std::process::id()).unwrap_or(0));
    loop {
        let all = all_processes();
        let below: BTreeSet<i32> = descendants_among(all.clone(), own).iter().map(|process| process.pid).collect();
        let is_sought = |process: &ProcessInfo| {
            let is_other = process.pid != own && !below.contains(&process.pid);
            !process.has_ended && (group == Some(process.group) || is_other && is_orphan(process.pid))
        };
        let found: Vec<i32> = all.iter().filter(|process| is_sought(process)).map(|process| process.pid).collect();
        if found.is_empty() || began.elapsed() >= time_max {
            return found;
        }
        // It may have ended, or be another user's: the next look tells.
        let _ = group.map(|group| signal_group(group, GroupSignal::Kill));
        for pid in found {
            let _ = signal_process(pid, ProcessSignal::Kill);
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// Kills the descendants of a subreaper that leads a session, so that their groups have no outsiders in them: as groups,
/// because one that forks at that moment cannot slip away then.
fn kill_all(found: &[ProcessInfo], subreaper: i32) {
    for process in found {
        // It may have ended, or be another user's: the next look tells.
        let _ = signal_process(process.pid, ProcessSignal::Kill);
        if process.pid != subreaper && process.group != subreaper {
            let _ = signal_group(process.group, GroupSignal::Kill);
        }
    }
}

/// Has a process that was stopped go on.
///
/// # Errors
/// `InvalidInput` for processes 0, 1 and this one, `NotFound` where it is gone, `Unsupported` where there are no signals.
pub fn proceed(pid: i32) -> io::Result<()> {
    signal_process(pid, ProcessSignal::Continue)
}

/// Keeps other processes of the same user from looking into this one: its memory, its environment, its open files. What it
/// costs: no core dump, no debugger. Linux only; elsewhere nothing is shown that could be hidden.
pub fn hide_this_process() {
    #[cfg(target_os = "linux")]
    // A kernel that cannot do it shows what it always showed.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
}

/// Closes every open file of this process by its number, but for standard input, output, error and `keep`. Unix only.
pub fn close_files_but(keep: &[i32]) {
    #[cfg(unix)]
    {
        let folder = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let open: Vec<i32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        for number in open.into_iter().filter(|number| *number > 2 && !keep.contains(number)) {
            // The one that listed the folder is closed already.
            let _ = nix::unistd::close(number);
        }
    }
    #[cfg(not(unix))]
    let _ = keep;
}

/// Milliseconds since boot, suspended time among them; 0 where the system does not say.
#[must_use]
pub fn uptime_ms() -> u64 {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds: f64 = text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0);
    // Never negative, and below 2^53 for some hundred thousand years.
    (seconds * 1000.0) as u64
}

/// When this process started, in milliseconds since boot; 0 where the system does not say.
#[must_use]
pub fn own_start_ms() -> u64 {
    i32::try_from(std::process::id()).ok().and_then(process).map_or(0, |own| own.started_ms)
}

/// Reads a line of `/proc/<pid>/stat` (proc_pid_stat(5)): id, name in parentheses, then state, parent, group …, the start as
/// the 22nd field in ticks since boot. The name may hold anything, parentheses and spaces too.
fn parse_stat(line: &str) -> Option<ProcessInfo> {
    let (pid, rest) = line.split_once(" (")?;
    let (_, rest) = rest.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let ticks: u64 = fields.get(19)?.parse().ok()?;
    Some(ProcessInfo {
        pid: pid.parse().ok()?,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        started_ms: ticks.saturating_mul(1000) / ticks_per_second(),
        has_ended: matches!(*fields.first()?, "Z" | "X"),
        is_suspended: *fields.first()? == "T",
    })
}

#[cfg(unix)]
fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second().max(1)
}

#[cfg(not(unix))]
fn ticks_per_second() -> u64 {
    100
}

/// The process group of this process; 0 where there are none.
#[must_use]
pub fn own_group() -> i32 {
    #[cfg(unix)]
    let group = rustix::process::getpgrp().as_raw_nonzero().get();
    #[cfg(not(unix))]
    let group = 0;
    group
}

/// Whether a group has any process in it, ended ones among them.
#[must_use]
pub fn group_exists(group: i32) -> bool {
    #[cfg(unix)]
    let exists = group > 1
        && rustix::process::Pid::from_raw(group)
            .is_some_and(|group| rustix::process::test_kill_process_group(group) != Err(rustix::io::Errno::SRCH));
    #[cfg(not(unix))]
    let exists = false;
    exists
}

/// Signals all processes of a group. Groups 0 and 1 and this process's own are refused, whoever asks.
///
/// # Errors
/// `InvalidInput` for a refused group, `NotFound` where it has no process, `Unsupported` where there are no groups.
pub fn signal_group(group: i32, signal: GroupSignal) -> io::Result<()> {
    if group <= 1 || group == own_group() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("process group {group} is never signalled")));
    }
    #[cfg(unix)]
    {
        use rustix::process::{Pid, Signal, kill_process_group};
        let signal = match signal {
            GroupSignal::Terminate => Signal::TERM,
            GroupSignal::Kill => Signal::KILL,
        };
        let group = Pid::from_raw(group).ok_or(io::ErrorKind::InvalidInput)?;
        kill_process_group(group, signal).map_err(|error| match error {
            rustix::io::Errno::SRCH => io::Error::new(io::ErrorKind::NotFound, error),
            other => other.into(),
        })
    }
    #[cfg(not(unix))]
    {
        let _ = signal;
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Asks one process to end, also one that is suspended: it goes on, to hear that. Processes 0 and 1 and this one are refused, whoever
/// asks.
///
/// # Errors
/// `InvalidInput` for a refused process, `NotFound` where it is gone, `Unsupported` where there are no signals.
pub fn terminate(pid: u32) -> io::Result<()> {
    let pid = i32::try_from(pid).unwrap_or(0);
    signal_process(pid, ProcessSignal::Terminate)?;
    signal_process(pid, ProcessSignal::Continue)
}

#[derive(Debug, Clone, Copy)]
enum ProcessSignal {
    Terminate,
    Kill,
    Continue,
}

fn signal_process(pid: i32, signal: ProcessSignal) -> io::Result<()> {
    if pid <= 1 || u32::try_from(pid) == Ok(std::process::id()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("process {pid} is never signalled")));
    }
    #[cfg(unix)]
    {
        use rustix::process::{Pid, Signal, kill_process};
        let signal = match signal {
            ProcessSignal::Terminate => Signal::TERM,
            ProcessSignal::Kill => Signal::KILL,
            ProcessSignal::Continue => Signal::CONT,
        };
        let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
        kill_process(pid, signal).map_err(|error| match error {
            rustix::io::Errno::SRCH => io::Error::new(io::ErrorKind::NotFound, error),
            other => other.into(),
        })
    }
    #[cfg(not(unix))]
    {
        let _ = signal;
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let line = "4021 (a) b (c) S 1 4000 4000 0 -1 4194560 1 0 0 0 2 1 0 0 20 0 1 0 8821 1 1 1";
        let process = parse_stat(line).unwrap();
        assert_eq!((process.pid, process.parent, process.group, process.has_ended), (4021, 1, 4000, false));
        assert!(!process.is_suspended && parse_stat(&line.replace(") S ", ") T ")).unwrap().is_suspended);
        assert_eq!(process.started_ms, 8821 * 1000 / ticks_per_second());
        assert_eq!(parse_stat("4021 (a) S 1"), None);
    }

    #[test]
    fn the_own_group_and_the_first_two_are_never_signalled() {
        for group in [-1, 0, 1, own_group()] {
            let error = signal_group(group, GroupSignal::Terminate).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{group}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_found_and_started_before_now() {
        let own = process(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert_eq!(own.group, own_group());
        assert!(own.started_ms > 0 && own.started_ms <= uptime_ms());
        assert!(group_members(own.group).contains(&own));
    }
}
