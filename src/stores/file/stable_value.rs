//! A value, and how long it has been the same.

use std::time::Duration;

use tokio::time::Instant;

/// Measures how long an observed value stays the same, by a clock that does not jump and stops during suspend.
pub struct StableValue<T> {
    value: T,
    since: Instant,
}

impl<T: PartialEq> StableValue<T> {
    /// Begins to measure this value.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self { value, since: Instant::now() }
    }

    /// Compares `value` with the last observed one. Returns the time for which it has been the same.
    pub fn observe(&mut self, value: T) -> Duration {
        if self.value != value {
            *self = Self::new(value);
        }
        self.since.elapsed()
    }
}
