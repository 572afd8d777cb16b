//! Events from task changes: the difference between two versions of a task.
//!
//! Teammates report their own changes, and the lead sees those of others. Both pass the version that they read, which may be old.
//! [`TaskDiffer`] keeps the newest version of each task and reports each event once.

use std::collections::HashMap;

use super::event::EventKind;
use super::task::{Task, TaskId, TaskStatus};
use super::time::UnixMs;

/// The actor of a change whose task names none, as the event log has it.
const UNKNOWN_ACTOR: &str = "somebody";

/// The fields of a task that are compared with the next version.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TaskVersion {
    owner: Option<String>,
    attempt: u32,
    status: TaskStatus,
    updated_at: Option<UnixMs>,
    text_hash: u64,
}

impl TaskVersion {
    fn of(task: &Task) -> Self {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        // Blockers are left out: they are removed when they are completed, which other events describe.
        (&task.subject, &task.description, task.priority, &task.requires, &task.verify, &task.owner).hash(&mut hasher);
        Self {
            owner: task.owner.clone(),
            attempt: task.attempt,
            status: task.status,
            updated_at: task.updated_at,
            text_hash: hasher.finish(),
        }
    }

    /// Within an attempt, a task is in progress first and in another state later.
    fn is_older_than(&self, other: &Self) -> bool {
        let order = |version: &Self| (version.attempt, version.status != TaskStatus::InProgress, version.updated_at);
        order(self) < order(other)
    }
}

/// The newest reported version of each task.
#[derive(Debug, Default)]
pub struct TaskDiffer {
    versions: HashMap<TaskId, TaskVersion>,
}

impl TaskDiffer {
    /// Stores `task` without an event, because it existed before the run.
    pub fn remember(&mut self, task: &Task) {
        self.versions.insert(task.id, TaskVersion::of(task));
    }

    /// Returns true if this task is stored.
    #[must_use]
    pub fn contains(&self, id: TaskId) -> bool {
        self.versions.contains_key(&id)
    }

    /// Returns the number of stored tasks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.versions.len()
    }

    /// Returns true if no task is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }

    /// Returns the events of this version of `task`; none if it is not newer.
    pub fn events_for(&mut self, task: &Task) -> Vec<EventKind> {
        let now = TaskVersion::of(task);
        let Some(before) = self.versions.get(&task.id).cloned() else {
            self.versions.insert(task.id, now.clone());
            let by = task.created_by.clone().unwrap_or_else(|| UNKNOWN_ACTOR.to_owned());
            let mut events = vec![EventKind::TaskCreated { task: task.id, subject: task.subject.clone(), by }];
            events.extend(events_between(
                &TaskVersion { owner: None, attempt: 0, status: TaskStatus::Pending, ..now },
                task,
            ));
            return events;
        };
        if now == before || now.is_older_than(&before) {
            return Vec::new();
        }
        let changed = (now.text_hash, now.status) != (before.text_hash, before.status);
        self.versions.insert(task.id, now);
        let events = events_between(&before, task);
        if events.is_empty() && changed {
            return vec![EventKind::TaskChanged {
                task: task.id,
                status: task.status.as_str().to_owned(),
                by: UNKNOWN_ACTOR.to_owned(),
            }];
        }
        events
    }

    /// Removes the tasks for which `exists` is false, and returns their events.
    pub fn events_for_deleted(&mut self, exists: impl Fn(TaskId) -> bool) -> Vec<EventKind> {
        let mut deleted: Vec<TaskId> = self.versions.keys().copied().filter(|id| !exists(*id)).collect();
        deleted.sort_unstable();
        deleted
            .into_iter()
            .map(|task| {
                self.versions.remove(&task);
                EventKind::TaskDeleted { task, by: UNKNOWN_ACTOR.to_owned() }
            })
            .collect()
    }
}

fn events_between(before: &TaskVersion, task: &Task) -> Vec<EventKind> {
    let status_before = before.status;
    let teammate = task.owner.clone().or_else(|| before.owner.clone()).unwrap_or_default();
    let (id, attempt) = (task.id, task.attempt);
    let mut events = Vec::new();
    // Released and claimed again before it was reported: the newer version yields both events.
    if status_before == TaskStatus::InProgress && attempt > before.attempt {
        let result = task.result.as_ref().filter(|_| task.status == TaskStatus::InProgress);
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
            events.push(EventKind::TaskCompleted { task: id, attempt, teammate, evidence: result.evidence })
        }
        TaskStatus::Failed if has_ended => {
            let (reason, by) = (result.summary, result.ended_by);
            events.push(EventKind::TaskFailed { task: id, attempt, teammate, reason, by })
        }
        TaskStatus::Pending if has_ended => {
            events.push(EventKind::TaskReleased {
                task: id,
                attempt,
                teammate,
                reason: result.summary,
                not_before: task.not_before,
                by: result.ended_by,
            });
        }
        TaskStatus::Pending if status_before != TaskStatus::Pending => {
            events.push(EventKind::TaskChanged {
                task: id,
                status: task.status.as_str().to_owned(),
                by: UNKNOWN_ACTOR.to_owned(),
            });
        }
        _ => {}
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::task::{Claim, TaskResult};
    use crate::domain::transition::{self, Actor, ActorKind, Change};

    fn kinds(events: &[EventKind]) -> Vec<String> {
        let kind = |event| serde_json::to_value(event).unwrap()["kind"].as_str().unwrap().to_owned();
        events.iter().map(kind).collect()
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
        assert_eq!(kinds(&differ.events_for(&new)), ["task_created"]);
        assert_eq!(kinds(&differ.events_for(&done)), ["task_claimed", "task_completed"]);
        assert!(differ.events_for(&claimed).is_empty(), "an old version yields no events");
        assert!(differ.events_for(&done).is_empty());
        assert_eq!(kinds(&differ.events_for_deleted(|_| false)), ["task_deleted"]);
    }

    #[test]
    fn release_before_next_claim_is_still_reported() {
        let [_, claimed, _] = versions();
        let release = Change::Release { reason: "no model".into(), counts: false };
        let released = transition::change(&claimed, &release, &Actor::holder("bob", 1), UnixMs(6)).unwrap();
        let again = transition::claim(&released, "eve", Claim { worker: "w".into(), at: UnixMs(7), expires: None });
        let mut differ = TaskDiffer::default();
        differ.remember(&claimed);
        let events = differ.events_for(&again);
        assert_eq!(kinds(&events), ["task_released", "task_claimed"]);
        assert!(
            matches!(&events[0], EventKind::TaskReleased { attempt: 1, teammate, .. } if teammate == "bob"),
            "{events:?}"
        );
        assert!(differ.events_for(&released).is_empty(), "it is reported once");
    }

    #[test]
    fn release_by_person_names_the_person() {
        let [_, claimed, _] = versions();
        let person = Actor::new("human", ActorKind::Person).forcing(true);
        let by = |change: &Change, actor: &Actor| {
            let mut differ = TaskDiffer::default();
            differ.remember(&claimed);
            let task = transition::change(&claimed, change, actor, UnixMs(6)).unwrap();
            match differ.events_for(&task).as_slice() {
                [EventKind::TaskReleased { by, .. } | EventKind::TaskFailed { by, .. }] => by.clone(),
                events => panic!("{events:?}"),
            }
        };
        let release = Change::Release { reason: String::new(), counts: false };
        let fail = Change::Fail { reason: "stop it".into(), is_final: true };
        for change in [&release, &fail] {
            assert_eq!(by(change, &person).as_deref(), Some("human"));
            assert_eq!(by(change, &Actor::holder("bob", 1)), None);
        }
    }

    #[test]
    fn manual_task_edit_yields_task_changed() {
        let [new, ..] = versions();
        let mut differ = TaskDiffer::default();
        differ.remember(&new);
        let edited = Task { subject: "other".into(), ..new };
        assert_eq!(kinds(&differ.events_for(&edited)), ["task_changed"]);
    }
}
