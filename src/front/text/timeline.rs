//! The timeline of a run: one line for each event that a person cares about. A text of the lead is shown in full.
//!
//! Consecutive events of the same kind (twenty tasks created, ten teammates stopped) become one line. The next event of
//! another kind, or [`Timeline::finish`], prints it.

mod layout;
mod repeats;

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use anstyle::Style;

use super::commands::warning;
use super::lines::ago;
use super::style::{BAD, BOLD, DIM, GOOD, PLAIN, WARN};
use crate::domain::log::event::{ClaimSnapshot, Event, EventKind, InvalidFileSnapshot};
use crate::domain::log::task_diff::UNKNOWN_ACTOR;
use crate::domain::task::TaskId;
use crate::domain::task::evidence::Caveat;
use crate::domain::task::failure_summary::summary_of;
use crate::domain::team::name::{HUMAN, LEAD};
use crate::domain::team::state::Mode;
use crate::domain::team::state_note::StateNote;
use crate::domain::text::units::{count, duration, join_up_to};
use crate::domain::text::{first_line, one_line};
use crate::domain::time::UnixMs;
use layout::{Height, LineLayout};
use repeats::RepeatFilter;

/// Resumed tasks named in one line; the rest are counted.
const RESUMED_NAMED_MAX: usize = 5;
/// Names in one line; the rest are counted.
const NAMES_MAX: usize = 8;
/// Up to this number, tasks created together get one line each.
const CREATED_LISTED_MAX: usize = 3;
/// A tool call that takes at least this long gets a line.
const TOOL_SLOW: Duration = Duration::from_secs(10);
/// Tasks whose subject and status are remembered, to bound memory.
const TASKS_REMEMBERED_MAX: usize = 100_000;

/// Tools whose effect has its own event. Only their failed calls get a line.
const TOOLS_WITH_EVENTS: [&str; 7] =
    ["task_create", "task_update", "claim_task", "send_message", "broadcast", "plan_approval", "idle"];

/// The name in front of lines about the whole team.
const TEAM: &str = "team";
/// The name in front of a change by a command or another program, which the log does not name.
const OUTSIDE: &str = "outside";

/// A line without its time.
struct Entry<'a> {
    /// The name in front of it.
    who: &'a str,
    text: String,
    style: Style,
    height: Height,
}

/// Returns an entry that is cut at the width of the terminal.
fn line(who: &str, text: String, style: Style) -> Entry<'_> {
    Entry { who, text, style, height: Height::OneLine }
}

/// Returns an entry that is folded.
fn folded(who: &str, text: String, style: Style) -> Entry<'_> {
    Entry { height: Height::Folded, ..line(who, text, style) }
}

/// Returns an entry whose lines after the first one are shown in full.
fn whole(who: &str, text: String, style: Style) -> Entry<'_> {
    Entry { height: Height::Whole, ..line(who, text, style) }
}

/// Renders events as lines, in order.
#[derive(Debug)]
pub struct Timeline {
    layout: LineLayout,
    repeats: RepeatFilter,
    known_members: HashSet<String>,
    subjects: BTreeMap<TaskId, String>,
    /// Events that are not printed yet, because more of their kind may follow.
    batch: Vec<Event>,
    /// True if the lead's texts of this session were shown. The end of the session then does not repeat the last one.
    has_shown_lead_text: bool,
}

impl Timeline {
    /// Returns an empty timeline for lines of at most `columns`.
    pub fn new(columns: usize, renders_markdown: bool) -> Self {
        Self {
            layout: LineLayout::new(columns, renders_markdown, TEAM),
            repeats: RepeatFilter::default(),
            known_members: HashSet::new(),
            subjects: BTreeMap::new(),
            batch: Vec::new(),
            has_shown_lead_text: false,
        }
    }

    /// Sets the maximum width of the following lines.
    pub fn set_columns(&mut self, columns: usize) {
        self.layout.columns = columns;
    }

    /// Sets the moment that all times are relative to; without it, the first event is.
    pub fn begin(&mut self, started: UnixMs) {
        self.layout.started = Some(started);
    }

    /// Adds the names of known members.
    pub fn add_members<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        for name in names {
            self.known_members.insert(name.to_owned());
            self.add_name(name);
        }
    }

    /// Adds the subject of a task that was on the board before.
    pub fn add_task(&mut self, task: TaskId, subject: &str) {
        if self.subjects.len() < TASKS_REMEMBERED_MAX {
            self.subjects.insert(task, one_line(subject));
        }
    }

    /// Records that a text of the lead was shown elsewhere, so that it is not printed again.
    pub fn record_shown_lead_text(&mut self) {
        self.has_shown_lead_text = true;
    }

    /// Adds an event and returns the lines to print now, each with its newline; often none.
    pub fn push(&mut self, event: &Event) -> String {
        self.layout.started.get_or_insert(event.at);
        // Snapshots repeat other events.
        if matches!(event.kind, EventKind::Board { .. } | EventKind::Team { .. }) {
            return String::new();
        }
        self.record_names(&event.kind);
        if self.repeats.is_repeated(&event.kind) {
            return String::new();
        }
        let is_continued = self.batch.last().is_some_and(|last| are_one_batch(&last.kind, &event.kind));
        let mut lines = if is_continued { String::new() } else { self.finish() };
        if matches!(event.kind, EventKind::TaskCreated { .. } | EventKind::TeammateStopped { .. }) {
            self.batch.push(event.clone());
            return lines;
        }
        if let Some(Entry { who, text, style, height }) = self.render(event) {
            lines.push_str(&self.layout.lines(event.at, who, &text, style, height));
        }
        match &event.kind {
            EventKind::Said { teammate, .. } if teammate == LEAD => self.record_shown_lead_text(),
            EventKind::SessionStarted { .. } => self.has_shown_lead_text = false,
            _ => {}
        }
        lines
    }

    /// Returns the lines that [`Timeline::push`] has not returned yet.
    pub fn finish(&mut self) -> String {
        let batch = std::mem::take(&mut self.batch);
        let Some(first) = batch.first() else { return String::new() };
        match &first.kind {
            EventKind::TaskCreated { by, .. } => self.tasks_created(first.at, actor(by), &batch),
            EventKind::TeammateStopped { reason, is_dead, .. } => {
                let reason = if reason.is_empty() { String::new() } else { format!(": {}", summary_of(reason)) };
                let names = batch.iter().filter_map(|event| match &event.kind {
                    EventKind::TeammateStopped { teammate, .. } => Some(teammate.clone()),
                    _ => None,
                });
                let names: Vec<String> = names.collect();
                let style = if *is_dead { BAD } else { DIM };
                match names.as_slice() {
                    [one] => self.layout.line(first.at, one, &format!("stopped{reason}"), style),
                    many => {
                        let names = join_up_to(many.iter(), NAMES_MAX);
                        self.layout.line(first.at, TEAM, &format!("{names} stopped{reason}"), style)
                    }
                }
            }
            _ => String::new(),
        }
    }

    fn tasks_created(&self, at: UnixMs, by: &str, batch: &[Event]) -> String {
        let tasks = batch.iter().filter_map(|event| match event.kind {
            EventKind::TaskCreated { task, .. } => Some(task),
            _ => None,
        });
        let line = |text: String| self.layout.line(at, by, &format!("adds {text}"), DIM);
        if batch.len() <= CREATED_LISTED_MAX {
            return tasks.map(|task| line(self.task_label(task))).collect();
        }
        let (first, last) = (tasks.clone().min(), tasks.max());
        let span = first.zip(last).map(|(first, last)| format!(": {first} to {last}")).unwrap_or_default();
        line(format!("{}{span}", count(batch.len(), "task")))
    }

    fn record_names(&mut self, kind: &EventKind) {
        match kind {
            EventKind::TeamStarted { members, .. } => self.add_members(members.iter().map(String::as_str)),
            EventKind::TeammateSpawned { teammate, .. } | EventKind::TaskClaimed { teammate, .. } => {
                self.add_name(teammate)
            }
            EventKind::TaskCreated { task, subject, by } => {
                self.add_task(*task, subject);
                self.add_name(by);
            }
            EventKind::TaskChanged { by: name, .. }
            | EventKind::TaskDeleted { by: name, .. }
            | EventKind::MessageSent { from: name, .. }
            | EventKind::RequestAnswered { by: name, .. } => self.add_name(name),
            // A later start of this teammate gets a line.
            EventKind::TeammateStopped { teammate, .. } => {
                self.known_members.remove(teammate);
            }
            _ => {}
        }
    }

    fn add_name(&mut self, name: &str) {
        self.layout.add_name(actor(name));
    }

    fn task_label(&self, task: TaskId) -> String {
        match self.subjects.get(&task) {
            Some(subject) => format!("{task} {subject}"),
            None => task.to_string(),
        }
    }

    /// Returns `None` for an event that gets no line.
    fn render<'a>(&self, event: &'a Event) -> Option<Entry<'a>> {
        Some(match &event.kind {
            EventKind::TeamStarted { team, members } => {
                line(TEAM, format!("{team} starts: {}", join_up_to(members.iter(), NAMES_MAX)), BOLD)
            }
            EventKind::TeamStopped { team, reason } => line(TEAM, format!("{team} stopped: {reason}"), BOLD),
            EventKind::RunResumed { claims } => self.run_resumed(claims),
            EventKind::ModeChanged { desired, note, .. } => mode_changed(*desired, note)?,
            EventKind::SessionStarted { session, mode } => {
                line(TEAM, format!("session {session} begins ({mode})"), DIM)
            }
            EventKind::SessionFinished { session, summary, outcome, error, .. } => {
                self.session_finished(*session, summary, outcome.as_deref(), error.as_deref())
            }
            EventKind::TaskClaimed { task, attempt, teammate } => self.task_claimed(*task, *attempt, teammate),
            EventKind::TaskCompleted { task, teammate, evidence, unverified, nothing_ran, .. } => {
                self.task_completed(*task, teammate, evidence, Caveat::of(*unverified, *nothing_ran))
            }
            EventKind::TaskFailed { task, attempt, teammate, reason, by } => {
                let failures = event.row.as_ref().map_or(0, |row| row.failures);
                task_failed(*task, *attempt, failures, teammate, reason, by.as_deref())
            }
            EventKind::TaskReleased { task, teammate, reason, not_before, by, .. } => {
                let retry = not_before.map(|until| ago(until, event.at));
                task_released(*task, teammate, reason, retry.as_deref(), by.as_deref())
            }
            EventKind::TaskReclaimed { task, teammate, reason, .. } => {
                folded(teammate, format!("{task} was reclaimed: {}", summary_of(reason)), WARN)
            }
            EventKind::TaskChanged { task, status, by } => {
                line(actor(by), format!("sets {} to {status}", self.task_label(*task)), DIM)
            }
            EventKind::TaskDeleted { task, by } => line(actor(by), format!("deletes {}", self.task_label(*task)), DIM),
            EventKind::InvalidTaskFileFound(invalid) => invalid_task_file(invalid),
            EventKind::TeammateSpawned { teammate, .. } if self.known_members.contains(teammate) => return None,
            EventKind::TeammateSpawned { teammate, role } => line(teammate, format!("joins as {role}"), PLAIN),
            EventKind::TeammateRespawned { teammate, reason, respawns } => {
                line(teammate, format!("restart {respawns}: {}", summary_of(reason)), WARN)
            }
            EventKind::StopRequested { teammate, now } => {
                line(teammate, format!("stopping {}", if *now { "now" } else { "after its turn" }), PLAIN)
            }
            model @ (EventKind::ModelRetried { .. } | EventKind::ModelSwitched { .. }) => model_event(model)?,
            EventKind::Said { teammate, text, .. } => said(teammate, text.trim())?,
            EventKind::ToolStarted { tool, .. } if TOOLS_WITH_EVENTS.contains(&tool.as_str()) => return None,
            EventKind::ToolStarted { teammate, tool, about, .. } => line(teammate, format!("{tool}  {about}"), DIM),
            EventKind::ToolFinished { teammate, tool, ok: true, ms, .. } => tool_succeeded(teammate, tool, *ms)?,
            EventKind::ToolFinished { teammate, tool, not_made, ms, reason, .. } => {
                tool_failed(teammate, tool, *not_made, *ms, reason.as_deref())
            }
            EventKind::MessageSent { from, to, about, task, .. } => message_sent(from, to, about, task.is_some()),
            answer @ EventKind::RequestAnswered { .. } => request_answered(answer)?,
            EventKind::Compacted { teammate, covers } => {
                line(teammate, format!("context compacted: a summary replaces {covers} records"), DIM)
            }
            EventKind::BudgetLow { limit, spent } => line(TEAM, format!("{spent} of {limit} used"), WARN),
            EventKind::BudgetSpent { limit, spent, teammate } => budget_spent(teammate.as_deref(), limit, spent),
            EventKind::Warning { about, text, next } => folded(TEAM, warning(about, text, next), WARN),
            EventKind::Note { about, text } => line(TEAM, format!("{about}: {text}"), GOOD),
            // Created tasks and stopped teammates get their lines as a batch, all others none.
            _ => return None,
        })
    }

    fn run_resumed(&self, claims: &[ClaimSnapshot]) -> Entry<'static> {
        let label = |claim: &ClaimSnapshot| format!("{} ({})", self.task_label(claim.task), claim.teammate);
        let tasks = join_up_to(claims.iter().map(label), RESUMED_NAMED_MAX);
        folded(TEAM, format!("the previous run was killed, resuming {tasks}"), WARN)
    }

    fn session_finished(
        &self,
        session: u64,
        summary: &str,
        outcome: Option<&str>,
        error: Option<&str>,
    ) -> Entry<'static> {
        let over = format!("session {session} is over");
        match outcome {
            None => folded(TEAM, format!("{over}: {summary}"), PLAIN),
            Some(outcome) if self.has_shown_lead_text => {
                let error = error.map(|error| format!("\n{error}")).unwrap_or_default();
                whole(TEAM, format!("{over}: {outcome}.{error}"), PLAIN)
            }
            Some(outcome) => whole(TEAM, format!("{over}: {outcome}. The lead says:\n{}", summary.trim_end()), PLAIN),
        }
    }

    fn task_claimed<'a>(&self, task: TaskId, attempt: u32, teammate: &'a str) -> Entry<'a> {
        let again = if attempt > 1 { format!(" (attempt {attempt})") } else { String::new() };
        line(teammate, format!("claims {}{again}", self.task_label(task)), PLAIN)
    }

    fn task_completed<'a>(&self, task: TaskId, teammate: &'a str, evidence: &str, caveat: Option<Caveat>) -> Entry<'a> {
        let evidence = if evidence.is_empty() { String::new() } else { format!(" ({})", first_line(evidence)) };
        // A narrow terminal cuts the end.
        let (caveat, style) = match caveat {
            Some(caveat) => (format!(", {caveat}:"), WARN),
            None => (String::new(), GOOD),
        };
        line(teammate, format!("completes{caveat} {}{evidence}", self.task_label(task)), style)
    }
}

/// Returns true if one line can show both events.
fn are_one_batch(first: &EventKind, next: &EventKind) -> bool {
    match (first, next) {
        (EventKind::TaskCreated { by, .. }, EventKind::TaskCreated { by: next, .. }) => by == next,
        (
            EventKind::TeammateStopped { reason, is_dead, .. },
            EventKind::TeammateStopped { reason: next_reason, is_dead: is_next_dead, .. },
        ) => (reason, is_dead) == (next_reason, is_next_dead),
        _ => false,
    }
}

/// The name in front of a change of the board.
fn actor(by: &str) -> &str {
    if by == UNKNOWN_ACTOR { OUTSIDE } else { by }
}

/// Messages to the person and requests are shown to their end.
fn message_sent<'a>(from: &'a str, to: &str, about: &str, is_request: bool) -> Entry<'a> {
    let text = format!("to {to}: {about}");
    if to == HUMAN || is_request { folded(from, text, PLAIN) } else { line(from, text, PLAIN) }
}

/// Returns `None` for an event that is not about a model.
fn model_event(event: &EventKind) -> Option<Entry<'_>> {
    match event {
        EventKind::ModelRetried { teammate, reason, wait_ms, retries } => {
            let wait = duration(Duration::from_millis(*wait_ms));
            Some(line(teammate, format!("model failed, retry {retries} in {wait}: {reason}"), WARN))
        }
        EventKind::ModelSwitched { teammate, from, to, reason: Some(reason), .. } => {
            let text = format!("{to} answers until the end of the task, in place of {from}: {reason}");
            Some(line(teammate, text, WARN))
        }
        EventKind::ModelSwitched { teammate, from, to, reason: None, .. } => {
            Some(line(teammate, format!("{to} answers again, after {from}"), DIM))
        }
        _ => None,
    }
}

/// Returns `None` if the line of the session says the same.
fn mode_changed(desired: Mode, note: &str) -> Option<Entry<'static>> {
    if StateNote::from_file_text(note) == StateNote::OneSession {
        return None;
    }
    let note = if note.is_empty() { String::new() } else { format!(": {note}") };
    Some(line(TEAM, format!("state {desired}{note}"), DIM))
}

/// Returns `None` for another event.
fn request_answered(event: &EventKind) -> Option<Entry<'_>> {
    let EventKind::RequestAnswered { by, to, request, request_kind, approved, feedback, task, .. } = event else {
        return None;
    };
    let noun = request_kind.approval_noun()?;
    let verb = if *approved { "approves" } else { "rejects" };
    let task = task.map(|task| format!(" of task {task}")).unwrap_or_default();
    let feedback = if feedback.is_empty() { String::new() } else { format!(": {feedback}") };
    Some(line(by, format!("to {to}: {verb} {noun} {request}{task}{feedback}"), PLAIN))
}

fn budget_spent<'a>(member: Option<&'a str>, limit: &str, spent: &str) -> Entry<'a> {
    // The next request could exceed the limit, also if little was used.
    line(member.unwrap_or(TEAM), format!("{spent} of {limit} used; the next request does not fit the budget"), BAD)
}

fn invalid_task_file(InvalidFileSnapshot { file, reason, place }: &InvalidFileSnapshot) -> Entry<'static> {
    let text = match place {
        Some(place) => format!("{place} is not a valid task: {reason}"),
        None => format!("{file} is not a valid task: {reason}; if it stays so, it moves to .tasks/.spoiled/"),
    };
    line(TEAM, text, WARN)
}

/// Returns the entry of a failed task. An attempt that was released is no failure. `failures` is 0 if their number is unknown.
fn task_failed<'a>(
    task: TaskId,
    attempt: u32,
    failures: u32,
    teammate: &'a str,
    reason: &str,
    by: Option<&'a str>,
) -> Entry<'a> {
    let reason = summary_of(reason);
    match by {
        Some(by) => folded(by, format!("fails {task} of {teammate}: {reason}"), BAD),
        None => {
            let has_other_attempts = failures > 0 && failures != attempt;
            let (number, noun) = if has_other_attempts { (failures, "failed attempt") } else { (attempt, "attempt") };
            folded(teammate, format!("{task} failed after {}: {reason}", count(number as usize, noun)), BAD)
        }
    }
}

/// Returns the entry of a released task. `retry` is the time of its next attempt after a failure.
fn task_released<'a>(
    task: TaskId,
    teammate: &'a str,
    reason: &str,
    retry: Option<&str>,
    by: Option<&'a str>,
) -> Entry<'a> {
    let of = by.map(|_| format!(" of {teammate}")).unwrap_or_default();
    let reason = summary_of(reason);
    let text = match (retry, by) {
        (Some(retry), None) => format!("{task} failed ({reason}), retrying {retry}"),
        (Some(retry), Some(_)) => format!("fails {task}{of} ({reason}), retrying {retry}"),
        (None, _) if reason.is_empty() => format!("releases {task}{of}"),
        (None, _) => format!("releases {task}{of}: {reason}"),
    };
    folded(by.unwrap_or(teammate), text, WARN)
}

/// Returns `None` for a text without words. The lead's text is shown in full.
fn said<'a>(teammate: &'a str, text: &str) -> Option<Entry<'a>> {
    if text.is_empty() {
        return None;
    }
    let says = format!("says:\n{text}");
    Some(if teammate == LEAD { whole(teammate, says, DIM) } else { line(teammate, says, DIM) })
}

/// Returns `None` for a call that was not slow.
fn tool_succeeded<'a>(teammate: &'a str, tool: &str, ms: u64) -> Option<Entry<'a>> {
    let took = Duration::from_millis(ms);
    if took < TOOL_SLOW {
        return None;
    }
    Some(line(teammate, format!("{tool} took {}", duration(took)), DIM))
}

/// Returns the entry of a call that failed or was not made.
fn tool_failed<'a>(teammate: &'a str, tool: &str, not_made: bool, ms: u64, reason: Option<&str>) -> Entry<'a> {
    let took = Duration::from_millis(ms);
    let after = if took >= TOOL_SLOW { format!(" after {}", duration(took)) } else { String::new() };
    let failed = if not_made { "not called" } else { "failed" };
    let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    folded(teammate, format!("{tool} {failed}{after}{reason}"), WARN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::log::event::{NewEvent, Notice};
    use crate::domain::log::snapshot::TaskSnapshot;
    use crate::front::text::lines::width;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn events() -> Vec<Event> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/contracts/events.jsonl");
        let text = std::fs::read_to_string(path).unwrap();
        let mut events: Vec<Event> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let start = events.last().unwrap().at;
        let created =
            |id| EventKind::TaskCreated { task: TaskId(id), subject: format!("Part {id}"), by: "lead".into() };
        let kinds = (10..30).map(created).chain(later_kinds(start));
        let next = events.len() as u64 + 1;
        events.extend(kinds.enumerate().map(|(index, kind)| {
            let at = start.plus(Duration::from_millis(500 * index as u64));
            NewEvent::from(kind).number(next + index as u64, at)
        }));
        events
    }

    fn switched(teammate: &str, from: &str, to: &str, reason: Option<&str>) -> EventKind {
        EventKind::ModelSwitched {
            teammate: teammate.to_owned(),
            task: None,
            from: from.to_owned(),
            to: to.to_owned(),
            reason: reason.map(str::to_owned),
        }
    }

    /// The events after the plan.
    fn later_kinds(start: UnixMs) -> Vec<EventKind> {
        let (alice, bob) = ("alice".to_owned(), "bob-the-very-long-name".to_owned());
        vec![
            EventKind::TaskClaimed { task: TaskId(12), attempt: 2, teammate: bob.clone() },
            EventKind::TaskReleased {
                task: TaskId(12),
                attempt: 2,
                teammate: bob.clone(),
                reason: "verify `make` failed: exit status 1\na.c:3: error: no\nmake: *** [all] Error 1".into(),
                not_before: Some(start.plus(Duration::from_secs(14))),
                by: None,
            },
            EventKind::TaskReleased {
                task: TaskId(15),
                attempt: 1,
                teammate: bob.clone(),
                reason: String::new(),
                not_before: None,
                by: Some("human".into()),
            },
            EventKind::TaskFailed {
                task: TaskId(12),
                attempt: 3,
                teammate: alice.clone(),
                reason: "gave \x1b[2J up".into(),
                by: None,
            },
            EventKind::TaskReclaimed {
                task: TaskId(13),
                attempt: 1,
                teammate: alice.clone(),
                reason: "stalled".into(),
            },
            EventKind::TeammateRespawned { teammate: alice.clone(), reason: "panicked".into(), respawns: 1 },
            EventKind::TeammateSpawned { teammate: "carol".into(), role: "reviewer".into() },
            EventKind::TeammateSpawned { teammate: alice.clone(), role: "coder".into() },
            EventKind::MessageSent {
                from: bob.clone(),
                to: "lead".into(),
                message: "m-1".into(),
                about: "日本語".into(),
                task: None,
            },
            EventKind::ToolFinished {
                teammate: bob.clone(),
                task: None,
                tool: "bash".into(),
                call: "c".into(),
                ok: false,
                not_made: false,
                ms: 12_000,
                reason: Some("exit status 1: docs/z.txt: Read-only file system".into()),
            },
            EventKind::ModelRetried { teammate: alice.clone(), reason: "429".into(), wait_ms: 2_000, retries: 1 },
            switched(&alice, "m-1 of openai", "m-2 of ollama", Some("429")),
            switched(&alice, "m-2 of ollama", "m-1 of openai", None),
            EventKind::TaskChanged { task: TaskId(14), status: "pending".into(), by: "human".into() },
            EventKind::TaskChanged { task: TaskId(12), status: "pending".into(), by: "human".into() },
            EventKind::of_notice("disk", Notice::warning("nearly full")),
            EventKind::ModeChanged { desired: Mode::Pause, current: Mode::RunOnce, note: String::new() },
            EventKind::TeammateStopped { teammate: alice, reason: String::new(), is_dead: false },
            EventKind::TeammateStopped { teammate: bob, reason: String::new(), is_dead: false },
            EventKind::TeammateStopped { teammate: "carol".into(), reason: "it panicked".into(), is_dead: true },
            EventKind::TeamStopped { team: "my-team".into(), reason: "done".into() },
        ]
    }

    fn rendered(columns: usize) -> String {
        let mut timeline = Timeline::new(columns, false);
        let mut out: String = events().iter().map(|event| timeline.push(event)).collect();
        out.push_str(&timeline.finish());
        anstream::adapter::strip_str(&out).to_string()
    }

    #[test]
    fn timeline_prints_run_line_by_line() {
        insta::assert_snapshot!(format!("{}---\n{}---\n{}", rendered(100), rendered(40), rendered(24)));
    }

    #[test]
    fn failed_task_line_counts_failed_attempts() {
        let kind = EventKind::TaskFailed {
            task: TaskId(1),
            attempt: 8,
            teammate: "bob".into(),
            reason: "no".into(),
            by: None,
        };
        let row = TaskSnapshot { failures: 3, ..TaskSnapshot::new(TaskId(1), "Count") };
        let event = Event { row: Some(Arc::new(row)), ..NewEvent::from(kind).number(1, UnixMs(5)) };
        let line = anstream::adapter::strip_str(&Timeline::new(80, false).push(&event)).to_string();
        assert!(line.contains("#1 failed after 3 failed attempts: no"), "{line}");
    }

    #[test]
    fn timeline_prints_session_end_and_report_once() {
        let said = |text: &str| EventKind::Said { teammate: LEAD.into(), task: None, text: text.into() };
        let over = EventKind::SessionFinished {
            session: 1,
            summary: "All is done. The next session is due.".into(),
            outcome: Some("3 completed, 2 failed (#2, #3)".into()),
            error: Some("The next session is due.".into()),
            tally: crate::domain::log::event::TaskCounts::default(),
            goal: None,
        };
        let printed = |kinds: &[&EventKind]| {
            let mut timeline = Timeline::new(200, false);
            let mut out = String::new();
            for (seq, kind) in kinds.iter().enumerate() {
                out += &timeline.push(&NewEvent::from((*kind).clone()).number(seq as u64, UnixMs(5)));
            }
            anstream::adapter::strip_str(&(out + &timeline.finish())).to_string()
        };
        let end = "session 1 is over: 3 completed, 2 failed (#2, #3).";
        let before = " 0:00  lead  says: All is done.\n";
        let rest = format!("{before} 0:00  team  {end} The next session is due.\n");
        assert_eq!(printed(&[&said("All is done."), &over]), rest);
        let whole = format!(" 0:00  team  {end} The lead says: All is done. The next session is due.\n");
        assert_eq!(printed(&[&over]), whole, "the text was not shown before");
        let started = EventKind::SessionStarted { session: 1, mode: Mode::Continuous };
        let next = printed(&[&said("All is done."), &started, &over]);
        assert!(next.ends_with(&whole), "the text was of the session before: {next}");
        let mut timeline = Timeline::new(200, false);
        timeline.record_shown_lead_text();
        let end = NewEvent::from(over).number(1, UnixMs(5));
        assert!(!timeline.push(&end).contains("The lead says"), "the text was shown elsewhere");
    }

    #[test]
    fn lead_text_is_printed_in_full() {
        let text = "## Answer\n\nYes, *of course*:\n\n- `main.rs` has 3 lines\n- one more\n";
        let said = |teammate: &str| {
            let kind = EventKind::Said { teammate: teammate.into(), task: None, text: text.into() };
            NewEvent::from(kind).number(1, UnixMs(5))
        };
        let printed = |renders_markdown: bool, teammate: &str| {
            let lines = Timeline::new(60, renders_markdown).push(&said(teammate));
            anstream::adapter::strip_str(&lines).to_string()
        };
        insta::assert_snapshot!(format!(
            "{}---\n{}---\n{}",
            printed(false, LEAD),
            printed(true, LEAD),
            printed(true, "bob")
        ));
    }

    #[test]
    fn change_without_known_actor_comes_from_outside() {
        let (task, status, by) = (TaskId(3), "failed".to_owned(), UNKNOWN_ACTOR.to_owned());
        let mut timeline = Timeline::new(80, false);
        let event = NewEvent::from(EventKind::TaskChanged { task, status, by }).number(1, UnixMs(0));
        let line = timeline.push(&event) + &timeline.finish();
        assert!(anstream::adapter::strip_str(&line).to_string().contains("outside  sets #3 to failed"), "{line}");
    }

    #[test]
    fn name_of_sender_is_not_cut() {
        let mut timeline = Timeline::new(80, false);
        timeline.add_members(["ann"]);
        let [from, to, message, about] = ["human", "ann", "m-1", "Hello"].map(str::to_owned);
        let event =
            NewEvent::from(EventKind::MessageSent { from, to, message, about, task: None }).number(1, UnixMs(0));
        let line = timeline.push(&event) + &timeline.finish();
        assert!(anstream::adapter::strip_str(&line).to_string().contains("human  to ann: Hello"), "{line}");
    }

    #[test]
    fn timeline_prints_verify_failure_once() {
        let tool_finished = |tool: &str, reason: Option<&str>| {
            let (teammate, task, tool, call) = ("bob".to_owned(), None, tool.to_owned(), "c".to_owned());
            let (reason, about) = (reason.map(str::to_owned), String::new());
            match reason {
                None => EventKind::ToolStarted { teammate, task, tool, call, about },
                Some(_) => {
                    EventKind::ToolFinished { teammate, task, tool, call, ok: false, not_made: false, ms: 5, reason }
                }
            }
        };
        let red = "exit status 1: assert 1+1==3 / AssertionError";
        let kinds = [
            tool_finished("task_update", None),
            tool_finished("verify", Some(red)),
            tool_finished("merge", Some(red)),
            tool_finished("task_update", Some("verify failed")),
            tool_finished("task_update", None),
            tool_finished("merge", Some("its branch and main conflict in a.py")),
            tool_finished("task_update", Some("it is not merged")),
            tool_finished("task_update", None),
            tool_finished("task_update", Some("task #9 is not yours")),
        ];
        let mut timeline = Timeline::new(80, false);
        let printed: String =
            kinds.into_iter().map(|kind| timeline.push(&NewEvent::from(kind).number(1, UnixMs(0)))).collect();
        insta::assert_snapshot!(anstream::adapter::strip_str(&printed).to_string());
    }

    proptest! {
        #[test]
        fn timeline_lines_fit_terminal_width(columns in 1_usize..120) {
            for line in rendered(columns).lines() {
                prop_assert!(width(line) <= columns, "{line:?}");
            }
        }
    }
}
