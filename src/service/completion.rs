//! Completes a task: commits its work, requests a review, verifies and merges it, then records the result.
//!
//! Every reported completion passes the gate, whether an agent reports it or a person or program on the command line. A task whose work is
//! merged already needs no gate.

use super::ServiceError;
use super::attempt_log::{AttemptLog, REFUSALS_MAX};
use super::merge::{MergeResult, TaskMerge, TaskWorktree, verify_in_place};
use super::messages::Outbox;
use super::request_mail;
use super::review::{self, ReviewStatus};
use super::verify::Verifier;
use crate::domain::git::ignored_files::IgnoredFiles;
use crate::domain::task::evidence::joined;
use crate::domain::task::failure_summary;
use crate::domain::task::transition::{Action, Actor, Change, permit};
use crate::domain::task::verify_run::VerifyRun;
use crate::domain::task::{Task, TaskId, TaskResult};
use crate::domain::team::approval::{Approvals, Request, RequestKind, ReviewSubject, WorkReport};
use crate::domain::team::phase::ClaimRef;
use crate::domain::text::{one_line, shorten};
use crate::ports::{
    Board, Clock, CommitOutcome, MergeRequest, RepositoryError, StoreResult, Stores, UnmergedWork, WorkInspector,
};
use crate::process::command::CommandOutcome;

/// The longest command that a failure reason quotes, in characters.
const COMMAND_CHARS_MAX: usize = 120;
/// The next step after a red verify. Small models end their turn again without it.
const VERIFY_ADVICE: &str = "Look at the files, correct them with a tool call, and report again.";

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

impl TaskReport {
    /// Returns the report of approved work: this one, or the reviewed one if the author has only ended its work since.
    fn or_reviewed(self, reviewed: Option<WorkReport>) -> Self {
        match reviewed {
            Some(WorkReport { summary, is_implicit, .. }) if self.is_implicit => {
                // Last words do not describe a commit.
                let commit_message = if is_implicit { String::new() } else { summary.clone() };
                Self { summary, commit_message, is_implicit, ..self }
            }
            _ => self,
        }
    }
}

/// The place of the work on a task.
pub enum WorkPlace<'a> {
    /// The workspace. With isolation, all work on the task is merged.
    Workspace,
    /// The worktree of the task, in which the author works.
    Worktree(&'a TaskWorktree),
    /// A worktree in which the author does not work. Its work is not merged.
    Elsewhere(UnmergedWork),
}

impl<'a> WorkPlace<'a> {
    /// Returns the place of the work on `task`. `worktree` is the one in which the author works, and `inspector` the one of a team with
    /// isolation.
    ///
    /// # Errors
    /// Git fails.
    pub async fn find(
        task: &Task,
        by: &Actor,
        worktree: Option<&'a TaskWorktree>,
        inspector: Option<&dyn WorkInspector>,
    ) -> Result<Self, RepositoryError> {
        if let Some(worktree) = worktree.filter(|worktree| by.attempt.is_some() && worktree.task() == task.id) {
            return Ok(Self::Worktree(worktree));
        }
        let work = match inspector {
            Some(inspector) if task.worktree.is_some() => inspector.unmerged_work(task).await?,
            _ => UnmergedWork::default(),
        };
        Ok(if work == UnmergedWork::default() { Self::Workspace } else { Self::Elsewhere(work) })
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

/// The result of looking for a review.
enum ReviewDecision {
    Approved { by: String, report: Option<WorkReport> },
    Incomplete(Incomplete),
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
                let Refusal { sentence, evidence, advice, .. } = refusal;
                let sentence = format!("{sentence}; task {id} stays in progress{count}.");
                // The advice comes last: after a long output, small models have forgotten it, and answer nothing.
                let parts = [sentence.as_str(), evidence.trim_end(), advice];
                parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
            }
            Self::NotMerged(_) => "the work is in a worktree, and is merged only when the task's holder reports it. Set the task to `pending`, so that a teammate can claim and report it. A person can complete the task without the merge".to_owned(),
            Self::AttemptFailed { reason } => format!("{reason}; this attempt of task {id} has failed and is over"),
        }
    }
}

/// Returns the evidence of a completed task with nothing to merge.
fn unmerged_evidence(ignored: Option<&IgnoredFiles>) -> String {
    match ignored {
        None => String::new(),
        Some(files) if files.is_empty() => "no changes: the branch had nothing to merge".to_owned(),
        Some(IgnoredFiles { moved, left, .. }) => {
            let lists = [moved, left].into_iter().filter(|list| !list.is_empty()).map(ToString::to_string);
            format!("nothing to merge: git ignores {}", lists.collect::<Vec<_>>().join(", "))
        }
    }
}

/// Returns the answer to the author, an agent, after its task is completed.
pub fn completed_message(task: &Task) -> String {
    let evidence = task.result.as_ref().map(|result| result.evidence.as_str()).filter(|evidence| !evidence.is_empty());
    let evidence = evidence.map(|evidence| format!(" ({evidence})")).unwrap_or_default();
    format!("task {} is completed{evidence}", task.id)
}

/// Completes a task whose earlier attempt merged its work, but ended before it could report that. Brigade publishes a merge only after
/// the verify command exited 0 on it. The output of that run is lost.
///
/// # Errors
/// The claim of `by` is lost, or the board fails.
pub async fn complete_merged(
    board: &dyn Board,
    task: &Task,
    work: MergeRequest,
    ignored: IgnoredFiles,
    by: &Actor,
) -> StoreResult<Task> {
    let MergeRequest { commit, summary, is_reported, reviewed_by } = work;
    let verify = task.verify.as_deref().map(|command| VerifyRun::new(command, Some(0), ""));
    let verify_text = if verify.is_some() { "verify exited 0 on the merged result; " } else { "" };
    let evidence = format!("{verify_text}merged as {commit} by an attempt that ended before it could report");
    let unverified = !is_reported && verify.is_none();
    let ignored_files = Some(ignored).filter(|files| !files.is_empty());
    let result = TaskResult {
        commit: Some(commit),
        unverified,
        verify,
        reviewed_by,
        ignored_files,
        ..TaskResult::new(summary, evidence)
    };
    board.change(task.id, Change::Complete(result), by).await
}

/// Completes tasks for one author.
pub struct CompletionGate<'a> {
    /// The board and the requests.
    pub stores: &'a Stores,
    /// The wall clock.
    pub clock: &'a dyn Clock,
    /// The author; its attempt is the fence.
    pub by: Actor,
    /// Runs the verify command.
    pub verifier: Verifier,
    /// The place of the work.
    pub place: WorkPlace<'a>,
    /// The member or person that reviews the work, in a team with reviews.
    pub reviewer: Option<String>,
    /// Counts the refused completions of the author. With `None` an attempt does not fail because of refusals.
    pub refusals: Option<&'a AttemptLog>,
}

impl CompletionGate<'_> {
    /// Completes a task, unless its review or its verify command prevents it. A crash before the board records the result leaves the
    /// task with its author.
    ///
    /// # Errors
    /// The author may not complete it, its claim is lost, or a store or git fails.
    pub async fn complete(&self, id: TaskId, mut report: TaskReport) -> Result<Completion, ServiceError> {
        let task = self.stores.board.get(id).await?;
        // A completion that the board would refuse runs no command.
        permit(&task, Action::Complete, &self.by)?;
        let mut commit = None;
        if let WorkPlace::Worktree(worktree) = self.place {
            match worktree.commit(&report.commit_message).await? {
                CommitOutcome::Committed(committed) => commit = Some(committed),
                CommitOutcome::Refused(reason) => {
                    let refusal = Refusal::uncommitted(reason);
                    return Ok(Completion::Incomplete(self.refuse(&task, refusal, report.is_implicit).await?));
                }
            }
        }
        let mut reviewed_by = None;
        if let Some(reviewer) = &self.reviewer {
            match self.review(&task, reviewer, commit.clone(), &report).await? {
                ReviewDecision::Approved { by, report: reviewed } => {
                    reviewed_by = Some(by);
                    report = report.or_reviewed(reviewed);
                }
                ReviewDecision::Incomplete(incomplete) => return Ok(Completion::Incomplete(incomplete)),
            }
        }
        let mut result = TaskResult { commit, reviewed_by, ..TaskResult::new(report.summary, report.evidence) };
        let merged = match &self.place {
            WorkPlace::Elsewhere(work) => return Ok(Completion::Incomplete(Incomplete::NotMerged(work.clone()))),
            WorkPlace::Worktree(worktree) => {
                let (board, by, verifier) = (self.stores.board.as_ref(), &self.by, &self.verifier);
                let work = MergeRequest {
                    commit: result.commit.clone().unwrap_or_default(),
                    summary: report.commit_message,
                    is_reported: !report.is_implicit,
                    reviewed_by: result.reviewed_by.clone(),
                };
                TaskMerge { board, by, verifier, task: &task, worktree, work }.run().await?
            }
            WorkPlace::Workspace => self.verify_in_place(&task).await?,
        };
        match merged {
            MergeResult::Done { evidence, commit, verify } => {
                let ignored = self.move_ignored_files().await;
                let has_nothing_merged = commit.is_none() && matches!(self.place, WorkPlace::Worktree(_));
                let unmerged = if has_nothing_merged { unmerged_evidence(ignored.as_ref()) } else { String::new() };
                let parts = [result.evidence, evidence, unmerged];
                let unverified = report.is_implicit && verify.is_none();
                let ignored_files = ignored.filter(|files| !files.is_empty());
                result = TaskResult { evidence: joined(parts), commit, verify, unverified, ignored_files, ..result };
            }
            MergeResult::Refused(reason) => {
                let refusal = Refusal::unmerged(reason);
                return Ok(Completion::Incomplete(self.refuse(&task, refusal, report.is_implicit).await?));
            }
            MergeResult::VerifyFailed { outcome, location } => {
                let refusal = Refusal::verify(&task, &outcome, &location);
                return Ok(Completion::Incomplete(self.refuse(&task, refusal, report.is_implicit).await?));
            }
        }
        let task = self.stores.board.change(id, Change::Complete(result), &self.by).await?;
        if let WorkPlace::Worktree(worktree) = self.place
            && let Some(warning) = worktree.clear().await
        {
            (self.verifier.events)(warning);
        }
        Ok(Completion::Completed(Box::new(task)))
    }

    /// Returns the ignored files of a task with a worktree, and moves those that the team keeps into the workspace.
    async fn move_ignored_files(&self) -> Option<IgnoredFiles> {
        let WorkPlace::Worktree(worktree) = self.place else { return None };
        worktree.move_ignored_files().await.map_err(|warning| (self.verifier.events)(warning)).ok()
    }

    /// Runs the verify command of the task in the author's folder. Returns true if it exits 0, and false without a command.
    ///
    /// # Errors
    /// The claim is lost, or the command cannot be run.
    pub async fn has_green_verify(&self, task: &Task) -> Result<bool, ServiceError> {
        Ok(matches!(self.verify_in_place(task).await?, MergeResult::Done { verify: Some(_), .. }))
    }

    async fn verify_in_place(&self, task: &Task) -> Result<MergeResult, ServiceError> {
        let worktree = if let WorkPlace::Worktree(worktree) = self.place { Some(worktree) } else { None };
        verify_in_place(&self.verifier, task, worktree).await
    }

    /// Returns if the work is approved. Requests a review if there is none.
    async fn review(
        &self,
        task: &Task,
        reviewer: &str,
        commit: Option<String>,
        report: &TaskReport,
    ) -> Result<ReviewDecision, ServiceError> {
        let about = ReviewSubject::of(task, commit);
        let approvals = request_mail::load_approvals(self.stores, &self.by.name).await?;
        let incomplete = match self.review_status(&approvals, &about) {
            ReviewStatus::Approved { by, report } => return Ok(ReviewDecision::Approved { by, report }),
            ReviewStatus::Pending { id, to } => {
                if self.is_holder() {
                    // Another holder may have asked in an earlier attempt. The answer goes to the holder of this one.
                    let now = self.clock.now();
                    self.stores.requests.rebind_review(&id, &self.by.name, &about, now).await?;
                }
                Incomplete::ReviewPending { id, to, rejection: None }
            }
            ReviewStatus::Rejected(feedback) => Incomplete::ReviewRejected { feedback },
            ReviewStatus::RejectedTooOften(feedback) => {
                let reason = format!("{REVIEW_REJECTED} {} times; the last time: {feedback}", review::REJECTIONS_MAX);
                let fail = Change::Fail { reason: reason.clone(), is_final: false };
                self.stores.board.change(task.id, fail, &self.by).await?;
                Incomplete::AttemptFailed { reason }
            }
            ReviewStatus::NotRequested if !self.is_holder() => {
                let text = "the team reviews tasks before completion, and only the holder of a task can request its review. A person can complete it by force";
                return Err(ServiceError::Refused(text.to_owned()));
            }
            // The work is not in the author's folder, so a review has nothing to look at.
            ReviewStatus::NotRequested if let WorkPlace::Elsewhere(work) = &self.place => {
                match approvals.last_rejection_of(&about) {
                    Some(answer) => Incomplete::ReviewRejected { feedback: answer.feedback().to_owned() },
                    None => Incomplete::NotMerged(work.clone()),
                }
            }
            ReviewStatus::NotRequested => {
                let rejection = approvals.rejections_of(&about).last().map(|answer| answer.feedback().to_owned());
                self.request_review(task, reviewer, about, report, rejection).await?
            }
        };
        Ok(ReviewDecision::Incomplete(incomplete))
    }

    /// Verifies the work and requests its review.
    async fn request_review(
        &self,
        task: &Task,
        reviewer: &str,
        about: ReviewSubject,
        report: &TaskReport,
        rejection: Option<String>,
    ) -> Result<Incomplete, ServiceError> {
        let verify = match self.verify_in_place(task).await? {
            MergeResult::VerifyFailed { outcome, location } => {
                return self.refuse(task, Refusal::verify(task, &outcome, &location), report.is_implicit).await;
            }
            MergeResult::Done { verify, .. } => verify,
            MergeResult::Refused(_) => None,
        };
        let location = match self.place {
            WorkPlace::Worktree(worktree) => worktree.location_text(),
            WorkPlace::Workspace | WorkPlace::Elsewhere(_) => String::new(),
        };
        let by = self.by.name.as_str();
        let (subject, summary, is_implicit) = (task.subject.clone(), report.summary.clone(), report.is_implicit);
        let report = WorkReport { subject, summary, is_implicit, verify };
        let plan = review::request_text(by, &about, &report, &location);
        let outbox = Outbox { stores: self.stores, now: self.clock.now(), events: Some(self.verifier.events.clone()) };
        let id = request_mail::new_request_id();
        let request = Request::new(&id, RequestKind::Review, by, reviewer, outbox.now);
        let request = Request { plan, about: Some(about), report: Some(report), ..request };
        request_mail::send_request(&outbox, request).await?;
        Ok(Incomplete::ReviewPending { id, to: reviewer.to_owned(), rejection })
    }

    /// Returns the status of the review of this work. An author outside the worktree does not know the commit. Then any open review
    /// of the task's commits counts, also one that an earlier attempt requested.
    fn review_status(&self, approvals: &Approvals, about: &ReviewSubject) -> ReviewStatus {
        if !matches!(self.place, WorkPlace::Worktree(_)) {
            let is_of_commit = |subject: &ReviewSubject| subject.task == about.task && subject.commit.is_some();
            let mut open = approvals.open(RequestKind::Review);
            if let Some(review) = open.find(|review| review.about.as_ref().is_some_and(is_of_commit)) {
                return ReviewStatus::Pending { id: review.id.clone(), to: review.to.clone() };
            }
        }
        ReviewStatus::of(approvals, about)
    }

    fn is_holder(&self) -> bool {
        self.by.attempt.is_some()
    }

    /// Refuses the completion. The attempt fails at the refusal number [`REFUSALS_MAX`], if refusals are counted.
    async fn refuse(&self, task: &Task, refusal: Refusal, is_implicit: bool) -> Result<Incomplete, ServiceError> {
        let claim = ClaimRef::of(task);
        let count = match self.refusals {
            Some(refusals) if self.is_holder() => Some(refusals.count_refusal(claim)),
            _ => None,
        };
        let Some(count) = count.filter(|count| *count >= REFUSALS_MAX) else {
            return Ok(Incomplete::Refused { refusal, count });
        };
        let question = self.refusals.filter(|_| is_implicit).and_then(|log| log.unanswered_question(claim));
        let question = question.map(|question| format!("{}; ", question.reason(&self.by.name))).unwrap_or_default();
        let fail = Change::Fail { reason: question + &refusal.reason(count), is_final: false };
        self.stores.board.change(task.id, fail, &self.by).await?;
        let ending = refusal.ending.as_deref().unwrap_or("see above");
        Ok(Incomplete::AttemptFailed { reason: format!("{} {count} times ({ending})", refusal.step) })
    }
}

/// A refused completion.
#[derive(Debug)]
pub struct Refusal {
    /// The refused step, in words, such as "verify failed".
    step: &'static str,
    /// The next step for an agent. Empty if the problem says it.
    advice: &'static str,
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
        let command = shorten(&one_line(verify), COMMAND_CHARS_MAX);
        let ending = outcome.ending_text();
        let problem = format!("verify `{command}` failed{location}");
        Self {
            step: "verify failed",
            advice: VERIFY_ADVICE,
            sentence: format!("{problem}: {ending}"),
            problem,
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
    fn of(step: &'static str, result: &str, reason: String) -> Self {
        let (first, rest) = reason.split_once('\n').unwrap_or((&reason, ""));
        let sentence = format!("{result}: {}", first.trim_end_matches('.'));
        let problem = failure_summary::first_sentence(&sentence);
        Self { step, advice: "", problem, sentence, ending: None, evidence: rest.to_owned() }
    }

    /// Returns the failure reason of the attempt, after this number of refusals.
    pub fn reason(&self, count: u32) -> String {
        let times = if count > 1 { format!(" ({count} times)") } else { String::new() };
        let ending = self.ending.as_ref().map(|ending| format!(": {ending}")).unwrap_or_default();
        format!("{}{times}{ending}\n{}", self.problem, failure_summary::stored_text(&self.evidence))
            .trim_end()
            .to_owned()
    }
}
