//! Completes a task: verifies it in place, or commits, merges and verifies its worktree.
//!
//! One task is merged at a time, and the result is verified before it is published. While another merge runs, the work is first
//! verified in its worktree, so that a failing task delays no other.
//!
//! The holder keeps its task until the merge. So "completed" means merged, and dependencies give the order of merges. A conflict or
//! a failed verify is the answer to the report: the author still has the task and its worktree.

use std::sync::Arc;

use super::command_runner::{CommandContext, CommandOutcome, claim_lost};
use super::{ToolContext, ToolError, verify};
use crate::domain::access::PathRule;
use crate::domain::dropped_lines::short_commit;
use crate::domain::event::{EventKind, Notice};
use crate::domain::failure_summary;
use crate::domain::task::{Task, VerifyRun};
use crate::domain::transition::{Action, Actor, permit};
use crate::ports::{
    Assignment, Merge, MergeOutcome, PublishOutcome, Repository, RepositoryError, StoreError, Worktree,
};

/// The number of merges that are tried if others move the branch in between.
const PUBLISH_ATTEMPTS_MAX: u32 = 10;

/// Returns true for an error of git without effect: `git commit` in a worktree cannot lock packed refs, and continues.
pub(super) fn is_harmless_git_error(line: &str) -> bool {
    line.starts_with("error: Unable to create '") && line.ends_with("/packed-refs.lock': Read-only file system")
}

/// Allows one merge at a time, in the order of requests.
pub type MergeQueue = tokio::sync::Mutex<()>;

/// The worktree of a claimed task.
pub struct TaskWorktree {
    /// The repository of the worktree.
    pub repository: Arc<dyn Repository>,
    /// The merge queue of the team.
    pub queue: Arc<MergeQueue>,
    /// The worktree and its branches.
    pub worktree: Worktree,
    /// The task, its attempt and its teammate.
    pub assignment: Assignment,
}

impl TaskWorktree {
    /// The variables that set git's author and committer for the teammate.
    #[must_use]
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let [name, email] = self.assignment.signature();
        vec![
            ("GIT_AUTHOR_NAME", name.clone()),
            ("GIT_AUTHOR_EMAIL", email.clone()),
            ("GIT_COMMITTER_NAME", name),
            ("GIT_COMMITTER_EMAIL", email),
            // A command in a worktree can write neither branch logs nor the files of `git gc`.
            ("GIT_CONFIG_COUNT", "2".to_owned()),
            ("GIT_CONFIG_KEY_0", "core.logAllRefUpdates".to_owned()),
            ("GIT_CONFIG_VALUE_0", "false".to_owned()),
            ("GIT_CONFIG_KEY_1", "gc.auto".to_owned()),
            ("GIT_CONFIG_VALUE_1", "0".to_owned()),
        ]
    }

    /// Commits all changes and returns the commit. The inner error is a problem of this worktree, for the model.
    pub(super) async fn commit(&self, summary: &str) -> Result<Result<String, String>, ToolError> {
        match self.repository.commit(&self.worktree, &self.assignment, summary).await {
            Err(error) if !error.is_general() => Ok(Err(format!("the worktree cannot be committed: {error}"))),
            committed => committed.map_err(fatal),
        }
    }

    /// Tells a reviewer how to see the committed work.
    pub(super) fn location_text(&self) -> String {
        let Worktree { branch, into, .. } = &self.worktree;
        format!(
            "The work is on branch {branch}, not merged yet. In any folder of the repository run: git diff {into}...{branch}"
        )
    }

    /// Removes the worktree of a completed task. Warns about all that it keeps.
    pub(super) async fn clear(&self, context: &ToolContext) {
        let kept_reason = self.repository.clean_up(&self.worktree, &self.assignment).await;
        if let Some(text) = kept_reason.unwrap_or_else(|error| Some(error.to_string())) {
            self.report(context, Notice::Warning(text));
        }
    }

    fn report(&self, context: &ToolContext, notice: Notice) {
        (context.events)(EventKind::of_notice(self.assignment.identifier(), notice));
    }
}

/// The outcome of a completion.
pub(super) enum CompletionOutcome {
    /// Verified, and merged if the task has a worktree.
    Done {
        /// The evidence: the verify command and the merge.
        evidence: String,
        /// The commit with the work, if the task has a worktree and changed something.
        commit: Option<String>,
        /// The run of the verify command.
        verify: Option<VerifyRun>,
    },
    /// The merge was refused, for this reason.
    Refused(String),
    /// The verify command failed.
    VerifyFailed {
        /// The outcome of the command.
        outcome: CommandOutcome,
        /// The place of the run, such as " on the work merged into main". Empty for the place of the work.
        location: String,
    },
}

/// Verifies a task in the place of its work.
pub(super) async fn verify_in_place(task: &Task, context: &ToolContext) -> Result<CompletionOutcome, ToolError> {
    let Some(command) = &task.verify else {
        return Ok(CompletionOutcome::Done { evidence: String::new(), commit: None, verify: None });
    };
    let outcome = verify::run(command, context).await?;
    if !outcome.is_success() {
        return Ok(CompletionOutcome::VerifyFailed { outcome, location: String::new() });
    }
    let verify = Some(outcome.verified(command));
    Ok(CompletionOutcome::Done { evidence: "verify exited 0".to_owned(), commit: None, verify })
}

/// Merges a commit of the caller's task. It is published only if the verify command exits 0 on the merged result.
pub(super) async fn merge_and_verify(
    task_worktree: &TaskWorktree,
    task: &Task,
    summary: &str,
    commit: &str,
    by: &Actor,
    context: &ToolContext,
) -> Result<CompletionOutcome, ToolError> {
    let queue_guard = match task_worktree.queue.try_lock() {
        Ok(queue_guard) => queue_guard,
        Err(_) => {
            let outcome = verify_in_place(task, context).await?;
            if !matches!(outcome, CompletionOutcome::Done { .. }) {
                return Ok(outcome);
            }
            task_worktree.queue.lock().await
        }
    };
    let teammate = context.name.to_string();
    let number = Some(task.id);
    let tool = "merge".to_owned();
    let call = format!("merge-{}", fastrand::u64(..));
    let about = format!("{} into {}", task_worktree.worktree.branch, task_worktree.worktree.into);
    (context.events)(EventKind::ToolStarted {
        teammate: teammate.clone(),
        task: number,
        tool: tool.clone(),
        call: call.clone(),
        about,
    });
    let started = std::time::Instant::now();
    let outcome = merge_in_queue(task_worktree, task, summary, commit, by, context).await;
    drop(queue_guard);
    let ok = matches!(outcome, Ok(CompletionOutcome::Done { .. }));
    let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let reason = match &outcome {
        Ok(CompletionOutcome::Done { .. }) => None,
        Ok(CompletionOutcome::Refused(reason)) => Some(failure_summary::headline(reason)),
        Ok(CompletionOutcome::VerifyFailed { outcome, .. }) => Some(outcome.headline()),
        Err(error) => Some(error.headline()),
    };
    (context.events)(EventKind::ToolFinished { teammate, task: number, tool, call, ok, ms, reason });
    outcome
}

async fn merge_in_queue(
    task_worktree: &TaskWorktree,
    task: &Task,
    summary: &str,
    commit: &str,
    by: &Actor,
    context: &ToolContext,
) -> Result<CompletionOutcome, ToolError> {
    let TaskWorktree { repository, worktree, assignment, .. } = task_worktree;
    for _ in 0..PUBLISH_ATTEMPTS_MAX {
        check_claim(task, by, context).await?;
        let merge = match repository.merge(worktree, assignment, summary, commit).await.map_err(fatal)? {
            MergeOutcome::UpToDate(commit) => return nothing_to_merge(task_worktree, task, commit, context).await,
            MergeOutcome::Refused(reason) => return Ok(CompletionOutcome::Refused(reason)),
            MergeOutcome::Created(merge) => merge,
        };
        let mut verify_run = None;
        if let Some(command) = &task.verify {
            let outcome =
                verify::run_as(command, context, &command_context(task_worktree, &merge, context).await?).await?;
            if !outcome.is_success() {
                return Ok(CompletionOutcome::VerifyFailed {
                    outcome,
                    location: format!(" on the work merged into {}", worktree.into),
                });
            }
            verify_run = Some(outcome.verified(command));
            check_claim(task, by, context).await?;
        }
        match repository.publish(&merge, assignment).await.map_err(fatal)? {
            PublishOutcome::Moved => {}
            PublishOutcome::Done(notice) => {
                if let Some(notice) = notice {
                    task_worktree.report(context, notice);
                }
                let verify_text = if verify_run.is_some() { "verify exited 0 on the merged result; " } else { "" };
                let evidence = format!("{verify_text}merged into {} as {}", worktree.into, short_commit(&merge.commit));
                return Ok(CompletionOutcome::Done { evidence, commit: Some(merge.commit), verify: verify_run });
            }
        }
    }
    Ok(CompletionOutcome::Refused(format!(
        "others moved {} {PUBLISH_ATTEMPTS_MAX} times during the merge",
        worktree.into
    )))
}

/// Verifies a task whose commits are all in the branch already. It runs on the branch, not in the worktree, so files that git ignores
/// do not count.
async fn nothing_to_merge(
    task_worktree: &TaskWorktree,
    task: &Task,
    commit: String,
    context: &ToolContext,
) -> Result<CompletionOutcome, ToolError> {
    let into = &task_worktree.worktree.into;
    let mut verify_run = None;
    if let Some(command) = &task.verify {
        let merge = Merge { onto: commit.clone(), commit: commit.clone() };
        let outcome = verify::run_as(command, context, &command_context(task_worktree, &merge, context).await?).await?;
        if !outcome.is_success() {
            let location = format!(
                " on {into}, which has all commits of the task branch: the worktree has no other changes for git (see git status --ignored)"
            );
            return Ok(CompletionOutcome::VerifyFailed { outcome, location });
        }
        verify_run = Some(outcome.verified(command));
    }
    let verify_text = if verify_run.is_some() { format!("verify exited 0 on {into}; ") } else { String::new() };
    let evidence = format!("{verify_text}it changed nothing: the branch had nothing to merge");
    // The commit of the branch is the work of other tasks.
    Ok(CompletionOutcome::Done { evidence, commit: None, verify: verify_run })
}

/// The caller's context, with a checkout of the merge as its workspace.
async fn command_context(
    task_worktree: &TaskWorktree,
    merge: &Merge,
    context: &ToolContext,
) -> Result<CommandContext, ToolError> {
    let scratch = task_worktree.repository.check_out(merge).await.map_err(fatal)?;
    let mut merged = CommandContext::of(context);
    merged.rules.push(PathRule::writable(&scratch));
    merged.workspace = scratch;
    Ok(merged)
}

/// Returns an error if the caller's claim is lost: a lost claim merges nothing.
async fn check_claim(task: &Task, by: &Actor, context: &ToolContext) -> Result<(), ToolError> {
    let claim = *context.claim.borrow();
    if claim != Some((task.id, task.attempt)) {
        return Err(ToolError::ClaimLost(claim_lost(Some((task.id, task.attempt)))));
    }
    let current = context.stores.board.get(task.id).await?;
    permit(&current, Action::Complete, by).map_err(|refusal| ToolError::from(StoreError::from(refusal)))
}

/// The model cannot correct this error: the turn ends, and the claim is released.
#[expect(clippy::needless_pass_by_value, reason = "a function for map_err")]
fn fatal(error: RepositoryError) -> ToolError {
    ToolError::Fatal(error.to_string())
}
