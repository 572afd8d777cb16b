//! Full disks and held locks. Writes of members that must not be lost wait for room, or for a lock that another process holds, for a
//! limited time. New work starts only if the disk has room and no write waits.
//!
//! Members reach their stores through [`WriteRetry`], so that every report, record and message waits in this one place.
//! The lead does not wait: it must receive a stop request at any time, and polls anyway.

use std::fmt;
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
use crate::domain::task::transition::Change;
use crate::domain::text::units::bytes;
use crate::ports::{Call, Interceptor, IoAction, StoreError, StoreResult};
use crate::run::event_sink::EventSink;
use crate::run::progress::Activity;

/// The longest wait of one write. After that the teammate is restarted, and its task is tried again.
const WRITE_WAIT_MAX: Duration = Duration::from_secs(600);
/// The time between two tries.
const WRITE_RETRY: Duration = Duration::from_millis(500);
/// The time that the last try may take before the teammate counts as stalled.
const LAST_TRY: Duration = Duration::from_secs(60);

/// Returns the reason why this disk has too little room for new work, if it has.
pub fn low_disk_reason(folder: &Path, free_bytes_min: u64) -> Option<String> {
    let free = crate::platform::free_bytes(folder).ok().filter(|free| *free < free_bytes_min)?;
    let (mut free_text, mut needed_text) = (bytes(free), bytes(free_bytes_min));
    if free_text == needed_text {
        (free_text, needed_text) = (format!("{free} bytes"), format!("{free_bytes_min} bytes"));
    }
    Some(format!("{free_text} free, {needed_text} needed (limits.free_bytes_min)"))
}

/// The cause of failed writes, which can end without help.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteObstacle {
    /// The disk takes no data.
    FullDisk,
    /// Another process holds the lock at this place.
    HeldLock(String),
}

impl WriteObstacle {
    /// Returns the obstacle of a call that failed without effect, and so may be repeated.
    fn of(error: &StoreError) -> Option<Self> {
        let StoreError::Io { action, place, source } = error else { return None };
        match (action, source.kind()) {
            // The data is there.
            (IoAction::Sync, _) => None,
            (IoAction::Lock, ErrorKind::TimedOut) => Some(Self::HeldLock(place.clone())),
            (_, ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::ReadOnlyFilesystem) => {
                Some(Self::FullDisk)
            }
            _ => None,
        }
    }

    /// Returns the subject of the warnings about it.
    fn subject(&self) -> &'static str {
        match self {
            Self::FullDisk => "disk",
            Self::HeldLock(_) => "lock",
        }
    }
}

/// Says what a member waits for, as people see it.
impl fmt::Display for WriteObstacle {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FullDisk => to.write_str("room on the disk"),
            Self::HeldLock(place) => write!(to, "the lock {place}"),
        }
    }
}

/// The reason why no new work may start.
pub struct ClaimPause {
    /// The obstacle whose end is waited for.
    pub obstacle: WriteObstacle,
    /// The reason, for people.
    pub reason: String,
}

/// The storage of the workspace, for the whole team.
pub struct StorageMonitor {
    folder: PathBuf,
    free_bytes_min: u64,
    events: EventSink,
    /// Wakes the lead.
    lead: Arc<Notify>,
    state: Mutex<StorageState>,
}

#[derive(Default)]
struct StorageState {
    /// The reason why there is too little room for new work, at the last check.
    shortage: Option<String>,
    /// The obstacle of each write that waits.
    waiting: Vec<WriteObstacle>,
}

impl StorageMonitor {
    /// Watches the disk of the workspace. The lead is notified when new work must not start, and when it may again.
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

    /// Returns the reason why no new work may start: the last check found too little room, or a write waits now.
    pub fn claim_pause(&self) -> Option<ClaimPause> {
        let state = self.state.lock();
        if let Some(reason) = state.shortage.clone() {
            return Some(ClaimPause { obstacle: WriteObstacle::FullDisk, reason });
        }
        let obstacle = state.waiting.first()?.clone();
        Some(ClaimPause { obstacle, reason: "finished work waits to be recorded".to_owned() })
    }

    /// Registers a waiting write until the result is dropped. Warns of the first one that waits for this obstacle.
    fn start_wait(&self, obstacle: WriteObstacle, error: &StoreError) -> WriteWait<'_> {
        let is_first = {
            let mut state = self.state.lock();
            let is_first = !state.waiting.contains(&obstacle);
            state.waiting.push(obstacle.clone());
            is_first
        };
        if is_first {
            let text = format!("finished work waits to be recorded, and the team claims no new tasks: {error}");
            self.events.warn(obstacle.subject(), text);
            self.lead.notify_one();
        }
        WriteWait { storage: self, obstacle }
    }
}

/// One waiting write.
struct WriteWait<'a> {
    storage: &'a StorageMonitor,
    obstacle: WriteObstacle,
}

impl Drop for WriteWait<'_> {
    fn drop(&mut self) {
        let is_last = {
            let mut state = self.storage.state.lock();
            if let Some(index) = state.waiting.iter().position(|other| *other == self.obstacle) {
                state.waiting.swap_remove(index);
            }
            !state.waiting.contains(&self.obstacle)
        };
        if is_last {
            let text = format!("nothing waits for {} any longer", self.obstacle);
            self.storage.events.warn(self.obstacle.subject(), text);
            self.storage.lead.notify_one();
        }
    }
}

/// Retries the writes of one member while an obstacle lasts, until its turn is aborted. Starts no new work then.
pub struct WriteRetry {
    /// The storage.
    pub storage: Arc<StorageMonitor>,
    /// The control of the member's turns.
    pub turn_control: Arc<TurnControl>,
}

impl WriteRetry {
    /// Calls `act`, and repeats it while an obstacle lasts, for up to [`WRITE_WAIT_MAX`], or until the turn must end at `stop_level`.
    async fn retry<T, F>(&self, stop_level: StopLevel, act: impl Fn() -> F) -> StoreResult<T>
    where
        F: Future<Output = StoreResult<T>>,
    {
        let mut outcome = act().await;
        let Err(error) = &outcome else { return outcome };
        let Some(obstacle) = WriteObstacle::of(error) else { return outcome };
        if self.turn_control.level() >= stop_level {
            return outcome;
        }
        let activity = Activity::WaitingToWrite(obstacle.to_string().into());
        let _waiting = self.storage.start_wait(obstacle, error);
        let _busy = self.turn_control.progress.start_activity(activity, WRITE_WAIT_MAX + LAST_TRY);
        let until = Instant::now() + WRITE_WAIT_MAX;
        while Instant::now() < until && outcome.as_ref().is_err_and(|error| WriteObstacle::of(error).is_some()) {
            tokio::select! {
                biased;
                () = self.turn_control.wait_for_level(stop_level) => break,
                () = tokio::time::sleep(WRITE_RETRY) => outcome = act().await,
            }
        }
        outcome
    }
}

impl Interceptor for WriteRetry {
    async fn intercept<T, F>(&self, call: Call<'_>, perform: impl Fn() -> F + Send + Sync) -> StoreResult<T>
    where
        T: Send,
        F: Future<Output = StoreResult<T>> + Send,
    {
        match call {
            // A stop does not wait to release unfinished work: the lead or the next launch reclaims it.
            Call::ChangeTask(_, Change::Release { is_failure: false, .. } | Change::ReleaseAtCap { .. }, _) => {
                self.retry(StopLevel::FinishTurn, perform).await
            }
            Call::CreateTasks
            | Call::ChangeTask(..)
            | Call::DeleteTask(_)
            | Call::SendMessage(..)
            | Call::SettleMail(_)
            | Call::AppendTranscript(_)
            | Call::AnswerRequest(_)
            | Call::ChangeRequest
            | Call::AppendLedger
            | Call::ChangeWorkers => self.retry(StopLevel::Abort, perform).await,
            Call::ClaimNext(_) | Call::Claim(_) => {
                self.storage.probe();
                match self.storage.claim_pause() {
                    Some(pause) => Err(StoreError::ClaimsPaused(pause.reason)),
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
