//! The task board as plain files: `.tasks/task_<id>.json`, under the sidecar lock `.tasks/.lock`.
//!
//! [`BoardFiles`] is the board, and [`FileBoard`] runs its blocking calls. Other programs may change task files at any time, so every
//! write reads the file first.
//!
//! | module | content |
//! |---|---|
//! | `store` | the calls of [`BoardFiles`] |
//! | `paths` | the names of files |
//! | `change_feed`, `folder_scan`, `index` | the changed files, their reading, and the tasks in memory |
//! | `suspect` | invalid files that another program may still be writing |
//! | `transaction` | writes under the lock |
//! | `change_queue` | changes of concurrent callers in one transaction |
//! | `create`, `delete`, `recover` | calls of several writes, and their completion after an interruption |

mod change_feed;
mod change_queue;
mod create;
mod delete;
mod folder_scan;
mod index;
mod paths;
mod recover;
mod store;
mod suspect;
mod transaction;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::domain::task::transition::{Actor, Change};
use crate::domain::task::{NewTask, Task, TaskId};
use crate::ports::{
    Board, BoardView, Claimant, IoAction, QuarantinedTask, ReclaimRequest, Reclaimed, StoreError, StoreResult,
};

use super::{blocking, blocking_concurrent, has_one_thread};

pub use self::paths::{BOARD_FOLDER, QUARANTINE_AFTER, QUARANTINE_FOLDER};
pub use self::store::BoardFiles;

/// The time between two reads of a file that another program is writing.
const WRITE_POLL: Duration = Duration::from_millis(20);

/// The task board of one workspace. Cached answers are returned at once: a switch to another thread and back costs more than the
/// answer, and idle teammates ask often.
#[derive(Clone)]
pub struct FileBoard {
    files: Arc<BoardFiles>,
}

impl From<BoardFiles> for FileBoard {
    fn from(files: BoardFiles) -> Self {
        Self { files: Arc::new(files) }
    }
}

impl FileBoard {
    async fn run<R: Send + 'static>(
        &self,
        call: impl FnOnce(&BoardFiles) -> StoreResult<R> + Send + 'static,
    ) -> StoreResult<R> {
        let files = Arc::clone(&self.files);
        blocking_concurrent(move || files.explained(call(&files))).await
    }

    /// Runs `read`, and repeats it while another program is writing a file that it needs. The wait is bounded.
    async fn run_read<R: Send + 'static>(
        &self,
        read: impl Fn(&BoardFiles) -> StoreResult<R> + Clone + Send + 'static,
    ) -> StoreResult<R> {
        loop {
            let outcome = self.run(read.clone()).await;
            if !self.files.must_repeat_reads() {
                return outcome;
            }
            sleep(WRITE_POLL).await;
        }
    }

    /// Runs a change of the task `id`. Repeats it while another program is writing the task's file, for at most [`QUARANTINE_AFTER`].
    async fn run_change<F>(&self, id: TaskId, change: impl Fn() -> F + Send + Sync) -> StoreResult<Task>
    where
        F: Future<Output = StoreResult<Task>> + Send,
    {
        let deadline = Instant::now() + QUARANTINE_AFTER;
        loop {
            let outcome = change().await;
            let is_invalid = matches!(&outcome, Err(StoreError::InvalidTask { id: invalid, .. }) if *invalid == id);
            if !is_invalid || !self.files.is_being_written(id) || Instant::now() >= deadline {
                return outcome;
            }
            sleep(WRITE_POLL).await;
        }
    }

    /// Runs a claim. If the caller is cancelled meanwhile, the claim is released, because the caller does not know about the task.
    async fn run_claim<R: Send + 'static>(
        &self,
        call: impl FnOnce(&BoardFiles) -> StoreResult<R> + Send + 'static,
        claimed: impl FnOnce(R) -> Option<Task> + Send + 'static,
    ) -> StoreResult<R> {
        let files = Arc::clone(&self.files);
        if has_one_thread() {
            // The caller cannot be cancelled between the claim and its result.
            return blocking(move || files.explained(call(&files))).await;
        }
        let (sender, receiver) = oneshot::channel();
        spawn_blocking(move || {
            if let Err(Ok(result)) = sender.send(files.explained(call(&files)))
                && let Some(task) = claimed(result)
            {
                release_claim(&files, &task);
            }
        });
        receiver.await.unwrap_or_else(|error| Err(interrupted(error)))
    }
}

fn release_claim(files: &BoardFiles, task: &Task) {
    let by = Actor::holder(task.owner.as_deref().unwrap_or_default(), task.attempt);
    let release = Change::Release { reason: String::new(), is_failure: false };
    if let Err(error) = files.change(task.id, &release, &by) {
        tracing::warn!(task = task.id.0, %error, "cannot release the claim of a cancelled call");
    }
}

fn interrupted(error: impl std::error::Error) -> StoreError {
    let source = io::Error::other(error.to_string());
    StoreError::Io { action: IoAction::Other("use"), place: BOARD_FOLDER.to_owned(), source }
}

#[async_trait]
impl Board for FileBoard {
    async fn create(&self, by: &Actor, tasks: Vec<NewTask>, skip_known_sources: bool) -> StoreResult<Vec<Task>> {
        let by = by.clone();
        self.run(move |files| files.create(&by, tasks, skip_known_sources)).await
    }

    async fn view(&self) -> StoreResult<Arc<BoardView>> {
        if let Some(view) = self.files.cached_view() {
            return Ok(view);
        }
        self.run_read(BoardFiles::view).await
    }

    async fn get(&self, id: TaskId) -> StoreResult<Task> {
        if let Some(task) = self.files.cached_task(id) {
            return Ok(task);
        }
        self.run_read(move |files| files.get(id)).await
    }

    async fn claim_next(&self, claimant: &Claimant) -> StoreResult<Option<Task>> {
        if self.files.is_known_empty_for(claimant) {
            return Ok(None);
        }
        let claimant = claimant.clone();
        self.run_claim(move |files| files.claim_next(&claimant), |task| task).await
    }

    async fn claim(&self, id: TaskId, claimant: &Claimant) -> StoreResult<Task> {
        self.run_change(id, || {
            let claimant = claimant.clone();
            self.run_claim(move |files| files.claim(id, &claimant), Some)
        })
        .await
    }

    async fn change(&self, id: TaskId, change: Change, by: &Actor) -> StoreResult<Task> {
        self.run_change(id, || {
            let (change, by) = (change.clone(), by.clone());
            self.run(move |files| files.change(id, &change, &by))
        })
        .await
    }

    async fn delete(&self, id: TaskId, by: &Actor) -> StoreResult<Task> {
        self.run_change(id, || {
            let by = by.clone();
            self.run(move |files| files.delete(id, &by))
        })
        .await
    }

    async fn deleted(&self, ids: &[TaskId]) -> StoreResult<BTreeSet<TaskId>> {
        let ids = ids.to_owned();
        self.run(move |files| files.deleted(&ids)).await
    }

    async fn quarantined_tasks(&self) -> StoreResult<BTreeMap<TaskId, QuarantinedTask>> {
        self.run(|files| Ok(files.quarantined_files())).await
    }

    async fn reclaim(&self, request: &ReclaimRequest) -> StoreResult<Vec<Reclaimed>> {
        if self.files.is_known_without_claims() {
            return Ok(Vec::new());
        }
        let request = request.clone();
        self.run(move |files| files.reclaim(&request)).await
    }
}
