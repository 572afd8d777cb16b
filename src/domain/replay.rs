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
pub const SNAPSHOTS_PER_LINE_MAX: usize = 100;
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
pub struct ReplayState {
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

impl ReplayState {
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
    pub fn apply_event(&mut self, event: &EventKind, at: UnixMs) {
        match event {
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
            EventKind::Board { tasks, invalid_files, is_full_board, tasks_to_follow } => {
                self.apply_board(tasks, invalid_files.as_deref(), *is_full_board, *tasks_to_follow)
            }
            EventKind::Team { members, full_team } => self.apply_team(members, full_team.as_ref()),
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
        invalid_files: Option<&[InvalidFileSnapshot]>,
        is_full_board: bool,
        tasks_to_follow: u64,
    ) {
        let snapshots = tasks.iter().map(|snapshot| (snapshot.task, Arc::clone(snapshot)));
        if is_full_board {
            self.incoming_tasks = Some(BTreeMap::new());
        }
        // A new full board replaces the old one when it is complete.
        if let Some(incoming_tasks) = &mut self.incoming_tasks {
            incoming_tasks.extend(snapshots);
            if tasks_to_follow > 0 {
                if self.completeness != Completeness::Complete {
                    self.completeness = Completeness::Partial(tasks_to_follow);
                }
                return;
            }
            self.tasks = Arc::new(self.incoming_tasks.take().unwrap_or_default());
            self.invalid_files = invalid_files.unwrap_or_default().to_vec();
            self.completeness = Completeness::Complete;
            return;
        }
        if !tasks.is_empty() {
            self.board().extend(snapshots);
        }
        if let Some(invalid_files) = invalid_files {
            self.invalid_files = invalid_files.to_vec();
            for invalid in invalid_files {
                TaskId::from_file_name(&invalid.file).and_then(|id| self.board().remove(&id));
            }
        }
    }

    fn apply_team(&mut self, members: &[MemberSnapshot], team: Option<&TeamSnapshot>) {
        if let Some(team) = team {
            self.team = team.clone();
            self.is_team_complete = true;
            self.members.clear();
        }
        for snapshot in members {
            let member = self.member(&snapshot.name);
            let before = std::mem::replace(member, snapshot.clone());
            if snapshot.phase.is_empty() {
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
        let snapshot = self.task(id);
        if attempt < snapshot.attempt {
            return None;
        }
        snapshot.attempt = attempt;
        Some(snapshot)
    }

    fn apply_task_event(&mut self, event: &EventKind, at: UnixMs) {
        match event {
            EventKind::TaskCreated { task, subject, .. } => {
                self.board().insert(*task, Arc::new(TaskSnapshot::new(*task, &bounded_text(subject))));
            }
            EventKind::TaskClaimed { task, attempt, teammate } => {
                let Some(snapshot) = self.task_in_attempt(*task, *attempt) else { return };
                snapshot.status = TaskStatus::InProgress;
                snapshot.owner = Some(bounded_text(teammate));
                snapshot.not_before = None;
                snapshot.claim = Some(TaskClaimSnapshot { at, expires: None });
            }
            EventKind::TaskCompleted { task, attempt, teammate, .. } => {
                let Some(snapshot) = self.task_in_attempt(*task, *attempt) else { return };
                snapshot.status = TaskStatus::Completed;
                snapshot.owner = Some(bounded_text(teammate));
                (snapshot.claim, snapshot.not_before) = (None, None);
                self.unblock(*task);
            }
            EventKind::TaskFailed { task, attempt, reason, .. } => {
                let Some(snapshot) = self.task_in_attempt(*task, *attempt) else { return };
                snapshot.status = TaskStatus::Failed;
                (snapshot.claim, snapshot.not_before) = (None, None);
                snapshot.summary = summary_line(reason);
            }
            EventKind::TaskReleased { task, attempt, reason, not_before, .. } => {
                let Some(snapshot) = self.task_in_attempt(*task, *attempt) else { return };
                snapshot.status = TaskStatus::Pending;
                (snapshot.owner, snapshot.claim, snapshot.not_before) = (None, None, *not_before);
                snapshot.summary = summary_line(reason);
            }
            EventKind::TaskReclaimed { task, attempt, .. } => {
                let Some(snapshot) = self.task_in_attempt(*task, *attempt) else { return };
                snapshot.status = TaskStatus::Pending;
                (snapshot.owner, snapshot.claim, snapshot.not_before) = (None, None, None);
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
        for snapshot in self.board().values_mut().filter(|snapshot| snapshot.blocked_by.contains(&blocker)) {
            Arc::make_mut(snapshot).blocked_by.retain(|id| *id != blocker);
        }
    }

    fn apply_member_event(&mut self, event: &EventKind, at: UnixMs) {
        match event {
            EventKind::TeammateSpawned { teammate, role } => {
                let member = self.member(teammate);
                member.role = bounded_text(role);
                member.set_phase("idle", None, at);
            }
            EventKind::TeammatePhase { teammate, phase, task, waiting_for } => {
                let attempt = task.and_then(|id| self.tasks.get(&id)).map(|snapshot| snapshot.attempt);
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
    pub fn is_board_event(event: &EventKind) -> bool {
        match event {
            EventKind::Board { is_full_board, .. } => !is_full_board,
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
        let mut events = vec![EventKind::Team {
            members: self.members.values().cloned().collect(),
            full_team: Some(self.team.clone()),
        }];
        events.extend(self.board_snapshot_events());
        events
    }

    /// Returns the events that describe the whole board.
    #[must_use]
    pub fn board_snapshot_events(&self) -> Vec<EventKind> {
        let snapshots: Vec<Arc<TaskSnapshot>> = self.tasks.values().cloned().collect();
        let mut events = Vec::with_capacity(snapshots.len() / SNAPSHOTS_PER_LINE_MAX + 1);
        let mut tasks_to_follow = snapshots.len();
        let mut chunks = snapshots.chunks(SNAPSHOTS_PER_LINE_MAX);
        let first = chunks.next().unwrap_or_default();
        for (index, chunk) in std::iter::once(first).chain(chunks).enumerate() {
            tasks_to_follow -= chunk.len();
            let has_files = tasks_to_follow == 0 && !self.invalid_files.is_empty();
            let invalid_files = if has_files { Some(self.invalid_files.clone()) } else { None };
            events.push(EventKind::Board {
                tasks: chunk.to_vec(),
                invalid_files,
                is_full_board: index == 0,
                tasks_to_follow: tasks_to_follow as u64,
            });
        }
        events
    }

    /// Replaces the whole board.
    pub fn set_board(
        &mut self,
        snapshots: impl IntoIterator<Item = TaskSnapshot>,
        invalid_files: Vec<InvalidFileSnapshot>,
    ) {
        self.tasks = Arc::new(snapshots.into_iter().map(|snapshot| (snapshot.task, Arc::new(snapshot))).collect());
        self.invalid_files = invalid_files;
        self.invalid_files.truncate(INVALID_FILES_MAX);
        self.completeness = Completeness::Complete;
    }

    /// Returns the events that correct this state for these members; none if it is correct.
    #[must_use]
    pub fn team_repair_events(&self, snapshots: Vec<MemberSnapshot>) -> Vec<EventKind> {
        let differs = |snapshot: &MemberSnapshot| {
            self.members.get(&snapshot.name).is_none_or(|recorded| recorded.reported() != snapshot.reported())
        };
        let snapshots: Vec<MemberSnapshot> = snapshots.into_iter().filter(differs).collect();
        snapshots
            .chunks(SNAPSHOTS_PER_LINE_MAX)
            .map(|snapshots| EventKind::Team { members: snapshots.to_vec(), full_team: None })
            .collect()
    }

    /// Returns the events that correct this state for these tasks and invalid files; none if it is correct.
    #[must_use]
    pub fn board_repair_events(
        &self,
        snapshots: impl IntoIterator<Item = TaskSnapshot>,
        invalid_files: impl IntoIterator<Item = InvalidFileSnapshot>,
    ) -> Vec<EventKind> {
        let differs = |snapshot: &TaskSnapshot| {
            self.tasks.get(&snapshot.task).is_none_or(|recorded| !recorded.agrees_with(snapshot))
        };
        let snapshots: Vec<Arc<TaskSnapshot>> = snapshots.into_iter().filter(differs).map(Arc::new).collect();
        let invalid_files: Vec<InvalidFileSnapshot> = invalid_files.into_iter().take(INVALID_FILES_MAX).collect();
        let mut events: Vec<EventKind> =
            snapshots.chunks(SNAPSHOTS_PER_LINE_MAX).map(|tasks| board_event(tasks.to_vec(), None)).collect();
        if invalid_files != self.invalid_files {
            events.push(board_event(Vec::new(), Some(invalid_files)));
        }
        events
    }
}

fn board_event(tasks: Vec<Arc<TaskSnapshot>>, invalid_files: Option<Vec<InvalidFileSnapshot>>) -> EventKind {
    EventKind::Board { tasks, invalid_files, is_full_board: false, tasks_to_follow: 0 }
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

    fn numbered(kinds: &[EventKind]) -> Vec<Event> {
        let event = |(seq, kind): (u64, &EventKind)| Event {
            v: 1,
            seq,
            at: UnixMs(10 * seq.cast_signed()),
            kind: kind.clone(),
        };
        (1..).zip(kinds).map(event).collect()
    }

    fn claimed(task: u64, attempt: u32, teammate: &str) -> EventKind {
        EventKind::TaskClaimed { task: TaskId(task), attempt, teammate: teammate.into() }
    }

    #[test]
    fn replay_reads_old_log_without_snapshots() {
        let sample = include_str!("../../tests/contracts/events.jsonl");
        let old: Vec<Event> = sample.lines().take(8).map(|line| serde_json::from_str(line).unwrap()).collect();
        let replay = ReplayState::of(&old[..4]);
        let snapshot = &replay.tasks[&TaskId(3)];
        assert_eq!(
            (snapshot.status, snapshot.owner.as_deref(), snapshot.attempt),
            (TaskStatus::InProgress, Some("alice"), 1)
        );
        assert_eq!((replay.members["alice"].phase.as_str(), replay.members["alice"].task), ("work", Some(TaskId(3))));
        assert_eq!(
            (replay.completeness, replay.members["bob"].phase.as_str()),
            (Completeness::SinceFirstEvent, "stopped")
        );
        let replay = ReplayState::of(&old);
        assert_eq!((replay.tasks[&TaskId(3)].status, replay.members["alice"].tokens), (TaskStatus::Completed, 953));
    }

    #[test]
    fn replay_is_complete_after_last_board_snapshot() {
        let mut whole = ReplayState::default();
        whole.set_board((1..=250).map(|id| TaskSnapshot::new(TaskId(id), "s")), Vec::new());
        let log = numbered(&whole.board_snapshot_events());
        let completeness: Vec<Completeness> =
            (1..=log.len()).map(|count| ReplayState::of(&log[..count]).completeness).collect();
        assert_eq!(completeness, [Completeness::Partial(150), Completeness::Partial(50), Completeness::Complete]);
        assert_eq!(ReplayState::of(&log).tasks, whole.tasks);
        // While a full board is repeated during a run, no task is missing.
        let again = numbered(&[whole.board_snapshot_events(), whole.board_snapshot_events()].concat());
        assert!((3..=6).all(|count| ReplayState::of(&again[..count]).tasks == whole.tasks));
    }

    #[test]
    fn replay_ignores_late_event_of_earlier_attempt() {
        let lost =
            EventKind::TaskReclaimed { task: TaskId(1), attempt: 1, teammate: "eve".into(), reason: String::new() };
        let replay = ReplayState::of(&numbered(&[claimed(1, 1, "eve"), claimed(1, 2, "bob"), lost]));
        assert_eq!(replay.tasks[&TaskId(1)].owner.as_deref(), Some("bob"));
    }

    #[test]
    fn replay_shows_invalid_file_until_repaired() {
        let mut replay = ReplayState::of(&numbered(&[claimed(1, 1, "eve"), claimed(2, 1, "bob")]));
        let invalid_files = [InvalidFileSnapshot { file: "task_2.json".into(), reason: "torn".into() }];
        for event in replay.board_repair_events([], invalid_files.clone()) {
            replay.apply_event(&event, UnixMs(1));
        }
        assert_eq!((replay.tasks.len(), &replay.invalid_files[..]), (1, &invalid_files[..]));
        for event in replay.board_repair_events([TaskSnapshot::new(TaskId(2), "repaired")], []) {
            replay.apply_event(&event, UnixMs(2));
        }
        assert_eq!((replay.tasks.len(), replay.invalid_files.len()), (2, 0));
    }

    fn events() -> impl Strategy<Value = Vec<EventKind>> {
        let (task, name) = (
            || (1_u64..6).prop_map(TaskId),
            || prop::sample::select(vec!["alice", "bob", "lead"]).prop_map(str::to_owned),
        );
        let snapshot = (task(), 0_usize..4, prop::option::of(name()), 0_u32..4, prop::collection::vec(task(), 0..3))
            .prop_map(|(task, status, owner, attempt, blocked_by)| TaskSnapshot {
                status: TaskStatus::ALL[status],
                owner,
                attempt,
                blocked_by,
                ..TaskSnapshot::new(task, "s")
            });
        let event = prop_oneof![
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
            prop::collection::vec(snapshot.prop_map(Arc::new), 0..4).prop_map(|tasks| board_event(tasks, None)),
            (name(), prop::option::of(task())).prop_map(|(teammate, task)| EventKind::TeammatePhase {
                teammate,
                phase: "work".into(),
                task,
                waiting_for: None
            }),
            name().prop_map(|teammate| EventKind::TeammateStopped { teammate, reason: String::new(), is_dead: false }),
            (name(), 0_u64..9).prop_map(|(name, tokens)| EventKind::Team {
                members: vec![MemberSnapshot { name, tokens, ..MemberSnapshot::default() }],
                full_team: None
            }),
        ];
        prop::collection::vec(event, 0..40)
    }

    proptest! {
        #[test]
        fn replay_from_snapshot_matches_full_replay(events in events(), cut in 0_usize..40) {
            let start = EventKind::TeamStarted { team: "crew".into(), members: vec!["alice".into(), "bob".into()] };
            let (before, after) = events.split_at(cut.min(events.len()));
            let mut before = [[start].as_slice(), before].concat();
            before.extend(ReplayState::of(&numbered(&before)).snapshot_events());
            let start = before.iter().position(|event| matches!(event, EventKind::Team { full_team: Some(_), .. })).unwrap();
            let log = numbered(&[before.as_slice(), after].concat());
            let (whole, late) = (ReplayState::of(&log), ReplayState::of(&log[start..]));
            prop_assert_eq!(ReplayState { first_seq: None, ..late }, ReplayState { first_seq: None, ..whole });
        }

        #[test]
        fn replay_corrections_are_complete(events in events(), other in events()) {
            let (mut replay, truth) = (ReplayState::of(&numbered(&events)), ReplayState::of(&numbered(&other)));
            let snapshots = || truth.tasks.values().map(|snapshot| TaskSnapshot::clone(snapshot));
            for event in replay.board_repair_events(snapshots(), []) {
                replay.apply_event(&event, UnixMs(1));
            }
            prop_assert_eq!(replay.board_repair_events(snapshots(), []), Vec::new());
        }
    }
}
