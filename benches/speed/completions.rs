//! Completions that survive a power cut: concurrent ones share disk syncs.

use std::fs::{self, File};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use brigade::domain::task::transition::{Actor, Change};
use brigade::domain::task::{Task, TaskResult};
use brigade::ports::Durability;
use brigade::stores::file::board::BoardFiles;

use super::claims::claimant;
use super::report::{ROUNDS, Report, Target, format_figure, median};
use super::workspace::{BenchWorkspace, pending};

const AT_ONCE: usize = 32;
/// Completions in one round: of each of many threads, and of a single thread.
const EACH: usize = 8;
const ALONE: usize = 48;

pub fn measure(report: &mut Report) {
    let (mut many, mut one, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let (mut bare_many, mut bare_one, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (ours, alone) = (rate(AT_ONCE, EACH), rate(1, ALONE));
        let (bare, bare_alone) = (bare_rate(AT_ONCE, EACH), bare_rate(1, ALONE));
        many.push(ours);
        one.push(alone);
        ratios.push(ours / alone);
        bare_many.push(bare);
        bare_one.push(bare_alone);
        shares.push(ours / bare * 100.0);
    }
    let bare =
        |rates: &[f64]| format!("a bare loop of replaced and synced files: {}", format_figure(median(rates), "/s"));
    report.add("one at a time", median(&one), "completions/s", Target::Nothing, bare(&bare_one));
    report.add("32 at once", median(&many), "completions/s", Target::Nothing, bare(&bare_many));
    report.add("32 at once, as a share of the bare loop", median(&shares), "%", Target::Nothing, "");
    report.add("32 at once, as a multiple of one at a time", median(&ratios), "times", Target::AtLeast(2.0), "");
}

/// Completions per second by this many threads. Each thread completes this many claimed tasks in sequence.
fn rate(threads: usize, each: usize) -> f64 {
    let workspace = BenchWorkspace::with_board(pending((threads * each) as u64));
    let board = workspace.open_board(Durability::Power);
    let who = claimant("alice");
    let mut claimed: Vec<Task> = Vec::new();
    while let Some(task) = board.claim_next(&who).unwrap() {
        claimed.push(task);
    }
    assert_eq!(claimed.len(), threads * each);
    let started_at = Instant::now();
    thread::scope(|scope| {
        for share in claimed.chunks(each) {
            scope.spawn(|| share.iter().for_each(|task| complete(&board, task)));
        }
    });
    claimed.len() as f64 / started_at.elapsed().as_secs_f64()
}

fn complete(board: &BoardFiles, task: &Task) {
    let result = TaskResult::new("done", "");
    board.change(task.id, &Change::Complete(result), &Actor::holder("alice", task.attempt)).unwrap();
}

/// Durable file replacements per second by this many threads of a bare loop, which does only the necessary steps of a completion: lock,
/// read, write, rename; then sync of the file and of the folder.
fn bare_rate(threads: usize, each: usize) -> f64 {
    let workspace = BenchWorkspace::with_board(pending((threads * each) as u64));
    let tasks = workspace.join(".tasks");
    let folder = File::open(&tasks).unwrap();
    let lock = Mutex::new(());
    let started_at = Instant::now();
    thread::scope(|scope| {
        for thread in 0..threads {
            let (tasks, folder, lock) = (&tasks, &folder, &lock);
            scope.spawn(move || {
                for number in thread * each..(thread + 1) * each {
                    let path = tasks.join(format!("task_{}.json", number + 1));
                    let guard = lock.lock().unwrap();
                    let bytes = fs::read(&path).unwrap();
                    let temporary = tasks.join(format!(".tmp-{number}"));
                    fs::write(&temporary, bytes).unwrap();
                    fs::rename(&temporary, &path).unwrap();
                    drop(guard);
                    File::open(&path).unwrap().sync_all().unwrap();
                    folder.sync_all().unwrap();
                }
            });
        }
    });
    (threads * each) as f64 / started_at.elapsed().as_secs_f64()
}
