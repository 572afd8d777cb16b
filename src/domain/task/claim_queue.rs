//! Claimable tasks: which task a claimant gets next, and whom to wake for the others.
//!
//! A task is claimable if all of this is true:
//!
//! - It is pending, its blockers are finished, and its back-off is over.
//! - Its attempts have not reached its cap of tokens.
//! - It has no owner, or the claimant is the owner.
//! - It requires no capability, or the claimant has one of the required ones.
//! - It is in the claimant's [`TaskScope`].
//!
//! [`find_claim_obstacle`] explains a refusal by the same rules.

use std::cmp::Reverse;
use std::collections::btree_set::Iter;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use super::dependencies::{Blocker, TaskLookup, is_blocked, unfinished_blockers};
use super::shell_blocks::has_shell_block;
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::domain::team::budget::CapReached;
use crate::domain::text::units::duration;
use crate::domain::time::UnixMs;

/// The tasks that a claimant can do, of those that its name and its capabilities allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TaskScope {
    /// All of them.
    #[default]
    All,
    /// Tasks with a script, because the claimant only runs scripts.
    WithScript,
    /// Tasks that name the claimant or require a capability, because it may change nothing and others may.
    Named,
}

impl TaskScope {
    /// Returns true if the task is in the scope. `is_named` is true if the task has an owner or requires a capability.
    fn includes(self, is_named: bool, has_script: bool) -> bool {
        match self {
            Self::All => true,
            Self::WithScript => has_script,
            Self::Named => is_named,
        }
    }
}

/// A member, or a worker outside the team, that may claim tasks.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its role and capabilities.
    pub capabilities: &'a [String],
    /// The tasks that it can do.
    pub scope: TaskScope,
}

impl Candidate<'_> {
    /// Returns true if this member is the owner, if the task has one, and has one of the required capabilities, if it requires any.
    pub fn is_eligible(&self, task: &Task) -> bool {
        may_own(task.owner.as_ref(), self.name) && has_capability(&task.requires, self.capabilities)
    }

    /// Returns true if this member is eligible, and the task is in its scope.
    pub fn suits(&self, task: &Task) -> bool {
        self.is_eligible(task) && Requirement::of(task).is_in(self.scope)
    }
}

fn may_own(owner: Option<&String>, name: &str) -> bool {
    owner.is_none_or(|owner| owner == name)
}

/// Returns true if a task requires no capability, or `capabilities` contains one of the required ones.
pub fn has_capability(requires: &[String], capabilities: &[String]) -> bool {
    requires.is_empty() || requires.iter().any(|need| capabilities.iter().any(|have| have.eq_ignore_ascii_case(need)))
}

/// The order of claims: the highest priority, then the lowest number.
type Rank = (Reverse<i64>, TaskId);

/// The requirements of a task for its claimant. Few tasks of a board differ in them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Requirement {
    owner: Option<String>,
    capabilities: Vec<String>,
    has_script: bool,
}

impl Requirement {
    fn of(task: &Task) -> Self {
        let has_script = has_shell_block(&task.description);
        Self { owner: task.owner.clone(), capabilities: task.requires.clone(), has_script }
    }

    fn is_in(&self, scope: TaskScope) -> bool {
        scope.includes(self.owner.is_some() || !self.capabilities.is_empty(), self.has_script)
    }

    fn is_met_by(&self, candidate: &Candidate<'_>) -> bool {
        may_own(self.owner.as_ref(), candidate.name)
            && has_capability(&self.capabilities, candidate.capabilities)
            && self.is_in(candidate.scope)
    }

    fn is_met_by_any<'a>(&self, mut candidates: impl Iterator<Item = Candidate<'a>>) -> bool {
        candidates.any(|candidate| self.is_met_by(&candidate))
    }
}

/// The tasks with one requirement that have no obstacle, or only a back-off.
#[derive(Debug, Default)]
struct TaskGroup {
    ready: BTreeSet<Rank>,
    /// By the end of the back-off.
    backing_off: BTreeSet<(UnixMs, Rank)>,
}

/// The claimable and the claimed tasks of a board. The cost of a claim does not grow with the board.
#[derive(Debug, Default)]
pub struct ClaimQueue {
    groups: HashMap<Requirement, TaskGroup>,
    claimed: BTreeSet<TaskId>,
}

impl ClaimQueue {
    /// Creates the queue of a board.
    pub fn of<'a>(tasks: impl IntoIterator<Item = &'a Task>, lookup: &dyn TaskLookup) -> Self {
        let mut queue = Self::default();
        tasks.into_iter().for_each(|task| queue.add(task, lookup));
        queue
    }

    /// Adds a task, if it is claimable or claimed. After its blockers have changed, it must be removed and added again.
    pub fn add(&mut self, task: &Task, lookup: &dyn TaskLookup) {
        match task.status {
            TaskStatus::InProgress if task.claim.is_some() => {
                self.claimed.insert(task.id);
            }
            TaskStatus::Pending if task.cap_in_force().is_none() && !is_blocked(task, lookup) => {
                let group = self.groups.entry(Requirement::of(task)).or_default();
                match task.not_before {
                    Some(until) => group.backing_off.insert((until, rank(task))),
                    None => group.ready.insert(rank(task)),
                };
            }
            _ => {}
        }
    }

    /// Removes a task. `task` must be the version of it that was added.
    pub fn remove(&mut self, task: &Task) {
        self.claimed.remove(&task.id);
        let requirement = Requirement::of(task);
        if let Some(group) = self.groups.get_mut(&requirement) {
            group.ready.remove(&rank(task));
            if let Some(until) = task.not_before {
                group.backing_off.remove(&(until, rank(task)));
            }
            if group.ready.is_empty() && group.backing_off.is_empty() {
                self.groups.remove(&requirement);
            }
        }
    }

    /// Returns the tasks in progress that have a claim.
    pub fn claimed(&self) -> &BTreeSet<TaskId> {
        &self.claimed
    }

    /// Returns the task that `candidate` gets next, except those in `skipped`: the highest priority, then the lowest number.
    pub fn next_for(&mut self, candidate: &Candidate<'_>, now: UnixMs, skipped: &HashSet<TaskId>) -> Option<TaskId> {
        self.end_back_offs(now);
        let open = self.groups.iter().filter(|(requirement, _)| requirement.is_met_by(candidate));
        let first = open.filter_map(|(_, group)| group.ready.iter().find(|(_, id)| !skipped.contains(id)));
        first.min().map(|(_, id)| *id)
    }

    /// Returns the indices in `idle` of the members to wake: for each task that is claimable now, one that can claim it.
    pub fn members_to_wake(&mut self, now: UnixMs, idle: &[Candidate<'_>]) -> Vec<usize> {
        self.end_back_offs(now);
        // The next task of each group.
        let mut next: BTreeMap<Rank, (&Requirement, Iter<'_, Rank>)> = BTreeMap::new();
        for (requirement, group) in &self.groups {
            let mut ranks = group.ready.iter();
            ranks.next().map(|first| next.insert(*first, (requirement, ranks)));
        }
        let mut available: Vec<usize> = (0..idle.len()).collect();
        let mut woken = Vec::new();
        while !available.is_empty()
            && let Some((_, (requirement, mut ranks))) = next.pop_first()
        {
            // Without a fit member, the rest of the group is skipped.
            if let Some(at) = available.iter().position(|index| requirement.is_met_by(&idle[*index])) {
                woken.push(available.remove(at));
                ranks.next().map(|rank| next.insert(*rank, (requirement, ranks)));
            }
        }
        woken
    }

    /// Returns true if one of these members could claim a task now.
    pub fn has_ready_task_for<'a>(
        &mut self,
        now: UnixMs,
        members: impl Iterator<Item = Candidate<'a>> + Clone,
    ) -> bool {
        self.end_back_offs(now);
        let ready = self.groups.iter().filter(|(_, group)| !group.ready.is_empty());
        ready.into_iter().any(|(requirement, _)| requirement.is_met_by_any(members.clone()))
    }

    /// Returns true if one of these members could claim a task, now or after its back-off.
    pub fn has_ready_or_waiting_task_for<'a>(&self, members: impl Iterator<Item = Candidate<'a>> + Clone) -> bool {
        self.groups.keys().any(|requirement| requirement.is_met_by_any(members.clone()))
    }

    /// Returns the time until the next back-off ends.
    pub fn next_due(&self, now: UnixMs) -> Option<Duration> {
        let later = |group: &TaskGroup| group.backing_off.iter().map(|(until, _)| *until).find(|until| *until > now);
        self.groups.values().filter_map(later).min().map(|until| until.since(now))
    }

    fn end_back_offs(&mut self, now: UnixMs) {
        for group in self.groups.values_mut() {
            while let Some((until, rank)) = group.backing_off.first().copied().filter(|(until, _)| *until <= now) {
                group.backing_off.remove(&(until, rank));
                group.ready.insert(rank);
            }
        }
    }
}

fn rank(task: &Task) -> Rank {
    (Reverse(task.priority), task.id)
}

/// The reason why a task is not claimable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimObstacle {
    /// It is completed or failed.
    Finished(TaskStatus),
    /// It is in progress.
    Held {
        /// Name of the owner.
        owner: String,
        /// True if it has no claim, because another program set it in progress.
        is_foreign: bool,
    },
    /// It has this status, which is a word of another program.
    OtherStatus(String),
    /// It is assigned to another member.
    AssignedTo(String),
    /// Its attempts reached this cap.
    AtCap(CapReached),
    /// A back-off after a failure lasts for this time.
    RetryIn(Duration),
    /// These blockers are unfinished.
    Blocked(Vec<Blocker>),
    /// The claimant has none of these roles or capabilities.
    MissingCapability(Vec<String>),
    /// It is not in this scope of the claimant.
    OutOfScope(TaskScope),
}

impl fmt::Display for ClaimObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finished(status) => write!(f, "it is {status}"),
            Self::Held { owner, is_foreign: true } => {
                write!(f, "it is in progress for {owner} without a claim (set by another program)")
            }
            Self::Held { owner, .. } => write!(f, "it is held by {owner}"),
            Self::OtherStatus(word) => write!(f, "its status `{word}` is a word of another program"),
            Self::AssignedTo(owner) => write!(f, "it is assigned to {owner}"),
            Self::AtCap(cap) => write!(f, "its attempts reached its cap of {} tokens", cap.tokens_max),
            Self::RetryIn(wait) => write!(f, "it failed and can be claimed again in {}", duration(*wait)),
            Self::Blocked(blockers) => {
                f.write_str("it is blocked by ")?;
                for (index, blocker) in blockers.iter().enumerate() {
                    write!(f, "{}{blocker}", if index > 0 { ", " } else { "" })?;
                }
                Ok(())
            }
            Self::MissingCapability(requires) => write!(f, "it requires {}", requires.join(" or ")),
            Self::OutOfScope(TaskScope::Named) => {
                f.write_str("it may need changes, and the claimant may change nothing")
            }
            Self::OutOfScope(_) => f.write_str("it has no `sh` block, and a runbook runs nothing else"),
        }
    }
}

/// Returns the first obstacle that prevents `candidate` from claiming `task` at `now`.
pub fn find_claim_obstacle(
    task: &Task,
    candidate: &Candidate<'_>,
    lookup: &dyn TaskLookup,
    now: UnixMs,
) -> Option<ClaimObstacle> {
    if let Some(obstacle) = obstacle_of_task(task, now) {
        return Some(obstacle);
    }
    if let Some(owner) = task.owner.as_ref().filter(|owner| !may_own(Some(owner), candidate.name)) {
        return Some(ClaimObstacle::AssignedTo(owner.clone()));
    }
    let blockers: Vec<Blocker> = unfinished_blockers(task, lookup).collect();
    if !blockers.is_empty() {
        return Some(ClaimObstacle::Blocked(blockers));
    }
    if !has_capability(&task.requires, candidate.capabilities) {
        return Some(ClaimObstacle::MissingCapability(task.requires.clone()));
    }
    (!Requirement::of(task).is_in(candidate.scope)).then_some(ClaimObstacle::OutOfScope(candidate.scope))
}

/// Returns true if a claimant for whom the task is meant has no obstacle at `now`.
pub fn is_claimable(task: &Task, lookup: &dyn TaskLookup, now: UnixMs) -> bool {
    let name = task.owner.as_deref().unwrap_or_default();
    let claimant = Candidate { name, capabilities: &task.requires, scope: TaskScope::All };
    find_claim_obstacle(task, &claimant, lookup, now).is_none()
}

fn obstacle_of_task(task: &Task, now: UnixMs) -> Option<ClaimObstacle> {
    match task.status {
        TaskStatus::Completed | TaskStatus::Failed => return Some(ClaimObstacle::Finished(task.status)),
        TaskStatus::Unknown => return Some(ClaimObstacle::OtherStatus(task.status_word().into_owned())),
        TaskStatus::InProgress => {
            let owner = task.owner.clone().unwrap_or_else(|| "an unknown owner".to_owned());
            return Some(ClaimObstacle::Held { owner, is_foreign: task.claim.is_none() });
        }
        TaskStatus::Pending => {}
    }
    if let Some(cap) = task.cap_in_force() {
        return Some(ClaimObstacle::AtCap(cap));
    }
    let wait = task.not_before?.since(now);
    (!wait.is_zero()).then_some(ClaimObstacle::RetryIn(wait))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NAMES: [&str; 3] = ["a", "b", "c"];

    fn scope_of(name: &str) -> TaskScope {
        match name {
            "a" => TaskScope::All,
            "b" => TaskScope::WithScript,
            _ => TaskScope::Named,
        }
    }

    fn task() -> impl Strategy<Value = Task> {
        let status = (0_usize..6).prop_map(|n| TaskStatus::OWN.get(n).copied().unwrap_or(TaskStatus::Pending));
        let owner = prop::option::of((0_usize..3).prop_map(|n| NAMES[n].to_owned()));
        let requires = prop::collection::vec((0_usize..3).prop_map(|n| NAMES[n].to_uppercase()), 0..2);
        let blocked_by = prop::collection::vec((1_u64..9).prop_map(TaskId), 0..2);
        let not_before = prop::option::of((0_i64..9).prop_map(UnixMs));
        let description = prop_oneof![Just(String::new()), Just("```sh\ntrue\n```".to_owned())];
        let cap_reached = prop::option::weighted(0.3, Just(CapReached { tokens_max: 5, tokens_needed: 9 }));
        let tokens_max = prop::option::of(4_u64..8);
        (status, owner, requires, blocked_by, not_before, 0_i64..2, description, (cap_reached, tokens_max)).prop_map(
            |(status, owner, requires, blocked_by, not_before, priority, description, (cap_reached, tokens_max))| {
                let task = Task { cap_reached, tokens_max, ..Task::new(TaskId(1), "s") };
                Task { status, owner, requires, blocked_by, not_before, priority, description, ..task }
            },
        )
    }

    #[test]
    fn scope_excludes_tasks_that_member_cannot_do() {
        let candidate = |scope| Candidate { name: "a", capabilities: &[], scope };
        let plain = Task::new(TaskId(1), "s");
        let reserved = Task { owner: Some("a".to_owned()), ..plain.clone() };
        let scripted = Task { description: "```sh\ntrue\n```".to_owned(), ..plain.clone() };
        for (scope, suits) in [
            (TaskScope::All, [true, true, true]),
            (TaskScope::WithScript, [false, false, true]),
            (TaskScope::Named, [false, true, false]),
        ] {
            assert_eq!([&plain, &reserved, &scripted].map(|task| candidate(scope).suits(task)), suits, "{scope:?}");
        }
    }

    #[test]
    fn task_is_claimable_for_whom_it_is_meant() {
        let ready =
            Task { owner: Some("bob".to_owned()), requires: vec!["coder".to_owned()], ..Task::new(TaskId(1), "s") };
        let blocked = Task { blocked_by: vec![TaskId(2)], ..ready.clone() };
        let held = Task { status: TaskStatus::InProgress, ..ready.clone() };
        let backing_off = |until| Task { not_before: Some(UnixMs(until)), ..ready.clone() };
        let is_claimable = |task: &Task| is_claimable(task, &BTreeMap::new(), UnixMs(4));
        assert!(is_claimable(&ready) && is_claimable(&backing_off(4)));
        assert!(!is_claimable(&blocked) && !is_claimable(&held) && !is_claimable(&backing_off(5)));
    }

    proptest! {
        /// The queue and the explanation of refusals are the same rule. The queue wakes at most one fit member for each task.
        #[test]
        fn claim_queue_agrees_with_obstacles(tasks in prop::collection::vec(task(), 0..8), idle in 0_usize..4) {
            let now = UnixMs(4);
            let tasks: BTreeMap<TaskId, Task> =
                (1..).map(TaskId).zip(tasks).map(|(id, task)| (id, Task { id, ..task })).collect();
            let mut queue = ClaimQueue::of(tasks.values(), &tasks);
            let capabilities = NAMES.map(|name| vec![name.to_owned()]);
            let members: Vec<Candidate<'_>> =
                NAMES.iter().zip(&capabilities).map(|(name, capabilities)| Candidate { name, capabilities, scope: scope_of(name) }).take(idle).collect();
            let claimable = |member: &Candidate<'_>, at: UnixMs| {
                let open = tasks.values().filter(|task| find_claim_obstacle(task, member, &tasks, at).is_none());
                open.map(rank).collect::<BTreeSet<_>>()
            };
            let all = |at: UnixMs| members.iter().flat_map(|member| claimable(member, at)).collect::<BTreeSet<_>>();
            let due = tasks.values().filter_map(|task| task.not_before.filter(|until| *until > now && all(UnixMs(99)).contains(&rank(task))));
            prop_assert!(due.min().is_none_or(|until| queue.next_due(now) <= Some(until.since(now))));
            prop_assert_eq!(queue.has_ready_or_waiting_task_for(members.iter().copied()), !all(UnixMs(99)).is_empty());
            prop_assert_eq!(queue.has_ready_task_for(now, members.iter().copied()), !all(now).is_empty());
            let woken = queue.members_to_wake(now, &members);
            prop_assert!(woken.len() <= all(now).len() && (all(now).is_empty() || !woken.is_empty()));
            prop_assert!(woken.iter().all(|index| !claimable(&members[*index], now).is_empty()));
            for member in &members {
                let mut skipped = HashSet::new();
                for (_, id) in claimable(member, now) {
                    prop_assert_eq!(queue.next_for(member, now, &skipped), Some(id));
                    skipped.insert(id);
                }
                prop_assert_eq!(queue.next_for(member, now, &skipped), None);
            }
            tasks.values().for_each(|task| queue.remove(task));
            prop_assert!(queue.groups.is_empty() && queue.claimed.is_empty());
        }
    }
}
