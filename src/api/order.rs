//! The orders that a person or a program gives in a workspace, as data. Every front end gives them, and [`Order::carry_out`] does them.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::consent::Consent;
use super::next::OrderForm;
use super::outcome::Outcome;
use super::request::{self, Decision};
use super::task::{ActingAs, ClaimOrder, StatusChange};
use super::workspace::Workspace;
use super::{ApiResult, Refusal, clean, cost, merge, send, state, stop, task};
use crate::domain::task::transition::{Action, Change, TaskEdit};
use crate::domain::task::{NewTask, Task, TaskId, TaskStatus};
use crate::domain::team::approval::RequestKind;
use crate::domain::team::state::Mode;
use crate::service::completion::{Completion, TaskReport};

/// An order of a person or a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "order", rename_all = "snake_case", deny_unknown_fields)]
pub enum Order {
    /// Adds a task.
    AddTask {
        /// The task.
        task: Box<NewTask>,
        /// The actor.
        #[serde(default)]
        by: ActingAs,
    },
    /// Changes the texts, the dependencies or the limits of a task.
    EditTask {
        /// The number of the task.
        id: TaskId,
        /// The new values.
        edit: Box<TaskEdit>,
        /// The actor.
        #[serde(default)]
        by: ActingAs,
    },
    /// Changes several tasks by the rules of the board. If one of them refuses, none is changed.
    ChangeTasks {
        /// The numbers of the tasks.
        ids: Vec<TaskId>,
        /// The change.
        change: TaskChange,
        /// The actor.
        #[serde(default)]
        by: ActingAs,
    },
    /// Gives a task this status by the matching change: `pending` retries a failed task, reopens a completed one and releases one in
    /// progress.
    SetTaskStatus {
        /// The number of the task.
        id: TaskId,
        /// The status.
        status: TaskStatus,
        /// The reason; a failure needs one.
        #[serde(default)]
        reason: String,
        /// The actor.
        #[serde(default)]
        by: ActingAs,
    },
    /// Claims a task under a lease.
    ClaimTask {
        /// The number of the task; without one, the best claimable task.
        id: Option<TaskId>,
        /// The name that claims it.
        name: String,
        /// The length of the lease, in seconds.
        lease_s: u64,
        /// The capabilities of that name; without any, those in the config.
        #[serde(default)]
        capabilities: Vec<String>,
    },
    /// Completes a task, if the completion gate allows it.
    CompleteTask {
        /// The number of the task.
        id: TaskId,
        /// A summary of the work.
        #[serde(default)]
        summary: String,
        /// The evidence: a commit, or a command and its exit status.
        #[serde(default)]
        evidence: String,
        /// The actor.
        #[serde(default)]
        by: ActingAs,
    },
    /// Deletes tasks. Their numbers are never used again.
    DeleteTasks {
        /// The numbers of the tasks.
        ids: Vec<TaskId>,
        /// True to delete tasks in progress too.
        #[serde(default)]
        force: bool,
    },
    /// Sends a message of the person.
    Send {
        /// The recipient: a member, `lead` or `all`.
        to: String,
        /// The text.
        text: String,
    },
    /// Answers a plan, a review or a permission request.
    Answer {
        /// The kind of the request.
        kind: RequestKind,
        /// The id of the request; without one, the only one that waits.
        id: Option<String>,
        /// The answer.
        decision: Decision,
    },
    /// Sets the desired state of the team.
    SetMode {
        /// The desired state.
        mode: Mode,
        /// The reason, for other people.
        #[serde(default)]
        note: String,
    },
    /// Stops the running team.
    StopTeam {
        /// True to wait for no turn.
        #[serde(default)]
        now: bool,
        /// The longest wait for its end, in seconds.
        wait_s: u64,
    },
    /// Asks a teammate to stop.
    StopTeammate {
        /// The name of the teammate.
        name: String,
        /// True to end its turn.
        #[serde(default)]
        now: bool,
    },
    /// Merges the branch of a team into the person's branch.
    Merge {
        /// The team; without one, the running team or the last one.
        team: Option<String>,
    },
    /// Records that the person's branch has the work of a team in another form.
    SetAside {
        /// The team; without one, the running team or the last one.
        team: Option<String>,
    },
    /// Removes old files, branches and worktrees.
    Clean {
        /// The things to remove.
        #[serde(default)]
        selection: clean::Selection,
    },
    /// Resets the counters of a team's usage.
    ResetCost {
        /// The team; without one, the running team or the last one.
        team: Option<String>,
    },
}

/// A change of tasks by the rules of the board.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskChange {
    /// The attempt failed.
    Fail {
        /// The reason.
        reason: String,
        /// True if the task is not retried.
        #[serde(default, rename = "final")]
        is_final: bool,
    },
    /// The claim is released.
    Release {
        /// The reason, for the next claimant.
        #[serde(default)]
        reason: String,
    },
    /// The lease of the claim ends this many seconds from now.
    Renew {
        /// The length of the lease, in seconds.
        lease_s: u64,
    },
    /// A failed task is retried.
    Retry,
    /// A completed task becomes pending again.
    Reopen,
}

impl TaskChange {
    fn of_board(self, workspace: &Workspace) -> Change {
        match self {
            Self::Fail { reason, is_final } => Change::Fail { reason, is_final },
            Self::Release { reason } => Change::Release { reason, is_failure: false },
            Self::Renew { lease_s } => Change::Renew { expires: workspace.now().plus(Duration::from_secs(lease_s)) },
            Self::Retry => Change::Retry,
            Self::Reopen => Change::Reopen,
        }
    }
}

impl Order {
    /// Carries the order out. `consent` agrees to what it runs, before it does. Its effect is in the workspace when this returns; after a
    /// crash, as each function of this layer says.
    ///
    /// # Errors
    /// The workspace refuses the order, or `consent` does not agree.
    pub async fn carry_out<C: Consent>(self, workspace: &Workspace, consent: &C) -> Result<Outcome, C::Error> {
        Ok(match self {
            Self::AddTask { task, by } => Outcome::Added(Box::new(task::add(workspace, *task, &by.actor()?).await?)),
            Self::EditTask { id, edit, by } => {
                let task = task::edit(workspace, id, *edit, &by.actor()?).await?;
                Outcome::Changed { action: Action::Edit, tasks: vec![task] }
            }
            Self::ChangeTasks { ids, change, by } => {
                change_tasks(workspace, &ids, change.of_board(workspace), &by).await?
            }
            Self::SetTaskStatus { id, status, reason, by } => {
                match StatusChange::of(&task::find(workspace, id).await?, status, reason)? {
                    StatusChange::Complete(report) => complete(workspace, id, report, &by, consent).await?,
                    StatusChange::Change(change) => change_tasks(workspace, &[id], *change, &by).await?,
                }
            }
            Self::ClaimTask { id, name, lease_s, capabilities } => {
                let lease = Duration::from_secs(lease_s);
                Outcome::Claim(task::claim(workspace, ClaimOrder { task: id, name, lease, capabilities }).await?)
            }
            Self::CompleteTask { id, summary, evidence, by } => {
                let report = TaskReport { summary, evidence, ..TaskReport::default() };
                complete(workspace, id, report, &by, consent).await?
            }
            Self::DeleteTasks { ids, force } => {
                let by = ActingAs { force, ..ActingAs::default() }.actor()?;
                Outcome::Deleted(task::delete_each(workspace, &ids, &by).await?)
            }
            Self::Send { to, text } => Outcome::Sent(send::send(workspace, &to, &text).await?),
            Self::Answer { kind, id, decision } => {
                let show = |request: &_| consent.call(request);
                Outcome::Answered(request::answer(workspace, kind, id.as_deref(), decision, show).await?)
            }
            Self::SetMode { mode, note } => Outcome::ModeSet(Box::new(state::set_mode(workspace, mode, note).await?)),
            Self::StopTeam { now, wait_s } => {
                Outcome::TeamStopped(stop::stop_team(workspace, now, Duration::from_secs(wait_s)).await?)
            }
            Self::StopTeammate { name, now } => {
                let stop = stop::stop_teammate(workspace, &name, now).await?;
                Outcome::TeammateStopped { name, stop }
            }
            Self::Merge { team } => {
                let team = merge::chosen_team(workspace, team.as_ref()).await?;
                let branch = merge::TeamBranch::required(&team, workspace)?;
                consent.merge(&team)?;
                Outcome::Merged(Box::new(branch.take_over(workspace).await?))
            }
            Self::SetAside { team } => {
                let team = merge::chosen_team(workspace, team.as_ref()).await?;
                let branch = merge::TeamBranch::required(&team, workspace)?;
                consent.merge(&team)?;
                Outcome::SetAside(branch.set_aside(workspace).await?)
            }
            Self::Clean { selection } => Outcome::Cleaned(Box::new(clean::remove(workspace, selection).await?)),
            Self::ResetCost { team } => {
                cost::reset(workspace, team.as_deref()).await?;
                Outcome::CostReset(Box::new(cost::cost(workspace, team.as_deref()).await?))
            }
        })
    }
}

/// Changes tasks. A change that only their holder may make names the holder of the first one, and is made for all of them.
async fn change_tasks(workspace: &Workspace, ids: &[TaskId], change: Change, by: &ActingAs) -> ApiResult<Outcome> {
    let action = change.action();
    let actor = match (action, ids) {
        (Action::Fail | Action::Release | Action::Renew, [first, ..]) => by.holder(workspace, action, *first).await?,
        _ => by.actor()?,
    };
    if let (Change::Fail { reason, .. }, [first, ..]) = (&change, ids)
        && reason.trim().is_empty()
    {
        return Err(
            Refusal::invalid(format!("cannot fail {first}: a reason is needed")).next(OrderForm::Fail { task: *first })
        );
    }
    Ok(Outcome::Changed { action, tasks: task::change_each(workspace, ids, change, &actor).await? })
}

async fn complete<C: Consent>(
    workspace: &Workspace,
    id: TaskId,
    report: TaskReport,
    by: &ActingAs,
    consent: &C,
) -> Result<Outcome, C::Error> {
    let by = by.holder(workspace, Action::Complete, id).await?;
    let confirm = |task: &Task, command: &str| consent.verify(task, command);
    match task::complete(workspace, id, report, &by, confirm).await? {
        Completion::Completed(task) => Ok(Outcome::Changed { action: Action::Complete, tasks: vec![*task] }),
        Completion::Incomplete(incomplete) => Err(task::incomplete(id, incomplete).into()),
    }
}
