//! Ending the commands a dead worker left running, and no other process.
//!
//! A record is a file, and anybody may have written it: a cloned repository, another program. So it only says where to look. A process
//! group is a worker's if its leader (or, once that ended, its oldest process) carries the worker's mark, which processes inherit from
//! the guard ([`sandbox::is_of_worker`]), and started within the worker's life: not before the worker, not after its last
//! record, in this boot of this machine. Times are since boot, which never jumps. A group that cannot be proven is left alone.

use std::time::{Duration, Instant};

use crate::domain::record::{GuardProcess, WorkerRecord};
use crate::platform::processes::{self, GroupSignal, ProcessInfo};
use crate::platform::{boot_id, host_name};
use crate::sandbox;

/// How long a group may take to end before it is killed.
const TERMINATE_TIME: Duration = Duration::from_millis(700);

/// How long is waited for a killed group to be gone.
const KILL_TIME: Duration = Duration::from_millis(300);

const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// What the two clocks may differ by: starts are told in ticks of 10 ms, and a group is recorded after it started.
const SLACK_MS: u64 = 1000;

/// Ends all groups of a dead worker's record that are provably its own.
pub(super) fn end_groups(record: &WorkerRecord) {
    let recorded = record.teammates.values().flat_map(|teammate| teammate.process_groups.iter().copied());
    let groups: Vec<i32> = recorded.filter(|group| is_of(*group, record)).collect();
    signal(&groups, GroupSignal::Terminate);
    let left = wait_for(&groups, TERMINATE_TIME);
    let left: Vec<i32> = left.into_iter().filter(|group| is_of(*group, record)).collect();
    signal(&left, GroupSignal::Kill);
    for group in wait_for(&left, KILL_TIME) {
        tracing::warn!(group, worker = record.worker, "a command of a dead worker has not ended");
    }
    end_guards(record);
    end_orphans(record);
}

/// Kills what left its group and lost its guard. A worker whose process lives has commands with the same mark.
fn end_orphans(record: &WorkerRecord) {
    if !is_of_this_boot(record) || process_lives(record) {
        return;
    }
    let is_orphan = |pid| processes::process(pid).is_some_and(|process| is_started_by(&process, record));
    for pid in processes::kill_orphans(None, is_orphan, KILL_TIME) {
        tracing::warn!(pid, worker = record.worker, "a process of a dead worker's command has not ended");
    }
}

/// Ends the guards that are still there, with all they have started: a guard that lives has let its command go by now, unless
/// somebody stopped it.
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

fn signal(groups: &[i32], signal: GroupSignal) {
    for group in groups {
        // Its worker is dead, and nobody else waits for it; one that has ended meanwhile is what was wanted.
        if processes::signal_group(*group, signal).is_ok() {
            tracing::info!(group, ?signal, "ended what a dead worker left running");
        }
    }
}

/// Waits until the groups have ended, and returns those that have not in time.
fn wait_for(groups: &[i32], time: Duration) -> Vec<i32> {
    let began = Instant::now();
    let mut left = groups.to_owned();
    loop {
        left.retain(|group| processes::group_members(*group).iter().any(|process| !process.has_ended));
        if left.is_empty() || began.elapsed() >= time {
            return left;
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

fn is_of(group: i32, record: &WorkerRecord) -> bool {
    if group <= 1 || group == processes::own_group() || !is_of_this_boot(record) {
        return false;
    }
    let members = processes::group_members(group);
    let leader = members.iter().find(|process| process.pid == group);
    let eldest = leader.or_else(|| members.iter().min_by_key(|process| process.started_ms));
    eldest.is_some_and(|eldest| is_started_by(eldest, record))
}

pub(super) fn is_of_this_boot(record: &WorkerRecord) -> bool {
    !record.boot.is_empty() && record.boot == boot_id() && record.host == host_name()
}

fn is_started_by(process: &ProcessInfo, record: &WorkerRecord) -> bool {
    let (Some(worker_started_ms), Some((mark, _))) = (started_ms(record), record.worker.rsplit_once('-')) else {
        return false;
    };
    (worker_started_ms..=record.uptime_ms.saturating_add(SLACK_MS)).contains(&process.started_ms)
        && sandbox::is_of_worker(process.pid, mark)
}

/// When the worker's process started, in milliseconds since boot: the second part of its id.
fn started_ms(record: &WorkerRecord) -> Option<u64> {
    started_ms_of(&record.worker)
}

fn started_ms_of(id: &str) -> Option<u64> {
    id.split('-').nth(1)?.parse().ok().filter(|started| *started > 0)
}

/// Whether the process lives that an id names by its number and its start, as far as this machine can say.
pub(super) fn id_lives(id: &str) -> bool {
    let process = id.split('-').next().and_then(|pid| pid.parse().ok()).and_then(processes::process);
    process.is_some_and(|process| !process.has_ended && Some(process.started_ms) == started_ms_of(id))
}

/// Whether the worker's own process is there, as far as this machine can say.
pub(super) fn process_lives(record: &WorkerRecord) -> bool {
    let process = i32::try_from(record.pid).ok().and_then(processes::process);
    is_of_this_boot(record)
        && process.is_some_and(|process| !process.has_ended && Some(process.started_ms) == started_ms(record))
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;
    use crate::domain::record::WorkerTeammate;
    use crate::domain::time::UnixMs;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    /// A group with the mark of the worker of [`record`].
    fn group_of(command: &str) -> Child {
        let mark = format!("999999-{}", processes::own_start_ms());
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(command).env(sandbox::WORKER_VARIABLE, mark).process_group(0).spawn().unwrap()
    }

    fn record(group: i32, uptime_ms: u64) -> WorkerRecord {
        let teammate = WorkerTeammate { process_groups: vec![group], ..WorkerTeammate::default() };
        WorkerRecord {
            v: 1,
            worker: format!("999999-{}-0", processes::own_start_ms()),
            team: "t".into(),
            host: host_name(),
            pid: 999_999,
            boot: boot_id(),
            started: UnixMs(0),
            heartbeat: UnixMs(0),
            uptime_ms,
            teammates: [("alice".to_owned(), teammate)].into(),
        }
    }

    fn id(child: &Child) -> i32 {
        i32::try_from(child.id()).unwrap()
    }

    #[test]
    fn a_group_that_ignores_the_request_is_ended_within_a_second() {
        let mut child = group_of("trap '' TERM; while :; do sleep 0.05; done");
        let record = record(id(&child), processes::uptime_ms());
        let began = Instant::now();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| child.wait().unwrap());
            end_groups(&record);
            assert!(began.elapsed() < Duration::from_secs(2));
            assert!(!waiting.join().unwrap().success());
        });
    }

    #[test]
    fn a_stopped_guard_is_ended_with_all_it_has_started() {
        // Stopped, with a child in a session of its own, as a command leaves it that stops its guard.
        let mut guard = group_of("setsid sleep 300 & kill -STOP $$; wait");
        let pid = id(&guard);
        let started_ms = processes::process(pid).unwrap().started_ms;
        let began = Instant::now();
        let children = || processes::descendants(pid).into_iter().filter(|child| !child.has_ended).collect::<Vec<_>>();
        let is_stopped = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ");
        while !(is_stopped() && children().iter().any(|child| child.group != pid)) {
            assert!(began.elapsed() < Duration::from_secs(60), "it does not start");
            std::thread::sleep(LOOK_INTERVAL);
        }
        let child = children()[0];
        let with = |guard: GuardProcess| {
            let mut record = record(2_000_000_000, processes::uptime_ms());
            record.teammates.get_mut("alice").unwrap().guards.push(guard);
            record
        };
        // Another process has its number now.
        for started_ms in [started_ms - 10, started_ms + 10, 0] {
            end_groups(&with(GuardProcess { pid, started_ms }));
            assert!(guard.try_wait().unwrap().is_none() && !children().is_empty(), "{started_ms}: it was ended");
        }
        end_groups(&with(GuardProcess { pid, started_ms }));
        assert!(!guard.wait().unwrap().success());
        assert!(processes::process(child.pid).is_none_or(|child| child.has_ended), "its child is left");
    }

    #[test]
    fn process_that_left_its_group_is_ended() {
        // Its parent ends, so that it is below no process of ours.
        let folder = tempfile::tempdir().unwrap();
        let pid_file = folder.path().join("pid");
        let command =
            format!("setsid sh -c 'echo $$ >{0}.new; mv {0}.new {0}; sleep 300' & wait $!", pid_file.display());
        let mut shell = group_of(&format!("({command}) & sleep 0.01"));
        let began = Instant::now();
        while !pid_file.exists() {
            assert!(began.elapsed() < Duration::from_secs(60), "it does not start");
            std::thread::sleep(LOOK_INTERVAL);
        }
        let _ = processes::signal_group(id(&shell), GroupSignal::Kill);
        shell.wait().unwrap();
        let pid: i32 = std::fs::read_to_string(pid_file).unwrap().trim().parse().unwrap();
        assert!(processes::process(pid).is_some_and(|process| !process.has_ended));
        end_groups(&record(2_000_000_000, processes::uptime_ms()));
        assert!(processes::process(pid).is_none_or(|process| process.has_ended), "{pid} is left");
    }

    #[test]
    fn planted_record_ends_no_foreign_process() {
        // As another worker of this machine, and a program of the person, start them.
        let others = format!("1-{}", processes::own_start_ms());
        for mark in [Some(others.as_str()), Some(""), None] {
            let mut sleep = Command::new("sleep");
            sleep.arg("300").env_remove(sandbox::WORKER_VARIABLE).process_group(0);
            mark.map(|mark| sleep.env(sandbox::WORKER_VARIABLE, mark));
            let mut child = sleep.spawn().unwrap();
            let started_ms = processes::process(id(&child)).unwrap().started_ms;
            for worker in [format!("999999-{}-0", processes::own_start_ms()), format!("-{started_ms}-")] {
                let mut planted = WorkerRecord { worker, ..record(id(&child), u64::MAX) };
                let guard = GuardProcess { pid: id(&child), started_ms };
                planted.teammates.get_mut("alice").unwrap().guards.push(guard);
                end_groups(&planted);
                assert!(child.try_wait().unwrap().is_none(), "{mark:?}: a record of {} ended it", planted.worker);
            }
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_group_that_was_not_provably_the_workers_is_left_alone() {
        let mut child = group_of("sleep 30");
        let now = processes::uptime_ms();
        let good = record(id(&child), now);
        assert!(is_of(id(&child), &good));
        let other_boot = WorkerRecord { boot: "another".into(), ..good.clone() };
        let no_boot = WorkerRecord { boot: String::new(), ..good.clone() };
        let other_host = WorkerRecord { host: "another".into(), ..good.clone() };
        // Its id was used again after the worker's last record.
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
            assert!(!is_of(id(&child), &record), "{what}");
            end_groups(&record);
            assert!(child.try_wait().unwrap().is_none(), "{what}: it was ended");
        }
        for group in [0, 1, processes::own_group()] {
            assert!(!is_of(group, &record(group, now)), "{group}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
