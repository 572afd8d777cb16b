//! Why a task is not being worked on, in sentences, each with what to do about it. Decides nothing: the obstacles are the
//! domain's, which every claim goes by.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::iter::successors;

use serde::Serialize;

use super::stillness::Stillness;
use super::text::{self, ago, count, one_line};
use crate::domain::graph::{
    Blocker, BlockerState, Obstacle, RootBlockers, TaskLookup, find_cycle, obstacle, unfinished_blockers,
};
use crate::domain::request::{REVIEW_REJECTED_IT, Request};
use crate::domain::state::Mode;
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::domain::time::UnixMs;
use crate::ports::BoardView;

/// Chains of blockers that are told; more are counted.
const CHAINS_MAX: usize = 8;
/// Tasks of a chain that are named; more are counted.
const PATH_MAX: usize = 8;
/// Blockers that are named in few words; more are counted.
const BLOCKERS_MAX: usize = 4;

/// Somebody who could work on tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The name.
    pub name: String,
    /// All it can do.
    pub capabilities: Vec<String>,
    /// Whether it can be reached: of a team that runs, whether it was not stopped.
    pub is_there: bool,
    /// What keeps it from working, of a team that runs.
    pub waits_for: Option<String>,
}

/// All that bears on the question.
#[derive(Debug, Clone)]
pub struct Situation<'a> {
    /// The board.
    pub view: &'a BoardView,
    /// The members of the team.
    pub candidates: Vec<Candidate>,
    /// Where files lie that were no tasks and were moved out of the way.
    pub set_aside: BTreeMap<TaskId, String>,
    /// The team that runs.
    pub running: Option<String>,
    /// Why nothing is heard of the team that runs, where nothing is, and its process.
    pub still: Option<(Stillness, u32)>,
    /// The workers that live.
    pub live_workers: HashSet<String>,
    /// The plans and reviews that wait for an answer.
    pub approvals: Vec<Request>,
    /// What the person wants of the team.
    pub desired: Option<Mode>,
    /// That the team was paused because its budget is spent, where it still is.
    pub spent_budget: Option<String>,
    /// Why there is no room on the disk for new work.
    pub no_room: Option<String>,
    /// Now.
    pub now: UnixMs,
}

/// One thing in the way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// A word for programs.
    pub kind: &'static str,
    /// A sentence.
    pub text: String,
    /// What to do.
    pub hint: Option<String>,
}

fn reason(kind: &'static str, text: impl Into<String>) -> Reason {
    Reason { kind, text: text.into(), hint: None }
}

impl Reason {
    fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// Everything that keeps task `id` from being worked on, the task's own reasons first; empty when somebody will take it.
#[must_use]
pub fn explain(id: TaskId, situation: &Situation<'_>) -> Vec<Reason> {
    let Some(task) = situation.view.task(id) else {
        return vec![no_task(id, situation)];
    };
    match task.status {
        TaskStatus::Completed => vec![completed(task)],
        TaskStatus::Failed => vec![failed(task)],
        TaskStatus::InProgress => vec![in_progress(task, situation)],
        TaskStatus::Pending => pending(task, situation),
    }
}

fn no_task(id: TaskId, situation: &Situation<'_>) -> Reason {
    let file = id.file_name();
    match situation.view.spoiled.iter().find(|spoiled| spoiled.file == file) {
        Some(spoiled) => reason("spoiled", format!("Its file {file} is no task: {}.", one_line(&spoiled.reason)))
            .hint("mend the file by hand, or remove it"),
        None => match situation.set_aside.get(&id) {
            Some(place) => {
                reason("spoiled", format!("Its file was no task, and was set aside as {place}.")).hint(mend(id, place))
            }
            None => reason("missing", format!("There is no task {id} on the board.")).hint("see `brigade tasks`"),
        },
    }
}

/// What to do with the file of task `id` that was set aside as `place`.
#[must_use]
pub fn mend(id: TaskId, place: &str) -> String {
    format!("mend it, then move it back: mv {place} .tasks/{}; or, to drop the task, remove it", id.file_name())
}

fn completed(task: &Task) -> Reason {
    let by = task.owner.as_deref().map(|owner| format!(" by {}", one_line(owner))).unwrap_or_default();
    reason("completed", format!("It is completed{by}."))
        .hint(format!("to have it done again: brigade tasks reopen {}", task.id.0))
}

/// The branch of a task's worktree, which is named as its folder is.
fn branch_of(folder: &str) -> Option<String> {
    let (team, task) = folder.rsplit('/').next()?.rsplit_once("-task-")?;
    Some(format!("brigade/{team}/task-{task}"))
}

/// Where the work of a task is that has this worktree.
#[must_use]
pub fn whereabouts(folder: &str) -> String {
    let branch = branch_of(folder).map(|branch| format!(", on branch {}", one_line(&branch)));
    format!("{}{}", one_line(folder), branch.unwrap_or_default())
}

fn failed(task: &Task) -> Reason {
    let why = task.result.as_ref().map(|result| format!(": {}", text::reason(&result.summary))).unwrap_or_default();
    let text =
        format!("It was given up after {} of {}{why}.", count(task.failures as usize, "failure"), task.max_attempts);
    let id = task.id.0;
    let is_rejected = task.result.as_ref().is_some_and(|result| result.summary.starts_with(REVIEW_REJECTED_IT));
    // The same words for the same work would come to the same.
    let change =
        if is_rejected { format!("brigade tasks update {id} --description TEXT, then ") } else { String::new() };
    let again =
        format!("to have it tried again: {change}brigade tasks retry {id}; all of the reason: brigade tasks show {id}");
    let by_hand = task.worktree.as_ref();
    let by_hand = by_hand.map(|folder| format!("; to go on by hand: its work is in {}", whereabouts(folder)));
    reason("failed", text).hint(format!("{again}{}", by_hand.unwrap_or_default()))
}

fn in_progress(task: &Task, situation: &Situation<'_>) -> Reason {
    let owner = one_line(task.owner.as_deref().unwrap_or("nobody"));
    let release = format!("to take it back: brigade tasks release {} --force", task.id.0);
    let Some(claim) = &task.claim else {
        let text = format!(
            "It is in progress for {owner} without a claim: another program's. Brigade neither waits for it nor takes it back by itself."
        );
        return reason("foreign", text).hint(release);
    };
    let since = ago(claim.at, situation.now);
    if let Some(end) = claim.expires {
        let (kind, lease) = match end <= situation.now {
            true => (
                "lease_over",
                format!("its lease ran out {}, so it is taken back at the next look", ago(end, situation.now)),
            ),
            false => ("held", format!("its lease ends {}", ago(end, situation.now))),
        };
        return reason(kind, format!("{owner} claimed it {since} by command (attempt {}); {lease}.", task.attempt))
            .hint(release);
    }
    if situation.live_workers.contains(&claim.worker) {
        if let Some(still) = still(situation) {
            return still;
        }
        let is_its = |asked: &&Request| asked.about.as_ref().is_some_and(|about| about.task == task.id);
        if let Some(asked) = situation.approvals.iter().find(is_its) {
            let text = format!("{owner} holds it and waits for {}.", one_line(&asked.who_answers()));
            let answer = super::approvals::how_to_answer(asked.kind, &asked.id);
            return reason("awaits_approval", text).hint(format!("to answer: {answer}"));
        }
        let holder = situation.candidates.iter().find(|one| task.owner.as_ref() == Some(&one.name));
        return match holder.and_then(|holder| holder.waits_for.as_deref()) {
            Some(what) => {
                let claimed = format!("claimed {since}, attempt {}", task.attempt);
                reason("held", format!("{owner} holds it ({claimed}) and waits for {}.", one_line(what)))
            }
            None => reason("held", format!("{owner} is working on it: claimed {since}, attempt {}.", task.attempt)),
        };
    }
    let text = format!("{owner} claimed it {since}, but the process that ran {owner} is gone.");
    reason("worker_gone", text).hint(format!("the next `brigade up` takes it back by itself; or {release}"))
}

fn pending(task: &Task, situation: &Situation<'_>) -> Vec<Reason> {
    let mut reasons = Vec::new();
    if let Some(until) = task.not_before.filter(|until| *until > situation.now) {
        let text = format!(
            "It backs off after {} and is tried again {}.",
            count(task.failures as usize, "failure"),
            ago(until, situation.now)
        );
        reasons.push(reason("backs_off", text));
    }
    reasons.extend(kept_for(task, situation));
    reasons.extend(blocked(task, situation));
    reasons.extend(unfit(task, situation));
    reasons.extend(stopped(task, situation));
    reasons.extend(team(situation));
    reasons.extend(last_attempt(task));
    if reasons.iter().all(|reason| reason.kind == LAST_ATTEMPT) {
        reasons.extend(ready(task, situation));
    }
    reasons
}

const LAST_ATTEMPT: &str = "last_attempt";

/// How it ended when somebody last tried; that alone keeps nobody from it.
fn last_attempt(task: &Task) -> Option<Reason> {
    let summary = text::reason(&task.result.as_ref().filter(|_| task.attempt > 0)?.summary);
    (!summary.is_empty()).then(|| reason(LAST_ATTEMPT, format!("Attempt {} ended: {summary}.", task.attempt)))
}

fn kept_for(task: &Task, situation: &Situation<'_>) -> Option<Reason> {
    let owner = task.owner.as_deref()?;
    let free = format!("to free it for everybody: brigade tasks update {} --for \"\"", task.id.0);
    let shown = one_line(owner);
    let member = situation.candidates.iter().find(|candidate| candidate.name == owner);
    Some(match member {
        None if situation.candidates.is_empty() => reason("kept_for", format!("It is kept for {shown}.")).hint(free),
        None => reason("kept_for_nobody", format!("It is kept for {shown}, who is not in the team.")).hint(free),
        Some(member) if !task.fits(&member.capabilities) => {
            let wanted = one_line(&task.requires.join(" or "));
            let text = format!(
                "It is kept for {shown}, and requires {wanted}, which {shown} does not have: nobody can claim it."
            );
            let id = task.id.0;
            reason("kept_for_unfit", text).hint(format!("{free}; or: brigade tasks update {id} --requires \"\""))
        }
        Some(_) => reason("kept_for", format!("It is kept for {shown}.")).hint(free),
    })
}

/// Those who could do it are members of a team that runs, and were stopped.
fn stopped(task: &Task, situation: &Situation<'_>) -> Option<Reason> {
    let could =
        |one: &&Candidate| task.fits(&one.capabilities) && task.owner.as_ref().is_none_or(|owner| *owner == one.name);
    let fit: Vec<&Candidate> = situation.candidates.iter().filter(could).collect();
    if fit.is_empty() || fit.iter().any(|one| one.is_there) {
        return None;
    }
    let names = one_line(&fit.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", "));
    let verb = if fit.len() == 1 { "is" } else { "are" };
    let text = format!("Who could do it {verb} stopped: {names}.");
    Some(reason("stopped", text).hint("a new launch starts them again: brigade stop, then brigade up"))
}

/// What a blocker that waits for nothing else waits for itself.
fn root_reason(waiter: TaskId, id: TaskId, state: BlockerState, situation: &Situation<'_>) -> (String, Option<String>) {
    let task = situation.view.task(id);
    let subject = task.map(|task| format!(" \"{}\"", one_line(&task.subject))).unwrap_or_default();
    let (text, hint) = match (state, task) {
        (BlockerState::Missing, _) if situation.set_aside.contains_key(&id) => {
            let place = &situation.set_aside[&id];
            (format!("whose file was no task and was set aside as {place}"), Some(mend(id, place)))
        }
        (BlockerState::Missing, _) => (
            "which is missing: no such file is on the board".to_owned(),
            Some(format!(
                "bring the file back, or take the dependency away: brigade tasks update {} --not-after {}",
                waiter.0, id.0
            )),
        ),
        (BlockerState::Spoiled, _) => {
            (format!("whose file {} is no task", id.file_name()), Some(format!("mend {} by hand", id.file_name())))
        }
        (BlockerState::Unfinished(TaskStatus::Failed), _) => {
            ("which failed".to_owned(), Some(format!("brigade why {0}; then brigade tasks retry {0}", id.0)))
        }
        (BlockerState::Unfinished(TaskStatus::InProgress), Some(task)) if task.is_foreign() => {
            ("which another program has in progress without a claim".to_owned(), Some(format!("brigade why {}", id.0)))
        }
        (BlockerState::Unfinished(TaskStatus::InProgress), Some(task)) => {
            (format!("which {} is working on", one_line(task.owner.as_deref().unwrap_or("somebody"))), None)
        }
        (BlockerState::Unfinished(_), Some(task)) => {
            let unfit =
                unfit(task, situation).map(|unfit| (format!("which nobody can do: {}", unfit.text), unfit.hint));
            unfit.unwrap_or(("which is not begun".to_owned(), Some(format!("brigade why {}", id.0))))
        }
        (BlockerState::Unfinished(status), None) => (format!("which is {status}"), None),
    };
    (format!("{id}{subject}, {text}"), hint)
}

fn blocked(task: &Task, situation: &Situation<'_>) -> Vec<Reason> {
    let unfinished = |id: TaskId| -> Vec<TaskId> {
        let task = situation.view.task(id);
        task.map(|task| unfinished_blockers(task, situation.view).map(|blocker| blocker.id).collect())
            .unwrap_or_default()
    };
    if let Some(cycle) = find_cycle(task.id, unfinished) {
        let names: Vec<String> = cycle.iter().chain(cycle.first()).map(ToString::to_string).collect();
        let text = format!("It waits for itself: {}.", names.join(" waits for "));
        let hint = format!(
            "take one of these away: brigade tasks update {} --not-after {}",
            cycle[0].0,
            cycle.get(1).unwrap_or(&cycle[0]).0
        );
        return vec![reason("cycle", text).hint(hint)];
    }
    // Each visited task, and the task it was visited from.
    let mut visited_from = HashMap::from([(task.id, task.id)]);
    let mut open = vec![task.id];
    let mut reasons = Vec::new();
    let mut more = 0_usize;
    while let Some(id) = open.pop() {
        let Some(at) = situation.view.task(id) else { continue };
        let blockers: Vec<_> = unfinished_blockers(at, situation.view).collect();
        for blocker in blockers.into_iter().rev() {
            if visited_from.contains_key(&blocker.id) {
                continue;
            }
            visited_from.insert(blocker.id, id);
            let is_pending = blocker.state == BlockerState::Unfinished(TaskStatus::Pending);
            if is_pending && !unfinished(blocker.id).is_empty() {
                open.push(blocker.id);
            } else if reasons.len() < CHAINS_MAX {
                let (text, hint) = root_reason(id, blocker.id, blocker.state, situation);
                let through = through(task.id, id, &visited_from);
                reasons.push(Reason { kind: "blocked", text: format!("It waits for {through}{text}."), hint });
            } else {
                more += 1;
            }
        }
    }
    if more > 0 {
        reasons.push(reason("blocked", format!("It waits for {} besides.", count(more, "more task"))));
    }
    reasons
}

/// The tasks between `start` and a blocker of `end`, in words that the blocker follows.
fn through(start: TaskId, end: TaskId, visited_from: &HashMap<TaskId, TaskId>) -> String {
    let from = |id: &TaskId| visited_from.get(id).copied();
    let mut path: Vec<TaskId> = successors(Some(end), from).take_while(|id| *id != start).collect();
    path.reverse();
    let mut text: String = path.iter().take(PATH_MAX).map(|id| format!("{id}, which waits for ")).collect();
    if let Some(more) = path.len().checked_sub(PATH_MAX).filter(|more| *more > 0) {
        let _ = write!(text, "{}, the last of which waits for ", count(more, "more task"));
    }
    text
}

/// Whether nobody of these has what the task requires; `None` where nobody is known.
fn is_for_nobody_fit(task: &Task, candidates: &[Candidate]) -> Option<bool> {
    (!candidates.is_empty()).then(|| !candidates.iter().any(|candidate| task.fits(&candidate.capabilities)))
}

/// What keeps a pending task, in a few words; empty when nothing does. `roots` are of the same board, for all its tasks.
#[must_use]
pub fn in_short(
    task: &Task,
    view: &BoardView,
    roots: &mut RootBlockers<'_>,
    candidates: &[Candidate],
    now: UnixMs,
) -> String {
    if task.status != TaskStatus::Pending {
        return String::new();
    }
    let names =
        |list: &[Blocker]| list.iter().take(BLOCKERS_MAX).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let mut parts = Vec::new();
    let direct: Vec<Blocker> = unfinished_blockers(task, view).collect();
    if !direct.is_empty() {
        let roots = roots.of(task.id);
        let more = match direct.len().saturating_sub(BLOCKERS_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let end = if roots.is_empty() || *roots == direct[..direct.len().min(RootBlockers::COUNT_MAX)] {
            String::new()
        } else {
            let more = if roots.len() > BLOCKERS_MAX { " and more" } else { "" };
            format!(", in the end for {}{more}", names(roots))
        };
        parts.push(format!("waits for {}{more}{end}", names(&direct)));
    }
    if let Some(until) = task.not_before.filter(|until| *until > now) {
        parts.push(format!("backs off, again {}", ago(until, now)));
    }
    parts.extend(for_nobody(task, candidates).or_else(|| task.owner.as_ref().map(|owner| format!("kept for {owner}"))));
    parts.join("; ")
}

/// Why nobody of the team could ever claim a task, in a few words.
#[must_use]
pub fn for_nobody(task: &Task, candidates: &[Candidate]) -> Option<String> {
    let wanted = task.requires.join(" or ");
    let Some(owner) = task.owner.as_deref() else {
        let is_for_nobody = is_for_nobody_fit(task, candidates) == Some(true);
        return is_for_nobody.then(|| format!("requires {wanted}, which nobody in the team has"));
    };
    match candidates.iter().find(|one| one.name == owner) {
        None if candidates.is_empty() => None,
        None => Some(format!("kept for {owner}, who is not in the team")),
        Some(member) if !task.fits(&member.capabilities) => Some(format!("kept for {owner}, who has no {wanted}")),
        Some(_) => None,
    }
}

fn unfit(task: &Task, situation: &Situation<'_>) -> Option<Reason> {
    let is_kept_for = |candidate: &Candidate| task.owner.as_ref() == Some(&candidate.name);
    if is_for_nobody_fit(task, &situation.candidates) != Some(true) || situation.candidates.iter().any(is_kept_for) {
        return None;
    }
    let wanted = one_line(&task.requires.join(" or "));
    let have = situation.candidates.iter().map(|one| format!("{} ({})", one.name, one.capabilities.join(", ")));
    let text = format!(
        "It requires {wanted}, and nobody in the team has that: {}",
        one_line(&have.collect::<Vec<_>>().join("; "))
    );
    let hint = format!(
        "add the capability to a member in brigade.toml, or: brigade tasks update {} --requires \"\"",
        task.id.0
    );
    Some(reason("nobody_fit", format!("{text}.")).hint(hint))
}

fn team(situation: &Situation<'_>) -> Option<Reason> {
    if let Some(spent) = &situation.spent_budget {
        let launch = if situation.running.is_none() { ", and brigade up" } else { "" };
        let hint = format!(
            "raise it in brigade.toml, or brigade cost --reset counts anew; then brigade state continuous{launch}"
        );
        return Some(reason("budget_spent", format!("The team is paused: {spent}.")).hint(hint));
    }
    if situation.running.is_none() {
        let text = "No team runs in this workspace.";
        return Some(reason("no_team", text).hint("brigade up, or brigade run TEAM"));
    }
    if let Some(still) = still(situation) {
        return Some(still);
    }
    if let Some(trouble) = &situation.no_room {
        let text = format!("No work is taken: {trouble}.");
        return Some(reason("no_room", text).hint("make room on the disk; the team goes on by itself"));
    }
    (situation.desired == Some(Mode::Pause)).then(|| {
        reason("paused", "The team is paused: nothing more is claimed.").hint("brigade state continuous, or run_once")
    })
}

/// That nothing is heard of the process that runs the team.
fn still(situation: &Situation<'_>) -> Option<Reason> {
    let (stillness, pid) = situation.still?;
    let text = format!("The team's process (pid {pid}) {}.", stillness.says());
    Some(reason("silent", text).hint(stillness.remedy(pid)))
}

/// Nothing is in the way: who could take it, and what goes before it.
fn ready(task: &Task, situation: &Situation<'_>) -> Option<Reason> {
    let claimable = |candidate: &Candidate, task: &Task| -> Option<Obstacle> {
        obstacle(task, &candidate.name, &candidate.capabilities, situation.view, situation.now)
    };
    let reachable = situation.candidates.iter().filter(|one| one.is_there);
    let fit: Vec<&Candidate> = reachable.filter(|one| claimable(one, task).is_none()).collect();
    let kept_up = |one: &&Candidate| Some(format!("{} waits for {}", one.name, one.waits_for.as_deref()?));
    let waits: Vec<String> = fit.iter().filter_map(kept_up).collect();
    if !fit.is_empty() && waits.len() == fit.len() {
        let text = format!("Who could take it cannot now: {}.", one_line(&waits.join("; ")));
        return Some(reason("awaits_others", text));
    }
    let names = fit.iter().map(|candidate| candidate.name.as_str()).collect::<Vec<_>>().join(", ");
    let before = situation.view.tasks.values().filter(|other| {
        let goes_first = (std::cmp::Reverse(other.priority), other.id) < (std::cmp::Reverse(task.priority), task.id);
        goes_first && fit.iter().any(|candidate| claimable(candidate, other).is_none())
    });
    let text = match (before.count(), names.is_empty()) {
        (_, true) => "Nothing is in its way: it can be claimed.".to_owned(),
        (0, false) if fit.len() == 1 => format!("Nothing is in its way: {names} will take it once free."),
        (0, false) => format!("Nothing is in its way: {names} will take it as soon as one of them is free."),
        (tasks, false) => format!("It can be claimed by {names}; {} before it.", goes_before(tasks)),
    };
    Some(reason("claimable", text))
}

fn goes_before(tasks: usize) -> String {
    if tasks == 1 { "1 task goes".to_owned() } else { format!("{tasks} tasks go") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::domain::task::{Claim, TaskResult};
    use crate::ports::SpoiledFile;

    fn task(id: u64, status: TaskStatus, blocked_by: &[u64]) -> Task {
        let mut task = Task::new(TaskId(id), format!("Task {id}"));
        task.status = status;
        task.blocked_by = blocked_by.iter().copied().map(TaskId).collect();
        task
    }

    fn told(tasks: Vec<Task>, id: u64, change: impl FnOnce(&mut Situation<'_>)) -> String {
        let view = BoardView {
            tasks: tasks.into_iter().map(|task| (task.id, Arc::new(task))).collect(),
            spoiled: vec![SpoiledFile { file: "task_8.json".into(), reason: "not a JSON object".into() }],
            ..BoardView::default()
        };
        let mut situation = Situation {
            view: &view,
            candidates: vec![
                Candidate { name: "alice".into(), capabilities: vec!["coder".into()], is_there: true, waits_for: None },
                Candidate { name: "bob".into(), capabilities: vec!["tester".into()], is_there: true, waits_for: None },
            ],
            set_aside: BTreeMap::from([(TaskId(6), ".tasks/.spoiled/task_6.json".to_owned())]),
            running: Some("team".into()),
            still: None,
            live_workers: HashSet::from(["w1".to_owned()]),
            approvals: Vec::new(),
            desired: Some(Mode::Continuous),
            spent_budget: None,
            no_room: None,
            now: UnixMs(100_000),
        };
        change(&mut situation);
        let lines: Vec<String> = explain(TaskId(id), &situation)
            .into_iter()
            .map(|reason| format!("{}: {} [{}]", reason.kind, reason.text, reason.hint.unwrap_or_default()))
            .collect();
        lines.join("\n")
    }

    use TaskStatus::{Completed, Failed, InProgress, Pending};

    #[test]
    fn everything_in_the_way_is_told() {
        let claimed = |worker: &str, expires: Option<i64>| {
            let mut task = task(1, InProgress, &[]);
            task.owner = Some("alice".into());
            task.attempt = 2;
            task.claim = Some(Claim { worker: worker.into(), at: UnixMs(40_000), expires: expires.map(UnixMs) });
            task
        };
        let limited = || Some("its model, limited until 22:39:14 UTC: no more".to_owned());
        let mut tried = task(1, Pending, &[]);
        (tried.attempt, tried.result) = (2, Some(TaskResult::said("the team stops", "")));
        let mut failed_task = task(1, Failed, &[]);
        failed_task.failures = 3;
        failed_task.result = Some(TaskResult::said("exit \x1b[2J 1", ""));
        let mut conflicting = failed_task.clone();
        conflicting.result = Some(TaskResult::said("it conflicts:\n<<<<<<< a\n", ""));
        conflicting.worktree = Some(".team/worktrees/crew-task-1".into());
        let mut kept = task(1, Pending, &[]);
        kept.owner = Some("zoe".into());
        kept.not_before = Some(UnixMs(104_000));
        kept.failures = 1;
        let mut special = task(1, Pending, &[]);
        special.requires = vec!["gpu".into(), "cuda".into()];
        let mut kept_and_unfit = task(1, Pending, &[]);
        kept_and_unfit.owner = Some("alice".into());
        kept_and_unfit.requires = vec!["tester".into()];
        let mut foreign = task(1, InProgress, &[]);
        foreign.owner = Some("carol".into());
        let chain = vec![
            task(1, Pending, &[2, 9, 8]),
            task(2, Pending, &[3, 4]),
            task(3, Failed, &[]),
            claimed_as(4, claimed("w1", None)),
            task(5, Completed, &[]),
        ];
        let circle = vec![task(1, Pending, &[2]), task(2, Pending, &[3]), task(3, Pending, &[1])];
        let ready = || vec![task(1, Pending, &[]), task(2, Pending, &[])];
        let all = [
            told(vec![], 7, |_| {}),
            told(vec![], 8, |_| {}),
            told(vec![task(1, Completed, &[])], 1, |_| {}),
            told(vec![failed_task], 1, |_| {}),
            told(vec![foreign], 1, |_| {}),
            told(vec![claimed("w1", None)], 1, |_| {}),
            told(vec![claimed("w0", None)], 1, |_| {}),
            told(vec![claimed("lease:alice", Some(90_000))], 1, |_| {}),
            told(vec![claimed("lease:alice", Some(190_000))], 1, |_| {}),
            told(vec![kept], 1, |_| {}),
            told(vec![special], 1, |situation| situation.running = None),
            told(chain, 1, |_| {}),
            told(circle, 1, |situation| situation.desired = Some(Mode::Pause)),
            told(ready(), 1, |_| {}),
            told(ready(), 2, |_| {}),
            told(ready(), 2, |situation| situation.candidates.clear()),
            told(ready(), 1, |situation| situation.candidates.iter_mut().for_each(|one| one.is_there = false)),
            told(ready(), 1, |situation| situation.candidates[0].is_there = false),
            told(vec![kept_and_unfit], 1, |_| {}),
            told(vec![task(1, Pending, &[6])], 1, |_| {}),
            told(vec![], 6, |_| {}),
            told(vec![conflicting], 1, |_| {}),
            told(vec![claimed("w1", None)], 1, |situation| situation.candidates[0].waits_for = limited()),
            told(vec![tried], 1, |situation| {
                situation.candidates.iter_mut().for_each(|one| one.waits_for = limited());
            }),
            told(ready(), 1, |situation| situation.no_room = Some("1 KiB free, 4 MiB needed".to_owned())),
        ];
        insta::assert_snapshot!(all.join("\n---\n"));
    }

    fn claimed_as(id: u64, task: Task) -> Task {
        Task { id: TaskId(id), ..task }
    }

    #[test]
    fn what_keeps_a_task_is_said_in_short() {
        let mut tasks =
            vec![task(1, Pending, &[2]), task(2, Pending, &[3]), task(3, Failed, &[]), task(4, Pending, &[3])];
        let with = |id: u64, owner: Option<&str>, requires: &[&str]| {
            let mut task = task(id, Pending, &[]);
            task.owner = owner.map(str::to_owned);
            task.requires = requires.iter().map(|word| (*word).to_owned()).collect();
            task
        };
        tasks.extend([with(5, Some("zoe"), &[]), with(6, Some("alice"), &["gpu"]), with(7, None, &["gpu"])]);
        tasks.push(Task { not_before: Some(UnixMs(9_000)), ..with(8, None, &["coder"]) });
        let view = BoardView {
            tasks: tasks.into_iter().map(|task| (task.id, Arc::new(task))).collect(),
            ..BoardView::default()
        };
        let alice =
            Candidate { name: "alice".into(), capabilities: vec!["coder".into()], is_there: true, waits_for: None };
        let short = |id, candidates: &[Candidate]| {
            in_short(&view.tasks[&TaskId(id)], &view, &mut RootBlockers::new(&view), candidates, UnixMs(4_000))
        };
        let said = |id| short(id, std::slice::from_ref(&alice));
        assert_eq!(said(1), "waits for #2 (pending), in the end for #3 (failed)");
        assert_eq!(said(4), "waits for #3 (failed)");
        assert_eq!(said(5), "kept for zoe, who is not in the team");
        assert_eq!(said(6), "kept for alice, who has no gpu");
        assert_eq!(said(7), "requires gpu, which nobody in the team has");
        assert_eq!(said(8), "backs off, again in 5 s");
        assert_eq!(short(7, &[]), "", "nobody is known");
    }

    #[test]
    fn many_blockers_are_counted() {
        let mut tasks: Vec<Task> = (2..40).map(|id| task(id, Pending, &[])).collect();
        tasks.push(task(1, Pending, &(2..40).collect::<Vec<_>>()));
        let text = told(tasks, 1, |_| {});
        assert_eq!(text.lines().count(), CHAINS_MAX + 1);
        assert!(text.contains("30 more tasks besides"), "{text}");
    }
}
