//! `agent_state.json`: the desired state and the team's report, in one file that other programs also write.
//! [`super::exchange_file`] merges changes without loss, and [`crate::domain::team::state`] defines the merge.
//!
//! The team's fields in memory have precedence over the file. Reports are written at most four times a second; a change of the
//! desired or current state is written at once. A background task writes due reports, checks displaced versions and corrects
//! stale fields.

mod writer;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::broadcast::Sender;
use tokio::time::Instant;

use crate::domain::team::state::{DesiredStateChange, SharedState, StateReport, StateUpdate};
use crate::domain::team::state_note::StateNote;
use crate::ports::{Clock, StateStore, StoreChange, StoreResult};
use crate::stores::fs::FileStamp;

use super::blocking;
use super::exchange_file::{
    CurrentContent, EXCHANGE_FILE_BYTES_MAX, ExchangeFile, MergeResult, merge_with_retry, read_or_repair,
};
use writer::writer_task;

/// The file's name.
pub const STATE_FILE: &str = "agent_state.json";

/// The least time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(250);

/// The shared state in a file.
pub struct FileState {
    inner: Arc<StateInner>,
}

struct StateInner {
    file: ExchangeFile,
    clock: Arc<dyn Clock>,
    changes: Sender<StoreChange>,
    has_events: bool,
    own: Mutex<OwnFields>,
    wake: Arc<Notify>,
}

#[derive(Default)]
struct OwnFields {
    report: Option<Arc<StateReport>>,
    /// Counts the reports. `written_version` is smaller while a report waits.
    version: u64,
    written_version: u64,
    /// The last report that a merge used, with its version. A merge uses it again while the newest one is not due.
    merged: (u64, Option<Arc<StateReport>>),
    written_at: Option<Instant>,
    has_writer: bool,
    /// The file as it was last read or written.
    cached_state: Option<(FileStamp, SharedState)>,
    /// The result of the last merge, to skip merges that change nothing.
    last_written: Option<Arc<LastWritten>>,
}

/// A version of the file that contains everything this process has to write.
struct LastWritten {
    bytes: Vec<u8>,
    state: SharedState,
    /// The version of the report in it.
    version: u64,
}

/// The output of the merge function: the used report's version, and the last text with its state.
#[derive(Default)]
struct MergeOutput {
    version: u64,
    rendered: Option<(String, SharedState)>,
}

impl FileState {
    /// The shared state in `file`. With `has_events`, `changes` announces writes by other programs.
    pub fn new(file: ExchangeFile, clock: Arc<dyn Clock>, changes: Sender<StoreChange>, has_events: bool) -> Self {
        let own = Mutex::default();
        let wake = Arc::new(Notify::new());
        Self { inner: Arc::new(StateInner { file, clock, changes, has_events, own, wake }) }
    }

    /// Returns true if these bytes are a valid state file.
    pub fn is_valid(bytes: &[u8]) -> bool {
        SharedState::parse(bytes).is_ok()
    }

    fn start_writer(&self) {
        let mut own = self.inner.own.lock();
        if !own.has_writer {
            own.has_writer = true;
            let inner = Arc::downgrade(&self.inner);
            let wake = Arc::clone(&self.inner.wake);
            tokio::spawn(writer_task(inner, wake, self.inner.changes.subscribe()));
        }
    }
}

impl Drop for FileState {
    fn drop(&mut self) {
        // The background writer then finds the store gone and ends.
        self.inner.wake.notify_one();
    }
}

#[async_trait]
impl StateStore for FileState {
    async fn read(&self) -> StoreResult<Option<SharedState>> {
        if let Some(current_state) = self.inner.current().await? {
            return Ok(current_state);
        }
        let repair = |base: CurrentContent<'_>| Some(self.inner.as_reported(self.inner.new_state(base)).to_file());
        let bytes = match read_or_repair(&self.inner.file, repair).await? {
            MergeResult::Missing => return Ok(None),
            MergeResult::Content(bytes) => Some(bytes),
            MergeResult::Unsettled => blocking(|| self.inner.file.read_invalid()).await?,
        };
        Ok(Some(self.inner.state_of(bytes.as_deref())))
    }

    async fn update(&self, update: StateUpdate) -> StoreResult<SharedState> {
        let mut is_urgent = update.desired.is_some();
        if let Some(report) = update.report {
            is_urgent |= self.inner.set_report(report);
            self.start_writer();
        }
        if !is_urgent {
            self.inner.wake.notify_one();
            if let Some(state) = self.inner.current().await? {
                return Ok(self
                    .inner
                    .as_reported(state.unwrap_or_else(|| self.inner.new_state(CurrentContent::Missing))));
            }
        }
        let is_change = update.desired.is_some();
        let state = self.inner.write(update.desired, true).await?;
        self.inner.wake.notify_one();
        if is_change {
            // There may be no listener.
            let _ = self.inner.changes.send(StoreChange::State);
        }
        Ok(state)
    }
}

impl StateInner {
    /// Sets the report. Returns true if it is urgent: the first report, or a new current state.
    fn set_report(&self, mut report: StateReport) -> bool {
        let mut own = self.own.lock();
        let current = own.report.as_ref().and_then(|before| before.current);
        report.current = report.current.or(current);
        let is_urgent = own.report.is_none() || report.current != current;
        own.report = Some(Arc::new(report));
        own.version += 1;
        is_urgent
    }

    /// The state in the file, from memory if the file is unchanged; `None` while it is being written.
    async fn current(&self) -> StoreResult<Option<Option<SharedState>>> {
        let stamp = self.file.cached_stamp();
        if let Some((_, state)) = self.own.lock().cached_state.as_ref().filter(|(cached, _)| Some(*cached) == stamp) {
            return Ok(Some(Some(state.clone())));
        }
        blocking(|| self.read_file()).await
    }

    fn read_file(&self) -> StoreResult<Option<Option<SharedState>>> {
        Ok(match self.file.read()? {
            MergeResult::Missing => Some(None),
            MergeResult::Unsettled => None,
            MergeResult::Content(bytes) => self.read_state(&bytes).map(Some),
        })
    }

    /// The state after the current report is merged.
    fn as_reported(&self, state: SharedState) -> SharedState {
        let report = self.own.lock().report.as_deref().cloned();
        state.merge(&StateUpdate { report, desired: None }, self.clock.now())
    }

    /// The state for a missing or invalid file.
    fn new_state(&self, base: CurrentContent<'_>) -> SharedState {
        let now = self.clock.now();
        match base {
            CurrentContent::Invalid { bytes, copy } => {
                let details = format!(": {}; its copy is {copy}", invalid_reason(bytes));
                SharedState::paused_because(&StateNote::FileInvalid(details), now)
            }
            CurrentContent::Missing if self.own.lock().last_written.is_some() => {
                SharedState::paused_because(&StateNote::FileMissing, now)
            }
            CurrentContent::Missing | CurrentContent::Valid(_) => SharedState::paused(now),
        }
    }

    /// The state in these bytes, without a repair of an invalid file.
    fn state_of(&self, bytes: Option<&[u8]>) -> SharedState {
        bytes.and_then(|bytes| SharedState::parse(bytes).ok()).unwrap_or_else(|| {
            let reason = format!("{STATE_FILE} is invalid: {}", invalid_reason(bytes));
            SharedState::paused_because(&StateNote::Other(reason), self.clock.now())
        })
    }

    /// Parses the bytes, unless they are the result of the last merge.
    fn read_state(&self, bytes: &[u8]) -> Option<SharedState> {
        let last = self.own.lock().last_written.clone();
        match last.filter(|last| last.bytes == bytes) {
            Some(last) => Some(last.state.clone()),
            None => SharedState::parse(bytes).ok(),
        }
    }

    /// The new content, or `None` if the file is up to date.
    fn next_state(
        &self,
        base: CurrentContent<'_>,
        report: Option<&StateReport>,
        desired: Option<&DesiredStateChange>,
    ) -> Option<SharedState> {
        let now = self.clock.now();
        let current_state = match base {
            CurrentContent::Valid(bytes) => self.read_state(bytes),
            CurrentContent::Missing | CurrentContent::Invalid { .. } => None,
        };
        if current_state.is_none() && report.is_none() && desired.is_none() {
            let is_invalid = matches!(base, CurrentContent::Invalid { .. });
            return is_invalid.then(|| self.as_reported(self.new_state(base)));
        }
        let is_new = current_state.is_none();
        let state = current_state.unwrap_or_else(|| self.new_state(base));
        let next = state.merge(&StateUpdate { report: report.cloned(), desired: desired.cloned() }, now);
        let desired_fields = |state: &SharedState| {
            (state.desired, state.unknown_desired.clone(), state.set_by.clone(), state.note.clone())
        };
        let is_current = report.is_none_or(|report| state.contains_report(report))
            && desired_fields(&state) == desired_fields(&next);
        if is_new || !is_current { Some(next) } else { None }
    }

    /// Merges the report and `desired` into the file. A report that is not due is merged only with `at_once`.
    async fn write(&self, desired: Option<DesiredStateChange>, at_once: bool) -> StoreResult<SharedState> {
        // Only a person's change has its own time. The end of a mode yields to any click, even an earlier one.
        let own_change_ns = match &desired {
            Some(desired) if desired.only_if.is_none() => Some(i128::from(self.clock.now().0) * 1_000_000),
            _ => None,
        };
        let mut output = MergeOutput::default();
        let merge = |base: CurrentContent<'_>| self.merge(base, desired.as_ref(), at_once, &mut output);
        let bytes = merge_with_retry(&self.file, own_change_ns, merge).await?;
        Ok(self.finish_merge(output, bytes))
    }

    /// Merges a due report without waiting; `None` while another program writes the file. Blocks.
    fn try_write(&self) -> StoreResult<Option<SharedState>> {
        let mut output = MergeOutput::default();
        Ok(match self.file.merge(None, &mut |base| self.merge(base, None, false, &mut output))? {
            MergeResult::Unsettled => None,
            MergeResult::Missing => Some(self.finish_merge(output, None)),
            MergeResult::Content(bytes) => Some(self.finish_merge(output, Some(bytes))),
        })
    }

    /// The new content of the file. It is called under the file's lock, so a later call merges the same or a newer report.
    fn merge(
        &self,
        base: CurrentContent<'_>,
        desired: Option<&DesiredStateChange>,
        at_once: bool,
        output: &mut MergeOutput,
    ) -> Option<String> {
        let (version, report) = self.report_to_merge(at_once);
        output.version = version;
        if desired.is_none() && self.is_up_to_date(base, version) {
            return None;
        }
        let state = self.next_state(base, report.as_deref(), desired)?;
        let text = state.to_file();
        output.rendered = Some((text.clone(), state));
        Some(text)
    }

    /// The newest report if it is due, else the one that was merged last.
    fn report_to_merge(&self, at_once: bool) -> (u64, Option<Arc<StateReport>>) {
        let is_due = at_once || self.due_at().is_some_and(|due_at| due_at <= Instant::now());
        let mut own = self.own.lock();
        if is_due {
            own.merged = (own.version, own.report.clone());
        }
        own.merged.clone()
    }

    fn finish_merge(&self, output: MergeOutput, bytes: Option<Vec<u8>>) -> SharedState {
        let version = output.version;
        let state = match bytes {
            Some(bytes) => self.remember_written(bytes, output),
            None => self.as_reported(self.new_state(CurrentContent::Missing)),
        };
        let mut own = self.own.lock();
        if version > own.written_version {
            own.written_version = version;
            own.written_at = Some(Instant::now());
        }
        own.cached_state = None;
        state
    }

    fn is_up_to_date(&self, base: CurrentContent<'_>, version: u64) -> bool {
        let last = self.own.lock().last_written.clone();
        let is = |last: &Arc<LastWritten>| {
            last.version == version && matches!(base, CurrentContent::Valid(bytes) if bytes == last.bytes)
        };
        last.as_ref().is_some_and(is)
    }

    fn remember_written(&self, bytes: Vec<u8>, MergeOutput { version, rendered }: MergeOutput) -> SharedState {
        let before = self.own.lock().last_written.clone();
        if let Some(last) = before.filter(|last| last.bytes == bytes && last.version == version) {
            return last.state.clone();
        }
        let rendered = rendered.filter(|(text, _)| text.as_bytes() == bytes).map(|(_, state)| state);
        let Some(state) = rendered.or_else(|| self.read_state(&bytes)) else {
            return self.as_reported(self.new_state(CurrentContent::Missing));
        };
        self.own.lock().last_written = Some(Arc::new(LastWritten { bytes, state: state.clone(), version }));
        state
    }

    fn due_at(&self) -> Option<Instant> {
        let own = self.own.lock();
        let due_at = own.written_at.map_or_else(Instant::now, |written| written + REPORT_INTERVAL);
        (own.version > own.written_version).then_some(due_at)
    }
}

/// The reason why these bytes are no state file; `None` stands for too many of them.
fn invalid_reason(bytes: Option<&[u8]>) -> String {
    match bytes.map(SharedState::parse) {
        Some(Err(error)) => error.to_string(),
        Some(Ok(_)) | None => format!("it is larger than {EXCHANGE_FILE_BYTES_MAX} bytes"),
    }
}

impl Drop for StateInner {
    fn drop(&mut self) {
        if self.due_at().is_some() {
            // The last report must not be lost with the process. No caller is left for an error.
            let report = self.own.lock().report.clone();
            let _ = self
                .file
                .merge(None, &mut |base| self.next_state(base, report.as_deref(), None).map(|state| state.to_file()));
        }
    }
}
