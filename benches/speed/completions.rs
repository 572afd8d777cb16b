//! Completions that survive a power cut: concurrent ones share disk syncs.

use std::fs::{self, File};
use std::io::Write;
use std::thread;
use std::time::Instant;

use brigade::domain::task::{Task, TaskResult};
use brigade::domain::transition::{Actor, Change};
use brigade::ports::Durability;
use brigade::stores::file::board::BoardFiles;

use super::claims::claimant;
use super::report::{ROUNDS, Report, Target, figure, median};
use super::workspace::{TestWorkspace, pending};

const AT_ONCE: usize = 32;
/// Completions in one round: of each of many threads, and of a single thread.
const EACH: usize = 8;
const ALONE: usize = 48;
/// Syncs in one round of the bare limit.
const SYNCS: usize = 48;

pub fn measure(report: &mut Report) {
    let (mut many, mut one, mut ratios, mut bare) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (ours, alone) = (rate(AT_ONCE, EACH), rate(1, ALONE));
        many.push(ours);
        one.push(alone);
        ratios.push(ours / alone);
        bare.push(rate_of_syncs());
    }
    let bare = format!("write, fsync, rename, fsync of the folder: {}", figure(median(&bare), "/s"));
    report.add("one at a time", median(&one), "completions/s", Target::Nothing, bare);
    report.add("32 at once", median(&many), "completions/s", Target::Nothing, "");
    report.add("the same, as a multiple of one at a time", median(&ratios), "times", Target::AtLeast(2.0), "");
}

/// Completions per second by this many threads. Each thread completes this many claimed tasks in sequence.
fn rate(threads: usize, each: usize) -> f64 {
    let workspace = TestWorkspace::with_board(pending((threads * each) as u64));
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

/// Durable file replacements per second in a bare loop.
fn rate_of_syncs() -> f64 {
    let workspace = TestWorkspace::new();
    let folder = File::open(workspace.path()).unwrap();
    let started_at = Instant::now();
    for number in 0..SYNCS {
        let temporary = workspace.join("temporary");
        let mut file = File::create(&temporary).unwrap();
        file.write_all(&[b'x'; 600]).unwrap();
        file.sync_data().unwrap();
        fs::rename(&temporary, workspace.join(&format!("{number}"))).unwrap();
        folder.sync_all().unwrap();
    }
    SYNCS as f64 / started_at.elapsed().as_secs_f64()
}
