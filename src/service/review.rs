//! The review of a task's work before its completion.
//!
//! In a team with reviews, a task is completed only after another member or the person approved its work. An approval belongs to
//! the commit, or without a worktree to the attempt. Later changes need a new review.

use super::approvals;
use super::messages::Outbox;
use crate::domain::approval::{ApprovalAnswer, Approvals, Request, RequestKind, ReviewSubject, WorkReport};
use crate::domain::task::Task;
use crate::domain::verify_run::VerifyRun;
use crate::ports::StoreResult;

/// The number of rejections at which an attempt fails.
pub const REJECTIONS_MAX: usize = 3;

/// The review status of some work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReviewStatus {
    /// This reviewer approved it.
    Approved(String),
    /// The request has no answer yet.
    Pending {
        /// The request's id.
        id: String,
        /// The reviewer.
        to: String,
    },
    /// The reviewer rejected this commit, with this feedback.
    Rejected(String),
    /// The attempt was rejected [`REJECTIONS_MAX`] times; with the last feedback.
    RejectedTooOften(String),
    /// No review was requested for this work.
    NotRequested,
}

impl ReviewStatus {
    /// The status of `work`.
    pub fn of(approvals: &Approvals, work: &ReviewSubject) -> Self {
        let review = approvals.review_of(work);
        let answer = review.and_then(|review| review.answer.as_ref());
        let rejections: Vec<&ApprovalAnswer> = approvals.rejections_of(work).collect();
        match (review, answer) {
            (Some(review), Some(answer)) if review.is_approved() => Self::Approved(answer.by.clone()),
            (Some(review), None) => Self::Pending { id: review.id.clone(), to: review.to.clone() },
            _ if rejections.len() >= REJECTIONS_MAX => {
                Self::RejectedTooOften(rejections.last().map(|last| last.feedback().to_owned()).unwrap_or_default())
            }
            (_, Some(answer)) if work.commit.is_some() => Self::Rejected(answer.feedback().to_owned()),
            _ => Self::NotRequested,
        }
    }
}

/// The work to review.
pub struct ReviewRequest<'a> {
    /// The task of the work.
    pub task: &'a Task,
    /// The attempt, and the commit in a team with isolation.
    pub about: ReviewSubject,
    /// The author of the work.
    pub by: &'a str,
    /// The author's report.
    pub summary: &'a str,
    /// The run of the verify command.
    pub verify: Option<&'a VerifyRun>,
    /// The place of the work, in words; empty without a worktree.
    pub location: String,
}

/// Requests a review of `work` from `to`. Returns the request's id.
///
/// # Errors
/// As [`approvals::send_request`].
pub async fn send_review_request(outbox: &Outbox<'_>, work: &ReviewRequest<'_>, to: &str) -> StoreResult<String> {
    let request = Request {
        plan: request_text(work),
        about: Some(work.about.clone()),
        report: Some(WorkReport {
            subject: work.task.subject.clone(),
            summary: work.summary.to_owned(),
            verify: work.verify.cloned(),
        }),
        ..Request::new(&approvals::new_request_id(), RequestKind::Review, work.by, to, outbox.now)
    };
    approvals::send_request(outbox, request).await
}

/// The text for the reviewer.
fn request_text(work: &ReviewRequest<'_>) -> String {
    let ReviewRequest { task, about, by, summary, verify, location } = work;
    let mut text = format!(
        "Review of task {} ({}), attempt {}, by {by}. The task is completed only after you approve. Look at the work itself, then answer. Members: call `review` with this request_id. Person: run brigade review.",
        task.id, task.subject, about.attempt
    );
    if !summary.is_empty() {
        text.push_str(&format!("\nReport: {summary}"));
    }
    if let Some(run) = verify {
        let status =
            run.exit_status.map_or_else(|| "no exit status".to_owned(), |status| format!("exit status {status}"));
        let end =
            if run.output_tail.is_empty() { String::new() } else { format!("; end of output:\n{}", run.output_tail) };
        text.push_str(&format!("\nVerify `{}`: {status}{end}", run.command));
    }
    if !location.is_empty() {
        text.push_str(&format!("\n{location}"));
    }
    text
}
