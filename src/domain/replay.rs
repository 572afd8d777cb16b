//! Replay of a run's events: the board and team after an event follow from the state before it and the event alone.
//!
//! Events for people describe most changes. `board` and `team` lines add the rest, and repeat the full state at times. A log
//! without its beginning is therefore complete from the next full state on. Logs without such lines give a partial state.

use std::collections::BTreeMap;
use std::sync::Arc;

use indexmap::IndexMap;

use super::event::{Event, EventKind, InvalidFileSnapshot, TeamSnapshot};
use super::snapshot::{MemberSnapshot, TaskClaimSnapshot, TaskSnapshot, bounded_text, summary_line};
use super::state::Mode;
use super::task::{TaskId, TaskStatus};
use super::time::UnixMs;

/// Maximum number of snapshots in one line of the log.
pub const ROWS_PER_LINE_MAX: usize = 100;
/// Maximum number of invalid task files in one line of the log.
const INVALID_FILES_MAX: usize = 100;

/// The known part of the board.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Completeness {
    /// The tasks of the events since the first available one.
    #[default]
    SinceFirstEvent,
    /// A part of a full board; this many tasks are still to come.
    Partial(u64),
    /// The full board.
    Complete,
}

/// The board and team after one event of a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Replay {
    /// Number of the first applied event.
    pub first_seq: Option<u64>,
    /// Number of the last applied event.
    pub seq: u64,
    /// Time of the last applied event.
    pub at: UnixMs,
    /// The team's name, desired and current state.
    pub team: TeamSnapshot,
    /// The reason of the team's end, after its end.
    pub stopped: Option<String>,
    /// The members in the order of their first event.
    pub members: IndexMap<String, MemberSnapshot>,
    /// The known part of the board.
    pub completeness: Completeness,
    /// True if the team's state comes from a full team line or from the run's start.
    pub is_team_complete: bool,
    /// The tasks. Successive states share unchanged tasks.
    pub tasks: Arc<BTreeMap<TaskId, Arc<TaskSnapshot>>>,
    /// Files that are not valid tasks.
    pub invalid_files: Vec<InvalidFileSnapshot>,
    /// The tasks read so far of a new full board.
    incoming_tasks: Option<BTreeMap<TaskId, Arc<TaskSnapshot>>>,
}

impl Replay {
    /// Returns the state after these events.
    #[must_use]
    pub fn of<'a>(events: impl IntoIterator<Item = &'a Event>) -> Self {
        let mut replay = Self::default();
        events.into_iter().for_each(|event| replay.apply(event));
        replay
    }

    /// Applies the next event.
    pub fn apply(&mut self, event: &Event) {
        self.first_seq.get_or_insert(event.seq);
        (self.seq, self.at) = (event.seq, event.at);
        self.apply_event(&event.kind, event.at);
    }

    /// Applies an event that has no number yet.
    pub fn apply_event(&mut self, fact: &EventKind, at: UnixMs) {
        match fact {
            EventKind::TeamStarted { team, members } => self.start(team, members, at),
            EventKind::TeamStopped { reason, .. } => {
                self.stopped = Some(reason.clone());
                self.team.current = Some(Mode::Pause);
            }
            EventKind::ModeChanged { desired, current, note } => {
                (self.team.desired, self.team.current) = (Some(*desired), Some(*current));
                self.team.note.clone_from(note);
            }
            EventKind::SessionStarted { session, mode } => {
                (self.team.session, self.team.current) = (Some(*session), Some(*mode));
            }
            EventKind::Board { tasks, spoiled, anew: is_snapshot, rest } => {
                self.apply_board(tasks, spoiled.as_deref(), *is_snapshot, *rest)
            }
            EventKind::Team { members, anew: team } => self.apply_team(members, team.as_ref()),
            other => {
                self.apply_task_event(other, at);
                self.apply_member_event(other, at);
            }
        }
    }

    fn start(&mut self, team: &str, members: &[String], at: UnixMs) {
        *self = Self { first_seq: self.first_seq, seq: self.seq, at, is_team_complete: true, ..Self::default() };
        self.team = TeamSnapshot { team: team.to_owned(), started: Some(at), ..TeamSnapshot::default() };
        for name in members {
            self.member(name).phase = "stopped".to_owned();
        }
    }

    fn apply_board(
        &mut self,
        tasks: &[Arc<TaskSnapshot>],
        spoiled: Option<&[InvalidFileSnapshot]>,
        is_snapshot: bool,
        rest: u64,
    ) {
        let rows = tasks.iter().map(|row| (row.task, Arc::clone(row)));
        if is_snapshot {
            self.incoming_tasks = Some(BTreeMap::new());
        }
        // A new full board replaces the known one when it is complete.
        if let Some(incoming_tasks) = &mut self.incoming_tasks {
            incoming_tasks.extend(rows);
            if rest > 0 {
                self.completeness = if self.completeness == Completeness::Complete {
                    Completeness::Complete
                } else {
                    Completeness::Partial(rest)
                };
                return;
            }
            self.tasks = Arc::new(self.incoming_tasks.take().unwrap_or_default());
            self.invalid_files = spoiled.unwrap_or_default().to_vec();
            self.completeness = Completeness::Complete;
            return;
        }
        if !tasks.is_empty() {
            self.board().extend(rows);
        }
        if let Some(spoiled) = spoiled {
            self.invalid_files = spoiled.to_vec();
            for file in spoiled {
                TaskId::from_file_name(&file.file).and_then(|id| self.board().remove(&id));
            }
        }
    }

    fn apply_team(&mut self, members: &[MemberSnapshot], team: Option<&TeamSnapshot>) {
        if let Some(team) = team {
            self.team = team.clone();
            self.is_team_complete = true;
            self.members.clear();
        }
        for row in members {
            let member = self.member(&row.name);
            let before = std::mem::replace(member, row.clone());
            if row.phase.is_empty() {
                (member.phase, member.task) = (before.phase, before.task);
                (member.attempt, member.since) = (before.attempt, before.since);
            }
        }
    }

    fn member(&mut self, name: &str) -> &mut MemberSnapshot {
        // The entry API would copy the name at each call.
        if !self.members.contains_key(name) {
            self.members.insert(name.to_owned(), MemberSnapshot { name: name.to_owned(), ..MemberSnapshot::default() });
        }
        &mut self.members[name]
    }

    fn board(&mut self) -> &mut BTreeMap<TaskId, Arc<TaskSnapshot>> {
        Arc::make_mut(&mut self.tasks)
    }

    fn task(&mut self, id: TaskId) -> &mut TaskSnapshot {
        Arc::make_mut(self.board().entry(id).or_insert_with(|| Arc::new(TaskSnapshot::new(id, ""))))
    }

    /// Returns the task, unless a later attempt is known. Late events of earlier attempts change nothing.
    fn task_in_attempt(&mut self, id: TaskId, attempt: u32) -> Option<&mut TaskSnapshot> {
        let row = self.task(id);
        if attempt < row.attempt {
            return None;
        }
        row.attempt = attempt;
        Some(row)
    }

    fn apply_task_event(&mut self, fact: &EventKind, at: UnixMs) {
        match fact {
            EventKind::TaskCreated { task, subject, .. } => {
                self.board().insert(*task, Arc::new(TaskSnapshot::new(*task, &bounded_text(subject))));
            }
            EventKind::TaskClaimed { task, attempt, teammate } => {
                let Some(row) = self.task_in_attempt(*task, *attempt) else { return };
                row.status = TaskStatus::InProgress;
                row.owner = Some(bounded_text(teammate));
                row.not_before = None;
                row.claim = Some(TaskClaimSnapshot { at, expires: None });
            }
            EventKind::TaskCompleted { task, attempt, teammate, .. } => {
                let Some(row) = self.task_in_attempt(*task, *attempt) else { return };
                row.status = TaskStatus::Completed;
                row.owner = Some(bounded_text(teammate));
                (row.claim, row.not_before) = (None, None);
                self.unblock(*task);
            }
            EventKind::TaskFailed { task, attempt, reason, .. } => {
                let Some(row) = self.task_in_attempt(*task, *attempt) else { return };
                row.status = TaskStatus::Failed;
                (row.claim, row.not_before) = (None, None);
                row.summary = summary_line(reason);
            }
            EventKind::TaskReleased { task, attempt, reason, not_before, .. } => {
                let Some(row) = self.task_in_attempt(*task, *attempt) else { return };
                row.status = TaskStatus::Pending;
                (row.owner, row.claim, row.not_before) = (None, None, *not_before);
                row.summary = summary_line(reason);
            }
            EventKind::TaskReclaimed { task, attempt, .. } => {
                let Some(row) = self.task_in_attempt(*task, *attempt) else { return };
                row.status = TaskStatus::Pending;
                (row.owner, row.claim, row.not_before) = (None, None, None);
            }
            EventKind::TaskChanged { task, status, .. } => {
                if let Some(status) = TaskStatus::from_word(status) {
                    self.task(*task).status = status;
                }
            }
            EventKind::TaskDeleted { task, .. } => {
                self.board().remove(task);
                self.unblock(*task);
            }
            _ => {}
        }
    }

    /// Removes a completed or deleted task from the blockers of others.
    fn unblock(&mut self, blocker: TaskId) {
        for row in self.board().values_mut().filter(|row| row.blocked_by.contains(&blocker)) {
            Arc::make_mut(row).blocked_by.retain(|id| *id != blocker);
        }
    }

    fn apply_member_event(&mut self, fact: &EventKind, at: UnixMs) {
        match fact {
            EventKind::TeammateSpawned { teammate, role } => {
                let member = self.member(teammate);
                member.role = bounded_text(role);
                member.set_phase("idle", None, at);
            }
            EventKind::TeammatePhase { teammate, phase, task, waiting_for } => {
                let attempt = task.and_then(|id| self.tasks.get(&id)).map(|row| row.attempt);
                let member = self.member(teammate);
                member.set_phase(phase, task.map(|task| (task, attempt)), at);
                member.waiting_for = waiting_for.as_ref().map(|reason| bounded_text(&reason.to_file_text()));
            }
            EventKind::TeammateRespawned { teammate, .. } => self.member(teammate).set_phase("idle", None, at),
            EventKind::TeammateStopped { teammate, is_dead, .. } => {
                let member = self.member(teammate);
                member.set_phase(if *is_dead { "dead" } else { "stopped" }, None, at);
                member.waiting_for = None;
            }
            EventKind::TurnFinished {
                teammate,
                input_tokens,
                output_tokens,
                cache_read_tokens,
                cache_write_tokens,
                ..
            } => {
                let used = [input_tokens, output_tokens, cache_read_tokens, cache_write_tokens];
                let member = self.member(teammate);
                member.tokens = used.into_iter().fold(member.tokens, |sum, tokens| sum.saturating_add(*tokens));
            }
            _ => {}
        }
    }

    /// Returns true if an event describes a change of the board.
    #[must_use]
    pub fn is_board_event(fact: &EventKind) -> bool {
        match fact {
            EventKind::Board { anew: is_snapshot, .. } => !is_snapshot,
            EventKind::TaskCreated { .. }
            | EventKind::TaskClaimed { .. }
            | EventKind::TaskCompleted { .. }
            | EventKind::TaskFailed { .. }
            | EventKind::TaskReleased { .. }
            | EventKind::TaskReclaimed { .. }
            | EventKind::TaskChanged { .. }
            | EventKind::TaskDeleted { .. } => true,
            _ => false,
        }
    }

    /// Returns the events that describe this whole state.
    #[must_use]
    pub fn snapshot_events(&self) -> Vec<EventKind> {
        let mut facts =
            vec![EventKind::Team { members: self.members.values().cloned().collect(), anew: Some(self.team.clone()) }];
        facts.extend(self.board_snapshot_events());
        facts
    }

    /// Returns the events that describe the whole board.
    #[must_use]
    pub fn board_snapshot_events(&self) -> Vec<EventKind> {
        let rows: Vec<Arc<TaskSnapshot>> = self.tasks.values().cloned().collect();
        let mut facts = Vec::with_capacity(rows.len() / ROWS_PER_LINE_MAX + 1);
        let mut rest = rows.len();
        let mut chunks = rows.chunks(ROWS_PER_LINE_MAX);
        let first = chunks.next().unwrap_or_default();
        for (index, chunk) in std::iter::once(first).chain(chunks).enumerate() {
            rest -= chunk.len();
            let has_files = rest == 0 && !self.invalid_files.is_empty();
            let spoiled = if has_files { Some(self.invalid_files.clone()) } else { None };
            facts.push(EventKind::Board { tasks: chunk.to_vec(), spoiled, anew: index == 0, rest: rest as u64 });
        }
        facts
    }

    /// Replaces the whole board.
    pub fn set_board(&mut self, rows: impl IntoIterator<Item = TaskSnapshot>, spoiled: Vec<InvalidFileSnapshot>) {
        self.tasks = Arc::new(rows.into_iter().map(|row| (row.task, Arc::new(row))).collect());
        self.invalid_files = spoiled;
        self.invalid_files.truncate(INVALID_FILES_MAX);
        self.completeness = Completeness::Complete;
    }

    /// Returns the events that correct this state for these members.
    #[must_use]
    pub fn team_repair_events(&self, rows: Vec<MemberSnapshot>) -> Vec<EventKind> {
        let differs =
            |row: &MemberSnapshot| self.members.get(&row.name).is_none_or(|known| known.reported() != row.reported());
        let rows: Vec<MemberSnapshot> = rows.into_iter().filter(differs).collect();
        rows.chunks(ROWS_PER_LINE_MAX).map(|rows| EventKind::Team { members: rows.to_vec(), anew: None }).collect()
    }

    /// Returns the events that correct this state for these tasks and invalid files; none if it is correct.
    #[must_use]
    pub fn board_repair_events(
        &self,
        rows: impl IntoIterator<Item = TaskSnapshot>,
        spoiled: impl IntoIterator<Item = InvalidFileSnapshot>,
    ) -> Vec<EventKind> {
        let differs = |row: &TaskSnapshot| self.tasks.get(&row.task).is_none_or(|known| !known.agrees_with(row));
        let rows: Vec<Arc<TaskSnapshot>> = rows.into_iter().filter(differs).map(Arc::new).collect();
        let spoiled: Vec<InvalidFileSnapshot> = spoiled.into_iter().take(INVALID_FILES_MAX).collect();
        let mut facts: Vec<EventKind> =
            rows.chunks(ROWS_PER_LINE_MAX).map(|tasks| board_event(tasks.to_vec(), None)).collect();
        if spoiled != self.invalid_files {
            facts.push(board_event(Vec::new(), Some(spoiled)));
        }
        facts
    }
}

fn board_event(tasks: Vec<Arc<TaskSnapshot>>, spoiled: Option<Vec<InvalidFileSnapshot>>) -> EventKind {
    EventKind::Board { tasks, spoiled, anew: false, rest: 0 }
}

impl MemberSnapshot {
    /// Returns the fields that come from reports.
    fn reported(&self) -> (&str, u64, u64, Option<&str>) {
        (&self.role, self.tokens, self.cost_usd.to_bits(), self.waiting_for.as_deref())
    }

    fn set_phase(&mut self, phase: &str, task: Option<(TaskId, Option<u32>)>, at: UnixMs) {
        if self.phase != phase {
            self.since = Some(at);
            phase.clone_into(&mut self.phase);
        }
        self.task = task.map(|(task, _)| task);
        self.attempt = task.and_then(|(_, attempt)| attempt);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn events(facts: &[EventKind]) -> Vec<Event> {
        let event = |(seq, fact): (u64, &EventKind)| Event {
            v: 1,
            seq,
            at: UnixMs(10 * seq.cast_signed()),
            kind: fact.clone(),
        };
        (1..).zip(facts).map(event).collect()
    }

    fn claimed(task: u64, attempt: u32, teammate: &str) -> EventKind {
        EventKind::TaskClaimed { task: TaskId(task), attempt, teammate: teammate.into() }
    }

    #[test]
    fn replay_reads_old_log_without_snapshots() {
        let sample = include_str!("../../tests/contracts/events.jsonl");
        let old: Vec<Event> = sample.lines().take(8).map(|line| serde_json::from_str(line).unwrap()).collect();
        let replay = Replay::of(&old[..4]);
        let row = &replay.tasks[&TaskId(3)];
        assert_eq!((row.status, row.owner.as_deref(), row.attempt), (TaskStatus::InProgress, Some("alice"), 1));
        assert_eq!((replay.members["alice"].phase.as_str(), replay.members["alice"].task), ("work", Some(TaskId(3))));
        assert_eq!(
            (replay.completeness, replay.members["bob"].phase.as_str()),
            (Completeness::SinceFirstEvent, "stopped")
        );
        let replay = Replay::of(&old);
        assert_eq!((replay.tasks[&TaskId(3)].status, replay.members["alice"].tokens), (TaskStatus::Completed, 953));
    }

    #[test]
    fn replay_is_complete_after_last_board_snapshot() {
        let mut whole = Replay::default();
        whole.set_board((1..=250).map(|id| TaskSnapshot::new(TaskId(id), "s")), Vec::new());
        let log = events(&whole.board_snapshot_events());
        let known: Vec<Completeness> = (1..=log.len()).map(|count| Replay::of(&log[..count]).completeness).collect();
        assert_eq!(known, [Completeness::Partial(150), Completeness::Partial(50), Completeness::Complete]);
        assert_eq!(Replay::of(&log).tasks, whole.tasks);
        // While a full board is repeated during a run, no task is missing.
        let again = events(&[whole.board_snapshot_events(), whole.board_snapshot_events()].concat());
        assert!((3..=6).all(|count| Replay::of(&again[..count]).tasks == whole.tasks));
    }

    #[test]
    fn replay_ignores_late_event_of_earlier_attempt() {
        let lost =
            EventKind::TaskReclaimed { task: TaskId(1), attempt: 1, teammate: "eve".into(), reason: String::new() };
        let replay = Replay::of(&events(&[claimed(1, 1, "eve"), claimed(1, 2, "bob"), lost]));
        assert_eq!(replay.tasks[&TaskId(1)].owner.as_deref(), Some("bob"));
    }

    #[test]
    fn replay_shows_malformed_file_until_repaired() {
        let mut replay = Replay::of(&events(&[claimed(1, 1, "eve"), claimed(2, 1, "bob")]));
        let spoiled = [InvalidFileSnapshot { file: "task_2.json".into(), reason: "torn".into() }];
        for fact in replay.board_repair_events([], spoiled.clone()) {
            replay.apply_event(&fact, UnixMs(1));
        }
        assert_eq!((replay.tasks.len(), &replay.invalid_files[..]), (1, &spoiled[..]));
        for fact in replay.board_repair_events([TaskSnapshot::new(TaskId(2), "repaired")], []) {
            replay.apply_event(&fact, UnixMs(2));
        }
        assert_eq!((replay.tasks.len(), replay.invalid_files.len()), (2, 0));
    }

    fn facts() -> impl Strategy<Value = Vec<EventKind>> {
        let (task, name) = (
            || (1_u64..6).prop_map(TaskId),
            || prop::sample::select(vec!["alice", "bob", "lead"]).prop_map(str::to_owned),
        );
        let row = (task(), 0_usize..4, prop::option::of(name()), 0_u32..4, prop::collection::vec(task(), 0..3))
            .prop_map(|(task, status, owner, attempt, blocked_by)| TaskSnapshot {
                status: TaskStatus::ALL[status],
                owner,
                attempt,
                blocked_by,
                ..TaskSnapshot::new(task, "s")
            });
        let fact = prop_oneof![
            (task(), name()).prop_map(|(task, by)| EventKind::TaskCreated { task, subject: "s".into(), by }),
            (task(), 1_u32..4, name()).prop_map(|(task, attempt, teammate)| EventKind::TaskClaimed {
                task,
                attempt,
                teammate
            }),
            (task(), 1_u32..4, name()).prop_map(|(task, attempt, teammate)| EventKind::TaskCompleted {
                task,
                attempt,
                teammate,
                evidence: String::new()
            }),
            (task(), name()).prop_map(|(task, by)| EventKind::TaskDeleted { task, by }),
            prop::collection::vec(row.prop_map(Arc::new), 0..4).prop_map(|tasks| board_event(tasks, None)),
            (name(), prop::option::of(task())).prop_map(|(teammate, task)| EventKind::TeammatePhase {
                teammate,
                phase: "work".into(),
                task,
                waiting_for: None
            }),
            name().prop_map(|teammate| EventKind::TeammateStopped { teammate, reason: String::new(), is_dead: false }),
            (name(), 0_u64..9).prop_map(|(name, tokens)| EventKind::Team {
                members: vec![MemberSnapshot { name, tokens, ..MemberSnapshot::default() }],
                anew: None
            }),
        ];
        prop::collection::vec(fact, 0..40)
    }

    proptest! {
        #[test]
        fn replay_from_snapshot_matches_full_replay(facts in facts(), cut in 0_usize..40) {
            let start = EventKind::TeamStarted { team: "crew".into(), members: vec!["alice".into(), "bob".into()] };
            let (before, after) = facts.split_at(cut.min(facts.len()));
            let mut before = [[start].as_slice(), before].concat();
            before.extend(Replay::of(&events(&before)).snapshot_events());
            let start = before.iter().position(|fact| matches!(fact, EventKind::Team { anew: Some(_), .. })).unwrap();
            let log = events(&[before.as_slice(), after].concat());
            let (whole, late) = (Replay::of(&log), Replay::of(&log[start..]));
            prop_assert_eq!(Replay { first_seq: None, ..late }, Replay { first_seq: None, ..whole });
        }

        #[test]
        fn replay_corrections_are_complete(facts in facts(), other in facts()) {
            let (mut replay, truth) = (Replay::of(&events(&facts)), Replay::of(&events(&other)));
            let rows = || truth.tasks.values().map(|row| TaskSnapshot::clone(row));
            for fact in replay.board_repair_events(rows(), []) {
                replay.apply_event(&fact, UnixMs(1));
            }
            prop_assert_eq!(replay.board_repair_events(rows(), []), Vec::new());
        }
    }
}
