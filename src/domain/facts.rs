//! What a change of a task means for people: the facts between two versions of it.
//!
//! Teammates tell what they did and the lead sees what others did; both hand in the task as they saw it, and may be late.
//! [`TaskBook`] keeps the newest version of each and says each fact once.

use std::collections::HashMap;

use super::event::Fact;
use super::task::{Task, TaskId, TaskStatus};
use super::time::UnixMs;

/// What is remembered of a task to tell the next version from this one.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    owner: Option<String>,
    attempt: u32,
    status: TaskStatus,
    updated_at: Option<UnixMs>,
    text_hash: u64,
}

impl Seen {
    fn of(task: &Task) -> Self {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        // Blockers go as they are finished, which is told of them; that is no news about this task.
        (&task.subject, &task.description, task.priority, &task.requires, &task.verify, &task.owner).hash(&mut hasher);
        Self {
            owner: task.owner.clone(),
            attempt: task.attempt,
            status: task.status,
            updated_at: task.updated_at,
            text_hash: hasher.finish(),
        }
    }

    /// Within one attempt a task is first in progress, then something else.
    fn is_older_than(&self, other: &Self) -> bool {
        let order = |seen: &Self| (seen.attempt, seen.status != TaskStatus::InProgress, seen.updated_at);
        order(self) < order(other)
    }
}

/// The newest version of each task that was told.
#[derive(Debug, Default)]
pub struct TaskBook {
    seen: HashMap<TaskId, Seen>,
}

impl TaskBook {
    /// Remembers `task` without telling anything: it was there before the run.
    pub fn remember(&mut self, task: &Task) {
        self.seen.insert(task.id, Seen::of(task));
    }

    /// Whether this task is remembered.
    #[must_use]
    pub fn knows(&self, id: TaskId) -> bool {
        self.seen.contains_key(&id)
    }

    /// How many tasks are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.seen.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    /// The facts this version of `task` brings; none when it is not news.
    pub fn note(&mut self, task: &Task) -> Vec<Fact> {
        let now = Seen::of(task);
        let Some(before) = self.seen.get(&task.id).cloned() else {
            self.seen.insert(task.id, now.clone());
            let by = task.created_by.clone().unwrap_or_else(|| "somebody".to_owned());
            let mut facts = vec![Fact::TaskCreated { task: task.id, subject: task.subject.clone(), by }];
            facts.extend(between(&Seen { owner: None, attempt: 0, status: TaskStatus::Pending, ..now }, task));
            return facts;
        };
        if now == before || now.is_older_than(&before) {
            return Vec::new();
        }
        let changed = (now.text_hash, now.status) != (before.text_hash, before.status);
        self.seen.insert(task.id, now);
        let facts = between(&before, task);
        if facts.is_empty() && changed {
            return vec![Fact::TaskChanged {
                task: task.id,
                status: task.status.as_str().to_owned(),
                by: "somebody".to_owned(),
            }];
        }
        facts
    }

    /// Forgets tasks that are not among `there`, and tells so.
    pub fn note_gone(&mut self, there: impl Fn(TaskId) -> bool) -> Vec<Fact> {
        let mut gone: Vec<TaskId> = self.seen.keys().copied().filter(|id| !there(*id)).collect();
        gone.sort_unstable();
        gone.into_iter()
            .map(|task| {
                self.seen.remove(&task);
                Fact::TaskDeleted { task, by: "somebody".to_owned() }
            })
            .collect()
    }
}

fn between(before: &Seen, task: &Task) -> Vec<Fact> {
    let status_before = before.status;
    let teammate = task.owner.clone().or_else(|| before.owner.clone()).unwrap_or_default();
    let (id, attempt) = (task.id, task.attempt);
    let mut facts = Vec::new();
    // Given back and claimed anew before anybody told of it: the newer version stands for both.
    if status_before == TaskStatus::InProgress && attempt > before.attempt {
        let reason = task.result.clone().filter(|_| task.status == TaskStatus::InProgress).unwrap_or_default().summary;
        let teammate = before.owner.clone().unwrap_or_default();
        facts.push(Fact::TaskReleased { task: id, attempt: before.attempt, teammate, reason, not_before: None });
    }
    let claimed_unseen =
        attempt > before.attempt || (status_before != TaskStatus::InProgress && task.status == TaskStatus::InProgress);
    if claimed_unseen && task.status != TaskStatus::Pending {
        facts.push(Fact::TaskClaimed { task: id, attempt, teammate: teammate.clone() });
    }
    let over = claimed_unseen || status_before == TaskStatus::InProgress;
    let result = task.result.clone().unwrap_or_default();
    match task.status {
        TaskStatus::Completed if over => {
            facts.push(Fact::TaskCompleted { task: id, attempt, teammate, evidence: result.evidence })
        }
        TaskStatus::Failed if over => {
            facts.push(Fact::TaskFailed { task: id, attempt, teammate, reason: result.summary })
        }
        TaskStatus::Pending if over => {
            facts.push(Fact::TaskReleased {
                task: id,
                attempt,
                teammate,
                reason: result.summary,
                not_before: task.not_before,
            });
        }
        TaskStatus::Pending if status_before != TaskStatus::Pending => {
            facts.push(Fact::TaskChanged {
                task: id,
                status: task.status.as_str().to_owned(),
                by: "somebody".to_owned(),
            });
        }
        _ => {}
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::change::{self, Actor, Change};
    use crate::domain::task::{Claim, TaskResult};

    fn kinds(facts: &[Fact]) -> Vec<String> {
        let kind = |fact| serde_json::to_value(fact).unwrap()["kind"].as_str().unwrap().to_owned();
        facts.iter().map(kind).collect()
    }

    fn life() -> [Task; 3] {
        let new = Task::new(TaskId(3), "s");
        let claimed = change::claim(&new, "bob", Claim { worker: "w".into(), at: UnixMs(5), expires: None });
        let done =
            change::change(&claimed, &Change::Complete(TaskResult::default()), &Actor::holder("bob", 1), UnixMs(5))
                .unwrap();
        [new, claimed, done]
    }

    #[test]
    fn each_fact_is_told_once_however_late_it_comes() {
        let [new, claimed, done] = life();
        let mut book = TaskBook::default();
        assert_eq!(kinds(&book.note(&new)), ["task_created"]);
        assert_eq!(kinds(&book.note(&done)), ["task_claimed", "task_completed"]);
        assert!(book.note(&claimed).is_empty(), "an old version is no news");
        assert!(book.note(&done).is_empty());
        assert_eq!(kinds(&book.note_gone(|_| false)), ["task_deleted"]);
    }

    #[test]
    fn a_release_that_was_overtaken_by_the_next_claim_is_told() {
        let [_, claimed, _] = life();
        let release = Change::Release { reason: "no model".into(), counts: false };
        let released = change::change(&claimed, &release, &Actor::holder("bob", 1), UnixMs(6)).unwrap();
        let again = change::claim(&released, "eve", Claim { worker: "w".into(), at: UnixMs(7), expires: None });
        let mut book = TaskBook::default();
        book.remember(&claimed);
        let facts = book.note(&again);
        assert_eq!(kinds(&facts), ["task_released", "task_claimed"]);
        assert!(matches!(&facts[0], Fact::TaskReleased { attempt: 1, teammate, .. } if teammate == "bob"), "{facts:?}");
        assert!(book.note(&released).is_empty(), "it is told once");
    }

    #[test]
    fn an_edit_by_hand_is_told() {
        let [new, ..] = life();
        let mut book = TaskBook::default();
        book.remember(&new);
        let edited = Task { subject: "other".into(), ..new };
        assert_eq!(kinds(&book.note(&edited)), ["task_changed"]);
    }
}
