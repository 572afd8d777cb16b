//! Kills, power cuts and full disks at every call of every board operation. Accepted changes stay, and other changes are complete or
//! absent. The order holds, no id is used twice, and no temporary file is left.
//!
//! Every case runs on a simulated disk; kills also run on real files. A failure names the scenario, the call and the
//! seed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use brigade::domain::task::claim_queue::TaskScope;
use brigade::domain::task::transition::{Actor, ActorKind, Change, TaskEdit};
use brigade::domain::task::{NewTask, Task, TaskId, TaskResult, TaskStatus};
use brigade::domain::team::phase::ClaimRef;
use brigade::domain::text::json_document::Document;
use brigade::ports::{Claimant, ReclaimRequest, StoreResult};
use brigade::stores::file::Durability;
use brigade::stores::file::board::BoardFiles;
use brigade::stores::fs::{FileSystem, RealFileSystem};
use tokio::sync::broadcast;

use crate::testkit::clock::ManualClock;
use crate::testkit::fault_injection::{CallFault, FaultyFileSystem};
use crate::testkit::simulated::{DiskOptions, SimulatedDisk};

/// A limit above the number of calls of every scenario.
const CALLS_MAX: u64 = 2_000;
/// Power cuts tried at each call.
const SEEDS: u64 = 8;

fn open(files: Arc<dyn FileSystem>, root: &Path, durability: Durability) -> StoreResult<BoardFiles> {
    let clock = Arc::new(ManualClock::default());
    BoardFiles::open(files, root, durability, clock, broadcast::channel(16).0)
}

fn lead() -> Actor {
    Actor::new("lead", ActorKind::Lead)
}

fn alice() -> Actor {
    Actor::holder("alice", 1)
}

fn claimant(name: &str) -> Claimant {
    Claimant {
        name: name.into(),
        capabilities: vec![],
        worker: format!("w-{name}"),
        lease: None,
        scope: TaskScope::All,
    }
}

fn task(subject: &str) -> NewTask {
    NewTask { subject: subject.into(), ..NewTask::default() }
}

fn blocked_task(subject: &str, blockers: &[u64]) -> NewTask {
    NewTask { blocked_by: blockers.iter().map(|id| TaskId(*id)).collect(), ..task(subject) }
}

fn done() -> Change {
    Change::Complete(TaskResult::new("done", ""))
}

type Tasks = BTreeMap<TaskId, Task>;

/// The tasks without the fields that do not depend on the calls: the time and the text of the last write.
fn tasks_of(board: &BoardFiles) -> Tasks {
    let view = board.view().unwrap();
    assert_eq!(view.invalid, vec![], "no file is half written");
    let comparable = |task: &Task| Task { updated_at: None, document: Document::default(), ..task.clone() };
    view.tasks.iter().map(|(id, task)| (*id, comparable(task))).collect()
}

fn without_mirrors(tasks: &Tasks) -> Tasks {
    tasks.iter().map(|(id, task)| (*id, Task { blocks: vec![], ..task.clone() })).collect()
}

type Operation = fn(&BoardFiles) -> StoreResult<()>;

/// One operation on the board that `prepare` makes.
struct Scenario {
    name: &'static str,
    operation: Operation,
    /// True if its effect survives a power cut after its return.
    is_durable: bool,
    /// Pairs of tasks: the second one may start only after the first one is done or deleted.
    order: &'static [(u64, u64)],
}

#[rustfmt::skip]
const SCENARIOS: &[Scenario] = &[
    Scenario { name: "open", operation: |_| Ok(()), is_durable: true, order: &[(1, 2), (1, 3)] },
    Scenario { name: "create one", is_durable: true, order: &[(1, 2), (1, 10)],
        operation: |board| board.create(&lead(), vec![blocked_task("new", &[1, 8])], false).map(drop) },
    Scenario { name: "create a batch", is_durable: true, order: &[(1, 2), (1, 11), (10, 12)],
        operation: |board| {
            let last = NewTask { blocked_by_new: vec![0, 1], ..task("c") };
            board.create(&lead(), vec![task("a"), blocked_task("b", &[1]), last], false).map(drop)
        } },
    Scenario { name: "create after a delete", is_durable: true, order: &[(1, 2)],
        operation: |board| {
            board.delete(TaskId(9), &lead())?;
            board.create(&lead(), vec![task("a"), task("b")], false).map(drop)
        } },
    Scenario { name: "claim", is_durable: false, order: &[(1, 2)], operation: |board| board.claim_next(&claimant("bob")).map(drop) },
    Scenario { name: "complete", is_durable: true, order: &[(1, 2), (1, 3)],
        operation: |board| board.change(TaskId(1), &done(), &alice()).map(drop) },
    Scenario { name: "fail", is_durable: true, order: &[(1, 2), (1, 3)],
        operation: |board| board.change(TaskId(1), &Change::Fail { reason: "no".into(), is_final: true }, &alice()).map(drop) },
    Scenario { name: "release", is_durable: true, order: &[(1, 2)],
        operation: |board| board.change(TaskId(1), &Change::Release { reason: String::new(), is_failure: false }, &alice()).map(drop) },
    Scenario { name: "reopen", is_durable: true, order: &[(6, 7)],
        operation: |board| board.change(TaskId(6), &Change::Reopen, &lead()).map(drop) },
    Scenario { name: "delete", is_durable: true, order: &[(1, 2), (4, 5)], operation: |board| board.delete(TaskId(4), &lead()).map(drop) },
    Scenario { name: "delete the last", is_durable: true, order: &[(1, 2)], operation: |board| board.delete(TaskId(9), &lead()).map(drop) },
    Scenario { name: "edit dependencies", is_durable: true, order: &[(1, 2)],
        operation: |board| {
            let edit = TaskEdit {
                add_blocked_by: vec![TaskId(8)], remove_blocked_by: vec![TaskId(4)], add_blocks: vec![TaskId(9)],
                subject: Some("edited".into()), ..TaskEdit::default()
            };
            board.change(TaskId(5), &Change::Edit(edit), &lead()).map(drop)
        } },
    Scenario { name: "reclaim", is_durable: false, order: &[(1, 2)],
        operation: |board| {
            let lost = ReclaimRequest { claims: vec![ClaimRef { task: TaskId(1), attempt: 1 }], is_failure: true, reason: "died".into(), ..ReclaimRequest::default() };
            board.reclaim(&lost).map(drop)
        } },
];

/// Task 1 is alice's, 2 and 3 wait for it; 5 waits for 4; 6 is completed and 7 waited for it; 8 is carol's; 9 is free,
/// the last one.
fn prepare(files: Arc<dyn FileSystem>, root: &Path) {
    let board = open(files, root, Durability::Process).unwrap();
    let all = vec![
        task("one"),
        blocked_task("two", &[1]),
        blocked_task("three", &[1]),
        task("four"),
        blocked_task("five", &[4]),
        task("six"),
        blocked_task("seven", &[6]),
        task("eight"),
        task("nine"),
    ];
    for new in all {
        board.create(&lead(), vec![new], false).unwrap();
    }
    board.claim(TaskId(1), &claimant("alice")).unwrap();
    board.claim(TaskId(6), &claimant("alice")).unwrap();
    board.change(TaskId(6), &done(), &alice()).unwrap();
    board.claim(TaskId(8), &claimant("carol")).unwrap();
}

fn simulated(options: DiskOptions) -> (SimulatedDisk, PathBuf) {
    let (disk, root) = (SimulatedDisk::new(options), PathBuf::from("/work"));
    disk.create_folder(&root).unwrap();
    prepare(Arc::new(disk.clone()), &root);
    disk.make_all_durable();
    (disk, root)
}

/// Opens the board with `files` and runs `operation` as a process with this fault. Returns the number of calls, and true if
/// the process learned that all is done.
fn run_process(
    files: Arc<dyn FileSystem>,
    root: &Path,
    durability: Durability,
    operation: Operation,
    fault: CallFault,
) -> (Arc<FaultyFileSystem>, bool) {
    let faulty = Arc::new(FaultyFileSystem::new(files, fault));
    let is_done = open(faulty.clone(), root, durability).and_then(|board| operation(&board)).is_ok();
    // A killed process learns nothing.
    let is_accepted = is_done && !faulty.has_failed();
    (faulty, is_accepted)
}

/// Checks the board after it is opened again.
fn check(
    files: Arc<dyn FileSystem>,
    root: &Path,
    durability: Durability,
    scenario: &Scenario,
    expected: &Expected,
    case: &str,
) {
    let board = open(Arc::clone(&files), root, durability).unwrap_or_else(|error| panic!("{case}: {error}"));
    let tasks = tasks_of(&board);
    let leftovers: Vec<String> = files
        .list(&root.join(".tasks"))
        .unwrap()
        .into_iter()
        .filter(|name| [".tmp-", ".batch-", ".applied-", ".deleted-"].iter().any(|prefix| name.starts_with(prefix)))
        .collect();
    assert_eq!(leftovers, Vec::<String>::new(), "{case}: leftovers");
    match expected.outcome {
        ExpectedOutcome::After => assert_eq!(tasks, expected.after, "{case}: an accepted change is missing"),
        ExpectedOutcome::Either => {
            for (id, task) in &without_mirrors(&tasks) {
                let is_one = |tasks: &Tasks| without_mirrors(tasks).get(id) == Some(task);
                assert!(is_one(&expected.before) || is_one(&expected.after), "{case}: {task:?} is neither old nor new");
            }
            let lost: Vec<_> = expected
                .before
                .keys()
                .filter(|id| !tasks.contains_key(id) && expected.after.contains_key(id))
                .collect();
            assert!(lost.is_empty(), "{case}: lost {lost:?}");
            let created = |tasks: &Tasks| tasks.keys().filter(|id| !expected.before.contains_key(id)).count();
            assert!([0, created(&expected.after)].contains(&created(&tasks)), "{case}: half of a batch");
        }
    }
    check_order(&tasks, scenario.order, case);
    check_still_works(&board, expected, case);
}

/// A task may not start before the tasks it waits for are done.
fn check_order(tasks: &Tasks, order: &[(u64, u64)], case: &str) {
    let is_done = |id: &TaskId| tasks.get(id).is_none_or(|task| task.status == TaskStatus::Completed);
    for (first, then) in order {
        if let Some(task) = tasks.get(&TaskId(*then)) {
            let may_begin = task.status == TaskStatus::Pending && task.blocked_by.iter().all(is_done);
            assert!(!may_begin || is_done(&TaskId(*first)), "{case}: {then} may start before {first} is done");
        }
    }
}

/// Checks that the board still works: new ids, and each task goes to one claimer.
fn check_still_works(board: &BoardFiles, expected: &Expected, case: &str) {
    let created = board.create(&lead(), vec![task("more")], false).unwrap_or_else(|error| panic!("{case}: {error}"));
    let last_id = expected.before.keys().chain(expected.after.keys()).max().unwrap();
    let is_one_of_after = expected.after.contains_key(&created[0].id) && !expected.before.contains_key(&created[0].id);
    assert!(created[0].id > *last_id || is_one_of_after, "{case}: id {} was used before {last_id}", created[0].id);
    let mut claimed = Vec::new();
    for name in ["dave", "erin"].iter().cycle() {
        match board.claim_next(&claimant(name)).unwrap() {
            Some(task) => claimed.push(task.id),
            None => break,
        }
    }
    let count = claimed.len();
    claimed.sort_unstable();
    claimed.dedup();
    assert_eq!(claimed.len(), count, "{case}: a task has two owners");
}

enum ExpectedOutcome {
    /// The whole change is present.
    After,
    /// Each task is as before or as after.
    Either,
}

struct FirstCalls {
    call: u64,
    change: u64,
    write: u64,
}

struct Expected {
    before: Tasks,
    after: Tasks,
    outcome: ExpectedOutcome,
    /// The first calls, changes and writes of the operation itself. Those before belong to the opening, which has a
    /// separate scenario.
    first: FirstCalls,
}

/// The result of the scenario without a fault.
fn expected(disk: &SimulatedDisk, root: &Path, durability: Durability, scenario: &Scenario) -> Expected {
    let files = Arc::new(FaultyFileSystem::new(Arc::new(disk.fork()), CallFault::None));
    let board = open(files.clone(), root, durability).unwrap();
    let first = match scenario.name {
        "open" => FirstCalls { call: 1, change: 1, write: 1 },
        _ => FirstCalls { call: files.calls() + 1, change: files.changes() + 1, write: files.writes() + 1 },
    };
    let before = tasks_of(&board);
    (scenario.operation)(&board).unwrap_or_else(|error| panic!("{}: {error}", scenario.name));
    Expected { before, after: tasks_of(&board), outcome: ExpectedOutcome::Either, first }
}

/// Runs `has_failed_at` for each call from `first` on, until the fault no longer happens.
fn for_each_call(first: u64, mut has_failed_at: impl FnMut(u64) -> bool) {
    for n in first..CALLS_MAX {
        if !has_failed_at(n) {
            return;
        }
    }
    panic!("the fault still happened at call {CALLS_MAX}: the operation does not end");
}

fn each_durability() -> [Durability; 2] {
    [Durability::Process, Durability::Power]
}

#[test]
fn kill_at_any_call_leaves_old_or_new_board() {
    let (disk, root) = simulated(DiskOptions::default());
    for durability in each_durability() {
        for scenario in SCENARIOS {
            let mut expected = expected(&disk, &root, durability, scenario);
            for make in [CallFault::CrashBefore as fn(u64) -> CallFault, CallFault::CrashDuring] {
                for_each_call(expected.first.change, |n| {
                    let disk: Arc<dyn FileSystem> = Arc::new(disk.fork());
                    let (faulty, is_accepted) =
                        run_process(Arc::clone(&disk), &root, durability, scenario.operation, make(n));
                    expected.outcome = if is_accepted { ExpectedOutcome::After } else { ExpectedOutcome::Either };
                    let case = format!("{} {durability:?} {:?}", scenario.name, make(n));
                    check(disk, &root, durability, scenario, &expected, &case);
                    faulty.has_failed()
                });
            }
        }
    }
}

#[test]
fn kill_at_any_call_on_real_files_is_atomic() {
    let (disk, simulated_root) = simulated(DiskOptions::default());
    for durability in each_durability() {
        for scenario in SCENARIOS {
            let mut expected = expected(&disk, &simulated_root, durability, scenario);
            for_each_call(expected.first.change, |n| {
                let folder = tempfile::tempdir().unwrap();
                let files: Arc<dyn FileSystem> = Arc::new(RealFileSystem::default());
                copy_board(&disk, &simulated_root, folder.path());
                let fault = CallFault::CrashDuring(n);
                let (faulty, is_accepted) =
                    run_process(Arc::clone(&files), folder.path(), durability, scenario.operation, fault);
                expected.outcome = if is_accepted { ExpectedOutcome::After } else { ExpectedOutcome::Either };
                let case = format!("{} {durability:?} on real files, killed inside change {n}", scenario.name);
                check(files, folder.path(), Durability::Process, scenario, &expected, &case);
                faulty.has_failed()
            });
        }
    }
}

fn copy_board(disk: &SimulatedDisk, from: &Path, to: &Path) {
    std::fs::create_dir(to.join(".tasks")).unwrap();
    for name in disk.list(&from.join(".tasks")).unwrap() {
        let (bytes, _) = disk.read(&from.join(".tasks").join(&name), 0, 1 << 20).unwrap();
        std::fs::write(to.join(".tasks").join(name), bytes).unwrap();
    }
}

#[test]
fn accepted_change_survives_power_cut_at_any_call() {
    for renames_after_bytes in [true, false] {
        let (disk, root) = simulated(DiskOptions { renames_after_bytes, ..DiskOptions::default() });
        for scenario in SCENARIOS {
            let mut expected = expected(&disk, &root, Durability::Power, scenario);
            for_each_call(expected.first.change, |n| {
                let disk = disk.fork();
                let (faulty, is_accepted) = run_process(
                    Arc::new(disk.clone()),
                    &root,
                    Durability::Power,
                    scenario.operation,
                    CallFault::CrashBefore(n),
                );
                let is_promised = is_accepted && scenario.is_durable;
                expected.outcome = if is_promised { ExpectedOutcome::After } else { ExpectedOutcome::Either };
                for seed in 0..SEEDS {
                    let case = format!("{}, power cut at call {n}, seed {seed}, {renames_after_bytes}", scenario.name);
                    let after = Arc::new(disk.fork().crash(seed * 1_000 + n * u64::from(seed > 1) + seed % 2));
                    check(after, &root, Durability::Power, scenario, &expected, &case);
                }
                faulty.has_failed()
            });
        }
    }
}

#[test]
fn full_disk_refuses_change_and_keeps_board_readable() {
    let (disk, root) = simulated(DiskOptions::default());
    for durability in each_durability() {
        for scenario in SCENARIOS {
            let mut expected = expected(&disk, &root, durability, scenario);
            for_each_call(expected.first.write, |n| {
                let disk: Arc<dyn FileSystem> = Arc::new(disk.fork());
                let faulty = Arc::new(FaultyFileSystem::new(Arc::clone(&disk), CallFault::DiskFullFrom(n)));
                let board = open(faulty.clone(), &root, durability).unwrap();
                let outcome = (scenario.operation)(&board);
                let case = format!("{} {durability:?}, disk full from write {n}", scenario.name);
                let tasks = without_mirrors(&tasks_of(&board));
                match &outcome {
                    Ok(()) => expected.outcome = ExpectedOutcome::After,
                    Err(error) => {
                        let error = error.to_string();
                        assert!(error.contains(".tasks/") && error.contains("storage space"), "{case}: {error}");
                        let is_one_step = scenario.name != "create after a delete" && scenario.name != "reopen";
                        if is_one_step {
                            assert_eq!(
                                tasks,
                                without_mirrors(&expected.before),
                                "{case}: a refused change is partly done"
                            );
                        }
                        expected.outcome = ExpectedOutcome::Either;
                    }
                }
                drop(board);
                check(disk, &root, durability, scenario, &expected, &case);
                faulty.has_failed()
            });
        }
    }
}

#[test]
fn board_works_after_any_single_failed_call() {
    let (disk, root) = simulated(DiskOptions::default());
    for durability in each_durability() {
        for scenario in SCENARIOS {
            let expected = expected(&disk, &root, durability, scenario);
            for_each_call(expected.first.call, |n| {
                let disk: Arc<dyn FileSystem> = Arc::new(disk.fork());
                let faulty = Arc::new(FaultyFileSystem::new(Arc::clone(&disk), CallFault::FailsAt(n)));
                let case = format!("{} {durability:?}, call {n} fails", scenario.name);
                if let Ok(board) = open(faulty.clone(), &root, durability) {
                    let _ = (scenario.operation)(&board);
                    let view = board.view().or_else(|_| board.view()).unwrap_or_else(|error| panic!("{case}: {error}"));
                    let other = open(Arc::clone(&disk), &root, durability).unwrap();
                    let reopened_view = other.view().unwrap();
                    let view_again = board.view().unwrap();
                    assert_eq!(view_again.tasks, reopened_view.tasks, "{case}: a running board and a new one differ");
                    assert!(view_again.revision >= view.revision);
                }
                check(disk, &root, durability, scenario, &expected, &case);
                faulty.has_failed()
            });
        }
    }
}

/// Only removing a dependency needs a durable blocker. Repairing missing mirrors needs no sync for each file.
#[test]
fn board_open_without_mirrors_syncs_no_task() {
    const COUNT: u64 = 50;
    let (disk, root) = simulated(DiskOptions::default());
    let folder = root.join(".tasks");
    disk.create_folder(&folder).unwrap();
    for id in 1..=COUNT {
        let blocker = if id > 1 { (id - 1).to_string() } else { String::new() };
        let text = format!(r#"{{"id":{id},"subject":"s","status":"pending","blockedBy":[{blocker}],"updatedAt":1}}"#);
        disk.write(&folder.join(format!("task_{id}.json")), text.as_bytes()).unwrap();
    }
    let files = Arc::new(FaultyFileSystem::new(Arc::new(disk), CallFault::None));
    let board = open(Arc::clone(&files) as Arc<dyn FileSystem>, &root, Durability::Power).unwrap();
    assert!(tasks_of(&board).values().all(|task| task.id.0 == COUNT || task.blocks == [TaskId(task.id.0 + 1)]));
    assert!(files.changes() <= 2 * COUNT + 5, "{} changes", files.changes());
}
