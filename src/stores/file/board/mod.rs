//! The task board as plain files: `.tasks/task_<id>.json`, under the sidecar lock `.tasks/.lock`.
//!
//! [`BoardFiles`] is the board; [`FileBoard`] makes its blocking calls off the runtime's threads. Inside: `layout` says what
//! lies where, `scan` reads, `index` remembers, `section` writes under the lock, `create`, `delete` and `recover` keep what must
//! not be half done. Other programs may read and write the task files at any time; nothing here trusts its memory over the file.

mod core;
mod create;
mod delete;
mod index;
mod layout;
mod recover;
mod scan;
mod section;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::{broadcast, oneshot};
use tokio::task::spawn_blocking;

use crate::domain::change::{Actor, Change};
use crate::domain::task::{NewTask, Task, TaskId};
use crate::ports::{Board, BoardView, Claimant, Clock, LostClaims, Reclaimed, StoreChange, StoreError, StoreResult};
use crate::stores::fs::FileSystem;

use super::{Durability, blocking, blocking_beside, is_alone};

pub use self::core::BoardFiles;
pub use self::layout::{BOARD_FOLDER, SPOILED_AFTER, SPOILED_FOLDER, WATERMARK_FILE};

/// The task board of one workspace. What is at hand is answered at once: handing a call to another thread and back costs more than
/// it does, and an idle team asks all the time.
#[derive(Clone)]
pub struct FileBoard {
    files: Arc<BoardFiles>,
}

impl FileBoard {
    /// Opens the board; see [`BoardFiles::open`]. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the board's folder can be neither made nor read.
    pub fn open(
        files: Arc<dyn FileSystem>,
        workspace: &Path,
        durability: Durability,
        clock: Arc<dyn Clock>,
        changes: broadcast::Sender<StoreChange>,
    ) -> StoreResult<Self> {
        BoardFiles::open(files, workspace, durability, clock, changes).map(|board| Self { files: Arc::new(board) })
    }

    /// The board to look at only; see [`BoardFiles::look`].
    #[must_use]
    pub fn look(files: Arc<dyn FileSystem>, workspace: &Path, clock: Arc<dyn Clock>) -> Self {
        Self { files: Arc::new(BoardFiles::look(files, workspace, clock)) }
    }

    /// Files that were no tasks and were moved out of the way, by the number of the task: where each lies in the workspace. Blocks.
    #[must_use]
    pub fn set_aside(&self) -> BTreeMap<TaskId, String> {
        self.files.set_aside()
    }

    async fn run<R: Send + 'static>(
        &self,
        call: impl FnOnce(&BoardFiles) -> StoreResult<R> + Send + 'static,
    ) -> StoreResult<R> {
        let files = Arc::clone(&self.files);
        blocking_beside(move || call(&files)).await
    }

    /// Runs a claim. When nobody waits for it any more by the time it is made, it is given back: a caller that was cancelled would
    /// hold a task that it knows nothing of.
    async fn claiming<R: Send + 'static>(
        &self,
        call: impl FnOnce(&BoardFiles) -> StoreResult<R> + Send + 'static,
        claimed: impl FnOnce(R) -> Option<Task> + Send + 'static,
    ) -> StoreResult<R> {
        let files = Arc::clone(&self.files);
        if is_alone() {
            // Nobody can be cancelled between the claim and its answer.
            return blocking(move || call(&files)).await;
        }
        let (sender, receiver) = oneshot::channel();
        spawn_blocking(move || {
            if let Err(Ok(unheard)) = sender.send(call(&files))
                && let Some(task) = claimed(unheard)
            {
                give_back(&files, &task);
            }
        });
        receiver.await.unwrap_or_else(|error| Err(interrupted(error)))
    }
}

fn give_back(files: &BoardFiles, task: &Task) {
    let by = Actor::holder(task.owner.as_deref().unwrap_or_default(), task.attempt);
    let release = Change::Release { reason: String::new(), counts: false };
    if let Err(error) = files.change(task.id, &release, &by) {
        tracing::warn!(task = task.id.0, %error, "a claim nobody waited for could not be given back");
    }
}

fn interrupted(error: impl std::error::Error) -> StoreError {
    let source = io::Error::other(error.to_string());
    StoreError::Io { action: "use", path: BOARD_FOLDER.to_owned(), source }
}

#[async_trait]
impl Board for FileBoard {
    async fn create(&self, by: &Actor, tasks: Vec<NewTask>, skip_known_sources: bool) -> StoreResult<Vec<Task>> {
        let by = by.clone();
        self.run(move |files| files.create(&by, tasks, skip_known_sources)).await
    }

    async fn view(&self) -> StoreResult<Arc<BoardView>> {
        if let Some(view) = self.files.view_at_hand() {
            return Ok(view);
        }
        self.run(BoardFiles::view).await
    }

    async fn get(&self, id: TaskId) -> StoreResult<Task> {
        if let Some(task) = self.files.get_at_hand(id) {
            return Ok(task);
        }
        self.run(move |files| files.get(id)).await
    }

    async fn claim_next(&self, claimant: &Claimant) -> StoreResult<Option<Task>> {
        if self.files.has_surely_nothing_for(claimant) {
            return Ok(None);
        }
        let claimant = claimant.clone();
        self.claiming(move |files| files.claim_next(&claimant), |task| task).await
    }

    async fn claim(&self, id: TaskId, claimant: &Claimant) -> StoreResult<Task> {
        let claimant = claimant.clone();
        self.claiming(move |files| files.claim(id, &claimant), Some).await
    }

    async fn change(&self, id: TaskId, change: Change, by: &Actor) -> StoreResult<Task> {
        let by = by.clone();
        self.run(move |files| files.change(id, &change, &by)).await
    }

    async fn delete(&self, id: TaskId, by: &Actor) -> StoreResult<Task> {
        let by = by.clone();
        self.run(move |files| files.delete(id, &by)).await
    }

    async fn deleted(&self, ids: &[TaskId]) -> StoreResult<BTreeSet<TaskId>> {
        let ids = ids.to_owned();
        self.run(move |files| files.deleted(&ids)).await
    }

    async fn reclaim(&self, lost: &LostClaims) -> StoreResult<Vec<Reclaimed>> {
        if self.files.has_surely_no_claims() {
            return Ok(Vec::new());
        }
        let lost = lost.clone();
        self.run(move |files| files.reclaim(&lost)).await
    }
}
