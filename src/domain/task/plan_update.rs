//! The update of imported tasks when their plan changes. Pure.
//!
//! A task from a plan stores an import record in `metadata.imported`: a digest of the plan's text and fields, and the blockers. The
//! record tells a change of the plan from a change of the board, which takes precedence. Only a task that is unchanged since its import,
//! and neither in progress nor completed, follows a changed plan.

use serde::{Deserialize, Serialize};

use super::dependencies::TaskLookup;
use super::transition::TaskEdit;
use crate::domain::task::{NewTask, Task, TaskId, TaskStatus};
use crate::domain::team::next::{Next, OrderForm};
use crate::domain::text::json_document::Document;

/// The record of an import: the plan's content for the task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportRecord {
    /// Digest of description, `requires`, `verify`, `priority` and the cap of tokens.
    pub text: String,
    /// The blockers.
    pub after: Vec<TaskId>,
}

/// The effect of a plan on a task that is already on the board.
#[derive(Debug, Clone, PartialEq)]
pub enum PlanUpdate {
    /// The plan has not changed.
    Unchanged,
    /// The plan has changed, and this edit applies the change.
    Update(Box<TaskEdit>),
    /// The plan has changed, and the task does not follow it.
    Keep(KeepReason),
}

/// The reason why a task does not follow its changed plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepReason {
    /// The task was changed on the board, or its import is not recorded.
    Changed,
    /// The task is in progress.
    InProgress,
    /// The task is completed.
    Completed,
}

impl KeepReason {
    /// Returns the reason in words for people.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Changed => "it was changed there",
            Self::InProgress => "it is in progress",
            Self::Completed => "it is completed",
        }
    }

    /// Returns the steps after which the task has the plan's text.
    pub fn next(self, id: TaskId) -> Vec<Next> {
        let tasks = vec![id];
        let order = match self {
            Self::Changed => OrderForm::Delete { tasks },
            Self::InProgress => OrderForm::Release { tasks, force: true },
            Self::Completed => OrderForm::Reopen { tasks },
        };
        vec![order.into(), "then import the plan again, to use its text".into()]
    }
}

impl ImportRecord {
    /// Returns the record of an import that would create the task as it is now.
    pub fn of(task: &Task) -> Self {
        let text = digest(&task.description, &task.requires, task.verify.as_deref(), task.priority, task.tokens_max);
        Self { text, after: task.blocked_by.clone() }
    }

    /// Returns the record stored in the task.
    pub fn stored_in(task: &Task) -> Option<Self> {
        let metadata: Document = Document::parse(task.document.raw("metadata")?.as_bytes()).ok()?;
        metadata.get("imported").ok()?
    }

    /// Stores this record in the task. Other metadata does not change.
    pub fn store_in(&self, task: &mut Task) {
        let metadata = task.document.raw("metadata").map(|raw| Document::parse(raw.as_bytes()));
        let mut metadata = metadata.and_then(Result::ok).unwrap_or_default();
        metadata.set("imported", self);
        task.document.put("metadata", &metadata);
    }

    /// Returns true if the task still has this content. Some of its blockers may be finished.
    fn matches_task(&self, task: &Task, lookup: &dyn TaskLookup) -> bool {
        let is_unfinished = |id: TaskId| lookup.task(id).is_some_and(|task| task.status != TaskStatus::Completed);
        let is_blocked_by = |id: &TaskId| task.blocked_by.contains(id);
        self.text == Self::of(task).text
            && task.blocked_by.iter().all(|id| self.after.contains(id))
            && self.after.iter().all(|id| is_blocked_by(id) || !is_unfinished(*id))
    }
}

/// Returns the import record of a task that may follow a changed plan: it is unchanged since its import, and neither in progress
/// nor completed.
///
/// # Errors
/// The reason why the task must not follow the plan.
pub fn check_updatable(task: &Task, lookup: &dyn TaskLookup) -> Result<ImportRecord, KeepReason> {
    match task.status {
        TaskStatus::InProgress | TaskStatus::Unknown => return Err(KeepReason::InProgress),
        TaskStatus::Completed => return Err(KeepReason::Completed),
        TaskStatus::Pending | TaskStatus::Failed => {}
    }
    // A task of an earlier version has no record. If it was never changed, its current content is the imported one.
    let is_as_created = task.attempt == 0 && task.created_at.is_some() && task.created_at == task.updated_at;
    let mut record = ImportRecord::stored_in(task);
    if record.is_none() && is_as_created {
        record = Some(ImportRecord::of(task));
    }
    record.filter(|record| record.matches_task(task, lookup)).ok_or(KeepReason::Changed)
}

/// Returns the effect on `task` of a plan with the content `new` and the blockers `after`.
pub fn plan_update(task: &Task, new: &NewTask, after: &[TaskId], lookup: &dyn TaskLookup) -> PlanUpdate {
    let text = digest(&new.description, &new.requires, new.verify.as_deref(), new.priority, new.tokens_max);
    let mut after = after.to_vec();
    after.sort_unstable();
    after.dedup();
    let imported = ImportRecord { text, after };
    // A completed task waits for nothing, so only its text counts.
    let has_only_new_blockers = task.status == TaskStatus::Completed && imported.text == ImportRecord::of(task).text;
    let is_known = ImportRecord::stored_in(task).as_ref() == Some(&imported);
    if is_known || has_only_new_blockers || imported.matches_task(task, lookup) {
        return PlanUpdate::Unchanged;
    }
    match check_updatable(task, lookup) {
        Err(reason) => PlanUpdate::Keep(reason),
        Ok(before) => PlanUpdate::Update(Box::new(TaskEdit {
            description: Some(new.description.clone()),
            requires: Some(new.requires.clone()),
            verify: Some(new.verify.clone().unwrap_or_default()),
            priority: Some(new.priority),
            // A new text does not lift the cap that the task reached.
            tokens_max: (new.tokens_max != task.tokens_max).then(|| new.tokens_max.unwrap_or(0)),
            add_blocked_by: imported.after.iter().filter(|id| !before.after.contains(id)).copied().collect(),
            remove_blocked_by: before.after.iter().filter(|id| !imported.after.contains(id)).copied().collect(),
            imported: Some(Box::new(imported)),
            ..TaskEdit::default()
        })),
    }
}

/// Returns the name of the plan in `source`, the source of a task with this title.
pub fn plan_of<'a>(source: &'a str, title: &str) -> Option<&'a str> {
    source.strip_prefix("plan:")?.strip_suffix(title)?.strip_suffix('#')
}

/// Returns the FNV-1a hash of a plan's content for a task except its title. Files store it, so it must be the same in every
/// version. A task without a cap has the hash of versions that had none.
fn digest(
    description: &str,
    requires: &[String],
    verify: Option<&str>,
    priority: i64,
    tokens_max: Option<u64>,
) -> String {
    const START: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let content = match tokens_max {
        None => serde_json::json!([description, requires, verify, priority]).to_string(),
        Some(_) => serde_json::json!([description, requires, verify, priority, tokens_max]).to_string(),
    };
    let hash = content.bytes().fold(START, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
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
    fn only_untouched_imported_task_follows_plan() {
        let (old, new) = (planned("a"), planned("b"));
        let task = imported(&old);
        let revised = |task: &Task| plan_update(task, &new, &[], &board(&[task]));
        assert_eq!(plan_update(&task, &old, &[], &board(&[&task])), PlanUpdate::Unchanged);
        assert!(matches!(revised(&task), PlanUpdate::Update(edit) if edit.description.as_deref() == Some("b")));
        let with = |change: fn(&mut Task)| {
            let mut task = task.clone();
            task.updated_at = Some(UnixMs(9));
            change(&mut task);
            revised(&task)
        };
        assert!(matches!(with(|task| task.status = TaskStatus::Failed), PlanUpdate::Update(_)));
        assert!(matches!(with(|task| task.owner = Some("bob".into())), PlanUpdate::Update(_)));
        assert_eq!(with(|task| task.status = TaskStatus::InProgress), PlanUpdate::Keep(KeepReason::InProgress));
        assert_eq!(with(|task| task.status = TaskStatus::Completed), PlanUpdate::Keep(KeepReason::Completed));
        let mut done = task.clone();
        done.status = TaskStatus::Completed;
        assert_eq!(
            plan_update(&done, &old, &[TaskId(7)], &board(&[&done])),
            PlanUpdate::Unchanged,
            "only blockers differ"
        );
        assert_eq!(with(|task| task.priority = 1), PlanUpdate::Keep(KeepReason::Changed));
        assert_eq!(with(|task| task.blocked_by = vec![TaskId(7)]), PlanUpdate::Keep(KeepReason::Changed));
        assert_eq!(with(|task| task.description = "b".into()), PlanUpdate::Unchanged, "board and plan already agree");
        assert_eq!(
            with(|task| task.document.remove("metadata")),
            PlanUpdate::Keep(KeepReason::Changed),
            "no record is stored"
        );
        let mut untouched = task.clone();
        untouched.document.remove("metadata");
        assert!(matches!(revised(&untouched), PlanUpdate::Update(_)), "unchanged since its creation");
    }

    #[test]
    fn completed_blocker_does_not_stop_plan_update() {
        let new = planned("a");
        let mut task = imported(&new);
        ImportRecord { after: vec![TaskId(2), TaskId(3)], ..ImportRecord::of(&task) }.store_in(&mut task);
        task.blocked_by = vec![TaskId(3)];
        let mut two = Task::new(TaskId(2), "two");
        two.status = TaskStatus::Completed;
        let three = Task::new(TaskId(3), "three");
        let ids = [TaskId(2), TaskId(3)];
        assert_eq!(plan_update(&task, &new, &ids, &board(&[&task, &two, &three])), PlanUpdate::Unchanged);
        let PlanUpdate::Update(edit) = plan_update(&task, &new, &[TaskId(4)], &board(&[&task, &two, &three])) else {
            panic!("it is unchanged since its import");
        };
        assert_eq!((edit.add_blocked_by, edit.remove_blocked_by), (vec![TaskId(4)], ids.to_vec()));
        two.status = TaskStatus::Pending;
        let update = plan_update(&task, &new, &[TaskId(4)], &board(&[&task, &two, &three]));
        assert_eq!(update, PlanUpdate::Keep(KeepReason::Changed), "a blocker was removed on the board");
    }

    #[test]
    fn import_record_keeps_other_metadata() {
        let text = r#"{"id":1,"subject":"T","status":"pending","metadata":{"mine":1.50,"source":"plan:p#T"}}"#;
        let mut task = Task::parse(TaskId(1), text.as_bytes()).unwrap();
        let record = ImportRecord::of(&task);
        record.store_in(&mut task);
        assert_eq!(ImportRecord::stored_in(&task), Some(record));
        assert_eq!(task.source().as_deref(), Some("plan:p#T"));
        assert!(task.to_file().contains("\"mine\": 1.50"), "{}", task.to_file());
    }
}
