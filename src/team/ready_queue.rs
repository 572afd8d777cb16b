//! The claimable tasks, and the members to wake for them. Computed once for each version of the board, so that an event does not
//! compare all tasks with all members.

use std::collections::HashMap;
use std::time::Duration;

use crate::domain::dependencies::unfinished_blockers;
use crate::domain::task::{Task, TaskStatus};
use crate::domain::time::UnixMs;
use crate::ports::BoardView;

/// The claimable tasks of one version of the board.
#[derive(Debug, Default)]
pub struct ReadyQueue {
    revision: Option<u64>,
    tasks: Vec<ReadyTask>,
    requirements: Vec<ClaimRequirement>,
    has_claims: bool,
}

/// A pending task without unfinished blockers. It may still wait for its back-off.
#[derive(Debug)]
struct ReadyTask {
    not_before: Option<UnixMs>,
    requirement: usize,
}

/// The requirements for a claimant; few tasks differ in them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ClaimRequirement {
    owner: Option<String>,
    requires: Vec<String>,
}

impl ClaimRequirement {
    fn is_met_by(&self, name: &str, capabilities: &[String]) -> bool {
        let has = |requirement: &String| capabilities.iter().any(|have| have.eq_ignore_ascii_case(requirement));
        self.owner.as_ref().is_none_or(|owner| owner == name)
            && (self.requires.is_empty() || self.requires.iter().any(has))
    }
}

impl ReadyQueue {
    /// Reads the board, unless its version is known.
    pub fn refresh(&mut self, view: &BoardView) {
        if self.revision == Some(view.revision) {
            return;
        }
        *self = Self { revision: Some(view.revision), ..Self::default() };
        let mut indices: HashMap<ClaimRequirement, usize> = HashMap::new();
        for task in view.tasks.values() {
            self.has_claims |= task.status == TaskStatus::InProgress && task.claim.is_some();
            if is_ready(task, view) {
                let requirement = ClaimRequirement { owner: task.owner.clone(), requires: task.requires.clone() };
                let requirement = *indices.entry(requirement).or_insert_with_key(|requirement| {
                    self.requirements.push(requirement.clone());
                    self.requirements.len() - 1
                });
                self.tasks.push(ReadyTask { not_before: task.not_before, requirement });
            }
        }
    }

    /// Returns true if a task in progress has a claim.
    #[must_use]
    pub fn has_claims(&self) -> bool {
        self.has_claims
    }

    /// Returns true if one of these members could claim a task, now or after its back-off.
    pub fn has_any_task_for<'a>(&self, members: impl Iterator<Item = (&'a str, &'a [String])> + Clone) -> bool {
        self.requirements
            .iter()
            .any(|requirement| members.clone().any(|(name, capabilities)| requirement.is_met_by(name, capabilities)))
    }

    /// Returns true if one of these members could claim a task now.
    pub fn has_task_for<'a>(
        &self,
        now: UnixMs,
        members: impl Iterator<Item = (&'a str, &'a [String])> + Clone,
    ) -> bool {
        let mut is_due = vec![false; self.requirements.len()];
        for task in self.tasks.iter().filter(|task| task.not_before.is_none_or(|until| until <= now)) {
            is_due[task.requirement] = true;
        }
        let due =
            self.requirements.iter().zip(is_due).filter(|(_, is_due)| *is_due).map(|(requirement, _)| requirement);
        due.into_iter()
            .any(|requirement| members.clone().any(|(name, capabilities)| requirement.is_met_by(name, capabilities)))
    }

    /// Returns the time until the next back-off ends.
    #[must_use]
    pub fn next_due(&self, now: UnixMs) -> Option<Duration> {
        let waits = self.tasks.iter().filter_map(|task| task.not_before).filter(|until| *until > now);
        waits.min().map(|until| Duration::from_millis(u64::try_from(until.0 - now.0).unwrap_or(0)))
    }

    /// Returns the indices in `idle` of the members to wake: for each task that is claimable now, one member that can do it.
    #[must_use]
    pub fn members_to_wake(&self, now: UnixMs, idle: &[(&str, &[String])]) -> Vec<usize> {
        let mut available: Vec<usize> = (0..idle.len()).collect();
        let mut woken = Vec::new();
        let mut has_no_fit_member = vec![false; self.requirements.len()];
        for task in self.tasks.iter().filter(|task| task.not_before.is_none_or(|until| until <= now)) {
            if available.is_empty() {
                break;
            }
            if has_no_fit_member[task.requirement] {
                continue;
            }
            let requirement = &self.requirements[task.requirement];
            match available.iter().position(|index| requirement.is_met_by(idle[*index].0, idle[*index].1)) {
                Some(at) => woken.push(available.remove(at)),
                None => has_no_fit_member[task.requirement] = true,
            }
        }
        woken
    }
}

fn is_ready(task: &Task, view: &BoardView) -> bool {
    task.status == TaskStatus::Pending && unfinished_blockers(task, view).next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::dependencies::find_claim_obstacle;
    use crate::domain::task::TaskId;
    use proptest::prelude::*;
    use std::sync::Arc;

    const NAMES: [&str; 3] = ["a", "b", "c"];

    fn task() -> impl Strategy<Value = Task> {
        let status = (0_usize..6).prop_map(|n| TaskStatus::ALL.get(n).copied().unwrap_or(TaskStatus::Pending));
        let owner = prop::option::of((0_usize..3).prop_map(|n| NAMES[n].to_owned()));
        let requires = prop::collection::vec((0_usize..3).prop_map(|n| NAMES[n].to_uppercase()), 0..2);
        let blockers = prop::collection::vec((1_u64..9).prop_map(TaskId), 0..2);
        (status, owner, requires, blockers, prop::option::of((0_i64..9).prop_map(UnixMs))).prop_map(
            |(status, owner, requires, blocked_by, not_before)| Task {
                status,
                owner,
                requires,
                blocked_by,
                not_before,
                ..Task::new(TaskId(1), "s")
            },
        )
    }

    proptest! {
        /// The queue agrees with the board's rule about each member, and wakes at most one fit member for each task.
        #[test]
        fn ready_queue_agrees_with_board_rules(tasks in prop::collection::vec(task(), 0..8), idle in 0_usize..4) {
            let now = UnixMs(4);
            let tasks = (1..).map(TaskId).zip(tasks).map(|(id, task)| (id, Arc::new(Task { id, ..task }))).collect();
            let view = BoardView { revision: 7, tasks, ..BoardView::default() };
            let mut ready = ReadyQueue::default();
            ready.refresh(&view);
            let capabilities: Vec<Vec<String>> = NAMES.iter().map(|name| vec![(*name).to_owned()]).collect();
            let members: Vec<(&str, &[String])> = NAMES.iter().copied().zip(capabilities.iter().map(Vec::as_slice)).take(idle).collect();
            let claimable = |at: UnixMs| view.tasks.values().filter(|task| {
                members.iter().any(|(name, capabilities)| find_claim_obstacle(task, name, capabilities, &view, at).is_none())
            }).count();
            prop_assert_eq!(ready.has_any_task_for(members.iter().copied()), claimable(UnixMs(99)) > 0);
            prop_assert_eq!(ready.has_task_for(now, members.iter().copied()), claimable(now) > 0);
            let woken = ready.members_to_wake(now, &members);
            prop_assert!(woken.len() <= claimable(now) && (claimable(now) == 0 || !woken.is_empty()));
            for (name, capabilities) in woken.iter().map(|index| members[*index]) {
                prop_assert!(view.tasks.values().any(|task| find_claim_obstacle(task, name, capabilities, &view, now).is_none()));
            }
        }
    }
}
