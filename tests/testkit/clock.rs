//! Clocks for tests. Tests that need no control of the time use [`brigade::embed::SystemClock`].

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use brigade::domain::time::UnixMs;
use brigade::ports::Clock;
use tokio::time::Instant;

/// The time at which test clocks start.
pub const STARTED_AT: UnixMs = UnixMs(1_763_688_000_000);

/// A clock that only moves when a test advances it.
#[derive(Default)]
pub struct ManualClock {
    advanced_ms: AtomicI64,
}

impl ManualClock {
    pub fn advance(&self, by: Duration) {
        self.advanced_ms.fetch_add(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> UnixMs {
        UnixMs(STARTED_AT.0 + self.advanced_ms.load(Ordering::SeqCst))
    }
}

/// A clock that follows the runtime's time, paused or not, and can be advanced.
pub struct RuntimeClock {
    started_at: Instant,
    advanced: ManualClock,
}

impl RuntimeClock {
    pub fn new() -> Self {
        Self { started_at: Instant::now(), advanced: ManualClock::default() }
    }

    pub fn advance(&self, by: Duration) {
        self.advanced.advance(by);
    }
}

impl Clock for RuntimeClock {
    fn now(&self) -> UnixMs {
        self.advanced.now().plus(self.started_at.elapsed())
    }
}
