//! The runs in the event log, and the values that choose a run, a moment or a time.

use std::str::FromStr;
use std::time::Duration;

use super::arguments::number;
use super::context::Context;
use super::error::{CliError, CliResult};
use crate::domain::log::event::{Event, EventKind};
use crate::domain::time::UnixMs;
use crate::ports::{EventReader, Runs};
use crate::stores::workspace::OpenMode;
use crate::ui::command_form::shell_word;

/// The largest number of a run, and the largest age of a time in seconds.
const BACK_MAX: u64 = 1_000_000_000;

/// The number of a run's first event.
const FIRST_SEQ: u64 = 1;

/// The events of one run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Run {
    /// 1 for the newest.
    pub number: usize,
    /// The stored events, in order; at least one.
    pub events: Vec<Event>,
}

impl Run {
    /// The name of the team, if the events contain it.
    pub fn team(&self) -> Option<&str> {
        self.events.iter().find_map(|event| match &event.kind {
            EventKind::TeamStarted { team, .. } | EventKind::TeamStopped { team, .. } => Some(team.as_str()),
            EventKind::Team { full_team: Some(row), .. } => Some(row.team.as_str()),
            _ => None,
        })
    }

    /// The start of the run, or the time of its first stored event.
    pub fn began(&self) -> UnixMs {
        let recorded = self.events.iter().find_map(|event| match &event.kind {
            EventKind::TeamStarted { .. } => Some(event.at),
            EventKind::Team { full_team: Some(row), .. } => row.started,
            _ => None,
        });
        recorded.or_else(|| self.events.first().map(|event| event.at)).unwrap_or_default()
    }

    /// Returns true if the team stopped in order.
    pub fn has_ended(&self) -> bool {
        self.events.last().is_some_and(|event| matches!(event.kind, EventKind::TeamStopped { .. }))
    }

    /// The numbers of the first and last stored event.
    pub fn span(&self) -> (u64, u64) {
        let seq = |event: Option<&Event>| event.map_or(0, |event| event.seq);
        (seq(self.events.first()), seq(self.events.last()))
    }
}

/// Returns a reader for the runs that `choice` needs.
///
/// # Errors
/// The workspace does not exist.
pub async fn reader(context: &Context, choice: RunChoice) -> CliResult<Box<dyn EventReader>> {
    let runs = if choice == RunChoice::Nth(1) { Runs::Newest } else { Runs::All };
    Ok(context.workspace.stores(OpenMode::ReadOnly).await?.events.reader(runs))
}

/// Splits events into runs, the newest last.
pub fn split(events: Vec<Event>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for event in events {
        match runs.last_mut() {
            Some(run) if run.span().1 < event.seq => run.events.push(event),
            _ => runs.push(Run { number: 0, events: vec![event] }),
        }
    }
    let count = runs.len();
    runs.iter_mut().enumerate().for_each(|(index, run)| run.number = count - index);
    runs
}

/// Returns a run; 1 is the newest.
///
/// # Errors
/// The workspace or the run does not exist, or the log cannot be read.
pub async fn nth(context: &Context, nth: usize) -> CliResult<Run> {
    let runs = split(reader(context, RunChoice::Nth(nth)).await?.read_new().await?);
    let count = runs.len();
    runs.into_iter().find(|run| run.number == nth).ok_or_else(|| no_such_run(context, nth, count))
}

fn no_such_run(context: &Context, nth: usize, count: usize) -> CliError {
    match count {
        0 => {
            let teams =
                context.workspace.location.config_if_valid().map(|config| config.team_names()).unwrap_or_default();
            let team = teams.first().map_or("TEAM", String::as_str);
            CliError::usage("the event log is empty: no team has run yet")
                .hint(format!("`brigade run {}`", shell_word(team)))
        }
        _ => CliError::usage(format!("there is no run {nth}: the log has {count}"))
            .hint("`brigade log --runs` lists them"),
    }
}

/// The value of `--run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunChoice {
    /// All stored runs.
    All,
    /// One run; 1 is the newest.
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
                .map_err(|_| "expected `latest`, `all`, or a number; 1 is the newest".to_owned()),
        }
    }
}

/// A point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instant {
    /// A fixed time.
    At(UnixMs),
    /// This long ago.
    Ago(Duration),
    /// This long after the start of a run.
    Into(Duration),
}

/// The accepted forms of a time, for errors.
const TIMES: &str = "10m (ago), 0:42 (into the run), or 2026-01-31T12:00:00Z";

impl Instant {
    /// The time for a run that began at `began`.
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

/// A moment of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The first stored event.
    First,
    /// The last event.
    Latest,
    /// The event with this number.
    Number(u64),
    /// The last event up to this time.
    Time(Instant),
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

impl Moment {
    /// Returns the index of the event in the run.
    ///
    /// # Errors
    /// The log does not have the event, or has removed it.
    pub fn index_in(self, run: &Run, now: UnixMs) -> CliResult<usize> {
        let (first, last) = run.span();
        let at_most = |places: usize| CliResult::Ok(places.saturating_sub(1));
        match self {
            Self::First => Ok(0),
            Self::Latest => at_most(run.events.len()),
            Self::Number(seq) if seq < first && first == FIRST_SEQ => {
                Err(CliError::usage(format!("there is no event {seq}: the first of a run is {FIRST_SEQ}")))
            }
            Self::Number(seq) if seq < first => {
                let hint = format!("the first stored event is {first}");
                Err(CliError::usage(format!("event {seq} was removed because the log grew")).hint(hint))
            }
            Self::Number(seq) if seq > last => {
                Err(CliError::usage(format!("there is no event {seq}: the last of the run is {last}")))
            }
            Self::Number(seq) => at_most(run.events.partition_point(|event| event.seq <= seq)),
            Self::Time(instant) => {
                let time = instant.time(run.began(), now);
                // Clocks can jump back, so the first event with a later time is the bound.
                at_most(run.events.iter().position(|event| event.at > time).unwrap_or(run.events.len()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::log::event::NewEvent;

    fn event(seq: u64, at: i64) -> Event {
        NewEvent::from(EventKind::Warning { about: "test".into(), text: String::new() }).number(seq, UnixMs(at))
    }

    #[test]
    fn log_is_split_where_event_numbers_restart() {
        let runs = split(Vec::from([(7, 1), (8, 2), (1, 3), (2, 4), (1, 5)].map(|(seq, at)| event(seq, at))));
        let shown: Vec<_> = runs.iter().map(|run| (run.number, run.span())).collect();
        assert_eq!(shown, [(3, (7, 8)), (2, (1, 2)), (1, (1, 1))]);
        assert!(split(Vec::new()).is_empty());
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
