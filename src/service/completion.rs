//! Completes a task: commits its work, requests a review, verifies and merges it, then records the result.
//!
//! Every reported completion passes this gate, whether an agent reports it or a person or program on the command line.

use std::fmt;

use super::ServiceError;
use super::approvals;
use super::command::CommandOutcome;
use super::merge::{MergeResult, TaskMerge, TaskWorktree, verify_in_place};
use super::messages::Outbox;
use super::review::{self, ReviewRequest, ReviewStatus};
use super::verify::{REFUSALS_MAX, RefusalCounter, Verifier};
use crate::domain::approval::{Approvals, RequestKind, ReviewSubject};
use crate::domain::failure_summary;
use crate::domain::phase::ClaimRef;
use crate::domain::task::{Task, TaskId, TaskResult};
use crate::domain::transition::{Action, Actor, Change, permit};
use crate::ports::{Clock, Stores};

/// The longest command that a failure reason quotes, in characters.
const COMMAND_CHARS_MAX: usize = 120;
/// The next step after a red verify. Small models end their turn again without it.
const VERIFY_ADVICE: &str = " Look at the files, correct them with a tool call, and report again.";

/// The failure reason of an attempt whose work the review rejected.
pub const REVIEW_REJECTED: &str = "the review rejected it";

/// The author's report.
#[derive(Debug, Clone, Default)]
pub struct TaskReport {
    /// The summary of the work.
    pub summary: String,
    /// The author's evidence. The gate adds its own.
    pub evidence: String,
    /// The message of the commit of a worktree. If it is empty, the task's subject is used.
    pub commit_message: String,
    /// True if the author ended its work without a report. Without a verify command the result is then unverified.
    pub is_implicit: bool,
}

/// The place of the work on a task.
pub enum WorkPlace<'a> {
    /// The workspace.
    Workspace,
    /// The worktree of the task, in which the author works.
    Worktree(&'a TaskWorktree),
    /// A worktree in which the author does not work. Its work is not merged.
    Elsewhere(UnmergedWork),
}

/// Work that is not merged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnmergedWork {
    /// The branches with its commits.
    pub branches: Vec<String>,
    /// The worktree with uncommitted changes.
    pub uncommitted_in: Option<String>,
}

impl fmt::Display for UnmergedWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let branches = (!self.branches.is_empty()).then(|| format!("on {}", self.branches.join(", ")));
        let worktree = self.uncommitted_in.as_ref().map(|folder| format!("in {folder} (uncommitted)"));
        let parts: Vec<String> = branches.into_iter().chain(worktree).collect();
        write!(f, "the work {} is not merged", parts.join(" and "))
    }
}

/// The result of a reported completion.
#[derive(Debug)]
pub enum Completion {
    /// The task is completed.
    Completed(Box<Task>),
    /// The task is not completed.
    Incomplete(Incomplete),
}

impl From<Incomplete> for Completion {
    fn from(incomplete: Incomplete) -> Self {
        Self::Incomplete(incomplete)
    }
}

/// The reason why a task is not completed.
#[derive(Debug)]
pub enum Incomplete {
    /// The work waits for its review. The author still holds the task.
    ReviewPending {
        /// The id of the request.
        id: String,
        /// The reviewer.
        to: String,
        /// The feedback of the review that rejected this attempt before.
        rejection: Option<String>,
    },
    /// The review rejected this work, and nothing has changed since. The author still holds the task.
    ReviewRejected {
        /// The reviewer's feedback.
        feedback: String,
    },
    /// The work is not complete. The author still holds the task.
    Refused {
        /// The reason.
        refusal: Refusal,
        /// The number of refusals of this attempt; `None` if they are not counted.
        count: Option<u32>,
    },
    /// The work is in a worktree in which the author does not work.
    NotMerged(UnmergedWork),
    /// The attempt failed and is over, after too many refusals or rejections.
    AttemptFailed {
        /// The reason in one line.
        reason: String,
    },
}

impl Incomplete {
    /// Returns the reason for the author, an agent.
    pub fn message(&self, id: TaskId) -> String {
        match self {
            Self::ReviewPending { id: review, to, .. } => {
                format!("task {id} waits for review {review} by {to}; end your turn now, the answer will come as mail")
            }
            Self::ReviewRejected { feedback } => {
                format!("the review rejected this work, and nothing has changed since: {feedback}")
            }
            Self::Refused { refusal, count } => {
                let count = count.map(|count| format!(" (failure {count} of {REFUSALS_MAX})")).unwrap_or_default();
                let Refusal { kind, sentence, evidence, .. } = refusal;
                let advice = if *kind == RefusalKind::Verify { VERIFY_ADVICE } else { "" };
                format!("{sentence}; task {id} stays in progress{count}.{advice}\n{evidence}")
            }
            Self::NotMerged(_) => "the work is in a worktree, and is merged only when the task's holder reports it. Set the task to `pending`, so that a teammate can claim and report it. A person can complete the task without the merge".to_owned(),
            Self::AttemptFailed { reason } => format!("{reason}; this attempt of task {id} has failed and is over"),
        }
    }
}

/// Completes tasks for one author.
pub struct CompletionGate<'a> {
    /// The board and the requests.
    pub stores: &'a Stores,
    /// The wall clock.
    pub clock: &'a dyn Clock,
    /// The author; its attempt is the fence.
    pub by: &'a Actor,
    /// Runs the verify command.
    pub verifier: &'a Verifier,
    /// The place of the work.
    pub place: WorkPlace<'a>,
    /// The member or person that reviews the work, in a team with reviews.
    pub reviewer: Option<String>,
    /// Counts the refused completions of the author. With `None` an attempt does not fail because of refusals.
    pub refusals: Option<&'a RefusalCounter>,
}

/// The decision about the review of a reported completion.
enum ReviewGate {
    /// This reviewer approved the work.
    Approved(String),
    /// The work is not approved, for this reason.
    NotApproved(Incomplete),
}

impl CompletionGate<'_> {
    /// Completes a task, unless its review or its verify command prevents it. A crash before the board records the result leaves the
    /// task with its author.
    ///
    /// # Errors
    /// The author may not complete it, its claim is lost, or a store or git fails.
    pub async fn complete(&self, id: TaskId, report: TaskReport) -> Result<Completion, ServiceError> {
        let task = self.stores.board.get(id).await?;
        // A completion that the board would refuse runs no command.
        permit(&task, Action::Complete, self.by)?;
        let mut result = TaskResult::new(report.summary, report.evidence);
        if let WorkPlace::Worktree(worktree) = self.place {
            match worktree.commit(&report.commit_message).await? {
                Ok(commit) => result.commit = Some(commit),
                Err(reason) => return Ok(self.refuse(&task, Refusal::uncommitted(reason)).await?.into()),
            }
        }
        if let Some(reviewer) = &self.reviewer {
            match self.review(&task, reviewer, &result).await? {
                ReviewGate::Approved(name) => result.reviewed_by = Some(name),
                ReviewGate::NotApproved(incomplete) => return Ok(incomplete.into()),
            }
        }
        let merged = match &self.place {
            WorkPlace::Elsewhere(work) => return Ok(Incomplete::NotMerged(work.clone()).into()),
            WorkPlace::Worktree(worktree) => {
                let (board, by, verifier) = (self.stores.board.as_ref(), self.by, self.verifier);
                let commit = result.commit.as_deref().unwrap_or_default();
                let message = &report.commit_message;
                TaskMerge { board, by, verifier, task: &task, worktree, commit, message }.run().await?
            }
            WorkPlace::Workspace => verify_in_place(self.verifier, &task).await?,
        };
        match merged {
            MergeResult::Done { evidence, commit, verify } => {
                let both = [result.evidence.as_str(), evidence.as_str()];
                let evidence = both.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("; ");
                let unverified = report.is_implicit && verify.is_none();
                result = TaskResult { evidence, commit, verify, unverified, ..result };
            }
            MergeResult::Refused(reason) => return Ok(self.refuse(&task, Refusal::unmerged(reason)).await?.into()),
            MergeResult::VerifyFailed { outcome, location } => {
                return Ok(self.refuse(&task, Refusal::verify(&task, &outcome, &location)).await?.into());
            }
        }
        let task = self.stores.board.change(id, Change::Complete(result), self.by).await?;
        if let WorkPlace::Worktree(worktree) = self.place
            && let Some(warning) = worktree.clear().await
        {
            (self.verifier.events)(warning);
        }
        Ok(Completion::Completed(Box::new(task)))
    }

    /// Checks the review of the work, and requests one if there is none.
    async fn review(&self, task: &Task, reviewer: &str, result: &TaskResult) -> Result<ReviewGate, ServiceError> {
        let about = ReviewSubject::of(task, result.commit.clone());
        let approvals = approvals::load_approvals(self.stores, &self.by.name).await?;
        let rejection = match self.review_status(&approvals, &about) {
            ReviewStatus::Approved(by) => return Ok(ReviewGate::Approved(by)),
            ReviewStatus::Pending { id, to } => {
                if self.is_holder() {
                    // Another holder may have asked in an earlier attempt. The answer goes to the holder of this one.
                    let now = self.clock.now();
                    self.stores.requests.rebind_review(&id, &self.by.name, &about, now).await?;
                }
                return Ok(ReviewGate::NotApproved(Incomplete::ReviewPending { id, to, rejection: None }));
            }
            ReviewStatus::Rejected(feedback) => {
                return Ok(ReviewGate::NotApproved(Incomplete::ReviewRejected { feedback }));
            }
            ReviewStatus::RejectedTooOften(feedback) => {
                let reason = format!("{REVIEW_REJECTED} {} times; the last time: {feedback}", review::REJECTIONS_MAX);
                let fail = Change::Fail { reason: reason.clone(), is_final: false };
                self.stores.board.change(task.id, fail, self.by).await?;
                return Ok(ReviewGate::NotApproved(Incomplete::AttemptFailed { reason }));
            }
            ReviewStatus::NotRequested if !self.is_holder() => {
                let text = "the team reviews tasks before completion, and only the holder of a task can request its review. A person can complete it with --force";
                return Err(ServiceError::Refused(text.to_owned()));
            }
            // The work is not in the author's folder, so a review has nothing to look at.
            ReviewStatus::NotRequested if let WorkPlace::Elsewhere(work) = &self.place => {
                return Ok(ReviewGate::NotApproved(Incomplete::NotMerged(work.clone())));
            }
            ReviewStatus::NotRequested => {
                approvals.rejections_of(&about).last().map(|answer| answer.feedback().to_owned())
            }
        };
        Ok(ReviewGate::NotApproved(self.request_review(task, reviewer, about, result, rejection).await?))
    }

    /// Verifies the work and requests its review.
    async fn request_review(
        &self,
        task: &Task,
        reviewer: &str,
        about: ReviewSubject,
        result: &TaskResult,
        rejection: Option<String>,
    ) -> Result<Incomplete, ServiceError> {
        let verify = match verify_in_place(self.verifier, task).await? {
            MergeResult::VerifyFailed { outcome, location } => {
                let refusal = Refusal::verify(task, &outcome, &location);
                return self.refuse(task, refusal).await;
            }
            MergeResult::Done { verify, .. } => verify,
            MergeResult::Refused(_) => None,
        };
        let work = ReviewRequest {
            task,
            about,
            by: &self.by.name,
            summary: &result.summary,
            verify: verify.as_ref(),
            location: match self.place {
                WorkPlace::Worktree(worktree) => worktree.location_text(),
                WorkPlace::Workspace | WorkPlace::Elsewhere(_) => String::new(),
            },
        };
        let events = Some(self.verifier.events.clone());
        let outbox = Outbox { stores: self.stores, now: self.clock.now(), events };
        let id = review::send_review_request(&outbox, &work, reviewer).await?;
        Ok(Incomplete::ReviewPending { id, to: reviewer.to_owned(), rejection })
    }

    /// Returns the status of the review of this work. An author outside the worktree does not know the commit. Then any open review
    /// of the task's commits counts, also one that an earlier attempt requested.
    fn review_status(&self, approvals: &Approvals, about: &ReviewSubject) -> ReviewStatus {
        let is_of_commit = |subject: &ReviewSubject| subject.task == about.task && subject.commit.is_some();
        let mut open = approvals.open(RequestKind::Review);
        let pending = open.find(|review| review.about.as_ref().is_some_and(is_of_commit));
        match pending.filter(|_| !matches!(self.place, WorkPlace::Worktree(_))) {
            Some(review) => ReviewStatus::Pending { id: review.id.clone(), to: review.to.clone() },
            None => ReviewStatus::of(approvals, about),
        }
    }

    fn is_holder(&self) -> bool {
        self.by.attempt.is_some()
    }

    /// Refuses the completion. The attempt fails at the refusal number [`REFUSALS_MAX`], if refusals are counted.
    async fn refuse(&self, task: &Task, refusal: Refusal) -> Result<Incomplete, ServiceError> {
        let claim = ClaimRef::of(task);
        let count = self.refusals.filter(|_| self.is_holder()).map(|refusals| refusals.increment(claim));
        let Some(count) = count.filter(|count| *count >= REFUSALS_MAX) else {
            return Ok(Incomplete::Refused { refusal, count });
        };
        let fail = Change::Fail { reason: refusal.reason(count), is_final: false };
        self.stores.board.change(task.id, fail, self.by).await?;
        let ending = refusal.ending.as_deref().unwrap_or("see above");
        Ok(Incomplete::AttemptFailed { reason: format!("{} {count} times ({ending})", refusal.kind.words()) })
    }
}

/// The refused step of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// The verify command failed.
    Verify,
    /// The worktree cannot be committed.
    Commit,
    /// The work cannot be merged.
    Merge,
}

impl RefusalKind {
    fn words(self) -> &'static str {
        match self {
            Self::Verify => "verify failed",
            Self::Commit => "the commit was refused",
            Self::Merge => "the merge was refused",
        }
    }
}

/// A refused completion.
#[derive(Debug)]
pub struct Refusal {
    /// The refused step.
    pub kind: RefusalKind,
    /// The problem in one sentence, with advice for the holder.
    pub sentence: String,
    /// The problem, without advice.
    problem: String,
    /// The exit status of the command.
    ending: Option<String>,
    /// The evidence: the output of the command, or the rest of the reason.
    pub evidence: String,
}

impl Refusal {
    fn verify(task: &Task, outcome: &CommandOutcome, location: &str) -> Self {
        let verify = task.verify.as_deref().unwrap_or_default();
        let mut command = verify.split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some((end, _)) = command.char_indices().nth(COMMAND_CHARS_MAX) {
            command.replace_range(end.., "…");
        }
        let (ending, problem) = (outcome.ending_text(), format!("verify `{command}` failed{location}"));
        Self {
            kind: RefusalKind::Verify,
            sentence: format!("{problem}: {ending}"),
            problem,
            ending: Some(ending),
            evidence: outcome.output.clone(),
        }
    }

    fn unmerged(reason: String) -> Self {
        Self::of(RefusalKind::Merge, "the work is not merged", reason)
    }

    fn uncommitted(reason: String) -> Self {
        Self::of(RefusalKind::Commit, "the work is not completed", reason)
    }

    /// Splits `reason`: its first line is the problem, the rest is the evidence.
    fn of(kind: RefusalKind, result: &str, reason: String) -> Self {
        let (first, rest) = reason.split_once('\n').unwrap_or((&reason, ""));
        let sentence = format!("{result}: {}", first.trim_end_matches('.'));
        let problem = failure_summary::first_sentence(&sentence);
        Self { kind, problem, sentence, ending: None, evidence: rest.to_owned() }
    }

    /// Returns the failure reason of the attempt, after this number of refusals.
    pub fn reason(&self, count: u32) -> String {
        let times = if count > 1 { format!(" ({count} times)") } else { String::new() };
        let ending = self.ending.as_ref().map(|ending| format!(": {ending}")).unwrap_or_default();
        format!("{}{times}{ending}\n{}", self.problem, failure_summary::bounded(&self.evidence)).trim_end().to_owned()
    }
}
