//! The checks of the board.

use super::{Finding, fail, ok, warn};
use crate::api::refusal::restore_hint;
use crate::api::task::abandoned_tasks;
use crate::api::{Launch, OrderForm, Question};
use crate::domain::task::TaskId;
use crate::domain::task::dependencies::{find_cycles, unfinished_blockers};
use crate::front::cli::context::Context;
use crate::front::text::commands::{Hint, hint};
use crate::front::text::lines::join_up_to;
use crate::front::text::tasks::counts_text;
use crate::front::text::why::set_aside;
use crate::ports::BoardView;
use crate::stores::workspace::OpenMode;

/// The most tasks in the command of a hint.
const HINTED_MAX: usize = 10;

/// Checks that the board can be read, and its tasks.
pub(super) async fn check_board(context: &Context) -> Vec<Finding> {
    let board = match context.workspace.board(OpenMode::ReadOnly).await {
        Ok(board) => board,
        Err(error) => return vec![fail("board", error.message, Hint::of_steps(&error.next).unwrap_or_default())],
    };
    let (view, quarantined_tasks) = match (board.view().await, board.quarantined_tasks().await) {
        (Ok(view), Ok(quarantined_tasks)) => (view, quarantined_tasks),
        (Err(error), _) | (_, Err(error)) => return vec![fail("board", error.to_string(), "")],
    };
    let mut findings = Vec::new();
    for invalid in &view.invalid {
        let text = format!("{} is not a valid task: {}", invalid.name, invalid.reason);
        findings.push(warn("board", text, "repair it by hand; it blocks the tasks that wait for it"));
    }
    let is_missing = |id: &TaskId| !view.tasks.contains_key(id);
    for (id, task) in quarantined_tasks.iter().filter(|(id, _)| is_missing(id)) {
        let text = format!("the file of {id} {}", set_aside(task));
        findings.push(warn("board", text, restore_hint(*id, &task.place)));
    }
    findings.extend(check_abandoned_tasks(context, &view).await);
    let blockers_of = |id: TaskId| {
        let task = view.tasks.get(&id).into_iter();
        task.flat_map(|task| unfinished_blockers(task, view.as_ref())).map(|blocker| blocker.id).collect()
    };
    for cycle in find_cycles(view.tasks.keys().copied(), blockers_of, |_| true) {
        let names: Vec<String> = cycle.iter().chain(cycle.first()).map(ToString::to_string).collect();
        let hint = Question::Why { task: cycle.first().copied() };
        findings.push(fail("board", format!("tasks wait for each other: {}", names.join(" -> ")), hint));
    }
    let foreign: Vec<TaskId> = view.tasks.values().filter(|task| task.is_foreign()).map(|task| task.id).collect();
    if !foreign.is_empty() {
        let text = format!(
            "tasks that other programs set to in progress without a claim: {}",
            join_up_to(foreign.iter(), HINTED_MAX)
        );
        findings.push(warn("board", text, release(&foreign)));
    }
    findings.push(ok("board", counts_text(&view)));
    findings
}

/// Reports the tasks of dead workers.
async fn check_abandoned_tasks(context: &Context, view: &BoardView) -> Option<Finding> {
    let ids: Vec<TaskId> = abandoned_tasks(&context.workspace, view).await.iter().map(|task| task.id).collect();
    if ids.is_empty() {
        return None;
    }
    let text = format!("tasks in progress whose worker has died: {}", join_up_to(ids.iter(), HINTED_MAX));
    let (up, run) = (Launch::Up { team: None }, Launch::Run { team: None });
    let hint = hint!["the next ", up, " or ", run, " reclaims them; or: ", release(&ids)];
    Some(warn("board", text, hint))
}

/// Releases these tasks, or the first of many.
fn release(ids: &[TaskId]) -> OrderForm {
    OrderForm::Release { tasks: ids.iter().take(HINTED_MAX).copied().collect(), force: true }
}
