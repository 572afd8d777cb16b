//! `brigade log`.

use crate::api::Question;
use crate::front::text::commands::{hint, line};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use clap::builder::PossibleValuesParser;

use super::arguments::{number, task_id};
use super::context::Context;
use super::error::{CliError, CliResult};
use super::output::{CommandAnswer, Output};
use crate::api::members;
use crate::api::run::{self, Instant, Run, RunChoice};
use crate::api::task;
use crate::domain::log::event::{Event, EventKind, KINDS};
use crate::domain::task::TaskId;
use crate::domain::team::name::{HUMAN, LEAD};
use crate::domain::text::one_line;
use crate::domain::text::units::duration;
use crate::domain::time::UnixMs;
use crate::front::text::lines::ago;
use crate::front::text::style::{BOLD, DIM, PLAIN, paint};
use crate::front::text::table::{Cell, Table};
use crate::front::text::timeline::Timeline;

/// The interval between reads with `--follow`.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The note for a log without events.
const EMPTY_LOG: &str = "the event log is empty: no team has run yet";
/// The largest value of `-n`.
const COUNT_MAX: u64 = 1_000_000;

/// Show events from the log
///
/// Without --run, --since or --task it shows the newest run. --json prints the stored events as one array; with --follow, one line each.
#[derive(Debug, Default, clap::Args)]
pub struct Log {
    /// Only the last lines, from 1 to 1000000; with --json, events
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = number::<u64>(1..=COUNT_MAX))]
    last: Option<u64>,
    /// Only events about this task, in all kept runs (six at most) unless --run is given
    #[arg(long, value_name = "ID", value_parser = task_id)]
    task: Option<TaskId>,
    /// Only events about this teammate
    #[arg(long, value_name = "NAME")]
    teammate: Option<String>,
    /// Only events of this kind; can be repeated
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(KINDS))]
    kind: Vec<String>,
    /// Only events since this time, in all runs unless --run is given: `10m` (ago), `0:42` (into the run), or
    /// `2026-01-31T12:00:00Z`
    #[arg(long, value_name = "TIME")]
    since: Option<Instant>,
    /// The run: `latest`, `all`, or a number; 1 is the newest
    #[arg(long, value_name = "RUN")]
    run: Option<RunChoice>,
    /// List the runs in the log
    #[arg(long, conflicts_with_all = ["last", "task", "teammate", "kind", "since", "run", "follow"])]
    runs: bool,
    /// Wait for new events, until Ctrl-C
    #[arg(short, long)]
    follow: bool,
}

impl Log {
    /// Selects the last lines of the newest run.
    pub(in crate::front) fn last_lines(count: u64) -> Self {
        Self { last: Some(count), ..Self::default() }
    }

    /// Shows the log.
    ///
    /// # Errors
    /// The workspace or the run does not exist, or the log cannot be read.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        if self.follow && context.is_in_repl() {
            return Err(CliError::usage(
                "cannot follow the log in an interactive session: it shows new events already",
            )
            .hint(line("log -n 50")));
        }
        if self.runs {
            return list(context).await;
        }
        let is_of_all_runs = self.since.is_some() || self.task.is_some();
        let choice = self.run.unwrap_or(if is_of_all_runs { RunChoice::All } else { RunChoice::Nth(1) });
        if self.follow && matches!(choice, RunChoice::Nth(nth) if nth > 1) {
            return Err(CliError::usage("cannot follow this run: it is over").hint(line("log --follow")));
        }
        let mut shown = LogText::new(context, choice).await?;
        let run = RunStart::default();
        let members = BTreeSet::new();
        let mut filter = EventFilter { log: &self, now: context.workspace.now(), run, last_seq: None, members };
        let mut reader = run::reader(&context.workspace, choice).await?;
        let events = match choice {
            RunChoice::Nth(nth @ 2..) => run::nth(&context.workspace, nth).await?.events,
            _ => reader.read_new().await?,
        };
        let mut events = filter.choose(events);
        let last = usize::try_from(self.last.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        if context.output.json {
            let surplus = events.len().saturating_sub(last);
            events.drain(..surplus);
        }
        // Some events have no line and some share one, so lines are counted after rendering.
        let mut lines = || last_lines(&shown.lines(&events, &filter.members), last).to_owned();
        if !self.follow {
            let chosen: Vec<&Event> = events.iter().map(|(_, event)| event).collect();
            let answer = context.output.answer(&chosen, lines)?;
            if !events.is_empty() {
                return Ok(answer);
            }
            if filter.last_seq.is_some() {
                self.check_names(context, &shown.subjects).await?;
            }
            return Ok(answer.note(filter.empty_note(choice)));
        }
        let mut text = lines();
        loop {
            context
                .output
                .print(&text)
                .map_err(|error| CliError::refused(format!("cannot write the output: {error}")))?;
            tokio::time::sleep(POLL_INTERVAL).await;
            let new = reader.read_new().await?;
            let events = filter.choose(new);
            text = shown.lines(&events, &filter.members);
        }
    }

    /// Refuses a teammate or a task that does not exist. `subjects` are those of the tasks on the board.
    async fn check_names(&self, context: &Context, subjects: &BTreeMap<TaskId, String>) -> CliResult<()> {
        if let Some(name) = &self.teammate {
            members::find_name(&context.workspace, name, &[LEAD, HUMAN]).await?;
        }
        match self.task {
            Some(task) if !subjects.contains_key(&task) => {
                let message = format!("cannot find {task}: no event matches, and it is not on the board");
                Err(CliError::refused(message).hint(hint![Question::Tasks, " lists the tasks"]))
            }
            _ => Ok(()),
        }
    }

    fn matches(&self, event: &Event, since: Option<UnixMs>) -> bool {
        let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(&event.kind) else { return false };
        let text = |key: &str| fields.get(key).and_then(|value| value.as_str());
        let is_about = |name: &String| {
            ["teammate", "by", "from", "to"].into_iter().filter_map(text).any(|one| one.eq_ignore_ascii_case(name))
        };
        let task = fields.get("task").and_then(serde_json::Value::as_u64);
        since.is_none_or(|since| event.at >= since)
            && self.teammate.as_ref().is_none_or(is_about)
            && self.task.is_none_or(|id| task == Some(id.0))
            && (self.kind.is_empty() || self.kind.iter().any(|kind| text("kind") == Some(kind)))
    }
}

/// The start of a run and its number in the stored log.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct RunStart {
    began: UnixMs,
    number: usize,
}

/// Chooses events by the options.
struct EventFilter<'a> {
    log: &'a Log,
    now: UnixMs,
    /// The run of the last event.
    run: RunStart,
    last_seq: Option<u64>,
    /// The members of the teams in the log.
    members: BTreeSet<String>,
}

impl EventFilter<'_> {
    /// Returns the chosen events, each with its run.
    fn choose(&mut self, events: Vec<Event>) -> Vec<(RunStart, Event)> {
        let mut chosen = Vec::new();
        for event in events {
            if self.last_seq.is_none_or(|last| event.seq <= last) {
                self.run = RunStart { began: event.at, number: self.run.number + 1 };
            }
            self.last_seq = Some(event.seq);
            if let EventKind::TeamStarted { members, .. } = &event.kind {
                self.members.extend(members.iter().cloned());
            }
            if let EventKind::Team { full_team: Some(team), .. } = &event.kind {
                self.run.began = team.started.unwrap_or(self.run.began);
            }
            let since = self.log.since.map(|since| since.time(self.run.began, self.now));
            if self.log.matches(&event, since) {
                chosen.push((self.run, event));
            }
        }
        chosen
    }

    /// The note for an empty result.
    fn empty_note(&self, choice: RunChoice) -> &'static str {
        match choice {
            _ if self.last_seq.is_none() => EMPTY_LOG,
            RunChoice::All => "no event matches",
            RunChoice::Nth(_) => "no event of this run matches; `--run all` searches all runs",
        }
    }
}

/// Renders chosen events, run by run.
struct LogText {
    output: Output,
    now: UnixMs,
    has_run_headings: bool,
    /// The subjects of the tasks on the board.
    subjects: BTreeMap<TaskId, String>,
    timeline: Timeline,
    /// The run of the last line.
    run: RunStart,
}

impl LogText {
    async fn new(context: &Context, choice: RunChoice) -> CliResult<Self> {
        let view = task::board(&context.workspace).await?;
        Ok(Self {
            output: context.output,
            now: context.workspace.now(),
            has_run_headings: choice == RunChoice::All,
            subjects: view.tasks.values().map(|task| (task.id, task.subject.clone())).collect(),
            timeline: Timeline::new(context.output.columns, context.output.renders_markdown()),
            run: RunStart::default(),
        })
    }

    /// Returns lines for people, or the stored events as JSON lines. `members` are those of the teams so far.
    fn lines(&mut self, events: &[(RunStart, Event)], members: &BTreeSet<String>) -> String {
        let mut text = String::new();
        for (run, event) in events {
            if self.output.json {
                text += &event.to_line();
                text.push('\n');
                continue;
            }
            if self.run.number != run.number {
                text += &self.timeline.finish();
                self.begin(*run, members);
                if self.has_run_headings {
                    text += &paint(BOLD, &format!("run of {}, {}", run.began.to_iso(), ago(run.began, self.now)));
                    text.push('\n');
                }
            }
            text += &self.timeline.push(event);
        }
        text + &self.timeline.finish()
    }

    fn begin(&mut self, run: RunStart, members: &BTreeSet<String>) {
        self.run = run;
        self.timeline = Timeline::new(self.output.columns, self.output.renders_markdown());
        self.timeline.begin(run.began);
        self.timeline.add_members(members.iter().map(String::as_str));
        self.subjects.iter().for_each(|(task, subject)| self.timeline.add_task(*task, subject));
    }
}

/// Returns the last `count` lines of a text.
fn last_lines(text: &str, count: usize) -> &str {
    let surplus = text.lines().count().saturating_sub(count);
    let begin = text.split_inclusive('\n').take(surplus).map(str::len).sum();
    &text[begin..]
}

/// Lists the runs in the log.
async fn list(context: &Context) -> CliResult<CommandAnswer> {
    let runs = run::split(run::reader(&context.workspace, RunChoice::All).await?.read_new().await?);
    let shown: Vec<serde_json::Value> = runs.iter().rev().map(as_json).collect();
    let now = context.workspace.now();
    let answer = context.output.answer(&shown, || {
        let mut table = Table::new(&["RUN", "TEAM", "BEGAN", "TOOK", "EVENTS", "ENDED"])
            .numbers(&["RUN", "EVENTS"])
            .flexible(&["ENDED"]);
        for run in runs.iter().rev() {
            let (first, last) = run.span();
            let took = run.events.last().map(|event| event.at.since(run.began())).unwrap_or_default();
            table.row(vec![
                Cell::new(&run.number.to_string(), BOLD),
                Cell::new(run.team().unwrap_or("?"), PLAIN),
                Cell::new(&ago(run.began(), now), PLAIN),
                // The log does not tell when a killed run ended.
                Cell::new(&format!("{}{}", duration(took), if run.has_ended() { "" } else { " or more" }), PLAIN),
                Cell::new(&if first > 1 { format!("{first} to {last}") } else { last.to_string() }, PLAIN),
                Cell::new(&outcome(run), DIM),
            ]);
        }
        if runs.is_empty() { String::new() } else { table.render(context.output.columns) }
    })?;
    Ok(if shown.is_empty() { answer.note(EMPTY_LOG) } else { answer })
}

/// A run, for programs. `first` and `last` are the numbers of the first and last stored event.
fn as_json(run: &Run) -> serde_json::Value {
    let (first, last) = run.span();
    let end = if run.has_ended() { run.events.last() } else { None };
    let ended = end.map(|event| event.at.to_iso());
    serde_json::json!({
        "run": run.number, "team": run.team(), "began": run.began().to_iso(), "ended": ended,
        "first": first, "last": last, "outcome": outcome(run),
    })
}

/// The reason why a run ended, from its last event.
fn outcome(run: &Run) -> String {
    match run.events.last().map(|event| &event.kind) {
        Some(EventKind::TeamStopped { reason, .. }) => one_line(reason),
        _ if run.number == 1 => "it runs, or was killed".to_owned(),
        _ => "it was killed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_lines_returns_requested_count() {
        for (count, expected) in [(1, "c\n"), (2, "b\nc\n"), (3, "a\nb\nc\n"), (9, "a\nb\nc\n")] {
            assert_eq!(last_lines("a\nb\nc\n", count), expected);
        }
        assert_eq!(last_lines("", 3), "");
    }
}
