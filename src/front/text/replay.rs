//! The view of board and team at one event of a run.

use std::fmt::Write as _;
use std::sync::Arc;

use super::lines::{cut, elapsed, wrap};
use super::style::{BOLD, DIM, WARN, paint};
use super::tasks;
use super::team;
use super::timeline::Timeline;
use crate::api::task::TaskContext;
use crate::api::team::{MemberView, TeamProcess, TeamState, TeamView, VisibleStatus};
use crate::domain::log::event::{Event, EventKind, InvalidFileSnapshot};
use crate::domain::log::replay::ReplayState;
use crate::domain::log::snapshot::{MemberSnapshot, TaskSnapshot};
use crate::domain::task::TaskId;
use crate::domain::team::budget::Budget;
use crate::domain::team::state::SetBy;
use crate::domain::team::waiting_for::WaitingFor;
use crate::domain::text::one_line;
use crate::domain::text::units::count;
use crate::domain::time::UnixMs;
use crate::ports::{BoardView, InvalidEntry};

/// Changes of one event that are listed; the rest are counted.
const CHANGES_MAX: usize = 6;

/// The label of sentences about missing information.
const NOT_KNOWN: &str = "not known:";

/// The run that is replayed.
#[derive(Debug, Clone, Copy)]
pub struct ReplayPosition<'a> {
    /// Its number; 1 is the newest.
    pub run: usize,
    pub team: &'a str,
    pub began: UnixMs,
    /// The number of its last event.
    pub last: u64,
}

/// Returns the board at the replayed moment, without the tasks whose files were invalid.
pub fn board(replay: &ReplayState) -> BoardView {
    let invalid_entry = |row: &InvalidFileSnapshot| InvalidEntry {
        id: TaskId::from_file_name(&row.file),
        name: row.file.clone(),
        reason: row.reason.clone(),
    };
    let mut view = BoardView {
        tasks: replay.tasks.iter().map(|(id, row)| (*id, Arc::new(row.to_task()))).collect(),
        invalid: replay.invalid_files.iter().map(invalid_entry).collect(),
        ..BoardView::default()
    };
    for invalid in &replay.invalid_files {
        TaskId::from_file_name(&invalid.file).and_then(|id| view.tasks.remove(&id));
    }
    view
}

/// Returns the team at the replayed moment.
pub fn team(replay: &ReplayState, name: &str) -> TeamView {
    let subject = |member: &MemberSnapshot| Some(replay.tasks.get(&member.task?)?.subject.clone());
    let member = |row: &MemberSnapshot| MemberView {
        name: row.name.clone(),
        role: row.role.clone(),
        phase: row.phase,
        task: row.task,
        attempt: row.attempt,
        subject: subject(row),
        since: row.since,
        heartbeat: None,
        tokens: row.tokens,
        cost_usd: row.cost_usd,
        budget: Budget::default(),
        waiting_for: row.waiting_for.as_deref().map(WaitingFor::from_file_text),
        fallback: None,
    };
    TeamView {
        next: Vec::new(),
        team: name.to_owned(),
        state: TeamState {
            desired: replay.team.desired,
            current: replay.team.current,
            set_by: SetBy::default(),
            note: replay.stopped.clone().unwrap_or_else(|| replay.team.note.clone()),
        },
        task_counts: None,
        answers_needed: 0,
        waiting_for: None,
        process: TeamProcess { running: replay.stopped.is_none(), ..TeamProcess::default() },
        lead: None,
        members: replay.members.values().map(|row| member(row)).collect(),
    }
}

/// Returns the information that is missing, and why: one sentence each.
pub fn unknown(replay: &ReplayState) -> Vec<String> {
    let first = replay.first_seq.unwrap_or(1);
    let mut sentences = Vec::new();
    if first > 1 {
        let removed = if first == 2 { "event 1 was".to_owned() } else { format!("events 1 to {} were", first - 1) };
        sentences.push(format!("{removed} removed to limit the size of the log"));
    }
    if replay.lacks_rows {
        sentences.push("tasks and members that changed, because an older version wrote this log".to_owned());
    } else if !replay.has_whole_board {
        sentences.push(format!("tasks and members that have not changed since event {first}"));
    } else if replay.tasks_to_follow > 0 {
        let rest = usize::try_from(replay.tasks_to_follow).unwrap_or(usize::MAX);
        sentences.push(format!("the next events add {} of the board", count(rest, "task")));
    }
    sentences
}

/// Returns the lines of the timeline for the event. An event that the timeline skips has a sentence or its fields.
fn event_text(event: &Event, after: &ReplayState, began: UnixMs, columns: usize) -> String {
    let mut timeline = Timeline::new(columns, false);
    timeline.begin(began);
    timeline.add_members(after.members.keys().map(String::as_str));
    after.tasks.iter().for_each(|(id, row)| timeline.add_task(*id, &row.subject));
    let lines = timeline.push(event) + &timeline.finish();
    if lines.is_empty() { skipped_event(event, began, columns) } else { lines }
}

fn skipped_event(event: &Event, began: UnixMs, columns: usize) -> String {
    let text = match &event.kind {
        EventKind::Board { tasks, invalid_files: Some(files), is_full_board: false, .. } if tasks.is_empty() => {
            format!("the board: {}", count(files.len(), "invalid file"))
        }
        EventKind::Board { tasks, .. } => format!("the board: {}", count(tasks.len(), "row")),
        EventKind::Team { members, .. } => format!("the team: {}", count(members.len(), "row")),
        kind => fields(kind),
    };
    let line = format!("{}  {}", elapsed(event.at.since(began)), one_line(&text));
    paint(DIM, &cut(&line, columns)) + "\n"
}

/// Returns `task_changed task=3 status=pending`.
fn fields(kind: &EventKind) -> String {
    let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(kind) else { return String::new() };
    let mut text = fields.get("kind").and_then(|kind| kind.as_str()).unwrap_or_default().to_owned();
    for (name, value) in fields.iter().filter(|(name, value)| *name != "kind" && !value.is_null()) {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let _ = write!(text, " {name}={value}");
    }
    text
}

/// Returns the changes of board and team by the event: one line each.
fn changes(before: &ReplayState, after: &ReplayState) -> Vec<String> {
    let mut lines = Vec::new();
    if !Arc::ptr_eq(&before.tasks, &after.tasks) {
        for (id, row) in after.tasks.iter() {
            match before.tasks.get(id) {
                Some(old) if old == row => {}
                Some(old) => lines.push(format!("{id} {}", task_change(old, row))),
                None => lines.push(format!("{id} was added: {}", one_line(&row.subject))),
            }
        }
        let removed = before.tasks.keys().filter(|id| !after.tasks.contains_key(id));
        lines.extend(removed.map(|id| format!("{id} was removed")));
    }
    for (name, row) in &after.members {
        let old = before.members.get(name).map(|row| status(row));
        let new = status(row);
        if old.as_ref() != Some(&new) {
            let was = old.map(|old| format!(" (was {old})")).unwrap_or_default();
            lines.push(format!("{}: {new}{was}", one_line(name)));
        }
    }
    let more = lines.len().saturating_sub(CHANGES_MAX);
    lines.truncate(CHANGES_MAX);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

/// Returns `working on #3`.
fn status(row: &MemberSnapshot) -> String {
    let waiting_for = row.waiting_for.as_deref().map(WaitingFor::from_file_text);
    let word = VisibleStatus::of_phase(row.phase, waiting_for.as_ref()).word();
    match row.task {
        Some(task) => format!("{word} on {task}"),
        None => word.to_owned(),
    }
}

fn task_change(old: &TaskSnapshot, new: &TaskSnapshot) -> String {
    if (old.status, &old.owner, old.attempt) == (new.status, &new.owner, new.attempt) {
        return "was edited".to_owned();
    }
    let owner =
        |row: &TaskSnapshot| row.owner.as_ref().map(|owner| format!(" ({})", one_line(owner))).unwrap_or_default();
    format!("is {}{}, was {}{}", new.status, owner(new), old.status, owner(old))
}

/// Returns the event, its changes, the team and the board.
pub fn render(
    place: &ReplayPosition<'_>,
    event: &Event,
    before: &ReplayState,
    after: &ReplayState,
    columns: usize,
) -> String {
    let head = format!("event {} of {}", event.seq, place.last);
    let rest = format!(
        ", run {} of {}, {} after it began, {}",
        place.run,
        one_line(place.team),
        elapsed(event.at.since(place.began)).trim_start(),
        event.at.to_iso()
    );
    let mut out = format!(
        "{}{}\n",
        paint(BOLD, &cut(&head, columns)),
        paint(DIM, &cut(&rest, columns.saturating_sub(head.len())))
    );
    out += &event_text(event, after, place.began, columns);
    for line in changes(before, after) {
        let _ = writeln!(out, "{}", cut(&format!("  {line}"), columns));
    }
    for sentence in unknown(after) {
        let sentence = wrap(&format!("{NOT_KNOWN} {sentence}"), columns, 2);
        let (label, rest) = sentence.split_at(NOT_KNOWN.len());
        let _ = writeln!(out, "{}{rest}", paint(WARN, label));
    }
    out.push('\n');
    out += &team::render(&team(after, place.team), event.at, columns);
    let view = board(after);
    if !view.tasks.is_empty() {
        out.push('\n');
        let context = TaskContext::of(&view, event.at);
        out += &tasks::list(view.tasks.values().map(AsRef::as_ref), &context, columns);
    }
    let _ = writeln!(out, "{}", paint(DIM, &cut(&tasks::counts_text(&view), columns)));
    for line in view.invalid.iter().map(tasks::invalid_file_warning) {
        let _ = writeln!(out, "{line}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::log::event::NewEvent;
    use crate::domain::log::snapshot::TaskClaimSnapshot;
    use crate::domain::task::TaskStatus;
    use crate::domain::team::phase::ReportedPhase;
    use crate::domain::team::state::Mode;

    fn run() -> Vec<Event> {
        let (alice, bob) = ("alice".to_owned(), "bob".to_owned());
        let waiting = TaskSnapshot { blocked_by: vec![TaskId(1)], ..TaskSnapshot::new(TaskId(2), "Draw them") };
        let count = TaskSnapshot::new(TaskId(1), "Count");
        let claimed = TaskSnapshot {
            status: TaskStatus::InProgress,
            owner: Some(alice.clone()),
            attempt: 1,
            claim: Some(TaskClaimSnapshot { at: UnixMs(1_763_688_012_000), expires: None }),
            ..count.clone()
        };
        let done = TaskSnapshot { status: TaskStatus::Completed, claim: None, ..claimed.clone() };
        let phase = |teammate: &str, role: &str, phase: ReportedPhase, task: Option<TaskId>, since: i64| {
            let (teammate, role) = (teammate.to_owned(), role.to_owned());
            let (name, since) = (teammate.clone(), Some(UnixMs(1_763_688_000_000 + since)));
            let attempt = task.map(|_| 1);
            let row = MemberSnapshot { name, role, phase, task, attempt, since, ..MemberSnapshot::default() };
            NewEvent::with_member(
                EventKind::TeammatePhase { teammate, phase, task, waiting_for: None, wait: None },
                row,
            )
        };
        let rows = |rows: &[&TaskSnapshot], is_full_board| {
            let tasks = rows.iter().map(|row| Arc::new((*row).clone())).collect();
            EventKind::Board { tasks, invalid_files: None, is_full_board, tasks_to_follow: 0 }.into()
        };
        let changed =
            |kind: EventKind, row: &TaskSnapshot| NewEvent { row: Some(Arc::new(row.clone())), ..kind.into() };
        let evidence = "verify exited 0".to_owned();
        let events = vec![
            EventKind::TeamStarted { team: "crew".into(), members: vec![alice.clone(), bob] }.into(),
            rows(&[&count], true),
            phase("alice", "coder", ReportedPhase::Idle, None, 4500),
            phase("bob", "artist", ReportedPhase::Idle, None, 6000),
            EventKind::ModeChanged { desired: Mode::RunOnce, current: Mode::Pause, note: String::new() }.into(),
            changed(
                EventKind::TaskCreated { task: TaskId(2), subject: "Draw them".into(), by: "lead".into() },
                &TaskSnapshot::new(TaskId(2), "Draw them"),
            ),
            rows(&[&waiting], false),
            changed(EventKind::TaskClaimed { task: TaskId(1), attempt: 1, teammate: alice.clone() }, &claimed),
            phase("alice", "coder", ReportedPhase::Work, Some(TaskId(1)), 13_500),
            EventKind::TurnStarted { teammate: alice.clone(), task: Some(TaskId(1)) }.into(),
            changed(
                EventKind::TaskCompleted {
                    task: TaskId(1),
                    attempt: 1,
                    teammate: alice,
                    evidence,
                    unverified: false,
                    nothing_ran: false,
                },
                &done,
            ),
            phase("alice", "coder", ReportedPhase::Work, None, 13_500),
        ];
        let at = |seq: u64| UnixMs(1_763_688_000_000 + 1500 * seq.cast_signed());
        (1..).zip(events).map(|(seq, event)| event.number(seq, at(seq))).collect()
    }

    fn shown(events: &[Event], columns: usize) -> String {
        let (last, before) = events.split_last().unwrap();
        let place = ReplayPosition { run: 2, team: "crew", began: run()[0].at, last: 12 };
        let text = render(&place, last, &ReplayState::of(before), &ReplayState::of(events), columns);
        anstream::adapter::strip_str(&text).to_string()
    }

    #[test]
    fn replay_view_shows_changes_of_event() {
        let run = run();
        insta::assert_snapshot!(format!(
            "{}---\n{}---\n{}",
            shown(&run[..9], 100),
            shown(&run[..11], 100),
            shown(&run[..10], 50)
        ));
    }

    #[test]
    fn replay_view_names_missing_information() {
        let run = run();
        assert_eq!(unknown(&ReplayState::of(&run)), Vec::<String>::new());
        let truncated = unknown(&ReplayState::of(&run[7..]));
        assert_eq!(truncated.len(), 2, "{truncated:?}");
        assert!(truncated[0].contains("events 1 to 7 were removed"), "{truncated:?}");
        let old = run.into_iter().map(|event| Event { row: None, ..event });
        let old = unknown(&ReplayState::of(&old.collect::<Vec<_>>()));
        assert_eq!((old.len(), old[0].contains("an older version wrote this log")), (1, true), "{old:?}");
    }
}
