//! The typed forms of a run, a moment and a time.

use std::str::FromStr;
use std::time::Duration;

use super::arguments::number;
use crate::api::run::{Instant, Moment, RunChoice};
use crate::domain::time::UnixMs;

/// The largest number of a run, and the largest age of a time in seconds.
const BACK_MAX: u64 = 1_000_000_000;

/// The accepted forms of a time, for errors.
const TIMES: &str = "10m (ago), 0:42 (into the run), or 2026-01-31T12:00:00Z";

impl FromStr for RunChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            "latest" => Ok(Self::Nth(1)),
            _ => number::<usize>(1..=BACK_MAX)(text)
                .map(Self::Nth)
                .map_err(|_| "expected `latest`, `all`, or a number; 1 is the newest".to_owned()),
        }
    }
}

impl FromStr for Instant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        if let Some(seconds) = clock(&parts) {
            return Ok(Self::Into(Duration::from_secs(seconds)));
        }
        if let Some(at) = UnixMs::from_iso(text) {
            return Ok(Self::At(at));
        }
        let span: Option<jiff::Span> = text.parse().ok();
        let length = span.and_then(|span| span.to_duration(jiff::SpanRelativeTo::days_are_24_hours()).ok());
        let ago = length.and_then(|length| Duration::try_from(length).ok());
        ago.filter(|ago| ago.as_secs() <= BACK_MAX).map(Self::Ago).ok_or_else(|| format!("expected {TIMES}"))
    }
}

/// Parses `0:42` or `1:02:03` to seconds.
fn clock(parts: &[&str]) -> Option<u64> {
    if !(2..=3).contains(&parts.len()) {
        return None;
    }
    let is_number = |part: &&str| part.len() <= 4 && !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let fold = |sum: u64, part: &&str| Some(sum * 60 + part.parse::<u64>().ok()?);
    if !parts.iter().all(is_number) {
        return None;
    }
    parts.iter().try_fold(0, fold)
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "first" => Ok(Self::First),
            "latest" | "last" => Ok(Self::Latest),
            _ => text
                .parse()
                .map(Self::Number)
                .or_else(|_| text.parse().map(Self::Time))
                .map_err(|_: String| format!("expected an event number, `first`, `latest`, or a time: {TIMES}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::run::Run;
    use crate::domain::log::event::{Event, EventKind, NewEvent};

    fn event(seq: u64, at: i64) -> Event {
        NewEvent::from(EventKind::Note { about: "test".into(), text: String::new() }).number(seq, UnixMs(at))
    }

    #[test]
    fn replay_moment_parses_numbers_and_times() {
        let run =
            Run { number: 1, events: [(5, 10_000), (6, 20_000), (8, 30_000)].map(|(s, at)| event(s, at)).to_vec() };
        let index = |text: &str| text.parse::<Moment>().unwrap().index_in(&run, UnixMs(65_000)).map_err(|e| e.message);
        assert!(index("4").unwrap_err().contains("event 4 was removed"));
        let whole = Run { number: 1, events: vec![event(1, 10_000)] };
        let error = Moment::Number(0).index_in(&whole, UnixMs(65_000)).unwrap_err().message;
        assert_eq!(error, "there is no event 0: the first of a run is 1");
        assert_eq!((index("first"), index("latest"), index("6")), (Ok(0), Ok(2), Ok(1)));
        assert_eq!(index("7"), Ok(1), "the event before a missing one");
        assert_eq!((index("0:10"), index("0:09"), index("1:00:00")), (Ok(1), Ok(0), Ok(2)));
        assert_eq!((index("45s"), index("1970-01-01T00:00:25Z")), (Ok(1), Ok(1)));
        assert_eq!(index("2d"), Ok(0), "a time before the start gives the first event");
        assert!(
            index("4").unwrap_err().contains("was removed") && index("9").unwrap_err().contains("last of the run is 8")
        );
        for bad in ["", "soon", "-5", "1:2:3:4", ":", "1:x", "10"] {
            assert!(bad.parse::<Instant>().is_err(), "{bad}");
        }
        assert!("soon".parse::<Moment>().unwrap_err().contains("expected an event number"));
        assert!("0".parse::<RunChoice>().is_err() && "all".parse() == Ok(RunChoice::All));
    }
}
