//! `agent_state.json`: the person's wishes and the team's report, in one file that others write too. How changes are merged
//! into it without losing any stands in [`super::shared`]; what is merged, in [`crate::domain::state`].
//!
//! The team's own fields live in memory here and are authoritative. Reports go out at most four times a second; a change of
//! the desired state, or of what the team does, at once. A task of its own, the keeper, writes what is due, looks at
//! files that were swapped out, and puts right what an outside writer put back.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::sync::broadcast::{Receiver, Sender, error::RecvError};
use tokio::time::Instant;

use crate::domain::state::{SetDesired, SharedState, StateReport, StateUpdate};
use crate::ports::{Clock, StateStore, StoreChange, StoreResult};
use crate::stores::fs::Stamp;

use super::blocking;
use super::shared::{Base, Merged, SETTLE_TIME, SharedFile, merge_patiently};

/// The file's name.
pub const STATE_FILE: &str = "agent_state.json";

/// The least time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(250);

/// How often the file is looked at where the system tells no file events: stale fields may stay for 100 ms.
const LOOK_INTERVAL: Duration = Duration::from_millis(40);

/// How often it is looked at where the system tells them: the guarantee behind the hints.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The least time between two corrections, so that a fight with an outside writer costs little.
const CORRECTION_INTERVAL: Duration = Duration::from_millis(10);

/// When, after a swap, the file that came out is looked at for late writes: soon, and once it may be removed.
const ASIDE_LOOKS: [Duration; 4] =
    [Duration::from_millis(5), Duration::from_millis(50), Duration::from_millis(250), SETTLE_TIME];

/// How long to wait after an error, such as a full disk.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The shared state in its file.
pub struct FileState {
    inner: Arc<Inner>,
}

struct Inner {
    file: Arc<SharedFile>,
    clock: Arc<dyn Clock>,
    changes: Sender<StoreChange>,
    has_events: bool,
    own: Mutex<Own>,
    wake: Arc<Notify>,
}

/// Our part of the file.
#[derive(Default)]
struct Own {
    report: Option<Arc<StateReport>>,
    /// The one that was written last; a newer one may wait.
    written: Option<Arc<StateReport>>,
    /// Counts the reports; the written one is behind while one waits.
    version: u64,
    written_version: u64,
    /// The newest report that ever went into the making of the file, with its version: none older goes in behind it.
    merged: (u64, Option<Arc<StateReport>>),
    written_at: Option<Instant>,
    has_keeper: bool,
    /// The file as it was last seen or left.
    seen: Option<(Stamp, SharedState)>,
    /// What the last merge left: it need not be read and made anew while nothing differs.
    carried: Option<Arc<Carried>>,
}

/// A version of the file that says all that was to be said.
struct Carried {
    bytes: Vec<u8>,
    state: SharedState,
    /// Which report it carries.
    version: u64,
}

/// A merge that is to come, or under way.
struct Draft {
    version: u64,
    report: Option<Arc<StateReport>>,
    merging: Arc<Mutex<Merging>>,
}

/// What a merge makes: the report it goes by, and the last text it made with what that says.
#[derive(Default)]
struct Merging {
    version: u64,
    made: Option<(String, SharedState)>,
}

impl FileState {
    /// The shared state in `file`. `has_events` says that `changes` tells when others write it.
    #[must_use]
    pub fn new(file: SharedFile, clock: Arc<dyn Clock>, changes: Sender<StoreChange>, has_events: bool) -> Self {
        let (own, wake) = (Mutex::default(), Arc::new(Notify::new()));
        Self { inner: Arc::new(Inner { file: Arc::new(file), clock, changes, has_events, own, wake }) }
    }

    /// Whether these bytes are a state file.
    #[must_use]
    pub fn is_whole(bytes: &[u8]) -> bool {
        SharedState::parse(bytes).is_ok()
    }

    fn start_keeper(&self) {
        let mut own = self.inner.own();
        if !own.has_keeper {
            own.has_keeper = true;
            let (inner, wake) = (Arc::downgrade(&self.inner), Arc::clone(&self.inner.wake));
            tokio::spawn(keep(inner, wake, self.inner.changes.subscribe()));
        }
    }
}

impl Drop for FileState {
    fn drop(&mut self) {
        // The keeper finds nothing to keep and ends.
        self.inner.wake.notify_one();
    }
}

#[async_trait]
impl StateStore for FileState {
    async fn read(&self) -> StoreResult<Option<SharedState>> {
        if let Some(found) = self.inner.find().await? {
            return Ok(found);
        }
        let inner = Arc::clone(&self.inner);
        let mend = move |base: Base<'_>| match base {
            Base::Malformed => Some(inner.fresh().to_file()),
            Base::Missing | Base::Whole(_) => None,
        };
        let bytes = merge_patiently(&self.inner.file, None, mend).await?;
        Ok(bytes.and_then(|bytes| SharedState::parse(&bytes).ok()))
    }

    async fn update(&self, update: StateUpdate) -> StoreResult<SharedState> {
        let mut is_urgent = update.desired.is_some();
        if let Some(report) = update.report {
            is_urgent |= self.inner.note(report);
            self.start_keeper();
        }
        if !is_urgent {
            self.inner.wake.notify_one();
            if let Some(state) = self.inner.find().await? {
                return Ok(self.inner.as_reported(state));
            }
        }
        let is_change = update.desired.is_some();
        let state = self.inner.write(update.desired, true).await?;
        self.inner.wake.notify_one();
        if is_change {
            // Nobody listens in a process that only sets it.
            let _ = self.inner.changes.send(StoreChange::State);
        }
        Ok(state)
    }
}

impl Inner {
    fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a report, and says whether it must not wait: the first, and one that says the team does something else.
    fn note(&self, mut report: StateReport) -> bool {
        let mut own = self.own();
        let current = own.report.as_ref().and_then(|before| before.current);
        report.current = report.current.or(current);
        let is_urgent = own.report.is_none() || report.current != current;
        own.report = Some(Arc::new(report));
        own.version += 1;
        is_urgent
    }

    /// The state as the file has it, at once where the file is as it was seen; `None` while it is being written.
    async fn find(self: &Arc<Self>) -> StoreResult<Option<Option<SharedState>>> {
        let stamp = self.file.stamp_at_hand();
        if let Some((_, state)) = self.own().seen.as_ref().filter(|(seen, _)| Some(*seen) == stamp) {
            return Ok(Some(Some(state.clone())));
        }
        let inner = Arc::clone(self);
        blocking(move || inner.read_file()).await
    }

    fn read_file(&self) -> StoreResult<Option<Option<SharedState>>> {
        Ok(match self.file.read()? {
            Merged::Missing => Some(None),
            Merged::Unsettled => None,
            Merged::Whole(bytes) => self.read_state(&bytes).map(Some),
        })
    }

    /// The state once what is reported is written.
    fn as_reported(&self, state: Option<SharedState>) -> SharedState {
        let state = state.unwrap_or_else(|| SharedState::fresh(self.clock.now()));
        let report = self.own().report.as_deref().cloned();
        state.merge(&StateUpdate { report, desired: None }, self.clock.now())
    }

    /// What stands in the place of a file that is missing or was malformed.
    fn fresh(&self) -> SharedState {
        self.as_reported(None)
    }

    /// The state that these bytes are, if they are one. What the last merge left need not be parsed.
    fn read_state(&self, bytes: &[u8]) -> Option<SharedState> {
        let carried = self.own().carried.clone();
        match carried.filter(|carried| carried.bytes == bytes) {
            Some(carried) => Some(carried.state.clone()),
            None => SharedState::parse(bytes).ok(),
        }
    }

    /// New contents, or `None` where the file says already what it should.
    fn make(&self, base: Base<'_>, report: Option<&StateReport>, desired: Option<&SetDesired>) -> Option<SharedState> {
        let now = self.clock.now();
        let found = match base {
            Base::Whole(bytes) => self.read_state(bytes),
            Base::Missing | Base::Malformed => None,
        };
        if found.is_none() && report.is_none() && desired.is_none() {
            return matches!(base, Base::Malformed).then(|| self.fresh());
        }
        let is_new = found.is_none();
        let state = found.unwrap_or_else(|| SharedState::fresh(now));
        let next = state.merge(&StateUpdate { report: report.cloned(), desired: desired.cloned() }, now);
        let wishes = |state: &SharedState| {
            (state.desired, state.unknown_desired.clone(), state.set_by.clone(), state.note.clone())
        };
        let says_it = report.is_none_or(|report| state.carries(report)) && wishes(&state) == wishes(&next);
        (is_new || !says_it).then_some(next)
    }

    /// Merges what is reported, and `desired`, into the file. A report that waits for its time goes along only if `at_once`.
    async fn write(self: &Arc<Self>, desired: Option<SetDesired>, at_once: bool) -> StoreResult<SharedState> {
        // Only a person's wish counts as a change of its time; an ending gives way to any click, also an earlier one.
        let is_wish = desired.as_ref().is_some_and(|desired| desired.only_if.is_none());
        let own_change_ns = is_wish.then(|| i128::from(self.clock.now().0) * 1_000_000);
        let draft = self.draft(at_once);
        let make = self.maker(&draft, desired);
        let bytes = merge_patiently(&self.file, own_change_ns, make).await?;
        Ok(self.settle(draft, bytes))
    }

    /// [`Self::write`] without a wish and without waiting: `None` while others write the file. Blocks.
    fn try_write(self: &Arc<Self>) -> StoreResult<Option<SharedState>> {
        let draft = self.draft(false);
        let mut make = self.maker(&draft, None);
        Ok(match self.file.merge(None, &mut make)? {
            Merged::Unsettled => None,
            Merged::Missing => Some(self.settle(draft, None)),
            Merged::Whole(bytes) => Some(self.settle(draft, Some(bytes))),
        })
    }

    /// What a merge is to go by: the newest report, or while that waits for its time the one that was written last.
    fn draft(&self, at_once: bool) -> Draft {
        let is_due = at_once || self.due().is_some_and(|due| due <= Instant::now());
        let own = self.own();
        let (version, report) = if is_due { (own.version, &own.report) } else { (own.written_version, &own.written) };
        Draft { version, report: report.clone(), merging: Arc::default() }
    }

    fn maker(
        self: &Arc<Self>,
        draft: &Draft,
        desired: Option<SetDesired>,
    ) -> impl FnMut(Base<'_>) -> Option<String> + Send + use<> {
        let (inner, version, told) = (Arc::clone(self), draft.version, draft.report.clone());
        let merging = Arc::clone(&draft.merging);
        move |base| {
            let (version, report) = inner.newest(version, &told);
            let is_carried = desired.is_none() && inner.is_carried(base, version);
            let next = if is_carried { None } else { inner.make(base, report.as_deref(), desired.as_ref()) };
            let made = next.map(|state| (state.to_file(), state));
            let text = made.as_ref().map(|(text, _)| text.clone());
            let mut merging = merging.lock().unwrap_or_else(PoisonError::into_inner);
            merging.version = version;
            merging.made = made.or_else(|| merging.made.take());
            text
        }
    }

    /// Takes in how a merge ended.
    fn settle(&self, draft: Draft, bytes: Option<Vec<u8>>) -> SharedState {
        let merged = std::mem::take(&mut *draft.merging.lock().unwrap_or_else(PoisonError::into_inner));
        let state = match bytes {
            Some(bytes) => self.carry(bytes, merged),
            None => self.fresh(),
        };
        let mut own = self.own();
        if draft.version > own.written_version {
            own.written_version = draft.version;
            own.written = draft.report;
            own.written_at = Some(Instant::now());
        }
        own.seen = None;
        state
    }

    /// Whether this is what the last merge left, with this report in it.
    fn is_carried(&self, base: Base<'_>, version: u64) -> bool {
        let carried = self.own().carried.clone();
        let is = |carried: &Arc<Carried>| {
            carried.version == version && matches!(base, Base::Whole(bytes) if bytes == carried.bytes)
        };
        carried.as_ref().is_some_and(is)
    }

    /// Takes in what a merge left.
    fn carry(&self, bytes: Vec<u8>, Merging { version, made }: Merging) -> SharedState {
        let before = self.own().carried.clone();
        if let Some(carried) = before.filter(|carried| carried.bytes == bytes && carried.version == version) {
            return carried.state.clone();
        }
        let made = made.filter(|(text, _)| text.as_bytes() == bytes).map(|(_, state)| state);
        let Some(state) = made.or_else(|| self.read_state(&bytes)) else {
            return self.fresh();
        };
        self.own().carried = Some(Arc::new(Carried { bytes, state: state.clone(), version }));
        state
    }

    /// This report, or a newer one that another call merged while this one waited for the file's lock; with its number.
    fn newest(&self, version: u64, report: &Option<Arc<StateReport>>) -> (u64, Option<Arc<StateReport>>) {
        let mut own = self.own();
        if version >= own.merged.0 {
            own.merged = (version, report.clone());
        }
        own.merged.clone()
    }

    fn due(&self) -> Option<Instant> {
        let own = self.own();
        let due = own.written_at.map_or_else(Instant::now, |written| written + REPORT_INTERVAL);
        (own.version > own.written_version).then_some(due)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.due().is_some() {
            // The last report must not be lost with the process; there is nobody left to tell an error to.
            let report = self.own().report.clone();
            let _ = self
                .file
                .merge(None, &mut |base| self.make(base, report.as_deref(), None).map(|state| state.to_file()));
        }
    }
}

/// What the keeper remembers between two looks.
struct Keeping {
    /// The file as the last look left it.
    stamp: Option<Stamp>,
    /// Whether a write after that look is sure to give it another stamp.
    is_telling: bool,
    /// How many of [`ASIDE_LOOKS`] were taken since the last swap, and when that was.
    looks: usize,
    swapped_at: Instant,
    looked_at: Instant,
    has_failed: bool,
}

/// What the disk says between two looks.
#[derive(Clone, Copy)]
struct Facts {
    stamp: Option<Stamp>,
    has_asides: bool,
}

/// Keeps the file right for as long as the store is there.
async fn keep(inner: Weak<Inner>, wake: Arc<Notify>, mut changes: Receiver<StoreChange>) {
    let mut keeping = Keeping {
        stamp: None,
        is_telling: false,
        looks: ASIDE_LOOKS.len(),
        swapped_at: Instant::now(),
        looked_at: Instant::now(),
        has_failed: false,
    };
    let mut is_hinted = true;
    loop {
        let next = {
            let Some(inner) = inner.upgrade() else { return };
            let facts = inner.facts();
            if is_hinted || keeping.must_look(&inner, facts) {
                keeping.look(&inner).await;
            }
            keeping.next_look(&inner, inner.facts())
        };
        tokio::time::sleep(CORRECTION_INTERVAL).await;
        is_hinted = wait_for_a_reason(&wake, &mut changes, next).await;
    }
}

/// Waits until something is to be written, `next` has come, or the file may have changed; says whether it was the last.
async fn wait_for_a_reason(wake: &Notify, changes: &mut Receiver<StoreChange>, next: Instant) -> bool {
    let hint = async {
        loop {
            match changes.recv().await {
                Ok(StoreChange::State | StoreChange::Everything) | Err(RecvError::Lagged(_)) => return,
                Ok(_) => {}
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    };
    tokio::select! {
        biased;
        () = wake.notified() => false,
        () = hint => true,
        () = tokio::time::sleep_until(next) => false,
    }
}

impl Inner {
    fn facts(&self) -> Facts {
        Facts { stamp: self.file.stamp(), has_asides: self.file.has_asides() }
    }
}

impl Keeping {
    fn must_look(&self, inner: &Inner, facts: Facts) -> bool {
        let now = Instant::now();
        facts.stamp != self.stamp
            || (!inner.has_events && !self.is_telling)
            || inner.due().is_some_and(|due| due <= now)
            || self.next_aside_look(facts).is_some_and(|look| look <= now)
    }

    async fn look(&mut self, inner: &Arc<Inner>) {
        let looking = Arc::clone(inner);
        let looked = blocking(move || {
            let before = looking.file.stamp();
            let state = looking.try_write();
            Ok((before, state, looking.file.stamp()))
        });
        let (before, outcome, mut after) = looked.await.unwrap_or_else(|error| (None, Err(error), None));
        let is_others = before.is_some() && before != self.stamp && !self.has_failed;
        let outcome = match outcome.transpose() {
            Some(outcome) => outcome,
            None => {
                let outcome = inner.write(None, false).await;
                after = inner.file.stamp();
                outcome
            }
        };
        if let Err(error) = &outcome
            && !self.has_failed
        {
            tracing::warn!(%error, "the shared state cannot be written; it is tried again");
        }
        self.has_failed = outcome.is_err();
        if after == self.stamp {
            self.looks += 1;
        } else {
            (self.looks, self.swapped_at) = (0, Instant::now());
        }
        self.stamp = after;
        self.looked_at = Instant::now();
        self.is_telling = after.is_none_or(|stamp| inner.file.is_telling(stamp));
        // Only what was read between two equal stamps belongs to that stamp.
        if let (Ok(state), Some(stamp), true) = (outcome, after, self.is_telling && inner.has_events)
            && before == after
        {
            inner.own().seen = Some((stamp, state));
        }
        if is_others && !inner.has_events {
            // Nobody has to listen.
            let _ = inner.changes.send(StoreChange::State);
        }
    }

    fn next_aside_look(&self, facts: Facts) -> Option<Instant> {
        let next = match ASIDE_LOOKS.get(self.looks) {
            Some(wait) => self.swapped_at + *wait,
            None => self.looked_at + SETTLE_TIME / 4,
        };
        facts.has_asides.then_some(next)
    }

    fn next_look(&self, inner: &Inner, facts: Facts) -> Instant {
        let now = Instant::now();
        if self.has_failed {
            return now + RETRY_INTERVAL;
        }
        let idle = now + if inner.has_events { POLL_INTERVAL } else { LOOK_INTERVAL };
        [inner.due(), self.next_aside_look(facts)].into_iter().flatten().fold(idle, Instant::min)
    }
}
