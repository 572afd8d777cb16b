//! The agent without a model: it runs the fenced `sh` blocks of a task's description in order, one in each turn. A block ends at
//! its first command that fails. The agent does not answer mail.

use async_trait::async_trait;
use serde_json::{Value, json};

use super::host::{ABORTED, AgentHost};
use super::permissions::CallNotMade;
use super::{AgentBackend, AgentError, CompactionOutcome, TurnOutcome};
use crate::domain::agent::permission::{PermissionCall, ToolKind};
use crate::domain::agent::transcript::{Block, TranscriptEntry};
use crate::domain::log::event::REPORT_TOOL;
use crate::domain::task::Task;
use crate::domain::task::failure_summary;
use crate::domain::task::shell_blocks::{script_headline, shell_blocks};
use crate::domain::task::transition::Actor;
use crate::domain::team::approval::{Request, RequestKind, ReviewSubject};
use crate::domain::team::name::SYSTEM;
use crate::domain::team::phase::{ClaimRef, PhaseEvent};
use crate::process::command::{CommandOutcome, TimeLimit};
use crate::service::completion::{Completion, CompletionGate, Incomplete, REVIEW_REJECTED, TaskReport};
use crate::service::request_mail;
use crate::tools::{command_hints, table};

/// The most bytes of the last block's output in a task's result.
const RESULT_BYTES_MAX: usize = 400;

/// The name of the calls that run the blocks.
const COMMAND_TOOL: &str = "bash";

/// The prefix of a script: it ends the block at its first command that fails, like a step of a CI runner. It is in the block's first
/// line, so that the shell's line numbers are those of the block.
const SCRIPT_PREFIX: &str = "set -e; ";

/// Runs the blocks of tasks.
#[derive(Debug, Default)]
pub struct RunbookAgent {
    run: Option<TaskRun>,
}

/// The progress on one attempt of a task. It is lost in a crash: the next attempt runs all blocks again.
#[derive(Debug)]
struct TaskRun {
    claim: ClaimRef,
    scripts: Vec<String>,
    /// The number of blocks that exited 0.
    done_count: usize,
    /// The output of the last block that exited 0, or the report of a review that an earlier attempt requested.
    output: String,
    /// The id of the review that the work waits for.
    review: Option<String>,
}

#[async_trait]
impl AgentBackend for RunbookAgent {
    async fn begin_task(&mut self, task: &Task, host: &mut AgentHost) -> Result<(), AgentError> {
        host.reset_conversation().await?;
        let scripts = shell_blocks(&task.description);
        let review = continued_review(host, task, &scripts).await?;
        let output = review.as_ref().and_then(|review| Some(review.report.as_ref()?.summary.clone()));
        self.run = Some(TaskRun {
            claim: ClaimRef::of(task),
            scripts,
            done_count: 0,
            output: output.unwrap_or_default(),
            review: review.map(|review| review.id),
        });
        Ok(())
    }

    async fn turn(&mut self, host: &mut AgentHost) -> Result<Vec<TurnOutcome>, AgentError> {
        let claim = host.turn_control.claim();
        let Some(run) = self.run.as_mut().filter(|run| Some(run.claim) == claim) else {
            self.run = None;
            host.reset_conversation().await?;
            return end_with_answer(host, "There is no task to run.").await;
        };
        host.refresh_working_dir().await;
        if let Some(review) = &run.review {
            return match review_answer(host, review).await? {
                None => Ok(vec![TurnOutcome::Event(PhaseEvent::WorkEnded)]),
                Some(Ok(())) => run.complete(host).await,
                // Another attempt would run the same commands.
                Some(Err(feedback)) => {
                    Ok(host.fail_task(run.claim, format!("{REVIEW_REJECTED}: {feedback}"), true).await)
                }
            };
        }
        if run.scripts.is_empty() {
            // A person or another program removed the blocks after the claim.
            let reason = "the runbook provider runs the fenced sh blocks of a task, and this task has none";
            return Ok(host.fail_task(run.claim, reason.to_owned(), true).await);
        }
        run.run_next_block(host).await
    }

    async fn compact(&mut self, _host: &mut AgentHost) -> Result<CompactionOutcome, AgentError> {
        Ok(CompactionOutcome::Kept("a runbook has no context to compact".to_owned()))
    }
}

impl TaskRun {
    /// Runs the next block. Completes the task after the last one, and fails the attempt if a block fails.
    async fn run_next_block(&mut self, host: &mut AgentHost) -> Result<Vec<TurnOutcome>, AgentError> {
        let script = self.scripts[self.done_count].clone();
        let id = format!("run-{}-{}", self.claim.task.0, self.done_count + 1);
        let call = PermissionCall { tool: COMMAND_TOOL.to_owned(), kind: ToolKind::Command, subject: script.clone() };
        let input = json!({ "command": script });
        match host.ask_permission(&call, &table::permission_details(COMMAND_TOOL, &input)).await {
            Ok(()) => {}
            Err(CallNotMade::Interrupted(_)) => return Ok(vec![TurnOutcome::Aborted]),
            Err(refusal) => {
                let is_final = matches!(refusal, CallNotMade::Refused(_));
                return Ok(host.fail_task(self.claim, refusal.to_string(), is_final).await);
            }
        }
        record_call(host, &id, COMMAND_TOOL, input).await?;
        let step = host.step(&id, COMMAND_TOOL, script_headline(&script));
        let script = format!("{SCRIPT_PREFIX}{script}");
        let limit = TimeLimit::of_command(host.context.limits.command_timeout);
        let work = command_hints::run(&script, limit, &host.context);
        let failure = |outcome: &CommandOutcome| if outcome.is_success() { None } else { Some(outcome.headline()) };
        let result = host.run_step(step, work, failure).await;
        let (text, is_error) = match &result {
            Some(Ok(outcome)) => (outcome.report(), !outcome.is_success()),
            Some(Err(error)) => (error.to_string(), true),
            None => (ABORTED.to_owned(), true),
        };
        host.record_result(id, text, is_error).await?;
        let block = format!("block {} of {}", self.done_count + 1, self.scripts.len());
        match result {
            Some(Ok(outcome)) if outcome.is_success() => {
                self.done_count += 1;
                self.output = outcome.output;
                if self.done_count < self.scripts.len() {
                    return Ok(vec![TurnOutcome::Event(PhaseEvent::TurnEnded)]);
                }
                self.complete(host).await
            }
            Some(Ok(outcome)) => {
                let output = failure_summary::stored_text(&outcome.output);
                let reason = format!("{block}: {}\n{output}", outcome.ending_text());
                Ok(host.fail_task(self.claim, reason.trim_end().to_owned(), false).await)
            }
            Some(Err(error)) => match TurnOutcome::of_error(&error) {
                Some(outcome) => Ok(vec![outcome]),
                None => Ok(host.fail_task(self.claim, format!("{block}: {error}"), false).await),
            },
            None => Ok(vec![TurnOutcome::Aborted]),
        }
    }

    async fn complete(&mut self, host: &mut AgentHost) -> Result<Vec<TurnOutcome>, AgentError> {
        let call_id = format!("run-{}-report", self.claim.task.0);
        let summary = failure_summary::last_lines(&self.output, RESULT_BYTES_MAX);
        let input = json!({ "task_id": self.claim.task, "status": "completed", "result": summary });
        record_call(host, &call_id, REPORT_TOOL, input).await?;
        let about = format!("{} completed", self.claim.task);
        let step = host.step(&call_id, REPORT_TOOL, about);
        let by = Actor::holder(host.name(), self.claim.attempt);
        let gate = CompletionGate { refusals: None, ..host.context.completion_gate(by) };
        // The summary is the output of a command, so the task's subject is the commit message.
        let work = gate.complete(self.claim.task, TaskReport { summary, ..TaskReport::default() });
        let failure = |completion: &Completion| match completion {
            Completion::Incomplete(Incomplete::Refused { refusal, .. }) => {
                Some(failure_summary::first_sentence(&refusal.sentence))
            }
            _ => None,
        };
        let (text, next) = match host.run_step(step, work, failure).await {
            Some(Ok(Completion::Completed(_))) => ("completed".to_owned(), NextStep::Finish),
            Some(Ok(Completion::Incomplete(incomplete))) => self.step_after(incomplete),
            Some(Err(error)) => {
                let fail = || NextStep::Fail { reason: error.headline(), is_final: false };
                (error.to_string(), TurnOutcome::of_error(&error).map_or_else(fail, NextStep::End))
            }
            None => (ABORTED.to_owned(), NextStep::End(TurnOutcome::Aborted)),
        };
        host.record_result(call_id, text, matches!(next, NextStep::Fail { .. })).await?;
        match next {
            NextStep::Finish => Ok(host.finish_task()),
            NextStep::Fail { reason, is_final } => Ok(host.fail_task(self.claim, reason, is_final).await),
            NextStep::End(outcome) => Ok(vec![outcome]),
        }
    }

    /// Returns the text of an incomplete completion, and the next step.
    fn step_after(&mut self, incomplete: Incomplete) -> (String, NextStep) {
        let (reason, is_final) = match incomplete {
            Incomplete::ReviewPending { id, to, .. } => {
                let text = format!("waits for review {id} by {to}");
                self.review = Some(id);
                return (text, NextStep::End(TurnOutcome::Event(PhaseEvent::WorkEnded)));
            }
            Incomplete::AttemptFailed { reason } => return (reason, NextStep::Finish),
            Incomplete::ReviewRejected { feedback } => (format!("{REVIEW_REJECTED}: {feedback}"), true),
            Incomplete::Refused { refusal, .. } => (refusal.reason(1), false),
            Incomplete::NotMerged(work) => (work.to_string(), false),
        };
        (reason.clone(), NextStep::Fail { reason, is_final })
    }
}

/// The step after a reported completion.
enum NextStep {
    /// The claim has ended.
    Finish,
    Fail {
        reason: String,
        is_final: bool,
    },
    /// The turn ends with this outcome.
    End(TurnOutcome),
}

/// Returns `Ok` if the review is approved, the feedback if it is rejected, and `None` if it has no answer yet. A withdrawn review counts
/// as approved: the completion then requests a new one.
async fn review_answer(host: &AgentHost, id: &str) -> Result<Option<Result<(), String>>, AgentError> {
    let approvals = request_mail::load_approvals(&host.services.stores, host.name()).await?;
    let review = approvals.requests.iter().find(|request| request.kind == RequestKind::Review && request.id == id);
    let Some(answer) = review.and_then(|review| review.answer.as_ref()) else { return Ok(None) };
    let is_approved = answer.approve || answer.by == SYSTEM;
    Ok(Some(if is_approved { Ok(()) } else { Err(answer.feedback().to_owned()) }))
}

/// Returns the last review of the interrupted attempt that this one continues. Blocks that were changed since have no review.
async fn continued_review(host: &AgentHost, task: &Task, scripts: &[String]) -> Result<Option<Request>, AgentError> {
    let stores = &host.services.stores;
    let approvals = request_mail::load_approvals(stores, host.name()).await?;
    let Some(review) = approvals.last_review_of(&ReviewSubject::of(task, None)) else { return Ok(None) };
    let mut commands = Vec::new();
    for record in stores.transcripts.load(host.name()).await? {
        let TranscriptEntry::Message(message) = record.entry else { continue };
        if message.task != Some(task.id) {
            continue;
        }
        commands.extend(message.content.iter().filter_map(|block| match block {
            Block::ToolUse { name, input, .. } if name == COMMAND_TOOL => input["command"].as_str().map(str::to_owned),
            _ => None,
        }));
    }
    Ok(if commands.ends_with(scripts) { Some(review.clone()) } else { None })
}

async fn record_call(host: &mut AgentHost, id: &str, tool: &str, input: Value) -> Result<(), AgentError> {
    let call = Block::tool_use(id, tool, input);
    host.record_answer(&[call], None).await
}

/// Records a text as the agent's answer, and ends the work.
async fn end_with_answer(host: &mut AgentHost, text: &str) -> Result<Vec<TurnOutcome>, AgentError> {
    host.record_answer(&[Block::text(text)], None).await?;
    Ok(vec![TurnOutcome::Event(PhaseEvent::WorkEnded)])
}
