//! Ends the commands that a dead worker left running, and no other process.
//!
//! A record is a file that anyone can write: a cloned repository, another program. It is therefore only a hint. A process group
//! belongs to a worker if its leader has the worker's mark and started within the worker's life. If the leader has ended, its oldest
//! process counts. Processes inherit the mark from the guard ([`is_started_by_worker`]). The worker's life is from its start to
//! its last record, in this boot of this machine, in time since boot, which never jumps. Without this proof a group is left alone.
//!
//! The record and the scan of all processes for the mark are both needed. A process that cleared its environment has no mark: its
//! recorded group or guard finds it. A process that left its group and lost its guard is in no record: its mark finds it. All workers
//! of one process have the same mark, so while that process runs, only recorded commands end.

use std::time::{Duration, Instant};

use crate::domain::team::records::{GuardProcess, WorkerRecord};
use crate::platform::processes::{self, ProcessInfo, Signal};
use crate::platform::{boot_id, host_name};

use super::is_started_by_worker;

/// The time for a group to end before it is killed.
const TERMINATE_TIME: Duration = Duration::from_millis(700);

/// The wait for a killed group to be gone.
const KILL_TIME: Duration = Duration::from_millis(300);

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The allowed difference of the two clocks: starts are in ticks of 10 ms, and a group is recorded after its start.
const CLOCK_TOLERANCE_MS: u64 = 1000;

/// Ends all commands in a dead worker's record that provably belong to the worker. Blocks for at most a few seconds.
pub fn end_commands(record: &WorkerRecord) {
    let recorded = record.teammates.values().flat_map(|teammate| teammate.process_groups.iter().copied());
    let groups: Vec<i32> = recorded.filter(|group| is_group_of(*group, record)).collect();
    signal(&groups, Signal::TERM);
    let remaining = wait_for(&groups, TERMINATE_TIME);
    let remaining: Vec<i32> = remaining.into_iter().filter(|group| is_group_of(*group, record)).collect();
    signal(&remaining, Signal::KILL);
    for group in wait_for(&remaining, KILL_TIME) {
        tracing::warn!(group, worker = record.worker, "a command of a dead worker has not ended");
    }
    end_guards(record);
    end_orphans(record);
}

/// Kills processes that left their group and lost their guard. Skipped if the worker lives: its commands have the same mark.
fn end_orphans(record: &WorkerRecord) {
    if !is_of_this_boot(record) || is_process_live(record) {
        return;
    }
    let is_orphan = |pid| processes::process(pid).is_some_and(|process| is_started_by(&process, record));
    for pid in processes::kill_orphans(None, is_orphan, KILL_TIME) {
        tracing::warn!(pid, worker = record.worker, "a process of a dead worker's command has not ended");
    }
}

/// Ends the remaining guards with all their descendants. By now each live guard has ended its command, unless the guard was
/// suspended.
fn end_guards(record: &WorkerRecord) {
    let recorded = record.teammates.values().flat_map(|teammate| teammate.guards.iter());
    for guard in recorded.filter(|guard| is_guard(guard, record)) {
        for pid in processes::kill_tree(guard.pid, None, KILL_TIME) {
            tracing::warn!(pid, worker = record.worker, "a process of a dead worker's command has not ended");
        }
    }
}

fn is_guard(guard: &GuardProcess, record: &WorkerRecord) -> bool {
    let process = processes::process(guard.pid).filter(|process| !process.has_ended);
    is_of_this_boot(record)
        && guard.started_ms > 0
        && process.is_some_and(|process| process.started_ms == guard.started_ms && is_started_by(&process, record))
}

fn signal(groups: &[i32], signal: Signal) {
    for group in groups {
        // An error means that the group has ended, since its worker is dead and no other process waits for it.
        if processes::signal_group(*group, signal).is_ok() {
            tracing::info!(group, ?signal, "ended a command of a dead worker");
        }
    }
}

/// Waits until the groups have ended, and returns those that have not ended in time.
fn wait_for(groups: &[i32], time: Duration) -> Vec<i32> {
    let started_at = Instant::now();
    let mut remaining = groups.to_owned();
    loop {
        remaining.retain(|group| processes::group_members(*group).iter().any(|process| !process.has_ended));
        if remaining.is_empty() || started_at.elapsed() >= time {
            return remaining;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn is_group_of(group: i32, record: &WorkerRecord) -> bool {
    if group <= 1 || group == processes::own_group() || !is_of_this_boot(record) {
        return false;
    }
    let members = processes::group_members(group);
    let leader = members.iter().find(|process| process.pid == group);
    let oldest = leader.or_else(|| members.iter().min_by_key(|process| process.started_ms));
    oldest.is_some_and(|oldest| is_started_by(oldest, record))
}

/// Returns true if the worker ran in this boot of this machine.
pub fn is_of_this_boot(record: &WorkerRecord) -> bool {
    !record.boot.is_empty() && record.boot == boot_id() && record.host == host_name()
}

fn is_started_by(process: &ProcessInfo, record: &WorkerRecord) -> bool {
    let (Some(worker_started_ms), Some((mark, _))) = (start_in_id(&record.worker), record.worker.rsplit_once('-'))
    else {
        return false;
    };
    (worker_started_ms..=record.uptime_ms.saturating_add(CLOCK_TOLERANCE_MS)).contains(&process.started_ms)
        && is_started_by_worker(process.pid, mark)
}

/// The start of a worker's process, in milliseconds since boot: the second part of its id.
fn start_in_id(id: &str) -> Option<u64> {
    id.split('-').nth(1)?.parse().ok().filter(|started| *started > 0)
}

/// Returns true if the process with the pid and start time in a worker's `id` runs on this machine.
pub fn is_id_live(id: &str) -> bool {
    let process = id.split('-').next().and_then(|pid| pid.parse().ok()).and_then(processes::process);
    process.is_some_and(|process| !process.has_ended && Some(process.started_ms) == start_in_id(id))
}

/// Returns true if the worker's own process runs on this machine.
pub fn is_process_live(record: &WorkerRecord) -> bool {
    let is_running = |started_ms| processes::is_running(record.pid, started_ms, &record.boot) == Some(true);
    record.host == host_name() && start_in_id(&record.worker).is_some_and(is_running)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;
    use crate::domain::team::records::WorkerTeammate;
    use crate::domain::time::UnixMs;
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Child, Command};
    use std::sync::atomic::{AtomicU32, Ordering};

    const WAIT_TIME_MAX: Duration = Duration::from_secs(60);

    /// A dead worker with its own mark: the end of a worker's groups also ends all other processes with its mark.
    struct DeadWorker {
        pid: u32,
    }

    impl DeadWorker {
        fn new() -> Self {
            // Above the largest process id of Linux.
            static NEXT: AtomicU32 = AtomicU32::new(10_000_000);
            Self { pid: NEXT.fetch_add(1, Ordering::Relaxed) }
        }

        fn mark(&self) -> String {
            format!("{}-{}", self.pid, processes::own_start_ms())
        }

        /// A process group with its mark.
        fn group_of(&self, command: &str) -> Child {
            let mut shell = Command::new("sh");
            shell
                .arg("-c")
                .arg(command)
                .env(crate::sandbox::WORKER_VARIABLE, self.mark())
                .process_group(0)
                .spawn()
                .unwrap()
        }

        fn record(&self, group: i32, uptime_ms: u64) -> WorkerRecord {
            let teammate = WorkerTeammate { process_groups: vec![group], ..WorkerTeammate::default() };
            WorkerRecord {
                v: 1,
                worker: format!("{}-0", self.mark()),
                team: "t".into(),
                host: host_name(),
                pid: self.pid,
                boot: boot_id(),
                started: UnixMs(0),
                heartbeat: UnixMs(0),
                uptime_ms,
                teammates: [("alice".to_owned(), teammate)].into(),
            }
        }
    }

    fn id(child: &Child) -> i32 {
        i32::try_from(child.id()).unwrap()
    }

    fn wait_until(what: &str, condition: impl Fn() -> bool) {
        let started_at = Instant::now();
        while !condition() {
            assert!(started_at.elapsed() < WAIT_TIME_MAX, "timed out waiting until {what}");
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits for the end of a killed process, which may take long on a busy machine.
    fn wait_for_end(pid: i32) {
        wait_until("the process ends", || processes::process(pid).is_none_or(|process| process.has_ended));
    }

    #[test]
    fn ignored_sigterm_ends_in_sigkill() {
        let worker = DeadWorker::new();
        let folder = tempfile::tempdir().unwrap();
        let ready = folder.path().join("ready");
        let mut child = worker.group_of(&format!("trap '' TERM; : >{}; while :; do sleep 0.05; done", ready.display()));
        wait_until("it ignores the signal", || ready.exists());
        end_commands(&worker.record(id(&child), processes::uptime_ms()));
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }

    #[test]
    fn suspended_guard_is_killed_with_descendants() {
        // A suspended guard with a child in another session, as a command leaves it that suspends its guard.
        let worker = DeadWorker::new();
        let mut guard = worker.group_of("setsid env -i sleep 300 & kill -STOP $$; wait");
        let pid = id(&guard);
        let started_ms = processes::process(pid).unwrap().started_ms;
        let children = || processes::descendants(pid).into_iter().filter(|child| !child.has_ended).collect::<Vec<_>>();
        let is_stopped = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ");
        wait_until("it starts", || is_stopped() && children().iter().any(|child| child.group != pid));
        let child = children()[0];
        let with = |guard: GuardProcess| {
            let mut record = worker.record(2_000_000_000, processes::uptime_ms());
            record.teammates.get_mut("alice").unwrap().guards.push(guard);
            record
        };
        // Another process has its pid now.
        for started_ms in [started_ms - 10, started_ms + 10, 0] {
            end_commands(&with(GuardProcess { pid, started_ms }));
            assert!(guard.try_wait().unwrap().is_none() && !children().is_empty(), "{started_ms}: it was ended");
        }
        end_commands(&with(GuardProcess { pid, started_ms }));
        assert!(!guard.wait().unwrap().success());
        wait_for_end(child.pid);
    }

    #[test]
    fn process_that_left_its_group_is_killed() {
        // Its parent ends, so that no process of ours is its ancestor.
        let folder = tempfile::tempdir().unwrap();
        let pid_file = folder.path().join("pid");
        let command =
            format!("setsid sh -c 'echo $$ >{0}.new; mv {0}.new {0}; sleep 300' & wait $!", pid_file.display());
        let worker = DeadWorker::new();
        let mut shell = worker.group_of(&format!("({command}) & sleep 0.01"));
        wait_until("it starts", || pid_file.exists());
        let _ = processes::signal_group(id(&shell), Signal::KILL);
        shell.wait().unwrap();
        let pid: i32 = std::fs::read_to_string(pid_file).unwrap().trim().parse().unwrap();
        assert!(processes::process(pid).is_some_and(|process| !process.has_ended));
        end_commands(&worker.record(2_000_000_000, processes::uptime_ms()));
        wait_for_end(pid);
    }

    #[test]
    fn planted_record_kills_no_foreign_process() {
        // Processes of another worker of this machine, and of a program of the person.
        let dead = DeadWorker::new();
        let others = format!("1-{}", processes::own_start_ms());
        for mark in [Some(others.as_str()), Some(""), None] {
            let mut sleep = Command::new("sleep");
            sleep.arg("300").env_remove(crate::sandbox::WORKER_VARIABLE).process_group(0);
            mark.map(|mark| sleep.env(crate::sandbox::WORKER_VARIABLE, mark));
            let mut child = sleep.spawn().unwrap();
            let started_ms = processes::process(id(&child)).unwrap().started_ms;
            for worker in [format!("{}-0", dead.mark()), format!("-{started_ms}-")] {
                let mut planted = WorkerRecord { worker, ..dead.record(id(&child), u64::MAX) };
                let guard = GuardProcess { pid: id(&child), started_ms };
                planted.teammates.get_mut("alice").unwrap().guards.push(guard);
                end_commands(&planted);
                assert!(child.try_wait().unwrap().is_none(), "{mark:?}: a record of {} ended it", planted.worker);
            }
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn group_not_proven_to_be_the_workers_is_kept() {
        let worker = DeadWorker::new();
        let mut child = worker.group_of("exec sleep 300");
        let now = processes::uptime_ms();
        let good = worker.record(id(&child), now);
        // The system shows the mark only after the program has started.
        wait_until("it has the mark", || is_group_of(id(&child), &good));
        let other_boot = WorkerRecord { boot: "another".into(), ..good.clone() };
        let no_boot = WorkerRecord { boot: String::new(), ..good.clone() };
        let other_host = WorkerRecord { host: "another".into(), ..good.clone() };
        // Its pid was used again after the worker's last record.
        let ended_before = WorkerRecord { uptime_ms: now.saturating_sub(60_000), ..good.clone() };
        let began_after = WorkerRecord { worker: format!("1-{}-0", now + 60_000), ..good.clone() };
        let unknown_start = WorkerRecord { worker: "strange".into(), ..good.clone() };
        for (what, record) in [
            ("boot", other_boot),
            ("no boot", no_boot),
            ("host", other_host),
            ("ended before", ended_before),
            ("began after", began_after),
            ("start", unknown_start),
        ] {
            assert!(!is_group_of(id(&child), &record), "{what}");
            end_commands(&record);
            assert!(child.try_wait().unwrap().is_none(), "{what}: it was ended");
        }
        for group in [0, 1, processes::own_group()] {
            assert!(!is_group_of(group, &worker.record(group, now)), "{group}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
