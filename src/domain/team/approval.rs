//! Requests that wait for an answer: plan approvals, reviews, permissions and shutdown requests. Each has an id and is answered once.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::name::{HUMAN, SYSTEM};
pub use super::request_error::RequestError;
pub use super::request_kind::RequestKind;
pub use super::request_text::RequestedCall;
use super::request_text::{CallDetails, RequestLine, digest_of};
use super::waiting_for::WaitingFor;
use crate::domain::agent::permission::PermissionCall;
use crate::domain::log::snapshot::is_default;
use crate::domain::task::verify_run::VerifyRun;
use crate::domain::task::{Task, TaskId};
use crate::domain::time::UnixMs;

/// Maximum size of a submitted plan, in bytes. A longer plan names a file that has the details.
pub const PLAN_BYTES_MAX: usize = 32 * 1024;
/// Maximum size of the text of a call about which the person is asked, in bytes. The person can see all of it.
pub const CALL_BYTES_MAX: usize = 128 * 1024;
/// Maximum size of all stored plans, in bytes. To make room, the oldest answered requests are removed.
pub const PLANS_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Duration for which an [`AnswerReservation`] excludes other responders. Sending and recording an answer takes far less, unless the
/// process died.
const ANSWERING_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of stored requests. To make room, the oldest answered requests are removed.
pub const REQUESTS_MAX: usize = 500;

/// The work that a request is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReviewSubject {
    /// The task that the requester held.
    pub task: TaskId,
    /// The attempt.
    pub attempt: u32,
    /// Time of the claim. It tells attempts with the same number apart: after a power cut lost a claim, its number is used again.
    #[serde(default)]
    pub claimed_at: UnixMs,
    /// The task's failures at the time of the request.
    #[serde(default)]
    pub failures: u32,
    /// The commit to review, if the task has its own worktree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

impl ReviewSubject {
    /// The current attempt at `task`, with the `commit` that it made, if any.
    pub fn of(task: &Task, commit: Option<String>) -> Self {
        let claimed_at = task.claim.as_ref().map(|claim| claim.at).unwrap_or_default();
        Self { task: task.id, attempt: task.attempt, claimed_at, failures: task.failures, commit }
    }

    fn is_same_attempt(&self, other: &Self) -> bool {
        (self.task, self.attempt, self.claimed_at) == (other.task, other.attempt, other.claimed_at)
    }
}

/// The report that comes with work to review.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkReport {
    /// The subject of the task.
    pub subject: String,
    /// The result as its author describes it; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
    /// True if its author ended without a report. The summary is then its last words.
    #[serde(default, skip_serializing_if = "is_default")]
    pub is_implicit: bool,
    /// The outcome of the task's verify command, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<VerifyRun>,
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Request {
    /// Its id, which is also in the messages about it.
    pub id: String,
    /// Its kind.
    pub kind: RequestKind,
    /// Name of the requester.
    pub from: String,
    /// Name of the responder.
    pub to: String,
    /// Time of the request.
    pub at: UnixMs,
    /// The plan, the text of the call, or the description of the work.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub plan: String,
    /// The call of a permission. The text is what a person approves; see [`Request::drop_other_call`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<RequestedCall>,
    /// The hash of the call's tool and arguments, for a permission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_hash: Option<String>,
    /// The work it is about, if the requester held a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<ReviewSubject>,
    /// The report of the work, for a review.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<WorkReport>,
    /// The responder who is answering it now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answering: Option<AnswerReservation>,
    /// The answer, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<ApprovalAnswer>,
}

impl Request {
    /// A request without an answer.
    pub fn new(id: &str, kind: RequestKind, from: &str, to: &str, at: UnixMs) -> Self {
        Self { id: id.to_owned(), kind, from: from.to_owned(), to: to.to_owned(), at, ..Self::default() }
    }

    /// Asks the person for permission for a call of `from`.
    pub fn permission(id: &str, from: &str, call: &PermissionCall, details: &CallDetails, at: UnixMs) -> Self {
        let requested = RequestedCall { call: call.clone(), arguments: details.arguments.clone() };
        Self {
            plan: requested.text(),
            call: Some(requested),
            call_hash: Some(details.hash.clone()),
            ..Self::new(id, RequestKind::Permission, from, HUMAN, at)
        }
    }

    /// Removes the call if it is not that of the text: other programs can change a stored request, and a person approves its text.
    pub fn drop_other_call(&mut self) {
        self.call.take_if(|call| call.text() != self.plan);
    }

    /// The size of its texts, in bytes. A call is stored as text and as data.
    fn text_bytes(&self) -> usize {
        if self.call.is_some() { 2 * self.plan.len() } else { self.plan.len() }
    }

    /// Returns the plan or the call on one line. A cut text ends with the size of the rest.
    pub fn line(&self) -> String {
        let RequestLine { text, hidden } = RequestLine::of(&self.plan);
        let Some(hidden) = hidden else { return text };
        format!("{text} … {hidden}")
    }

    /// Returns the digest of the member and its call. Another text or another argument changes it.
    pub fn digest(&self) -> String {
        digest_of(&[&self.from, &self.plan, self.call_hash.as_deref().unwrap_or_default()])
    }

    /// Returns the digest that an approval carries; `None` if it needs none. `seen` is the digest that the person saw. It may be missing
    /// if the call was shown in full on one line.
    ///
    /// # Errors
    /// [`RequestError::NotSeen`].
    pub fn approved_digest(&self, seen: Option<&str>) -> Result<Option<String>, RequestError> {
        if self.kind != RequestKind::Permission {
            return Ok(None);
        }
        let hidden = RequestLine::of(&self.plan).hidden;
        let digest = self.digest();
        match seen {
            Some(seen) if seen == digest => Ok(Some(digest)),
            None if hidden.is_none() => Ok(Some(digest)),
            _ => {
                let (id, is_other) = (self.id.clone(), seen.is_some());
                Err(RequestError::NotSeen { id, is_other, hidden })
            }
        }
    }

    /// Returns true if this answer approves exactly this request, as the person saw it.
    pub fn is_approved_by(&self, answer: &ApprovalAnswer) -> bool {
        answer.approve && (self.kind != RequestKind::Permission || answer.digest.as_ref() == Some(&self.digest()))
    }

    /// Returns true if `name` may answer it: the responder, and the person for all kinds except shutdown.
    pub fn is_for(&self, name: &str) -> bool {
        self.to.eq_ignore_ascii_case(name) || (self.kind != RequestKind::Shutdown && name == HUMAN)
    }

    /// Returns the task that it is about.
    pub fn task(&self) -> Option<TaskId> {
        self.about.as_ref().map(|about| about.task)
    }

    /// Returns the answer that its author waits for.
    pub fn awaited_answer(&self) -> WaitingFor {
        WaitingFor::Answer { to: self.to.clone(), kind: self.kind, id: self.id.clone() }
    }

    /// Returns true if the requester waits for the answer before it continues: an unanswered plan, review or permission.
    pub fn is_open_approval(&self) -> bool {
        self.kind != RequestKind::Shutdown && self.answer.is_none()
    }

    /// Returns true if it may concern a teammate that holds `task`: it is not about another task.
    pub fn concerns(&self, task: Option<TaskId>) -> bool {
        self.about.as_ref().is_none_or(|about| task.is_none_or(|task| task == about.task))
    }

    /// Returns true if it was approved.
    pub fn is_approved(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer.approve)
    }
}

/// Excludes other responders for a short time, so that only one answer is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AnswerReservation {
    /// The responder: a member's name, or a process of the person.
    pub by: String,
    /// Time of the reservation.
    pub at: UnixMs,
}

/// An answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ApprovalAnswer {
    /// True approves, false rejects.
    pub approve: bool,
    /// The reason, or the requested changes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Name of the responder.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// Time of the answer.
    pub at: UnixMs,
    /// True if a permission also holds for the same calls in the rest of the run.
    #[serde(default, skip_serializing_if = "is_default")]
    pub for_run: bool,
    /// The digest of the call that the person saw, if it approves one. Only that call may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

impl ApprovalAnswer {
    /// The reason or the requested changes, in words.
    pub fn feedback(&self) -> &str {
        if self.text.trim().is_empty() { "no reason was given" } else { &self.text }
    }

    /// Returns true if a reviewer rejected the work. A withdrawn review has a refusing answer too, but it is no rejection.
    fn is_rejection(&self) -> bool {
        !self.approve && self.by != SYSTEM
    }

    /// The decision and the responder, in words for people.
    pub fn summary(&self) -> String {
        let word = if self.approve { "approved" } else { "rejected" };
        if self.by.is_empty() { word.to_owned() } else { format!("{word} by {}", self.by) }
    }
}

/// All stored requests, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Approvals {
    /// Format version.
    pub v: u32,
    /// The requests.
    #[serde(default)]
    pub requests: Vec<Request>,
}

impl Approvals {
    /// Records a request. A stored id changes nothing, so recording it twice is safe.
    ///
    /// # Errors
    /// [`RequestError::TooMany`], [`RequestError::TooLong`].
    pub fn record(&mut self, request: Request) -> Result<(), RequestError> {
        if self.requests.iter().any(|stored| stored.id == request.id) {
            return Ok(());
        }
        let bytes_max = if request.kind == RequestKind::Permission { CALL_BYTES_MAX } else { PLAN_BYTES_MAX };
        if request.plan.len() > bytes_max {
            return Err(RequestError::TooLong);
        }
        let plan_bytes = |approvals: &Self| approvals.requests.iter().map(Request::text_bytes).sum::<usize>();
        while self.requests.len() >= REQUESTS_MAX || plan_bytes(self) + request.text_bytes() > PLANS_BYTES_MAX {
            let answered =
                self.requests.iter().position(|stored| stored.answer.is_some()).ok_or(RequestError::TooMany)?;
            self.requests.remove(answered);
        }
        self.requests.push(request);
        Ok(())
    }

    /// Reserves the request for `process`, which answers in the name of `by`, and returns it. The same process may reserve it
    /// again.
    ///
    /// # Errors
    /// [`RequestError`]: unknown, answered, being answered, or for another member.
    pub fn reserve(
        &mut self,
        id: &str,
        kind: RequestKind,
        by: &str,
        process: &str,
        now: UnixMs,
    ) -> Result<Request, RequestError> {
        let position = self.open_position(id, kind, by)?;
        let request = &mut self.requests[position];
        // The absolute difference: a clock that was set back must not make a reservation last.
        if let Some(other) = &request.answering
            && other.by != process
            && now.since(other.at).max(other.at.since(now)) < ANSWERING_TIMEOUT
        {
            return Err(RequestError::BeingAnswered { id: id.to_owned(), by: other.by.clone() });
        }
        request.answering = Some(AnswerReservation { by: process.to_owned(), at: now });
        Ok(request.clone())
    }

    /// Records the answer in the name of `answer.by` and returns the request with it.
    ///
    /// # Errors
    /// As [`Approvals::reserve`]. After an error nothing has changed.
    pub fn answer(&mut self, id: &str, kind: RequestKind, answer: ApprovalAnswer) -> Result<Request, RequestError> {
        let position = self.open_position(id, kind, &answer.by)?;
        let request = &mut self.requests[position];
        request.answering = None;
        request.answer = Some(answer);
        Ok(request.clone())
    }

    /// Makes `to` the responder and returns the request. An answered request does not change.
    pub fn reassign(&mut self, id: &str, kind: RequestKind, to: &str) -> Option<Request> {
        let request = self.open_request_mut(id, kind)?;
        request.to = to.to_owned();
        request.answering = None;
        Some(request.clone())
    }

    /// Binds a review to the attempt of `work`, so that its answer counts there. The holder `from` gets the answer of an open one.
    pub fn rebind_review(&mut self, id: &str, from: &str, work: &ReviewSubject, at: UnixMs) {
        if let Some(request) = self.requests.iter_mut().find(|request| request.id == id) {
            if request.answer.is_none() {
                request.from = from.to_owned();
                request.at = at;
            }
            if let Some(about) = &mut request.about {
                about.attempt = work.attempt;
                about.claimed_at = work.claimed_at;
            }
        }
    }

    /// Withdraws a request that needs no answer any more, by rejecting it as `system`. An answered request does not change.
    pub fn withdraw(&mut self, id: &str, kind: RequestKind, reason: &str, at: UnixMs) {
        if let Some(request) = self.open_request_mut(id, kind) {
            request.answering = None;
            let (text, by) = (reason.to_owned(), SYSTEM.to_owned());
            request.answer = Some(ApprovalAnswer { text, by, at, ..ApprovalAnswer::default() });
        }
    }

    /// The open plans, reviews and permissions, oldest first.
    pub fn open_approvals(&self) -> impl Iterator<Item = &Request> {
        self.requests.iter().filter(|request| request.is_open_approval())
    }

    /// The open requests of this kind, oldest first.
    pub fn open(&self, kind: RequestKind) -> impl Iterator<Item = &Request> {
        self.requests.iter().filter(move |request| request.kind == kind && request.answer.is_none())
    }

    /// The requests about a task, oldest first.
    pub fn about(&self, task: TaskId) -> impl Iterator<Item = &Request> {
        self.requests.iter().filter(move |request| request.about.as_ref().is_some_and(|about| about.task == task))
    }

    /// Returns true if a plan of `from` for this task was approved, and no attempt has failed and the task was not reopened since.
    pub fn has_approved_plan(&self, from: &str, task: &Task) -> bool {
        let is_for_it =
            |about: &ReviewSubject| about.failures == task.failures && about.attempt >= task.first_continued_attempt();
        self.about(task.id).any(|request| {
            request.kind == RequestKind::PlanApproval
                && request.from.eq_ignore_ascii_case(from)
                && request.is_approved()
                && request.about.as_ref().is_some_and(is_for_it)
        })
    }

    /// Returns true if the newest review of this attempt approved its work.
    pub fn has_approved_work(&self, work: &ReviewSubject) -> bool {
        self.last_review_of(work).is_some_and(Request::is_approved)
    }

    /// The reviews that `holder` requested in the attempt before the current one, if the current attempt continues it. A power cut can
    /// undo a claim, and the next claim then has its number again: only the last claim with that number counts.
    pub fn continued_reviews(&self, holder: &str, task: &Task) -> impl Iterator<Item = &Request> {
        let former = task.attempt.saturating_sub(1);
        let is_continued = former >= task.first_continued_attempt();
        let of_holder = move |request: &&Request| {
            is_continued && request.kind == RequestKind::Review && request.from.eq_ignore_ascii_case(holder)
        };
        let claimed_at = move |request: &Request| {
            request.about.as_ref().filter(|about| about.attempt == former).map(|about| about.claimed_at)
        };
        let last = self.about(task.id).filter(of_holder).filter_map(claimed_at).last();
        self.about(task.id).filter(of_holder).filter(move |request| last.is_some() && claimed_at(request) == last)
    }

    /// The last review of this work: of the same commit or, without a commit, of the same attempt.
    pub fn review_of(&self, work: &ReviewSubject) -> Option<&Request> {
        let is_same = |about: &ReviewSubject| {
            about.task == work.task
                && about.commit == work.commit
                && (work.commit.is_some() || about.is_same_attempt(work))
        };
        let mut reviews = self.requests.iter().rev().filter(|request| request.kind == RequestKind::Review);
        reviews.find(|request| request.about.as_ref().is_some_and(is_same))
    }

    /// The answers that rejected this attempt, the oldest first. Withdrawn reviews do not count.
    pub fn rejections_of(&self, work: &ReviewSubject) -> impl Iterator<Item = &ApprovalAnswer> {
        let answers = self.reviews_of_attempt(work).filter_map(|review| review.answer.as_ref());
        answers.filter(|answer| answer.is_rejection())
    }

    /// The rejection of this attempt, if its newest review, of any commit, has one.
    pub fn last_rejection_of(&self, work: &ReviewSubject) -> Option<&ApprovalAnswer> {
        self.last_review_of(work)?.answer.as_ref().filter(|answer| answer.is_rejection())
    }

    /// The newest review of this attempt, of any commit.
    pub fn last_review_of(&self, work: &ReviewSubject) -> Option<&Request> {
        self.reviews_of_attempt(work).last()
    }

    fn reviews_of_attempt(&self, work: &ReviewSubject) -> impl Iterator<Item = &Request> {
        self.requests.iter().filter(|request| {
            let about = request.about.as_ref();
            request.kind == RequestKind::Review && about.is_some_and(|about| about.is_same_attempt(work))
        })
    }

    fn open_request_mut(&mut self, id: &str, kind: RequestKind) -> Option<&mut Request> {
        self.requests.iter_mut().find(|request| request.id == id && request.kind == kind && request.answer.is_none())
    }

    fn open_position(&self, id: &str, kind: RequestKind, by: &str) -> Result<usize, RequestError> {
        let Some(position) = self.requests.iter().position(|request| request.id == id && request.kind == kind) else {
            let open = self
                .requests
                .iter()
                .filter(|request| request.kind == kind && request.answer.is_none() && request.is_for(by));
            let open = open.map(|request| format!("{} (from {})", request.id, request.from)).collect();
            return Err(RequestError::Unknown { id: id.to_owned(), kind, open });
        };
        let request = &self.requests[position];
        if !request.is_for(by) {
            return Err(RequestError::OtherResponder { id: id.to_owned(), to: request.to.clone() });
        }
        match &request.answer {
            Some(answer) => Err(RequestError::AlreadyAnswered { id: id.to_owned(), how: answer.summary() }),
            None => Ok(position),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::task::Claim;
    use crate::domain::task::failed_attempt::FailedAttempt;

    const PLAN: RequestKind = RequestKind::PlanApproval;

    fn request(id: &str) -> Request {
        Request::new(id, PLAN, "bob", "lead", UnixMs(1))
    }

    fn answer(by: &str) -> ApprovalAnswer {
        ApprovalAnswer {
            approve: true,
            text: String::new(),
            by: by.into(),
            at: UnixMs(2),
            for_run: false,
            digest: None,
        }
    }

    #[test]
    fn approval_of_cut_call_needs_digest_of_that_call() {
        let call = |command: &str| PermissionCall {
            tool: "bash".into(),
            kind: crate::domain::agent::permission::ToolKind::Command,
            subject: command.into(),
        };
        let asked = |from: &str, command: &str, time_max: u32| {
            let input = serde_json::json!({ "command": command, "timeout_ms": time_max });
            let details = CallDetails::of("bash", &input, Some("command"), None);
            Request::permission("4910291a", from, &call(command), &details, UnixMs(1))
        };
        let short = asked("ann", "make", 1);
        assert_eq!(short.line(), "bash: make ⏎ timeout_ms: 1");
        assert_eq!(short.approved_digest(None), Ok(Some(short.digest())));
        let script = "make\n".repeat(82);
        let long = asked("ann", &script, 1);
        let ending = "make … 62 more lines";
        assert!(long.line().ends_with(ending), "{}", long.line());
        let others =
            [asked("bob", &script, 1), asked("ann", &script, 2), asked("ann", &script.replacen("make", "rm x", 1), 1)];
        let refused = |seen: Option<&str>| long.approved_digest(seen).unwrap_err().to_string();
        assert!(others.iter().all(|other| refused(Some(&other.digest())).contains("does not show 62 more lines")));
        assert!(refused(None).contains("needs its digest, and the line about this call does not show 62 more lines"));
        assert_eq!(long.approved_digest(Some(&long.digest())), Ok(Some(long.digest())));
        let approval = |digest| ApprovalAnswer { digest, ..answer(HUMAN) };
        assert!(long.is_approved_by(&approval(Some(long.digest()))));
        assert!(!long.is_approved_by(&approval(Some(others[1].digest()))) && !long.is_approved_by(&approval(None)));
    }

    #[test]
    fn request_is_answered_once_by_its_recipient() {
        let mut approvals = Approvals::default();
        approvals.record(request("a")).unwrap();
        assert!(matches!(approvals.answer("a", PLAN, answer("carol")), Err(RequestError::OtherResponder { .. })));
        assert!(matches!(
            approvals.answer("a", RequestKind::Shutdown, answer("lead")),
            Err(RequestError::Unknown { .. })
        ));
        let unknown = approvals.answer("b", PLAN, answer("lead")).unwrap_err();
        assert!(unknown.to_string().contains("a (from bob)"), "{unknown}");
        assert_eq!(approvals.answer("a", PLAN, answer("lead")).unwrap().from, "bob");
        let again = approvals.answer("a", PLAN, answer("human"));
        assert_eq!(again, Err(RequestError::AlreadyAnswered { id: "a".into(), how: "approved by lead".into() }));
        approvals.record(request("a")).unwrap();
        assert!(approvals.requests[0].answer.is_some(), "recording it again keeps the answer");
    }

    #[test]
    fn person_may_answer_any_plan_but_not_shutdown() {
        let mut approvals = Approvals::default();
        approvals.record(request("a")).unwrap();
        approvals.record(Request::new("b", RequestKind::Shutdown, "lead", "bob", UnixMs(1))).unwrap();
        assert!(matches!(
            approvals.answer("b", RequestKind::Shutdown, answer(HUMAN)),
            Err(RequestError::OtherResponder { .. })
        ));
        approvals.answer("a", PLAN, answer(HUMAN)).unwrap();
        assert_eq!(approvals.open(PLAN).count(), 0);
    }

    #[test]
    fn answer_reservation_excludes_others_until_expiry() {
        let mut approvals = Approvals::default();
        approvals.record(request("a")).unwrap();
        let mut reserve = |by: &str, at: i64| approvals.reserve("a", PLAN, by, by, UnixMs(at));
        reserve("lead", 1_000).unwrap();
        assert!(matches!(reserve(HUMAN, 2_000), Err(RequestError::BeingAnswered { .. })));
        reserve("lead", 3_000).unwrap();
        reserve(HUMAN, 20_000).unwrap();
        assert!(reserve("lead", 21_000).is_err());
        reserve("lead", 1_000).unwrap();
    }

    #[test]
    fn only_answered_requests_are_evicted_when_full() {
        let mut approvals = Approvals::default();
        for number in 0..REQUESTS_MAX {
            approvals.record(request(&number.to_string())).unwrap();
        }
        assert_eq!(approvals.record(request("more")), Err(RequestError::TooMany));
        approvals.answer("7", PLAN, answer("lead")).unwrap();
        approvals.record(request("more")).unwrap();
        assert_eq!(approvals.requests.len(), REQUESTS_MAX);
        assert!(!approvals.requests.iter().any(|request| request.id == "7"));
    }

    #[test]
    fn plan_bytes_are_bounded_each_and_in_total() {
        let mut approvals = Approvals::default();
        let long = |id: usize, bytes: usize| Request { plan: "x".repeat(bytes), ..request(&id.to_string()) };
        assert_eq!(approvals.record(long(0, PLAN_BYTES_MAX + 1)), Err(RequestError::TooLong));
        let fitting = PLANS_BYTES_MAX / PLAN_BYTES_MAX;
        (0..fitting).for_each(|id| approvals.record(long(id, PLAN_BYTES_MAX)).unwrap());
        assert_eq!(approvals.record(long(fitting, 1)), Err(RequestError::TooMany));
        approvals.answer("3", PLAN, answer("lead")).unwrap();
        approvals.record(long(fitting, 1)).unwrap();
    }

    #[test]
    fn approval_does_not_apply_to_another_claim() {
        let mut task = Task::new(TaskId(7), "count".to_owned());
        task.attempt = 1;
        task.claim = Some(Claim { worker: "w".into(), at: UnixMs(10), expires: None });
        let mut approvals = Approvals::default();
        approvals
            .record(Request {
                about: Some(ReviewSubject::of(&task, None)),
                ..Request::new("r", RequestKind::Review, "bob", "carol", UnixMs(11))
            })
            .unwrap();
        approvals.answer("r", RequestKind::Review, answer("carol")).unwrap();
        assert!(approvals.review_of(&ReviewSubject::of(&task, None)).is_some_and(Request::is_approved));
        task.claim = Some(Claim { worker: "x".into(), at: UnixMs(20), expires: None });
        assert_eq!(approvals.review_of(&ReviewSubject::of(&task, None)), None);
    }

    #[test]
    fn approval_counts_only_for_continued_attempt() {
        let mut approvals = Approvals::default();
        let first = Task { attempt: 1, ..Task::new(TaskId(7), "count") };
        for (id, kind) in [("r", RequestKind::Review), ("p", PLAN)] {
            let about = Some(ReviewSubject::of(&first, None));
            approvals.record(Request { about, ..Request::new(id, kind, "bob", "carol", UnixMs(1)) }).unwrap();
            approvals.answer(id, kind, answer("carol")).unwrap();
        }
        let approved = |holder: &str, task: &Task| {
            (approvals.continued_reviews(holder, task).count() == 1, approvals.has_approved_plan(holder, task))
        };
        let next = Task { attempt: 2, ..first.clone() };
        assert_eq!(approved("Bob", &next), (true, true));
        assert_eq!(approved("dora", &next), (false, false));
        assert_eq!(approved("bob", &Task { attempt: 3, ..first.clone() }), (false, true), "another claim in between");
        assert_eq!(approved("bob", &Task { reopened_after: 1, ..next.clone() }), (false, false));
        let failed = FailedAttempt { attempt: 1, owner: "bob".into(), reason: "red".into() };
        assert_eq!(approved("bob", &Task { failed_attempts: vec![failed], ..next.clone() }), (false, false), "retried");
        // A power cut undid the first claim.
        let again = ReviewSubject { claimed_at: UnixMs(9), ..ReviewSubject::of(&first, None) };
        let review =
            Request { about: Some(again), ..Request::new("r2", RequestKind::Review, "bob", "carol", UnixMs(9)) };
        approvals.record(review).unwrap();
        let ids: Vec<&str> = approvals.continued_reviews("bob", &next).map(|request| request.id.as_str()).collect();
        assert_eq!(ids, ["r2"]);
    }
}
