//! The wall clock.

use crate::domain::time::UnixMs;

/// The wall clock. Waits use the runtime's time instead, which tests pause.
pub trait Clock: Send + Sync {
    /// Returns the current time.
    fn now(&self) -> UnixMs;
}
