//! Claims: the rate of eight claimers compared with a bare loop, and the time of one claim on a large board.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use brigade::domain::task::claim_queue::TaskScope;
use brigade::domain::task::transition::{Actor, Change};
use brigade::ports::{Claimant, Durability};
use brigade::stores::file::board::BoardFiles;
use serde_json::{Value, json};

use super::child_process::{ChildProcess, ready, say};
use super::report::{ROUNDS, Report, Target, format_figure, median, ms};
use super::workspace::{BenchWorkspace, mostly_closed, now_ns, open_board, pending};

const TASKS: u64 = 2000;
const PROCESSES: usize = 4;
const CLAIMERS_PER_PROCESS: usize = 2;
/// Claims in one round of [`measure_one`].
const CLAIMS_PER_ROUND: usize = 100;
/// The pause before each claim, so that the outsider can edit files meanwhile.
const PAUSE: Duration = Duration::from_millis(10);
/// The interval between two edits of the outsider.
const EDIT_EVERY: Duration = Duration::from_millis(100);

pub fn claimant(name: &str) -> Claimant {
    Claimant {
        name: name.to_owned(),
        capabilities: vec!["coder".to_owned()],
        worker: "w1".to_owned(),
        lease: None,
        scope: TaskScope::All,
    }
}

pub fn measure_rate(report: &mut Report) {
    let (mut brigade_rates, mut bare_rates, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (brigade_rate, bare_rate) = (rate("claim"), rate("claim-bare"));
        brigade_rates.push(brigade_rate);
        bare_rates.push(bare_rate);
        ratios.push(brigade_rate / bare_rate * 100.0);
    }
    let comparison = format!("bare loop {}", format_figure(median(&bare_rates), "claims/s"));
    report.add(
        "8 claimers in 4 processes, 2,000 tasks",
        median(&brigade_rates),
        "claims/s",
        Target::Nothing,
        comparison,
    );
    report.add(
        "the same, as a share of the bare loop",
        median(&ratios),
        "%",
        Target::AtLeast(80.0),
        "none claimed twice",
    );
}

/// Claims per second by all claimers in this role on a new board. Each task is claimed once.
fn rate(role: &str) -> f64 {
    let workspace = BenchWorkspace::with_board(pending(TASKS));
    let mut claimers: Vec<ChildProcess> =
        (0..PROCESSES).map(|_| ChildProcess::ready(role, workspace.path(), CLAIMERS_PER_PROCESS)).collect();
    claimers.iter_mut().for_each(|claimer| claimer.send_line("go"));
    let reports: Vec<Value> = claimers.iter_mut().map(ChildProcess::read_json).collect();
    claimers.into_iter().for_each(ChildProcess::finish);
    let claimed: Vec<u64> =
        reports.iter().flat_map(|one| one["ids"].as_array().unwrap()).map(|id| id.as_u64().unwrap()).collect();
    let different: HashSet<u64> = claimed.iter().copied().collect();
    assert_eq!((claimed.len(), different.len()), (2000, 2000), "{role}: each task is claimed once");
    let time = |which: &'static str| reports.iter().map(move |one| one[which].as_u64().unwrap());
    let took_ns = time("end").max().unwrap() - time("begin").min().unwrap();
    claimed.len() as f64 * 1e9 / took_ns as f64
}

/// A child: claims with this many threads on one open board until no task is claimable.
pub fn claim_all(workspace: &Path, threads: usize) {
    let board = open_board(workspace, Durability::Process);
    compete(threads, |number| {
        let who = claimant(&format!("claimer-{}-{number}", std::process::id()));
        let mut ids = Vec::new();
        while let Some(task) = board.claim_next(&who).unwrap() {
            ids.push(task.id.0);
        }
        ids
    });
}

/// A child: the bare loop, which does only the necessary steps of a claim: lock, read, write, rename.
pub fn claim_all_bare(workspace: &Path, threads: usize) {
    let folder = workspace.join(".tasks");
    compete(threads, |number| {
        let lock = fs::OpenOptions::new().create(true).write(true).truncate(false).open(folder.join(".lock")).unwrap();
        let mut lock = fd_lock::RwLock::new(lock);
        let me = format!("{}-{number}", std::process::id());
        let mut ids = Vec::new();
        let mut next = 1;
        while next <= TASKS {
            let guard = lock.write().unwrap();
            while next <= TASKS && !claim_bare(&folder, next, &me) {
                next += 1;
            }
            drop(guard);
            if next <= TASKS {
                ids.push(next);
            }
            next += 1;
        }
        ids
    });
}

fn claim_bare(folder: &Path, id: u64, me: &str) -> bool {
    let path = folder.join(format!("task_{id}.json"));
    let mut task: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    if task["status"] != "pending" {
        return false;
    }
    task["status"] = "in_progress".into();
    task["owner"] = me.into();
    let temporary = folder.join(format!(".tmp-{me}"));
    let mut file = fs::File::create(&temporary).unwrap();
    file.write_all(&serde_json::to_vec_pretty(&task).unwrap()).unwrap();
    drop(file);
    fs::rename(&temporary, &path).unwrap();
    true
}

/// Waits for the start line, claims in this many threads, and reports start, end and the claimed tasks.
fn compete(threads: usize, claim: impl Fn(usize) -> Vec<u64> + Sync) {
    ready();
    let begin = now_ns();
    let ids: Vec<u64> = thread::scope(|scope| {
        let claim = &claim;
        let running: Vec<_> = (0..threads).map(|number| scope.spawn(move || claim(number))).collect();
        running.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    say(&json!({ "begin": begin, "end": now_ns(), "ids": ids }).to_string());
}

pub fn measure_one(report: &mut Report) {
    let boards = [10_000, 100].map(|tasks| {
        let workspace = BenchWorkspace::with_board(mostly_closed(tasks));
        let outsider = ChildProcess::ready("edit", workspace.path(), usize::try_from(tasks).unwrap());
        (workspace.open_board(Durability::Process), outsider, workspace)
    });
    let (mut large, mut small, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let [large_ms, small_ms] = [0, 1].map(|which: usize| median(&claim_times(&boards[which].0)));
        large.push(large_ms);
        small.push(small_ms);
        ratios.push(large_ms / small_ms);
    }
    boards.into_iter().for_each(|(_, outsider, _)| outsider.finish());
    let small = format!("100 tasks: {}", format_figure(median(&small), "ms"));
    report.add("claim p50, 10,000 tasks, an outsider editing 10 files/s", median(&large), "ms", Target::Nothing, small);
    report.add("the same, as a multiple of 100 tasks", median(&ratios), "times", Target::AtMost(2.0), "");
}

/// Times of claims, in milliseconds; each claim is released before the next.
fn claim_times(board: &BoardFiles) -> Vec<f64> {
    let who = claimant("alice");
    let one = |_| {
        thread::sleep(PAUSE);
        let started_at = Instant::now();
        let task = board.claim_next(&who).unwrap().expect("a task is claimable");
        let time = ms(started_at.elapsed());
        let release = Change::Release { reason: String::new(), is_failure: false };
        board.change(task.id, &release, &Actor::holder("alice", task.attempt)).unwrap();
        time
    };
    (0..CLAIMS_PER_ROUND).map(one).collect()
}

/// A child: writes unclaimed tasks at intervals, without locks, until its pipe is closed.
pub fn edit_at_random(workspace: &Path, tasks: usize) {
    let folder = workspace.join(".tasks");
    thread::spawn(move || {
        for round in 0_u64.. {
            thread::sleep(EDIT_EVERY);
            let id = fastrand::usize(1..=tasks);
            if id.is_multiple_of(100) {
                continue;
            }
            let path = folder.join(format!("task_{id}.json"));
            let mut task: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            task["metadata"] = json!({ "round": round });
            let temporary = folder.join(".outsider");
            fs::write(&temporary, serde_json::to_string_pretty(&task).unwrap() + "\n").unwrap();
            fs::rename(&temporary, &path).unwrap();
        }
    });
    ready();
    while super::child_process::next_line().is_some() {}
}
