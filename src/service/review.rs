//! The review of a task's work before its completion.
//!
//! In a team with reviews, a task is completed only after another member or the person approved its work. An approval belongs to
//! the commit, or without a worktree to the attempt. Later changes need a new review.

use crate::domain::team::approval::{ApprovalAnswer, Approvals, ReviewSubject, WorkReport};
use crate::domain::team::name::{HUMAN, LEAD};
use crate::domain::team::phase::ReportedPhase;
use crate::domain::team::state::TeammateReport;
use crate::domain::team::waiting_for::WaitingFor;

/// The number of rejections at which an attempt fails.
pub const REJECTIONS_MAX: usize = 3;

/// The review status of some work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReviewStatus {
    /// It is approved.
    Approved {
        /// The reviewer.
        by: String,
        /// The report that was reviewed.
        report: Option<WorkReport>,
    },
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
            (Some(review), Some(answer)) if review.is_approved() => {
                Self::Approved { by: answer.by.clone(), report: review.report.clone() }
            }
            (Some(review), None) => Self::Pending { id: review.id.clone(), to: review.to.clone() },
            _ if rejections.len() >= REJECTIONS_MAX => {
                Self::RejectedTooOften(rejections.last().map(|last| last.feedback().to_owned()).unwrap_or_default())
            }
            (_, Some(answer)) if work.commit.is_some() => Self::Rejected(answer.feedback().to_owned()),
            _ => Self::NotRequested,
        }
    }
}

/// A member of a running team that may review work.
#[derive(Debug, Clone, Copy)]
pub struct ReviewCandidate<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its role and its capabilities. Empty without a model: it cannot review.
    pub capabilities: &'a [String],
    /// Its last report; `None` before the first one.
    pub report: Option<&'a TeammateReport>,
}

impl ReviewCandidate<'_> {
    fn can(&self, capability: &str) -> bool {
        self.capabilities.iter().any(|own| own.eq_ignore_ascii_case(capability))
    }

    fn is_available(&self) -> bool {
        let waits_for_model = |report: &TeammateReport| matches!(report.waiting_for, Some(WaitingFor::Model(_)));
        self.report.is_none_or(|report| !report.is_gone() && !waits_for_model(report))
    }

    fn is_idle(&self) -> bool {
        self.report.is_some_and(|report| report.phase == ReportedPhase::Idle)
    }
}

/// Returns the reviewer of work by `author`. `required` is the team's setting: `human`, `lead` or a capability.
///
/// An available member with the capability comes first, an idle one before a busy one, then by name. Otherwise it is the lead if
/// `lead_can_review`, and else the person.
pub fn choose_reviewer<'a>(
    required: &str,
    author: &str,
    members: impl IntoIterator<Item = ReviewCandidate<'a>>,
    lead_can_review: bool,
) -> String {
    if required.eq_ignore_ascii_case(HUMAN) {
        return HUMAN.to_owned();
    }
    if !required.eq_ignore_ascii_case(LEAD) {
        let is_fit = |member: &ReviewCandidate| {
            !member.name.eq_ignore_ascii_case(author) && member.can(required) && member.is_available()
        };
        let fit = members.into_iter().filter(is_fit);
        if let Some(member) = fit.min_by_key(|member| (!member.is_idle(), member.name)) {
            return member.name.to_owned();
        }
    }
    let reviewer = if lead_can_review && !author.eq_ignore_ascii_case(LEAD) { LEAD } else { HUMAN };
    reviewer.to_owned()
}

/// Returns the text of a request, for the reviewer. `location` says where the work is; empty without a worktree.
pub(super) fn request_text(by: &str, work: &ReviewSubject, report: &WorkReport, location: &str) -> String {
    let WorkReport { subject, summary, verify, .. } = report;
    let mut text = format!(
        "Review of task {} ({subject}), attempt {}, by {by}. The task is completed only after you approve. Look at the work itself, then answer. Members: call `review` with this request_id.",
        work.task, work.attempt
    );
    if !summary.is_empty() {
        text.push_str(&format!("\nReport: {summary}"));
    }
    if let Some(run) = verify {
        let end =
            if run.output_tail.is_empty() { String::new() } else { format!("; end of output:\n{}", run.output_tail) };
        text.push_str(&format!("\nVerify `{}`: {}{end}", run.command, run.exit_text()));
    }
    if !location.is_empty() {
        text.push_str(&format!("\n{location}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(phase: ReportedPhase) -> TeammateReport {
        TeammateReport {
            role: "tester".to_owned(),
            phase,
            task: None,
            attempt: None,
            since: String::new(),
            heartbeat: String::new(),
            tokens: 0,
            cost_usd: 0.0,
            waiting_for: None,
            fallback: None,
        }
    }

    #[test]
    fn reviewer_is_idle_member_then_lead_then_person() {
        let capabilities = ["tester".to_owned()];
        let [idle, busy, dead] = [ReportedPhase::Idle, ReportedPhase::Work, ReportedPhase::Dead].map(report);
        let choose = |required, author, reports: [&TeammateReport; 3], lead_can_review| {
            let candidate =
                |(name, report)| ReviewCandidate { name, capabilities: &capabilities, report: Some(report) };
            let members = ["alice", "bob", "carol"].into_iter().zip(reports).map(candidate);
            choose_reviewer(required, author, members, lead_can_review)
        };
        assert_eq!(choose("Tester", "alice", [&idle, &busy, &idle], true), "carol", "an idle one first");
        assert_eq!(choose("tester", "dora", [&busy, &busy, &dead], true), "alice", "then by name");
        assert_eq!(choose("tester", "alice", [&idle, &dead, &dead], true), "lead", "an author does not review");
        assert_eq!(choose("tester", "lead", [&dead, &dead, &dead], true), "human");
        assert_eq!(choose("tester", "alice", [&dead, &dead, &dead], false), "human");
        assert_eq!(choose("lead", "alice", [&idle, &idle, &idle], true), "lead");
        assert_eq!(choose("lead", "alice", [&idle, &idle, &idle], false), "human");
        assert_eq!(choose("human", "alice", [&idle, &idle, &idle], true), "human");
    }
}
