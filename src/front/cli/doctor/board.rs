//! The findings about the board, and about the usage that servers report.

use super::{Finding, fail, ok, warn};
use crate::api::findings::{self, BoardFinding};
use crate::api::refusal::restore_hint;
use crate::api::{Launch, OrderForm, Question};
use crate::domain::task::TaskId;
use crate::domain::text::units::{count, join_up_to};
use crate::front::cli::context::Context;
use crate::front::text::commands::{Hint, hint};
use crate::front::text::tasks::counts_text;
use crate::front::text::why::quarantine_text;

/// The most tasks in the command of a hint.
const HINTED_MAX: usize = 10;

/// Checks that the board can be read, and its tasks.
pub(super) async fn check_board(context: &Context) -> Vec<Finding> {
    match findings::board(&context.workspace).await {
        Ok((view, findings)) => findings.iter().map(of_board).chain([ok("board", counts_text(&view))]).collect(),
        Err(error) => vec![fail("board", error.message, Hint::of_steps(&error.next).unwrap_or_default())],
    }
}

fn of_board(finding: &BoardFinding) -> Finding {
    match finding {
        BoardFinding::Invalid(invalid) => {
            let text = format!("{} is not a valid task: {}", invalid.name, invalid.reason);
            warn("board", text, "repair it by hand; it blocks the tasks that wait for it")
        }
        BoardFinding::Quarantined { task, file } => {
            let text = format!("the file of {task} {}", quarantine_text(file));
            warn("board", text, restore_hint(*task, &file.place))
        }
        BoardFinding::Abandoned(tasks) => {
            let text = format!("tasks in progress whose worker has died: {}", join_up_to(tasks.iter(), HINTED_MAX));
            let (up, run) = (Launch::Up { team: None }, Launch::Run { team: None });
            warn("board", text, hint!["the next ", up, " or ", run, " reclaims them; or: ", release(tasks)])
        }
        BoardFinding::Cycle(tasks) => {
            let names: Vec<String> = tasks.iter().chain(tasks.first()).map(ToString::to_string).collect();
            let text = format!("tasks wait for each other: {}", names.join(" -> "));
            fail("board", text, Question::Why { task: tasks.first().copied() })
        }
        BoardFinding::Foreign(tasks) => {
            let named = join_up_to(tasks.iter(), HINTED_MAX);
            let text = format!("tasks that other programs set to in progress without a claim: {named}");
            warn("board", text, release(tasks))
        }
    }
}

/// Releases these tasks, or the first of many.
fn release(ids: &[TaskId]) -> OrderForm {
    OrderForm::Release { tasks: ids.iter().take(HINTED_MAX).copied().collect(), force: true }
}

/// Reports the models whose servers never reported a usable usage.
pub(super) async fn check_usage(context: &Context) -> Vec<Finding> {
    let models = findings::models_without_usage(&context.workspace).await.unwrap_or_default();
    let finding = |(model, requests): (String, u64)| {
        let requests = count(usize::try_from(requests).unwrap_or(usize::MAX), "request");
        let text = format!("{model}: {requests} without a usable report of usage, so the budget counts bytes");
        let hint = "let the server report usage; a budget in bytes ends a team after a quarter of the work or less";
        warn("usage", text, hint)
    };
    models.into_iter().map(finding).collect()
}
