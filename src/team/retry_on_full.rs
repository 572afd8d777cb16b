//! Full disks. New work starts only if the disk has room. Writes that must not be lost wait for room, for a limited time.
//!
//! Members reach their stores through [`RetryOnFull::stores`], so that every report, record and message waits in this one place.
//! The lead does not wait: it must receive a stop request at any time, and polls anyway.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::future::Future;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::agents::cancellation::{StopLevel, TurnControl};
use crate::domain::approval::{ApprovalAnswer, Approvals, Request, RequestKind};
use crate::domain::budget::{LedgerRecord, LedgerTotals};
use crate::domain::message::Message;
use crate::domain::name::Name;
use crate::domain::records::RunningCommand;
use crate::domain::task::{NewTask, Task, TaskId};
use crate::domain::time::UnixMs;
use crate::domain::transcript::Record;
use crate::domain::transition::{Actor, Change};
use crate::domain::units::bytes;
use crate::ports::{
    Board, BoardView, Claimant, Delivery, IoAction, Ledger, Mailbox, QuarantinedTranscript, ReclaimRequest, Reclaimed,
    Requests, StoreError, StoreResult, Stores, Transcripts,
};
use crate::run::event_sink::EventSink;
use crate::run::progress::{Activity, Progress};
use crate::service::command::CommandRegistry;

/// The longest wait of one write. After that the teammate is restarted, and its task is tried again.
pub const ROOM_WAIT_MAX: Duration = Duration::from_secs(600);
/// The time between two tries.
const ROOM_RETRY: Duration = Duration::from_millis(500);
/// The time that the last try may take before the teammate counts as stalled.
const LAST_TRY: Duration = Duration::from_secs(60);

/// The reason of a member's wait for the disk, as people see it.
pub const NO_ROOM: &str = "room on the disk";

/// Returns the reason why this disk has too little room for new work, if it has.
#[must_use]
pub fn low_disk_reason(folder: &Path, free_bytes_min: u64) -> Option<String> {
    let free = crate::platform::free_bytes(folder).ok().filter(|free| *free < free_bytes_min)?;
    let (mut free_text, mut needed_text) = (bytes(free), bytes(free_bytes_min));
    if free_text == needed_text {
        (free_text, needed_text) = (format!("{free} bytes"), format!("{free_bytes_min} bytes"));
    }
    Some(format!("{free_text} free, {needed_text} needed (limits.free_bytes_min)"))
}

/// The disk of the workspace, for the whole team.
pub struct DiskMonitor {
    folder: PathBuf,
    free_bytes_min: u64,
    events: EventSink,
    changed: Arc<Notify>,
    state: Mutex<DiskState>,
}

#[derive(Default)]
struct DiskState {
    is_nearly_full: bool,
    /// The number of writes that wait.
    waiting: usize,
}

impl DiskMonitor {
    /// Watches the disk of `folder`. `changed` is notified when room runs out or returns.
    #[must_use]
    pub fn new(folder: PathBuf, free_bytes_min: u64, events: EventSink, changed: Arc<Notify>) -> Self {
        Self { folder, free_bytes_min, events, changed, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the free space and warns of changes. Returns true if there is room for new work.
    pub fn probe(&self) -> bool {
        let error = low_disk_reason(&self.folder, self.free_bytes_min);
        let is_nearly_full = error.is_some();
        let has_changed = std::mem::replace(&mut self.state().is_nearly_full, is_nearly_full) != is_nearly_full;
        if has_changed {
            let text = match error {
                Some(error) => format!("the team claims no new tasks: {error}"),
                None => "there is room again".to_owned(),
            };
            self.events.warn("disk", text);
            self.changed.notify_one();
        }
        !self.is_nearly_full()
    }

    /// Returns the text that refuses a claim.
    fn refusal(&self) -> String {
        let reason = low_disk_reason(&self.folder, self.free_bytes_min);
        let reason = reason.unwrap_or_else(|| "the disk is full, and finished work waits to be recorded".to_owned());
        format!("the team claims no new tasks: {reason}")
    }

    /// Returns the reason why an idle teammate waits, if there is no room for new work.
    #[must_use]
    pub fn waiting_for(&self) -> Option<String> {
        if !self.is_nearly_full() {
            return None;
        }
        let error = low_disk_reason(&self.folder, self.free_bytes_min);
        Some(error.map_or_else(|| NO_ROOM.to_owned(), |error| format!("{NO_ROOM}: {error}")))
    }

    /// Returns true if the last check found too little room, or a write waits for room now.
    #[must_use]
    pub fn is_nearly_full(&self) -> bool {
        let state = self.state();
        state.is_nearly_full || state.waiting > 0
    }

    /// Registers a waiting write until the result is dropped. Warns of the first one.
    fn start_wait(&self, error: &StoreError) -> RetryWait<'_> {
        let is_first = {
            let mut state = self.state();
            state.waiting += 1;
            state.waiting == 1
        };
        if is_first {
            let text = format!("finished work waits to be recorded, and the team claims no new tasks: {error}");
            self.events.warn("disk", text);
            self.changed.notify_one();
        }
        RetryWait { disk: self }
    }
}

/// One waiting write.
struct RetryWait<'a> {
    disk: &'a DiskMonitor,
}

impl Drop for RetryWait<'_> {
    fn drop(&mut self) {
        let is_last = {
            let mut state = self.disk.state();
            state.waiting -= 1;
            state.waiting == 0
        };
        if is_last {
            self.disk.events.warn("disk", "nothing waits for room on the disk any longer");
            self.disk.changed.notify_one();
        }
    }
}

/// Retries the writes of one member while the disk is full.
#[derive(Clone)]
pub struct RetryOnFull {
    disk: Arc<DiskMonitor>,
    turn_control: Arc<TurnControl>,
    progress: Arc<Progress>,
}

impl RetryOnFull {
    /// Creates the retries of the member with this control. They end when its turn is aborted.
    #[must_use]
    pub fn new(disk: Arc<DiskMonitor>, turn_control: Arc<TurnControl>, progress: Arc<Progress>) -> Self {
        Self { disk, turn_control, progress }
    }

    /// Returns the same stores with retries.
    #[must_use]
    pub fn stores(&self, stores: &Stores) -> Stores {
        Stores {
            board: Arc::new(Retrying { inner: Arc::clone(&stores.board), retry: self.clone() }),
            mailbox: Arc::new(Retrying { inner: Arc::clone(&stores.mailbox), retry: self.clone() }),
            transcripts: Arc::new(Retrying { inner: Arc::clone(&stores.transcripts), retry: self.clone() }),
            requests: Arc::new(Retrying { inner: Arc::clone(&stores.requests), retry: self.clone() }),
            ledger: Arc::new(Retrying { inner: Arc::clone(&stores.ledger), retry: self.clone() }),
            ..stores.clone()
        }
    }

    /// Returns the same command registry with retries.
    #[must_use]
    pub fn commands(&self, commands: Arc<dyn CommandRegistry>) -> Arc<dyn CommandRegistry> {
        Arc::new(Retrying { inner: commands, retry: self.clone() })
    }

    /// Calls `act`, and repeats it while the disk is full, for up to [`ROOM_WAIT_MAX`].
    async fn retry<T, F>(&self, act: impl Fn() -> F) -> StoreResult<T>
    where
        F: Future<Output = StoreResult<T>>,
    {
        let mut error = match act().await {
            Err(error) if is_disk_full(&error) => error,
            outcome => return outcome,
        };
        let _waiting = self.disk.start_wait(&error);
        let _busy = self.progress.start_activity(Activity::WaitingForDisk, ROOM_WAIT_MAX + LAST_TRY);
        let until = Instant::now() + ROOM_WAIT_MAX;
        while Instant::now() < until {
            tokio::select! {
                biased;
                () = self.turn_control.wait_for_level(StopLevel::Abort) => return Err(error),
                () = tokio::time::sleep(ROOM_RETRY) => {}
            }
            error = match act().await {
                Err(error) if is_disk_full(&error) => error,
                outcome => return outcome,
            };
        }
        Err(error)
    }
}

/// Returns true if the call failed without effect because the disk takes no data. After a failed sync the data is there.
fn is_disk_full(error: &StoreError) -> bool {
    let StoreError::Io { source, action, .. } = error else { return false };
    if *action == IoAction::Sync {
        return false;
    }
    matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::ReadOnlyFilesystem)
}

/// A store with retries.
struct Retrying<T: ?Sized> {
    inner: Arc<T>,
    retry: RetryOnFull,
}

#[async_trait]
impl Board for Retrying<dyn Board> {
    async fn create(&self, by: &Actor, tasks: Vec<NewTask>, skip_known_sources: bool) -> StoreResult<Vec<Task>> {
        self.retry.retry(|| self.inner.create(by, tasks.clone(), skip_known_sources)).await
    }
    async fn view(&self) -> StoreResult<Arc<BoardView>> {
        self.inner.view().await
    }
    async fn get(&self, id: TaskId) -> StoreResult<Task> {
        self.inner.get(id).await
    }
    async fn claim_next(&self, claimant: &Claimant) -> StoreResult<Option<Task>> {
        if self.retry.disk.probe() { self.inner.claim_next(claimant).await } else { Ok(None) }
    }
    async fn claim(&self, id: TaskId, claimant: &Claimant) -> StoreResult<Task> {
        if self.retry.disk.probe() {
            return self.inner.claim(id, claimant).await;
        }
        Err(StoreError::Invalid(self.retry.disk.refusal()))
    }
    async fn change(&self, id: TaskId, change: Change, by: &Actor) -> StoreResult<Task> {
        self.retry.retry(|| self.inner.change(id, change.clone(), by)).await
    }
    async fn delete(&self, id: TaskId, by: &Actor) -> StoreResult<Task> {
        self.retry.retry(|| self.inner.delete(id, by)).await
    }
    async fn deleted(&self, ids: &[TaskId]) -> StoreResult<BTreeSet<TaskId>> {
        self.inner.deleted(ids).await
    }
    async fn set_aside(&self) -> StoreResult<BTreeMap<TaskId, String>> {
        self.inner.set_aside().await
    }
    async fn reclaim(&self, request: &ReclaimRequest) -> StoreResult<Vec<Reclaimed>> {
        self.inner.reclaim(request).await
    }
}

#[async_trait]
impl Mailbox for Retrying<dyn Mailbox> {
    async fn send(&self, to: &str, message: Message) -> StoreResult<String> {
        self.retry.retry(|| self.inner.send(to, message.clone())).await
    }
    async fn open_inboxes(&self, names: &[Name]) -> StoreResult<()> {
        self.inner.open_inboxes(names).await
    }
    async fn take(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<Vec<Delivery>> {
        self.inner.take(name, delivered).await
    }
    async fn settle(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<()> {
        self.retry.retry(|| self.inner.settle(name, delivered)).await
    }
    async fn peek(&self, name: &str) -> StoreResult<Vec<Delivery>> {
        self.inner.peek(name).await
    }
    async fn recipients_with_mail(&self) -> StoreResult<Vec<String>> {
        self.inner.recipients_with_mail().await
    }
}

#[async_trait]
impl Transcripts for Retrying<dyn Transcripts> {
    async fn load(&self, name: &str) -> StoreResult<Vec<Record>> {
        self.inner.load(name).await
    }
    async fn append(&self, name: &str, records: &[Record], sync: bool) -> StoreResult<()> {
        self.retry.retry(|| self.inner.append(name, records, sync)).await
    }
    fn take_quarantined(&self) -> Vec<QuarantinedTranscript> {
        self.inner.take_quarantined()
    }
}

#[async_trait]
impl Requests for Retrying<dyn Requests> {
    async fn record(&self, request: Request) -> StoreResult<()> {
        self.retry.retry(|| self.inner.record(request.clone())).await
    }
    async fn reserve(&self, id: &str, kind: RequestKind, by: &str, process: &str, now: UnixMs) -> StoreResult<Request> {
        self.retry.retry(|| self.inner.reserve(id, kind, by, process, now)).await
    }
    async fn answer(&self, id: &str, kind: RequestKind, answer: ApprovalAnswer) -> StoreResult<Request> {
        self.retry.retry(|| self.inner.answer(id, kind, answer.clone())).await
    }
    async fn reassign(&self, id: &str, kind: RequestKind, to: &str) -> StoreResult<Option<Request>> {
        self.retry.retry(|| self.inner.reassign(id, kind, to)).await
    }
    async fn rebind_review(&self, id: &str, from: &str, attempt: u32, at: UnixMs) -> StoreResult<()> {
        self.retry.retry(|| self.inner.rebind_review(id, from, attempt, at)).await
    }
    async fn withdraw(&self, id: &str, kind: RequestKind, reason: &str, at: UnixMs) -> StoreResult<()> {
        self.retry.retry(|| self.inner.withdraw(id, kind, reason, at)).await
    }
    async fn all(&self) -> StoreResult<Approvals> {
        self.inner.all().await
    }
}

#[async_trait]
impl Ledger for Retrying<dyn Ledger> {
    async fn read(&self) -> StoreResult<LedgerTotals> {
        self.inner.read().await
    }
    async fn append(&self, lines: Vec<LedgerRecord>) -> StoreResult<()> {
        self.retry.retry(|| self.inner.append(lines.clone())).await
    }
}

#[async_trait]
impl CommandRegistry for Retrying<dyn CommandRegistry> {
    async fn started(&self, command: RunningCommand) -> StoreResult<()> {
        self.retry.retry(|| self.inner.started(command)).await
    }
    async fn ended(&self, command: RunningCommand) {
        self.inner.ended(command).await;
    }
}
