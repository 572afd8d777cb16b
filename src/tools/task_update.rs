//! `task_update`: reports the result of a task, and changes its text, order and dependencies.
//!
//! A task with a verify command is completed only after that command exited 0 here. The board decides who can make a change, by
//! the rules of `domain::transition`.

use serde_json::Value;

use super::adapter::{TypedTool, text_argument};
use super::approval_answers;
use super::arguments::{Arguments, Parameter, ParameterType, optional, required};
use super::command_runner::CommandOutcome;
use super::completion::{self, CompletionOutcome};
use super::review::{self, ReviewRequest, ReviewStatus};
use super::task_create::{actor, checked_description, checked_subject};
use super::verify::{REFUSALS_MAX, RefusalCounter};
use super::{ReadOnly, TaskWorktree, ToolContext, ToolEffect, ToolError, ToolOutput};
use crate::domain::approval::{REVIEW_REJECTED_IT, ReviewSubject, WAITS_FOR_REVIEW};
use crate::domain::event::EventKind;
use crate::domain::failure_summary;
use crate::domain::task::{Task, TaskId, TaskResult, TaskStatus};
use crate::domain::transition::{Action, Actor, Change, TaskEdit, permit};
use crate::ports::StoreError;

/// The longest result, in bytes.
const RESULT_BYTES_MAX: usize = 16 * 1024;
/// The longest command that a failure reason quotes, in characters.
const COMMAND_CHARS_MAX: usize = 120;

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
    holds: bool,
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
        let attempt =
            context.claim.borrow().filter(|(claimed_task, _)| *claimed_task == id).map(|(_, attempt)| attempt);
        let force = arguments.flag("force");
        if force && !context.is_lead {
            return Err(ToolError::Recoverable("`force` is only for the lead".to_owned()));
        }
        let by = Actor { attempt, ..actor(context) }.forcing(force);
        let (status, is_final) = (arguments.optional_text("status"), arguments.flag("final"));
        Ok(Self { id, status, result, is_final, holds: attempt.is_some(), by })
    }

    /// The effect of a report that ends the attempt: none if another member held the task.
    fn effect(&self) -> ToolEffect {
        if self.holds { ToolEffect::Finished } else { ToolEffect::None }
    }
}

impl TaskUpdate {
    async fn complete(&self, call: &UpdateCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let task = context.stores.board.get(call.id).await?;
        // If the board would refuse it, no command has to run.
        permit(&task, Action::Complete, &call.by).map_err(|refusal| ToolError::from(StoreError::from(refusal)))?;
        if call.holds && context.read_only == Some(ReadOnly::NoPlan) {
            return Err(ToolError::Recoverable(ReadOnly::NoPlan.explanation().to_owned()));
        }
        if !call.holds && task.worktree.is_some() {
            let text = "the work is in a worktree, and is merged only when the task's holder reports it. Set the task to `pending`, so that a teammate can claim and report it. A person can complete the task without the merge";
            return Err(ToolError::Recoverable(text.to_owned()));
        }
        let task_worktree = context
            .task_worktree
            .clone()
            .filter(|task_worktree| call.holds && task_worktree.assignment.task == call.id);
        let mut result = TaskResult::new(call.result.as_str(), "");
        // The output of a command is not a commit message.
        let commit_summary = if context.is_runbook { "" } else { call.result.as_str() };
        if let Some(task_worktree) = &task_worktree {
            match task_worktree.commit(commit_summary).await? {
                Ok(commit) => result.commit = Some(commit),
                Err(reason) => {
                    return self.refuse_completion(call, &task, &CompletionRefusal::uncommitted(reason), context).await;
                }
            }
        }
        if context.review.is_some() {
            match self.review(call, &task, task_worktree.as_deref(), result.commit.clone(), context).await? {
                ReviewGate::Approved(name) => result.reviewed_by = Some(name),
                ReviewGate::Ended(output) => return Ok(output),
            }
        }
        let completion = match &task_worktree {
            Some(task_worktree) => {
                let commit = result.commit.clone().unwrap_or_default();
                completion::merge_and_verify(task_worktree, &task, commit_summary, &commit, &call.by, context).await?
            }
            None => completion::verify_in_place(&task, context).await?,
        };
        match completion {
            CompletionOutcome::Done { evidence, commit, verify } => {
                result = TaskResult { evidence, commit, verify, ..result };
            }
            CompletionOutcome::Refused(reason) => {
                return self.refuse_completion(call, &task, &CompletionRefusal::unmerged(reason), context).await;
            }
            CompletionOutcome::VerifyFailed { outcome, location } => {
                let verify = task.verify.as_deref().unwrap_or_default();
                return self
                    .refuse_completion(call, &task, &CompletionRefusal::verify(verify, &outcome, &location), context)
                    .await;
            }
        }
        let evidence = if result.evidence.is_empty() { String::new() } else { format!(" ({})", result.evidence) };
        context.stores.board.change(call.id, Change::Complete(result), &call.by).await?;
        self.refusals.remove(context.name.as_str());
        if let Some(task_worktree) = &task_worktree {
            task_worktree.clear(context).await;
        }
        Ok(ToolOutput { text: format!("task {} is completed{evidence}", call.id), effect: call.effect() })
    }

    /// Checks the review of the work. If none was requested, it runs the verify command and requests one.
    async fn review(
        &self,
        call: &UpdateCall<'_>,
        task: &Task,
        task_worktree: Option<&TaskWorktree>,
        commit: Option<String>,
        context: &ToolContext,
    ) -> Result<ReviewGate, ToolError> {
        let about = ReviewSubject::of(task, commit);
        let pending_review = |id: &str, to: &str| {
            let text = format!(
                "task {} {}{id} by {to}; end your turn now, the answer will come as mail",
                task.id, WAITS_FOR_REVIEW
            );
            Ok(ReviewGate::Ended(ToolOutput::text(text)))
        };
        match ReviewStatus::of(&approval_answers::load_approvals(&context.stores, context.name.as_str()).await?, &about)
        {
            ReviewStatus::Approved(by) => return Ok(ReviewGate::Approved(by)),
            ReviewStatus::Pending { id, to } => {
                if call.holds {
                    // Another holder may have asked in an earlier attempt. The answer goes to the holder of this one.
                    let (requests, now) = (&context.stores.requests, context.clock.now());
                    let name = context.name.as_str();
                    requests.rebind_review(&id, name, task.attempt, now).await?;
                }
                return pending_review(&id, &to);
            }
            ReviewStatus::Rejected(feedback) => {
                let text = format!("the review rejected this work, and nothing has changed since: {feedback}");
                return Err(ToolError::Recoverable(text));
            }
            ReviewStatus::Abandoned(feedback) => {
                let times = review::REJECTIONS_MAX;
                let reason = format!("{REVIEW_REJECTED_IT} {times} times; the last time: {feedback}");
                let fail = Change::Fail { reason: reason.clone(), is_final: false };
                context.stores.board.change(call.id, fail, &call.by).await?;
                self.refusals.remove(context.name.as_str());
                let text = format!("{reason}; this attempt of task {} has failed and is over", call.id);
                return Ok(ReviewGate::Ended(ToolOutput { text, effect: call.effect() }));
            }
            ReviewStatus::NotRequested if !call.holds => {
                let text = "in this team tasks are reviewed before they are completed, and only the holder of a task can ask for its review. A person can complete it anyway";
                return Err(ToolError::Recoverable(text.to_owned()));
            }
            ReviewStatus::NotRequested => {}
        }
        let verify = match completion::verify_in_place(task, context).await? {
            CompletionOutcome::VerifyFailed { outcome, location } => {
                let verify = task.verify.as_deref().unwrap_or_default();
                return self
                    .refuse_completion(call, task, &CompletionRefusal::verify(verify, &outcome, &location), context)
                    .await
                    .map(ReviewGate::Ended);
            }
            CompletionOutcome::Done { verify, .. } => verify,
            CompletionOutcome::Refused(_) => None,
        };
        let work = ReviewRequest {
            task,
            about,
            by: context.name.as_str(),
            summary: &call.result,
            verify: verify.as_ref(),
            worktree: task_worktree.map(TaskWorktree::location_text).unwrap_or_default(),
        };
        let (id, to) = request_review(&work, context).await?;
        pending_review(&id, &to)
    }

    /// Answers a refused completion: the holder gets the evidence and continues. After [`REFUSALS_MAX`] refusals the attempt fails.
    async fn refuse_completion(
        &self,
        call: &UpdateCall<'_>,
        task: &Task,
        refusal: &CompletionRefusal,
        context: &ToolContext,
    ) -> Result<ToolOutput, ToolError> {
        let id = call.id;
        let refusal_count =
            if call.holds { self.refusals.increment(context.name.as_str(), id, task.attempt) } else { 0 };
        if refusal_count < REFUSALS_MAX {
            let count =
                if call.holds { format!(" (failure {refusal_count} of {REFUSALS_MAX})") } else { String::new() };
            let sentence = &refusal.sentence;
            return Err(ToolError::Recoverable(format!(
                "{sentence}; task {id} stays in progress{count}.\n{}",
                refusal.evidence
            )));
        }
        let reason = refusal.reason(refusal_count);
        context.stores.board.change(id, Change::Fail { reason, is_final: false }, &call.by).await?;
        self.refusals.remove(context.name.as_str());
        let text = format!(
            "{} {refusal_count} times ({}); this attempt of task {id} has failed and is over",
            refusal.outcome,
            refusal.short()
        );
        Ok(ToolOutput { text, effect: call.effect() })
    }

    async fn fail(&self, call: &UpdateCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        if call.result.is_empty() {
            return Err(ToolError::Recoverable(
                "argument `result` is missing: give the reason why the task failed".to_owned(),
            ));
        }
        let change = Change::Fail { reason: call.result.clone(), is_final: call.is_final };
        let task = context.stores.board.change(call.id, change, &call.by).await?;
        self.refusals.remove(context.name.as_str());
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

/// Sends the request to the reviewer of the caller's team. Returns its id and the reviewer.
async fn request_review(work: &ReviewRequest<'_>, context: &ToolContext) -> Result<(String, String), ToolError> {
    let to = context.team_control.reviewer(&context.name, context.review.as_deref().unwrap_or_default());
    let (id, message) = review::send_review_request(&context.stores, work, &to, context.clock.now()).await?;
    let about = format!("asks for review {id} of task {}", work.task.id);
    (context.events)(EventKind::MessageSent { from: context.name.to_string(), to: to.clone(), message, about });
    Ok((id, to))
}

/// The decision of the review gate.
enum ReviewGate {
    /// This reviewer approved the work.
    Approved(String),
    /// The report ends with this output.
    Ended(ToolOutput),
}

/// A refused completion, with its texts for several readers.
struct CompletionRefusal {
    /// The kind of refusal: "verify failed".
    outcome: &'static str,
    /// The refusal in one sentence, for the holder.
    sentence: String,
    /// The problem, for others than the holder.
    message: String,
    /// The exit status of the command.
    ending: Option<String>,
    /// The evidence: the output of the command, or the rest of the reason.
    evidence: String,
}

impl CompletionRefusal {
    fn verify(verify: &str, outcome: &CommandOutcome, location: &str) -> Self {
        let mut command = verify.split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some((end, _)) = command.char_indices().nth(COMMAND_CHARS_MAX) {
            command.replace_range(end.., "…");
        }
        let (ending, message) = (outcome.ending_text(), format!("verify `{command}` failed{location}"));
        Self {
            outcome: "verify failed",
            sentence: format!("{message}: {ending}"),
            message,
            ending: Some(ending),
            evidence: outcome.output.clone(),
        }
    }

    fn unmerged(reason: String) -> Self {
        Self::of("the merge was refused", "the work is not merged", reason)
    }

    fn uncommitted(reason: String) -> Self {
        Self::of("the commit was refused", "the work is not completed", reason)
    }

    /// Splits `reason`: its first line is the problem, the rest is the evidence.
    fn of(outcome: &'static str, sentence: &str, reason: String) -> Self {
        let (first, rest) = reason.split_once('\n').unwrap_or((&reason, ""));
        let sentence = format!("{sentence}: {}", first.trim_end_matches('.'));
        Self {
            outcome,
            message: failure_summary::first_sentence(&sentence),
            sentence,
            ending: None,
            evidence: rest.to_owned(),
        }
    }

    /// The failure reason of the attempt, after this number of refusals.
    fn reason(&self, refusal_count: u32) -> String {
        let ending = self.ending.as_ref().map(|ending| format!(": {ending}")).unwrap_or_default();
        format!("{} ({refusal_count} times){ending}\n{}", self.message, failure_summary::bounded(&self.evidence))
    }

    fn short(&self) -> &str {
        self.ending.as_deref().unwrap_or("see above")
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
