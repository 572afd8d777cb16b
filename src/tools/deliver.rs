//! How a task is handed in. In the workspace it is verified where it was done. In a worktree of its own it is committed, merged, one
//! task at a time, and verified as merged before anybody sees it; while another merge is under way it is verified where it was done, so
//! that what is red anyway holds nobody up.
//!
//! The task stays its holder's until the merge is in, so a blocker is finished exactly when it is merged, and merges are in the order
//! of dependencies by themselves. A conflict or a red merge is the answer to the report: who made the change knows it best, and still
//! holds the task and the worktree to mend it in.

use std::sync::Arc;

use super::command::{CommandOutcome, CommandSetting, claim_lost};
use super::{ToolContext, ToolError, verify};
use crate::domain::access::PathRule;
use crate::domain::change::{Action, Actor, permit};
use crate::domain::event::Fact;
use crate::domain::merge::short_commit;
use crate::domain::reason;
use crate::domain::task::{Task, VerifyRun};
use crate::ports::{Assignment, Merge, MergeTry, Publish, Repository, RepositoryError, StoreError, Worktree};

/// How often a merge is made anew because somebody else moved the branch meanwhile.
const MOVES_MAX: u32 = 10;

/// Whether git says this in vain: `git commit` in a worktree would tidy up where commands write nothing, and goes on without.
pub(super) fn is_said_in_vain(line: &str) -> bool {
    line.starts_with("error: Unable to create '") && line.ends_with("/packed-refs.lock': Read-only file system")
}

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
            // Neither logs of branches nor what tidies up can be written from a worktree.
            ("GIT_CONFIG_COUNT", "2".to_owned()),
            ("GIT_CONFIG_KEY_0", "core.logAllRefUpdates".to_owned()),
            ("GIT_CONFIG_VALUE_0", "false".to_owned()),
            ("GIT_CONFIG_KEY_1", "gc.auto".to_owned()),
            ("GIT_CONFIG_VALUE_1", "0".to_owned()),
        ]
    }

    /// Commits what is not committed; the inner error is for the model. It has what is the fault of this worktree.
    pub(super) async fn commit(&self, summary: &str) -> Result<Result<String, String>, ToolError> {
        match self.repository.commit(&self.worktree, &self.assignment, summary).await {
            Err(error) if !error.is_general() => Ok(Err(format!("your worktree cannot be committed: {error}"))),
            committed => committed.map_err(fatal),
        }
    }

    /// Where somebody else sees the work that is committed.
    pub(super) fn seen_from_outside(&self) -> String {
        let Worktree { branch, into, .. } = &self.worktree;
        format!("It is on branch {branch}, not merged yet; in any folder of the repository: git diff {into}...{branch}")
    }

    /// The task is completed: removes what it needs no more, and says what stays.
    pub(super) async fn clear(&self, context: &ToolContext) {
        let left = self.repository.clear(&self.worktree, &self.assignment).await;
        if let Some(text) = left.unwrap_or_else(|error| Some(error.to_string())) {
            self.warn(context, text);
        }
    }

    fn warn(&self, context: &ToolContext, text: String) {
        (context.facts)(Fact::of_worktrees(self.assignment.identifier(), text));
    }
}

/// What came of handing a task in.
pub(super) enum Delivered {
    /// It is done.
    Done {
        /// What shows it.
        evidence: String,
        /// The commit it is in, where it had a worktree of its own.
        commit: Option<String>,
        /// How its verify command came out.
        verify: Option<VerifyRun>,
    },
    /// It cannot be merged, for this reason.
    Refused(String),
    /// The verify command is red.
    Red {
        /// How it came out.
        outcome: CommandOutcome,
        /// On what, where that is not the work as it was done.
        place: String,
    },
}

/// Verifies a task where it was done.
pub(super) async fn in_place(task: &Task, context: &ToolContext) -> Result<Delivered, ToolError> {
    let Some(command) = &task.verify else {
        return Ok(Delivered::Done { evidence: String::new(), commit: None, verify: None });
    };
    let outcome = verify::run(command, context).await?;
    if !outcome.is_success() {
        return Ok(Delivered::Red { outcome, place: String::new() });
    }
    let verify = Some(outcome.verified(command));
    Ok(Delivered::Done { evidence: "verify exited 0".to_owned(), commit: None, verify })
}

/// Merges a commit of the caller's task once `verify` passed on what the merge comes to.
pub(super) async fn merge(
    lodging: &Lodging,
    task: &Task,
    summary: &str,
    commit: &str,
    by: &Actor,
    context: &ToolContext,
) -> Result<Delivered, ToolError> {
    let turn = match lodging.queue.try_lock() {
        Ok(turn) => turn,
        Err(_) => {
            let delivered = in_place(task, context).await?;
            if !matches!(delivered, Delivered::Done { .. }) {
                return Ok(delivered);
            }
            lodging.queue.lock().await
        }
    };
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
    let delivered = in_turn(lodging, task, summary, commit, by, context).await;
    drop(turn);
    let ok = matches!(delivered, Ok(Delivered::Done { .. }));
    let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let reason = match &delivered {
        Ok(Delivered::Done { .. }) => None,
        Ok(Delivered::Refused(reason)) => Some(reason::for_others(reason)),
        Ok(Delivered::Red { outcome, .. }) => Some(outcome.headline()),
        Err(error) => Some(error.headline()),
    };
    (context.facts)(Fact::ToolFinished { teammate, task: number, tool, call, ok, ms, reason });
    delivered
}

async fn in_turn(
    lodging: &Lodging,
    task: &Task,
    summary: &str,
    commit: &str,
    by: &Actor,
    context: &ToolContext,
) -> Result<Delivered, ToolError> {
    let Lodging { repository, worktree, assignment, .. } = lodging;
    for _ in 0..MOVES_MAX {
        still_holds(task, by, context).await?;
        let merge = match repository.merge(worktree, assignment, summary, commit).await.map_err(fatal)? {
            MergeTry::Nothing(commit) => return nothing_to_merge(lodging, task, commit, context).await,
            MergeTry::Refused(reason) => return Ok(Delivered::Refused(reason)),
            MergeTry::Made(merge) => merge,
        };
        let mut verified = None;
        if let Some(command) = &task.verify {
            let outcome = verify::run_as(command, context, &setting(lodging, &merge, context).await?).await?;
            if !outcome.is_success() {
                return Ok(Delivered::Red { outcome, place: format!(" on your work merged into {}", worktree.into) });
            }
            verified = Some(outcome.verified(command));
            still_holds(task, by, context).await?;
        }
        match repository.publish(&merge, assignment).await.map_err(fatal)? {
            Publish::Moved => {}
            Publish::Done(left_behind) => {
                if let Some(text) = left_behind {
                    lodging.warn(context, text);
                }
                let green = if verified.is_some() { "verify exited 0 on the merged result; " } else { "" };
                let evidence = format!("{green}merged into {} as {}", worktree.into, short_commit(&merge.commit));
                return Ok(Delivered::Done { evidence, commit: Some(merge.commit), verify: verified });
            }
        }
    }
    Ok(Delivered::Refused(format!("{} was moved by somebody else {MOVES_MAX} times meanwhile", worktree.into)))
}

/// All of the work is in the branch already, if there was any: it is verified there, so that what git ignores, or was told not to see,
/// passes for nothing.
async fn nothing_to_merge(
    lodging: &Lodging,
    task: &Task,
    commit: String,
    context: &ToolContext,
) -> Result<Delivered, ToolError> {
    let into = &lodging.worktree.into;
    let mut verified = None;
    if let Some(command) = &task.verify {
        let merge = Merge { onto: commit.clone(), commit: commit.clone() };
        let outcome = verify::run_as(command, context, &setting(lodging, &merge, context).await?).await?;
        if !outcome.is_success() {
            let place = format!(
                " on {into}, which has all of your branch: nothing of your worktree is new to git (git status --ignored)"
            );
            return Ok(Delivered::Red { outcome, place });
        }
        verified = Some(outcome.verified(command));
    }
    let green = if verified.is_some() { format!("verify exited 0 on {into}; ") } else { String::new() };
    let evidence = format!("{green}nothing new to merge: {into} is at {}", short_commit(&commit));
    Ok(Delivered::Done { evidence, commit: Some(commit), verify: verified })
}

/// The caller's setting, with the merge in place of its worktree.
async fn setting(lodging: &Lodging, merge: &Merge, context: &ToolContext) -> Result<CommandSetting, ToolError> {
    let scratch = lodging.repository.check_out(merge).await.map_err(fatal)?;
    let mut setting = CommandSetting::of(context);
    setting.rules.push(PathRule::writable(&scratch));
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

/// No fault of the model's: the turn ends, and the claim is given back.
#[expect(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
fn fatal(error: RepositoryError) -> ToolError {
    ToolError::Fatal(error.to_string())
}
