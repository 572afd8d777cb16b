//! The id of an event: its position in the log, which holds across restarts of the team.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::domain::time::UnixMs;

/// The position of an event: the run, by the time of its first event, and the event's number in that run. Ids of one log are ordered,
/// unless the clock was set back between two runs.
///
/// Its text is `<time in ms>-<number>`, such as `1764409800123-42`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct EventId {
    /// The time of the run's first event.
    pub began: UnixMs,
    /// The number of the event in the run; 1 is the first.
    pub seq: u64,
}

/// A text that is not an event id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an event id, such as `1764409800123-42`")]
pub struct InvalidEventId(String);

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.began.0, self.seq)
    }
}

impl FromStr for EventId {
    type Err = InvalidEventId;

    fn from_str(text: &str) -> Result<Self, InvalidEventId> {
        let parse = || {
            let (began, seq) = text.rsplit_once('-')?;
            Some(Self { began: UnixMs(began.parse().ok()?), seq: seq.parse().ok()? })
        };
        // A number has several spellings, such as `+1` or `01`. An id has one.
        parse().filter(|id| id.to_string() == text).ok_or_else(|| InvalidEventId(text.to_owned()))
    }
}

impl From<EventId> for String {
    fn from(id: EventId) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for EventId {
    type Error = InvalidEventId;

    fn try_from(text: String) -> Result<Self, InvalidEventId> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_id_text_round_trips() {
        let id = EventId { began: UnixMs(1_764_409_800_123), seq: 42 };
        assert_eq!((id.to_string().as_str(), id.to_string().parse()), ("1764409800123-42", Ok(id)));
        for text in ["", "42", "a-1", "1-", "-", "1-+2", "01-2", "1-2-3", "1- 2"] {
            assert!(text.parse::<EventId>().is_err(), "{text}");
        }
    }
}
