//! Events from task changes: the difference between two versions of a task.
//!
//! Teammates report their own changes, and the recorder reads those of others from the board. [`TaskDiffer`] keeps the newest version of
//! each task, and reports each change once, with the row of that version.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::event::{EventKind, NewEvent};
use super::snapshot::TaskSnapshot;
use crate::domain::task::{Task, TaskId, TaskStatus};

/// The actor of a change whose task names none, as the event log has it.
pub const UNKNOWN_ACTOR: &str = "somebody";
/// The actor of a deletion by a command or a tool of Brigade.
const BRIGADE: &str = "brigade";

/// The changes of tasks.
#[derive(Debug, Default)]
pub struct TaskChanges {
    /// The events for people, each with the row of its task.
    pub events: Vec<NewEvent>,
    /// The rows of tasks that changed without such an event. The end of a task removes it from the blockers of others, for example.
    pub rows: Vec<Arc<TaskSnapshot>>,
}

/// The newest version of each task.
#[derive(Debug, Default)]
pub struct TaskDiffer {
    tasks: BTreeMap<TaskId, Arc<Task>>,
}

impl TaskDiffer {
    /// Creates a differ that knows these tasks.
    pub fn new(tasks: BTreeMap<TaskId, Arc<Task>>) -> Self {
        Self { tasks }
    }

    /// Returns true if this task is known.
    pub fn contains(&self, id: TaskId) -> bool {
        self.tasks.contains_key(&id)
    }

    /// Returns the rows of all tasks.
    pub fn rows(&self) -> Vec<Arc<TaskSnapshot>> {
        self.tasks.values().map(|task| Arc::new(TaskSnapshot::of(task))).collect()
    }

    /// Returns true if `task` waited for another task whose end is not known yet. That end comes first in the log.
    pub fn misses_end_before(&self, task: &Task) -> bool {
        let Some(before) = self.tasks.get(&task.id) else { return false };
        let is_unfinished = |id: &TaskId| self.tasks.get(id).is_some_and(|task| task.status != TaskStatus::Completed);
        before.blocked_by.iter().any(|id| !task.blocked_by.contains(id) && is_unfinished(id))
    }

    /// Returns the changes of a version that a member reports; none if a newer version is known. The event `cause` comes first. It is
    /// also the event of an edit.
    pub fn report(&mut self, task: &Arc<Task>, cause: Option<EventKind>) -> TaskChanges {
        let newer = self.tasks.get(&task.id).filter(|known| is_older(task, known));
        let row = Arc::new(TaskSnapshot::of(newer.unwrap_or(task)));
        let has_cause = cause.is_some();
        let events = cause.map(|kind| event_of(kind, &row)).into_iter().collect();
        let mut changes = TaskChanges { events, rows: Vec::new() };
        if newer.is_none() {
            self.insert(task, &mut changes);
        }
        if has_cause {
            changes.events.retain(|event| !matches!(event.kind, EventKind::TaskChanged { .. }));
        }
        changes
    }

    /// Returns the known tasks that a view of the board lacks.
    pub fn missing(&self, view: &BTreeMap<TaskId, Arc<Task>>) -> Vec<TaskId> {
        self.tasks.keys().copied().filter(|id| !view.contains_key(id)).collect()
    }

    /// Returns the changes of the board, whose versions are the newest. A task whose file is invalid is not deleted. Brigade deleted the
    /// tasks of which `is_deleted_by_brigade` says so, and another program the others.
    pub fn read(
        &mut self,
        view: &BTreeMap<TaskId, Arc<Task>>,
        is_invalid: impl Fn(TaskId) -> bool,
        is_deleted_by_brigade: impl Fn(TaskId) -> bool,
    ) -> TaskChanges {
        let mut changes = TaskChanges::default();
        view.values().for_each(|task| self.insert(task, &mut changes));
        if self.tasks.len() > view.len() {
            self.tasks.retain(|id, _| {
                let exists = view.contains_key(id) || is_invalid(*id);
                if !exists {
                    let by = if is_deleted_by_brigade(*id) { BRIGADE } else { UNKNOWN_ACTOR };
                    changes.events.push(EventKind::TaskDeleted { task: *id, by: by.to_owned() }.into());
                }
                exists
            });
        }
        changes
    }

    fn insert(&mut self, task: &Arc<Task>, changes: &mut TaskChanges) {
        let known = self.tasks.get(&task.id);
        if known.is_some_and(|known| Arc::ptr_eq(known, task)) {
            return;
        }
        let row = Arc::new(TaskSnapshot::of(task));
        let events = match known {
            None => events_of_new(task),
            Some(known) if is_older(task, known) => Vec::new(),
            Some(known) => events_between(known, task),
        };
        if events.is_empty() && known.is_some_and(|known| TaskSnapshot::of(known) != *row) {
            changes.rows.push(Arc::clone(&row));
        }
        changes.events.extend(events.into_iter().map(|kind| event_of(kind, &row)));
        self.tasks.insert(task.id, Arc::clone(task));
    }
}

fn event_of(kind: EventKind, row: &Arc<TaskSnapshot>) -> NewEvent {
    NewEvent { kind, row: Some(Arc::clone(row)), member: None }
}

/// Within an attempt, a task is in progress first and in another state later.
fn is_older(task: &Task, than: &Task) -> bool {
    let order = |task: &Task| (task.attempt, task.status != TaskStatus::InProgress, task.updated_at);
    order(task) < order(than)
}

fn events_of_new(task: &Task) -> Vec<EventKind> {
    let by = task.created_by.clone().unwrap_or_else(|| UNKNOWN_ACTOR.to_owned());
    let mut events = vec![EventKind::TaskCreated { task: task.id, subject: task.subject.clone(), by }];
    events.extend(transition_events(&Task::new(task.id, ""), task));
    events
}

fn events_between(before: &Task, task: &Task) -> Vec<EventKind> {
    let events = transition_events(before, task);
    if events.is_empty() && is_edited(before, task) {
        return vec![changed_event(task)];
    }
    events
}

/// Returns true if people see a difference. Blockers are left out: the ends of other tasks remove them.
fn is_edited(before: &Task, task: &Task) -> bool {
    before.status_word() != task.status_word()
        || before.owner != task.owner
        || before.priority != task.priority
        || before.subject != task.subject
        || before.description != task.description
        || before.requires != task.requires
        || before.verify != task.verify
        || before.tokens_max != task.tokens_max
}

fn changed_event(task: &Task) -> EventKind {
    EventKind::TaskChanged { task: task.id, status: task.status_word().into_owned(), by: UNKNOWN_ACTOR.to_owned() }
}

fn transition_events(before: &Task, task: &Task) -> Vec<EventKind> {
    let status_before = before.status;
    let teammate = task.owner.clone().or_else(|| before.owner.clone()).unwrap_or_default();
    let (id, attempt) = (task.id, task.attempt);
    let mut events = Vec::new();
    // Released and claimed again before it was reported: the newer version yields both events.
    if status_before == TaskStatus::InProgress && attempt > before.attempt {
        let result = if task.status == TaskStatus::InProgress { task.result.as_ref() } else { None };
        events.push(EventKind::TaskReleased {
            task: id,
            attempt: before.attempt,
            teammate: before.owner.clone().unwrap_or_default(),
            reason: result.map(|result| result.summary.clone()).unwrap_or_default(),
            not_before: None,
            by: result.and_then(|result| result.ended_by.clone()),
        });
    }
    let has_new_claim =
        attempt > before.attempt || (status_before != TaskStatus::InProgress && task.status == TaskStatus::InProgress);
    if has_new_claim && task.status != TaskStatus::Pending {
        events.push(EventKind::TaskClaimed { task: id, attempt, teammate: teammate.clone() });
    }
    let has_ended = has_new_claim || status_before == TaskStatus::InProgress;
    let result = task.result.clone().unwrap_or_default();
    match task.status {
        TaskStatus::Completed if has_ended => {
            let (unverified, nothing_ran) = (result.unverified, result.nothing_ran());
            let evidence = result.evidence;
            events.push(EventKind::TaskCompleted { task: id, attempt, teammate, evidence, unverified, nothing_ran });
        }
        TaskStatus::Failed if has_ended => {
            let (reason, by) = (result.summary, result.ended_by);
            events.push(EventKind::TaskFailed { task: id, attempt, teammate, reason, by })
        }
        TaskStatus::Pending if has_ended => {
            // A release without a reason keeps the result of an earlier failure.
            let is_of_attempt = result.failed_attempt.is_none_or(|failed| failed == attempt);
            events.push(EventKind::TaskReleased {
                task: id,
                attempt,
                // The owner of the pending task is the member that it is reserved for.
                teammate: before.owner.clone().unwrap_or_default(),
                reason: if is_of_attempt { result.summary } else { String::new() },
                not_before: task.not_before,
                by: result.ended_by,
            });
        }
        TaskStatus::Pending if status_before != TaskStatus::Pending => {
            events.push(changed_event(task));
        }
        _ => {}
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::log::replay::{ReplayState, changed_rows_events};
    use crate::domain::task::transition::{self, Actor, ActorKind, Change, TaskEdit};
    use crate::domain::task::{Claim, TaskResult};
    use crate::domain::time::UnixMs;
    use proptest::prelude::*;

    fn differ(known: &Task) -> TaskDiffer {
        TaskDiffer::new(BTreeMap::from([(known.id, Arc::new(known.clone()))]))
    }

    /// Returns the events of a reported version, and checks their rows.
    fn events(differ: &mut TaskDiffer, task: &Task) -> Vec<EventKind> {
        let changes = differ.report(&Arc::new(task.clone()), None);
        assert!(changes.events.iter().all(|event| event.row.as_deref() == Some(&TaskSnapshot::of(task))));
        changes.events.into_iter().map(|event| event.kind).collect()
    }

    fn names(events: &[EventKind]) -> Vec<String> {
        let name = |event| serde_json::to_value(event).unwrap()["kind"].as_str().unwrap().to_owned();
        events.iter().map(name).collect()
    }

    fn versions() -> [Task; 3] {
        let new = Task::new(TaskId(3), "s");
        let claimed = transition::claim(&new, "bob", Claim { worker: "w".into(), at: UnixMs(5), expires: None });
        let done =
            transition::change(&claimed, &Change::Complete(TaskResult::default()), &Actor::holder("bob", 1), UnixMs(5))
                .unwrap();
        [new, claimed, done]
    }

    #[test]
    fn task_change_yields_each_event_once() {
        let [new, claimed, done] = versions();
        let mut differ = TaskDiffer::default();
        assert_eq!(names(&events(&mut differ, &new)), ["task_created"]);
        assert_eq!(names(&events(&mut differ, &done)), ["task_claimed", "task_completed"]);
        assert!(events(&mut differ, &claimed).is_empty(), "an old version yields no events");
        assert!(events(&mut differ, &done).is_empty());
        for (is_by_brigade, actor) in [(true, "brigade"), (false, UNKNOWN_ACTOR)] {
            let mut differ = TaskDiffer { tasks: differ.tasks.clone() };
            let deleted = differ.read(&BTreeMap::new(), |_| false, |_| is_by_brigade).events;
            assert!(matches!(&deleted[0].kind, EventKind::TaskDeleted { by, .. } if by == actor), "{deleted:?}");
        }
    }

    #[test]
    fn late_event_has_newest_row() {
        let [_, claimed, done] = versions();
        let cause =
            EventKind::TaskReclaimed { task: done.id, attempt: 1, teammate: "bob".into(), reason: String::new() };
        let changes = differ(&done).report(&Arc::new(claimed), Some(cause));
        assert_eq!(changes.events.len(), 1);
        assert_eq!(changes.events[0].row.as_deref(), Some(&TaskSnapshot::of(&done)));
    }

    #[test]
    fn release_before_next_claim_is_still_reported() {
        let [_, claimed, _] = versions();
        let release = Change::Release { reason: "no model".into(), is_failure: false };
        let released = transition::change(&claimed, &release, &Actor::holder("bob", 1), UnixMs(6)).unwrap();
        let again = transition::claim(&released, "eve", Claim { worker: "w".into(), at: UnixMs(7), expires: None });
        let mut differ = differ(&claimed);
        let found = events(&mut differ, &again);
        assert_eq!(names(&found), ["task_released", "task_claimed"]);
        assert!(
            matches!(&found[0], EventKind::TaskReleased { attempt: 1, teammate, .. } if teammate == "bob"),
            "{found:?}"
        );
        assert!(events(&mut differ, &released).is_empty(), "it is reported once");
    }

    #[test]
    fn release_without_reason_repeats_no_older_one() {
        let claim =
            |task: &Task| transition::claim(task, "bob", Claim { worker: "w".into(), at: UnixMs(5), expires: None });
        let change = |task: &Task, change: &Change| {
            transition::change(task, change, &Actor::holder("bob", task.attempt), UnixMs(6)).unwrap()
        };
        let release = |reason: &str| Change::Release { reason: reason.to_owned(), is_failure: false };
        let [_, claimed, _] = versions();
        let fail = Change::Fail { reason: "no compiler".into(), is_final: false };
        for earlier in [fail, release("the team stopped")] {
            let held = claim(&change(&claimed, &earlier));
            let released = change(&held, &release(""));
            match events(&mut differ(&held), &released).as_slice() {
                [EventKind::TaskReleased { reason, .. }] => assert_eq!(reason, "", "{earlier:?}"),
                events => panic!("{events:?}"),
            }
        }
    }

    #[test]
    fn release_by_person_names_the_person() {
        let [_, claimed, _] = versions();
        let person = Actor::new("human", ActorKind::Person).forcing(true);
        let by = |change: &Change, actor: &Actor| {
            let task = transition::change(&claimed, change, actor, UnixMs(6)).unwrap();
            match events(&mut differ(&claimed), &task).as_slice() {
                [EventKind::TaskReleased { by, .. } | EventKind::TaskFailed { by, .. }] => by.clone(),
                events => panic!("{events:?}"),
            }
        };
        let release = Change::Release { reason: String::new(), is_failure: false };
        let fail = Change::Fail { reason: "stop it".into(), is_final: true };
        for change in [&release, &fail] {
            assert_eq!(by(change, &person).as_deref(), Some("human"));
            assert_eq!(by(change, &Actor::holder("bob", 1)), None);
        }
    }

    #[test]
    fn release_of_reserved_task_names_its_holder() {
        let [_, claimed, _] = versions();
        let edit = Change::Edit(TaskEdit { owner: Some("eve".to_owned()), ..TaskEdit::default() });
        let person = Actor::new("human", ActorKind::Person);
        let reserved = transition::change(&claimed, &edit, &person, UnixMs(6)).unwrap();
        let release = Change::Release { reason: String::new(), is_failure: false };
        let released = transition::change(&reserved, &release, &Actor::holder("bob", 1), UnixMs(7)).unwrap();
        assert_eq!(released.owner.as_deref(), Some("eve"));
        match events(&mut differ(&reserved), &released).as_slice() {
            [EventKind::TaskReleased { teammate, .. }] => assert_eq!(teammate, "bob"),
            events => panic!("{events:?}"),
        }
    }

    #[test]
    fn manual_task_edit_yields_task_changed() {
        let [new, ..] = versions();
        let edited = Task { subject: "other".into(), ..new.clone() };
        assert_eq!(names(&events(&mut differ(&new), &edited)), ["task_changed"]);
    }

    #[test]
    fn status_of_another_program_is_named() {
        let of = |word: &str| {
            Task::parse(TaskId(1), format!(r#"{{"id":1,"subject":"s","status":"{word}"}}"#).as_bytes()).unwrap()
        };
        let mut differ = differ(&of("in_review"));
        let [EventKind::TaskChanged { status, .. }] = &events(&mut differ, &of("approved"))[..] else {
            panic!("one event")
        };
        assert_eq!(status, "approved");
    }

    /// Any versions of tasks, also those that only an edit of the files can cause.
    fn task() -> impl Strategy<Value = Task> {
        let id = || (1_u64..5).prop_map(TaskId);
        let owner = prop::option::of(prop::sample::select(vec!["alice", "bob"]));
        let fields = (id(), 0_usize..4, owner, 0_u32..3, prop::collection::vec(id(), 0..3), 0_i64..9);
        fields.prop_map(|(id, status, owner, attempt, blocked_by, updated_at)| Task {
            status: TaskStatus::OWN[status],
            owner: owner.map(str::to_owned),
            attempt,
            blocked_by,
            updated_at: Some(UnixMs(updated_at)),
            ..Task::new(id, "s")
        })
    }

    proptest! {
        #[test]
        fn rows_of_changes_restore_the_board(
            reports in prop::collection::vec(task(), 0..20),
            board in prop::collection::btree_map(1_u64..5, task(), 0..5),
        ) {
            let board: BTreeMap<TaskId, Arc<Task>> =
                board.into_iter().map(|(id, task)| (TaskId(id), Arc::new(Task { id: TaskId(id), ..task }))).collect();
            let (mut differ, mut replay) = (TaskDiffer::default(), ReplayState::default());
            let mut apply = |TaskChanges { events, rows }: TaskChanges| {
                let rows = changed_rows_events(&rows).into_iter().map(NewEvent::from);
                events.into_iter().chain(rows).for_each(|event| replay.apply_new(&event, UnixMs(1)));
            };
            reports.into_iter().for_each(|task| apply(differ.report(&Arc::new(task), None)));
            apply(differ.read(&board, |_| false, |_| false));
            let truth: Vec<Arc<TaskSnapshot>> = board.values().map(|task| Arc::new(TaskSnapshot::of(task))).collect();
            prop_assert_eq!(replay.tasks.values().cloned().collect::<Vec<_>>(), truth);
        }
    }
}
