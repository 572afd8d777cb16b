//! Imports a plan: adds new tasks, updates those that only the plan has changed, and reports the other differences.
//! [`crate::domain::task::plan_update`] decides about each task.

use std::collections::HashSet;

use crate::domain::task::plan_update::{PlanUpdate, plan_of, plan_update};
use crate::domain::task::transition::{Actor, Change, TaskEdit};
use crate::domain::task::{NewTask, Task, TaskId, TaskStatus};
use crate::domain::team::next::{Next, OrderForm};
use crate::domain::team::question::Question;
use crate::ports::{Board, BoardView, StoreResult};

/// The result of an import.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Import {
    /// Tasks that were added to the board.
    pub added: Vec<Task>,
    /// Tasks that were updated to the plan's text.
    pub updated: Vec<Task>,
    /// The number of tasks that were on the board before, updated or not.
    pub existing: usize,
    /// Differences between plan and board that remain, for people.
    pub differences: Vec<Difference>,
}

/// A task that differs between board and plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The task.
    pub task: TaskId,
    /// The difference, and the reason why the board's text is used.
    pub text: String,
    /// The steps that resolve it.
    pub next: Vec<Next>,
}

/// Adds the tasks of a plan to the board, or updates those that are there.
///
/// # Errors
/// The board refuses the tasks; then none was added. A task that cannot be updated is a difference instead.
pub async fn import(board: &dyn Board, by: &Actor, tasks: Vec<NewTask>) -> StoreResult<Import> {
    let tasks: Vec<NewTask> = tasks.into_iter().map(NewTask::trimmed).collect();
    let view = board.view().await?;
    let before: HashSet<TaskId> = view.tasks.keys().copied().collect();
    let differences = possible_duplicates(board, view.as_ref(), &tasks).await?;
    if !differences.is_empty() {
        return Ok(Import { differences, existing: before.len(), ..Import::default() });
    }
    let on_board = board.create(by, tasks.clone(), true).await?;
    let ids: Vec<TaskId> = on_board.iter().map(|task| task.id).collect();
    let (existing, added): (Vec<_>, Vec<_>) = on_board.into_iter().partition(|task| before.contains(&task.id));
    let mut import = Import { added, existing: existing.len(), ..Import::default() };
    if !existing.is_empty() {
        let view = board.view().await?;
        let mut updates = Vec::new();
        for (new, id) in tasks.iter().zip(&ids).filter(|(_, id)| before.contains(id)) {
            let after: Vec<TaskId> = new.blocked_by_new.iter().filter_map(|index| ids.get(*index).copied()).collect();
            let Some(task) = view.tasks.get(id) else { continue };
            match plan_update(task, new, &after, view.as_ref()) {
                PlanUpdate::Unchanged => {}
                PlanUpdate::Update(edit) => updates.push((new, *id, *edit)),
                PlanUpdate::Keep(keep) => import.differences.push(difference(new, *id, keep.reason(), keep.next(*id))),
            }
        }
        apply_edits(board, by, updates, &mut import).await;
    }
    import.differences.extend(removed_from_plan(&tasks, board.view().await?.as_ref()));
    import.differences.sort_by_key(|difference| difference.task);
    Ok(import)
}

/// Returns the tasks with an invalid file, if the plan has tasks that are not on the board. Each may be one of them: an invalid file does
/// not tell its source.
async fn possible_duplicates(board: &dyn Board, view: &BoardView, tasks: &[NewTask]) -> StoreResult<Vec<Difference>> {
    let on_board: HashSet<String> = view.tasks.values().filter_map(|task| task.source()).collect();
    if tasks.iter().all(|task| task.source.as_ref().is_some_and(|source| on_board.contains(source))) {
        return Ok(Vec::new());
    }
    let describe = |(id, place): (TaskId, String)| Difference {
        task: id,
        text: format!("no task of the plan was added or updated: it may have {id}, whose file {place} is invalid"),
        next: vec![Question::Why { task: Some(id) }.into()],
    };
    Ok(board.invalid_tasks(view).await?.into_iter().map(describe).collect())
}

/// Makes the edits. Refused edits are repeated as long as others succeed, because the order of edits may cause a cycle.
async fn apply_edits(board: &dyn Board, by: &Actor, mut edits: Vec<(&NewTask, TaskId, TaskEdit)>, import: &mut Import) {
    loop {
        let count = edits.len();
        let mut refused = Vec::new();
        for (new, id, edit) in edits {
            match board.change(id, Change::Edit(edit.clone()), by).await {
                Ok(task) => import.updated.push(task),
                Err(error) => refused.push((error.to_string(), (new, id, edit))),
            }
        }
        if refused.is_empty() || refused.len() == count {
            let kept = |(error, (new, task, _)): &(String, (&NewTask, TaskId, TaskEdit))| {
                let update = OrderForm::Update { task: *task, change: None };
                difference(new, *task, error, vec![update.into()])
            };
            import.differences.extend(refused.iter().map(kept));
            break;
        }
        edits = refused.into_iter().map(|(_, edit)| edit).collect();
    }
    import.updated.sort_by_key(|task| task.id);
}

fn difference(new: &NewTask, task: TaskId, reason: &str, next: Vec<Next>) -> Difference {
    let line = new.source_line.map(|line| format!(" line {line}")).unwrap_or_default();
    let plan = new.source.as_deref().and_then(|source| plan_of(source, &new.subject)).unwrap_or("its plan");
    let text = format!("{task} {} differs from {plan}{line}: the board's text is used, because {reason}", new.subject);
    Difference { task, text, next }
}

/// Returns unfinished tasks that came from the plan and are no longer in it.
fn removed_from_plan(tasks: &[NewTask], view: &BoardView) -> Vec<Difference> {
    let first = tasks.first().and_then(|task| plan_of(task.source.as_deref()?, &task.subject));
    let Some(plan) = first else { return Vec::new() };
    let prefix = format!("plan:{plan}#");
    let present: HashSet<&str> = tasks.iter().filter_map(|task| task.source.as_deref()).collect();
    let is_removed = |task: &&Task| {
        task.status != TaskStatus::Completed
            && task.source().is_some_and(|source| source.starts_with(&prefix) && !present.contains(source.as_str()))
    };
    let describe = |task: &Task| Difference {
        task: task.id,
        text: format!("{} {} is no longer in {plan}, but stays on the board", task.id, task.subject),
        next: vec![OrderForm::Delete { tasks: vec![task.id] }.into()],
    };
    view.tasks.values().map(AsRef::as_ref).filter(is_removed).map(describe).collect()
}
