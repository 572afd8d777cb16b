//! Task changes: a table of who may change what, and the change itself as a pure function.
//!
//! Every store applies changes through [`change`] and claims through [`claim`] under its lock. Nothing else writes a status. The
//! store handles effects on other tasks (dependents, cycles), with [`super::dependencies`].

use std::time::Duration;

pub use super::action::Action;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::failed_attempt;
use super::plan_update::ImportRecord;
use super::task_error::TaskError;
use crate::domain::task::{Claim, Task, TaskId, TaskResult, TaskStatus, trimmed_words};
use crate::domain::team::budget::CapReached;
use crate::domain::text::units::exponential_backoff;
use crate::domain::time::UnixMs;
use TaskStatus::{Completed, Failed, InProgress, Pending, Unknown};

/// First back-off after a failed attempt. Each further failure doubles it.
pub const BACKOFF_FIRST: Duration = Duration::from_secs(1);
/// Maximum back-off.
pub const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// The kind of an actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActorKind {
    /// A member that works on tasks, or a script that claims by command.
    Teammate,
    /// The lead.
    Lead,
    /// The person.
    Person,
}

/// The requester of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// The name that is written to files.
    pub name: String,
    /// The kind of actor.
    pub kind: ActorKind,
    /// The attempt with which it holds the task, which is the fence.
    pub attempt: Option<u32>,
    /// True if it uses force, where the rules allow that.
    pub force: bool,
}

impl Actor {
    /// A teammate that holds the task with this `attempt`.
    pub fn holder(name: &str, attempt: u32) -> Self {
        Self { name: name.to_owned(), kind: ActorKind::Teammate, attempt: Some(attempt), force: false }
    }

    /// An actor without a claim.
    pub fn new(name: &str, kind: ActorKind) -> Self {
        Self { name: name.to_owned(), kind, attempt: None, force: false }
    }

    /// The same actor with or without force.
    #[must_use]
    pub fn forcing(self, force: bool) -> Self {
        Self { force, ..self }
    }
}

/// A requested change.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The work is done.
    Complete(TaskResult),
    /// The attempt failed. The task is retried after a back-off until its attempts are used up.
    Fail {
        /// The reason.
        reason: String,
        /// True if a retry cannot help.
        is_final: bool,
    },
    /// The claim is released.
    Release {
        /// The reason, for the next holder. May be empty.
        reason: String,
        /// True if it counts against `max_attempts`.
        is_failure: bool,
    },
    /// The claim is released because the attempts of the task reached its cap. It is no failure, and the task is not claimable until the
    /// cap is higher.
    ReleaseAtCap {
        /// The reason, for people and for the next holder.
        reason: String,
        /// The cap.
        cap: CapReached,
    },
    /// The lease of a claim by command is extended.
    Renew {
        /// Its new end.
        expires: UnixMs,
    },
    /// The task gets this worktree, a path relative to the workspace.
    SetWorktree(String),
    /// A failed task is retried, and its failures are reset.
    Retry,
    /// A completed task becomes pending again, and its failures are reset.
    Reopen,
    /// Its text, priority or dependencies change.
    Edit(TaskEdit),
}

/// New values of the editable fields. `None` keeps a field.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TaskEdit {
    /// A summary in one line.
    pub subject: Option<String>,
    /// The full description.
    pub description: Option<String>,
    /// The subject in the progressive form.
    pub active_form: Option<String>,
    /// Priority. Higher numbers go first.
    pub priority: Option<i64>,
    /// Roles or capabilities, one of which the claimant needs.
    pub requires: Option<Vec<String>>,
    /// A command that must exit 0. The empty text removes it.
    pub verify: Option<String>,
    /// The member that the task is reserved for. The holder of a task in progress stays. The empty text removes the reservation.
    pub owner: Option<String>,
    /// Number of failures after which it is not retried.
    pub max_attempts: Option<u32>,
    /// The most tokens of all its attempts. 0 removes its own cap, and the one that its attempts reached.
    pub tokens_max: Option<u64>,
    /// Blockers to add.
    pub add_blocked_by: Vec<TaskId>,
    /// Blockers to remove.
    pub remove_blocked_by: Vec<TaskId>,
    /// Tasks that shall wait for this one.
    pub add_blocks: Vec<TaskId>,
    /// The plan's new content. The edit is applied only if the task is unchanged since its import.
    #[serde(skip)]
    pub imported: Option<Box<ImportRecord>>,
}

impl TaskEdit {
    /// Returns the edit as a board applies it: without spaces around its texts, and without empty words.
    #[must_use]
    pub fn trimmed(self) -> Self {
        let trimmed = |text: String| text.trim().to_owned();
        Self {
            subject: self.subject.map(trimmed),
            requires: self.requires.as_deref().map(trimmed_words),
            verify: self.verify.map(trimmed),
            owner: self.owner.map(trimmed),
            ..self
        }
    }

    fn replaces_verify_of(&self, task: &Task) -> bool {
        self.verify.as_ref().is_some_and(|verify| task.verify.as_deref().unwrap_or_default() != verify)
    }
}

/// The permission of an actor for an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permit {
    /// Permitted.
    Yes,
    /// Permitted only with force.
    WithForce,
    /// Never permitted.
    No,
}

/// A row of the table: an action, the statuses it applies to, and the permissions.
#[derive(Debug)]
pub struct Rule {
    /// The action.
    pub action: Action,
    /// The statuses that a task may have.
    pub from: &'static [TaskStatus],
    /// Permission of the teammate that holds the task, with its attempt.
    pub holder: Permit,
    /// Permission of the teammate that created it.
    pub creator: Permit,
    /// Permission of the lead, the person and Brigade itself.
    pub lead_or_person: Permit,
}

const ANY_STATUS: &[TaskStatus] = &[Pending, InProgress, Completed, Failed];

/// The table of permissions.
#[rustfmt::skip]
pub const RULES: [Rule; 11] = [
    Rule { action: Action::Complete, from: &[InProgress], holder: Permit::Yes, creator: Permit::No, lead_or_person: Permit::WithForce },
    Rule { action: Action::Fail, from: &[InProgress], holder: Permit::Yes, creator: Permit::No, lead_or_person: Permit::WithForce },
    Rule { action: Action::Release, from: &[InProgress], holder: Permit::Yes, creator: Permit::No, lead_or_person: Permit::WithForce },
    Rule { action: Action::Renew, from: &[InProgress], holder: Permit::Yes, creator: Permit::No, lead_or_person: Permit::No },
    Rule { action: Action::SetWorktree, from: &[InProgress], holder: Permit::Yes, creator: Permit::No, lead_or_person: Permit::No },
    Rule { action: Action::Retry, from: &[Failed], holder: Permit::No, creator: Permit::No, lead_or_person: Permit::Yes },
    Rule { action: Action::Reopen, from: &[Completed], holder: Permit::No, creator: Permit::No, lead_or_person: Permit::Yes },
    Rule { action: Action::Edit, from: ANY_STATUS, holder: Permit::Yes, creator: Permit::Yes, lead_or_person: Permit::Yes },
    Rule { action: Action::EditVerify, from: ANY_STATUS, holder: Permit::No, creator: Permit::Yes, lead_or_person: Permit::Yes },
    Rule { action: Action::Delete, from: &[Pending, Completed, Failed], holder: Permit::No, creator: Permit::No, lead_or_person: Permit::Yes },
    Rule { action: Action::Delete, from: &[InProgress, Unknown], holder: Permit::No, creator: Permit::No, lead_or_person: Permit::WithForce },
];

/// Checks whether `by` may do `action` to `task`, by [`RULES`].
///
/// # Errors
/// The [`TaskError`] with the reason why not.
pub fn permit(task: &Task, action: Action, by: &Actor) -> Result<(), TaskError> {
    let owner = || task.owner.clone().unwrap_or_else(|| "an unknown owner".to_owned());
    let has_claim = task.claim.is_some() && task.owner.as_deref() == Some(&by.name);
    let is_for_holder = action.is_for_holder();
    if let Some(attempt) = by.attempt
        && is_for_holder
        && (attempt != task.attempt || task.status != InProgress)
    {
        return Err(TaskError::Stale {
            task: task.id,
            attempt,
            current_attempt: task.attempt,
            status: task.status,
            owner: owner(),
        });
    }
    let wrong_status = || {
        let word = task.status_word().into_owned();
        TaskError::WrongStatus { task: task.id, action, status: task.status, word }
    };
    let Some(rule) = RULES.iter().find(|rule| rule.action == action && rule.from.contains(&task.status)) else {
        return Err(wrong_status());
    };
    let is_holder = has_claim && by.attempt == Some(task.attempt);
    let is_creator = task.created_by.as_deref() == Some(&by.name);
    let is_lead_or_person = !matches!(by.kind, ActorKind::Teammate);
    let granted = [(is_holder, rule.holder), (is_creator, rule.creator), (is_lead_or_person, rule.lead_or_person)];
    let is_granted = |permit: Permit| granted.iter().any(|(applies, granted)| *applies && *granted == permit);
    if is_granted(Permit::Yes) || (by.force && is_granted(Permit::WithForce)) {
        return Ok(());
    }
    if is_granted(Permit::WithForce) && task.status == Unknown {
        return Err(wrong_status());
    }
    if is_granted(Permit::WithForce) {
        return Err(TaskError::NeedsForce { task: task.id, action, owner: owner() });
    }
    if is_for_holder && !is_lead_or_person {
        return Err(TaskError::NotHolder { task: task.id, owner: owner(), by: by.name.clone() });
    }
    Err(TaskError::NotAllowed { task: task.id, action, by: by.name.clone() })
}

impl Change {
    /// Returns the action by which rules and messages name this change.
    pub fn action(&self) -> Action {
        match self {
            Self::Complete(_) => Action::Complete,
            Self::Fail { .. } => Action::Fail,
            Self::Release { .. } | Self::ReleaseAtCap { .. } => Action::Release,
            Self::Renew { .. } => Action::Renew,
            Self::SetWorktree(_) => Action::SetWorktree,
            Self::Retry => Action::Retry,
            Self::Reopen => Action::Reopen,
            Self::Edit(_) => Action::Edit,
        }
    }
}

/// Returns the task after `change`.
///
/// # Errors
/// The [`TaskError`] of [`permit`].
pub fn change(task: &Task, change: &Change, by: &Actor, now: UnixMs) -> Result<Task, TaskError> {
    let action = match change {
        Change::Edit(edit) if edit.replaces_verify_of(task) => Action::EditVerify,
        _ => change.action(),
    };
    permit(task, action, by)?;
    let mut next = task.clone();
    next.updated_at = Some(now);
    match change {
        Change::Complete(result) => {
            next.status = Completed;
            next.claim = None;
            next.not_before = None;
            next.cap_reached = None;
            // A person or lead that completes a held task by force becomes its owner.
            let former = next.owner.replace(by.name.clone()).filter(|owner| *owner != by.name);
            let mut result = result.clone();
            if let Some(former) = former
                && result.evidence.is_empty()
            {
                result.evidence = format!("in place of {former}");
            }
            next.result = Some(result);
        }
        Change::Fail { reason, is_final } => fail(&mut next, reason, *is_final, now),
        Change::Release { reason, is_failure: true } => fail(&mut next, reason, false, now),
        Change::Release { reason, is_failure: false } => release(&mut next, reason),
        Change::ReleaseAtCap { reason, cap } => {
            release(&mut next, reason);
            next.cap_reached = Some(*cap);
        }
        Change::Renew { expires } => {
            // The claim of a worker ends with its process and never gets a lease.
            if let Some(claim) = next.claim.as_mut().filter(|claim| claim.is_lease()) {
                claim.expires = Some(*expires);
            }
        }
        Change::SetWorktree(worktree) => next.worktree = Some(worktree.clone()),
        Change::Retry => {
            reset_to_pending(&mut next);
            next.failures = 0;
        }
        Change::Reopen => {
            reset_to_pending(&mut next);
            next.failures = 0;
            next.failed_attempts.clear();
            next.reopened_after = next.attempt;
            next.result = None;
        }
        Change::Edit(edit) => apply_edit(&mut next, edit),
    }
    if matches!(change, Change::Fail { .. } | Change::Release { .. } | Change::ReleaseAtCap { .. }) {
        record_actor(&mut next, by);
    }
    Ok(next)
}

/// Records who ended an attempt, if it was not the holder.
fn record_actor(task: &mut Task, by: &Actor) {
    let ended_by = if by.attempt.is_none() { Some(by.name.clone()) } else { None };
    if ended_by.is_some() || task.result.is_some() {
        task.result.get_or_insert_default().ended_by = ended_by;
    }
}

fn reset_to_pending(task: &mut Task) {
    task.status = Pending;
    task.owner = task.reserved_for.take();
    task.claim = None;
    task.not_before = None;
}

fn release(task: &mut Task, reason: &str) {
    let before = task.result.take();
    reset_to_pending(task);
    // Without a reason the last failure stays, but not the reason of an earlier release.
    if reason.is_empty() && before.as_ref().is_some_and(TaskResult::is_failure) {
        task.result = before;
        return;
    }
    let last_failure = match &before {
        Some(result) if task.failures > 0 => result.failure_text(),
        _ => String::new(),
    };
    let has_text = !reason.is_empty() || !last_failure.is_empty();
    task.result = has_text.then(|| TaskResult::new(reason, last_failure));
}

fn fail(task: &mut Task, reason: &str, is_final: bool, now: UnixMs) {
    failed_attempt::record(task, reason);
    record_failure(task, reason, is_final, now);
}

fn record_failure(task: &mut Task, reason: &str, is_final: bool, now: UnixMs) {
    task.failures = task.failures.saturating_add(1);
    task.result = Some(TaskResult::failed(reason, task.attempt));
    if is_final || task.failures >= task.max_attempts {
        task.status = Failed;
        task.claim = None;
        task.not_before = None;
    } else {
        reset_to_pending(task);
        task.not_before = Some(now.plus(backoff(task.failures)));
    }
}

/// Returns the back-off after the `failures`-th failure.
pub fn backoff(failures: u32) -> Duration {
    exponential_backoff(BACKOFF_FIRST, failures, BACKOFF_MAX)
}

fn apply_edit(task: &mut Task, edit: &TaskEdit) {
    replace(&mut task.subject, edit.subject.as_ref());
    replace(&mut task.description, edit.description.as_ref());
    replace(&mut task.priority, edit.priority.as_ref());
    replace(&mut task.requires, edit.requires.as_ref());
    replace(&mut task.max_attempts, edit.max_attempts.as_ref());
    if let Some(tokens_max) = edit.tokens_max {
        task.tokens_max = Some(tokens_max).filter(|tokens_max| *tokens_max > 0);
        task.cap_reached = task.cap_in_force().filter(|_| task.tokens_max.is_some());
    }
    replace_text(&mut task.active_form, edit.active_form.as_ref());
    replace_text(&mut task.verify, edit.verify.as_ref());
    let reservation = if task.status == Pending { &mut task.owner } else { &mut task.reserved_for };
    replace_text(reservation, edit.owner.as_ref());
    task.blocked_by.retain(|blocker| !edit.remove_blocked_by.contains(blocker));
    add_ids(&mut task.blocked_by, &edit.add_blocked_by);
    add_ids(&mut task.blocks, &edit.add_blocks);
    if let Some(imported) = &edit.imported {
        imported.store_in(task);
    }
}

fn replace<T: Clone>(field: &mut T, new: Option<&T>) {
    if let Some(new) = new {
        field.clone_from(new);
    }
}

/// Replaces an optional text. The empty text removes it.
fn replace_text(field: &mut Option<String>, new: Option<&String>) {
    if let Some(new) = new {
        *field = Some(new.clone()).filter(|text| !text.is_empty());
    }
}

fn add_ids(ids: &mut Vec<TaskId>, new: &[TaskId]) {
    ids.extend(new);
    ids.sort_unstable();
    ids.dedup();
}

/// Returns the task after a claim by `owner`. The caller must check [`super::claim_queue::find_claim_obstacle`] under the same lock.
#[must_use]
pub fn claim(task: &Task, owner: &str, claim: Claim) -> Task {
    let mut next = task.clone();
    next.status = InProgress;
    next.reserved_for = next.owner.replace(owner.to_owned());
    next.attempt = next.attempt.saturating_add(1);
    next.not_before = None;
    next.cap_reached = None;
    next.updated_at = Some(claim.at);
    next.claim = Some(claim);
    next
}

/// Returns the task after its claim was removed because its holder is gone. It is no failure if the whole team ended. The back-off
/// begins when the lease ended, not when that is found.
#[must_use]
pub fn reclaim(task: &Task, reason: &str, is_failure: bool, now: UnixMs) -> Task {
    let mut next = task.clone();
    let lease_end = task.claim.as_ref().and_then(|claim| claim.expires).filter(|end| *end < now);
    if is_failure {
        record_failure(&mut next, reason, false, lease_end.unwrap_or(now));
    } else {
        reset_to_pending(&mut next);
    }
    next.updated_at = Some(now);
    next
}
