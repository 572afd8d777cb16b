//! Requests that wait for an answer: a plan to approve, work to review, a teammate to stop. Each is known by its id and answered
//! once.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::name::{HUMAN, LEAD, SYSTEM};
use super::task::{Task, TaskId};
use super::time::UnixMs;

/// The longest plan that is handed in, in bytes; details of a longer one belong into a file that it names.
pub const PLAN_BYTES_MAX: usize = 32 * 1024;
/// The most text of plans that is remembered, in bytes; of more, the oldest answered ones are forgotten.
pub const PLANS_BYTES_MAX: usize = 2 * 1024 * 1024;
/// How long who answers a request keeps others from answering it: it is sent and recorded well within this, unless its process died.
const ANSWERING_TIMEOUT: Duration = Duration::from_secs(10);
/// The most requests that are remembered; of more, the oldest answered ones are forgotten.
pub const REQUESTS_MAX: usize = 500;

/// What stands in the answer to a report that has to wait for its review, before the review's id.
pub const WAITS_FOR_REVIEW: &str = "waits for review ";

/// How the reason begins for which an attempt failed whose review rejected the work.
pub const REVIEW_REJECTED_IT: &str = "its review rejected it";

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    /// That a plan is approved.
    PlanApproval,
    /// That work is approved before its task is completed.
    Review,
    /// That somebody stops.
    Shutdown,
}

impl RequestKind {
    /// The words people read.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PlanApproval => "plan approval",
            Self::Review => "review",
            Self::Shutdown => "shutdown",
        }
    }

    /// What is approved or rejected, in a word; it is the command that shows and answers such requests, too.
    #[must_use]
    pub fn noun(self) -> &'static str {
        match self {
            Self::PlanApproval => "plan",
            Self::Review => "review",
            Self::Shutdown => "shutdown",
        }
    }
}

/// The work that a request is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The task who asks held.
    pub task: TaskId,
    /// The attempt.
    pub attempt: u32,
    /// When that was claimed: a power cut may take a claim, and its number is given again.
    #[serde(default)]
    pub claimed_at: UnixMs,
    /// The failures the task had then.
    #[serde(default)]
    pub failures: u32,
    /// The commit that is to be reviewed, where the task has a worktree of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

impl About {
    /// What is done in the present attempt at `task`, or the `commit` that came of it.
    #[must_use]
    pub fn of(task: &Task, commit: Option<String>) -> Self {
        let claimed_at = task.claim.as_ref().map(|claim| claim.at).unwrap_or_default();
        Self { task: task.id, attempt: task.attempt, claimed_at, failures: task.failures, commit }
    }

    /// Whether it is of the same attempt.
    fn is_same_attempt(&self, other: &Self) -> bool {
        (self.task, self.attempt, self.claimed_at) == (other.task, other.attempt, other.claimed_at)
    }
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Its id, as the messages carry it.
    pub id: String,
    /// What is asked for.
    pub kind: RequestKind,
    /// Who asks.
    pub from: String,
    /// Who is to answer.
    pub to: String,
    /// When.
    pub at: UnixMs,
    /// The plan, or what is to be known of the work.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub plan: String,
    /// The work it is about, where who asks held a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<About>,
    /// Who is about to answer it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answering: Option<Answering>,
    /// The answer, once there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
}

impl Request {
    /// A request that nobody has answered.
    #[must_use]
    pub fn new(id: &str, kind: RequestKind, from: &str, to: &str, at: UnixMs) -> Self {
        let (id, from, to) = (id.to_owned(), from.to_owned(), to.to_owned());
        Self { id, kind, from, to, at, plan: String::new(), about: None, answering: None, answer: None }
    }

    /// Whether `name` may answer it: whom it is for; but for a request to stop, the person too, whoever else may.
    #[must_use]
    pub fn is_for(&self, name: &str) -> bool {
        self.to.eq_ignore_ascii_case(name) || (self.kind != RequestKind::Shutdown && name == HUMAN)
    }

    /// Who is to answer it, in words.
    #[must_use]
    pub fn who_answers(&self) -> String {
        let who = match self.to.as_str() {
            HUMAN => "a person",
            LEAD => "the lead",
            member => member,
        };
        format!("{who} ({} {})", self.kind.noun(), self.id)
    }

    /// Whether who asks waits for its answer before it goes on: a plan, or a review.
    #[must_use]
    pub fn is_open_approval(&self) -> bool {
        self.kind != RequestKind::Shutdown && self.answer.is_none()
    }

    /// Whether who asks waits for it, as far as what they hold tells: it is not about another task.
    #[must_use]
    pub fn concerns(&self, held: Option<TaskId>) -> bool {
        self.about.as_ref().is_none_or(|about| held.is_none_or(|held| held == about.task))
    }

    /// Whether it was approved.
    #[must_use]
    pub fn is_approved(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer.approve)
    }
}

/// Somebody is about to answer: others are kept from it for a moment, so that one answer is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answering {
    /// Who: a member's name, or a process of a person.
    pub by: String,
    /// Since when.
    pub at: UnixMs,
}

/// An answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Yes or no.
    pub approve: bool,
    /// Why, or what is to be changed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Who gave it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// When.
    pub at: UnixMs,
}

impl Answer {
    /// How it came out, and who said so.
    #[must_use]
    pub fn in_short(&self) -> String {
        let word = if self.approve { "approved" } else { "rejected" };
        if self.by.is_empty() { word.to_owned() } else { format!("{word} by {}", self.by) }
    }
}

/// Why a request is not recorded or not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// No request of that kind has that id.
    #[error("there is no {} request `{}`; {}", kind.as_str(), id.escape_debug(), open_ones(open))]
    Unknown {
        /// The id that was given.
        id: String,
        /// The kind of request that was looked for.
        kind: RequestKind,
        /// Those of the kind that do wait for whoever asked.
        open: Vec<String>,
    },
    /// It was answered before.
    #[error("request `{id}` was answered already ({how}); an answer is given once")]
    Answered {
        /// Which.
        id: String,
        /// How, and by whom.
        how: String,
    },
    /// Somebody is about to answer it.
    #[error("request `{id}` is being answered by {by} right now")]
    BeingAnswered {
        /// Which.
        id: String,
        /// Who.
        by: String,
    },
    /// Its plan is too long.
    #[error("the plan is longer than {PLAN_BYTES_MAX} bytes: put details into a file and name it")]
    TooLong,
    /// Somebody else is to answer it.
    #[error("request `{id}` is for {to} to answer")]
    NotYours {
        /// Which.
        id: String,
        /// Who is.
        to: String,
    },
    /// Too many wait.
    #[error("{REQUESTS_MAX} requests wait for an answer already; no more are taken")]
    TooMany,
}

fn open_ones(open: &[String]) -> String {
    if open.is_empty() { "none waits for you".to_owned() } else { format!("these wait for you: {}", open.join(", ")) }
}

/// All requests that are remembered, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RequestBook {
    /// Version of the form.
    pub v: u32,
    /// The requests.
    #[serde(default)]
    pub requests: Vec<Request>,
}

impl RequestBook {
    /// Records a request. One whose id is known is left as it is, so that recording it twice does no harm.
    ///
    /// # Errors
    /// [`RequestError::TooMany`], [`RequestError::TooLong`].
    pub fn record(&mut self, request: Request) -> Result<(), RequestError> {
        if self.requests.iter().any(|known| known.id == request.id) {
            return Ok(());
        }
        if request.plan.len() > PLAN_BYTES_MAX {
            return Err(RequestError::TooLong);
        }
        let text = |book: &Self| book.requests.iter().map(|known| known.plan.len()).sum::<usize>();
        while self.requests.len() >= REQUESTS_MAX || text(self) + request.plan.len() > PLANS_BYTES_MAX {
            let answered =
                self.requests.iter().position(|known| known.answer.is_some()).ok_or(RequestError::TooMany)?;
            self.requests.remove(answered);
        }
        self.requests.push(request);
        Ok(())
    }

    /// Keeps others from answering the request for a moment, and returns it. `process` is who answers, `by` in whose name: the same
    /// may try again.
    ///
    /// # Errors
    /// [`RequestError`]: unknown, answered, being answered, or for somebody else.
    pub fn reserve(
        &mut self,
        id: &str,
        kind: RequestKind,
        by: &str,
        process: &str,
        now: UnixMs,
    ) -> Result<Request, RequestError> {
        let place = self.place(id, kind, by)?;
        let request = &mut self.requests[place];
        // A clock that was set back must not keep a request from being answered.
        let lives = |answering: &&Answering| now.since(answering.at).max(answering.at.since(now)) < ANSWERING_TIMEOUT;
        if let Some(other) = request.answering.as_ref().filter(lives).filter(|answering| answering.by != process) {
            return Err(RequestError::BeingAnswered { id: id.to_owned(), by: other.by.clone() });
        }
        request.answering = Some(Answering { by: process.to_owned(), at: now });
        Ok(request.clone())
    }

    /// Records the answer that `answer.by` gave, and returns the request with it.
    ///
    /// # Errors
    /// As [`RequestBook::reserve`]; nothing changed then.
    pub fn answer(&mut self, id: &str, kind: RequestKind, answer: Answer) -> Result<Request, RequestError> {
        let place = self.place(id, kind, &answer.by)?;
        let request = &mut self.requests[place];
        request.answering = None;
        request.answer = Some(answer);
        Ok(request.clone())
    }

    /// Has somebody else answer a request than who was asked, and returns it; one that is answered stays as it is.
    pub fn hand_on(&mut self, id: &str, kind: RequestKind, to: &str) -> Option<Request> {
        let is_it = |request: &&mut Request| request.id == id && request.kind == kind && request.answer.is_none();
        let request = self.requests.iter_mut().find(is_it)?;
        (request.to, request.answering) = (to.to_owned(), None);
        Some(request.clone())
    }

    /// Has a request be that of another attempt, and of who makes it: its answer goes to them. One that is answered stays as it is.
    pub fn adopt(&mut self, id: &str, kind: RequestKind, from: &str, attempt: u32, at: UnixMs) {
        let is_it = |request: &&mut Request| request.id == id && request.kind == kind && request.answer.is_none();
        if let Some(request) = self.requests.iter_mut().find(is_it) {
            (request.from, request.at) = (from.to_owned(), at);
            if let Some(about) = &mut request.about {
                about.attempt = attempt;
            }
        }
    }

    /// Takes back a request that nobody is to answer any more; one that is answered stays so.
    pub fn withdraw(&mut self, id: &str, kind: RequestKind, reason: &str, at: UnixMs) {
        let is_it = |request: &&mut Request| request.id == id && request.kind == kind && request.answer.is_none();
        if let Some(request) = self.requests.iter_mut().find(is_it) {
            request.answering = None;
            request.answer = Some(Answer { approve: false, text: reason.to_owned(), by: SYSTEM.to_owned(), at });
        }
    }

    /// The plans and reviews that wait for an answer, oldest first.
    pub fn open_approvals(&self) -> impl Iterator<Item = &Request> {
        self.requests.iter().filter(|request| request.is_open_approval())
    }

    /// The plans that wait for an answer, oldest first.
    pub fn open_plans(&self) -> impl Iterator<Item = &Request> {
        self.open(RequestKind::PlanApproval)
    }

    /// The requests of this kind that wait for an answer, oldest first.
    pub fn open(&self, kind: RequestKind) -> impl Iterator<Item = &Request> {
        self.requests.iter().filter(move |request| request.kind == kind && request.answer.is_none())
    }

    /// What was asked about a task, oldest first.
    pub fn about(&self, task: TaskId) -> impl Iterator<Item = &Request> {
        self.requests.iter().filter(move |request| request.about.as_ref().is_some_and(|about| about.task == task))
    }

    /// Whether a plan of `from` for this task was approved, and no attempt at it has failed since: `failures` is how many have.
    #[must_use]
    pub fn has_approved_plan(&self, from: &str, task: TaskId, failures: u32) -> bool {
        let is_for_it = |about: &About| about.task == task && about.failures == failures;
        self.requests.iter().any(|request| {
            request.kind == RequestKind::PlanApproval
                && request.from.eq_ignore_ascii_case(from)
                && request.is_approved()
                && request.about.as_ref().is_some_and(is_for_it)
        })
    }

    /// The last review of this work: of the same commit or, where there is none, of the same attempt.
    #[must_use]
    pub fn review_of(&self, work: &About) -> Option<&Request> {
        let is_same = |about: &About| {
            about.task == work.task
                && about.commit == work.commit
                && (work.commit.is_some() || about.is_same_attempt(work))
        };
        let mut reviews = self.requests.iter().rev().filter(|request| request.kind == RequestKind::Review);
        reviews.find(|request| request.about.as_ref().is_some_and(is_same))
    }

    /// How often this attempt was rejected.
    #[must_use]
    pub fn rejections_of(&self, work: &About) -> usize {
        let is_same = |about: &About| about.is_same_attempt(work);
        let is_rejected = |request: &&Request| {
            let answer = request.answer.as_ref();
            request.kind == RequestKind::Review
                && answer.is_some_and(|answer| !answer.approve && answer.by != SYSTEM)
                && request.about.as_ref().is_some_and(is_same)
        };
        self.requests.iter().filter(is_rejected).count()
    }

    fn place(&self, id: &str, kind: RequestKind, by: &str) -> Result<usize, RequestError> {
        let Some(place) = self.requests.iter().position(|request| request.id == id && request.kind == kind) else {
            let open = self
                .requests
                .iter()
                .filter(|request| request.kind == kind && request.answer.is_none() && request.is_for(by));
            let open = open.map(|request| format!("{} (from {})", request.id, request.from)).collect();
            return Err(RequestError::Unknown { id: id.to_owned(), kind, open });
        };
        let request = &self.requests[place];
        if !request.is_for(by) {
            return Err(RequestError::NotYours { id: id.to_owned(), to: request.to.clone() });
        }
        match &request.answer {
            Some(answer) => Err(RequestError::Answered { id: id.to_owned(), how: answer.in_short() }),
            None => Ok(place),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::task::Claim;

    const PLAN: RequestKind = RequestKind::PlanApproval;

    fn request(id: &str) -> Request {
        Request::new(id, PLAN, "bob", "lead", UnixMs(1))
    }

    fn answer(by: &str) -> Answer {
        Answer { approve: true, text: String::new(), by: by.into(), at: UnixMs(2) }
    }

    #[test]
    fn a_request_is_answered_once_by_whom_it_is_for() {
        let mut book = RequestBook::default();
        book.record(request("a")).unwrap();
        assert!(matches!(book.answer("a", PLAN, answer("carol")), Err(RequestError::NotYours { .. })));
        assert!(matches!(book.answer("a", RequestKind::Shutdown, answer("lead")), Err(RequestError::Unknown { .. })));
        let unknown = book.answer("b", PLAN, answer("lead")).unwrap_err();
        assert!(unknown.to_string().contains("a (from bob)"), "{unknown}");
        assert_eq!(book.answer("a", PLAN, answer("lead")).unwrap().from, "bob");
        let again = book.answer("a", PLAN, answer("human"));
        assert_eq!(again, Err(RequestError::Answered { id: "a".into(), how: "approved by lead".into() }));
        book.record(request("a")).unwrap();
        assert!(book.requests[0].answer.is_some(), "recorded again, it is still answered");
    }

    #[test]
    fn a_person_may_answer_any_plan_and_nobody_elses_request_to_stop() {
        let mut book = RequestBook::default();
        book.record(request("a")).unwrap();
        book.record(Request::new("b", RequestKind::Shutdown, "lead", "bob", UnixMs(1))).unwrap();
        assert!(matches!(book.answer("b", RequestKind::Shutdown, answer(HUMAN)), Err(RequestError::NotYours { .. })));
        book.answer("a", PLAN, answer(HUMAN)).unwrap();
        assert_eq!(book.open_plans().count(), 0);
    }

    #[test]
    fn while_one_answers_others_do_not_unless_it_died() {
        let mut book = RequestBook::default();
        book.record(request("a")).unwrap();
        let mut reserve = |by: &str, at: i64| book.reserve("a", PLAN, by, by, UnixMs(at));
        reserve("lead", 1_000).unwrap();
        assert!(matches!(reserve(HUMAN, 2_000), Err(RequestError::BeingAnswered { .. })));
        reserve("lead", 3_000).unwrap();
        reserve(HUMAN, 20_000).unwrap();
        assert!(reserve("lead", 21_000).is_err());
        reserve("lead", 1_000).unwrap();
    }

    #[test]
    fn answered_requests_make_room_and_open_ones_do_not() {
        let mut book = RequestBook::default();
        for number in 0..REQUESTS_MAX {
            book.record(request(&number.to_string())).unwrap();
        }
        assert_eq!(book.record(request("more")), Err(RequestError::TooMany));
        book.answer("7", PLAN, answer("lead")).unwrap();
        book.record(request("more")).unwrap();
        assert_eq!(book.requests.len(), REQUESTS_MAX);
        assert!(!book.requests.iter().any(|request| request.id == "7"));
    }

    #[test]
    fn long_plans_are_bounded_one_by_one_and_in_all() {
        let mut book = RequestBook::default();
        let long = |id: usize, bytes: usize| Request { plan: "x".repeat(bytes), ..request(&id.to_string()) };
        assert_eq!(book.record(long(0, PLAN_BYTES_MAX + 1)), Err(RequestError::TooLong));
        let fitting = PLANS_BYTES_MAX / PLAN_BYTES_MAX;
        (0..fitting).for_each(|id| book.record(long(id, PLAN_BYTES_MAX)).unwrap());
        assert_eq!(book.record(long(fitting, 1)), Err(RequestError::TooMany));
        book.answer("3", PLAN, answer("lead")).unwrap();
        book.record(long(fitting, 1)).unwrap();
    }

    #[test]
    fn an_approval_is_of_one_claim_though_a_power_cut_gives_its_number_again() {
        let mut task = Task::new(TaskId(7), "count".to_owned());
        task.attempt = 1;
        task.claim = Some(Claim { worker: "w".into(), at: UnixMs(10), expires: None });
        let mut book = RequestBook::default();
        book.record(Request {
            about: Some(About::of(&task, None)),
            ..Request::new("r", RequestKind::Review, "bob", "carol", UnixMs(11))
        })
        .unwrap();
        book.answer("r", RequestKind::Review, answer("carol")).unwrap();
        assert!(book.review_of(&About::of(&task, None)).is_some_and(Request::is_approved));
        task.claim = Some(Claim { worker: "x".into(), at: UnixMs(20), expires: None });
        assert_eq!(book.review_of(&About::of(&task, None)), None);
    }
}
