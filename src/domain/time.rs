//! Points in time as our files spell them. Reads no clock: the time is always handed in.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Milliseconds since 1970-01-01T00:00:00Z, as a wall clock told them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixMs(pub i64);

impl UnixMs {
    /// This time and `duration` later; saturates at the end of time.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
    }

    /// How long ago `earlier` was; zero when it lies ahead, as after a clock jump.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// UTC with milliseconds and `Z`, as `agent_state.json` has it: `2025-10-15T22:39:14.372Z`.
    #[must_use]
    pub fn to_iso(self) -> String {
        jiff::Timestamp::from_millisecond(self.0)
            .map_or_else(|_| "1970-01-01T00:00:00.000Z".to_owned(), |time| format!("{time:.3}"))
    }

    /// The time of day in UTC, for people: `22:39:14 UTC`.
    #[must_use]
    pub fn to_clock(self) -> String {
        self.to_iso().get(11..19).map(|clock| format!("{clock} UTC")).unwrap_or_default()
    }

    /// Reads an RFC 3339 time of any precision; a time without an offset is taken for UTC.
    #[must_use]
    pub fn from_iso(text: &str) -> Option<Self> {
        let time: jiff::Timestamp = text.parse().or_else(|_| format!("{text}Z").parse()).ok()?;
        Some(Self(time.as_millisecond()))
    }

    /// Seconds since 1970 as a float, as inbox lines have it.
    #[must_use]
    pub fn as_seconds(self) -> f64 {
        self.0 as f64 / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iso_times_are_written_with_milliseconds_and_read_in_any_precision() {
        let time = UnixMs(1_760_567_954_372);
        assert_eq!(time.to_iso(), "2025-10-15T22:39:14.372Z");
        for text in [
            "2025-10-15T22:39:14.372Z",
            "2025-10-15T22:39:14.372999Z",
            "2025-10-15T22:39:14.372",
            "2025-10-16T00:39:14.372+02:00",
        ] {
            assert_eq!(UnixMs::from_iso(text), Some(time), "{text}");
        }
        assert_eq!(UnixMs(0).to_iso(), "1970-01-01T00:00:00.000Z");
        assert_eq!(UnixMs::from_iso("yesterday"), None);
        assert_eq!(time.to_clock(), "22:39:14 UTC");
    }

    #[test]
    fn a_clock_that_jumped_back_means_no_time_passed() {
        assert_eq!(UnixMs(5).since(UnixMs(9)), Duration::ZERO);
        assert_eq!(UnixMs(9).since(UnixMs(5)), Duration::from_millis(4));
    }
}
