//! Whether the disk has room: asked right before new work is taken, and waited for, within a bound, by what must not be lost.
//!
//! Members reach their stores through [`Patience::stores`], so that a report, a record or a message that meets a full disk
//! waits in this one place. The lead does not: it must hear a stop at any time, and it looks again by itself.

use std::collections::{BTreeSet, HashSet};
use std::future::Future;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::progress::{Activity, Progress};
use super::recorder::Notes;
use super::reins::{Pace, Reins};
use crate::domain::change::{Actor, Change};
use crate::domain::measure::bytes;
use crate::domain::message::Message;
use crate::domain::name::Name;
use crate::domain::record::RunningCommand;
use crate::domain::request::{Answer, Request, RequestBook, RequestKind};
use crate::domain::spend::{Book, LedgerLine};
use crate::domain::task::{NewTask, Task, TaskId};
use crate::domain::time::UnixMs;
use crate::domain::transcript::Record;
use crate::ports::{
    Board, BoardView, Claimant, Delivery, Ledger, LostClaims, Mailbox, Reclaimed, Requests, SetAside, StoreError,
    StoreResult, Stores, Transcripts,
};
use crate::tools::CommandRegistry;

/// The longest that one report waits for room. The teammate is started again after that, and its task is tried again.
pub const ROOM_WAIT_MAX: Duration = Duration::from_secs(600);
/// How often it is tried again meanwhile.
const ROOM_RETRY: Duration = Duration::from_millis(500);
/// How long the last try may take before the teammate counts as hanging.
const LAST_TRY: Duration = Duration::from_secs(60);

/// What is waited for where there is no room.
pub const NO_ROOM: &str = "room on the disk";

/// Why no work is taken in a workspace on this disk, where too little is free on it.
#[must_use]
pub fn too_little_room(folder: &Path, free_bytes_min: u64) -> Option<String> {
    let free = crate::platform::free_bytes(folder).ok().filter(|free| *free < free_bytes_min)?;
    let (mut left, mut needed) = (bytes(free), bytes(free_bytes_min));
    if left == needed {
        (left, needed) = (format!("{free} bytes"), format!("{free_bytes_min} bytes"));
    }
    Some(format!("{left} free, {needed} needed (limits.free_bytes_min)"))
}

/// The disk under the workspace, as the whole team sees it.
pub struct Room {
    folder: PathBuf,
    free_bytes_min: u64,
    notes: Notes,
    changed: Arc<Notify>,
    scarcity: Mutex<Scarcity>,
}

#[derive(Default)]
struct Scarcity {
    is_nearly_full: bool,
    /// Reports that wait.
    waiting: usize,
}

impl Room {
    /// Looks after the disk of `folder`; `changed` is told when there is room no longer, or again.
    #[must_use]
    pub fn new(folder: PathBuf, free_bytes_min: u64, notes: Notes, changed: Arc<Notify>) -> Self {
        Self { folder, free_bytes_min, notes, changed, scarcity: Mutex::default() }
    }

    fn scarcity(&self) -> MutexGuard<'_, Scarcity> {
        self.scarcity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the system, says so when that changed, and returns whether there is room for new work.
    pub fn look(&self) -> bool {
        let trouble = too_little_room(&self.folder, self.free_bytes_min);
        let is_nearly_full = trouble.is_some();
        let has_changed = std::mem::replace(&mut self.scarcity().is_nearly_full, is_nearly_full) != is_nearly_full;
        if has_changed {
            let full = trouble.map(|trouble| format!("no new work is taken: {trouble}"));
            self.notes.warn("disk", full.unwrap_or_else(|| "there is room again".to_owned()));
            self.changed.notify_one();
        }
        !self.is_scarce()
    }

    /// Why no new work is taken, where it is not.
    fn why_not(&self) -> String {
        let why = too_little_room(&self.folder, self.free_bytes_min);
        let why = why.unwrap_or_else(|| "the disk is full, and what was done waits to be recorded".to_owned());
        format!("no new work is taken: {why}")
    }

    /// What an idle teammate waits for besides work, where there is no room for new work.
    #[must_use]
    pub fn awaited(&self) -> Option<String> {
        let free = || too_little_room(&self.folder, self.free_bytes_min);
        self.is_scarce().then(|| free().map_or_else(|| NO_ROOM.to_owned(), |free| format!("{NO_ROOM}: {free}")))
    }

    /// Whether there was no room for new work when somebody last looked, or a report waits for room now.
    #[must_use]
    pub fn is_scarce(&self) -> bool {
        let scarcity = self.scarcity();
        scarcity.is_nearly_full || scarcity.waiting > 0
    }

    /// One more report waits, until the result is dropped. Said for the first of them.
    fn wait(&self, error: &StoreError) -> Waiting<'_> {
        let is_first = {
            let mut scarcity = self.scarcity();
            scarcity.waiting += 1;
            scarcity.waiting == 1
        };
        if is_first {
            let text = format!("what was done waits to be recorded, and no new work is taken: {error}");
            self.notes.warn("disk", text);
            self.changed.notify_one();
        }
        Waiting { room: self }
    }
}

/// A report that waits.
struct Waiting<'a> {
    room: &'a Room,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let is_last = {
            let mut scarcity = self.room.scarcity();
            scarcity.waiting -= 1;
            scarcity.waiting == 0
        };
        if is_last {
            self.room.notes.warn("disk", "what waited for room waits no longer");
            self.room.changed.notify_one();
        }
    }
}

/// One member's waiting; see the module.
#[derive(Clone)]
pub struct Patience {
    room: Arc<Room>,
    reins: Arc<Reins>,
    progress: Arc<Progress>,
}

impl Patience {
    /// The patience of the member with these reins. It ends when a turn is broken off.
    #[must_use]
    pub fn new(room: Arc<Room>, reins: Arc<Reins>, progress: Arc<Progress>) -> Self {
        Self { room, reins, progress }
    }

    /// The same stores, with patience.
    #[must_use]
    pub fn stores(&self, stores: &Stores) -> Stores {
        Stores {
            board: Arc::new(Patient { inner: Arc::clone(&stores.board), patience: self.clone() }),
            mailbox: Arc::new(Patient { inner: Arc::clone(&stores.mailbox), patience: self.clone() }),
            transcripts: Arc::new(Patient { inner: Arc::clone(&stores.transcripts), patience: self.clone() }),
            requests: Arc::new(Patient { inner: Arc::clone(&stores.requests), patience: self.clone() }),
            ledger: Arc::new(Patient { inner: Arc::clone(&stores.ledger), patience: self.clone() }),
            ..stores.clone()
        }
    }

    /// The same record of commands, with patience.
    #[must_use]
    pub fn commands(&self, commands: Arc<dyn CommandRegistry>) -> Arc<dyn CommandRegistry> {
        Arc::new(Patient { inner: commands, patience: self.clone() })
    }

    /// Does `act`, again and again while there is no room for it, within [`ROOM_WAIT_MAX`].
    async fn through<T, F>(&self, act: impl Fn() -> F) -> StoreResult<T>
    where
        F: Future<Output = StoreResult<T>>,
    {
        let mut error = match act().await {
            Err(error) if lacks_room(&error) => error,
            outcome => return outcome,
        };
        let _waiting = self.room.wait(&error);
        let _busy = self.progress.busy(Activity::WaitingForRoom, ROOM_WAIT_MAX + LAST_TRY);
        let until = Instant::now() + ROOM_WAIT_MAX;
        while Instant::now() < until {
            tokio::select! {
                biased;
                () = self.reins.reaches(Pace::BreakOff) => return Err(error),
                () = tokio::time::sleep(ROOM_RETRY) => {}
            }
            error = match act().await {
                Err(error) if lacks_room(&error) => error,
                outcome => return outcome,
            };
        }
        Err(error)
    }
}

/// Whether it failed because the disk takes nothing at present, and wholly: what only could not be made durable is there.
fn lacks_room(error: &StoreError) -> bool {
    let StoreError::Io { source, action, .. } = error else { return false };
    if *action == "sync" {
        return false;
    }
    matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::ReadOnlyFilesystem)
}

/// A store with patience.
struct Patient<T: ?Sized> {
    inner: Arc<T>,
    patience: Patience,
}

#[async_trait]
impl Board for Patient<dyn Board> {
    async fn create(&self, by: &Actor, tasks: Vec<NewTask>, skip_known_sources: bool) -> StoreResult<Vec<Task>> {
        self.patience.through(|| self.inner.create(by, tasks.clone(), skip_known_sources)).await
    }
    async fn view(&self) -> StoreResult<Arc<BoardView>> {
        self.inner.view().await
    }
    async fn get(&self, id: TaskId) -> StoreResult<Task> {
        self.inner.get(id).await
    }
    async fn claim_next(&self, claimant: &Claimant) -> StoreResult<Option<Task>> {
        if self.patience.room.look() { self.inner.claim_next(claimant).await } else { Ok(None) }
    }
    async fn claim(&self, id: TaskId, claimant: &Claimant) -> StoreResult<Task> {
        if self.patience.room.look() {
            return self.inner.claim(id, claimant).await;
        }
        Err(StoreError::Invalid(self.patience.room.why_not()))
    }
    async fn change(&self, id: TaskId, change: Change, by: &Actor) -> StoreResult<Task> {
        self.patience.through(|| self.inner.change(id, change.clone(), by)).await
    }
    async fn delete(&self, id: TaskId, by: &Actor) -> StoreResult<Task> {
        self.patience.through(|| self.inner.delete(id, by)).await
    }
    async fn deleted(&self, ids: &[TaskId]) -> StoreResult<BTreeSet<TaskId>> {
        self.inner.deleted(ids).await
    }
    async fn reclaim(&self, lost: &LostClaims) -> StoreResult<Vec<Reclaimed>> {
        self.inner.reclaim(lost).await
    }
}

#[async_trait]
impl Mailbox for Patient<dyn Mailbox> {
    async fn send(&self, to: &str, message: Message) -> StoreResult<String> {
        self.patience.through(|| self.inner.send(to, message.clone())).await
    }
    async fn open_inboxes(&self, names: &[Name]) -> StoreResult<()> {
        self.inner.open_inboxes(names).await
    }
    async fn take(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<Vec<Delivery>> {
        self.inner.take(name, delivered).await
    }
    async fn settle(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<()> {
        self.patience.through(|| self.inner.settle(name, delivered)).await
    }
    async fn peek(&self, name: &str) -> StoreResult<Vec<Delivery>> {
        self.inner.peek(name).await
    }
    async fn waiting(&self) -> StoreResult<Vec<String>> {
        self.inner.waiting().await
    }
}

#[async_trait]
impl Transcripts for Patient<dyn Transcripts> {
    async fn load(&self, name: &str) -> StoreResult<Vec<Record>> {
        self.inner.load(name).await
    }
    async fn append(&self, name: &str, records: &[Record], sync: bool) -> StoreResult<()> {
        self.patience.through(|| self.inner.append(name, records, sync)).await
    }
    fn take_set_aside(&self) -> Vec<SetAside> {
        self.inner.take_set_aside()
    }
}

#[async_trait]
impl Requests for Patient<dyn Requests> {
    async fn open(&self, request: Request) -> StoreResult<()> {
        self.patience.through(|| self.inner.open(request.clone())).await
    }
    async fn reserve(&self, id: &str, kind: RequestKind, by: &str, process: &str, now: UnixMs) -> StoreResult<Request> {
        self.patience.through(|| self.inner.reserve(id, kind, by, process, now)).await
    }
    async fn answer(&self, id: &str, kind: RequestKind, answer: Answer) -> StoreResult<Request> {
        self.patience.through(|| self.inner.answer(id, kind, answer.clone())).await
    }
    async fn hand_on(&self, id: &str, kind: RequestKind, to: &str) -> StoreResult<Option<Request>> {
        self.patience.through(|| self.inner.hand_on(id, kind, to)).await
    }
    async fn adopt(&self, id: &str, kind: RequestKind, from: &str, attempt: u32, at: UnixMs) -> StoreResult<()> {
        self.patience.through(|| self.inner.adopt(id, kind, from, attempt, at)).await
    }
    async fn withdraw(&self, id: &str, kind: RequestKind, reason: &str, at: UnixMs) -> StoreResult<()> {
        self.patience.through(|| self.inner.withdraw(id, kind, reason, at)).await
    }
    async fn all(&self) -> StoreResult<RequestBook> {
        self.inner.all().await
    }
}

#[async_trait]
impl Ledger for Patient<dyn Ledger> {
    async fn read(&self) -> StoreResult<Book> {
        self.inner.read().await
    }
    async fn append(&self, lines: Vec<LedgerLine>) -> StoreResult<()> {
        self.patience.through(|| self.inner.append(lines.clone())).await
    }
}

#[async_trait]
impl CommandRegistry for Patient<dyn CommandRegistry> {
    async fn started(&self, command: RunningCommand) -> StoreResult<()> {
        self.patience.through(|| self.inner.started(command)).await
    }
    async fn ended(&self, command: RunningCommand) {
        self.inner.ended(command).await;
    }
}
