//! Full disks. New work starts only if the disk has room. Writes that must not be lost wait for room, for a limited time.
//!
//! Members reach their stores through [`RetryOnFull::stores`], so that every report, record and message waits in this one place.
//! The lead does not wait: it must receive a stop request at any time, and polls anyway.

use std::future::Future;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::agents::cancellation::{StopLevel, TurnControl};
use crate::domain::records::RunningCommand;
use crate::domain::units::bytes;
use crate::ports::{Call, Interceptor, IoAction, StoreError, StoreResult, Stores};
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
        stores.with_interceptor(&Arc::new(self.clone()))
    }

    /// Returns the same command registry with retries.
    #[must_use]
    pub fn commands(&self, commands: Arc<dyn CommandRegistry>) -> Arc<dyn CommandRegistry> {
        Arc::new(RetryingCommands { inner: commands, retry: self.clone() })
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

impl Interceptor for RetryOnFull {
    async fn intercept<T, F>(&self, call: Call<'_>, perform: impl Fn() -> F + Send + Sync) -> StoreResult<T>
    where
        T: Send,
        F: Future<Output = StoreResult<T>> + Send,
    {
        match call {
            Call::CreateTasks
            | Call::ChangeTask(..)
            | Call::DeleteTask(_)
            | Call::SendMessage(..)
            | Call::SettleMail(_)
            | Call::AppendTranscript
            | Call::AnswerRequest(_)
            | Call::ChangeRequest
            | Call::AppendLedger => self.retry(perform).await,
            Call::Read | Call::ViewBoard | Call::PeekMail(_) => perform().await,
            // Members repeat these calls, or do not make them.
            Call::ClaimNext(_)
            | Call::Claim(_)
            | Call::Reclaim
            | Call::OpenInboxes
            | Call::TakeMail(_)
            | Call::UpdateState
            | Call::ReportRoster
            | Call::ChangeWorkers => perform().await,
        }
    }

    fn claim_refusal(&self) -> Option<String> {
        if self.disk.probe() { None } else { Some(self.disk.refusal()) }
    }
}

/// A command registry with retries.
struct RetryingCommands {
    inner: Arc<dyn CommandRegistry>,
    retry: RetryOnFull,
}

#[async_trait]
impl CommandRegistry for RetryingCommands {
    async fn started(&self, command: RunningCommand) -> StoreResult<()> {
        self.retry.retry(|| self.inner.started(command)).await
    }
    async fn ended(&self, command: RunningCommand) {
        self.inner.ended(command).await;
    }
}
