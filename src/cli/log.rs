//! `brigade log`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use serde::Serialize;

use super::arguments::{number, task_id};
use super::context::Context;
use super::error::{CliError, CliResult};
use super::output::Answer;
use super::runs::{self, Instant, Run, RunChoice};
use crate::domain::event::{Event, Fact, KINDS};
use crate::domain::task::TaskId;
use crate::domain::time::UnixMs;
use crate::ports::Board as _;
use crate::ui::style::{BOLD, DIM, PLAIN, paint};
use crate::ui::table::{Cell, Column, Table};
use crate::ui::text::{ago, duration, one_line};
use crate::ui::timeline::Timeline;

/// How often a log that is followed is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Names that are listed where one is not known.
const NAMES_MAX: usize = 20;
/// The most events `-n` asks for.
const COUNT_MAX: u64 = 1_000_000;

/// Show what happened, from the event log
///
/// Without --run or --since, in the newest run. With --json the events as they stand in the log; with --follow besides, a line each.
#[derive(Debug, clap::Args)]
pub struct Log {
    /// Only the last so many lines; with --json, the last so many events
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = number::<u64>(1..=COUNT_MAX))]
    last: Option<u64>,
    /// Only those about this task
    #[arg(long, value_name = "ID", value_parser = task_id)]
    task: Option<TaskId>,
    /// Only those about this teammate
    #[arg(long, value_name = "NAME")]
    teammate: Option<String>,
    /// Only those of this kind, such as task_completed; repeat it for several
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(KINDS), hide_possible_values = true)]
    kind: Vec<String>,
    /// Only those since then, in all runs unless --run names one: 10m ago, 0:42 since the run began, or a time
    #[arg(long, value_name = "TIME")]
    since: Option<Instant>,
    /// Which run: 1 is the newest, 2 the one before; or all that are kept
    #[arg(long, value_name = "RUN")]
    run: Option<RunChoice>,
    /// List the runs that are kept
    #[arg(long, conflicts_with_all = ["last", "task", "teammate", "kind", "since", "run", "follow"])]
    runs: bool,
    /// Go on with what comes, until Ctrl-C
    #[arg(short, long)]
    follow: bool,
}

/// A run, for programs.
#[derive(Serialize)]
struct RunShown {
    run: usize,
    team: Option<String>,
    began: String,
    ended: Option<String>,
    /// Its first and its last event that are kept.
    first: u64,
    last: u64,
    outcome: String,
}

impl Log {
    /// Shows the log.
    ///
    /// # Errors
    /// There is no workspace or no such run, or the log cannot be read.
    pub async fn run(self, context: &Context) -> CliResult<Answer> {
        if self.follow && context.is_in_session() {
            return Err(CliError::usage("what comes is shown here anyway").hint("brigade log -n 50 shows what came"));
        }
        if self.runs {
            return list(context);
        }
        let choice = self.run.unwrap_or(if self.since.is_some() { RunChoice::All } else { RunChoice::Nth(1) });
        if self.follow && matches!(choice, RunChoice::Nth(nth) if nth > 1) {
            return Err(CliError::usage("that run is over: nothing more comes")
                .hint("brigade log --follow is about the newest"));
        }
        let mut shown = Shown::new(&self, context, choice).await?;
        let mut reader = runs::reader(context, choice)?;
        let events = match choice {
            RunChoice::Nth(nth @ 2..) => runs::nth(context, nth)?.events,
            _ => reader.read_new()?,
        };
        let mut events = shown.choose(events);
        let last = usize::try_from(self.last.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        if context.output.json {
            let surplus = events.len().saturating_sub(last);
            events.drain(..surplus);
        }
        // Many events have no line of their own, and some share one: lines are counted once they are made.
        let lines = |shown: &mut Shown<'_>| last_lines(&shown.lines(&events), last).to_owned();
        if !self.follow {
            let chosen: Vec<&Event> = events.iter().map(|(_, event)| event).collect();
            let answer = context.output.answer(&chosen, || lines(&mut shown))?;
            return Ok(if events.is_empty() { answer.note(paint(DIM, &shown.nothing())) } else { answer });
        }
        let mut text = lines(&mut shown);
        loop {
            context.output.print(&text).map_err(|error| CliError::refused(format!("cannot write: {error}")))?;
            tokio::time::sleep(LOOK_INTERVAL).await;
            let new = reader.read_new()?;
            let events = shown.choose(new);
            text = shown.lines(&events);
        }
    }

    fn is_wanted(&self, event: &Event, about: &About, since: Option<UnixMs>) -> bool {
        since.is_none_or(|since| event.at >= since)
            && self.teammate.as_ref().is_none_or(|name| about.names.iter().any(|one| one.eq_ignore_ascii_case(name)))
            && self.task.is_none_or(|task| about.task == Some(task.0))
            && (self.kind.is_empty() || self.kind.contains(&about.kind))
    }
}

/// What an event can be chosen by.
#[derive(Default)]
struct About {
    kind: String,
    names: Vec<String>,
    task: Option<u64>,
}

impl About {
    fn of(fact: &Fact) -> Self {
        let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(fact) else { return Self::default() };
        let text = |key: &str| fields.get(key).and_then(|value| value.as_str()).map(str::to_owned);
        Self {
            kind: text("kind").unwrap_or_default(),
            names: ["teammate", "by", "from", "to"].into_iter().filter_map(text).collect(),
            task: fields.get("task").and_then(serde_json::Value::as_u64),
        }
    }
}

/// What is shown, event by event: it knows where runs begin.
struct Shown<'a> {
    log: &'a Log,
    json: bool,
    now: UnixMs,
    columns: usize,
    /// Whether runs are told apart: there may be several.
    tells_runs: bool,
    /// What tasks of before the log are about.
    subjects: BTreeMap<TaskId, String>,
    /// Who is in the teams, whether their beginning is shown or not.
    names: BTreeSet<String>,
    /// Who, and which tasks, the events are about, whether they are shown or not.
    met: (BTreeSet<String>, BTreeSet<u64>),
    timeline: Timeline,
    /// When the run began whose events are read, and the number of its last one.
    began: UnixMs,
    last_seq: Option<u64>,
    /// How many runs began, and of which of them the last line was.
    runs: usize,
    shown_run: usize,
}

impl<'a> Shown<'a> {
    async fn new(log: &'a Log, context: &Context, choice: RunChoice) -> CliResult<Self> {
        let view = context.board_to_look_at()?.view().await?;
        Ok(Self {
            log,
            json: context.output.json,
            now: context.now(),
            columns: context.output.columns,
            tells_runs: choice == RunChoice::All,
            subjects: view.tasks.values().map(|task| (task.id, task.subject.clone())).collect(),
            names: BTreeSet::new(),
            met: (BTreeSet::new(), BTreeSet::new()),
            timeline: Timeline::new(context.output.columns),
            began: UnixMs::default(),
            last_seq: None,
            runs: 0,
            shown_run: 0,
        })
    }

    /// The events that are wanted, each with the run it is of: when that began, and the how many-th it is.
    fn choose(&mut self, events: Vec<Event>) -> Vec<((UnixMs, usize), Event)> {
        let mut chosen = Vec::new();
        for event in events {
            if self.last_seq.is_none_or(|last| event.seq <= last) {
                self.runs += 1;
                self.began = event.at;
            }
            self.last_seq = Some(event.seq);
            if let Fact::TeamStarted { members, .. } = &event.fact {
                self.names.extend(members.iter().cloned());
            }
            if let Fact::Team { anew: Some(team), .. } = &event.fact {
                self.began = team.started.unwrap_or(self.began);
            }
            let since = self.log.since.map(|since| since.time(self.began, self.now));
            let about = About::of(&event.fact);
            let is_wanted = self.log.is_wanted(&event, &about, since);
            self.met.0.extend(about.names);
            self.met.1.extend(about.task);
            if is_wanted {
                chosen.push(((self.began, self.runs), event));
            }
        }
        chosen
    }

    /// Lines for people; for programs that follow, the events as they stand in the file.
    fn lines(&mut self, events: &[((UnixMs, usize), Event)]) -> String {
        let mut text = String::new();
        for ((began, run), event) in events {
            if self.json {
                text += &event.to_line();
                text.push('\n');
                continue;
            }
            if self.shown_run != *run {
                text += &self.timeline.finish();
                self.begin(*began);
                self.shown_run = *run;
                if self.tells_runs {
                    text += &paint(BOLD, &format!("run of {}, {}", began.to_iso(), ago(*began, self.now)));
                    text.push('\n');
                }
            }
            text += &self.timeline.push(event);
        }
        text + &self.timeline.finish()
    }

    /// Why there is nothing to show: also whether what was asked for is known at all.
    fn nothing(&self) -> String {
        if let Some(name) = &self.log.teammate {
            let known: BTreeSet<&str> = self.names.iter().chain(&self.met.0).map(String::as_str).collect();
            if !known.is_empty() && !known.iter().any(|one| one.eq_ignore_ascii_case(name)) {
                let known = known.into_iter().take(NAMES_MAX).collect::<Vec<_>>().join(", ");
                let name = one_line(name);
                return format!("nobody called `{name}` is in the log; these are: {}", one_line(&known));
            }
        }
        match self.log.task {
            Some(task) if !self.met.1.contains(&task.0) && !self.subjects.contains_key(&task) => {
                format!("there is no task {task}, neither in the log nor on the board")
            }
            _ => "nothing of that kind is in the log".to_owned(),
        }
    }

    fn begin(&mut self, began: UnixMs) {
        self.timeline = Timeline::new(self.columns);
        self.timeline.begin(began);
        self.timeline.know(self.names.iter().map(String::as_str));
        self.subjects.iter().for_each(|(task, subject)| self.timeline.learn(*task, subject));
    }
}

/// The last `count` lines of a text.
fn last_lines(text: &str, count: usize) -> &str {
    let surplus = text.lines().count().saturating_sub(count);
    let begin = text.split_inclusive('\n').take(surplus).map(str::len).sum();
    &text[begin..]
}

/// Lists the runs that are kept.
fn list(context: &Context) -> CliResult<Answer> {
    let kept = runs::split(runs::reader(context, RunChoice::All)?.read_new()?);
    let shown: Vec<RunShown> = kept.iter().rev().map(RunShown::of).collect();
    let now = context.now();
    let answer = context.output.answer(&shown, || {
        let mut table = Table::new(&[
            Column::number("RUN"),
            Column::new("TEAM"),
            Column::new("BEGAN"),
            Column::new("TOOK"),
            Column::number("EVENTS"),
            Column::flexible("ENDED"),
        ]);
        for run in kept.iter().rev() {
            let (first, last) = run.span();
            let took = run.events.last().map(|event| event.at.since(run.began())).unwrap_or_default();
            table.row(vec![
                Cell::new(&run.number.to_string(), BOLD),
                Cell::new(run.team().unwrap_or("?"), PLAIN),
                Cell::new(&ago(run.began(), now), PLAIN),
                Cell::new(&duration(took), PLAIN),
                Cell::new(&if first > 1 { format!("{first} to {last}") } else { last.to_string() }, PLAIN),
                Cell::new(&outcome(run), DIM),
            ]);
        }
        if kept.is_empty() { String::new() } else { table.render(context.output.columns) }
    })?;
    Ok(if shown.is_empty() { answer.note(paint(DIM, "no run has written a log yet")) } else { answer })
}

impl RunShown {
    fn of(run: &Run) -> Self {
        let (first, last) = run.span();
        let ended = run.events.last().filter(|event| matches!(event.fact, Fact::TeamStopped { .. }));
        Self {
            run: run.number,
            team: run.team().map(str::to_owned),
            began: run.began().to_iso(),
            ended: ended.map(|event| event.at.to_iso()),
            first,
            last,
            outcome: outcome(run),
        }
    }
}

/// How a run ended, as far as its log knows.
fn outcome(run: &Run) -> String {
    match run.events.last().map(|event| &event.fact) {
        Some(Fact::TeamStopped { reason, .. }) => one_line(reason),
        _ if run.number == 1 => "it runs, or was killed".to_owned(),
        _ => "it was killed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_lines_are_counted_as_printed() {
        for (count, expected) in [(1, "c\n"), (2, "b\nc\n"), (3, "a\nb\nc\n"), (9, "a\nb\nc\n")] {
            assert_eq!(last_lines("a\nb\nc\n", count), expected);
        }
        assert_eq!(last_lines("", 3), "");
    }
}
