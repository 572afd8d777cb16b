//! The reasons for the state of a task: why no teammate works on it, or what shows that it is done.
//! The obstacles come from `domain::dependencies`, which decides claims too.

mod completed;
mod question;
mod reason;

use std::collections::HashMap;
use std::iter::successors;

pub use question::{Why, why};
pub use reason::{
    BlockingCause, BlockingTask, ClaimReason, CompletionFact, Holder, Lease, MemberCapabilities, MemberWait,
    NoClaimant, Reason, StoppedMember, TeamReason,
};

use super::task::{ClaimCandidate, Presence, TaskContext, TeamCondition};
use crate::domain::task::claim_queue::{find_claim_obstacle, has_capability};
use crate::domain::task::dependencies::{BlockerState, TaskLookup, find_cycle, unfinished_blockers};
use crate::domain::task::failure_summary::summary_of;
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::domain::team::approval::Request;
use crate::domain::team::name::HUMAN;
use crate::domain::team::state::Mode;

/// Chains of blockers that are listed; the rest are counted.
pub const CHAINS_MAX: usize = 8;
/// Tasks of a chain that are named; the rest are counted.
const PATH_MAX: usize = 8;

/// Returns the reasons for the state of task `id`, those of the task itself first.
pub fn explain(id: TaskId, context: &TaskContext<'_>) -> Vec<Reason> {
    let Some(task) = context.view.task(id) else {
        return vec![no_task(id, context)];
    };
    match task.status {
        TaskStatus::Completed => completed::facts(task, context).into_iter().map(Reason::Completion).collect(),
        TaskStatus::Failed => [failure(task)].into_iter().chain(question(task, context)).collect(),
        TaskStatus::InProgress => in_progress_reasons(task, context),
        TaskStatus::Pending => pending_reasons(task, context),
        TaskStatus::Unknown => vec![Reason::UnknownStatus {
            status: task.status_word().into_owned(),
            line: task.document.line_of("status"),
        }],
    }
}

fn no_task(id: TaskId, context: &TaskContext<'_>) -> Reason {
    match context.view.invalid.iter().find(|invalid| invalid.id == Some(id)) {
        Some(invalid) => Reason::Invalid { file: invalid.name.clone(), reason: invalid.reason.clone() },
        None => context.quarantined_tasks.get(&id).map_or(Reason::Missing, |task| Reason::Quarantined(task.clone())),
    }
}

fn failure(task: &Task) -> Reason {
    Reason::Failed {
        failures: task.failures,
        summary: task.result.as_ref().map(|result| result.summary.clone()),
        worktree: task.worktree.clone(),
        has_verify: task.verify.is_some(),
    }
}

/// Returns the plans, reviews and permissions of the task that wait for an answer, those for the person first.
fn open_requests<'a>(task: &Task, context: &'a TaskContext<'_>) -> Vec<&'a Request> {
    let mut open: Vec<&Request> = context.open_requests(task.id).collect();
    open.sort_by_key(|request| request.to != HUMAN);
    open
}

fn open_approvals(task: &Task, context: &TaskContext<'_>) -> Vec<Reason> {
    let awaits = |request: &Request| Reason::AwaitsApproval { request: Box::new(request.clone()) };
    open_requests(task, context).into_iter().map(awaits).collect()
}

fn in_progress_reasons(task: &Task, context: &TaskContext<'_>) -> Vec<Reason> {
    let mut reasons = open_approvals(task, context);
    let awaits_approval = !reasons.is_empty();
    reasons.extend(question(task, context));
    reasons.push(claim_reason(task, context, awaits_approval));
    reasons
}

fn question(task: &Task, context: &TaskContext<'_>) -> Option<Reason> {
    let question = context.open_question(task)?;
    let is_over = task.status == TaskStatus::Failed;
    Some(Reason::AsksYou { from: question.from.clone(), question: question.text.clone(), is_over })
}

fn claim_reason(task: &Task, context: &TaskContext<'_>, awaits_approval: bool) -> Reason {
    let owner = task.owner.clone();
    let Some(claim) = &task.claim else {
        return Reason::Claim(ClaimReason::Foreign { owner });
    };
    let holder = Holder { owner, attempt: task.attempt, claimed_at: claim.at };
    if let Some(ends_at) = claim.expires {
        let lease = Lease { holder, ends_at };
        return Reason::Claim(if ends_at <= context.now {
            ClaimReason::LeaseOver(lease)
        } else {
            ClaimReason::Leased(lease)
        });
    }
    if context.is_abandoned(task) {
        return Reason::Claim(ClaimReason::WorkerGone(holder));
    }
    if let Some(silent) = silent_lead(&context.team) {
        return Reason::Team(silent);
    }
    let member = context.candidates.iter().find(|one| holder.owner.as_ref() == Some(&one.name));
    let waits_for = member.and_then(|member| member.waits_for.clone());
    Reason::Claim(ClaimReason::Held { holder, waits_for, awaits_approval })
}

fn pending_reasons(task: &Task, context: &TaskContext<'_>) -> Vec<Reason> {
    let mut reasons = open_approvals(task, context);
    reasons.extend(task.cap_in_force().map(|cap| Reason::AtCap { cap, is_own: task.tokens_max.is_some() }));
    if let Some(until) = task.not_before.filter(|until| *until > context.now) {
        reasons.push(Reason::BacksOff { until, failures: task.failures });
    }
    reasons.extend(reservation(task, &context.candidates));
    reasons.extend(blocking_tasks(task, context));
    reasons.extend(missing_capability(task, context).map(Reason::NoClaimant));
    reasons.extend(stopped_members(task, context));
    reasons.extend(team_reason(&context.team).map(Reason::Team));
    reasons.extend(last_attempt(task));
    if reasons.iter().all(|reason| matches!(reason, Reason::LastAttempt { .. })) {
        reasons.push(readiness(task, context));
    }
    reasons
}

/// Returns the end of the last attempt.
fn last_attempt(task: &Task) -> Option<Reason> {
    let summary = &task.result.as_ref()?.summary;
    if task.attempt == 0 || summary_of(summary).trim().is_empty() {
        return None;
    }
    Some(Reason::LastAttempt { attempt: task.attempt, summary: summary.clone() })
}

fn reservation(task: &Task, candidates: &[ClaimCandidate]) -> Option<Reason> {
    let owner = task.owner.clone()?;
    Some(match unusable_owner(task, &owner, candidates) {
        Some(reason) => Reason::NoClaimant(reason),
        None => Reason::ReservedFor { owner },
    })
}

/// Returns the reason why the owner of a task cannot claim it; `None` also if the members are not known.
fn unusable_owner(task: &Task, owner: &str, candidates: &[ClaimCandidate]) -> Option<NoClaimant> {
    let owner_text = owner.to_owned();
    match candidates.iter().find(|candidate| candidate.name == owner) {
        None if candidates.is_empty() => None,
        None => Some(NoClaimant::UnknownOwner { owner: owner_text }),
        Some(member) if !has_capability(&task.requires, &member.capabilities) => {
            Some(NoClaimant::UnfitOwner { owner: owner_text, requires: task.requires.clone() })
        }
        Some(_) => None,
    }
}

/// Returns the reason if all members that could claim the task were stopped.
fn stopped_members(task: &Task, context: &TaskContext<'_>) -> Option<Reason> {
    let can_claim = |one: &&ClaimCandidate| one.as_candidate().suits(task);
    let fit: Vec<&ClaimCandidate> = context.candidates.iter().filter(can_claim).collect();
    if fit.is_empty() || fit.iter().any(|one| one.presence == Presence::Here) {
        return None;
    }
    let stopped = |one: &ClaimCandidate| StoppedMember {
        name: one.name.clone(),
        starts_at_next_launch: one.presence == Presence::NextLaunch,
    };
    Some(Reason::MembersStopped { members: fit.into_iter().map(stopped).collect() })
}

/// Returns the reason why a blocker at the end of a chain is not finished.
fn blocking_cause(id: TaskId, state: BlockerState, context: &TaskContext<'_>) -> BlockingCause {
    let task = context.view.task(id);
    let open_request = task.and_then(|task| open_requests(task, context).first().copied());
    if let (BlockerState::Unfinished(TaskStatus::Pending | TaskStatus::InProgress), Some(request)) =
        (state, open_request)
    {
        return BlockingCause::AwaitsApproval { request: Box::new(request.clone()) };
    }
    match (state, task) {
        (BlockerState::Missing, _) => {
            let quarantined = context.quarantined_tasks.get(&id).cloned();
            quarantined.map_or(BlockingCause::Missing, BlockingCause::Quarantined)
        }
        (BlockerState::Invalid, _) => BlockingCause::Invalid,
        (BlockerState::Unfinished(TaskStatus::Failed), _) => BlockingCause::Failed,
        (BlockerState::Unfinished(TaskStatus::InProgress), Some(task)) if task.is_foreign() => BlockingCause::Foreign,
        (BlockerState::Unfinished(TaskStatus::InProgress), Some(task)) => {
            BlockingCause::Held { owner: task.owner.clone() }
        }
        (BlockerState::Unfinished(_), Some(task)) => match missing_capability(task, context) {
            Some(reason) => BlockingCause::NoClaimant { reason },
            None if task.cap_in_force().is_some() => BlockingCause::AtCap,
            None if task.attempt == 0 => BlockingCause::NotStarted,
            None => BlockingCause::NextAttempt { attempt: task.attempt + 1 },
        },
        (BlockerState::Unfinished(status), None) => BlockingCause::Other { status },
    }
}

fn blocking_tasks(task: &Task, context: &TaskContext<'_>) -> Vec<Reason> {
    let unfinished = |id: TaskId| -> Vec<TaskId> {
        let task = context.view.task(id);
        task.map(|task| unfinished_blockers(task, context.view).map(|blocker| blocker.id).collect()).unwrap_or_default()
    };
    if let Some(tasks) = find_cycle(task.id, unfinished) {
        return vec![Reason::Cycle { tasks }];
    }
    // Each visited task, and the task it was visited from.
    let mut visited_from = HashMap::from([(task.id, task.id)]);
    let mut open = vec![task.id];
    let mut reasons = Vec::new();
    let mut more = 0_usize;
    while let Some(waiter) = open.pop() {
        let Some(at) = context.view.task(waiter) else { continue };
        let blockers: Vec<_> = unfinished_blockers(at, context.view).collect();
        for blocker in blockers.into_iter().rev() {
            if visited_from.contains_key(&blocker.id) {
                continue;
            }
            visited_from.insert(blocker.id, waiter);
            let is_pending = blocker.state == BlockerState::Unfinished(TaskStatus::Pending);
            if is_pending && !unfinished(blocker.id).is_empty() {
                open.push(blocker.id);
            } else if reasons.len() < CHAINS_MAX {
                let mut through = path(task.id, waiter, &visited_from);
                let through_more = through.len().saturating_sub(PATH_MAX);
                through.truncate(PATH_MAX);
                reasons.push(Reason::Blocked(Box::new(BlockingTask {
                    through,
                    through_more,
                    waiter,
                    task: blocker.id,
                    subject: context.view.task(blocker.id).map(|task| task.subject.clone()),
                    cause: blocking_cause(blocker.id, blocker.state, context),
                })));
            } else {
                more += 1;
            }
        }
    }
    if more > 0 {
        reasons.push(Reason::MoreBlockers { more });
    }
    reasons
}

/// Returns the chain from `start` to `end`, without `start`.
fn path(start: TaskId, end: TaskId, visited_from: &HashMap<TaskId, TaskId>) -> Vec<TaskId> {
    let from = |id: &TaskId| visited_from.get(id).copied();
    let mut path: Vec<TaskId> = successors(Some(end), from).take_while(|id| *id != start).collect();
    path.reverse();
    path
}

/// Returns true if the task is outside the scope of every eligible member: it has no script, and no member with a model may do it.
pub fn lacks_script(task: &Task, candidates: &[ClaimCandidate]) -> bool {
    let mut eligible =
        candidates.iter().map(ClaimCandidate::as_candidate).filter(|one| one.is_eligible(task)).peekable();
    eligible.peek().is_some() && eligible.all(|one| !one.suits(task))
}

/// Returns the reason if no member could ever claim the task; `None` also if the members are not known.
pub fn no_claimant(task: &Task, candidates: &[ClaimCandidate]) -> Option<NoClaimant> {
    if lacks_script(task, candidates) {
        return Some(NoClaimant::NoScript);
    }
    match task.owner.as_deref() {
        Some(owner) => unusable_owner(task, owner, candidates),
        None => lacking_capability(task, candidates),
    }
}

/// Returns the reason if no member has a required capability; `None` also if the members are not known.
fn lacking_capability(task: &Task, candidates: &[ClaimCandidate]) -> Option<NoClaimant> {
    let is_capable = |candidate: &ClaimCandidate| has_capability(&task.requires, &candidate.capabilities);
    if candidates.is_empty() || candidates.iter().any(is_capable) {
        return None;
    }
    let capabilities =
        |one: &ClaimCandidate| MemberCapabilities { name: one.name.clone(), capabilities: one.capabilities.clone() };
    Some(NoClaimant::NoCapability {
        requires: task.requires.clone(),
        members: candidates.iter().map(capabilities).collect(),
    })
}

/// Returns the reason why no member can claim the task, apart from its reservation.
fn missing_capability(task: &Task, context: &TaskContext<'_>) -> Option<NoClaimant> {
    if lacks_script(task, &context.candidates) {
        return Some(NoClaimant::NoScript);
    }
    let is_owner = |candidate: &ClaimCandidate| task.owner.as_ref() == Some(&candidate.name);
    if context.candidates.iter().any(is_owner) { None } else { lacking_capability(task, &context.candidates) }
}

fn team_reason(team: &TeamCondition) -> Option<TeamReason> {
    if let Some(note) = &team.spent_budget {
        return Some(TeamReason::BudgetSpent { note: note.clone(), is_running: team.running.is_some() });
    }
    if team.running.is_none() {
        return Some(TeamReason::NoTeam);
    }
    if let Some(silent) = silent_lead(team) {
        return Some(silent);
    }
    if let Some(shortage) = &team.disk_shortage {
        return Some(TeamReason::DiskShortage { shortage: shortage.clone() });
    }
    (team.desired == Some(Mode::Pause)).then_some(TeamReason::Paused)
}

fn silent_lead(team: &TeamCondition) -> Option<TeamReason> {
    let (health, pid) = team.lead_health?;
    Some(TeamReason::Silent { health, pid })
}

/// Returns the members that can claim a task without obstacles, and the number of tasks they claim before it.
fn readiness(task: &Task, context: &TaskContext<'_>) -> Reason {
    let can_claim = |candidate: &ClaimCandidate, task: &Task| {
        find_claim_obstacle(task, &candidate.as_candidate(), context.view, context.now).is_none()
    };
    let present = context.candidates.iter().filter(|one| one.presence == Presence::Here);
    let fit: Vec<&ClaimCandidate> = present.filter(|one| can_claim(one, task)).collect();
    let wait = |one: &&ClaimCandidate| {
        let waits_for = one.waits_for.clone()?;
        Some(MemberWait { name: one.name.clone(), wait: waits_for.wait(), waits_for })
    };
    let waiting: Vec<MemberWait> = fit.iter().filter_map(wait).collect();
    if !fit.is_empty() && waiting.len() == fit.len() {
        return Reason::AwaitsOthers { members: waiting };
    }
    let before = context.view.tasks.values().filter(|other| {
        let goes_first = (std::cmp::Reverse(other.priority), other.id) < (std::cmp::Reverse(task.priority), task.id);
        goes_first && fit.iter().any(|candidate| can_claim(candidate, other))
    });
    let members = fit.iter().map(|candidate| candidate.name.clone()).collect();
    Reason::Claimable { members, tasks_before: before.count() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::time::UnixMs;
    use crate::ports::BoardView;

    #[test]
    fn reason_json_has_kind_and_facts() {
        let mut tasks = [1, 2, 3].map(|id| Task::new(TaskId(id), format!("Task {id}")));
        tasks[0].blocked_by = vec![TaskId(2)];
        tasks[1].blocked_by = vec![TaskId(3)];
        tasks[2].requires = vec!["gpu".into()];
        let tasks = tasks.into_iter().map(|task| (task.id, Arc::new(task))).collect();
        let view = BoardView { tasks, ..BoardView::default() };
        let candidates = vec![ClaimCandidate::of("alice", vec!["coder".into()])];
        let context = TaskContext { candidates, ..TaskContext::of(&view, UnixMs(0)) };
        let reasons = explain(TaskId(1), &context);
        assert_eq!(reasons.iter().map(Reason::kind).collect::<Vec<_>>(), ["blocked", "no_team"]);
        let members = serde_json::json!([{ "name": "alice", "capabilities": ["coder"] }]);
        assert_eq!(
            serde_json::to_value(&reasons[0]).unwrap(),
            serde_json::json!({
                "kind": "blocked", "through": [2], "through_more": 0, "waiter": 2, "task": 3, "subject": "Task 3",
                "cause": "no_claimant", "reason": { "kind": "nobody_fit", "requires": ["gpu"], "members": members },
            })
        );
    }
}
