//! What of a plan is on the board already, and what it means that the plan says something else now. Pure.
//!
//! A task that comes from a plan remembers in `metadata.imported` what the plan said: a digest of its text and fields, and the
//! tasks it was to wait for. So a change of the plan is told from a change of the board, and the board's wins: only a task that
//! stands as it was imported, and that nobody works on or has done, is brought up to a changed plan.

use serde::{Deserialize, Serialize};

use super::change::TaskEdit;
use super::document::Document;
use super::graph::TaskLookup;
use super::task::{NewTask, Task, TaskId, TaskStatus};

/// What a plan said of a task when it was imported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    /// Tells description, `requires`, `verify` and `priority` from others.
    pub text: String,
    /// The tasks it was to wait for.
    pub after: Vec<TaskId>,
}

/// What a plan means for a task that is on the board already.
#[derive(Debug, Clone, PartialEq)]
pub enum Revision {
    /// It says what it said.
    Same,
    /// It says something else, and this brings the task up to it.
    Update(Box<TaskEdit>),
    /// It says something else, and the task stays as it is.
    Keep(Kept),
}

/// Why a task stays as it is though its plan says something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Somebody changed it on the board, or it is not known what was imported.
    Changed,
    /// Somebody works on it.
    InProgress,
    /// It is done.
    Completed,
}

impl Kept {
    /// The reason, for people.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Changed => "it was changed there",
            Self::InProgress => "it is being worked on",
            Self::Completed => "it is completed",
        }
    }

    /// What to do to have the plan's text.
    #[must_use]
    pub fn hint(self, id: TaskId) -> String {
        let id = id.0;
        match self {
            Self::Changed => format!("brigade tasks rm {id}, then import the plan again; or brigade tasks update {id}"),
            Self::InProgress => format!("brigade tasks release {id} --force, then import the plan again"),
            Self::Completed => format!("brigade tasks reopen {id}, then import the plan again"),
        }
    }
}

impl Imported {
    /// What the board says of the task now, as if it had just been imported.
    #[must_use]
    pub fn of(task: &Task) -> Self {
        let text = digest(&task.description, &task.requires, task.verify.as_deref(), task.priority);
        Self { text, after: task.blocked_by.clone() }
    }

    /// What the task remembers.
    #[must_use]
    pub fn remembered(task: &Task) -> Option<Self> {
        let metadata: Document = Document::parse(task.document.raw("metadata")?.as_bytes()).ok()?;
        metadata.get("imported").ok()?
    }

    /// Has the task remember this; what else is in its metadata stays.
    pub fn remember(&self, task: &mut Task) {
        let metadata = task.document.raw("metadata").map(|raw| Document::parse(raw.as_bytes()));
        let mut metadata = metadata.and_then(Result::ok).unwrap_or_default();
        metadata.set("imported", self);
        task.document.put("metadata", &metadata);
    }

    /// Whether the task stands as this: those it waited for may be finished meanwhile.
    fn is_how_it_stands(&self, task: &Task, lookup: &dyn TaskLookup) -> bool {
        let is_open = |id: TaskId| lookup.task(id).is_some_and(|task| task.status != TaskStatus::Completed);
        let waits = |id: &TaskId| task.blocked_by.contains(id);
        self.text == Self::of(task).text
            && task.blocked_by.iter().all(|id| self.after.contains(id))
            && self.after.iter().all(|id| waits(id) || !is_open(*id))
    }
}

/// Whether nobody changed what the plan said of the task since it was imported, and a new plan may: nobody works on it or has
/// done it. Returns what it was imported as.
///
/// # Errors
/// Why it stays as it is.
pub fn may_be_revised(task: &Task, lookup: &dyn TaskLookup) -> Result<Imported, Kept> {
    match task.status {
        TaskStatus::InProgress => return Err(Kept::InProgress),
        TaskStatus::Completed => return Err(Kept::Completed),
        TaskStatus::Pending | TaskStatus::Failed => {}
    }
    // A task of an earlier version remembers nothing; one that was never touched stands as it was imported.
    let is_as_created = task.attempt == 0 && task.created_at.is_some() && task.created_at == task.updated_at;
    let remembered = Imported::remembered(task).or_else(|| is_as_created.then(|| Imported::of(task)));
    remembered.filter(|imported| imported.is_how_it_stands(task, lookup)).ok_or(Kept::Changed)
}

/// What follows for `task` from a plan that says `new` of it, and has it wait for `after`.
#[must_use]
pub fn revise(task: &Task, new: &NewTask, after: &[TaskId], lookup: &dyn TaskLookup) -> Revision {
    let text = digest(&new.description, &new.requires, new.verify.as_deref(), new.priority);
    let mut after = after.to_vec();
    after.sort_unstable();
    after.dedup();
    let wanted = Imported { text, after };
    if Imported::remembered(task).as_ref() == Some(&wanted) || wanted.is_how_it_stands(task, lookup) {
        return Revision::Same;
    }
    match may_be_revised(task, lookup) {
        Err(kept) => Revision::Keep(kept),
        Ok(before) => Revision::Update(Box::new(TaskEdit {
            description: Some(new.description.clone()),
            requires: Some(new.requires.clone()),
            verify: Some(new.verify.clone().unwrap_or_default()),
            priority: Some(new.priority),
            add_blocked_by: wanted.after.iter().filter(|id| !before.after.contains(id)).copied().collect(),
            remove_blocked_by: before.after.iter().filter(|id| !wanted.after.contains(id)).copied().collect(),
            imported: Some(Box::new(wanted)),
            ..TaskEdit::default()
        })),
    }
}

/// FNV-1a of all that a plan says of a task but its title: the same in every version, as it is kept in files.
fn digest(description: &str, requires: &[String], verify: Option<&str>, priority: i64) -> String {
    const START: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let said = serde_json::json!([description, requires, verify, priority]).to_string();
    let hash = said.bytes().fold(START, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use crate::domain::time::UnixMs;

    fn planned(description: &str) -> NewTask {
        NewTask { description: description.into(), source: Some("plan:p#T".into()), ..NewTask::default() }
    }

    fn imported(new: &NewTask) -> Task {
        new.clone().into_task(TaskId(1), &[], "human", UnixMs(5))
    }

    fn board(tasks: &[&Task]) -> BTreeMap<TaskId, Task> {
        tasks.iter().map(|task| (task.id, (*task).clone())).collect()
    }

    #[test]
    fn only_what_nobody_touched_follows_the_plan() {
        let (old, new) = (planned("a"), planned("b"));
        let task = imported(&old);
        let revised = |task: &Task| revise(task, &new, &[], &board(&[task]));
        assert_eq!(revise(&task, &old, &[], &board(&[&task])), Revision::Same);
        assert!(matches!(revised(&task), Revision::Update(edit) if edit.description.as_deref() == Some("b")));
        let with = |change: fn(&mut Task)| {
            let mut task = task.clone();
            task.updated_at = Some(UnixMs(9));
            change(&mut task);
            revised(&task)
        };
        assert!(matches!(with(|task| task.status = TaskStatus::Failed), Revision::Update(_)));
        assert!(matches!(with(|task| task.owner = Some("bob".into())), Revision::Update(_)));
        assert_eq!(with(|task| task.status = TaskStatus::InProgress), Revision::Keep(Kept::InProgress));
        assert_eq!(with(|task| task.status = TaskStatus::Completed), Revision::Keep(Kept::Completed));
        assert_eq!(with(|task| task.priority = 1), Revision::Keep(Kept::Changed));
        assert_eq!(with(|task| task.blocked_by = vec![TaskId(7)]), Revision::Keep(Kept::Changed));
        assert_eq!(with(|task| task.description = "b".into()), Revision::Same, "both say the same already");
        assert_eq!(
            with(|task| task.document.remove("metadata")),
            Revision::Keep(Kept::Changed),
            "nothing is remembered"
        );
        let mut untouched = task.clone();
        untouched.document.remove("metadata");
        assert!(matches!(revised(&untouched), Revision::Update(_)), "as it was created");
    }

    #[test]
    fn blockers_may_be_finished_meanwhile() {
        let new = planned("a");
        let mut task = imported(&new);
        Imported { after: vec![TaskId(2), TaskId(3)], ..Imported::of(&task) }.remember(&mut task);
        task.blocked_by = vec![TaskId(3)];
        let mut two = Task::new(TaskId(2), "two");
        two.status = TaskStatus::Completed;
        let three = Task::new(TaskId(3), "three");
        let ids = [TaskId(2), TaskId(3)];
        assert_eq!(revise(&task, &new, &ids, &board(&[&task, &two, &three])), Revision::Same);
        let Revision::Update(edit) = revise(&task, &new, &[TaskId(4)], &board(&[&task, &two, &three])) else {
            panic!("it is as it was imported");
        };
        assert_eq!((edit.add_blocked_by, edit.remove_blocked_by), (vec![TaskId(4)], ids.to_vec()));
        two.status = TaskStatus::Pending;
        let kept = revise(&task, &new, &[TaskId(4)], &board(&[&task, &two, &three]));
        assert_eq!(kept, Revision::Keep(Kept::Changed), "somebody took a blocker away");
    }

    #[test]
    fn what_else_is_in_the_metadata_stays() {
        let text = r#"{"id":1,"subject":"T","status":"pending","metadata":{"mine":1.50,"source":"plan:p#T"}}"#;
        let mut task = Task::parse(TaskId(1), text.as_bytes()).unwrap();
        let record = Imported::of(&task);
        record.remember(&mut task);
        assert_eq!(Imported::remembered(&task), Some(record));
        assert_eq!(task.source().as_deref(), Some("plan:p#T"));
        assert!(task.to_file().contains("\"mine\": 1.50"), "{}", task.to_file());
    }
}
