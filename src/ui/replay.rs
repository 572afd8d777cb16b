//! Board and team at an event of a run, as people read them.

use std::fmt::Write as _;
use std::sync::Arc;

use super::style::{BOLD, DIM, WARN, paint};
use super::tasks::{self, Look};
use super::team::{self, MemberView, TeamView};
use super::text::{count, cut, one_line, reason, wrap};
use super::timeline::{Timeline, elapsed};
use crate::domain::event::{Event, Fact};
use crate::domain::replay::{Known, Replay};
use crate::domain::row::{MemberRow, TaskRow};
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::domain::time::UnixMs;
use crate::domain::waiting_for::WaitingFor;
use crate::ports::{BoardView, SpoiledFile};

/// Changes of one event that are told; more are counted.
const CHANGES_MAX: usize = 6;

/// What stands before what cannot be known of a moment.
const NOT_KNOWN: &str = "not known:";

/// A run that is looked at.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Its number; 1 is the newest.
    pub run: usize,
    /// Its team.
    pub team: &'a str,
    /// When it began.
    pub began: UnixMs,
    /// The last event of it.
    pub last: u64,
}

/// The board as it was.
#[must_use]
pub fn board(replay: &Replay) -> BoardView {
    let spoiled = replay.spoiled.iter();
    BoardView {
        tasks: replay.tasks.iter().map(|(id, row)| (*id, Arc::new(row.to_task()))).collect(),
        spoiled: spoiled.map(|row| SpoiledFile { file: row.file.clone(), reason: row.reason.clone() }).collect(),
        ..BoardView::default()
    }
}

/// The team as it was.
#[must_use]
pub fn team(replay: &Replay, name: &str) -> TeamView {
    let subject = |member: &MemberRow| Some(replay.tasks.get(&member.task?)?.subject.clone());
    let member = |row: &MemberRow| MemberView {
        name: row.name.clone(),
        role: row.role.clone(),
        phase: row.phase.clone(),
        task: row.task,
        attempt: row.attempt,
        subject: subject(row),
        since: row.since,
        heartbeat: None,
        tokens: row.tokens,
        cost_usd: row.cost_usd,
        waiting_for: row.waiting_for.as_deref().map(WaitingFor::from_file_text),
    };
    TeamView {
        team: name.to_owned(),
        desired_state: replay.team.desired,
        current_state: replay.team.current,
        set_by: String::new(),
        note: replay.stopped.clone().unwrap_or_else(|| replay.team.note.clone()),
        running: replay.stopped.is_none(),
        pid: None,
        silent_ms: None,
        suspended: false,
        lead: None,
        members: replay.members.values().map(member).collect(),
    }
}

/// What cannot be known of this moment, and why: a sentence each.
#[must_use]
pub fn unknown(replay: &Replay) -> Vec<String> {
    let first = replay.first_seq.unwrap_or(1);
    let mut sentences = Vec::new();
    if first > 1 {
        let gone = if first == 2 { "event 1 is".to_owned() } else { format!("events 1 to {} are", first - 1) };
        sentences.push(format!("{gone} gone: the log has grown large since"));
    }
    let why = if first > 1 { "the next event that tells all of it is still to come" } else { "this log does not say" };
    match replay.known {
        Known::Wholly => {}
        Known::Growing(rest) => sentences.push(format!(
            "{} of the board are told by the next events",
            count(usize::try_from(rest).unwrap_or(usize::MAX), "task")
        )),
        Known::SinceFirst => {
            sentences.push(format!("of the board only what happened since event {first} is known: {why}"))
        }
    }
    if !replay.team_is_known {
        sentences.push(format!("of the team only what happened since event {first} is known: {why}"));
    }
    sentences
}

/// What happened at the event: as the timeline tells it, or for what that passes over the bare facts.
#[must_use]
pub fn happened(event: &Event, after: &Replay, began: UnixMs, columns: usize) -> String {
    let mut timeline = Timeline::new(columns);
    timeline.begin(began);
    timeline.know(after.members.keys().map(String::as_str));
    after.tasks.iter().for_each(|(id, row)| timeline.learn(*id, &row.subject));
    let told = timeline.push(event) + &timeline.finish();
    if told.is_empty() { bare(event, began, columns) } else { told }
}

fn bare(event: &Event, began: UnixMs, columns: usize) -> String {
    let what = match &event.fact {
        Fact::Board { tasks, anew: true, rest, .. } if *rest == 0 => {
            format!("the whole board is told: {}", count(tasks.len(), "task"))
        }
        Fact::Board { tasks, .. } => format!("the board is told of {}", count(tasks.len(), "task")),
        Fact::Team { anew: Some(_), .. } => "the whole team is told".to_owned(),
        fact => facts(fact),
    };
    let line = format!("{}  {}", elapsed(event.at.since(began)), one_line(&what));
    paint(DIM, &cut(&line, columns)) + "\n"
}

/// `turn_started teammate=alice task=3`.
fn facts(fact: &Fact) -> String {
    let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(fact) else { return String::new() };
    let mut text = fields.get("kind").and_then(|kind| kind.as_str()).unwrap_or_default().to_owned();
    for (name, value) in fields.iter().filter(|(name, value)| *name != "kind" && !value.is_null()) {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let _ = write!(text, " {name}={value}");
    }
    text
}

/// What is other on board and in team than before the event: a line each.
#[must_use]
pub fn changes(before: &Replay, after: &Replay) -> Vec<String> {
    let mut lines = Vec::new();
    for (id, row) in after.tasks.iter().filter(|_| !Arc::ptr_eq(&before.tasks, &after.tasks)) {
        match before.tasks.get(id) {
            Some(old) if Arc::ptr_eq(old, row) => {}
            Some(old) => lines.extend(changed(old, row).map(|what| format!("{id} {what}"))),
            None => lines.push(format!("{id} is on the board: {}", one_line(&row.subject))),
        }
    }
    lines.extend(
        before.tasks.keys().filter(|id| !after.tasks.contains_key(id)).map(|id| format!("{id} is not on the board")),
    );
    for (name, row) in &after.members {
        let stands = |row: &MemberRow| match row.task {
            Some(task) => format!("{} on {task}", row.phase),
            None => row.phase.clone(),
        };
        let old = before.members.get(name).map(stands);
        if old.as_deref() != Some(stands(row).as_str()) {
            let was = old.filter(|old| !old.is_empty()).map(|old| format!(", was {old}")).unwrap_or_default();
            lines.push(format!("{} is {}{was}", one_line(name), one_line(&stands(row))));
        }
    }
    let more = lines.len().saturating_sub(CHANGES_MAX);
    lines.truncate(CHANGES_MAX);
    lines.extend((more > 0).then(|| format!("and {more} more")));
    lines
}

/// What is other about a task, where people would see it.
fn changed(old: &TaskRow, new: &TaskRow) -> Option<String> {
    let owner = |row: &TaskRow| row.owner.as_ref().map(|owner| format!(" ({})", one_line(owner))).unwrap_or_default();
    let ids = |ids: &[TaskId]| {
        if ids.is_empty() {
            "nothing".to_owned()
        } else {
            ids.iter().map(TaskId::to_string).collect::<Vec<_>>().join(", ")
        }
    };
    if (old.status, &old.owner, old.attempt) != (new.status, &new.owner, new.attempt) {
        return Some(format!("is {}{}, was {}{}", new.status, owner(new), old.status, owner(old)));
    }
    if old.blocked_by != new.blocked_by {
        return Some(format!("waits for {}, did for {}", ids(&new.blocked_by), ids(&old.blocked_by)));
    }
    if old.failures != new.failures {
        return Some(format!("failed {} of {}", new.failures, new.max_attempts));
    }
    if old.summary != new.summary {
        return Some(format!("says: {}", reason(&new.summary)));
    }
    (!old.agrees_with(new)).then(|| "was edited".to_owned())
}

/// One moment: the event, what it changed, the team, the board. Of the board at most so many lines; what moves comes before what rests.
#[must_use]
pub fn render(
    place: &Place<'_>,
    event: &Event,
    before: &Replay,
    after: &Replay,
    columns: usize,
    lines_max: usize,
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
    out += &happened(event, after, place.began, columns);
    for line in changes(before, after) {
        let _ = writeln!(out, "{}", cut(&format!("  {line}"), columns));
    }
    for sentence in unknown(after) {
        let sentence = wrap(&format!("{NOT_KNOWN} {sentence}"), columns, 2);
        let _ = writeln!(out, "{}", sentence.replacen(NOT_KNOWN, &paint(WARN, NOT_KNOWN), 1));
    }
    out.push('\n');
    out += &team::render(&team(after, place.team), event.at, columns);
    let view = board(after);
    if !view.tasks.is_empty() {
        out.push('\n');
    }
    let room = lines_max.saturating_sub(out.lines().count() + 2).max(3);
    let shown = choose(&view, room);
    let look = Look { view: &view, live_workers: None, approvals: &[], now: event.at };
    if !shown.is_empty() {
        out += &tasks::list(shown.iter().copied(), &look, columns);
    }
    let hidden = view.tasks.len() - shown.len();
    let more = if hidden > 0 { format!("; {hidden} of them are not shown") } else { String::new() };
    let _ = writeln!(out, "{}", paint(DIM, &cut(&format!("{}{more}", tasks::tally(&view)), columns)));
    for line in tasks::spoiled(&view) {
        let _ = writeln!(out, "{line}");
    }
    out
}

/// As many tasks as there is room for, by their numbers: those at work first, then those that failed, wait, and are done.
fn choose(view: &BoardView, room: usize) -> Vec<&Task> {
    let mut tasks: Vec<&Task> = view.tasks.values().map(AsRef::as_ref).collect();
    if tasks.len() > room {
        let order = [TaskStatus::InProgress, TaskStatus::Failed, TaskStatus::Pending, TaskStatus::Completed];
        tasks.sort_by_key(|task| order.iter().position(|status| *status == task.status));
        tasks.truncate(room);
        tasks.sort_unstable_by_key(|task| task.id);
    }
    tasks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::state::Mode;

    fn run() -> Vec<Event> {
        let (alice, bob) = ("alice".to_owned(), "bob".to_owned());
        let waiting = TaskRow { blocked_by: vec![TaskId(1)], ..TaskRow::new(TaskId(2), "Draw them") };
        let phase = |teammate: &str, phase: &str, task| Fact::TeammatePhase {
            teammate: teammate.to_owned(),
            phase: phase.to_owned(),
            task,
            waiting_for: None,
        };
        let facts = vec![
            Fact::TeamStarted { team: "crew".into(), members: vec![alice.clone(), bob.clone()] },
            Fact::Board { tasks: vec![Arc::new(TaskRow::new(TaskId(1), "Count"))], spoiled: None, anew: true, rest: 0 },
            Fact::TeammateSpawned { teammate: alice.clone(), role: "coder".into() },
            Fact::TeammateSpawned { teammate: bob, role: "artist".into() },
            Fact::ModeChanged { desired: Mode::RunOnce, current: Mode::Pause, note: String::new() },
            Fact::TaskCreated { task: TaskId(2), subject: "Draw them".into(), by: "lead".into() },
            Fact::Board { tasks: vec![Arc::new(waiting)], spoiled: None, anew: false, rest: 0 },
            Fact::TaskClaimed { task: TaskId(1), attempt: 1, teammate: alice.clone() },
            phase("alice", "work", Some(TaskId(1))),
            Fact::TurnStarted { teammate: alice.clone(), task: Some(TaskId(1)) },
            Fact::TaskCompleted { task: TaskId(1), attempt: 1, teammate: alice, evidence: "verify exited 0".into() },
            phase("alice", "work", None),
        ];
        let at = |place: i64| UnixMs(1_763_688_000_000 + 1500 * place);
        (1..).zip(facts).map(|(seq, fact)| Event { v: 1, seq, at: at(i64::try_from(seq).unwrap()), fact }).collect()
    }

    fn shown(events: &[Event], columns: usize) -> String {
        let (last, before) = events.split_last().unwrap();
        let place = Place { run: 2, team: "crew", began: run()[0].at, last: 12 };
        let text = render(&place, last, &Replay::of(before), &Replay::of(events), columns, 40);
        anstream::adapter::strip_str(&text).to_string()
    }

    #[test]
    fn a_moment_is_shown_with_what_its_event_changed() {
        let run = run();
        insta::assert_snapshot!(format!(
            "{}---\n{}---\n{}",
            shown(&run[..9], 100),
            shown(&run[..11], 100),
            shown(&run[..10], 50)
        ));
    }

    #[test]
    fn what_is_not_known_is_said() {
        let run = run();
        assert_eq!(unknown(&Replay::of(&run)), Vec::<String>::new());
        let torn = unknown(&Replay::of(&run[7..]));
        assert_eq!(torn.len(), 3, "{torn:?}");
        assert!(torn[0].contains("events 1 to 7 are gone"), "{torn:?}");
        let old: Vec<Event> = run.iter().filter(|event| !matches!(event.fact, Fact::Board { .. })).cloned().collect();
        assert!(unknown(&Replay::of(&old))[0].contains("this log does not say"));
    }

    #[test]
    fn a_large_board_shows_what_moves() {
        let mut replay = Replay::of(&run());
        for id in 3..500 {
            let status = if id == 444 { TaskStatus::InProgress } else { TaskStatus::Completed };
            Arc::make_mut(&mut replay.tasks)
                .insert(TaskId(id), Arc::new(TaskRow { status, ..TaskRow::new(TaskId(id), "s") }));
        }
        let view = board(&replay);
        let chosen: Vec<u64> = choose(&view, 5).iter().map(|task| task.id.0).collect();
        assert_eq!(chosen, [1, 2, 3, 4, 444]);
    }
}
