//! Board and team as the events of a run tell of them: the state after an event follows from the state before it, and from nothing else.
//!
//! Facts that people are told say most of it; `board` and `team` lines say what those leave out, and now and then everything, so
//! that a log whose beginning is gone is understood from there on. Logs of before there were such lines are understood as far as they go.

use std::collections::BTreeMap;
use std::sync::Arc;

use indexmap::IndexMap;

use super::event::{Event, Fact, SpoiledRow, TeamRow};
use super::row::{ClaimRow, MemberRow, TaskRow, short};
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
    /// The tasks.
    pub tasks: BTreeMap<TaskId, Arc<TaskRow>>,
    /// Files that are no tasks.
    pub spoiled: Vec<SpoiledRow>,
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

    fn take_board(&mut self, tasks: &[TaskRow], spoiled: Option<&[SpoiledRow]>, anew: bool, rest: u64) {
        if anew {
            self.tasks.clear();
            self.spoiled.clear();
        }
        if anew || matches!(self.known, Known::Growing(_)) {
            self.known = if rest == 0 { Known::Wholly } else { Known::Growing(rest) };
        }
        self.tasks.extend(tasks.iter().map(|row| (row.task, Arc::new(row.clone()))));
        if let Some(spoiled) = spoiled {
            self.spoiled = spoiled.to_vec();
            for file in spoiled {
                TaskId::from_file_name(&file.file).and_then(|id| self.tasks.remove(&id));
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

    fn task(&mut self, id: TaskId) -> &mut TaskRow {
        Arc::make_mut(self.tasks.entry(id).or_insert_with(|| Arc::new(TaskRow::new(id, ""))))
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
                self.tasks.insert(*task, Arc::new(TaskRow::new(*task, &short(subject))));
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
                row.summary = short(reason);
            }
            Fact::TaskReleased { task, attempt, reason, not_before, .. } => {
                let Some(row) = self.task_at(*task, *attempt) else { return };
                row.status = TaskStatus::Pending;
                (row.owner, row.claim, row.not_before) = (None, None, *not_before);
                row.summary = short(reason);
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
                self.tasks.remove(task);
                self.unblock(*task);
            }
            _ => {}
        }
    }

    /// Takes a finished task out of what others wait for.
    fn unblock(&mut self, blocker: TaskId) {
        for row in self.tasks.values_mut().filter(|row| row.blocked_by.contains(&blocker)) {
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
                member.waiting_for = waiting_for.as_deref().map(short);
            }
            Fact::TeammateRespawned { teammate, .. } => self.member(teammate).turn_to("idle", None, at),
            Fact::TeammateStopped { teammate, .. } => {
                let member = self.member(teammate);
                member.turn_to("stopped", None, at);
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
        let rows: Vec<TaskRow> = self.tasks.values().map(|row| TaskRow::clone(row)).collect();
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
        self.tasks = rows.into_iter().map(|row| (row.task, Arc::new(row))).collect();
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
    pub fn corrections<'a>(
        &self,
        rows: impl IntoIterator<Item = TaskRow>,
        spoiled: impl IntoIterator<Item = SpoiledRow>,
    ) -> Vec<Fact> {
        let differs = |row: &TaskRow| self.tasks.get(&row.task).is_none_or(|known| !known.agrees_with(row));
        let rows: Vec<TaskRow> = rows.into_iter().filter(differs).collect();
        let spoiled: Vec<SpoiledRow> = spoiled.into_iter().take(SPOILED_MAX).collect();
        let mut facts: Vec<Fact> = rows.chunks(ROWS_PER_LINE_MAX).map(|tasks| board(tasks.to_vec(), None)).collect();
        if spoiled != self.spoiled {
            facts.push(board(Vec::new(), Some(spoiled)));
        }
        facts
    }
}

fn board(tasks: Vec<TaskRow>, spoiled: Option<Vec<SpoiledRow>>) -> Fact {
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
