//! The contract of every task board, and tests of the board on files only.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use brigade::domain::task::claim_queue::{ClaimObstacle, TaskScope};
use brigade::domain::task::dependencies::{Blocker, BlockerState};
use brigade::domain::task::transition::{Actor, ActorKind, Change, TaskEdit};
use brigade::domain::task::{NewTask, SUBJECT_CHARS_MAX, Task, TaskId, TaskResult, TaskStatus};
use brigade::domain::team::budget::CapReached;
use brigade::domain::team::phase::ClaimRef;
use brigade::domain::time::UnixMs;
use brigade::ports::{Board, Claimant, Clock, MissingTask, ReclaimRequest, StoreChange, StoreError, StoreResult};
use brigade::stores::board_engine::TASK_BYTES_MAX;
use brigade::stores::file::Durability;
use brigade::stores::file::board::{BoardFiles, FileBoard};
use brigade::stores::fs::{FileSystem, LockTimeout, RealFileSystem};
use brigade::stores::memory::board::MemoryBoard;
use brigade::stores::workspace::{OpenMode, OpenOptions, OpenStores};
use tempfile::TempDir;
use tokio::sync::broadcast;

use crate::stores::database::DATABASE;
use crate::stores::support::options;
use crate::testkit::clock::ManualClock;
use crate::testkit::fault_injection::{CallFault, FaultyFileSystem};
use crate::testkit::process::eventually;

/// A board under test, with its clock and its folder.
struct BoardFixture {
    board: Arc<dyn Board>,
    clock: Arc<ManualClock>,
    changes: broadcast::Receiver<StoreChange>,
    folder: Option<TempDir>,
    _workspace: Option<OpenStores>,
}

fn in_memory() -> BoardFixture {
    let (sender, changes) = broadcast::channel(1024);
    let clock = Arc::new(ManualClock::default());
    BoardFixture {
        board: Arc::new(MemoryBoard::new(clock.clone(), sender)),
        clock,
        changes,
        folder: None,
        _workspace: None,
    }
}

fn in_database() -> BoardFixture {
    let (clock, folder) = (Arc::new(ManualClock::default()), tempfile::tempdir().unwrap());
    let mode = OpenMode::Work { team: "my-team".into() };
    let workspace = (DATABASE.open)(folder.path(), &OpenOptions { clock: clock.clone(), ..options(mode) }).unwrap();
    let (board, changes) = (Arc::clone(&workspace.stores.board), workspace.stores.changes.subscribe());
    BoardFixture { board, clock, changes, folder: Some(folder), _workspace: Some(workspace) }
}

fn over(files: Arc<dyn FileSystem>, durability: Durability) -> BoardFixture {
    let (sender, changes) = broadcast::channel(1024);
    let (clock, folder) = (Arc::new(ManualClock::default()), tempfile::tempdir().unwrap());
    let board = BoardFiles::open(files, folder.path(), durability, clock.clone(), sender).unwrap();
    BoardFixture { board: Arc::new(FileBoard::from(board)), clock, changes, folder: Some(folder), _workspace: None }
}

fn in_files() -> BoardFixture {
    over(Arc::new(RealFileSystem::default()), Durability::Process)
}

fn in_durable_files() -> BoardFixture {
    over(Arc::new(RealFileSystem::default()), Durability::Power)
}

fn in_unwatched_files() -> BoardFixture {
    over(
        Arc::new(FaultyFileSystem::new(Arc::new(RealFileSystem::default()), CallFault::NoFileEvents)),
        Durability::Process,
    )
}

impl BoardFixture {
    fn path(&self) -> PathBuf {
        self.folder.as_ref().unwrap().path().join(".tasks")
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path().join(name)).unwrap()
    }

    /// A board on the same folder with its own cache, as a second process has.
    fn other(&self) -> FileBoard {
        let files = Arc::new(RealFileSystem::default());
        let root = self.folder.as_ref().unwrap().path();
        let clock = self.clock.clone();
        BoardFiles::open(files, root, Durability::Process, clock, broadcast::channel(1).0).unwrap().into()
    }

    async fn create(&self, tasks: Vec<NewTask>) -> Vec<Task> {
        self.board.create(&lead(), tasks, false).await.unwrap()
    }

    async fn claim(&self, name: &str) -> Option<Task> {
        self.board.claim_next(&claimant(name, &[])).await.unwrap()
    }

    async fn complete(&self, task: &Task) -> Task {
        self.board.change(task.id, complete(), &holder(task)).await.unwrap()
    }
}

fn lead() -> Actor {
    Actor::new("lead", ActorKind::Lead)
}

fn holder(task: &Task) -> Actor {
    Actor::holder(task.owner.as_deref().unwrap(), task.attempt)
}

fn complete() -> Change {
    Change::Complete(TaskResult::new("done", ""))
}

fn fail(reason: &str) -> Change {
    Change::Fail { reason: reason.into(), is_final: false }
}

fn claimant(name: &str, capabilities: &[&str]) -> Claimant {
    let capabilities = capabilities.iter().map(|text| (*text).to_owned()).collect();
    Claimant {
        name: name.into(),
        capabilities,
        worker: format!("worker-of-{name}"),
        lease: None,
        scope: TaskScope::All,
    }
}

fn task(subject: &str) -> NewTask {
    NewTask { subject: subject.into(), ..NewTask::default() }
}

fn after(subject: &str, blockers: &[u64]) -> NewTask {
    NewTask { blocked_by: ids(blockers), ..task(subject) }
}

fn ids(numbers: &[u64]) -> Vec<TaskId> {
    numbers.iter().map(|number| TaskId(*number)).collect()
}

fn edit(edit: TaskEdit) -> Change {
    Change::Edit(edit)
}

macro_rules! contract {
    ($($test:ident),* $(,)?) => {
        mod database { $( #[tokio::test] async fn $test() { super::$test(super::in_database()).await } )* }
        mod memory { $( #[tokio::test] async fn $test() { super::$test(super::in_memory()).await } )* }
        mod files { $( #[tokio::test] async fn $test() { super::$test(super::in_files()).await } )* }
        mod durable_files { $( #[tokio::test] async fn $test() { super::$test(super::in_durable_files()).await } )* }
        mod unwatched_files { $( #[tokio::test] async fn $test() { super::$test(super::in_unwatched_files()).await } )* }
    };
}

contract!(
    created_tasks_get_numbers_and_change_notice,
    refused_create_call_creates_no_task,
    texts_are_stored_without_spaces_around_them,
    tasks_of_one_call_may_depend_on_each_other,
    task_of_known_source_is_not_created_twice,
    claim_next_takes_highest_priority_then_lowest_id,
    claim_needs_capabilities_and_matching_owner,
    reservation_outlasts_claims,
    claim_by_id_error_names_obstacle,
    completion_unblocks_and_reopen_blocks_again,
    failed_blocker_blocks_until_completed,
    stale_holder_cannot_change_task,
    task_fails_after_max_attempts,
    task_at_its_cap_is_claimable_after_raise,
    dependency_edit_updates_blocks_and_blocked_by,
    teammate_cannot_block_tasks_of_others,
    deleted_task_unblocks_and_its_id_is_not_reused,
    claim_of_dead_worker_is_reclaimed,
    lease_is_renewed_and_reclaimed_after_expiry,
    task_over_size_limit_is_refused,
    board_view_is_an_immutable_snapshot,
);

async fn created_tasks_get_numbers_and_change_notice(mut fixture: BoardFixture) {
    let made = fixture.create(vec![task("one"), task("two")]).await;
    assert_eq!(made.iter().map(|task| task.id).collect::<Vec<_>>(), ids(&[1, 2]));
    assert_eq!((made[0].subject.as_str(), made[0].status), ("one", TaskStatus::Pending));
    assert_eq!(made[0].created_by.as_deref(), Some("lead"));
    assert_eq!(made[0].created_at, Some(fixture.clock.now()));
    assert_eq!(fixture.changes.try_recv().unwrap(), StoreChange::Board);
    assert_eq!(fixture.create(vec![task("three")]).await[0].id, TaskId(3));
    assert_eq!(fixture.board.view().await.unwrap().tasks.len(), 3);
    assert_eq!(fixture.board.get(TaskId(2)).await.unwrap(), made[1]);
    assert!(matches!(fixture.board.get(TaskId(9)).await, Err(StoreError::NoTask(MissingTask { id: TaskId(9), .. }))));
    assert_eq!(fixture.create(vec![]).await, vec![]);
}

async fn refused_create_call_creates_no_task(fixture: BoardFixture) {
    fixture.create(vec![task("one")]).await;
    let waits_for = |index| NewTask { blocked_by_new: vec![index], ..task("x") };
    for (tasks, reason) in [
        (vec![task("fine"), after("x", &[99])], "no such task"),
        (vec![waits_for(1), waits_for(0)], "cycle"),
        (vec![waits_for(0)], "cycle"),
        (vec![task("fine"), waits_for(7)], "waits for task 7"),
        (vec![after("x", &[2])], "no such task"),
        (vec![task("fine"), task("two\nlines")], "one line"),
        (vec![task(" ")], "needs a subject"),
        (vec![task(&"é".repeat(SUBJECT_CHARS_MAX + 1))], "at most 500 characters"),
    ] {
        let error = fixture.board.create(&lead(), tasks, false).await.unwrap_err().to_string();
        assert!(error.contains(reason), "{error} does not contain {reason}");
    }
    assert_eq!(fixture.board.view().await.unwrap().tasks.len(), 1);
    fixture.create(vec![task(&"é".repeat(SUBJECT_CHARS_MAX))]).await;
}

async fn texts_are_stored_without_spaces_around_them(fixture: BoardFixture) {
    let words = || vec![" ".to_owned(), " coder ".to_owned()];
    let blank = || Some(" ".to_owned());
    let new = NewTask { requires: words(), verify: blank(), owner: blank(), ..task(" one ") };
    let made = fixture.create(vec![new]).await.remove(0);
    assert_eq!((made.subject.as_str(), made.verify, made.owner), ("one", None, None));
    assert_eq!(made.requires, ["coder"]);
    let (subject, verify) = (Some(" two ".to_owned()), Some(" true ".to_owned()));
    let edit = TaskEdit { subject, verify, requires: Some(words()), ..TaskEdit::default() };
    let edited = fixture.board.change(TaskId(1), Change::Edit(edit), &lead()).await.unwrap();
    assert_eq!((edited.subject.as_str(), edited.verify.as_deref()), ("two", Some("true")));
    assert_eq!(edited.requires, ["coder"]);
}

async fn tasks_of_one_call_may_depend_on_each_other(fixture: BoardFixture) {
    fixture.create(vec![task("one")]).await;
    let made = fixture
        .create(vec![NewTask { blocked_by: ids(&[1]), blocked_by_new: vec![1], ..task("last") }, task("first")])
        .await;
    assert_eq!(made[0].blocked_by, ids(&[1, 3]));
    assert_eq!(made[1].blocks, ids(&[2]));
    assert_eq!(fixture.board.get(TaskId(1)).await.unwrap().blocks, ids(&[2]));
    for expected in [1, 3, 2] {
        let claimed = fixture.claim("alice").await.unwrap();
        assert_eq!(claimed.id, TaskId(expected));
        fixture.complete(&claimed).await;
    }
    // No open task waits for a completed one, but the board knows which tasks it would block.
    assert_eq!(fixture.create(vec![after("late", &[1])]).await[0].blocked_by, ids(&[]));
    assert_eq!(fixture.board.get(TaskId(1)).await.unwrap().blocks, ids(&[2, 4]));
}

async fn task_of_known_source_is_not_created_twice(fixture: BoardFixture) {
    let from = |subject: &str, source: &str| NewTask { source: Some(source.into()), ..task(subject) };
    let plan = || vec![from("a", "plan#a"), NewTask { blocked_by_new: vec![0], ..from("b", "plan#b") }];
    let first = fixture.board.create(&lead(), plan(), true).await.unwrap();
    let again = fixture.board.create(&lead(), plan(), true).await.unwrap();
    assert_eq!(first.iter().map(|task| task.id).collect::<Vec<_>>(), ids(&[1, 2]));
    assert_eq!(again, [fixture.board.get(TaskId(1)).await.unwrap(), first[1].clone()]);
    let mut longer = plan();
    longer.push(NewTask { blocked_by_new: vec![1], ..from("c", "plan#c") });
    longer.push(from("c again", "plan#c"));
    let made = fixture.board.create(&lead(), longer, true).await.unwrap();
    assert_eq!(made.iter().map(|task| task.id).collect::<Vec<_>>(), ids(&[1, 2, 3, 3]));
    assert_eq!(made[2].blocked_by, ids(&[2]));
    assert_eq!(fixture.board.create(&lead(), plan(), false).await.unwrap()[1].id, TaskId(5));
}

async fn claim_next_takes_highest_priority_then_lowest_id(fixture: BoardFixture) {
    let with = |subject: &str, priority| NewTask { priority, ..task(subject) };
    let mut tasks: Vec<NewTask> = (1..=10).map(|_| with("plain", 0)).collect();
    tasks.push(with("urgent", 5));
    tasks.push(with("urgent too", 5));
    tasks.push(with("later", -1));
    tasks.push(NewTask { blocked_by: vec![], blocked_by_new: vec![12], ..with("blocked", 9) });
    fixture.create(tasks).await;
    let mut order = Vec::new();
    while let Some(claimed) = fixture.claim("alice").await {
        assert_eq!((claimed.status, claimed.attempt), (TaskStatus::InProgress, 1));
        assert_eq!(claimed.owner.as_deref(), Some("alice"));
        assert_eq!(claimed.claim.as_ref().unwrap().worker, "worker-of-alice");
        assert_eq!(claimed.claim.as_ref().unwrap().expires, None);
        order.push(claimed.id.0);
    }
    assert_eq!(order, [11, 12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13], "ids are ordered as numbers");
}

async fn claim_needs_capabilities_and_matching_owner(fixture: BoardFixture) {
    let requires = |needs: &[&str]| NewTask { requires: needs.iter().map(|n| (*n).to_owned()).collect(), ..task("x") };
    fixture.create(vec![requires(&["rust", "go"]), requires(&["docs"]), task("kept"), task("anyone's")]).await;
    let keep = edit(TaskEdit { owner: Some("carol".into()), ..TaskEdit::default() });
    fixture.board.change(TaskId(3), keep, &lead()).await.unwrap();
    let claim = async |name: &str, capabilities: &[&str]| {
        fixture.board.claim_next(&claimant(name, capabilities)).await.unwrap().map(|task| task.id.0)
    };
    assert_eq!(claim("alice", &["coder", "RUST"]).await, Some(1));
    assert_eq!(claim("alice", &["coder"]).await, Some(4));
    assert_eq!(claim("alice", &["coder"]).await, None);
    assert_eq!(claim("carol", &[]).await, Some(3));
    assert_eq!(claim("carol", &["docs"]).await, Some(2));
}

/// A reserved task is pending for its member again after each end of a claim, until the reservation is changed.
async fn reservation_outlasts_claims(fixture: BoardFixture) {
    let id = fixture.create(vec![NewTask { owner: Some("alice".into()), ..task("kept") }]).await[0].id;
    let owner = async || {
        fixture.clock.advance(Duration::from_secs(100));
        let pending = fixture.board.get(id).await.unwrap();
        assert_eq!((pending.status, pending.reserved_for), (TaskStatus::Pending, None));
        pending.owner
    };
    let release = Change::Release { reason: String::new(), is_failure: false };
    let give_up = Change::Fail { reason: "no compiler".into(), is_final: true };
    for (end, again) in [
        (release.clone(), None),
        (fail("red"), None),
        (give_up, Some(Change::Retry)),
        (complete(), Some(Change::Reopen)),
    ] {
        let held = fixture.claim("alice").await.unwrap();
        let ended = fixture.board.change(id, end, &holder(&held)).await.unwrap();
        if let Some(again) = again {
            assert_eq!((ended.owner.as_deref(), ended.reserved_for.as_deref()), (Some("alice"), Some("alice")));
            fixture.board.change(id, again, &lead()).await.unwrap();
        }
        assert_eq!(owner().await.as_deref(), Some("alice"));
        assert_eq!(fixture.claim("bob").await, None);
    }
    let held = fixture.claim("alice").await.unwrap();
    let request = ReclaimRequest { claims: vec![ClaimRef::of(&held)], ..ReclaimRequest::default() };
    assert_eq!(fixture.board.reclaim(&request).await.unwrap()[0].owner, "alice");
    assert_eq!(owner().await.as_deref(), Some("alice"));

    // An edit of a task in progress leaves its holder, and decides for whom it is pending next.
    for name in ["bob", ""] {
        let held = fixture.claim(owner().await.as_deref().unwrap()).await.unwrap();
        let reserve = edit(TaskEdit { owner: Some(name.into()), ..TaskEdit::default() });
        let edited = fixture.board.change(id, reserve, &lead()).await.unwrap();
        assert_eq!(edited.owner, held.owner);
        fixture.board.change(id, release.clone(), &holder(&held)).await.unwrap();
        assert_eq!(owner().await.unwrap_or_default(), name);
    }
    assert!(fixture.claim("carol").await.unwrap().reserved_for.is_none());
}

async fn claim_by_id_error_names_obstacle(fixture: BoardFixture) {
    fixture
        .create(vec![task("one"), after_new("two", 0), NewTask { requires: vec!["rust".into()], ..task("three") }])
        .await;
    let obstacle = async |id, name: &str| match fixture.board.claim(TaskId(id), &claimant(name, &[])).await {
        Err(StoreError::NotClaimable { obstacle, .. }) => Some(obstacle),
        Ok(_) => None,
        Err(other) => panic!("{other}"),
    };
    let pending = Blocker { id: TaskId(1), state: BlockerState::Unfinished(TaskStatus::Pending) };
    assert_eq!(obstacle(2, "alice").await, Some(ClaimObstacle::Blocked(vec![pending])));
    assert_eq!(obstacle(3, "alice").await, Some(ClaimObstacle::MissingCapability(vec!["rust".into()])));
    assert_eq!(obstacle(1, "alice").await, None);
    assert_eq!(obstacle(1, "bob").await, Some(ClaimObstacle::Held { owner: "alice".into(), is_foreign: false }));
    let held = fixture.board.get(TaskId(1)).await.unwrap();
    fixture.board.change(held.id, fail("no luck"), &holder(&held)).await.unwrap();
    assert_eq!(obstacle(1, "bob").await, Some(ClaimObstacle::RetryIn(Duration::from_secs(1))));
    assert_eq!(fixture.claim("bob").await, None);
    fixture.clock.advance(Duration::from_millis(1001));
    let again = fixture.claim("bob").await.unwrap();
    assert_eq!((again.id, again.attempt, again.not_before), (TaskId(1), 2, None));
    fixture.complete(&again).await;
    assert_eq!(obstacle(1, "bob").await, Some(ClaimObstacle::Finished(TaskStatus::Completed)));
    let missing = fixture.board.claim(TaskId(9), &claimant("bob", &[])).await;
    assert!(matches!(missing, Err(StoreError::NoTask(MissingTask { id: TaskId(9), .. }))));
}

fn after_new(subject: &str, index: usize) -> NewTask {
    NewTask { blocked_by_new: vec![index], ..task(subject) }
}

async fn completion_unblocks_and_reopen_blocks_again(fixture: BoardFixture) {
    fixture.create(vec![task("one"), after_new("two", 0), after_new("three", 0)]).await;
    let one = fixture.claim("alice").await.unwrap();
    assert_eq!(fixture.claim("bob").await, None);
    let done = fixture.complete(&one).await;
    assert_eq!((done.status, done.claim, done.blocks), (TaskStatus::Completed, None, ids(&[2, 3])));
    assert_eq!(done.result.unwrap().summary, "done");
    assert_eq!(fixture.board.get(TaskId(2)).await.unwrap().blocked_by, ids(&[]));
    let two = fixture.claim("bob").await.unwrap();
    let reopened = fixture.board.change(TaskId(1), Change::Reopen, &lead()).await.unwrap();
    assert_eq!((reopened.status, reopened.owner), (TaskStatus::Pending, None));
    // Only a task that is not started waits again.
    assert_eq!(fixture.board.get(TaskId(2)).await.unwrap().blocked_by, ids(&[]));
    assert_eq!(fixture.board.get(TaskId(3)).await.unwrap().blocked_by, ids(&[1]));
    assert_eq!(fixture.claim("carol").await.unwrap().id, TaskId(1));
    assert_eq!(fixture.claim("carol").await, None);
    fixture.complete(&two).await;
}

async fn failed_blocker_blocks_until_completed(fixture: BoardFixture) {
    fixture.create(vec![task("one"), after_new("two", 0)]).await;
    let one = fixture.claim("alice").await.unwrap();
    let end = Change::Fail { reason: "hopeless".into(), is_final: true };
    let failed = fixture.board.change(one.id, end, &holder(&one)).await.unwrap();
    assert_eq!((failed.status, failed.owner.as_deref()), (TaskStatus::Failed, Some("alice")));
    assert_eq!(fixture.claim("bob").await, None);
    assert!(fixture.board.change(TaskId(1), Change::Retry, &Actor::new("bob", ActorKind::Teammate)).await.is_err());
    fixture.board.change(TaskId(1), Change::Retry, &lead()).await.unwrap();
    let one = fixture.claim("bob").await.unwrap();
    assert_eq!((one.id, one.attempt, one.failures), (TaskId(1), 2, 0));
    fixture.complete(&one).await;
    assert_eq!(fixture.claim("bob").await.unwrap().id, TaskId(2));
}

async fn stale_holder_cannot_change_task(fixture: BoardFixture) {
    fixture.create(vec![task("one")]).await;
    let first = fixture.claim("alice").await.unwrap();
    let gone = ReclaimRequest { claims: vec![ClaimRef::of(&first)], ..ReclaimRequest::default() };
    fixture.board.reclaim(&gone).await.unwrap();
    let second = fixture.claim("alice").await.unwrap();
    assert_eq!(second.attempt, 2);
    for change in [complete(), fail("x"), Change::Release { reason: String::new(), is_failure: false }] {
        let error = fixture.board.change(first.id, change, &holder(&first)).await.unwrap_err().to_string();
        assert!(error.contains("cannot change task #1 in attempt 1: "), "{error}");
    }
    assert_eq!(fixture.board.get(first.id).await.unwrap(), second);
    fixture.complete(&second).await;
}

async fn task_at_its_cap_is_claimable_after_raise(fixture: BoardFixture) {
    fixture.create(vec![NewTask { tokens_max: Some(100), ..task("dear") }]).await;
    let held = fixture.claim("a").await.unwrap();
    let cap = CapReached { tokens_max: 100, tokens_needed: 130 };
    let at_cap = Change::ReleaseAtCap { reason: "at its cap".to_owned(), cap };
    let released = fixture.board.change(held.id, at_cap.clone(), &holder(&held)).await.unwrap();
    assert_eq!((released.status, released.failures, released.owner), (TaskStatus::Pending, 0, None));
    assert!(fixture.claim("a").await.is_none());
    let refusal = fixture.board.claim(held.id, &claimant("b", &[])).await.unwrap_err().to_string();
    assert!(refusal.contains("its attempts reached its cap of 100 tokens"), "{refusal}");
    let set = async |tokens_max| {
        let raise = edit(TaskEdit { tokens_max: Some(tokens_max), ..TaskEdit::default() });
        fixture.board.change(held.id, raise, &lead()).await.unwrap()
    };
    set(100).await;
    assert!(fixture.claim("a").await.is_none(), "the cap is not higher");
    set(101).await;
    let again = fixture.claim("a").await.unwrap();
    assert_eq!((again.attempt, again.cap_reached, again.tokens_max), (2, None, Some(101)));
    // 0 removes the cap, and the one that was reached.
    fixture.board.change(held.id, at_cap, &holder(&again)).await.unwrap();
    assert_eq!(set(0).await.tokens_max, None);
    assert_eq!(fixture.claim("a").await.unwrap().attempt, 3);
}

async fn task_fails_after_max_attempts(fixture: BoardFixture) {
    fixture.create(vec![NewTask { max_attempts: Some(2), ..task("hard") }]).await;
    for attempt in 1..=2 {
        fixture.clock.advance(Duration::from_secs(100));
        let held = fixture.claim("alice").await.unwrap();
        assert_eq!(held.attempt, attempt);
        // A release is not counted as a failure.
        fixture
            .board
            .change(held.id, Change::Release { reason: String::new(), is_failure: false }, &holder(&held))
            .await
            .unwrap();
        let held = fixture.claim("bob").await.unwrap();
        fixture.board.change(held.id, fail("too hard"), &holder(&held)).await.unwrap();
        if attempt == 1 {
            assert_eq!(fixture.board.get(held.id).await.unwrap().status, TaskStatus::Pending);
            fixture.clock.advance(Duration::from_secs(100));
            let held = fixture.claim("bob").await.unwrap();
            assert_eq!(held.attempt, 3);
            let given_up = fixture.board.change(held.id, fail("too hard"), &holder(&held)).await.unwrap();
            assert_eq!((given_up.status, given_up.failures), (TaskStatus::Failed, 2));
            break;
        }
    }
    assert_eq!(fixture.claim("bob").await, None);
}

async fn dependency_edit_updates_blocks_and_blocked_by(fixture: BoardFixture) {
    fixture.create(vec![task("one"), task("two"), task("three"), task("four")]).await;
    let wait = |blockers: &[u64]| edit(TaskEdit { add_blocked_by: ids(blockers), ..TaskEdit::default() });
    let two = fixture.board.change(TaskId(2), wait(&[1, 3]), &lead()).await.unwrap();
    assert_eq!(two.blocked_by, ids(&[1, 3]));
    assert_eq!(fixture.board.get(TaskId(3)).await.unwrap().blocks, ids(&[2]));
    let blocks = edit(TaskEdit { add_blocks: ids(&[1]), subject: Some("new".into()), ..TaskEdit::default() });
    let four = fixture.board.change(TaskId(4), blocks, &lead()).await.unwrap();
    assert_eq!((four.subject.as_str(), four.blocks), ("new", ids(&[1])));
    assert_eq!(fixture.board.get(TaskId(1)).await.unwrap().blocked_by, ids(&[4]));
    for (id, change) in
        [(4, wait(&[2])), (1, wait(&[1])), (2, edit(TaskEdit { add_blocks: ids(&[3]), ..TaskEdit::default() }))]
    {
        let error = fixture.board.change(TaskId(id), change, &lead()).await.unwrap_err();
        assert!(matches!(error, StoreError::Cycle(_)), "{error}");
    }
    let error = fixture.board.change(TaskId(4), wait(&[77]), &lead()).await.unwrap_err();
    assert!(matches!(error, StoreError::UnknownBlocker { task: TaskId(4), blocker: TaskId(77) }), "{error}");
    assert_eq!(fixture.claim("alice").await.unwrap().id, TaskId(3));
    let free = edit(TaskEdit { remove_blocked_by: ids(&[1, 3, 77]), ..TaskEdit::default() });
    fixture.board.change(TaskId(2), free, &lead()).await.unwrap();
    assert_eq!(fixture.board.get(TaskId(1)).await.unwrap().blocks, ids(&[]));
    assert_eq!(fixture.claim("alice").await.unwrap().id, TaskId(2));
}

async fn teammate_cannot_block_tasks_of_others(fixture: BoardFixture) {
    fixture.create(vec![task("the lead's")]).await;
    let bob = Actor::new("bob", ActorKind::Teammate);
    let own = fixture.board.create(&bob, vec![task("bob's")], false).await.unwrap().remove(0);
    let blocks = edit(TaskEdit { add_blocks: ids(&[1]), ..TaskEdit::default() });
    assert!(matches!(fixture.board.change(own.id, blocks, &bob).await, Err(StoreError::Refused(_))));
    let waits = edit(TaskEdit { add_blocked_by: ids(&[1]), ..TaskEdit::default() });
    fixture.board.change(own.id, waits, &bob).await.unwrap();
    assert!(fixture.board.delete(own.id, &bob).await.is_err());
}

async fn deleted_task_unblocks_and_its_id_is_not_reused(fixture: BoardFixture) {
    fixture.create(vec![task("one"), after_new("two", 0), task("three")]).await;
    assert_eq!(fixture.board.delete(TaskId(1), &lead()).await.unwrap().subject, "one");
    assert!(matches!(fixture.board.get(TaskId(1)).await, Err(StoreError::NoTask(_))));
    assert_eq!(fixture.board.get(TaskId(2)).await.unwrap().blocked_by, ids(&[]));
    let two = fixture.claim("alice").await.unwrap();
    assert_eq!(two.id, TaskId(2));
    assert!(matches!(fixture.board.delete(TaskId(2), &lead()).await, Err(StoreError::Refused(_))));
    fixture.board.delete(TaskId(2), &lead().forcing(true)).await.unwrap();
    assert!(matches!(fixture.board.change(two.id, complete(), &holder(&two)).await, Err(StoreError::NoTask(_))));
    fixture.board.delete(TaskId(3), &lead()).await.unwrap();
    let view = fixture.board.view().await.unwrap();
    assert!(view.tasks.is_empty() && view.deleted.is_empty());
    assert_eq!(fixture.create(vec![task("four")]).await[0].id, TaskId(4));
}

async fn claim_of_dead_worker_is_reclaimed(fixture: BoardFixture) {
    fixture.create(vec![task("one"), task("two"), task("three"), after("four", &[])]).await;
    fixture.claim("alice").await.unwrap();
    fixture.claim("bob").await.unwrap();
    let lease =
        Claimant { lease: Some(Duration::from_secs(60)), worker: "lease:carol".into(), ..claimant("carol", &[]) };
    fixture.board.claim_next(&lease).await.unwrap().unwrap();
    // A clock jump takes no task from a living worker, and a lease lasts.
    fixture.clock.advance(Duration::from_secs(30));
    let lost = |claims: &[(u64, u32)], is_failure| ReclaimRequest {
        claims: claims.iter().map(|(id, attempt)| ClaimRef { task: TaskId(*id), attempt: *attempt }).collect(),
        is_failure,
        reason: "its worker died".into(),
        ..ReclaimRequest::default()
    };
    assert_eq!(fixture.board.reclaim(&lost(&[], true)).await.unwrap(), vec![]);
    let taken = fixture.board.reclaim(&lost(&[(2, 1)], true)).await.unwrap();
    assert_eq!(taken.len(), 1);
    assert_eq!((taken[0].owner.as_str(), taken[0].reason.as_str()), ("bob", "its worker died"));
    assert_eq!((taken[0].task.id, taken[0].task.failures, &taken[0].task.claim), (TaskId(2), 1, &None));
    assert_eq!((taken[0].task.status, &taken[0].task.owner), (TaskStatus::Pending, &None));
    let taken = fixture.board.reclaim(&lost(&[(1, 1), (3, 9)], false)).await.unwrap();
    assert_eq!(taken.iter().map(|one| (one.task.id.0, one.task.failures)).collect::<Vec<_>>(), [(1, 0)]);
    assert_eq!(fixture.claim("dave").await.unwrap().attempt, 2);
}

async fn lease_is_renewed_and_reclaimed_after_expiry(fixture: BoardFixture) {
    fixture.create(vec![task("one")]).await;
    let lease =
        Claimant { lease: Some(Duration::from_secs(60)), worker: "lease:carol".into(), ..claimant("carol", &[]) };
    let held = fixture.board.claim(TaskId(1), &lease).await.unwrap();
    assert_eq!(held.claim.as_ref().unwrap().expires, Some(UnixMs(fixture.clock.now().0 + 60_000)));
    let expires = UnixMs(fixture.clock.now().0 + 90_000);
    let longer = Change::Renew { expires };
    fixture.board.change(held.id, longer, &holder(&held)).await.unwrap();
    let nothing = ReclaimRequest { reason: "x".into(), ..ReclaimRequest::default() };
    fixture.clock.advance(Duration::from_secs(89));
    assert_eq!(fixture.board.reclaim(&nothing).await.unwrap(), vec![]);
    fixture.clock.advance(Duration::from_secs(2));
    // Late, but before another claimer took it.
    let late = fixture.board.get(held.id).await.unwrap();
    assert_eq!(late.status, TaskStatus::InProgress);
    let taken = fixture.board.reclaim(&ReclaimRequest { is_failure: true, ..nothing }).await.unwrap();
    assert_eq!(taken[0].reason, "its lease ran out");
    // The back-off counts from the end of the lease, not from the command that finds it.
    assert_eq!(taken[0].task.not_before, Some(expires.plus(Duration::from_secs(1))));
    assert!(fixture.board.change(held.id, complete(), &holder(&held)).await.is_err());
}

async fn task_over_size_limit_is_refused(fixture: BoardFixture) {
    let huge = NewTask { description: "x".repeat(TASK_BYTES_MAX), ..task("huge") };
    let error = fixture.board.create(&lead(), vec![task("small"), huge], false).await.unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { .. }), "{error}");
    assert!(fixture.board.view().await.unwrap().tasks.is_empty());
    fixture.create(vec![task("one")]).await;
    let held = fixture.claim("alice").await.unwrap();
    let result = TaskResult::new("x".repeat(TASK_BYTES_MAX), "");
    let error = fixture.board.change(held.id, Change::Complete(result), &holder(&held)).await.unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { .. }), "{error}");
    assert_eq!(fixture.board.get(held.id).await.unwrap(), held);
}

async fn board_view_is_an_immutable_snapshot(fixture: BoardFixture) {
    let empty = fixture.board.view().await.unwrap();
    fixture.create(vec![task("one")]).await;
    let one = fixture.board.view().await.unwrap();
    fixture.claim("alice").await.unwrap();
    let claimed = fixture.board.view().await.unwrap();
    assert!(empty.tasks.is_empty());
    assert_eq!(one.tasks[&TaskId(1)].status, TaskStatus::Pending);
    assert_eq!(claimed.tasks[&TaskId(1)].status, TaskStatus::InProgress);
    assert!(empty.revision < one.revision && one.revision < claimed.revision);
    assert_eq!(fixture.board.view().await.unwrap().revision, claimed.revision);
}

/// Writes by other programs: without locks, in place.
mod others {
    use super::*;

    const MINIMAL: &str = r#"{"id": 1, "subject": "s", "status": "pending", "owner": null, "blockedBy": []}"#;

    fn with(id: u64, status: &str, blockers: &str) -> String {
        format!(r#"{{"id": {id}, "subject": "s{id}", "status": "{status}", "owner": null, "blockedBy": [{blockers}]}}"#)
    }

    #[tokio::test]
    async fn task_file_of_other_program_is_seen_and_counted() {
        for fixture in [in_files(), in_unwatched_files()] {
            fixture.write("task_900.json", &with(900, "pending", ""));
            assert_eq!(fixture.board.view().await.unwrap().tasks.len(), 1);
            assert_eq!(fixture.create(vec![task("ours")]).await[0].id, TaskId(901));
            fixture.write("task_900.json", &with(900, "completed", ""));
            assert_eq!(fixture.board.get(TaskId(900)).await.unwrap().status, TaskStatus::Completed);
            fs::remove_file(fixture.path().join("task_900.json")).unwrap();
            assert!(matches!(fixture.board.get(TaskId(900)).await, Err(StoreError::NoTask(_))));
            assert_eq!(fixture.create(vec![task("ours")]).await[0].id, TaskId(902));
        }
    }

    #[tokio::test]
    async fn foreign_claim_is_kept_and_completion_unblocks() {
        for fixture in [in_files(), in_unwatched_files()] {
            fixture.create(vec![task("one"), after_new("two", 0)]).await;
            let theirs =
                fixture.read("task_1.json").replace("\"pending\"", "\"in_progress\"").replace("null", "\"bob\"");
            fixture.write("task_1.json", &theirs);
            assert_eq!(fixture.claim("alice").await, None);
            let lost =
                ReclaimRequest { claims: vec![ClaimRef { task: TaskId(1), attempt: 0 }], ..ReclaimRequest::default() };
            assert_eq!(fixture.board.reclaim(&lost).await.unwrap(), vec![]);
            let view = fixture.board.view().await.unwrap();
            assert!(view.tasks[&TaskId(1)].is_foreign());
            fixture.write("task_1.json", &theirs.replace("in_progress", "completed"));
            assert_eq!(fixture.claim("alice").await.unwrap().id, TaskId(2));
        }
    }

    #[tokio::test]
    async fn completion_by_other_program_unblocks_at_once() {
        for fixture in [in_files(), in_unwatched_files()] {
            fixture.create(vec![task("one"), after_new("two", 0), after_new("three", 0)]).await;
            fixture.board.view().await.unwrap();
            let theirs = |id: u64, from: &str, to: &str| {
                let name = format!("task_{id}.json");
                fixture.write(&name, &fixture.read(&name).replace(from, to));
            };
            theirs(3, "pending", "in_progress");
            theirs(1, "pending", "completed");
            let view = fixture.board.view().await.unwrap();
            assert_eq!(view.tasks[&TaskId(1)].status, TaskStatus::Completed);
            assert!(fixture.board.view().await.unwrap().tasks[&TaskId(2)].blocked_by.is_empty());
            assert!(fixture.read("task_2.json").contains("\"blockedBy\": []"), "{}", fixture.read("task_2.json"));
            // The other program has it in progress, and may be writing it.
            assert!(fixture.read("task_3.json").contains("\"blockedBy\": [\n    1"), "{}", fixture.read("task_3.json"));
        }
    }

    #[tokio::test]
    async fn task_with_unknown_status_stays_where_it_is() {
        let fixture = in_files();
        fixture.create(vec![task("one"), after_new("two", 0)]).await;
        let theirs = fixture.read("task_1.json").replace("pending", "in_review");
        fixture.write("task_1.json", &theirs);
        let view = fixture.board.view().await.unwrap();
        assert_eq!(&*view.tasks[&TaskId(1)].status_word(), "in_review");
        assert!(view.invalid.is_empty());
        assert_eq!(fixture.claim("alice").await, None, "it blocks its dependents");
        let lost =
            ReclaimRequest { claims: vec![ClaimRef { task: TaskId(1), attempt: 0 }], ..ReclaimRequest::default() };
        assert_eq!(fixture.board.reclaim(&lost).await.unwrap(), vec![]);
        let by = Actor::new("human", ActorKind::Person).forcing(true);
        assert!(fixture.board.change(TaskId(1), Change::Retry, &by).await.is_err());
        assert_eq!(fixture.read("task_1.json"), theirs);
        fixture.write("task_1.json", &theirs.replace("in_review", "pending"));
        assert_eq!(fixture.claim("alice").await.unwrap().id, TaskId(1));
    }

    #[tokio::test]
    async fn task_file_is_reread_before_claim() {
        let fixture = in_files();
        fixture.create(vec![task("one"), task("two")]).await;
        fixture.board.view().await.unwrap();
        fixture.write("task_1.json", r#"{"id": 1, "subject"#);
        assert_eq!(fixture.claim("alice").await.unwrap().id, TaskId(2), "one file is just being written");
        fixture.write("task_1.json", MINIMAL);
        assert_eq!(fixture.claim("alice").await.unwrap().id, TaskId(1));
        assert!(fixture.read("task_1.json").contains("\"attempt\": 1"));
        assert!(!fixture.path().join(".spoiled").exists());
    }

    #[tokio::test]
    async fn foreign_fields_survive_task_changes() {
        let fixture = in_files();
        let theirs = MINIMAL.replace('}', r#", "x": 1.50, "created_at": 1763688000.25}"#);
        fixture.write("task_1.json", &theirs);
        let held = fixture.claim("alice").await.unwrap();
        fixture.complete(&held).await;
        let text = fixture.read("task_1.json");
        assert!(text.contains("\"x\": 1.50") && text.contains("\"created_at\": 1763688000.25"), "{text}");
        assert!(text.ends_with("}\n") && text.starts_with("{\n  \"id\": 1"), "{text}");
    }

    #[tokio::test]
    async fn board_open_removes_completed_blockers() {
        let fixture = in_files();
        fixture.write("task_1.json", &with(1, "completed", ""));
        fixture.write("task_2.json", &with(2, "pending", "1, 3"));
        fixture.write("task_3.json", &with(3, "pending", ""));
        fixture.other();
        assert_eq!(fixture.board.get(TaskId(2)).await.unwrap().blocked_by, ids(&[3]));
        assert_eq!(fixture.read("task_3.json"), with(3, "pending", ""), "no other file is written");
    }

    #[tokio::test]
    async fn foreign_dependency_cycle_is_never_claimed() {
        let fixture = in_files();
        for (id, blocker) in [(1, "2"), (2, "1"), (3, "3"), (4, "99")] {
            fixture.write(&format!("task_{id}.json"), &with(id, "pending", blocker));
        }
        assert_eq!(fixture.claim("alice").await, None);
        assert_eq!(fixture.create(vec![after("five", &[1])]).await[0].id, TaskId(5));
        // A new id that an open task already waits for may close a cycle.
        let error = fixture.board.create(&lead(), vec![after("x", &[4])], false).await.map(|made| made[0].id);
        assert_eq!(error.unwrap(), TaskId(6));
    }
}

mod invalid_files {
    use super::*;

    fn names(fixture: &BoardFixture) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(fixture.path().join(".spoiled"))
            .map(|entries| entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect())
            .unwrap_or_default();
        names.sort();
        names
    }

    #[tokio::test]
    async fn invalid_task_is_reported_skipped_and_blocks() {
        for fixture in [in_files(), in_unwatched_files()] {
            fixture.create(vec![task("one"), after_new("two", 0), task("three")]).await;
            fixture.write("task_1.json", "");
            fixture.write("task_7.json", r#"{"id": 8, "subject": "s", "status": "pending"}"#);
            fixture.write("task_8.json", &format!("{{\"x\": \"{}\"}}", "y".repeat(TASK_BYTES_MAX)));
            fixture.write("task_09.json", "{}");
            fs::create_dir(fixture.path().join("task_10.json")).unwrap();
            let names = |view: &brigade::ports::BoardView| -> Vec<String> {
                view.invalid.iter().map(|entry| entry.name.clone()).collect()
            };
            let first = fixture.board.view().await.unwrap();
            assert_eq!(names(&first), ["task_8.json", "task_10.json", "task_09.json"], "the others may be incomplete");
            assert_eq!(first.tasks[&TaskId(1)].subject, "one", "the last valid version is shown");
            assert_eq!(fixture.claim("alice").await.unwrap().id, TaskId(3));
            assert_eq!(fixture.claim("alice").await, None);
            assert!(!fixture.path().join(".spoiled").exists(), "another program may be writing them");
            assert_eq!(fixture.create(vec![task("more")]).await[0].id, TaskId(11));
            let mut expected = vec![
                "task_1.json: not a JSON",
                "task_7.json: its id is 8",
                "task_8.json: it has more",
                "task_09.json: its name",
                "task_10.json: it is a folder",
            ];
            eventually("each file is reported", async || {
                let view = fixture.board.view().await.unwrap();
                let reasons: Vec<String> =
                    view.invalid.iter().map(|entry| format!("{}: {}", entry.name, entry.reason)).collect();
                expected.retain(|expected| !reasons.iter().any(|reason| reason.starts_with(expected)));
                expected.is_empty()
            })
            .await;
        }
    }

    #[tokio::test]
    async fn half_written_file_keeps_its_last_version() {
        let fixture = in_files();
        fixture.create(vec![task("one"), after_new("two", 0)]).await;
        let whole = fixture.read("task_1.json");
        fixture.write("task_1.json", &whole[..whole.len() / 2]);
        fixture.write("task_7.json", "{\"id\": 7, ");
        let view = fixture.board.view().await.unwrap();
        assert!(view.invalid.is_empty() && view.tasks[&TaskId(1)].subject == "one", "{:?}", view.invalid);
        let taken = fixture.claim("alice").await;
        assert_eq!(taken, None, "a claim would overwrite what the other program writes");
        assert_eq!(fixture.create(vec![task("three")]).await[0].id, TaskId(8), "the number is in use");
        fixture.write("task_1.json", &whole);
        assert_eq!(fixture.claim("alice").await.unwrap().id, TaskId(1));
        assert!(fixture.board.view().await.unwrap().invalid.is_empty());
    }

    #[tokio::test]
    async fn opened_board_waits_for_half_written_file() {
        let fixture = in_files();
        fixture.create(vec![task("one")]).await;
        let text = r#"{"id": 7, "subject": "seven", "status": "pending"}"#;
        fixture.write("task_7.json", &text[..20]);
        let other = fixture.other();
        let path = fixture.path().join("task_7.json");
        let writer = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(200)).await;
            fs::write(path, text).unwrap();
        });
        let view = other.view().await.unwrap();
        assert!(writer.is_finished());
        assert_eq!(view.tasks[&TaskId(7)].subject, "seven");
        assert!(view.invalid.is_empty(), "{:?}", view.invalid);
    }

    #[tokio::test]
    async fn change_waits_for_half_written_file() {
        let fixture = in_files();
        fixture.create(vec![task("one"), task("two")]).await;
        for (id, is_claim) in [(TaskId(1), true), (TaskId(2), false)] {
            let whole = fixture.read(&id.file_name());
            fixture.write(&id.file_name(), &whole[..whole.len() / 2]);
            let path = fixture.path().join(id.file_name());
            let writer = tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(200)).await;
                fs::write(path, whole).unwrap();
            });
            let changed = if is_claim {
                fixture.board.claim(id, &claimant("alice", &[])).await
            } else {
                fixture.board.delete(id, &lead()).await
            };
            assert_eq!(changed.unwrap().id, id);
            assert!(writer.is_finished());
        }
    }

    #[tokio::test]
    async fn unchanged_invalid_file_is_quarantined() {
        let fixture = in_files();
        fixture.create(vec![task("one"), task("two")]).await;
        fs::create_dir(fixture.path().join(".spoiled")).unwrap();
        fixture.write(".spoiled/task_5.json", "older");
        fixture.write("task_5.json", "broken");
        fixture.write("task_6.json", "being writ");
        fs::create_dir(fixture.path().join("task_7.json")).unwrap();
        std::os::unix::fs::symlink("task_1.json", fixture.path().join("task_8.json")).unwrap();
        let end = std::time::Instant::now() + Duration::from_secs(30);
        while names(&fixture).len() < 3 {
            assert!(std::time::Instant::now() < end, "not moved: {:?}", names(&fixture));
            // Another program keeps writing this file, so that it never stays the same.
            let more = fixture.read("task_6.json") + "t";
            fixture.write("task_6.json", &more);
            fixture.board.view().await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(names(&fixture), ["task_5.json", "task_5.json.2", "task_8.json"]);
        assert_eq!(fixture.read(".spoiled/task_5.json"), "older");
        assert_eq!(fixture.read(".spoiled/task_5.json.2"), "broken");
        assert!(fixture.path().join("task_7.json").is_dir());
        fixture.write("task_6.json", r#"{"id": 6, "subject": "whole", "status": "pending"}"#);
        assert_eq!(fixture.board.get(TaskId(6)).await.unwrap().subject, "whole");
        fs::remove_dir(fixture.path().join("task_7.json")).unwrap();
        fs::remove_file(fixture.path().join("task_6.json")).unwrap();
        fs::remove_file(fixture.path().join(".highwatermark")).unwrap();
        assert_eq!(fixture.create(vec![task("new")]).await[0].id, TaskId(9), "a moved file keeps its id reserved");
    }

    #[tokio::test]
    async fn invalid_file_with_huge_id_is_ignored_for_ids() {
        let fixture = in_files();
        fixture.create(vec![task("one")]).await;
        fixture.write("task_9007199254740991.json", "{");
        assert_eq!(fixture.create(vec![task("two")]).await[0].id, TaskId(2));
        assert_eq!(fixture.other().create(&lead(), vec![task("three")], false).await.unwrap()[0].id, TaskId(3));
        // A moved file counts no more than before, except if its id could have been assigned.
        fs::create_dir_all(fixture.path().join(".spoiled")).unwrap();
        fs::rename(
            fixture.path().join("task_9007199254740991.json"),
            fixture.path().join(".spoiled/task_9007199254740991.json"),
        )
        .unwrap();
        assert_eq!(fixture.create(vec![task("four")]).await[0].id, TaskId(4));
        fixture.write(".spoiled/task_9.json", "{");
        assert_eq!(fixture.create(vec![task("ten")]).await[0].id, TaskId(10));
    }

    #[tokio::test]
    async fn old_invalid_file_is_quarantined_at_first_read() {
        let fixture = in_files();
        fixture.create(vec![task("one")]).await;
        fixture.write("task_5.json", "{");
        fixture.write("task_6.json", "{");
        let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
        fs::File::options()
            .write(true)
            .open(fixture.path().join("task_5.json"))
            .unwrap()
            .set_modified(long_ago)
            .unwrap();
        fixture.other().create(&lead(), vec![task("two")], false).await.unwrap();
        assert!(fixture.path().join(".spoiled/task_5.json").exists());
        assert!(fixture.path().join("task_6.json").exists(), "another program may be writing it");
    }

    #[tokio::test]
    async fn deleted_id_is_not_reused_with_bad_watermark() {
        for content in ["1", "x", "folder"] {
            let fixture = in_files();
            fixture.create(vec![task("one"), task("two"), task("three")]).await;
            fixture.board.delete(TaskId(3), &lead()).await.unwrap();
            let path = fixture.path().join(".highwatermark");
            fs::remove_file(&path).unwrap();
            if content == "folder" {
                fs::create_dir(&path).unwrap()
            } else {
                fs::write(&path, content).unwrap()
            }
            let created = fixture.other().create(&lead(), vec![task("four")], false).await.unwrap();
            assert_eq!(created[0].id, TaskId(4), "{content}");
            assert_eq!(fixture.read(".highwatermark").trim(), "4", "{content}");
        }
    }

    #[tokio::test]
    async fn fake_batch_record_blocks_no_create() {
        let fixture = in_files();
        let pipe = fixture.path().join(".batch-90-91");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        fs::create_dir(fixture.path().join(".applied-80-81")).unwrap();
        assert_eq!(fixture.other().create(&lead(), vec![task("one")], false).await.unwrap()[0].id, TaskId(1));
        assert!(!pipe.exists() && fixture.path().join(".spoiled/.batch-90-91").exists());
    }

    #[tokio::test]
    async fn bad_watermark_is_rebuilt_from_task_files() {
        for content in ["", "x", "-1", "99999999999999999999", "9007199254740991", "1"] {
            let fixture = in_files();
            fixture.create(vec![task("one"), task("two")]).await;
            fixture.write(".highwatermark", content);
            assert_eq!(fixture.create(vec![task("three")]).await[0].id, TaskId(3), "{content:?}");
            assert_eq!(fixture.read(".highwatermark").trim(), "3");
        }
    }
}

/// Boards on the same folder, and boards that cannot be written.
mod shared {
    use super::*;

    #[tokio::test]
    async fn board_change_is_visible_to_other_process() {
        let fixture = in_files();
        let other = fixture.other();
        fixture.create(vec![task("one"), after_new("two", 0)]).await;
        let held = other.claim_next(&claimant("bob", &[])).await.unwrap().unwrap();
        assert_eq!(fixture.board.get(held.id).await.unwrap(), held);
        assert_eq!(fixture.claim("alice").await, None);
        other.change(held.id, complete(), &holder(&held)).await.unwrap();
        assert_eq!(fixture.claim("alice").await.unwrap().id, TaskId(2));
        assert_eq!(other.view().await.unwrap().tasks, fixture.board.view().await.unwrap().tasks);
        other.delete(TaskId(1), &lead()).await.unwrap();
        assert_eq!(fixture.board.view().await.unwrap().tasks.len(), 1);
    }

    #[tokio::test]
    async fn replaced_tasks_folder_is_read_again() {
        let fixture = in_files();
        fixture.create(vec![task("one"), task("two")]).await;
        let path = fixture.path();
        fs::rename(&path, path.with_extension("old")).unwrap();
        fs::create_dir(&path).unwrap();
        fs::copy(path.with_extension("old").join("task_2.json"), path.join("task_2.json")).unwrap();
        assert_eq!(fixture.board.view().await.unwrap().tasks.len(), 1);
        assert_eq!(fixture.claim("alice").await.unwrap().id, TaskId(2));
        fixture.write("task_3.json", r#"{"id": 3, "subject": "s", "status": "pending"}"#);
        assert_eq!(fixture.claim("alice").await.unwrap().id, TaskId(3));
    }

    #[tokio::test]
    async fn read_only_board_writes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let files: Arc<dyn FileSystem> = Arc::new(RealFileSystem::default());
        let looker = BoardFiles::open_read_only(Arc::clone(&files), folder.path(), Arc::new(ManualClock::default()));
        let looker = FileBoard::from(looker);
        assert!(looker.view().await.unwrap().tasks.is_empty());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let writer = BoardFiles::open(
            files,
            folder.path(),
            Durability::Process,
            Arc::new(ManualClock::default()),
            broadcast::channel(1).0,
        )
        .unwrap();
        let writer = FileBoard::from(writer);
        writer.create(&lead(), vec![task("one")], false).await.unwrap();
        assert_eq!(looker.view().await.unwrap().tasks.len(), 1);
        assert_eq!(looker.get(TaskId(1)).await.unwrap().subject, "one");
        let error = looker.claim_next(&claimant("x", &[])).await.unwrap_err().to_string();
        assert!(error.contains(".tasks") && error.contains("read-only"), "{error}");
    }

    /// A clock by which another program removes a file at every call of the board.
    struct RemovingClock(PathBuf);

    impl Clock for RemovingClock {
        fn now(&self) -> UnixMs {
            let _ = fs::remove_file(&self.0);
            UnixMs(0)
        }
    }

    #[test]
    fn created_task_is_returned_even_if_removed_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(".tasks/task_2.json");
        let (files, clock) = (Arc::new(RealFileSystem::default()), Arc::new(RemovingClock(file.clone())));
        let board = BoardFiles::open(files, folder.path(), Durability::Power, clock, broadcast::channel(16).0).unwrap();
        let tasks = ["a", "b", "c"].map(task).to_vec();
        let created = board.create(&Actor::new("lead", ActorKind::Lead), tasks, false).unwrap();
        assert_eq!(created.iter().map(|task| task.id.0).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(!file.exists(), "it was removed");
    }

    #[tokio::test]
    async fn board_without_lock_is_readable() {
        let folder = tempfile::tempdir().unwrap();
        let tasks = folder.path().join(".tasks");
        fs::create_dir_all(tasks.join(".lock")).unwrap();
        fs::write(tasks.join("task_1.json"), r#"{"id": 1, "subject": "s", "status": "pending"}"#).unwrap();
        let files = Arc::new(RealFileSystem::default());
        let board = BoardFiles::open(
            files,
            folder.path(),
            Durability::Power,
            Arc::new(ManualClock::default()),
            broadcast::channel(1).0,
        )
        .unwrap();
        let board = FileBoard::from(board);
        assert_eq!(board.view().await.unwrap().tasks.len(), 1);
        let error = board.claim_next(&claimant("x", &[])).await.unwrap_err().to_string();
        assert!(error.contains("lock") && error.contains(".tasks/.lock"), "{error}");
        fs::write(tasks.join("task_2.json"), r#"{"id": 2, "subject": "s", "status": "pending"}"#).unwrap();
        assert_eq!(board.view().await.unwrap().tasks.len(), 2);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn cancelled_claim_is_released() {
        let fixture = in_files();
        fixture.create(vec![task("one")]).await;
        let files = RealFileSystem::default();
        let (entered, wait) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let lock = fixture.path().join(".lock");
        let blocker = std::thread::spawn(move || {
            files.locked(&lock, &mut || {
                entered.send(()).unwrap();
                released.recv().unwrap();
            })
        });
        wait.recv().unwrap();
        let alice = claimant("alice", &[]);
        tokio::select! {
            biased;
            claimed = fixture.board.claim_next(&alice) => panic!("the lock is held: {claimed:?}"),
            () = std::future::ready(()) => {}
        }
        release.send(()).unwrap();
        blocker.join().unwrap().unwrap();
        let end = std::time::Instant::now() + Duration::from_secs(30);
        loop {
            let task = fixture.other().get(TaskId(1)).await.unwrap();
            if task.attempt == 1 && task.status == TaskStatus::Pending {
                break;
            }
            assert!(std::time::Instant::now() < end, "{task:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Eight claimers on four boards claim all tasks of a board with dependencies.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn concurrent_claimers_take_each_task_once() {
        const TASKS: usize = 500;
        let fixture = in_files();
        let tasks = (0..TASKS).map(|index| {
            let blocked_by_new = if index >= 10 { vec![index - 10, index / 2] } else { vec![] };
            NewTask { blocked_by_new, priority: (index % 7) as i64, ..task("drain") }
        });
        fixture.create(tasks.collect()).await;
        let boards: Vec<FileBoard> = (0..4).map(|_| fixture.other()).collect();
        let claims = Arc::new(std::sync::Mutex::new(Vec::new()));
        let workers: Vec<_> = (0..8)
            .map(|number| (boards[number / 2].clone(), Arc::clone(&claims), format!("w{number}")))
            .map(|(board, claims, name)| tokio::spawn(drain(board, claims, name, TASKS)))
            .collect();
        for worker in workers {
            worker.await.unwrap();
        }
        let mut claims = Arc::try_unwrap(claims).unwrap().into_inner().unwrap();
        let all = claims.len();
        claims.sort_unstable();
        claims.dedup();
        assert_eq!(claims.len(), all, "an attempt was granted twice");
        // A completion whose dependents could not be updated in time is repaired when a board is opened.
        let view = fixture.other().view().await.unwrap();
        assert!(view.tasks.values().all(|task| task.status == TaskStatus::Completed && task.blocked_by.is_empty()));
        let attempts: u32 = view.tasks.values().map(|task| task.attempt).sum();
        assert_eq!(attempts as usize, all);
    }

    async fn drain(board: FileBoard, claims: Arc<std::sync::Mutex<Vec<(TaskId, u32)>>>, name: String, tasks: usize) {
        loop {
            let Some(claimed) = if_locked(board.claim_next(&claimant(&name, &[])).await) else { continue };
            let Some(held) = claimed else {
                let view = board.view().await.unwrap();
                if view.tasks.values().filter(|task| task.status == TaskStatus::Completed).count() == tasks {
                    return;
                }
                tokio::task::yield_now().await;
                continue;
            };
            claims.lock().unwrap().push((held.id, held.attempt));
            // Sometimes a claimer releases a task, and another one claims it.
            let gives_up = held.id.0.is_multiple_of(13) && held.attempt == 1;
            let release = Change::Release { reason: String::new(), is_failure: false };
            let change = if gives_up { release } else { complete() };
            while if_locked(board.change(held.id, change.clone(), &holder(&held)).await).is_none() {}
        }
    }

    /// Returns `None` if a busy machine did not grant the lock in time. Such a call has changed nothing.
    fn if_locked<T>(result: StoreResult<T>) -> Option<T> {
        match result {
            Err(StoreError::Io { source, .. }) if LockTimeout::in_error(&source).is_some() => None,
            result => Some(result.unwrap()),
        }
    }
}
