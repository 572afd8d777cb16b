//! Checks plans, reviews and their answers in the request file. Each is answered once, by a permitted member. Reviewed work is completed
//! only by the approval of its attempt. A member with `plan_first` writes nothing before the approval of its plan.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use brigade::domain::task::{Task, TaskId};
use brigade::domain::team::approval::{ApprovalAnswer, Approvals, Request, RequestKind};
use brigade::domain::team::name::{HUMAN, LEAD, SYSTEM};
use brigade::domain::team::phase::ClaimRef;
use brigade::domain::time::UnixMs;
use brigade::stores::fs::FileSystem;

use super::files::ProcessFiles;
use super::plan::{Reviewer, Setup};
use crate::testkit::simulated::SimulatedDisk;

/// The file, relative to the team's folder.
pub const REQUESTS_FILE: &str = "requests.json";
/// The role of the reviewing member.
pub const REVIEWER_ROLE: &str = "reviewer";
/// The largest file that is read, in bytes.
const BYTES_MAX: u64 = 1 << 24;

/// The request without the attempt of its review. A member that continues its attempt binds its reviews to the new one.
fn unbound(request: &Request) -> Request {
    let mut request = request.clone();
    if let (RequestKind::Review, Some(about)) = (request.kind, &mut request.about) {
        (about.attempt, about.claimed_at) = (0, UnixMs(0));
    }
    request
}

/// The checker of the request file.
pub struct ApprovalChecks {
    setup: Setup,
    reviewer: &'static str,
    approvals: Approvals,
    /// The failures of a task at the start of an attempt.
    failures: BTreeMap<(TaskId, u32), u32>,
    /// The process that sent the answer to a request.
    answered: BTreeMap<String, Arc<ProcessFiles>>,
    /// Requests whose answer may not have been recorded; they may be answered again.
    unrecorded: BTreeSet<String>,
}

impl ApprovalChecks {
    /// `reviewer` is the member with the reviewer role.
    pub fn new(setup: Setup, reviewer: &'static str) -> Self {
        let approvals = Approvals::default();
        let (failures, answered, unrecorded) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Self { setup, reviewer, approvals, failures, answered, unrecorded }
    }

    /// The request file was written. Returns the violations.
    pub fn check_file(&mut self, disk: &SimulatedDisk, path: &Path, by: &str) -> Vec<String> {
        let Ok((bytes, _)) = disk.read(path, 0, BYTES_MAX) else { return Vec::new() };
        let Ok(new) = serde_json::from_slice::<Approvals>(&bytes) else {
            return vec![format!("nothing lost: {by} wrote requests that cannot be read")];
        };
        let old = std::mem::replace(&mut self.approvals, new);
        let before: BTreeMap<&str, &Request> = old.requests.iter().map(|known| (known.id.as_str(), known)).collect();
        let mut wrong = Vec::new();
        for request in &self.approvals.requests {
            let former = before.get(request.id.as_str()).and_then(|former| former.answer.as_ref().map(|_| *former));
            match (former, &request.answer) {
                (Some(former), _) if unbound(former) != unbound(request) => {
                    wrong.push(format!("answered once: {by} changed {former:?} to {request:?}"));
                }
                (None, Some(answer)) if !self.may_answer(request, answer) => {
                    wrong.push(format!("an approval is by a member who may not answer: {request:?}"));
                }
                _ => {}
            }
        }
        let there: BTreeSet<&str> = self.approvals.requests.iter().map(|request| request.id.as_str()).collect();
        let lost = old.requests.iter().filter(|request| !there.contains(request.id.as_str()));
        wrong.extend(lost.map(|request| format!("nothing lost: {by} removed request {}", request.id)));
        wrong
    }

    fn may_answer(&self, request: &Request, answer: &ApprovalAnswer) -> bool {
        let by = answer.by.as_str();
        if by.eq_ignore_ascii_case(&request.from) {
            return false;
        }
        match by {
            HUMAN => request.kind != RequestKind::Shutdown,
            // A cancelled request is not approved.
            SYSTEM => !answer.approve,
            LEAD => self.setup.lead_has_model,
            member if request.kind == RequestKind::Shutdown => member == request.to,
            member => self.setup.review == Some(Reviewer::Role) && member == self.reviewer,
        }
    }

    pub fn attempt_started(&mut self, task: &Task) {
        self.failures.insert((task.id, task.attempt), task.failures);
    }

    /// A member or the lead completed a task: `held` became `task`. Returns the violation, if any.
    pub fn check_completion(&self, held: &Task, task: &Task, by: &str) -> Option<String> {
        let reviewer = self.setup.review?;
        let claimed_at = held.claim.as_ref().map(|claim| claim.at)?;
        // A power cut may undo a claim, and its attempt number is given again: the claim is identified by its time.
        let is_for_claim = |request: &&Request| {
            request.kind == RequestKind::Review
                && request.about.as_ref().is_some_and(|about| {
                    (about.task, about.attempt, about.claimed_at) == (held.id, held.attempt, claimed_at)
                })
        };
        let review = self.approvals.requests.iter().filter(is_for_claim).find(|request| request.is_approved());
        let tell =
            |what: String| Some(format!("reviewed completion, {what}: {by} completed {} {:?}", task.id, task.owner));
        let Some(answer) = review.and_then(|review| review.answer.as_ref()) else {
            return tell(format!("no approval of attempt {}", task.attempt));
        };
        let is_by_rule = match (reviewer, answer.by.as_str()) {
            (_, HUMAN) => true,
            (Reviewer::Human, _) => false,
            (Reviewer::Lead | Reviewer::Role, LEAD) => self.setup.lead_has_model,
            (Reviewer::Lead, _) => false,
            (Reviewer::Role, member) => member == self.reviewer,
        };
        if !is_by_rule || task.owner.as_deref() == Some(answer.by.as_str()) {
            return tell(format!("{} approved", answer.by));
        }
        let named = task.result.as_ref().and_then(|result| result.reviewed_by.as_deref());
        (named != Some(answer.by.as_str()))
            .then(|| format!("reviewed completion, by {}, and {named:?} is named", answer.by))
    }

    /// Returns true if the plan of this member for its task is approved, or none is needed.
    pub fn may_write(&self, name: &str, held: Option<ClaimRef>) -> bool {
        if !self.plans_first(name) {
            return true;
        }
        let Some(ClaimRef { task, attempt }) = held else { return false };
        let Some(failures) = self.failures.get(&(task, attempt)) else { return false };
        let is_for_claim = |request: &&Request| {
            request.kind == RequestKind::PlanApproval
                && request.from == name
                && request.about.as_ref().is_some_and(|about| (about.task, about.failures) == (task, *failures))
        };
        self.approvals.requests.iter().filter(is_for_claim).any(Request::is_approved)
    }

    /// Returns true if this member submits its plan first.
    pub fn plans_first(&self, name: &str) -> bool {
        self.setup.plan_first && name == super::world::MEMBERS[0]
    }

    /// The answer to a request was sent. Returns the violation, if any.
    pub fn answer_sent(&mut self, id: &str, files: &Arc<ProcessFiles>) -> Option<String> {
        let former = self.answered.insert(id.to_owned(), Arc::clone(files))?;
        let is_known = self.approvals.requests.iter().any(|request| request.id == id && request.answer.is_some());
        let may_be_unknown = former.is_dead() || self.unrecorded.contains(id);
        (is_known || !may_be_unknown)
            .then(|| format!("answered once: {} answers {id} after {}", files.name, former.name))
    }

    /// The answer could not be recorded.
    pub fn answer_unrecorded(&mut self, id: &str) {
        self.unrecorded.insert(id.to_owned());
    }

    pub fn power_was_cut(&mut self, disk: &SimulatedDisk, path: &Path) {
        self.approvals = Approvals::default();
        self.check_file(disk, path, "the power");
    }
}
