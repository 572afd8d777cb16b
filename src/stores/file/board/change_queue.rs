//! Changes of concurrent callers, made in one transaction.
//!
//! While a lock passes from one thread to another, no thread works under it. So one caller at a time makes the changes of all waiting
//! callers, in the order of their calls. Each caller then waits for the disk on its own thread.

use std::mem;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

use parking_lot::Mutex;

use crate::domain::task::TaskId;
use crate::domain::task::transition::{Actor, Change};
use crate::ports::StoreResult;
use crate::stores::file::sync::SyncRequest;
use crate::stores::fs::OpenFile;

use super::store::{BoardFiles, ChangeProgress};

/// A change of one task that a caller waits for.
pub(super) struct QueuedChange {
    pub(super) id: TaskId,
    pub(super) change: Change,
    pub(super) by: Actor,
    /// True if a reopening must be made in one step.
    pub(super) is_one_step: bool,
}

/// The callers whose changes are not made yet.
#[derive(Default)]
pub(super) struct ChangeQueue(Mutex<QueueState>);

#[derive(Default)]
struct QueueState {
    waiting: Vec<WaitingCaller>,
    /// True while one caller makes a group of changes. Later callers wait for the next group.
    is_group_running: bool,
}

struct WaitingCaller {
    queued: Arc<QueuedChange>,
    replies: Sender<Reply>,
}

/// The reply to a waiting caller.
enum Reply {
    /// Its change was made or refused.
    Outcome(Box<ChangeOutcome>),
    /// It must make all waiting changes, with its own.
    MakeGroup,
}

struct ChangeOutcome {
    progress: StoreResult<ChangeProgress>,
    /// The files and folders that the caller makes durable.
    pending: SyncRequest,
    /// The replaced files, which the disk frees when the caller drops this.
    _replaced: Vec<OpenFile>,
}

impl ChangeQueue {
    fn add(&self, caller: WaitingCaller) {
        let mut state = self.0.lock();
        state.waiting.push(caller);
        if !state.is_group_running {
            state.start_group();
        }
    }

    fn take_all(&self) -> Vec<WaitingCaller> {
        mem::take(&mut self.0.lock().waiting)
    }
}

impl QueueState {
    /// Tells the first caller to make all waiting changes.
    fn start_group(&mut self) {
        // A waiting caller keeps its receiver, so it gets the reply.
        self.is_group_running = self.waiting.first().is_some_and(|first| first.replies.send(Reply::MakeGroup).is_ok());
    }
}

/// A group of changes that one caller makes. Dropping it, also in a panic, sends the outcomes and starts the next group.
struct ChangeGroup<'a> {
    queue: &'a ChangeQueue,
    /// The outcome for each caller. They are sent after the board's lock is released, because each wakes a thread.
    outcomes: Vec<(Sender<Reply>, Box<ChangeOutcome>)>,
}

impl Drop for ChangeGroup<'_> {
    fn drop(&mut self) {
        for (replies, outcome) in self.outcomes.drain(..) {
            // Every caller waits for its outcome.
            let _ = replies.send(Reply::Outcome(outcome));
        }
        self.queue.0.lock().start_group();
    }
}

impl BoardFiles {
    /// Makes a change, together with those of other callers. Also returns the files and folders that must become durable.
    pub(super) fn change_in_group(&self, queued: QueuedChange) -> StoreResult<(ChangeProgress, SyncRequest)> {
        let queued = Arc::new(queued);
        let (sender, receiver) = mpsc::channel();
        self.change_queue.add(WaitingCaller { queued: Arc::clone(&queued), replies: sender });
        loop {
            match receiver.recv() {
                Ok(Reply::MakeGroup) => self.make_waiting_changes()?,
                Ok(Reply::Outcome(outcome)) => {
                    let ChangeOutcome { progress, pending, .. } = *outcome;
                    return Ok((progress?, pending));
                }
                // The caller that made the group did not get the lock, or panicked.
                Err(_) => return self.transact(|transaction| transaction.change(&queued)),
            }
        }
    }

    fn make_waiting_changes(&self) -> StoreResult<()> {
        let mut group = ChangeGroup { queue: &self.change_queue, outcomes: Vec::new() };
        let callers = self.change_queue.take_all();
        let outcomes = &mut group.outcomes;
        self.transact(|transaction| {
            for WaitingCaller { queued, replies } in callers {
                let outcome = ChangeOutcome {
                    progress: transaction.change(&queued),
                    pending: mem::take(&mut transaction.pending),
                    _replaced: mem::take(&mut transaction.replaced),
                };
                outcomes.push((replies, Box::new(outcome)));
            }
            Ok(())
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use tokio::sync::broadcast::{self, Receiver};

    use super::*;
    use crate::domain::task::claim_queue::TaskScope;
    use crate::domain::task::transition::ActorKind;
    use crate::domain::task::{NewTask, Task, TaskResult, TaskStatus};
    use crate::domain::time::UnixMs;
    use crate::ports::{Claimant, Clock, Durability, StoreChange, StoreError, WaitLimit};
    use crate::stores::file::board::BOARD_FOLDER;
    use crate::stores::file::board::paths::LOCK_FILE;
    use crate::stores::fs::{FileSystem, RealFileSystem};

    const CALLERS: usize = 8;

    /// A clock whose next call panics while its flag is set. The panic clears the flag.
    #[derive(Default)]
    struct PanicClock(AtomicBool);

    impl Clock for PanicClock {
        fn now(&self) -> UnixMs {
            assert!(!self.0.swap(false, Ordering::SeqCst), "the flag of the clock is set");
            UnixMs(0)
        }
    }

    struct Fixture {
        folder: tempfile::TempDir,
        clock: Arc<PanicClock>,
        changes: Receiver<StoreChange>,
        board: BoardFiles,
        claimed: Vec<Task>,
    }

    fn fixture() -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(PanicClock::default());
        let (sender, changes) = broadcast::channel(64);
        let files = Arc::new(RealFileSystem::with_wait_limit(folder.path(), WaitLimit::for_command()));
        let board =
            BoardFiles::open(files, folder.path(), Durability::Power, Arc::clone(&clock) as Arc<dyn Clock>, sender)
                .unwrap();
        let tasks = (0..CALLERS).map(|_| NewTask { subject: "work".to_owned(), ..NewTask::default() }).collect();
        board.create(&Actor::new("lead", ActorKind::Lead), tasks, false).unwrap();
        let claimant = Claimant {
            name: "ann".to_owned(),
            capabilities: Vec::new(),
            worker: "w1".to_owned(),
            lease: None,
            scope: TaskScope::All,
        };
        let claimed = (0..CALLERS).map(|_| board.claim_next(&claimant).unwrap().unwrap()).collect();
        Fixture { folder, clock, changes, board, claimed }
    }

    impl Fixture {
        /// The outcomes of one completion of each task, all made in one group, unless that panics.
        fn complete_together(&self, attempt_of: impl Fn(&Task) -> u32) -> Vec<thread::Result<StoreResult<Task>>> {
            self.board.change_queue.0.lock().is_group_running = true;
            let group = ChangeGroup { queue: &self.board.change_queue, outcomes: Vec::new() };
            thread::scope(|scope| {
                let complete = |task: &Task| {
                    let (id, attempt, board) = (task.id, attempt_of(task), &self.board);
                    let change = Change::Complete(TaskResult::new("done", ""));
                    scope.spawn(move || board.change(id, &change, &Actor::holder("ann", attempt)))
                };
                let callers: Vec<_> = self.claimed.iter().map(complete).collect();
                while self.board.change_queue.0.lock().waiting.len() < CALLERS {
                    thread::yield_now();
                }
                drop(group);
                callers.into_iter().map(thread::ScopedJoinHandle::join).collect()
            })
        }

        fn completed(&self) -> usize {
            let is_completed = |task: &&Task| self.board.get(task.id).unwrap().status == TaskStatus::Completed;
            self.claimed.iter().filter(is_completed).count()
        }
    }

    #[test]
    fn waiting_changes_are_made_in_one_transaction() {
        let mut fixture = fixture();
        while fixture.changes.try_recv().is_ok() {}
        let stale = fixture.claimed[3].id;
        let outcomes = fixture.complete_together(|task| if task.id == stale { task.attempt + 1 } else { task.attempt });
        for (task, outcome) in fixture.claimed.iter().zip(outcomes) {
            match outcome.unwrap() {
                Ok(completed) => assert_eq!((completed.id, completed.status), (task.id, TaskStatus::Completed)),
                Err(error) => assert!(task.id == stale && matches!(error, StoreError::Refused(_)), "{error}"),
            }
        }
        assert_eq!(fixture.completed(), CALLERS - 1);
        assert!(fixture.changes.try_recv().is_ok(), "the change was not announced");
        assert!(fixture.changes.try_recv().is_err(), "there was more than one transaction");
    }

    #[test]
    fn panic_in_group_ends_only_its_caller() {
        let fixture = fixture();
        fixture.clock.0.store(true, Ordering::SeqCst);
        let outcomes = fixture.complete_together(|task| task.attempt);
        let panicked = outcomes.iter().filter(|outcome| outcome.is_err()).count();
        let completed = outcomes.into_iter().flatten().filter(Result::is_ok).count();
        assert_eq!((panicked, completed, fixture.completed()), (1, CALLERS - 1, CALLERS - 1));
    }

    #[test]
    fn held_lock_fails_every_waiting_change() {
        let fixture = fixture();
        let lock = fixture.folder.path().join(BOARD_FOLDER).join(LOCK_FILE);
        let held = RealFileSystem::default().hold(&lock).unwrap().unwrap();
        for outcome in fixture.complete_together(|task| task.attempt) {
            let error = outcome.unwrap().unwrap_err().to_string();
            assert!(error.contains("did not release it"), "{error}");
        }
        drop(held);
        fixture.complete_together(|task| task.attempt).into_iter().for_each(|outcome| drop(outcome.unwrap().unwrap()));
        assert_eq!(fixture.completed(), CALLERS);
    }
}
