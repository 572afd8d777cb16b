//! The reasons for the state of a task, as data. The field `kind` is the word for programs.

use schemars::JsonSchema;
use serde::Serialize;

use crate::api::team::{HealthFields, LeadHealth};
use crate::domain::git::ignored_files::{FileList, NotMovedFile};
use crate::domain::task::evidence::Caveat;
use crate::domain::task::verify_run::VerifyRun;
use crate::domain::task::{TaskId, TaskStatus};
use crate::domain::team::approval::Request;
use crate::domain::team::budget::CapReached;
use crate::domain::team::waiting_for::{self, Wait, WaitingFor};
use crate::domain::time::UnixMs;
use crate::ports::QuarantinedTask;

/// One reason for the state of a task: an obstacle, or a fact about its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Reason {
    /// Another program gave the task a status of its own. Brigade leaves it as it is.
    UnknownStatus {
        /// The word in the file.
        status: String,
        /// Its line in the file.
        line: Option<usize>,
    },
    /// Its file is not a valid task.
    #[serde(rename = "spoiled")]
    Invalid {
        /// The name of the file.
        file: String,
        /// The problem with the file.
        reason: String,
    },
    /// Its invalid file was set aside.
    #[serde(rename = "spoiled")]
    Quarantined(QuarantinedTask),
    /// The board has no such task.
    Missing,
    /// It failed for the last time.
    Failed {
        /// The number of failed attempts.
        failures: u32,
        /// The summary of the last one.
        summary: Option<String>,
        /// The folder of its work, relative to the workspace.
        worktree: Option<String>,
        /// True if it has a verify command.
        has_verify: bool,
    },
    /// A plan, review or permission of its holder waits for an answer.
    AwaitsApproval {
        /// The request, without an answer.
        request: Box<Request>,
    },
    /// Its holder asked the person.
    AsksYou {
        /// The member that asks.
        from: String,
        /// The question.
        question: String,
        /// True if the attempt has failed. The next one starts without its messages, so that an answer does not reach it.
        is_over: bool,
    },
    /// It is retried later.
    BacksOff {
        /// The time of the retry.
        until: UnixMs,
        /// The number of failed attempts.
        failures: u32,
    },
    /// Its attempts reached its cap of tokens.
    AtCap {
        /// The cap, and the tokens that the refused request needed.
        #[serde(flatten)]
        cap: CapReached,
        /// True if the task has a cap of its own, not that of the team.
        is_own: bool,
    },
    /// The end of its last attempt, which is no obstacle by itself.
    LastAttempt {
        /// The number of the attempt.
        attempt: u32,
        /// Its end.
        summary: String,
    },
    /// It is reserved for a member that can do it.
    #[serde(rename = "kept_for")]
    ReservedFor {
        /// The member.
        owner: String,
    },
    /// Every member that could do it is stopped.
    #[serde(rename = "stopped")]
    MembersStopped {
        /// The members.
        members: Vec<StoppedMember>,
    },
    /// It waits for itself.
    Cycle {
        /// The tasks, each of which waits for the next one, and the last one for the first.
        tasks: Vec<TaskId>,
    },
    /// It waits for an unfinished task.
    Blocked(Box<BlockingTask>),
    /// It waits for more tasks than are listed.
    #[serde(rename = "blocked")]
    MoreBlockers {
        /// The number of those that are not listed.
        more: usize,
    },
    /// Every member that could do it waits for something.
    AwaitsOthers {
        /// The members.
        members: Vec<MemberWait>,
    },
    /// It is ready to be claimed.
    Claimable {
        /// The members that can claim it; empty if they are not known.
        members: Vec<String>,
        /// The number of tasks that they claim before it.
        tasks_before: usize,
    },
    /// No member can ever claim it.
    #[serde(untagged)]
    NoClaimant(NoClaimant),
    /// It is claimed.
    #[serde(untagged)]
    Claim(ClaimReason),
    /// The team claims nothing.
    #[serde(untagged)]
    Team(TeamReason),
    /// It is completed.
    #[serde(untagged)]
    Completion(CompletionFact),
}

impl Reason {
    /// Returns the word for programs.
    pub fn kind(&self) -> String {
        let fields = serde_json::to_value(self).unwrap_or_default();
        fields["kind"].as_str().unwrap_or_default().to_owned()
    }
}

/// The reason why no member of the team can ever claim a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum NoClaimant {
    /// It has no script, and no member with a model may do it.
    NoScript,
    /// No member has a required capability.
    #[serde(rename = "nobody_fit")]
    NoCapability {
        /// The capabilities, one of which is required.
        requires: Vec<String>,
        /// The members and their capabilities.
        members: Vec<MemberCapabilities>,
    },
    /// It is reserved for a name that is not in the team.
    #[serde(rename = "kept_for_nobody")]
    UnknownOwner {
        /// The name.
        owner: String,
    },
    /// It is reserved for a member that lacks the required capability.
    #[serde(rename = "kept_for_unfit")]
    UnfitOwner {
        /// The member.
        owner: String,
        /// The capabilities, one of which is required.
        requires: Vec<String>,
    },
}

/// An unfinished task at the end of a chain of dependencies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct BlockingTask {
    /// The tasks between the explained one and this one, the nearest first: a limited number of them.
    pub through: Vec<TaskId>,
    /// The number of further tasks between.
    pub through_more: usize,
    /// The task that has the dependency.
    pub waiter: TaskId,
    /// The unfinished task.
    pub task: TaskId,
    /// Its subject, if it is on the board.
    pub subject: Option<String>,
    /// The reason why it is not finished.
    #[serde(flatten)]
    pub cause: BlockingCause,
}

/// The reason why a task that others wait for is not finished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum BlockingCause {
    /// A plan, review or permission of its holder waits for an answer.
    AwaitsApproval {
        /// The request, without an answer.
        request: Box<Request>,
    },
    /// Its invalid file was set aside.
    Quarantined(QuarantinedTask),
    /// It has no file.
    Missing,
    /// Its file is not a valid task.
    Invalid,
    /// It failed.
    Failed,
    /// Another program set it to in progress.
    Foreign,
    /// A member is working on it.
    Held {
        /// The member, if the file names one.
        owner: Option<String>,
    },
    /// No member can ever claim it.
    NoClaimant {
        /// The reason.
        reason: NoClaimant,
    },
    /// Its attempts reached its cap of tokens.
    AtCap,
    /// It was never claimed.
    NotStarted,
    /// It waits for another attempt.
    NextAttempt {
        /// The number of that attempt.
        attempt: u32,
    },
    /// It has another status.
    Other {
        /// The status.
        status: TaskStatus,
    },
}

/// The claim of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ClaimReason {
    /// Another program set it to in progress, without a claim.
    Foreign {
        /// The name in the file.
        owner: Option<String>,
    },
    /// It was claimed by command, and its lease has expired.
    LeaseOver(Lease),
    /// It was claimed by command.
    #[serde(rename = "held")]
    Leased(Lease),
    /// The process that claimed it is gone.
    WorkerGone(Holder),
    /// A member of the team holds it.
    Held {
        /// The member and its claim.
        #[serde(flatten)]
        holder: Holder,
        /// The wait of the member, if it is known.
        #[serde(flatten, serialize_with = "waiting_for::waits_for_with_kind")]
        #[schemars(with = "WaitsForFields")]
        waits_for: Option<WaitingFor>,
        /// True if a request of the member about the task waits for an answer.
        awaits_approval: bool,
    },
}

/// The wait of a holder.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it describes the JSON of a wait")]
struct WaitsForFields {
    waits_for: Option<String>,
    wait: Option<Wait>,
}

/// The holder of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Holder {
    /// The name, if the file has one.
    pub owner: Option<String>,
    /// The number of the attempt.
    pub attempt: u32,
    /// The time of the claim.
    pub claimed_at: UnixMs,
}

/// A claim by command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Lease {
    /// The holder.
    #[serde(flatten)]
    pub holder: Holder,
    /// The end of the lease.
    pub ends_at: UnixMs,
}

/// The reason why a team claims nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TeamReason {
    /// Its budget is spent.
    BudgetSpent {
        /// The note of the budget.
        note: String,
        /// True if the team runs.
        is_running: bool,
    },
    /// No team runs in the workspace.
    NoTeam,
    /// Its process is suspended or silent.
    Silent {
        /// The trouble.
        #[serde(flatten)]
        #[schemars(with = "HealthFields")]
        health: LeadHealth,
        /// The id of the process.
        pid: u32,
    },
    /// The disk is too full for new work.
    #[serde(rename = "no_room")]
    DiskShortage {
        /// The free and the needed space.
        shortage: String,
    },
    /// The desired state is `pause`.
    Paused,
}

/// A fact about a completed task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum CompletionFact {
    /// It is completed.
    Completed {
        /// The member that completed it.
        by: Option<String>,
        /// The time of the last change.
        at: Option<UnixMs>,
        /// The number of the attempt; 0 without one.
        attempt: u32,
    },
    /// The summary of its author.
    Result {
        /// The text.
        summary: String,
    },
    /// The evidence of its author.
    Evidence {
        /// The text.
        evidence: String,
    },
    /// A weakness in its evidence.
    Caveat {
        /// The weakness.
        caveat: Caveat,
    },
    /// The run of its verify command.
    Verify {
        /// The run.
        run: VerifyRun,
    },
    /// A reviewer approved it.
    Reviewed {
        /// The reviewer.
        by: String,
    },
    /// The commit of its work.
    Commit {
        /// The full hash.
        commit: String,
    },
    /// Files that git ignores were moved into the workspace.
    MovedFiles {
        /// The files.
        files: FileList,
    },
    /// Files that git ignores were left in its worktree.
    LeftFiles {
        /// The files.
        files: FileList,
        /// The folder of the worktree, relative to the workspace.
        folder: Option<String>,
        /// True if the folder does not exist any more.
        is_removed: bool,
    },
    /// A file that git ignores was not moved, although it should be.
    NotMoved(NotMovedFile),
    /// It removes lines of other tasks on purpose.
    Dropped {
        /// The reason in its commit.
        reason: String,
    },
}

/// A member and its capabilities.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MemberCapabilities {
    /// The name.
    pub name: String,
    /// The capabilities.
    pub capabilities: Vec<String>,
}

/// A member that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MemberWait {
    /// The name.
    pub name: String,
    /// The reason of its wait.
    #[schemars(with = "String")]
    pub waits_for: WaitingFor,
    /// Its kind, and the id of the request.
    pub wait: Wait,
}

/// A member that does not run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StoppedMember {
    /// The name.
    pub name: String,
    /// True if it is new in the config and starts at the next launch.
    pub starts_at_next_launch: bool,
}
