//! The runs in the event log, and the choice of a run, a moment or a time.

use crate::api::next::Launch;
use crate::api::question::Question;
use std::time::Duration;

use super::refusal::{ApiResult, Refusal};
use super::workspace::Workspace;
use crate::domain::log::event::{Event, EventKind};
use crate::domain::time::UnixMs;
use crate::ports::{EventReader, Runs};
use crate::stores::workspace::OpenMode;

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
pub async fn reader(workspace: &Workspace, choice: RunChoice) -> ApiResult<Box<dyn EventReader>> {
    let runs = if choice == RunChoice::Nth(1) { Runs::Newest } else { Runs::All };
    Ok(workspace.stores(OpenMode::ReadOnly).await?.events.reader(runs))
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
pub async fn nth(workspace: &Workspace, nth: usize) -> ApiResult<Run> {
    let runs = split(reader(workspace, RunChoice::Nth(nth)).await?.read_new().await?);
    let count = runs.len();
    runs.into_iter().find(|run| run.number == nth).ok_or_else(|| no_such_run(workspace, nth, count))
}

fn no_such_run(workspace: &Workspace, nth: usize, count: usize) -> Refusal {
    match count {
        0 => {
            let teams = workspace.location.config_if_valid().map(|config| config.team_names()).unwrap_or_default();
            let team = teams.into_iter().next().unwrap_or_else(|| "TEAM".to_owned());
            Refusal::invalid("the event log is empty: no team has run yet").next(Launch::Run { team: Some(team) })
        }
        _ => Refusal::invalid(format!("there is no run {nth}: the log has {count}")).next(Question::Runs),
    }
}

/// The runs that a question is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunChoice {
    /// All stored runs.
    All,
    /// One run; 1 is the newest.
    Nth(usize),
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

impl Moment {
    /// Returns the index of the event in the run.
    ///
    /// # Errors
    /// The log does not have the event, or has removed it.
    pub fn index_in(self, run: &Run, now: UnixMs) -> ApiResult<usize> {
        let (first, last) = run.span();
        let at_most = |places: usize| ApiResult::Ok(places.saturating_sub(1));
        match self {
            Self::First => Ok(0),
            Self::Latest => at_most(run.events.len()),
            Self::Number(seq) if seq < first && first == FIRST_SEQ => {
                Err(Refusal::invalid(format!("there is no event {seq}: the first of a run is {FIRST_SEQ}")))
            }
            Self::Number(seq) if seq < first => {
                let hint = format!("the first stored event is {first}");
                Err(Refusal::invalid(format!("event {seq} was removed because the log grew")).next(hint))
            }
            Self::Number(seq) if seq > last => {
                Err(Refusal::invalid(format!("there is no event {seq}: the last of the run is {last}")))
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
        NewEvent::from(EventKind::Note { about: "test".into(), text: String::new() }).number(seq, UnixMs(at))
    }

    #[test]
    fn log_is_split_where_event_numbers_restart() {
        let runs = split(Vec::from([(7, 1), (8, 2), (1, 3), (2, 4), (1, 5)].map(|(seq, at)| event(seq, at))));
        let shown: Vec<_> = runs.iter().map(|run| (run.number, run.span())).collect();
        assert_eq!(shown, [(3, (7, 8)), (2, (1, 2)), (1, (1, 1))]);
        assert!(split(Vec::new()).is_empty());
    }
}
