//! `task_update`: reports the result of a task, and changes its text, order and dependencies.
//!
//! A task with a verify command is completed only after that command exited 0 here. The board decides who can make a change, by
//! the rules of `domain::transition`.

use serde_json::Value;

use super::adapter::{TypedTool, text_argument};
use super::arguments::{Arguments, Parameter, ParameterType, optional, required};
use super::task_create::{actor, checked_description, checked_subject};
use super::{ReadOnly, ToolContext, ToolEffect, ToolError, ToolOutput};
use crate::domain::task::{TaskId, TaskStatus};
use crate::domain::transition::{Actor, Change, TaskEdit};
use crate::domain::worktree_name::WorktreeName;
use crate::service::completion::{Completion, CompletionGate, Incomplete, TaskReport, UnmergedWork, WorkPlace};
use crate::service::verify::{REFUSALS_MAX, RefusalCounter};

/// The longest result, in bytes.
const RESULT_BYTES_MAX: usize = 16 * 1024;

/// Arguments that do not edit the task.
const NOT_EDITS: [&str; 5] = ["task_id", "status", "result", "final", "force"];

#[derive(Default)]
pub(super) struct TaskUpdate {
    refusals: RefusalCounter,
}

#[async_trait::async_trait]
impl TypedTool for TaskUpdate {
    const NAME: &'static str = "task_update";
    const DESCRIPTION: &'static str = "Reports the task you hold: `completed`, `failed`, or `pending` to release it. `completed` runs the task's verify command. If it fails, you get its output and still hold the task: fix the cause and report again (3 failures end the attempt). A failed task is retried later, unless `final` is true. The lead uses `pending` to retry a failed task or reopen a completed one, and `deleted` to remove a task. The lead, the creator and the holder of a task change its text, order and dependencies with the other arguments.";
    const PARAMETERS: &'static [Parameter] = &[
        required("task_id", ParameterType::Task, "The task's number"),
        optional(
            "status",
            ParameterType::Word(&["pending", "in_progress", "completed", "failed", "deleted"]),
            "The new status",
        ),
        optional("result", ParameterType::Text, "What you did and the evidence, or why it failed"),
        optional("final", ParameterType::Boolean, "With `failed`: do not retry"),
        optional("add_blocked_by", ParameterType::Tasks, "Tasks to complete before this one"),
        optional("remove_blocked_by", ParameterType::Tasks, "Tasks that need not be completed first"),
        optional("add_blocks", ParameterType::Tasks, "Tasks that must wait for this one"),
        optional("subject", ParameterType::Text, "The goal, in one line"),
        optional("description", ParameterType::Text, "The full description"),
        optional("priority", ParameterType::Integer, "Higher is claimed first"),
        optional("requires", ParameterType::Texts, "Roles or capabilities, one is needed; [] for all members"),
        optional("verify", ParameterType::Text, "A command that must exit 0; empty removes it"),
        optional("active_form", ParameterType::Text, "The subject in progress, such as `Counting lines`"),
        optional("owner", ParameterType::Text, "Reserves a pending task for a member; empty for all"),
        optional("force", ParameterType::Boolean, "The lead only: do it although a teammate holds the task"),
    ];

    fn about(&self, input: &Value) -> String {
        format!("#{} {}", text_argument(input, "task_id").trim_start_matches('#'), text_argument(input, "status"))
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let call = UpdateCall::of(&arguments, context)?;
        let mut texts = Vec::new();
        if arguments.has_other_than(&NOT_EDITS) {
            let edited = context.stores.board.change(call.id, Change::Edit(edit(&arguments)?), &call.by).await?;
            texts.push(format!("changed task {}", edited.id));
        } else if call.status.is_none() {
            return Err(ToolError::Recoverable(
                "nothing to change: give `status` to report the task, or an argument to edit".to_owned(),
            ));
        }
        let mut output = match call.status {
            Some("completed") => self.complete(&call, context).await,
            Some("failed") => self.fail(&call, context).await,
            Some("pending") => self.reset(&call, context).await,
            Some("deleted") => delete(&call, context).await,
            Some(_) => Err(ToolError::Recoverable(
                "`in_progress` cannot be set: use `claim_task` to claim the task".to_owned(),
            )),
            None => Ok(ToolOutput::default()),
        }?;
        if !output.text.is_empty() {
            texts.push(std::mem::take(&mut output.text));
        }
        Ok(ToolOutput { text: texts.join("\n"), ..output })
    }
}

/// The checked call.
struct UpdateCall<'a> {
    id: TaskId,
    status: Option<&'a str>,
    result: String,
    is_final: bool,
    by: Actor,
    /// True if the caller holds this task.
    is_holder: bool,
}

impl<'a> UpdateCall<'a> {
    fn of(arguments: &'a Arguments, context: &ToolContext) -> Result<Self, ToolError> {
        let id = arguments.task("task_id");
        let result = arguments.optional_text("result").unwrap_or_default().trim().to_owned();
        if result.len() > RESULT_BYTES_MAX {
            return Err(ToolError::Recoverable(format!(
                "argument `result` has {} bytes, at most {RESULT_BYTES_MAX} are allowed; write it into a file and name the file",
                result.len()
            )));
        }
        let attempt = context.claim.borrow().filter(|claim| claim.task == id).map(|claim| claim.attempt);
        let force = arguments.flag("force");
        if force && !context.caller.is_lead {
            return Err(ToolError::Recoverable("`force` is only for the lead".to_owned()));
        }
        let by = Actor { attempt, ..actor(context) }.forcing(force);
        let (status, is_final) = (arguments.optional_text("status"), arguments.flag("final"));
        Ok(Self { id, status, result, is_final, is_holder: attempt.is_some(), by })
    }

    /// The effect of a report that ends the attempt: none if another member held the task.
    fn effect(&self) -> ToolEffect {
        if self.is_holder { ToolEffect::Finished } else { ToolEffect::None }
    }
}

impl TaskUpdate {
    async fn complete(&self, call: &UpdateCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        if call.is_holder && context.working_dir.read_only == Some(ReadOnly::NoPlan) {
            return Err(ToolError::Recoverable(ReadOnly::NoPlan.explanation().to_owned()));
        }
        let worktree =
            context.working_dir.task_worktree.as_ref().filter(|worktree| worktree.assignment.task == call.id);
        let place = match (worktree, context.stores.board.get(call.id).await?.worktree) {
            (Some(worktree), _) if call.is_holder => WorkPlace::Worktree(worktree),
            (_, Some(name)) if !call.is_holder => {
                let branch = WorktreeName::of_folder(&name).map_or(name, |worktree| worktree.branch());
                WorkPlace::Elsewhere(UnmergedWork { branches: vec![branch], ..UnmergedWork::default() })
            }
            _ => WorkPlace::Workspace,
        };
        let gate = CompletionGate {
            stores: &context.stores,
            clock: context.clock.as_ref(),
            by: &call.by,
            verifier: &context.verifier(),
            place,
            reviewer: context.reviewer(),
            refusals: Some(&self.refusals),
        };
        let (summary, commit_message) = (call.result.clone(), call.result.clone());
        let completion =
            gate.complete(call.id, TaskReport { summary, commit_message, ..TaskReport::default() }).await?;
        completion_output(call, completion)
    }

    async fn fail(&self, call: &UpdateCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        if call.result.is_empty() {
            return Err(ToolError::Recoverable(
                "argument `result` is missing: give the reason why the task failed".to_owned(),
            ));
        }
        let change = Change::Fail { reason: call.result.clone(), is_final: call.is_final };
        let task = context.stores.board.change(call.id, change, &call.by).await?;
        let text = match task.status {
            TaskStatus::Failed => format!("task {} has failed and will not be retried", task.id),
            _ => format!("this attempt of task {} has failed; the task will be retried", task.id),
        };
        Ok(ToolOutput { text, effect: call.effect() })
    }

    async fn reset(&self, call: &UpdateCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let task = context.stores.board.get(call.id).await?;
        let (change, what) = match task.status {
            TaskStatus::InProgress => (
                Change::Release { reason: call.result.clone(), counts: false },
                "is released; other members can claim it",
            ),
            TaskStatus::Failed => (Change::Retry, "will be retried"),
            TaskStatus::Completed => (Change::Reopen, "is open again"),
            TaskStatus::Pending => return Ok(ToolOutput::text(format!("task {} is pending already", call.id))),
        };
        context.stores.board.change(call.id, change, &call.by).await?;
        Ok(ToolOutput { text: format!("task {} {what}", call.id), effect: call.effect() })
    }
}

/// The result of a completion, for the model.
fn completion_output(call: &UpdateCall<'_>, completion: Completion) -> Result<ToolOutput, ToolError> {
    let id = call.id;
    match completion {
        Completion::Completed(task) => {
            let evidence = task.result.map(|result| result.evidence).filter(|evidence| !evidence.is_empty());
            let evidence = evidence.map(|evidence| format!(" ({evidence})")).unwrap_or_default();
            Ok(ToolOutput { text: format!("task {id} is completed{evidence}"), effect: call.effect() })
        }
        Completion::Incomplete(Incomplete::ReviewPending { id: review, to, .. }) => Ok(ToolOutput::text(format!(
            "task {id} waits for review {review} by {to}; end your turn now, the answer will come as mail"
        ))),
        Completion::Incomplete(Incomplete::ReviewRejected { feedback }) => Err(ToolError::Recoverable(format!(
            "the review rejected this work, and nothing has changed since: {feedback}"
        ))),
        Completion::Incomplete(Incomplete::Refused { refusal, count }) => {
            let count = count.map(|count| format!(" (failure {count} of {REFUSALS_MAX})")).unwrap_or_default();
            Err(ToolError::Recoverable(format!(
                "{}; task {id} stays in progress{count}.\n{}",
                refusal.sentence, refusal.evidence
            )))
        }
        Completion::Incomplete(Incomplete::NotMerged(_)) => Err(ToolError::Recoverable(
            "the work is in a worktree, and is merged only when the task's holder reports it. Set the task to `pending`, so that a teammate can claim and report it. A person can complete the task without the merge".to_owned(),
        )),
        Completion::Incomplete(Incomplete::AttemptFailed { reason }) => {
            let text = format!("{reason}; this attempt of task {id} has failed and is over");
            Ok(ToolOutput { text, effect: call.effect() })
        }
    }
}

async fn delete(call: &UpdateCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
    let task = context.stores.board.delete(call.id, &call.by).await?;
    Ok(ToolOutput { text: format!("task {} is deleted", task.id), effect: call.effect() })
}

fn edit(arguments: &Arguments) -> Result<TaskEdit, ToolError> {
    let text = |name: &str| arguments.optional_text(name).map(str::to_owned);
    Ok(TaskEdit {
        subject: arguments.optional_text("subject").map(checked_subject).transpose()?,
        description: arguments.optional_text("description").map(checked_description).transpose()?,
        active_form: text("active_form"),
        priority: arguments.integer("priority"),
        requires: arguments.texts("requires"),
        verify: text("verify"),
        owner: text("owner"),
        max_attempts: None,
        add_blocked_by: arguments.tasks("add_blocked_by"),
        remove_blocked_by: arguments.tasks("remove_blocked_by"),
        add_blocks: arguments.tasks("add_blocks"),
        imported: None,
    })
}
