//! The review of a task's work before its completion.
//!
//! In a team with reviews, a task is completed only after another member or the person approved its work. An approval belongs to
//! the commit, or without a worktree to the attempt. Later changes need a new review.

use crate::domain::approval::{ApprovalAnswer, Approvals, ReviewSubject, WorkReport};

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
    /// Returns the review status of `work`.
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

/// Returns the text of a request, for the reviewer. `location` says where the work is; empty without a worktree.
pub(super) fn request_text(by: &str, work: &ReviewSubject, report: &WorkReport, location: &str) -> String {
    let WorkReport { subject, summary, verify } = report;
    let mut text = format!(
        "Review of task {} ({subject}), attempt {}, by {by}. The task is completed only after you approve. Look at the work itself, then answer. Members: call `review` with this request_id. Person: run `brigade review`.",
        work.task, work.attempt
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
