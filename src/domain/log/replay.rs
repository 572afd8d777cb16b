//! Replay of a run: the board and the team at each event. An event that changes a task or a member has the row after the change.

use std::collections::BTreeMap;
use std::sync::Arc;

use indexmap::IndexMap;

use super::event::{Event, EventKind, InvalidFileSnapshot, NewEvent, TeamSnapshot};
use super::snapshot::{MemberSnapshot, TaskSnapshot};
use crate::domain::task::TaskId;
use crate::domain::team::phase::ReportedPhase;
use crate::domain::team::state::Mode;
use crate::domain::time::UnixMs;

/// Maximum number of rows in one event.
pub const ROWS_PER_EVENT_MAX: usize = 100;
/// Maximum number of invalid task files in one event.
pub const INVALID_FILES_MAX: usize = 100;

/// The board and team after one event of a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReplayState {
    /// Number of the first applied event.
    pub first_seq: Option<u64>,
    /// The team's name, desired and current state.
    pub team: TeamSnapshot,
    /// The reason of the team's end, after its end.
    pub stopped: Option<String>,
    /// The members in the order of their first event.
    pub members: IndexMap<String, Arc<MemberSnapshot>>,
    /// The tasks. Successive states share unchanged tasks.
    pub tasks: Arc<BTreeMap<TaskId, Arc<TaskSnapshot>>>,
    /// Files that are not valid tasks.
    pub invalid_files: Vec<InvalidFileSnapshot>,
    /// True after the first event with rows of the whole board.
    pub has_whole_board: bool,
    /// The number of the whole board's tasks in the events that follow.
    pub tasks_to_follow: u64,
    /// True after an event without its row. Only older versions wrote these.
    pub lacks_rows: bool,
}

impl ReplayState {
    /// Returns the state after these events.
    pub fn of<'a>(events: impl IntoIterator<Item = &'a Event>) -> Self {
        let mut replay = Self::default();
        events.into_iter().for_each(|event| replay.apply(event));
        replay
    }

    /// Applies the next event.
    pub fn apply(&mut self, event: &Event) {
        self.first_seq.get_or_insert(event.seq);
        self.apply_parts(&event.kind, event.row.as_ref(), event.member.as_ref(), event.at);
    }

    /// Applies an event that has no number yet.
    pub fn apply_new(&mut self, event: &NewEvent, at: UnixMs) {
        self.apply_parts(&event.kind, event.row.as_ref(), event.member.as_ref(), at);
    }

    fn apply_parts(
        &mut self,
        kind: &EventKind,
        row: Option<&Arc<TaskSnapshot>>,
        member: Option<&Arc<MemberSnapshot>>,
        at: UnixMs,
    ) {
        match kind {
            EventKind::TeamStarted { team, members } => self.start(team, members, at),
            EventKind::TeamStopped { reason, .. } => {
                self.stopped = Some(reason.clone());
                self.team.current = Some(Mode::Pause);
            }
            EventKind::ModeChanged { desired, current, note } => {
                self.team.desired = Some(*desired);
                self.team.current = Some(*current);
                self.team.note.clone_from(note);
            }
            EventKind::SessionStarted { session, mode } => {
                self.team.session = Some(*session);
                self.team.current = Some(*mode);
            }
            EventKind::Board { tasks, invalid_files, is_full_board, tasks_to_follow } => {
                if *is_full_board {
                    self.clear_board();
                }
                tasks.iter().for_each(|row| self.insert_task(row));
                if let Some(invalid_files) = invalid_files {
                    self.invalid_files.clone_from(invalid_files);
                }
                self.tasks_to_follow = *tasks_to_follow;
            }
            EventKind::Team { members, full_team } => {
                if let Some(team) = full_team {
                    self.team.clone_from(team);
                    self.members.clear();
                }
                members.iter().for_each(|member| self.insert_member(member));
            }
            EventKind::TaskDeleted { task, .. } => self.remove_task(*task),
            // The row is unknown then.
            EventKind::TaskClaimed { task, .. } | EventKind::TaskCompleted { task, .. } if row.is_none() => {
                self.remove_task(*task);
                self.lacks_rows = true;
            }
            EventKind::TeammatePhase { teammate, .. } if member.is_none() => {
                self.members.shift_remove(teammate);
                self.lacks_rows = true;
            }
            _ => {}
        }
        if let Some(row) = row {
            self.insert_task(row);
        }
        if let Some(member) = member {
            self.insert_member(member);
        }
    }

    fn start(&mut self, team: &str, members: &[String], at: UnixMs) {
        *self = Self { first_seq: self.first_seq, ..Self::default() };
        self.team = TeamSnapshot { team: team.to_owned(), started: Some(at), ..TeamSnapshot::default() };
        for name in members {
            let phase = ReportedPhase::Stopped;
            self.insert_member(&Arc::new(MemberSnapshot { name: name.clone(), phase, ..MemberSnapshot::default() }));
        }
    }

    fn clear_board(&mut self) {
        self.tasks = Arc::default();
        self.invalid_files.clear();
        self.has_whole_board = true;
    }

    fn remove_task(&mut self, task: TaskId) {
        if self.tasks.contains_key(&task) {
            Arc::make_mut(&mut self.tasks).remove(&task);
        }
    }

    fn insert_task(&mut self, row: &Arc<TaskSnapshot>) {
        if self.tasks.get(&row.task) != Some(row) {
            Arc::make_mut(&mut self.tasks).insert(row.task, Arc::clone(row));
        }
    }

    fn insert_member(&mut self, member: &Arc<MemberSnapshot>) {
        self.members.insert(member.name.clone(), Arc::clone(member));
    }

    /// Returns the events that have all rows of this state.
    pub fn row_events(&self) -> Vec<EventKind> {
        let members = self.members.values().cloned().collect();
        let mut events = vec![EventKind::Team { members, full_team: Some(self.team.clone()) }];
        events.extend(whole_board_events(self.tasks.values().cloned().collect(), self.invalid_files.clone()));
        events
    }
}

/// Returns the events that have all rows of a board.
pub fn whole_board_events(rows: Vec<Arc<TaskSnapshot>>, invalid_files: Vec<InvalidFileSnapshot>) -> Vec<EventKind> {
    let mut events = Vec::with_capacity(rows.len() / ROWS_PER_EVENT_MAX + 1);
    let mut tasks_to_follow = rows.len();
    let mut chunks = rows.chunks(ROWS_PER_EVENT_MAX);
    let first = chunks.next().unwrap_or_default();
    for (index, chunk) in std::iter::once(first).chain(chunks).enumerate() {
        tasks_to_follow -= chunk.len();
        events.push(EventKind::Board {
            tasks: chunk.to_vec(),
            invalid_files: if index == 0 { Some(invalid_files.clone()) } else { None },
            is_full_board: index == 0,
            tasks_to_follow: tasks_to_follow as u64,
        });
    }
    events
}

/// Returns the events that have the rows of changed tasks.
pub fn changed_rows_events(rows: &[Arc<TaskSnapshot>]) -> Vec<EventKind> {
    let event = |rows: &[Arc<TaskSnapshot>]| EventKind::Board {
        tasks: rows.to_vec(),
        invalid_files: None,
        is_full_board: false,
        tasks_to_follow: 0,
    };
    rows.chunks(ROWS_PER_EVENT_MAX).map(event).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::task::TaskStatus;

    fn numbered(kinds: impl IntoIterator<Item = EventKind>) -> Vec<Event> {
        (1..).zip(kinds).map(|(seq, kind)| NewEvent::from(kind).number(seq, UnixMs(5))).collect()
    }

    fn rows(count: u64) -> Vec<Arc<TaskSnapshot>> {
        (1..=count).map(|id| Arc::new(TaskSnapshot::new(TaskId(id), "s"))).collect()
    }

    #[test]
    fn replay_inserts_rows_of_events() {
        let sample = include_str!("../../../tests/contracts/events.jsonl");
        let log: Vec<Event> = sample.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let replay = ReplayState::of(&log);
        assert_eq!(replay.tasks[&TaskId(4)].owner.as_deref(), Some("bob"));
        assert_eq!((replay.members["bob"].phase, replay.members["bob"].task), (ReportedPhase::Work, Some(TaskId(4))));
        assert_eq!(replay.tasks[&TaskId(3)].status, TaskStatus::Completed);
    }

    #[test]
    fn replay_of_old_log_lacks_rows() {
        let sample = include_str!("../../../tests/contracts/events.jsonl");
        let old: Vec<Event> = sample.lines().take(8).map(|line| serde_json::from_str(line).unwrap()).collect();
        let replay = ReplayState::of(&old);
        assert!(replay.lacks_rows);
        assert_eq!((replay.tasks.len(), replay.members.contains_key("alice")), (0, false));
    }

    #[test]
    fn replay_counts_rows_of_board_to_follow() {
        let log = numbered(whole_board_events(rows(250), Vec::new()));
        let to_follow: Vec<u64> = (1..=3).map(|count| ReplayState::of(&log[..count]).tasks_to_follow).collect();
        assert_eq!(to_follow, [150, 50, 0]);
        let replay = ReplayState::of(&log);
        assert!(replay.has_whole_board && replay.tasks.values().cloned().eq(rows(250)));
    }

    #[test]
    fn row_events_restore_the_state() {
        let started = EventKind::TeamStarted { team: "crew".into(), members: vec!["alice".into(), "bob".into()] };
        let invalid = InvalidFileSnapshot { file: "task_9.json".into(), reason: "torn".into(), place: None };
        let mut kinds = vec![started];
        kinds.extend(whole_board_events(rows(120), vec![invalid]));
        kinds.push(EventKind::TaskDeleted { task: TaskId(7), by: "human".into() });
        let whole = ReplayState::of(&numbered(kinds));
        let restored = ReplayState::of(&numbered(whole.row_events()));
        assert_eq!(restored, whole);
    }
}
