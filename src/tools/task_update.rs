//! `task_update`: reports the result of a task, and changes its text, order and dependencies.
//!
//! A task with a verify command is completed only after that command exited 0 here. The board decides who can make a change, by
//! the rules of `domain::transition`.

use serde::Serialize;
use serde_json::json;

use super::prelude::*;
use super::task_create::actor;
use crate::domain::log::event::REPORT_TOOL;
use crate::domain::task::transition::{Actor, Change, TaskEdit};
use crate::domain::task::{TaskId, TaskStatus};
use crate::domain::team::member_place::ReadOnly;
use crate::service::completion::{Completion, CompletionGate, Incomplete, TaskReport, WorkPlace, completed_message};
use crate::service::task_creation::check_description;

/// The longest result, in bytes.
const RESULT_BYTES_MAX: usize = 16 * 1024;

/// Reports your task: `completed`, `failed`, or `pending` to give it back. If its verify command fails, you get the output
/// and still hold the task.
#[derive(Deserialize, JsonSchema)]
pub(super) struct TaskUpdate {
    task_id: TaskId,
    status: Option<NewStatus>,
    /// The work and its evidence, or why it failed
    result: Option<String>,
    /// With `failed`: do not retry
    #[serde(default, rename = "final")]
    is_final: bool,
    /// Tasks to complete first
    #[serde(default)]
    add_blocked_by: Vec<TaskId>,
    #[serde(default)]
    #[schemars(extend("shown_to" = "lead"))]
    remove_blocked_by: Vec<TaskId>,
    // A model adds a blocker to the other task instead.
    #[serde(default)]
    #[schemars(extend("shown_to" = "no_one"))]
    add_blocks: Vec<TaskId>,
    #[schemars(extend("shown_to" = "lead"))]
    subject: Option<String>,
    #[schemars(extend("shown_to" = "lead"))]
    description: Option<String>,
    #[schemars(extend("shown_to" = "lead"))]
    priority: Option<i64>,
    /// [] for all members
    #[schemars(extend("shown_to" = "lead"))]
    requires: Option<Vec<String>>,
    /// Empty removes it
    #[schemars(extend("shown_to" = "lead"))]
    verify: Option<String>,
    #[schemars(extend("shown_to" = "no_one"))]
    active_form: Option<String>,
    /// Only this member can claim it; empty for all
    #[schemars(extend("shown_to" = "lead"))]
    owner: Option<String>,
    /// Do it although a teammate holds the task
    #[serde(default)]
    #[schemars(extend("shown_to" = "lead"))]
    force: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum NewStatus {
    Pending,
    InProgress,
    Completed,
    Failed,
    Deleted,
}

impl TypedTool for TaskUpdate {
    const NAME: &'static str = REPORT_TOOL;
    const FOR_LEAD: &'static str =
        "Changes a task. `pending` gives it back, retries it or reopens it; `deleted` removes it.";

    fn about(&self) -> String {
        format!("{} {}", self.task_id, json!(self.status).as_str().unwrap_or_default())
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let report = Report::of(&self, context)?;
        let status = self.status;
        let edit = self.into_edit()?;
        let mut texts = Vec::new();
        if edit != TaskEdit::default() {
            let edited = context.stores.board.change(report.id, Change::Edit(edit), &report.by).await?;
            texts.push(format!("changed task {}", edited.id));
        } else if status.is_none() {
            return Err(ToolError::Recoverable(
                "nothing to change: give `status` to report the task, or an argument to edit".to_owned(),
            ));
        }
        let mut output = match status {
            Some(NewStatus::Completed) => report.complete(context).await,
            Some(NewStatus::Failed) => report.fail(context).await,
            Some(NewStatus::Pending) => report.reset(context).await,
            Some(NewStatus::Deleted) => report.delete(context).await,
            Some(NewStatus::InProgress) => Err(ToolError::Recoverable(
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

impl TaskUpdate {
    fn into_edit(self) -> Result<TaskEdit, ToolError> {
        check_description(self.description.as_deref().unwrap_or_default())?;
        // A completed task waits for no other. Small models name blockers that do not exist, and the report counts.
        let add_blocked_by = if self.status == Some(NewStatus::Completed) { Vec::new() } else { self.add_blocked_by };
        Ok(TaskEdit {
            subject: self.subject,
            description: self.description,
            active_form: self.active_form,
            priority: self.priority,
            requires: self.requires,
            verify: self.verify,
            owner: self.owner,
            max_attempts: None,
            tokens_max: None,
            add_blocked_by,
            remove_blocked_by: self.remove_blocked_by,
            add_blocks: self.add_blocks,
            imported: None,
        })
    }
}

/// The checked report of a call.
struct Report {
    id: TaskId,
    result: String,
    is_final: bool,
    by: Actor,
    /// True if the caller holds this task.
    is_holder: bool,
}

impl Report {
    fn of(call: &TaskUpdate, context: &ToolContext) -> Result<Self, ToolError> {
        let id = call.task_id;
        let result = call.result.as_deref().unwrap_or_default().trim().to_owned();
        check_size("result", &result, RESULT_BYTES_MAX, "; write it into a file and name the file")?;
        let attempt = context.caller.claim.borrow().filter(|claim| claim.task == id).map(|claim| claim.attempt);
        if call.force && !context.caller.is_lead {
            return Err(ToolError::Recoverable("`force` is only for the lead".to_owned()));
        }
        let by = Actor { attempt, ..actor(context) }.forcing(call.force);
        Ok(Self { id, result, is_final: call.is_final, is_holder: attempt.is_some(), by })
    }

    /// The effect of a report that ends the attempt: none if another member held the task.
    fn effect(&self) -> ToolEffect {
        if self.is_holder { ToolEffect::Finished } else { ToolEffect::None }
    }

    async fn complete(&self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        if self.is_holder && context.working_dir.read_only == Some(ReadOnly::NoPlan) {
            return Err(ToolError::Recoverable(ReadOnly::NoPlan.explanation().to_owned()));
        }
        let task = context.stores.board.get(self.id).await?;
        let worktree = context.working_dir.task_worktree.as_deref();
        let place = WorkPlace::find(&task, &self.by, worktree, context.work_inspector.as_deref()).await;
        let place = place.map_err(|error| ToolError::Recoverable(error.to_string()))?;
        let gate = CompletionGate { place, ..context.completion_gate(self.by.clone()) };
        let report =
            TaskReport { summary: self.result.clone(), commit_message: self.result.clone(), ..TaskReport::default() };
        let completion = gate.complete(self.id, report).await?;
        self.completion_output(completion)
    }

    async fn fail(&self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        if self.result.is_empty() {
            return Err(ToolError::Recoverable(
                "argument `result` is missing: give the reason why the task failed".to_owned(),
            ));
        }
        self.check_evidence("failed", context).await?;
        let change = Change::Fail { reason: self.result.clone(), is_final: self.is_final };
        let task = context.stores.board.change(self.id, change, &self.by).await?;
        let text = match task.status {
            TaskStatus::Failed => format!("task {} has failed and will not be retried", task.id),
            _ => format!("this attempt of task {} has failed; the task will be retried", task.id),
        };
        Ok(ToolOutput { text, effect: self.effect() })
    }

    /// Refuses the report that the task is not done if the agent did some work and verify exits 0. A second such report counts.
    async fn check_evidence(&self, status: &str, context: &ToolContext) -> Result<(), ToolError> {
        let claim = *context.caller.claim.borrow();
        let Some(claim) = claim.filter(|claim| claim.task == self.id) else { return Ok(()) };
        let log = &context.caller.attempt_log;
        if !log.activity(claim).has_worked || log.record_failure_report(claim) {
            return Ok(());
        }
        let task = context.stores.board.get(self.id).await?;
        if !context.completion_gate(self.by.clone()).has_green_verify(&task).await? {
            return Ok(());
        }
        Err(ToolError::Recoverable(format!(
            "the work may be done: verify exits 0. Report `completed` if it is. Otherwise report `{status}` again"
        )))
    }

    async fn reset(&self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        self.check_evidence("pending", context).await?;
        let task = context.stores.board.get(self.id).await?;
        let claim = *context.caller.claim.borrow();
        // An agent that claims and gives back the same task would do so forever. A blocked one cannot be claimed.
        let is_given_back_again = claim
            .filter(|claim| claim.task == self.id && task.blocked_by.is_empty())
            .is_some_and(|claim| context.caller.attempt_log.record_give_back(claim));
        let (change, what) = match task.status {
            TaskStatus::InProgress if is_given_back_again => (
                Change::Release { reason: self.give_back_reason(), is_failure: true },
                "is released. You gave it back before, so this counts as a failed attempt",
            ),
            TaskStatus::InProgress => (
                Change::Release { reason: self.result.clone(), is_failure: false },
                if task.reserved_for.is_none() { "is released; other members can claim it" } else { "is released" },
            ),
            TaskStatus::Failed => (Change::Retry, "will be retried"),
            TaskStatus::Completed => (Change::Reopen, "is open again"),
            TaskStatus::Pending => return Ok(ToolOutput::text(format!("task {} is pending already", self.id))),
            TaskStatus::Unknown => {
                let text = format!("task {} has a status of another program, which only that program changes", self.id);
                return Err(ToolError::Recoverable(text));
            }
        };
        context.stores.board.change(self.id, change, &self.by).await?;
        Ok(ToolOutput { text: format!("task {} {what}", self.id), effect: self.effect() })
    }

    fn give_back_reason(&self) -> String {
        let reason = "its teammate gave it back again";
        if self.result.is_empty() { reason.to_owned() } else { format!("{reason}: {}", self.result) }
    }

    async fn delete(&self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let task = context.stores.board.delete(self.id, &self.by).await?;
        Ok(ToolOutput { text: format!("task {} is deleted", task.id), effect: self.effect() })
    }

    /// The result of a completion, for the model.
    fn completion_output(&self, completion: Completion) -> Result<ToolOutput, ToolError> {
        match completion {
            Completion::Completed(task) => Ok(ToolOutput { text: completed_message(&task), effect: self.effect() }),
            Completion::Incomplete(incomplete) => {
                let text = incomplete.message(self.id);
                match incomplete {
                    Incomplete::AttemptFailed { .. } => Ok(ToolOutput { text, effect: self.effect() }),
                    Incomplete::ReviewPending { .. } => Ok(ToolOutput::text(text)),
                    _ => Err(ToolError::Recoverable(text)),
                }
            }
        }
    }
}
