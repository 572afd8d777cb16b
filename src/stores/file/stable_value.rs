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
    pub fn new(value: T) -> Self {
        Self::with_age(value, Duration::ZERO)
    }

    /// Begins to measure a value that has been the same for `age` already.
    pub fn with_age(value: T, age: Duration) -> Self {
        let now = Instant::now();
        Self { value, since: now.checked_sub(age).unwrap_or(now) }
    }

    /// The time for which the value has been the same.
    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Measures from now on.
    pub fn restart(&mut self) {
        self.since = Instant::now();
    }

    /// Compares `value` with the last observed one. Returns the time for which it has been the same.
    pub fn observe(&mut self, value: T) -> Duration {
        if self.value != value {
            *self = Self::new(value);
        }
        self.age()
    }
}
