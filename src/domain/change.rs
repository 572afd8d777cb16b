//! Who may change what about a task, as data, and the change itself, as a pure function.
//!
//! Every store applies changes through [`change`] and claims through [`claim`], inside its lock; nothing else writes a
//! status. What a change means for *other* tasks (blockers pruned, cycles refused) is the store's part, by [`super::graph`].

use std::time::Duration;

use super::imported::Imported;
use super::refusal::Refusal;
use super::task::{Claim, Task, TaskId, TaskResult, TaskStatus};
use super::time::UnixMs;
use TaskStatus::{Completed, Failed, InProgress, Pending};

/// First back-off after a failed attempt; each further failure doubles it.
pub const BACKOFF_FIRST: Duration = Duration::from_secs(1);
/// The longest back-off.
pub const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// In what capacity somebody acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActorKind {
    /// A member that works on tasks; also a script that claims by command.
    Teammate,
    /// The lead.
    Lead,
    /// The person.
    Person,
    /// Brigade itself: recovery and endings.
    System,
}

/// Who asks for a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// The name that goes into files.
    pub name: String,
    /// In what capacity.
    pub kind: ActorKind,
    /// The attempt it holds of the task: the fence.
    pub attempt: Option<u32>,
    /// Whether it insists, where the rules allow that.
    pub force: bool,
}

impl Actor {
    /// A teammate that acts on the task it claimed as `attempt`.
    #[must_use]
    pub fn holder(name: &str, attempt: u32) -> Self {
        Self { name: name.to_owned(), kind: ActorKind::Teammate, attempt: Some(attempt), force: false }
    }

    /// Somebody without a claim.
    #[must_use]
    pub fn new(name: &str, kind: ActorKind) -> Self {
        Self { name: name.to_owned(), kind, attempt: None, force: false }
    }

    /// The same, insisting.
    #[must_use]
    pub fn forcing(self, force: bool) -> Self {
        Self { force, ..self }
    }
}

/// A change somebody asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The work is done.
    Complete(TaskResult),
    /// The attempt failed; the task is tried again after a back-off until its attempts are used up.
    Fail {
        /// What went wrong.
        reason: String,
        /// Whether another attempt could not help.
        is_final: bool,
    },
    /// The claim is given back.
    Release {
        /// Why, for the next one; empty when there is nothing to say.
        reason: String,
        /// Whether it counts against `max_attempts`.
        counts: bool,
    },
    /// The lease of a claim by command is made longer.
    Renew {
        /// Its new end.
        expires: UnixMs,
    },
    /// It is done in this worktree, named by its folder relative to the workspace.
    Lodge(String),
    /// A failed task is to be tried again, with its failures forgotten.
    Retry,
    /// A completed task is to be done again.
    Reopen,
    /// Its text, order or dependencies change.
    Edit(TaskEdit),
}

/// New values for what may be edited; `None` leaves a field as it is.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TaskEdit {
    /// The line that says what is to be done.
    pub subject: Option<String>,
    /// The whole of it.
    pub description: Option<String>,
    /// The subject as something going on.
    pub active_form: Option<String>,
    /// Higher goes first.
    pub priority: Option<i64>,
    /// Roles or capabilities, one of which the claimant needs.
    pub requires: Option<Vec<String>>,
    /// A command that must exit 0; the empty text removes it.
    pub verify: Option<String>,
    /// Whom the task is kept for while it is pending; the empty text frees it.
    pub owner: Option<String>,
    /// Failures at which it is given up.
    pub max_attempts: Option<u32>,
    /// Blockers to add.
    pub add_blocked_by: Vec<TaskId>,
    /// Blockers to take away.
    pub remove_blocked_by: Vec<TaskId>,
    /// Tasks that are to wait for this one.
    pub add_blocks: Vec<TaskId>,
    /// What its plan says now: the edit is made only while the task stands as it was imported.
    pub imported: Option<Box<Imported>>,
}

/// The name of a change, as rules and messages call it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// See [`Change::Complete`].
    Complete,
    /// See [`Change::Fail`].
    Fail,
    /// See [`Change::Release`].
    Release,
    /// See [`Change::Renew`].
    Renew,
    /// See [`Change::Lodge`].
    Lodge,
    /// See [`Change::Retry`].
    Retry,
    /// See [`Change::Reopen`].
    Reopen,
    /// See [`Change::Edit`].
    Edit,
    /// The file is removed and its id never used again.
    Delete,
}

impl Action {
    /// The verb people read.
    #[must_use]
    pub fn verb(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Fail => "fail",
            Self::Release => "release",
            Self::Renew => "renew",
            Self::Lodge => "lodge",
            Self::Retry => "retry",
            Self::Reopen => "reopen",
            Self::Edit => "edit",
            Self::Delete => "delete",
        }
    }

    /// Whether it is for the holder of a task in progress.
    #[must_use]
    pub fn is_for_holder(self) -> bool {
        matches!(self, Self::Complete | Self::Fail | Self::Release | Self::Renew | Self::Lodge)
    }
}

/// Whether somebody may do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permit {
    /// Yes.
    Yes,
    /// Only when it insists.
    Forced,
    /// Never.
    No,
}

/// One line of the table: an action, the statuses it is for, and who may do it.
#[derive(Debug)]
pub struct Rule {
    /// What is done.
    pub action: Action,
    /// The statuses a task may have for it.
    pub from: &'static [TaskStatus],
    /// The teammate that holds the task, with its attempt.
    pub holder: Permit,
    /// The teammate that created it.
    pub creator: Permit,
    /// The lead, the person and Brigade itself.
    pub lead_or_person: Permit,
}

const ANY: &[TaskStatus] = &[Pending, InProgress, Completed, Failed];

/// Who may change what.
#[rustfmt::skip]
pub const RULES: [Rule; 10] = [
    Rule { action: Action::Complete, from: &[InProgress], holder: Permit::Yes, creator: Permit::No, lead_or_person: Permit::Forced },
    Rule { action: Action::Fail, from: &[InProgress], holder: Permit::Yes, creator: Permit::No, lead_or_person: Permit::Forced },
    Rule { action: Action::Release, from: &[InProgress], holder: Permit::Yes, creator: Permit::No, lead_or_person: Permit::Forced },
    Rule { action: Action::Renew, from: &[InProgress], holder: Permit::Yes, creator: Permit::No, lead_or_person: Permit::No },
    Rule { action: Action::Lodge, from: &[InProgress], holder: Permit::Yes, creator: Permit::No, lead_or_person: Permit::No },
    Rule { action: Action::Retry, from: &[Failed], holder: Permit::No, creator: Permit::No, lead_or_person: Permit::Yes },
    Rule { action: Action::Reopen, from: &[Completed], holder: Permit::No, creator: Permit::No, lead_or_person: Permit::Yes },
    Rule { action: Action::Edit, from: ANY, holder: Permit::Yes, creator: Permit::Yes, lead_or_person: Permit::Yes },
    Rule { action: Action::Delete, from: &[Pending, Completed, Failed], holder: Permit::No, creator: Permit::No, lead_or_person: Permit::Yes },
    Rule { action: Action::Delete, from: &[InProgress], holder: Permit::No, creator: Permit::No, lead_or_person: Permit::Forced },
];

/// Whether `by` may do `action` to `task`, by [`RULES`].
///
/// # Errors
/// The [`Refusal`] that says why not.
pub fn permit(task: &Task, action: Action, by: &Actor) -> Result<(), Refusal> {
    let owner = || task.owner.clone().unwrap_or_else(|| "nobody".to_owned());
    let holds = task.claim.is_some() && task.owner.as_deref() == Some(&by.name);
    let for_holder = action.is_for_holder();
    if let Some(given) = by.attempt
        && for_holder
        && (given != task.attempt || task.status != InProgress)
    {
        return Err(Refusal::Stale {
            task: task.id,
            given,
            present: task.attempt,
            status: task.status,
            owner: owner(),
        });
    }
    let Some(rule) = RULES.iter().find(|rule| rule.action == action && rule.from.contains(&task.status)) else {
        return Err(Refusal::WrongStatus { task: task.id, action, status: task.status });
    };
    let is_holder = holds && by.attempt == Some(task.attempt);
    let is_creator = task.created_by.as_deref() == Some(&by.name);
    let above = !matches!(by.kind, ActorKind::Teammate);
    let granted = [(is_holder, rule.holder), (is_creator, rule.creator), (above, rule.lead_or_person)];
    let best = |wanted: Permit| granted.iter().any(|(applies, permit)| *applies && *permit == wanted);
    if best(Permit::Yes) || (by.force && best(Permit::Forced)) {
        return Ok(());
    }
    if best(Permit::Forced) {
        return Err(Refusal::NeedsForce { task: task.id, action, owner: owner() });
    }
    if for_holder && !above {
        return Err(Refusal::NotHolder { task: task.id, owner: owner(), by: by.name.clone() });
    }
    Err(Refusal::NotAllowed { task: task.id, action, by: by.name.clone() })
}

impl Change {
    /// The rule this change falls under.
    #[must_use]
    pub fn action(&self) -> Action {
        match self {
            Self::Complete(_) => Action::Complete,
            Self::Fail { .. } => Action::Fail,
            Self::Release { .. } => Action::Release,
            Self::Renew { .. } => Action::Renew,
            Self::Lodge(_) => Action::Lodge,
            Self::Retry => Action::Retry,
            Self::Reopen => Action::Reopen,
            Self::Edit(_) => Action::Edit,
        }
    }
}

/// The task after `change`, or why it is refused.
///
/// # Errors
/// The [`Refusal`] of [`permit`].
pub fn change(task: &Task, change: &Change, by: &Actor, now: UnixMs) -> Result<Task, Refusal> {
    permit(task, change.action(), by)?;
    let mut next = task.clone();
    next.updated_at = Some(now);
    match change {
        Change::Complete(result) => {
            next.status = Completed;
            next.claim = None;
            next.not_before = None;
            // Who insists on it answers for it, whoever held it.
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
        Change::Release { reason, counts: true } => fail(&mut next, reason, false, now),
        Change::Release { reason, counts: false } => {
            free(&mut next);
            if !reason.is_empty() {
                let failed = task.result.as_ref().filter(|_| task.failures > 0).map(TaskResult::failure);
                next.result = Some(TaskResult::said(reason.clone(), failed.unwrap_or_default()));
            }
        }
        Change::Renew { expires } => {
            if let Some(claim) = &mut next.claim {
                claim.expires = Some(*expires);
            }
        }
        Change::Lodge(worktree) => next.worktree = Some(worktree.clone()),
        Change::Retry => {
            free(&mut next);
            next.failures = 0;
        }
        Change::Reopen => {
            free(&mut next);
            next.failures = 0;
            next.result = None;
        }
        Change::Edit(edit) => apply_edit(&mut next, edit),
    }
    Ok(next)
}

fn free(task: &mut Task) {
    task.status = Pending;
    task.owner = None;
    task.claim = None;
    task.not_before = None;
}

fn fail(task: &mut Task, reason: &str, is_final: bool, now: UnixMs) {
    let owner = task.owner.take();
    free(task);
    task.failures = task.failures.saturating_add(1);
    task.result = Some(TaskResult::failed(reason, task.attempt));
    if is_final || task.failures >= task.max_attempts {
        task.status = Failed;
        task.owner = owner;
    } else {
        task.not_before = Some(now.plus(backoff(task.failures)));
    }
}

/// How long a task waits after its `failures`-th failure.
#[must_use]
pub fn backoff(failures: u32) -> Duration {
    BACKOFF_FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(BACKOFF_MAX)
}

fn apply_edit(task: &mut Task, edit: &TaskEdit) {
    if let Some(subject) = &edit.subject {
        task.subject.clone_from(subject);
    }
    if let Some(description) = &edit.description {
        task.description.clone_from(description);
    }
    if let Some(active_form) = &edit.active_form {
        task.active_form = Some(active_form.clone()).filter(|text| !text.is_empty());
    }
    if let Some(priority) = edit.priority {
        task.priority = priority;
    }
    if let Some(requires) = &edit.requires {
        task.requires.clone_from(requires);
    }
    if let Some(verify) = &edit.verify {
        task.verify = Some(verify.clone()).filter(|text| !text.is_empty());
    }
    if let Some(owner) = &edit.owner
        && task.status == Pending
    {
        task.owner = Some(owner.clone()).filter(|text| !text.is_empty());
    }
    if let Some(max_attempts) = edit.max_attempts {
        task.max_attempts = max_attempts;
    }
    task.blocked_by.retain(|blocker| !edit.remove_blocked_by.contains(blocker));
    task.blocked_by.extend(&edit.add_blocked_by);
    task.blocked_by.sort_unstable();
    task.blocked_by.dedup();
    task.blocks.extend(&edit.add_blocks);
    task.blocks.sort_unstable();
    task.blocks.dedup();
    if let Some(imported) = &edit.imported {
        imported.remember(task);
    }
}

/// The task once `owner` has claimed it. Whether it may is [`super::graph::obstacle`]'s to say, under the same lock.
#[must_use]
pub fn claim(task: &Task, owner: &str, claim: Claim) -> Task {
    let mut next = task.clone();
    next.status = InProgress;
    next.owner = Some(owner.to_owned());
    next.attempt = next.attempt.saturating_add(1);
    next.not_before = None;
    next.updated_at = Some(claim.at);
    next.claim = Some(claim);
    next
}

/// The task once its claim is taken away because its holder is gone. `counts` is false when the whole team ended.
#[must_use]
pub fn reclaim(task: &Task, reason: &str, counts: bool, now: UnixMs) -> Task {
    let mut next = task.clone();
    if counts {
        fail(&mut next, reason, false, now);
    } else {
        free(&mut next);
    }
    next.updated_at = Some(now);
    next
}
