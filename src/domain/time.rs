//! Points in time and their forms in files. Reads no clock: callers pass the time.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Milliseconds since 1970-01-01T00:00:00Z by a wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct UnixMs(pub i64);

impl UnixMs {
    /// Returns the time `duration` later. Saturates.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
    }

    /// Returns the time since `earlier`; zero if `earlier` is in the future, as after a clock jump.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Returns UTC with milliseconds and `Z`, as in `agent_state.json`: `2025-10-15T22:39:14.372Z`.
    pub fn to_iso(self) -> String {
        jiff::Timestamp::from_millisecond(self.0)
            .map_or_else(|_| "1970-01-01T00:00:00.000Z".to_owned(), |time| format!("{time:.3}"))
    }

    /// Returns the time of day in UTC, for people: `22:39:14 UTC`.
    pub fn to_clock(self) -> String {
        self.to_iso().get(11..19).map(|clock| format!("{clock} UTC")).unwrap_or_default()
    }

    /// Returns the time for people, with its date unless that is today: `22:39:14 UTC` or `2025-10-15 22:39:14 UTC`.
    pub fn to_clock_or_date(self, now: Self) -> String {
        let (own, today) = (self.to_iso(), now.to_iso());
        match own.get(..10) {
            Some(date) if Some(date) != today.get(..10) => format!("{date} {}", self.to_clock()),
            _ => self.to_clock(),
        }
    }

    /// Parses an RFC 3339 time of any precision. A time without an offset is UTC.
    pub fn from_iso(text: &str) -> Option<Self> {
        let time: jiff::Timestamp = text.parse().or_else(|_| format!("{text}Z").parse()).ok()?;
        Some(Self(time.as_millisecond()))
    }

    /// Returns seconds since 1970, as in inbox lines.
    pub fn as_seconds(self) -> f64 {
        self.0 as f64 / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iso_time_has_milliseconds_and_parses_any_precision() {
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
        assert_eq!(time.to_clock_or_date(time), "22:39:14 UTC");
        let next_day = time.plus(Duration::from_secs(24 * 60 * 60));
        assert_eq!(next_day.to_clock_or_date(time), "2025-10-16 22:39:14 UTC");
    }

    #[test]
    fn elapsed_is_zero_when_clock_goes_back() {
        assert_eq!(UnixMs(5).since(UnixMs(9)), Duration::ZERO);
        assert_eq!(UnixMs(9).since(UnixMs(5)), Duration::from_millis(4));
    }
}
