//! The background task of the shared state: writes due reports, checks displaced versions and corrects stale fields.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::time::Instant;

use super::super::blocking;
use super::super::exchange_file::SETTLE_TIME;
use super::StateInner;
use crate::ports::StoreChange;
use crate::stores::fs::FileStamp;

/// The poll interval without file events: stale fields may stay for 100 ms.
const NO_EVENTS_POLL_INTERVAL: Duration = Duration::from_millis(40);

/// The poll interval with file events, in case an event is lost.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The least time between two corrections. It limits the cost if another program keeps writing stale fields.
const CORRECTION_INTERVAL: Duration = Duration::from_millis(10);

/// The times after an exchange at which the displaced file is checked for late writes. The last one may remove it.
const DISPLACED_CHECK_TIMES: [Duration; 4] =
    [Duration::from_millis(5), Duration::from_millis(50), Duration::from_millis(250), SETTLE_TIME];

/// The wait after an error, such as a full disk.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

struct WriterState {
    stamp: Option<FileStamp>,
    /// True if every later write changes the stamp.
    is_stamp_final: bool,
    /// The count of [`DISPLACED_CHECK_TIMES`] done since the last exchange, at `exchanged_at`.
    checks_done: usize,
    exchanged_at: Instant,
    checked_at: Instant,
    has_failed: bool,
}

#[derive(Clone, Copy)]
struct FileStatus {
    stamp: Option<FileStamp>,
    has_displaced: bool,
}

pub(super) async fn writer_task(inner: Weak<StateInner>, wake: Arc<Notify>, mut changes: Receiver<StoreChange>) {
    let mut writer = WriterState {
        stamp: None,
        is_stamp_final: false,
        checks_done: DISPLACED_CHECK_TIMES.len(),
        exchanged_at: Instant::now(),
        checked_at: Instant::now(),
        has_failed: false,
    };
    let mut has_outside_change = true;
    loop {
        let next = {
            let Some(inner) = inner.upgrade() else { return };
            let status = inner.status();
            if has_outside_change || writer.must_read(&inner, status) {
                writer.reload(&inner).await;
            }
            writer.next_check(&inner, inner.status())
        };
        tokio::time::sleep(CORRECTION_INTERVAL).await;
        has_outside_change = wait_for_work(&wake, &mut changes, next).await;
    }
}

/// Waits for a report, the time `next`, or a possible change of the file. Returns true for a change.
async fn wait_for_work(wake: &Notify, changes: &mut Receiver<StoreChange>, next: Instant) -> bool {
    let announcement = async {
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
        () = announcement => true,
        () = tokio::time::sleep_until(next) => false,
    }
}

impl StateInner {
    fn status(&self) -> FileStatus {
        FileStatus { stamp: self.file.stamp(), has_displaced: self.file.has_displaced() }
    }
}

impl WriterState {
    fn must_read(&self, inner: &StateInner, status: FileStatus) -> bool {
        let now = Instant::now();
        status.stamp != self.stamp
            || (!inner.has_events && !self.is_stamp_final)
            || inner.due_at().is_some_and(|due_at| due_at <= now)
            || self.next_displaced_check(status).is_some_and(|check| check <= now)
    }

    async fn reload(&mut self, inner: &StateInner) {
        let check = blocking(|| {
            let before = inner.file.stamp();
            let state = inner.try_write();
            Ok((before, state, inner.file.stamp()))
        });
        let (before, outcome, mut after) = check.await.unwrap_or_else(|error| (None, Err(error), None));
        let is_outside_change = before.is_some() && before != self.stamp && !self.has_failed;
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
            tracing::warn!(%error, "cannot write the shared state; retrying");
        }
        self.has_failed = outcome.is_err();
        if after == self.stamp {
            self.checks_done += 1;
        } else {
            self.checks_done = 0;
            self.exchanged_at = Instant::now();
        }
        self.stamp = after;
        self.checked_at = Instant::now();
        self.is_stamp_final = after.is_none_or(|stamp| inner.file.stamp_is_final(stamp));
        // A state belongs to a stamp only if the stamp was the same before and after the read.
        if let Ok(state) = outcome
            && let Some(stamp) = after
            && before == after
            && self.is_stamp_final
            && inner.has_events
        {
            inner.own.lock().cached_state = Some((stamp, state));
        }
        if is_outside_change && !inner.has_events {
            // There may be no listener.
            let _ = inner.changes.send(StoreChange::State);
        }
    }

    fn next_displaced_check(&self, status: FileStatus) -> Option<Instant> {
        let next = match DISPLACED_CHECK_TIMES.get(self.checks_done) {
            Some(wait) => self.exchanged_at + *wait,
            None => self.checked_at + SETTLE_TIME / 4,
        };
        status.has_displaced.then_some(next)
    }

    fn next_check(&self, inner: &StateInner, status: FileStatus) -> Instant {
        let now = Instant::now();
        if self.has_failed {
            return now + RETRY_INTERVAL;
        }
        let idle = now + if inner.has_events { POLL_INTERVAL } else { NO_EVENTS_POLL_INTERVAL };
        [inner.due_at(), self.next_displaced_check(status)].into_iter().flatten().fold(idle, Instant::min)
    }
}
