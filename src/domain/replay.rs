//! Board and team as the events of a run tell of them: the state after an event follows from the state before it, and from nothing else.
//!
//! Facts that people are told say most of it; `board` and `team` lines say what those leave out, and now and then everything, so
//! that a log whose beginning is gone is understood from there on. Logs of before there were such lines are understood as far as they go.

use std::collections::BTreeMap;
use std::sync::Arc;

use indexmap::IndexMap;

use super::event::{Event, Fact, SpoiledRow, TeamRow};
use super::row::{ClaimRow, MemberRow, TaskRow, said, short};
use super::state::Mode;
use super::task::{TaskId, TaskStatus};
use super::time::UnixMs;

/// Rows in one line of the log.
pub const ROWS_PER_LINE_MAX: usize = 100;
/// Files that are no tasks in one line of the log.
const SPOILED_MAX: usize = 100;

/// How much of the board is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Known {
    /// What was told since the first event there is.
    #[default]
    SinceFirst,
    /// The whole board is being told; so many tasks are still to come.
    Growing(u64),
    /// All of it.
    Wholly,
}

/// Board and team at one event of a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Replay {
    /// The first event that was taken in.
    pub first_seq: Option<u64>,
    /// The last event that was taken in.
    pub seq: u64,
    /// When that was.
    pub at: UnixMs,
    /// What the team was to do and did.
    pub team: TeamRow,
    /// Why the team stopped, once it has.
    pub stopped: Option<String>,
    /// The members, in the order they came.
    pub members: IndexMap<String, MemberRow>,
    /// How much of the board is known.
    pub known: Known,
    /// Whether everything that is known of the team is from a line that told all of it, or from the run's beginning on.
    pub team_is_known: bool,
    /// The tasks. States that follow each other share what did not change.
    pub tasks: Arc<BTreeMap<TaskId, Arc<TaskRow>>>,
    /// Files that are no tasks.
    pub spoiled: Vec<SpoiledRow>,
    /// What was told so far of a board that is being told anew.
    telling: Option<BTreeMap<TaskId, Arc<TaskRow>>>,
}

impl Replay {
    /// The state after these events.
    #[must_use]
    pub fn of<'a>(events: impl IntoIterator<Item = &'a Event>) -> Self {
        let mut replay = Self::default();
        events.into_iter().for_each(|event| replay.take(event));
        replay
    }

    /// Takes in the next event.
    pub fn take(&mut self, event: &Event) {
        self.first_seq.get_or_insert(event.seq);
        (self.seq, self.at) = (event.seq, event.at);
        self.take_fact(&event.fact, event.at);
    }

    /// The same for a fact that has no number yet.
    pub fn take_fact(&mut self, fact: &Fact, at: UnixMs) {
        match fact {
            Fact::TeamStarted { team, members } => self.begin(team, members, at),
            Fact::TeamStopped { reason, .. } => {
                self.stopped = Some(reason.clone());
                self.team.current = Some(Mode::Pause);
            }
            Fact::ModeChanged { desired, current, note } => {
                (self.team.desired, self.team.current) = (Some(*desired), Some(*current));
                self.team.note.clone_from(note);
            }
            Fact::SessionStarted { session, mode } => {
                (self.team.session, self.team.current) = (Some(*session), Some(*mode));
            }
            Fact::Board { tasks, spoiled, anew, rest } => self.take_board(tasks, spoiled.as_deref(), *anew, *rest),
            Fact::Team { members, anew } => self.take_team(members, anew.as_ref()),
            other => {
                self.take_task(other, at);
                self.take_member(other, at);
            }
        }
    }

    fn begin(&mut self, team: &str, members: &[String], at: UnixMs) {
        *self = Self { first_seq: self.first_seq, seq: self.seq, at, team_is_known: true, ..Self::default() };
        self.team = TeamRow { team: team.to_owned(), started: Some(at), ..TeamRow::default() };
        for name in members {
            self.member(name).phase = "stopped".to_owned();
        }
    }

    fn take_board(&mut self, tasks: &[Arc<TaskRow>], spoiled: Option<&[SpoiledRow]>, anew: bool, rest: u64) {
        let rows = tasks.iter().map(|row| (row.task, Arc::clone(row)));
        if anew {
            self.telling = Some(BTreeMap::new());
        }
        // A board that is told anew takes the place of what is known once it is there wholly.
        if let Some(telling) = &mut self.telling {
            telling.extend(rows);
            if rest > 0 {
                self.known = if self.known == Known::Wholly { Known::Wholly } else { Known::Growing(rest) };
                return;
            }
            self.tasks = Arc::new(self.telling.take().unwrap_or_default());
            self.spoiled = spoiled.unwrap_or_default().to_vec();
            self.known = Known::Wholly;
            return;
        }
        if !tasks.is_empty() {
            self.board().extend(rows);
        }
        if let Some(spoiled) = spoiled {
            self.spoiled = spoiled.to_vec();
            for file in spoiled {
                TaskId::from_file_name(&file.file).and_then(|id| self.board().remove(&id));
            }
        }
    }

    fn take_team(&mut self, members: &[MemberRow], anew: Option<&TeamRow>) {
        if let Some(team) = anew {
            self.team = team.clone();
            self.team_is_known = true;
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

    fn member(&mut self, name: &str) -> &mut MemberRow {
        // An entry by reference would cost the name each time.
        if !self.members.contains_key(name) {
            self.members.insert(name.to_owned(), MemberRow { name: name.to_owned(), ..MemberRow::default() });
        }
        &mut self.members[name]
    }

    fn board(&mut self) -> &mut BTreeMap<TaskId, Arc<TaskRow>> {
        Arc::make_mut(&mut self.tasks)
    }

    fn task(&mut self, id: TaskId) -> &mut TaskRow {
        Arc::make_mut(self.board().entry(id).or_insert_with(|| Arc::new(TaskRow::new(id, ""))))
    }

    /// The task, unless a later attempt of it is known: what is told late of an earlier one changes nothing.
    fn task_at(&mut self, id: TaskId, attempt: u32) -> Option<&mut TaskRow> {
        let row = self.task(id);
        (attempt >= row.attempt).then(|| {
            row.attempt = attempt;
            row
        })
    }

    fn take_task(&mut self, fact: &Fact, at: UnixMs) {
        match fact {
            Fact::TaskCreated { task, subject, .. } => {
                self.board().insert(*task, Arc::new(TaskRow::new(*task, &short(subject))));
            }
            Fact::TaskClaimed { task, attempt, teammate } => {
                let Some(row) = self.task_at(*task, *attempt) else { return };
                row.status = TaskStatus::InProgress;
                row.owner = Some(short(teammate));
                row.not_before = None;
                row.claim = Some(ClaimRow { at, expires: None });
            }
            Fact::TaskCompleted { task, attempt, teammate, .. } => {
                let Some(row) = self.task_at(*task, *attempt) else { return };
                row.status = TaskStatus::Completed;
                row.owner = Some(short(teammate));
                (row.claim, row.not_before) = (None, None);
                self.unblock(*task);
            }
            Fact::TaskFailed { task, attempt, reason, .. } => {
                let Some(row) = self.task_at(*task, *attempt) else { return };
                row.status = TaskStatus::Failed;
                (row.claim, row.not_before) = (None, None);
                row.summary = said(reason);
            }
            Fact::TaskReleased { task, attempt, reason, not_before, .. } => {
                let Some(row) = self.task_at(*task, *attempt) else { return };
                row.status = TaskStatus::Pending;
                (row.owner, row.claim, row.not_before) = (None, None, *not_before);
                row.summary = said(reason);
            }
            Fact::TaskReclaimed { task, attempt, .. } => {
                let Some(row) = self.task_at(*task, *attempt) else { return };
                row.status = TaskStatus::Pending;
                (row.owner, row.claim, row.not_before) = (None, None, None);
            }
            Fact::TaskChanged { task, status, .. } => {
                if let Some(status) = TaskStatus::from_word(status) {
                    self.task(*task).status = status;
                }
            }
            Fact::TaskDeleted { task, .. } => {
                self.board().remove(task);
                self.unblock(*task);
            }
            _ => {}
        }
    }

    /// Takes a finished task out of what others wait for.
    fn unblock(&mut self, blocker: TaskId) {
        for row in self.board().values_mut().filter(|row| row.blocked_by.contains(&blocker)) {
            Arc::make_mut(row).blocked_by.retain(|id| *id != blocker);
        }
    }

    fn take_member(&mut self, fact: &Fact, at: UnixMs) {
        match fact {
            Fact::TeammateSpawned { teammate, role } => {
                let member = self.member(teammate);
                member.role = short(role);
                member.turn_to("idle", None, at);
            }
            Fact::TeammatePhase { teammate, phase, task, waiting_for } => {
                let attempt = task.and_then(|id| self.tasks.get(&id)).map(|row| row.attempt);
                let member = self.member(teammate);
                member.turn_to(phase, task.map(|task| (task, attempt)), at);
                member.waiting_for = waiting_for.as_ref().map(|what| short(&what.to_file_text()));
            }
            Fact::TeammateRespawned { teammate, .. } => self.member(teammate).turn_to("idle", None, at),
            Fact::TeammateStopped { teammate, is_dead, .. } => {
                let member = self.member(teammate);
                member.turn_to(if *is_dead { "dead" } else { "stopped" }, None, at);
                member.waiting_for = None;
            }
            Fact::TurnFinished {
                teammate, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, ..
            } => {
                let used = [input_tokens, output_tokens, cache_read_tokens, cache_write_tokens];
                let member = self.member(teammate);
                member.tokens = used.into_iter().fold(member.tokens, |sum, tokens| sum.saturating_add(*tokens));
            }
            _ => {}
        }
    }

    /// Whether a fact tells of a change of the board.
    #[must_use]
    pub fn tells_of_board(fact: &Fact) -> bool {
        match fact {
            Fact::Board { anew, .. } => !anew,
            Fact::TaskCreated { .. }
            | Fact::TaskClaimed { .. }
            | Fact::TaskCompleted { .. }
            | Fact::TaskFailed { .. }
            | Fact::TaskReleased { .. }
            | Fact::TaskReclaimed { .. }
            | Fact::TaskChanged { .. }
            | Fact::TaskDeleted { .. } => true,
            _ => false,
        }
    }

    /// The facts that tell all of this to who has seen none of it.
    #[must_use]
    pub fn told_anew(&self) -> Vec<Fact> {
        let mut facts =
            vec![Fact::Team { members: self.members.values().cloned().collect(), anew: Some(self.team.clone()) }];
        facts.extend(self.board_told_anew());
        facts
    }

    /// The same for the board alone.
    #[must_use]
    pub fn board_told_anew(&self) -> Vec<Fact> {
        let rows: Vec<Arc<TaskRow>> = self.tasks.values().cloned().collect();
        let mut facts = Vec::with_capacity(rows.len() / ROWS_PER_LINE_MAX + 1);
        let mut rest = rows.len();
        let mut chunks = rows.chunks(ROWS_PER_LINE_MAX);
        let first = chunks.next().unwrap_or_default();
        for (place, chunk) in std::iter::once(first).chain(chunks).enumerate() {
            rest -= chunk.len();
            let spoiled = (rest == 0 && !self.spoiled.is_empty()).then(|| self.spoiled.clone());
            facts.push(Fact::Board { tasks: chunk.to_vec(), spoiled, anew: place == 0, rest: rest as u64 });
        }
        facts
    }

    /// Has this for the whole board.
    pub fn set_board(&mut self, rows: impl IntoIterator<Item = TaskRow>, spoiled: Vec<SpoiledRow>) {
        self.tasks = Arc::new(rows.into_iter().map(|row| (row.task, Arc::new(row))).collect());
        self.spoiled = spoiled;
        self.spoiled.truncate(SPOILED_MAX);
        self.known = Known::Wholly;
    }

    /// What is to be told so that these members stand here as they are reported.
    #[must_use]
    pub fn team_corrections(&self, rows: Vec<MemberRow>) -> Vec<Fact> {
        let differs =
            |row: &MemberRow| self.members.get(&row.name).is_none_or(|known| known.reported() != row.reported());
        let rows: Vec<MemberRow> = rows.into_iter().filter(differs).collect();
        rows.chunks(ROWS_PER_LINE_MAX).map(|rows| Fact::Team { members: rows.to_vec(), anew: None }).collect()
    }

    /// What is to be told so that these tasks stand here as they do on the board; nothing where they do already.
    #[must_use]
    pub fn corrections(
        &self,
        rows: impl IntoIterator<Item = TaskRow>,
        spoiled: impl IntoIterator<Item = SpoiledRow>,
    ) -> Vec<Fact> {
        let differs = |row: &TaskRow| self.tasks.get(&row.task).is_none_or(|known| !known.agrees_with(row));
        let rows: Vec<Arc<TaskRow>> = rows.into_iter().filter(differs).map(Arc::new).collect();
        let spoiled: Vec<SpoiledRow> = spoiled.into_iter().take(SPOILED_MAX).collect();
        let mut facts: Vec<Fact> = rows.chunks(ROWS_PER_LINE_MAX).map(|tasks| board(tasks.to_vec(), None)).collect();
        if spoiled != self.spoiled {
            facts.push(board(Vec::new(), Some(spoiled)));
        }
        facts
    }
}

fn board(tasks: Vec<Arc<TaskRow>>, spoiled: Option<Vec<SpoiledRow>>) -> Fact {
    Fact::Board { tasks, spoiled, anew: false, rest: 0 }
}

impl MemberRow {
    /// What of it reports say.
    fn reported(&self) -> (&str, u64, u64, Option<&str>) {
        (&self.role, self.tokens, self.cost_usd.to_bits(), self.waiting_for.as_deref())
    }

    fn turn_to(&mut self, phase: &str, task: Option<(TaskId, Option<u32>)>, at: UnixMs) {
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

    fn events(facts: &[Fact]) -> Vec<Event> {
        let event =
            |(seq, fact): (u64, &Fact)| Event { v: 1, seq, at: UnixMs(10 * seq.cast_signed()), fact: fact.clone() };
        (1..).zip(facts).map(event).collect()
    }

    fn claimed(task: u64, attempt: u32, teammate: &str) -> Fact {
        Fact::TaskClaimed { task: TaskId(task), attempt, teammate: teammate.into() }
    }

    #[test]
    fn a_log_of_before_there_were_rows_is_understood_as_far_as_it_goes() {
        let sample = include_str!("../../tests/contracts/events.jsonl");
        let old: Vec<Event> = sample.lines().take(8).map(|line| serde_json::from_str(line).unwrap()).collect();
        let replay = Replay::of(&old[..4]);
        let row = &replay.tasks[&TaskId(3)];
        assert_eq!((row.status, row.owner.as_deref(), row.attempt), (TaskStatus::InProgress, Some("alice"), 1));
        assert_eq!((replay.members["alice"].phase.as_str(), replay.members["alice"].task), ("work", Some(TaskId(3))));
        assert_eq!((replay.known, replay.members["bob"].phase.as_str()), (Known::SinceFirst, "stopped"));
        let replay = Replay::of(&old);
        assert_eq!((replay.tasks[&TaskId(3)].status, replay.members["alice"].tokens), (TaskStatus::Completed, 953));
    }

    #[test]
    fn a_large_board_is_known_once_its_last_line_is() {
        let mut whole = Replay::default();
        whole.set_board((1..=250).map(|id| TaskRow::new(TaskId(id), "s")), Vec::new());
        let told = events(&whole.board_told_anew());
        let known: Vec<Known> = (1..=told.len()).map(|count| Replay::of(&told[..count]).known).collect();
        assert_eq!(known, [Known::Growing(150), Known::Growing(50), Known::Wholly]);
        assert_eq!(Replay::of(&told).tasks, whole.tasks);
        // Told once more in the middle of a run, no task is missing meanwhile.
        let again = events(&[whole.board_told_anew(), whole.board_told_anew()].concat());
        assert!((3..=6).all(|count| Replay::of(&again[..count]).tasks == whole.tasks));
    }

    #[test]
    fn what_is_told_late_of_an_earlier_attempt_changes_nothing() {
        let lost = Fact::TaskReclaimed { task: TaskId(1), attempt: 1, teammate: "eve".into(), reason: String::new() };
        let replay = Replay::of(&events(&[claimed(1, 1, "eve"), claimed(1, 2, "bob"), lost]));
        assert_eq!(replay.tasks[&TaskId(1)].owner.as_deref(), Some("bob"));
    }

    #[test]
    fn a_file_that_is_no_task_is_on_the_board_as_that_until_it_is_one() {
        let mut replay = Replay::of(&events(&[claimed(1, 1, "eve"), claimed(2, 1, "bob")]));
        let spoiled = [SpoiledRow { file: "task_2.json".into(), reason: "torn".into() }];
        for fact in replay.corrections([], spoiled.clone()) {
            replay.take_fact(&fact, UnixMs(1));
        }
        assert_eq!((replay.tasks.len(), &replay.spoiled[..]), (1, &spoiled[..]));
        for fact in replay.corrections([TaskRow::new(TaskId(2), "mended")], []) {
            replay.take_fact(&fact, UnixMs(2));
        }
        assert_eq!((replay.tasks.len(), replay.spoiled.len()), (2, 0));
    }

    fn facts() -> impl Strategy<Value = Vec<Fact>> {
        let (task, name) = (
            || (1_u64..6).prop_map(TaskId),
            || prop::sample::select(vec!["alice", "bob", "lead"]).prop_map(str::to_owned),
        );
        let row = (task(), 0_usize..4, prop::option::of(name()), 0_u32..4, prop::collection::vec(task(), 0..3))
            .prop_map(|(task, status, owner, attempt, blocked_by)| TaskRow {
                status: TaskStatus::ALL[status],
                owner,
                attempt,
                blocked_by,
                ..TaskRow::new(task, "s")
            });
        let fact = prop_oneof![
            (task(), name()).prop_map(|(task, by)| Fact::TaskCreated { task, subject: "s".into(), by }),
            (task(), 1_u32..4, name()).prop_map(|(task, attempt, teammate)| Fact::TaskClaimed {
                task,
                attempt,
                teammate
            }),
            (task(), 1_u32..4, name()).prop_map(|(task, attempt, teammate)| Fact::TaskCompleted {
                task,
                attempt,
                teammate,
                evidence: String::new()
            }),
            (task(), name()).prop_map(|(task, by)| Fact::TaskDeleted { task, by }),
            prop::collection::vec(row.prop_map(Arc::new), 0..4).prop_map(|tasks| board(tasks, None)),
            (name(), prop::option::of(task())).prop_map(|(teammate, task)| Fact::TeammatePhase {
                teammate,
                phase: "work".into(),
                task,
                waiting_for: None
            }),
            name().prop_map(|teammate| Fact::TeammateStopped { teammate, reason: String::new(), is_dead: false }),
            (name(), 0_u64..9).prop_map(|(name, tokens)| Fact::Team {
                members: vec![MemberRow { name, tokens, ..MemberRow::default() }],
                anew: None
            }),
        ];
        prop::collection::vec(fact, 0..40)
    }

    proptest! {
        #[test]
        fn who_comes_to_the_middle_of_a_log_knows_all_once_all_was_told_anew(facts in facts(), cut in 0_usize..40) {
            let start = Fact::TeamStarted { team: "crew".into(), members: vec!["alice".into(), "bob".into()] };
            let (before, behind) = facts.split_at(cut.min(facts.len()));
            let mut before = [[start].as_slice(), before].concat();
            before.extend(Replay::of(&events(&before)).told_anew());
            let anew = before.iter().position(|fact| matches!(fact, Fact::Team { anew: Some(_), .. })).unwrap();
            let log = events(&[before.as_slice(), behind].concat());
            let (whole, late) = (Replay::of(&log), Replay::of(&log[anew..]));
            prop_assert_eq!(Replay { first_seq: None, ..late }, Replay { first_seq: None, ..whole });
        }

        #[test]
        fn a_correction_leaves_nothing_to_correct(facts in facts(), other in facts()) {
            let (mut replay, truth) = (Replay::of(&events(&facts)), Replay::of(&events(&other)));
            let rows = || truth.tasks.values().map(|row| TaskRow::clone(row));
            for fact in replay.corrections(rows(), []) {
                replay.take_fact(&fact, UnixMs(1));
            }
            prop_assert_eq!(replay.corrections(rows(), []), Vec::new());
        }
    }
}
