//! Explains why no teammate works on a task: one sentence for each obstacle, with a hint.
//! The obstacles come from `domain::dependencies`, which decides claims too.

mod completed;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::iter::successors;

use serde::Serialize;

pub use completed::worktree_location;

use super::command_form::shell_word;
use super::cost::grouped;
use super::lead_status;
use super::text::{self, ago, count, one_line};
use crate::api::refusal::restore_hint;
use crate::api::task::{ClaimCandidate, Presence, TaskContext, TeamCondition};
use crate::domain::task::claim_queue::{ClaimObstacle, find_claim_obstacle, has_capability};
use crate::domain::task::dependencies::{BlockerState, TaskLookup, find_cycle, unfinished_blockers};
use crate::domain::task::failure_summary::summary_of;
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::domain::team::approval::Request;
use crate::domain::team::budget::CapReached;
use crate::domain::team::name::HUMAN;
use crate::domain::team::state::Mode;
use crate::ports::QuarantinedTask;

/// Chains of blockers that are listed; the rest are counted.
const CHAINS_MAX: usize = 8;
/// Tasks of a chain that are named; the rest are counted.
const PATH_MAX: usize = 8;

/// One obstacle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// The word for programs.
    pub kind: &'static str,
    /// The sentence for people.
    pub text: String,
    /// The commands to run, one on each line.
    pub hint: Option<String>,
}

fn reason(kind: &'static str, text: impl Into<String>) -> Reason {
    Reason { kind, text: text.into(), hint: None }
}

/// Ends a sentence. A text that was cut ends with `…` already.
fn sentence(text: String) -> String {
    if text.ends_with(['…', '.']) { text } else { text + "." }
}

impl Reason {
    fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// Returns the obstacles of task `id`, those of the task itself first.
pub fn explain(id: TaskId, context: &TaskContext<'_>) -> Vec<Reason> {
    let Some(task) = context.view.task(id) else {
        return vec![no_task(id, context)];
    };
    match task.status {
        TaskStatus::Completed => completed::completion_reasons(task, context),
        TaskStatus::Failed => [failure_reason(task)].into_iter().chain(question_reason(task, context)).collect(),
        TaskStatus::InProgress => in_progress_reasons(task, context),
        TaskStatus::Pending => pending_reasons(task, context),
        TaskStatus::Unknown => vec![unknown_status(task)],
    }
}

fn unknown_status(task: &Task) -> Reason {
    let word = one_line(&task.status_word());
    let text = format!("Its status `{word}` is another program's word. Brigade leaves it as it is.");
    let line = task.document.line_of("status").map(|line| format!("line {line} of ")).unwrap_or_default();
    let file = task.id.file_name();
    reason("unknown_status", text)
        .hint(format!("for a team to do it: set `\"status\": \"pending\"` in {line}.tasks/{file}"))
}

fn no_task(id: TaskId, context: &TaskContext<'_>) -> Reason {
    match context.view.invalid.iter().find(|invalid| invalid.id == Some(id)) {
        Some(invalid) => {
            reason("spoiled", format!("Its file {} is invalid: {}.", invalid.name, one_line(&invalid.reason)))
                .hint("correct the file, or remove it")
        }
        None => match context.quarantined_tasks.get(&id) {
            Some(task) => {
                reason("spoiled", format!("Its file {}.", set_aside(task))).hint(restore_hint(id, &task.place))
            }
            None => reason("missing", format!("There is no task {id} on the board.")).hint("`brigade tasks`"),
        },
    }
}

/// Returns the end of a sentence about the file of a quarantined task.
pub fn set_aside(task: &QuarantinedTask) -> String {
    one_line(&task.to_string())
}

fn failure_reason(task: &Task) -> Reason {
    let why = task.result.as_ref().map(|result| format!(": {}", summary_of(&result.summary))).unwrap_or_default();
    let times = if task.failures > 1 { format!(" {} times", task.failures) } else { String::new() };
    let id = task.id.0;
    let worktree = task.worktree.as_ref().map(|folder| format!("\nits work: {}", worktree_location(folder)));
    let verify = match &task.verify {
        Some(_) => format!("to change its verify command: `brigade tasks update {id} --verify COMMAND`\n"),
        None => String::new(),
    };
    let hint = format!(
        "to change it: `brigade tasks update {id} --description TEXT`\n\
         {verify}to retry it: `brigade tasks retry {id}`\n\
         its full reason: `brigade tasks show {id}`\n\
         its events: `brigade log --task {id}`"
    );
    reason("failed", sentence(format!("It failed{times}{why}"))).hint(hint + &worktree.unwrap_or_default())
}

/// Returns the plans and reviews of the task that wait for an answer, those for the person first.
fn open_requests<'a>(task: &Task, context: &'a TaskContext<'_>) -> Vec<&'a Request> {
    let mut open: Vec<&Request> = context.open_requests(task.id).collect();
    open.sort_by_key(|request| request.to != HUMAN);
    open
}

fn waiting_request(request: &Request) -> String {
    let responder = super::approvals::responder(request);
    format!("{} {} waits for {}", request.kind.noun(), one_line(&request.id), one_line(responder))
}

/// Returns the commands that answer the request, one on each line.
fn commands_for(request: &Request) -> String {
    super::approvals::commands(request, None).join("\n")
}

fn open_approvals(task: &Task, context: &TaskContext<'_>) -> Vec<Reason> {
    let explain = |request: &Request| {
        reason("awaits_approval", format!("Its {}.", waiting_request(request))).hint(commands_for(request))
    };
    open_requests(task, context).into_iter().map(explain).collect()
}

fn in_progress_reasons(task: &Task, context: &TaskContext<'_>) -> Vec<Reason> {
    let mut reasons = open_approvals(task, context);
    let waits_for_approval = !reasons.is_empty();
    reasons.extend(question_reason(task, context));
    reasons.push(claim_reason(task, context, waits_for_approval));
    reasons
}

fn question_reason(task: &Task, context: &TaskContext<'_>) -> Option<Reason> {
    let question = context.open_question(task)?;
    let id = task.id.0;
    let hint = match task.status {
        // Another attempt starts without its messages.
        TaskStatus::Failed => format!(
            "to answer: add it to the description with `brigade tasks update {id} --description TEXT`, then `brigade tasks retry {id}`"
        ),
        _ => format!("to answer: `brigade send {} TEXT`", shell_word(&question.from)),
    };
    let text = format!("{} asks you: {}", one_line(&question.from), text::first_line(&question.text));
    Some(reason("asks_you", text).hint(hint))
}

fn claim_reason(task: &Task, context: &TaskContext<'_>, waits_for_approval: bool) -> Reason {
    let owner = one_line(task.owner.as_deref().unwrap_or("an unknown owner"));
    let release = format!("to release it: `brigade tasks release {} --force`", task.id.0);
    let Some(claim) = &task.claim else {
        let text =
            format!("Another program set it to in progress for {owner}. Brigade does not wait for it or reclaim it.");
        return reason("foreign", text).hint(release);
    };
    let since = ago(claim.at, context.now);
    if let Some(end) = claim.expires {
        let end_text = ago(end, context.now);
        let (kind, lease) = if end <= context.now {
            ("lease_over", format!("its lease expired {end_text}, and the next poll reclaims it"))
        } else {
            ("held", format!("its lease ends {end_text}"))
        };
        return reason(kind, format!("{owner} claimed it {since} by command (attempt {}); {lease}.", task.attempt))
            .hint(release);
    }
    if context.is_abandoned(task) {
        let text = format!("{owner} claimed it {since}, but the process of {owner} is gone.");
        return reason("worker_gone", text).hint(format!("to reclaim it: `brigade up`\n{release}"));
    }
    if let Some(silent) = silent_lead(&context.team) {
        return silent;
    }
    let claimed = format!("attempt {}, claimed {since}", task.attempt);
    let holder = context.candidates.iter().find(|one| task.owner.as_ref() == Some(&one.name));
    let text = match holder.and_then(|holder| holder.waits_for.as_deref()) {
        _ if waits_for_approval => format!("{owner} holds it ({claimed})."),
        Some(cause) => format!("{owner} holds it ({claimed}) and waits for {}.", one_line(cause)),
        None => format!("{owner} is working on it ({claimed})."),
    };
    reason("held", text)
}

fn pending_reasons(task: &Task, context: &TaskContext<'_>) -> Vec<Reason> {
    let mut reasons = open_approvals(task, context);
    reasons.extend(task.cap_in_force().map(|cap| cap_reason(task, cap)));
    if let Some(until) = task.not_before.filter(|until| *until > context.now) {
        let failures = count(task.failures as usize, "failure");
        let text = format!("It is retried {}, after {failures}.", ago(until, context.now));
        reasons.push(reason("backs_off", text));
    }
    reasons.extend(reserved_for(task, context));
    reasons.extend(blocker_reasons(task, context));
    reasons.extend(missing_capability(task, context));
    reasons.extend(stopped_members_reason(task, context));
    reasons.extend(team_reason(&context.team));
    reasons.extend(last_attempt(task));
    if reasons.iter().all(|reason| reason.kind == LAST_ATTEMPT) {
        reasons.extend(ready_reason(task, context));
    }
    reasons
}

fn cap_reason(task: &Task, cap: CapReached) -> Reason {
    let (id, needed) = (task.id.0, cap.tokens_needed);
    let text = format!(
        "Its attempts reached its cap of {} tokens: with the next request they could use {}.",
        grouped(cap.tokens_max),
        grouped(needed)
    );
    let raise = format!("to raise its cap: `brigade tasks update {id} --tokens-max {}`", cap.suggested_tokens_max());
    let of_team = "\nor raise `task_tokens_max` in brigade.toml, and launch again";
    reason("at_cap", text).hint(raise + if task.tokens_max.is_none() { of_team } else { "" })
}

const LAST_ATTEMPT: &str = "last_attempt";

/// Returns the end of the last attempt, which is no obstacle by itself.
fn last_attempt(task: &Task) -> Option<Reason> {
    if task.attempt == 0 {
        return None;
    }
    let summary = summary_of(&task.result.as_ref()?.summary);
    let text = || sentence(format!("Attempt {} ended: {summary}", task.attempt));
    (!summary.is_empty()).then(|| reason(LAST_ATTEMPT, text()))
}

fn reserved_for(task: &Task, context: &TaskContext<'_>) -> Option<Reason> {
    let owner = task.owner.as_deref()?;
    let free = format!("to let any teammate claim it: `brigade tasks update {} --for \"\"`", task.id.0);
    let reserved = format!("It is reserved for {}", one_line(owner));
    let member = context.candidates.iter().find(|candidate| candidate.name == owner);
    Some(match member {
        None if !context.candidates.is_empty() => {
            reason("kept_for_nobody", format!("{reserved}, who is not in the team.")).hint(free)
        }
        Some(member) if !has_capability(&task.requires, &member.capabilities) => {
            let required = one_line(&task.requires.join(" or "));
            let id = task.id.0;
            reason("kept_for_unfit", format!("{reserved}, who does not have the required capability {required}."))
                .hint(format!("{free}\nto drop the requirement: `brigade tasks update {id} --requires \"\"`"))
        }
        _ => reason("kept_for", format!("{reserved}.")).hint(free),
    })
}

/// Returns the reason if all members that could claim the task were stopped.
fn stopped_members_reason(task: &Task, context: &TaskContext<'_>) -> Option<Reason> {
    let can_claim = |one: &&ClaimCandidate| one.as_candidate().suits(task);
    let fit: Vec<&ClaimCandidate> = context.candidates.iter().filter(can_claim).collect();
    if fit.is_empty() || fit.iter().any(|one| one.presence == Presence::Here) {
        return None;
    }
    let name = |one: &&ClaimCandidate| {
        let start = if one.presence == Presence::NextLaunch { " (starts at the next launch)" } else { "" };
        format!("{}{start}", one.name)
    };
    let names = one_line(&fit.iter().map(name).collect::<Vec<_>>().join(", "));
    let text = format!("Every teammate that could do it is stopped: {names}.");
    Some(reason("stopped", text).hint("to stop the team: `brigade stop`\nto start it again: `brigade up`"))
}

/// Returns the text and the hint for a blocker at the end of a chain.
fn root_reason(waiter: TaskId, id: TaskId, state: BlockerState, context: &TaskContext<'_>) -> (String, Option<String>) {
    let task = context.view.task(id);
    let subject = task.map(|task| format!(" \"{}\"", one_line(&task.subject))).unwrap_or_default();
    let open_request = task.and_then(|task| open_requests(task, context).first().copied());
    if let (BlockerState::Unfinished(TaskStatus::Pending | TaskStatus::InProgress), Some(request)) =
        (state, open_request)
    {
        let text = format!("{id}{subject}, whose {}", waiting_request(request));
        return (text, Some(commands_for(request)));
    }
    let (text, hint) = match (state, task) {
        (BlockerState::Missing, _) if context.quarantined_tasks.contains_key(&id) => {
            let task = &context.quarantined_tasks[&id];
            (format!("whose file {}", set_aside(task)), Some(restore_hint(id, &task.place)))
        }
        (BlockerState::Missing, _) => {
            let hint = format!("`brigade tasks update {} --not-after {}`", waiter.0, id.0);
            let hint = format!("restore its file\nor remove the dependency: {hint}");
            ("which is missing from the board".to_owned(), Some(hint))
        }
        (BlockerState::Invalid, _) => {
            (format!("whose file {} is invalid", id.file_name()), Some(format!("correct {}", id.file_name())))
        }
        (BlockerState::Unfinished(TaskStatus::Failed), _) => (
            "which failed".to_owned(),
            Some(format!("its reason: `brigade why {0}`\nto retry it: `brigade tasks retry {0}`", id.0)),
        ),
        (BlockerState::Unfinished(TaskStatus::InProgress), Some(task)) if task.is_foreign() => {
            ("which another program set to in progress".to_owned(), Some(format!("`brigade why {}`", id.0)))
        }
        (BlockerState::Unfinished(TaskStatus::InProgress), Some(task)) => {
            (format!("which {} is working on", one_line(task.owner.as_deref().unwrap_or("an unknown owner"))), None)
        }
        (BlockerState::Unfinished(_), Some(task)) => {
            let unfit = missing_capability(task, context)
                .map(|unfit| (format!("which no teammate can do: {}", unfit.text.trim_end_matches('.')), unfit.hint));
            let next = match task.attempt {
                _ if task.cap_in_force().is_some() => "which reached its cap of tokens".to_owned(),
                0 => "which has not started".to_owned(),
                last => format!("which waits for its attempt {}", last + 1),
            };
            unfit.unwrap_or((next, Some(format!("`brigade why {}`", id.0))))
        }
        (BlockerState::Unfinished(status), None) => (format!("which is {status}"), None),
    };
    (format!("{id}{subject}, {text}"), hint)
}

fn blocker_reasons(task: &Task, context: &TaskContext<'_>) -> Vec<Reason> {
    let unfinished = |id: TaskId| -> Vec<TaskId> {
        let task = context.view.task(id);
        task.map(|task| unfinished_blockers(task, context.view).map(|blocker| blocker.id).collect()).unwrap_or_default()
    };
    if let Some(cycle) = find_cycle(task.id, unfinished) {
        let names: Vec<String> = cycle.iter().chain(cycle.first()).map(ToString::to_string).collect();
        let text = format!("It waits for itself: {}.", names.join(" waits for "));
        let (waiter, blocker) = (cycle[0].0, cycle.get(1).unwrap_or(&cycle[0]).0);
        let hint = format!("remove one dependency: `brigade tasks update {waiter} --not-after {blocker}`");
        return vec![reason("cycle", text).hint(hint)];
    }
    // Each visited task, and the task it was visited from.
    let mut visited_from = HashMap::from([(task.id, task.id)]);
    let mut open = vec![task.id];
    let mut reasons = Vec::new();
    let mut more = 0_usize;
    while let Some(id) = open.pop() {
        let Some(at) = context.view.task(id) else { continue };
        let blockers: Vec<_> = unfinished_blockers(at, context.view).collect();
        for blocker in blockers.into_iter().rev() {
            if visited_from.contains_key(&blocker.id) {
                continue;
            }
            visited_from.insert(blocker.id, id);
            let is_pending = blocker.state == BlockerState::Unfinished(TaskStatus::Pending);
            if is_pending && !unfinished(blocker.id).is_empty() {
                open.push(blocker.id);
            } else if reasons.len() < CHAINS_MAX {
                let (text, hint) = root_reason(id, blocker.id, blocker.state, context);
                let through = through(task.id, id, &visited_from);
                reasons.push(Reason { kind: "blocked", text: format!("It waits for {through}{text}."), hint });
            } else {
                more += 1;
            }
        }
    }
    if more > 0 {
        reasons.push(reason("blocked", format!("It waits for {}.", count(more, "more task"))));
    }
    reasons
}

/// Returns the chain from `start` to `end`, as text that a blocker of `end` follows.
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

/// Returns false for an empty list: the members are not known then.
fn lacks_capable_member(task: &Task, candidates: &[ClaimCandidate]) -> bool {
    !candidates.is_empty()
        && !candidates.iter().any(|candidate| has_capability(&task.requires, &candidate.capabilities))
}

const NO_SCRIPT: &str = "has no `sh` block, and no member with a model may do it";

/// Returns true if the task is outside the scope of every eligible member: it has no script, and no member with a model may do it.
pub(super) fn lacks_script(task: &Task, candidates: &[ClaimCandidate]) -> bool {
    let mut eligible =
        candidates.iter().map(ClaimCandidate::as_candidate).filter(|one| one.is_eligible(task)).peekable();
    eligible.peek().is_some() && eligible.all(|one| !one.suits(task))
}

/// Returns the reason, in a few words, if no member could ever claim the task.
pub fn no_capable_member(task: &Task, candidates: &[ClaimCandidate]) -> Option<String> {
    let required = task.requires.join(" or ");
    if lacks_script(task, candidates) {
        return Some(NO_SCRIPT.to_owned());
    }
    let Some(owner) = task.owner.as_deref() else {
        return lacks_capable_member(task, candidates).then(|| format!("requires {required}, which no teammate has"));
    };
    match candidates.iter().find(|one| one.name == owner) {
        None if candidates.is_empty() => None,
        None => Some(format!("reserved for {owner}, who is not in the team")),
        Some(member) if !has_capability(&task.requires, &member.capabilities) => {
            Some(format!("reserved for {owner}, who does not have {required}"))
        }
        Some(_) => None,
    }
}

fn missing_capability(task: &Task, context: &TaskContext<'_>) -> Option<Reason> {
    if lacks_script(task, &context.candidates) {
        let hint = format!("to add a fenced `sh` block: `brigade tasks update {} --description TEXT`", task.id.0);
        return Some(reason("no_script", format!("It {NO_SCRIPT}.")).hint(hint));
    }
    let is_owner = |candidate: &ClaimCandidate| task.owner.as_ref() == Some(&candidate.name);
    if !lacks_capable_member(task, &context.candidates) || context.candidates.iter().any(is_owner) {
        return None;
    }
    let required = one_line(&task.requires.join(" or "));
    let have = context.candidates.iter().map(|one| format!("{} ({})", one.name, one.capabilities.join(", ")));
    let have = one_line(&have.collect::<Vec<_>>().join("; "));
    let command = format!("`brigade tasks update {} --requires \"\"`", task.id.0);
    let hint = format!("add the capability to a member in brigade.toml, or: {command}");
    Some(reason("nobody_fit", format!("It requires {required}, which no teammate has: {have}.")).hint(hint))
}

fn team_reason(team: &TeamCondition) -> Option<Reason> {
    if let Some(spent) = &team.spent_budget {
        let launch = if team.running.is_none() { "\nthen: `brigade up`" } else { "" };
        let hint = "raise the budget in brigade.toml, or reset the counters: `brigade cost --reset`";
        let hint = format!("{hint}\nthen: `brigade state continuous`{launch}");
        return Some(reason("budget_spent", format!("The team is paused: {spent}.")).hint(hint));
    }
    if team.running.is_none() {
        let text = "No team is running in this workspace.";
        return Some(reason("no_team", text).hint("`brigade up`, or `brigade run`"));
    }
    if let Some(silent) = silent_lead(team) {
        return Some(silent);
    }
    if let Some(shortage) = &team.disk_shortage {
        let text = format!("The team claims no tasks: {shortage}.");
        return Some(reason("no_room", text).hint("free disk space; the team then continues automatically"));
    }
    if team.desired == Some(Mode::Pause) {
        let text = "The team is paused and claims no tasks.";
        return Some(reason("paused", text).hint("`brigade state continuous`\n`brigade state run_once`"));
    }
    None
}

fn silent_lead(team: &TeamCondition) -> Option<Reason> {
    let (health, pid) = team.lead_health?;
    let text = format!("The team's process (pid {pid}) {}.", lead_status::message(health));
    Some(reason("silent", text).hint(lead_status::hint(health, pid)))
}

/// Returns the members that can claim a task without obstacles, and the number of tasks they claim before it.
fn ready_reason(task: &Task, context: &TaskContext<'_>) -> Option<Reason> {
    let claimable = |candidate: &ClaimCandidate, task: &Task| -> Option<ClaimObstacle> {
        find_claim_obstacle(task, &candidate.as_candidate(), context.view, context.now)
    };
    let present = context.candidates.iter().filter(|one| one.presence == Presence::Here);
    let fit: Vec<&ClaimCandidate> = present.filter(|one| claimable(one, task).is_none()).collect();
    let waiting = |one: &&ClaimCandidate| Some(format!("{} waits for {}", one.name, one.waits_for.as_deref()?));
    let waiting: Vec<String> = fit.iter().filter_map(waiting).collect();
    if !fit.is_empty() && waiting.len() == fit.len() {
        let text = format!("Every teammate that could do it is waiting: {}.", one_line(&waiting.join("; ")));
        return Some(reason("awaits_others", text));
    }
    let names = fit.iter().map(|candidate| candidate.name.as_str()).collect::<Vec<_>>().join(" or ");
    let before = context.view.tasks.values().filter(|other| {
        let goes_first = (std::cmp::Reverse(other.priority), other.id) < (std::cmp::Reverse(task.priority), task.id);
        goes_first && fit.iter().any(|candidate| claimable(candidate, other).is_none())
    });
    let text = match (before.count(), names.is_empty()) {
        (_, true) => "It is ready to be claimed.".to_owned(),
        (0, false) => format!("It is ready: {names} claims it when free."),
        (tasks, false) => format!("It is ready: {names} claims it after {}.", count(tasks, "other task")),
    };
    Some(reason("claimable", text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, HashSet};
    use std::sync::Arc;

    use crate::domain::task::{Claim, TaskResult};
    use crate::domain::team::approval::{RequestKind, ReviewSubject};
    use crate::domain::team::pending_questions::Question;
    use crate::domain::time::UnixMs;
    use crate::ports::{BoardView, InvalidEntry, QuarantinedTask};

    fn task(id: u64, status: TaskStatus, blocked_by: &[u64]) -> Task {
        let mut task = Task::new(TaskId(id), format!("Task {id}"));
        task.status = status;
        task.blocked_by = blocked_by.iter().copied().map(TaskId).collect();
        task
    }

    fn explained(tasks: Vec<Task>, id: u64, change: impl FnOnce(&mut TaskContext<'_>)) -> String {
        let view = BoardView {
            tasks: tasks.into_iter().map(|task| (task.id, Arc::new(task))).collect(),
            invalid: vec![InvalidEntry {
                id: Some(TaskId(8)),
                name: "task_8.json".into(),
                reason: "not a JSON object".into(),
            }],
            ..BoardView::default()
        };
        let mut context = TaskContext {
            candidates: vec![
                ClaimCandidate::of("alice", vec!["coder".into()]),
                ClaimCandidate::of("bob", vec!["tester".into()]),
            ],
            quarantined_tasks: BTreeMap::from([(
                TaskId(6),
                QuarantinedTask {
                    place: ".tasks/.spoiled/task_6.json".to_owned(),
                    reason: Some(
                        "field `priority`: invalid type: string \"high\", expected i64 at line 4 column 17".to_owned(),
                    ),
                },
            )]),
            team: TeamCondition {
                running: Some("team".into()),
                desired: Some(Mode::Continuous),
                ..TeamCondition::default()
            },
            live_workers: Some(HashSet::from(["w1".to_owned()])),
            ..TaskContext::of(&view, UnixMs(100_000))
        };
        change(&mut context);
        let lines: Vec<String> = explain(TaskId(id), &context)
            .into_iter()
            .map(|reason| format!("{}: {} [{}]", reason.kind, reason.text, reason.hint.unwrap_or_default()))
            .collect();
        lines.join("\n")
    }

    use TaskStatus::{Completed, Failed, InProgress, Pending};

    /// Task 1, which alice has claimed.
    fn claimed(worker: &str, expires: Option<i64>) -> Task {
        let mut task = task(1, InProgress, &[]);
        task.owner = Some("alice".into());
        task.attempt = 2;
        task.claim = Some(Claim { worker: worker.into(), at: UnixMs(40_000), expires: expires.map(UnixMs) });
        task
    }

    /// A request of alice about the second attempt at task 1.
    fn request(kind: RequestKind, id: &str, to: &str) -> Request {
        let about = ReviewSubject { task: TaskId(1), attempt: 2, claimed_at: UnixMs(0), failures: 0, commit: None };
        Request { about: Some(about), ..Request::new(id, kind, "alice", to, UnixMs(1)) }
    }

    #[test]
    fn why_lists_every_obstacle() {
        let limited = || Some("its model, limited until 22:39:14 UTC: no more".to_owned());
        let mut tried = task(1, Pending, &[]);
        (tried.attempt, tried.result) = (2, Some(TaskResult::new("the team stopped", "")));
        let mut failed_task = task(1, Failed, &[]);
        failed_task.failures = 3;
        failed_task.verify = Some("make test".to_owned());
        failed_task.result = Some(TaskResult::new("exit \x1b[2J 1", ""));
        let mut conflicting = failed_task.clone();
        conflicting.result = Some(TaskResult::new("it conflicts:\n<<<<<<< a\n", ""));
        conflicting.worktree = Some(".worktrees/crew-task-1".into());
        let mut reserved = task(1, Pending, &[]);
        reserved.owner = Some("zoe".into());
        reserved.not_before = Some(UnixMs(104_000));
        reserved.failures = 1;
        let mut special = task(1, Pending, &[]);
        special.requires = vec!["gpu".into(), "cuda".into()];
        let mut reserved_and_unfit = task(1, Pending, &[]);
        reserved_and_unfit.owner = Some("alice".into());
        reserved_and_unfit.requires = vec!["tester".into()];
        let mut foreign = task(1, InProgress, &[]);
        foreign.owner = Some("carol".into());
        let chain = vec![
            task(1, Pending, &[2, 9, 8]),
            task(2, Pending, &[3, 4]),
            task(3, Failed, &[]),
            claimed_as(4, claimed("w1", None)),
            task(5, Completed, &[]),
        ];
        let cycle_of_three = vec![task(1, Pending, &[2]), task(2, Pending, &[3]), task(3, Pending, &[1])];
        let ready = || vec![task(1, Pending, &[]), task(2, Pending, &[])];
        let plan = request(RequestKind::PlanApproval, "25cc9d8b", HUMAN);
        let approvals = vec![request(RequestKind::Review, "76a98d4b", "bob"), plan];
        let all = [
            explained(vec![claimed("w1", None)], 1, |context| context.approvals.clone_from(&approvals)),
            explained(ready(), 1, |context| (context.approvals, context.team.running) = (approvals.clone(), None)),
            explained(vec![], 7, |_| {}),
            explained(vec![], 8, |_| {}),
            explained(vec![task(1, Completed, &[])], 1, |_| {}),
            explained(vec![failed_task], 1, |_| {}),
            explained(vec![foreign], 1, |_| {}),
            explained(vec![claimed("w1", None)], 1, |_| {}),
            explained(vec![claimed("w0", None)], 1, |_| {}),
            explained(vec![claimed("lease:alice", Some(90_000))], 1, |_| {}),
            explained(vec![claimed("lease:alice", Some(190_000))], 1, |_| {}),
            explained(vec![reserved], 1, |_| {}),
            explained(vec![special], 1, |context| context.team.running = None),
            explained(chain, 1, |_| {}),
            explained(cycle_of_three, 1, |context| context.team.desired = Some(Mode::Pause)),
            explained(ready(), 1, |_| {}),
            explained(ready(), 2, |_| {}),
            explained(ready(), 2, |context| context.candidates.clear()),
            explained(ready(), 1, |context| {
                context.candidates.iter_mut().for_each(|one| one.presence = Presence::Stopped);
                context.candidates[1].presence = Presence::NextLaunch;
            }),
            explained(ready(), 1, |context| context.candidates[0].presence = Presence::Stopped),
            explained(vec![reserved_and_unfit], 1, |_| {}),
            explained(vec![task(1, Pending, &[6])], 1, |_| {}),
            explained(vec![], 6, |_| {}),
            explained(vec![conflicting], 1, |_| {}),
            explained(vec![claimed("w1", None)], 1, |context| context.candidates[0].waits_for = limited()),
            explained(vec![tried], 1, |context| {
                context.candidates.iter_mut().for_each(|one| one.waits_for = limited());
            }),
            explained(ready(), 1, |context| context.team.disk_shortage = Some("1 KiB free, 4 MiB needed".to_owned())),
        ];
        insta::assert_snapshot!(all.join("\n---\n"));
    }

    #[test]
    fn why_shows_question_to_person_and_its_answer() {
        let asked = |from: &str| {
            explained(vec![claimed("w1", None)], 1, |context| {
                context.questions = vec![Question { id: None, from: from.into(), text: "Red or blue?".into() }];
            })
        };
        let shown = asked("alice");
        assert!(
            shown.starts_with("asks_you: alice asks you: Red or blue? [to answer: `brigade send alice TEXT`]\nheld: ")
        );
        assert!(!asked("bob").contains("asks you"), "bob does not hold the task");
    }

    #[test]
    fn why_names_review_that_blocker_waits_for() {
        let tasks = vec![claimed("w1", None), task(2, Pending, &[1])];
        let text = explained(tasks, 2, |context| {
            context.approvals = vec![request(RequestKind::Review, "76a98d4b", HUMAN)];
        });
        assert!(text.contains(", whose review 76a98d4b waits for you."), "{text}");
        assert!(text.contains("`brigade review approve 76a98d4b`") && !text.contains("working"), "{text}");
    }

    #[test]
    fn why_names_command_that_raises_cap() {
        let mut dear = task(7, TaskStatus::Pending, &[]);
        dear.attempt = 1;
        dear.cap_reached = Some(CapReached { tokens_max: 50_000, tokens_needed: 61_000 });
        let why = explained(vec![dear.clone()], 7, |_| ());
        assert!(
            why.contains("Its attempts reached its cap of 50,000 tokens: with the next request they could use 61,000.")
        );
        assert!(why.contains("to raise its cap: `brigade tasks update 7 --tokens-max 122000`"), "{why}");
        assert!(why.contains("or raise `task_tokens_max` in brigade.toml, and launch again"), "{why}");
        dear.tokens_max = Some(50_000);
        let why = explained(vec![dear.clone()], 7, |_| ());
        assert!(why.contains("--tokens-max 122000") && !why.contains("brigade.toml"), "{why}");
        let why = explained(vec![dear.clone(), task(8, TaskStatus::Pending, &[7])], 8, |_| ());
        assert!(why.contains("which reached its cap of tokens"), "{why}");
        dear.tokens_max = Some(60_000);
        let why = explained(vec![dear], 7, |_| ());
        assert!(!why.contains("its cap"), "{why}");
    }

    #[test]
    fn why_says_that_blocker_waits_for_next_attempt() {
        let mut failed_once = task(2, Pending, &[]);
        (failed_once.attempt, failed_once.failures, failed_once.not_before) = (1, 1, Some(UnixMs(104_000)));
        let text = explained(vec![task(1, Pending, &[2]), failed_once], 1, |_| {});
        assert!(
            text.contains("It waits for #2 \"Task 2\", which waits for its attempt 2. [`brigade why 2`]"),
            "{text}"
        );
    }

    fn claimed_as(id: u64, task: Task) -> Task {
        Task { id: TaskId(id), ..task }
    }

    #[test]
    fn why_counts_further_blockers() {
        let mut tasks: Vec<Task> = (2..40).map(|id| task(id, Pending, &[])).collect();
        tasks.push(task(1, Pending, &(2..40).collect::<Vec<_>>()));
        let text = explained(tasks, 1, |_| {});
        assert_eq!(text.lines().count(), CHAINS_MAX + 1);
        assert!(text.contains("It waits for 30 more tasks."), "{text}");
    }
}
