//! Full disks. New work starts only if the disk has room. Writes that must not be lost wait for room, for a limited time.
//!
//! Members reach their stores through [`RetryOnFull`], so that every report, record and message waits in this one place.
//! The lead does not wait: it must receive a stop request at any time, and polls anyway.

use std::future::Future;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::agents::AgentServices;
use crate::agents::turn_control::{StopLevel, TurnControl};
use crate::domain::units::bytes;
use crate::ports::{Call, Interceptor, IoAction, StoreError, StoreResult};
use crate::run::event_sink::EventSink;
use crate::run::progress::Activity;

/// The longest wait of one write. After that the teammate is restarted, and its task is tried again.
pub const ROOM_WAIT_MAX: Duration = Duration::from_secs(600);
/// The time between two tries.
const ROOM_RETRY: Duration = Duration::from_millis(500);
/// The time that the last try may take before the teammate counts as stalled.
const LAST_TRY: Duration = Duration::from_secs(60);

/// The reason of a member's wait for the disk, as people see it.
pub const NO_ROOM: &str = "room on the disk";

/// Returns the reason why this disk has too little room for new work, if it has.
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
    /// Wakes the lead.
    lead: Arc<Notify>,
    state: Mutex<DiskState>,
}

#[derive(Default)]
struct DiskState {
    /// The reason why there is too little room for new work, at the last check.
    shortage: Option<String>,
    /// The number of writes that wait.
    waiting: usize,
}

impl DiskMonitor {
    /// Watches the disk of the workspace. The lead is notified when room runs out or returns.
    pub fn new(services: &AgentServices) -> Self {
        Self {
            folder: services.workspace.root.clone(),
            free_bytes_min: services.spec.limits.free_bytes_min,
            events: services.events.clone(),
            lead: Arc::clone(&services.member_reported),
            state: Mutex::default(),
        }
    }

    /// Checks the free space and warns of changes.
    pub fn probe(&self) {
        let shortage = low_disk_reason(&self.folder, self.free_bytes_min);
        let before = std::mem::replace(&mut self.state.lock().shortage, shortage.clone());
        if before.is_some() != shortage.is_some() {
            let refusal = shortage.map(|reason| format!("the team claims no new tasks: {reason}"));
            self.events.warn("disk", refusal.unwrap_or_else(|| "there is room again".to_owned()));
            self.lead.notify_one();
        }
    }

    /// Returns the reason why no new work may start: the last check found too little room, or a write waits for room now.
    pub fn shortage(&self) -> Option<String> {
        let state = self.state.lock();
        let is_full = || (state.waiting > 0).then(|| "finished work waits to be recorded".to_owned());
        state.shortage.clone().or_else(is_full)
    }

    /// Registers a waiting write until the result is dropped. Warns of the first one.
    fn start_wait(&self, error: &StoreError) -> RetryWait<'_> {
        let is_first = {
            let mut state = self.state.lock();
            state.waiting += 1;
            state.waiting == 1
        };
        if is_first {
            let text = format!("finished work waits to be recorded, and the team claims no new tasks: {error}");
            self.events.warn("disk", text);
            self.lead.notify_one();
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
            let mut state = self.disk.state.lock();
            state.waiting -= 1;
            state.waiting == 0
        };
        if is_last {
            self.disk.events.warn("disk", "nothing waits for room on the disk any longer");
            self.disk.lead.notify_one();
        }
    }
}

/// Retries the writes of one member while the disk is full, until its turn is aborted. Starts no new work then.
pub struct RetryOnFull {
    /// The disk.
    pub disk: Arc<DiskMonitor>,
    /// The control of the member's turns.
    pub turn_control: Arc<TurnControl>,
}

impl RetryOnFull {
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
        let _busy = self.turn_control.progress.start_activity(Activity::WaitingForDisk, ROOM_WAIT_MAX + LAST_TRY);
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
            | Call::AppendTranscript(_)
            | Call::AnswerRequest(_)
            | Call::ChangeRequest
            | Call::AppendLedger
            | Call::ChangeWorkers => self.retry(perform).await,
            Call::ClaimNext(_) | Call::Claim(_) => {
                self.disk.probe();
                match self.disk.shortage() {
                    Some(reason) => Err(StoreError::NoRoom(reason)),
                    None => perform().await,
                }
            }
            Call::Read | Call::ViewBoard | Call::PeekMail(_) => perform().await,
            // Members repeat these calls, or do not make them.
            Call::Reclaim | Call::OpenInboxes | Call::TakeMail(_) | Call::UpdateState | Call::ReportRoster => {
                perform().await
            }
        }
    }
}
