//! The runs whose events are kept, and how a command names one of them, a moment of it, or a time.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::arguments::number;
use super::context::Context;
use super::error::{CliError, CliResult};
use crate::domain::event::{Event, Fact};
use crate::domain::time::UnixMs;
use crate::stores::file::TEAM_FOLDER;
use crate::stores::file::events::EventReader;
use crate::stores::fs::RealFileSystem;

/// The farthest back a run or a time may lie, in runs and in seconds.
const BACK_MAX: u64 = 1_000_000_000;

/// The number of a run's first event.
const FIRST_SEQ: u64 = 1;

/// The events of one run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Run {
    /// 1 for the newest.
    pub number: usize,
    /// What is kept of it, in order; at least one event.
    pub events: Vec<Event>,
}

impl Run {
    /// Its team, where that is known.
    #[must_use]
    pub fn team(&self) -> Option<&str> {
        self.events.iter().find_map(|event| match &event.fact {
            Fact::TeamStarted { team, .. } | Fact::TeamStopped { team, .. } => Some(team.as_str()),
            Fact::Team { anew: Some(row), .. } => Some(row.team.as_str()),
            _ => None,
        })
    }

    /// When it began, or when the first event was that is left of it.
    #[must_use]
    pub fn began(&self) -> UnixMs {
        let told = self.events.iter().find_map(|event| match &event.fact {
            Fact::TeamStarted { .. } => Some(event.at),
            Fact::Team { anew: Some(row), .. } => row.started,
            _ => None,
        });
        told.or_else(|| self.events.first().map(|event| event.at)).unwrap_or_default()
    }

    /// Its first and its last event that are kept.
    #[must_use]
    pub fn span(&self) -> (u64, u64) {
        let seq = |event: Option<&Event>| event.map_or(0, |event| event.seq);
        (seq(self.events.first()), seq(self.events.last()))
    }
}

/// A reader of what `choice` may choose from.
///
/// # Errors
/// There is no workspace.
pub fn reader(context: &Context, choice: RunChoice) -> CliResult<EventReader> {
    let (files, folder) = (Arc::new(RealFileSystem::default()), context.workspace()?.join(TEAM_FOLDER));
    Ok(match choice {
        RunChoice::Nth(1) => EventReader::new(files, &folder),
        RunChoice::Nth(_) | RunChoice::All => EventReader::of_all_runs(files, &folder),
    })
}

/// These events, run by run, the newest last.
#[must_use]
pub fn split(events: Vec<Event>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for event in events {
        match runs.last_mut() {
            Some(run) if run.span().1 < event.seq => run.events.push(event),
            _ => runs.push(Run { number: 0, events: vec![event] }),
        }
    }
    let count = runs.len();
    runs.iter_mut().enumerate().for_each(|(place, run)| run.number = count - place);
    runs
}

/// The run that is meant; 1 is the newest.
///
/// # Errors
/// There is no workspace, the log cannot be read, or there is no such run.
pub fn nth(context: &Context, nth: usize) -> CliResult<Run> {
    let runs = split(reader(context, RunChoice::Nth(nth))?.read_new()?);
    let count = runs.len();
    runs.into_iter().find(|run| run.number == nth).ok_or_else(|| no_such_run(nth, count))
}

fn no_such_run(nth: usize, count: usize) -> CliError {
    match count {
        0 => CliError::usage("the event log is empty")
            .hint("a team writes it while it runs: brigade up, brigade run TEAM"),
        1 => CliError::usage(format!("there is no run {nth}: one is kept")),
        _ => CliError::usage(format!("there is no run {nth}: {count} are kept")).hint("brigade log --runs lists them"),
    }
}

/// Which runs are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunChoice {
    /// All that are kept.
    All,
    /// This one; 1 is the newest.
    Nth(usize),
}

impl FromStr for RunChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            "latest" => Ok(Self::Nth(1)),
            _ => number::<usize>(1..=BACK_MAX)(text)
                .map(Self::Nth)
                .map_err(|_| "runs are `latest`, `all`, or a number: 1 is the newest, 2 the one before".to_owned()),
        }
    }
}

/// A point in time as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instant {
    /// That time.
    At(UnixMs),
    /// So long ago.
    Ago(Duration),
    /// So long after a run began.
    Into(Duration),
}

/// How times are typed.
const TIMES: &str = "10m for ten minutes ago, 0:42 for a time since the run began, or 2026-01-31T12:00:00Z";

impl Instant {
    /// The time, seen from `now`, in a run that began at `began`.
    #[must_use]
    pub fn time(self, began: UnixMs, now: UnixMs) -> UnixMs {
        match self {
            Self::At(at) => at,
            Self::Ago(ago) => UnixMs(now.0.saturating_sub(i64::try_from(ago.as_millis()).unwrap_or(i64::MAX))),
            Self::Into(into) => began.plus(into),
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
        ago.filter(|ago| ago.as_secs() <= BACK_MAX).map(Self::Ago).ok_or_else(|| format!("times are {TIMES}"))
    }
}

/// The seconds in `0:42` or `1:02:03`.
fn clock(parts: &[&str]) -> Option<u64> {
    if !(2..=3).contains(&parts.len()) {
        return None;
    }
    let is_number = |part: &&str| part.len() <= 4 && !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let fold = |sum: u64, part: &&str| Some(sum * 60 + part.parse::<u64>().ok()?);
    parts.iter().all(is_number).then(|| parts.iter().try_fold(0, fold))?
}

/// A moment of a run, as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Its first event that is kept.
    First,
    /// Its last event.
    Latest,
    /// The event of this number.
    Number(u64),
    /// The last event up to then.
    Time(Instant),
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "first" => Ok(Self::First),
            "latest" | "last" => Ok(Self::Latest),
            _ => text.parse().map(Self::Number).or_else(|_| text.parse().map(Self::Time)).map_err(|_: String| {
                format!("a moment is the number of an event, `first`, `latest`, or a time: {TIMES}")
            }),
        }
    }
}

impl Moment {
    /// Its place among the run's events.
    ///
    /// # Errors
    /// The run has no such event, or no more.
    pub fn place(self, run: &Run, now: UnixMs) -> CliResult<usize> {
        let (first, last) = run.span();
        let at_most = |places: usize| CliResult::Ok(places.saturating_sub(1));
        match self {
            Self::First => Ok(0),
            Self::Latest => at_most(run.events.len()),
            Self::Number(seq) if seq < first && first == FIRST_SEQ => {
                Err(CliError::usage(format!("there is no event {seq}: the first of a run is {FIRST_SEQ}")))
            }
            Self::Number(seq) if seq < first => {
                let hint = format!("the first that is kept is {first}");
                Err(CliError::usage(format!("event {seq} is gone: the log has grown large since")).hint(hint))
            }
            Self::Number(seq) if seq > last => {
                Err(CliError::usage(format!("there is no event {seq}: the last of the run is {last}")))
            }
            Self::Number(seq) => at_most(run.events.partition_point(|event| event.seq <= seq)),
            Self::Time(instant) => {
                let time = instant.time(run.began(), now);
                // Clocks jump; what is asked for is the last event before the first one that came later.
                at_most(run.events.iter().position(|event| event.at > time).unwrap_or(run.events.len()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(seq: u64, at: i64) -> Event {
        Event { v: 1, seq, at: UnixMs(at), fact: Fact::Warning { about: "test".into(), text: String::new() } }
    }

    #[test]
    fn runs_begin_where_the_numbers_begin_anew() {
        let runs = split(Vec::from([(7, 1), (8, 2), (1, 3), (2, 4), (1, 5)].map(|(seq, at)| event(seq, at))));
        let shown: Vec<_> = runs.iter().map(|run| (run.number, run.span())).collect();
        assert_eq!(shown, [(3, (7, 8)), (2, (1, 2)), (1, (1, 1))]);
        assert!(split(Vec::new()).is_empty());
    }

    #[test]
    fn moments_are_numbers_and_times() {
        let run =
            Run { number: 1, events: [(5, 10_000), (6, 20_000), (8, 30_000)].map(|(s, at)| event(s, at)).to_vec() };
        let place = |text: &str| text.parse::<Moment>().unwrap().place(&run, UnixMs(65_000)).map_err(|e| e.message);
        assert!(place("4").unwrap_err().contains("event 4 is gone"));
        let whole = Run { number: 1, events: vec![event(1, 10_000)] };
        let error = Moment::Number(0).place(&whole, UnixMs(65_000)).unwrap_err().message;
        assert_eq!(error, "there is no event 0: the first of a run is 1");
        assert_eq!((place("first"), place("latest"), place("6")), (Ok(0), Ok(2), Ok(1)));
        assert_eq!(place("7"), Ok(1), "a number the log has lost is where it would be");
        assert_eq!((place("0:10"), place("0:09"), place("1:00:00")), (Ok(1), Ok(0), Ok(2)));
        assert_eq!((place("45s"), place("1970-01-01T00:00:25Z")), (Ok(1), Ok(1)));
        assert_eq!(place("2d"), Ok(0), "before it began there is nothing to show but its beginning");
        assert!(
            place("4").unwrap_err().contains("is gone") && place("9").unwrap_err().contains("last of the run is 8")
        );
        for bad in ["", "soon", "-5", "1:2:3:4", ":", "1:x", "10"] {
            assert!(bad.parse::<Instant>().is_err(), "{bad}");
        }
        assert!("soon".parse::<Moment>().unwrap_err().contains("a moment is"));
        assert!("0".parse::<RunChoice>().is_err() && "all".parse() == Ok(RunChoice::All));
    }
}
