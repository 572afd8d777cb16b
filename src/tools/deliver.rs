//! How a task that was done in a worktree is handed in: committed, verified where it was done, then merged, one at a time, and verified
//! as merged before anybody sees it.
//!
//! The task stays its holder's until the merge is in, so a blocker is finished exactly when it is merged, and merges are in the order
//! of dependencies by themselves. A conflict or a red merge is the answer to the report: who made the change knows it best, and still
//! holds the task and the worktree to mend it in.

use std::path::PathBuf;
use std::sync::Arc;

use super::command::{CommandOutcome, CommandSetting, claim_lost};
use super::{ToolContext, ToolError, verify};
use crate::domain::change::{Action, Actor, permit};
use crate::domain::event::Fact;
use crate::domain::task::Task;
use crate::ports::{Assignment, Merge, MergeTry, Publish, Repository, RepositoryError, StoreError, Worktree};

/// How often a merge is made anew because somebody else moved the branch meanwhile.
const MOVES_MAX: u32 = 10;

/// Lets one merge through at a time, in the order in which they were asked for.
pub type MergeQueue = tokio::sync::Mutex<()>;

/// A worktree somebody works in.
pub struct Lodging {
    /// The repository.
    pub repository: Arc<dyn Repository>,
    /// The team's merges.
    pub queue: Arc<MergeQueue>,
    /// The worktree.
    pub worktree: Worktree,
    /// What is done in it.
    pub assignment: Assignment,
}

impl Lodging {
    /// What git takes a teammate's name from.
    #[must_use]
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let [name, email] = self.assignment.signature();
        vec![
            ("GIT_AUTHOR_NAME", name.clone()),
            ("GIT_AUTHOR_EMAIL", email.clone()),
            ("GIT_COMMITTER_NAME", name),
            ("GIT_COMMITTER_EMAIL", email),
        ]
    }

    /// Commits what is not committed; the inner error is for the model.
    pub(super) async fn commit(&self, summary: &str) -> Result<Result<(), String>, ToolError> {
        let committed = self.repository.commit(&self.worktree, &self.assignment, summary).await.map_err(fatal)?;
        Ok(committed.map(drop))
    }

    /// The task is completed: removes what it needs no more, and says what stays.
    pub(super) async fn clear(&self, context: &ToolContext) {
        let left = self.repository.clear(&self.worktree, &self.assignment).await;
        if let Some(text) = left.unwrap_or_else(|error| Some(error.to_string())) {
            self.warn(context, text);
        }
    }

    fn warn(&self, context: &ToolContext, text: String) {
        (context.facts)(Fact::Warning { about: self.assignment.identifier(), text });
    }
}

/// What came of handing a branch in.
pub(super) enum Delivered {
    /// It is in; the text says where.
    Merged(String),
    /// It cannot be merged, for this reason.
    Refused(String),
    /// The verify command is red on what the merge comes to.
    Red(CommandOutcome),
}

/// Merges the branch of the caller's task once `verify` passed on what the merge comes to.
pub(super) async fn merge(
    lodging: &Lodging,
    task: &Task,
    summary: &str,
    by: &Actor,
    context: &ToolContext,
) -> Result<Delivered, ToolError> {
    let (teammate, number) = (context.name.to_string(), Some(task.id));
    let (tool, call) = ("merge".to_owned(), format!("merge-{}", fastrand::u64(..)));
    let about = format!("{} into {}", lodging.worktree.branch, lodging.worktree.into);
    (context.facts)(Fact::ToolStarted {
        teammate: teammate.clone(),
        task: number,
        tool: tool.clone(),
        call: call.clone(),
        about,
    });
    let started = std::time::Instant::now();
    let delivered = in_turn(lodging, task, summary, by, context).await;
    let ok = matches!(delivered, Ok(Delivered::Merged(_)));
    let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    (context.facts)(Fact::ToolFinished { teammate, task: number, tool, call, ok, ms });
    delivered
}

async fn in_turn(
    lodging: &Lodging,
    task: &Task,
    summary: &str,
    by: &Actor,
    context: &ToolContext,
) -> Result<Delivered, ToolError> {
    let _turn = lodging.queue.lock().await;
    let Lodging { repository, worktree, assignment, .. } = lodging;
    for _ in 0..MOVES_MAX {
        still_holds(task, by, context).await?;
        let merge = match repository.merge(worktree, assignment, summary).await.map_err(fatal)? {
            MergeTry::Nothing(commit) => {
                let text = format!("nothing new to merge: {} is at {}", worktree.into, short(&commit));
                return Ok(Delivered::Merged(text));
            }
            MergeTry::Refused(reason) => return Ok(Delivered::Refused(reason)),
            MergeTry::Made(merge) => merge,
        };
        if let Some(command) = &task.verify {
            let outcome = verify::run_as(command, context, &setting(lodging, &merge, context).await?).await?;
            if !outcome.is_success() {
                return Ok(Delivered::Red(outcome));
            }
            still_holds(task, by, context).await?;
        }
        match repository.publish(&merge, assignment).await.map_err(fatal)? {
            Publish::Moved => {}
            Publish::Done(left_behind) => {
                if let Some(text) = left_behind {
                    lodging.warn(context, text);
                }
                let verified = if task.verify.is_some() { "verify exited 0 on the merged result; " } else { "" };
                let text = format!("{verified}merged into {} as {}", worktree.into, short(&merge.commit));
                return Ok(Delivered::Merged(text));
            }
        }
    }
    Ok(Delivered::Refused(format!("{} was moved by somebody else {MOVES_MAX} times meanwhile", worktree.into)))
}

/// The caller's setting, with the merge in place of its worktree.
async fn setting(lodging: &Lodging, merge: &Merge, context: &ToolContext) -> Result<CommandSetting, ToolError> {
    let scratch = lodging.repository.check_out(merge).await.map_err(fatal)?;
    let mut setting = CommandSetting::of(context);
    let writable = PathBuf::from(format!("!{}", scratch.display()));
    setting.control_files = setting.control_files.iter().cloned().chain([writable]).collect();
    setting.workspace = scratch;
    Ok(setting)
}

/// A claim that is lost merges nothing.
async fn still_holds(task: &Task, by: &Actor, context: &ToolContext) -> Result<(), ToolError> {
    let held = *context.holding.borrow();
    if held != Some((task.id, task.attempt)) {
        return Err(ToolError::ClaimLost(claim_lost(Some((task.id, task.attempt)))));
    }
    let present = context.stores.board.get(task.id).await?;
    permit(&present, Action::Complete, by).map_err(|refusal| ToolError::from(StoreError::from(refusal)))
}

fn short(commit: &str) -> &str {
    &commit[..commit.len().min(12)]
}

/// No fault of the model's: the turn ends, and the claim is given back.
#[expect(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
fn fatal(error: RepositoryError) -> ToolError {
    ToolError::Fatal(error.to_string())
}
