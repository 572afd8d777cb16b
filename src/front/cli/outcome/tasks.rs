//! The outcomes of orders about tasks.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::api::task::{self, ClaimOutcome, DeletedTask, StartObstacles, TaskContext, document};
use crate::api::why::NoClaimant;
use crate::api::{OrderForm, Question};
use crate::domain::task::Task;
use crate::domain::task::transition::{Action, Actor, Change};
use crate::domain::team::name::Name;
use crate::domain::text::one_line;
use crate::domain::text::units::duration;
use crate::front::cli::context::Context;
use crate::front::cli::error::{CliError, CliResult};
use crate::front::cli::output::CommandAnswer;
use crate::front::text::commands::{Hint, hint};
use crate::front::text::style::warning;
use crate::front::text::why::{no_claimant_note, worktree_location};
use crate::front::text::{lead_status, tasks};

/// An added task as the answer.
pub async fn added(context: &Context, task: &Task) -> CliResult<CommandAnswer> {
    let answer =
        context.output.answer(&document(task), || format!("added {} {}\n", task.id, one_line(&task.subject)))?;
    Ok(answer.notes(waiting_notes(context, [task]).await))
}

/// Notes about new tasks that no teammate starts: those that no member of the team can claim, and all of them if the team is paused.
pub async fn waiting_notes<'a>(context: &Context, tasks: impl IntoIterator<Item = &'a Task>) -> Vec<Hint> {
    let StartObstacles { unclaimable, pause } = task::start_obstacles(&context.workspace, tasks).await;
    let note = |(task, reason): &(&Task, NoClaimant)| {
        warning(&one_line(&format!("{} {}: {}", task.id, task.subject, no_claimant_note(reason))))
    };
    unclaimable.iter().map(note).map(Hint::from).chain(pause.as_ref().map(lead_status::pause)).collect()
}

/// Changed tasks as the answer.
pub fn changed(context: &Context, tasks: &[Task], action: Action) -> CliResult<CommandAnswer> {
    let now = context.workspace.now();
    tasks_answer(context, tasks, tasks.len() > 1, || {
        tasks.iter().map(|task| tasks::changed(task, action, now)).collect()
    })
}

/// Returns the tasks as an answer. In JSON they are a list. Without `is_list`, the first task is the answer.
pub fn tasks_answer(
    context: &Context,
    tasks: &[Task],
    is_list: bool,
    text: impl FnOnce() -> String,
) -> CliResult<CommandAnswer> {
    let documents: Vec<_> = tasks.iter().map(document).collect();
    match documents.first() {
        Some(one) if !is_list => context.output.answer(one, text),
        _ => context.output.answer(&documents, text),
    }
}

/// The end of a claim as the answer.
pub async fn claimed(context: &Context, claim: ClaimOutcome) -> CliResult<CommandAnswer> {
    let workspace = &context.workspace;
    let (task, name, lease) = match claim {
        ClaimOutcome::Claimed { task, name, lease_s } => (task, name, Duration::from_secs(lease_s)),
        ClaimOutcome::Nothing { name, is_any_pending } => {
            let nothing = context.output.answer(&(), String::new)?;
            let mut note = Hint::from(format!("no task is claimable for {name}"));
            if is_any_pending {
                note += hint!["; ", Question::Tasks, " shows why each task waits"];
            }
            return Ok(nothing.note(note));
        }
    };
    let view = task::board(workspace).await?;
    let task_context = TaskContext::of(&view, workspace.now());
    let answer =
        context.output.answer(&document(&task), || tasks::card(&task, &[], &task_context, context.output.columns))?;
    // Without the attempt number the claim is useless.
    if let Err(error) = context.print_required(&answer.text) {
        let release = Change::Release { reason: String::new(), is_failure: false };
        let by = Actor::holder(name.as_str(), task.attempt);
        let then = match task::change(workspace, task.id, release, &by).await {
            Ok(_) => "the task was released".to_owned(),
            Err(error) => format!("the task stays claimed (attempt {}): {error}", task.attempt),
        };
        return Err(CliError::refused(format!("cannot write the output: {error}; {then}")));
    }
    Ok(CommandAnswer { text: String::new(), ..answer }.note(claim_note(&task, &name, lease)))
}

fn claim_note(task: &Task, name: &Name, lease: Duration) -> Hint {
    let claimed = format!("claimed {} {} for {}; then: ", task.id, one_line(&task.subject), duration(lease));
    let complete = OrderForm::Complete { task: task.id, by: name.to_string(), attempt: task.attempt };
    hint![claimed, complete, " (or fail, release, renew)"]
}

/// Deleted tasks as the answer.
pub fn deleted(context: &Context, deleted: &[DeletedTask]) -> CliResult<CommandAnswer> {
    let documents: Vec<_> = deleted.iter().map(|deleted| document(&deleted.task)).collect();
    let line = |DeletedTask { task, worktree, .. }: &DeletedTask| {
        let left = worktree.as_ref().map(|folder| format!("; its worktree stays: {}", worktree_location(folder)));
        format!("deleted {} {}{}\n", task.id, one_line(&task.subject), left.unwrap_or_default())
    };
    let answer = context.output.answer(&documents, || deleted.iter().map(line).collect())?;
    let plans: BTreeSet<String> = deleted.iter().filter_map(|deleted| deleted.plan.as_deref()).map(one_line).collect();
    Ok(answer.notes(plans.iter().map(|plan| {
        format!("the next import of {plan}, also at a launch, adds the deleted tasks again: delete them there too")
    })))
}
