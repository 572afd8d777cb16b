//! Other processes: their identity, and ending their groups and descendants. The callers decide what to end.
//!
//! A process is identified by its id and its start time in milliseconds since boot, by a clock that never jumps. Ids are reused, such
//! pairs are not. Only Linux lists processes (`/proc`). Elsewhere none is found, so Brigade never signals
//! a process that it cannot identify.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::io::Errno;
pub use rustix::process::Signal;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, kill_process, kill_process_group, setrlimit};

/// The open files for a thousand members. A much larger limit would slow programs that close each possible file.
const OPEN_FILES_WANTED: u64 = 8192;

/// The interval between checks whether killed processes are gone.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The wait for a process that replaces its program. Meanwhile the system shows neither its arguments nor its environment.
const EXEC_TIME_MAX: Duration = Duration::from_millis(50);

/// The most ancestors of a process that are searched, and the most searches.
const ANCESTORS_MAX: usize = 10_000;
const ANCESTOR_SEARCHES_MAX: usize = 3;

/// A process as the system lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessInfo {
    /// The process id.
    pub pid: i32,
    /// The parent's process id.
    pub parent: i32,
    /// The process group.
    pub group: i32,
    /// The start time in milliseconds since boot.
    pub started_ms: u64,
    /// `true` if it has ended and its parent has not reaped it yet.
    pub has_ended: bool,
    /// `true` if a signal has suspended it.
    pub is_suspended: bool,
}

/// The process with this id, if the system lists it.
pub fn process(pid: i32) -> Option<ProcessInfo> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name of a process's program, without control characters.
pub fn program(pid: i32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).chars().filter(|letter| !letter.is_control()).collect())
}

/// The arguments of a process, with the program's name first. Empty if they cannot be read.
pub fn arguments(pid: i32) -> Vec<Vec<u8>> {
    words_of(pid, "cmdline", EXEC_TIME_MAX)
}

/// The environment that a process started with, as `NAME=value`. Empty if it cannot be read.
pub fn environment(pid: i32) -> Vec<Vec<u8>> {
    words_of(pid, "environ", EXEC_TIME_MAX)
}

fn words_of(pid: i32, file: &str, exec_time_max: Duration) -> Vec<Vec<u8>> {
    let started_at = Instant::now();
    let mut text = process_file(pid, file);
    while text.is_empty() {
        let is_final = !is_replacing_program(pid) || started_at.elapsed() >= exec_time_max;
        text = process_file(pid, file);
        if is_final {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    text.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect()
}

fn process_file(pid: i32, file: &str) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default()
}

/// Returns true between the start of execve(2) and the moment when the system knows the new arguments. Kernel threads and ended
/// processes have no program.
fn is_replacing_program(pid: i32) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_ok() && process_file(pid, "cmdline").is_empty()
}

/// A mark for the processes that this process starts: its id and start time, unique in this boot.
pub fn own_mark() -> String {
    static MARK: OnceLock<String> = OnceLock::new();
    MARK.get_or_init(|| format!("{}-{}", std::process::id(), own_start_ms())).clone()
}

/// Returns true if the process with this id and start time runs in this boot of this machine; `None` if the system cannot tell.
pub fn is_running(pid: u32, started_ms: u64, boot: &str) -> Option<bool> {
    if own_start_ms() == 0 || boot != super::boot_id() {
        return None;
    }
    let process = i32::try_from(pid).ok().and_then(process);
    Some(process.is_some_and(|process| !process.has_ended && process.started_ms == started_ms))
}

fn all_processes() -> Vec<ProcessInfo> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter_map(process).collect()
}

/// Returns true if a process has one of `files` open, or runs a program whose name begins with `program` in `folder` or below it. `None` if
/// the system lists no processes.
pub fn is_in_use(files: &[PathBuf], program: &str, folder: &Path) -> Option<bool> {
    let all = all_processes();
    let resolved = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let files: HashSet<PathBuf> = files.iter().map(|file| resolved(file)).collect();
    let folder = resolved(folder);
    let link_of = |pid: i32, name: &str| fs::read_link(format!("/proc/{pid}/{name}"));
    let works_in_folder = |pid: i32| {
        self::program(pid).is_some_and(|name| name.starts_with(program))
            && link_of(pid, "cwd").is_ok_and(|current| current.starts_with(&folder))
    };
    let has_open = |pid: i32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|path| files.contains(&path))
    };
    let uses = |process: &ProcessInfo| !process.has_ended && (works_in_folder(process.pid) || has_open(process.pid));
    (!all.is_empty()).then(|| all.iter().any(uses))
}

/// All processes of a group.
pub fn group_members(group: i32) -> Vec<ProcessInfo> {
    all_processes().into_iter().filter(|process| process.group == group).collect()
}

/// All descendants of a process. For a subreaper these include orphans, whose own parents have ended.
pub fn descendants(ancestor: i32) -> Vec<ProcessInfo> {
    descendants_among(all_processes(), ancestor)
}

fn descendants_among(mut others: Vec<ProcessInfo>, ancestor: i32) -> Vec<ProcessInfo> {
    let (mut ancestors, mut descendants) = (BTreeSet::from([ancestor]), Vec::new());
    // Each round finds the children of those that the previous round found.
    loop {
        let (children, rest): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|process| ancestors.contains(&process.parent));
        if children.is_empty() {
            return descendants;
        }
        ancestors.extend(children.iter().map(|child| child.pid));
        descendants.extend(children);
        others = rest;
    }
}

/// Returns true if a process is `ancestor`, which started at `started_ms`, or descends from it.
pub fn descends_from(pid: i32, ancestor: i32, started_ms: u64) -> bool {
    let is_found = || {
        let parents = std::iter::successors(process(pid), |child| process(child.parent)).take(ANCESTORS_MAX);
        parents.into_iter().any(|process| process.pid == ancestor && process.started_ms == started_ms)
    };
    // A parent that ends during a search breaks it. Its children then have another one.
    (0..ANCESTOR_SEARCHES_MAX).any(|_| is_found())
}

/// Kills all descendants of a subreaper and all members of `group`, repeatedly until none is left or the time is over.
/// It kills the subreaper last, because its orphaned descendants cannot be found after its end. Returns the ids that are left. Blocks.
#[must_use]
pub fn kill_tree(subreaper: i32, group: Option<i32>, time_max: Duration) -> Vec<i32> {
    let started_at = Instant::now();
    let alive = |last_target: Option<i32>| -> Vec<ProcessInfo> {
        let members = group.map(group_members).unwrap_or_default();
        let all = descendants(subreaper).into_iter().chain(members).chain(last_target.and_then(process));
        all.filter(|process| !process.has_ended).collect()
    };
    let pids = |remaining: Vec<ProcessInfo>| remaining.into_iter().map(|process| process.pid).collect();
    let mut last_target = None;
    loop {
        let remaining = alive(last_target);
        match (remaining.is_empty(), last_target) {
            (true, Some(_)) => return Vec::new(),
            (true, None) => last_target = Some(subreaper),
            (false, _) if started_at.elapsed() >= time_max => return pids(remaining),
            (false, _) => {
                kill_all(&remaining, subreaper);
                std::thread::sleep(CHECK_INTERVAL);
            }
        }
    }
}

/// Kills `group` and all processes that `is_orphan` accepts and that are not descendants of this one, until none is left or the time is
/// over. Returns the ids that are left. Blocks.
#[must_use]
pub fn kill_orphans(group: Option<i32>, is_orphan: impl Fn(i32) -> bool, time_max: Duration) -> Vec<i32> {
    let started_at = Instant::now();
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    loop {
        let all = all_processes();
        let own_descendants: BTreeSet<i32> =
            descendants_among(all.clone(), own).iter().map(|process| process.pid).collect();
        let is_target = |process: &ProcessInfo| {
            let is_other = process.pid != own && !own_descendants.contains(&process.pid);
            !process.has_ended && (group == Some(process.group) || is_other && is_orphan(process.pid))
        };
        let remaining: Vec<i32> = all.iter().filter(|process| is_target(process)).map(|process| process.pid).collect();
        if remaining.is_empty() || started_at.elapsed() >= time_max {
            return remaining;
        }
        // It may have ended, or belong to another user. The next round checks.
        let _ = group.map(|group| signal_group(group, Signal::KILL));
        for pid in remaining {
            let _ = signal_process(pid, Signal::KILL);
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}

/// Kills the descendants of a subreaper that leads a session, so their groups have no other members. It signals whole groups,
/// so that a process that forks at that moment cannot escape.
fn kill_all(remaining: &[ProcessInfo], subreaper: i32) {
    for process in remaining {
        // It may have ended, or belong to another user. The next round checks.
        let _ = signal_process(process.pid, Signal::KILL);
        if process.pid != subreaper && process.group != subreaper {
            let _ = signal_group(process.group, Signal::KILL);
        }
    }
}

/// Makes a stopped process continue.
///
/// # Errors
/// As [`ask_to_end`].
pub fn resume(pid: i32) -> io::Result<()> {
    signal_process(pid, Signal::CONT)
}

/// Keeps other processes of the same user from reading this one's memory, environment and open files. This also
/// disables core dumps and debuggers. Linux only; it has no effect elsewhere.
pub fn hide_this_process() {
    #[cfg(target_os = "linux")]
    // An old kernel that refuses this keeps them visible.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
}

/// Closes every open file of this process except standard input, output, error and `kept_numbers`.
pub fn close_files_except(kept_numbers: &[i32]) {
    let folder = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let open: Vec<i32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in open.into_iter().filter(|number| *number > 2 && !kept_numbers.contains(number)) {
        // The file that listed the folder is closed already.
        let _ = nix::unistd::close(number);
    }
}

/// Raises the limit of open files of this process and its later children to `OPEN_FILES_WANTED`, as far as the system permits it.
pub fn raise_open_files_limit() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(OPEN_FILES_WANTED, |maximum| maximum.min(OPEN_FILES_WANTED));
    if limit.current.is_some_and(|current| current < wanted) {
        // If the system refuses it, a process that needs more files reports that.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit });
    }
}

/// Milliseconds since boot, with suspended time; 0 if the system does not tell.
pub fn uptime_ms() -> u64 {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds: f64 = text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0);
    // Never negative, and below 2^53 for some hundred thousand years.
    (seconds * 1000.0) as u64
}

/// The start time of this process in milliseconds since boot; 0 if the system does not tell.
pub fn own_start_ms() -> u64 {
    i32::try_from(std::process::id()).ok().and_then(process).map_or(0, |own| own.started_ms)
}

/// Parses `/proc/<pid>/stat` (proc_pid_stat(5)): id, name in parentheses, then state, parent, group …, with the start as
/// the 22nd field, in ticks since boot. The name may contain anything, including parentheses and spaces.
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

fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second().max(1)
}

/// The user of this process.
pub fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The process group of this process.
pub fn own_group() -> i32 {
    rustix::process::getpgrp().as_raw_nonzero().get()
}

/// Signals all processes of a group. It refuses groups 0 and 1 and this process's own group.
///
/// # Errors
/// `InvalidInput` for a refused group, `NotFound` if it has no process.
pub fn signal_group(group: i32, signal: Signal) -> io::Result<()> {
    let is_reserved = group <= 1 || group == own_group();
    send("process group", group, is_reserved, |group| kill_process_group(group, signal))
}

/// A request to a process to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndRequest {
    /// SIGHUP. A team ignores its repetition.
    InOrder,
    /// SIGTERM. A team that is stopping then stops at once.
    Insistent,
}

/// Asks a process to end. A suspended process is also continued, so that it receives the signal. It refuses processes 0 and 1 and this
/// one.
///
/// # Errors
/// `InvalidInput` for a refused process, `NotFound` if it has ended.
pub fn ask_to_end(pid: u32, request: EndRequest) -> io::Result<()> {
    let pid = i32::try_from(pid).unwrap_or(0);
    let signal = match request {
        EndRequest::InOrder => Signal::HUP,
        EndRequest::Insistent => Signal::TERM,
    };
    signal_process(pid, signal)?;
    signal_process(pid, Signal::CONT)
}

fn signal_process(pid: i32, signal: Signal) -> io::Result<()> {
    let is_reserved = pid <= 1 || u32::try_from(pid) == Ok(std::process::id());
    send("process", pid, is_reserved, |pid| kill_process(pid, signal))
}

fn send(kind: &str, id: i32, is_reserved: bool, kill: impl FnOnce(Pid) -> rustix::io::Result<()>) -> io::Result<()> {
    let target = if is_reserved { None } else { Pid::from_raw(id) };
    let Some(target) = target else {
        let text = format!("cannot signal {kind} {id}: it is reserved");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    };
    kill(target).map_err(|error| match error {
        Errno::SRCH => io::Error::new(io::ErrorKind::NotFound, error),
        other => other.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_stat_with_odd_process_name_is_parsed() {
        let line = "4021 (a) b (c) S 1 4000 4000 0 -1 4194560 1 0 0 0 2 1 0 0 20 0 1 0 8821 1 1 1";
        let process = parse_stat(line).unwrap();
        assert_eq!((process.pid, process.parent, process.group, process.has_ended), (4021, 1, 4000, false));
        assert!(!process.is_suspended && parse_stat(&line.replace(") S ", ") T ")).unwrap().is_suspended);
        assert_eq!(process.started_ms, 8821 * 1000 / ticks_per_second());
        assert_eq!(parse_stat("4021 (a) S 1"), None);
    }

    #[test]
    fn own_and_system_process_groups_are_not_signalled() {
        for group in [-1, 0, 1, own_group()] {
            let error = signal_group(group, Signal::TERM).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{group}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn environment_of_starting_program_is_read() {
        for _ in 0..20 {
            let mut child = std::process::Command::new("sleep").arg("60").env("MARKED", "yes").spawn().unwrap();
            let environment = words_of(i32::try_from(child.id()).unwrap(), "environ", Duration::from_secs(60));
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(environment.iter().any(|entry| entry == b"MARKED=yes"), "{environment:?}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn descendant_is_recognised_by_its_ancestors() {
        let mut shell = std::process::Command::new("sh").args(["-c", "sleep 60 & wait"]).spawn().unwrap();
        let shell_pid = i32::try_from(shell.id()).unwrap();
        let own = process(i32::try_from(std::process::id()).unwrap()).unwrap();
        let (mut child, mut waits) = (None, 0);
        while child.is_none() && waits < 1000 {
            child = descendants(shell_pid).first().copied();
            std::thread::sleep(Duration::from_millis(10));
            waits += 1;
        }
        let child = child.unwrap();
        assert!(descends_from(child.pid, own.pid, own.started_ms) && descends_from(own.pid, own.pid, own.started_ms));
        assert!(!descends_from(child.pid, own.pid, own.started_ms + 1), "the id belonged to another process");
        assert!(!descends_from(own.pid, child.pid, child.started_ms));
        signal_process(child.pid, Signal::KILL).unwrap();
        shell.wait().unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn own_process_is_found_with_start_time() {
        let own = process(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert_eq!(own.group, own_group());
        assert!(own.started_ms > 0 && own.started_ms <= uptime_ms());
        assert!(group_members(own.group).contains(&own));
    }
}
