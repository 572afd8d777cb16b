//! The reasons for the state of a task as sentences, each with a hint.

mod completed;

use std::fmt::Write as _;

use serde::Serialize;

pub use completed::worktree_location;

use super::commands::{Commands, Hint, hint};
use super::cost::grouped;
use super::lead_status;
use super::lines::ago;
use crate::api::next::EditForm;
use crate::api::refusal::restore_hint;
use crate::api::team::LeadHealth;
use crate::api::why::{
    BlockingCause, BlockingTask, ClaimReason, Holder, MemberCapabilities, MemberWait, NoClaimant, Reason,
    StoppedMember, TeamReason,
};
use crate::api::{Launch, Next, OrderForm, Question};
use crate::domain::task::TaskId;
use crate::domain::task::failure_summary::summary_of;
use crate::domain::team::approval::Request;
use crate::domain::team::budget::CapReached;
use crate::domain::team::state::Mode;
use crate::domain::text::units::count;
use crate::domain::text::{first_line, one_line};
use crate::domain::time::UnixMs;
use crate::ports::QuarantinedTask;

/// A reason as people read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReasonText {
    /// The word for programs.
    pub kind: String,
    /// The sentence for people.
    pub text: String,
    /// The commands to run, one on each line.
    pub hint: Option<String>,
    /// The same, as data.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<Next>,
}

/// A sentence, and the commands to run, one on each line.
type Sentence = (String, Option<Hint>);

/// A sentence with a hint.
fn hinted(text: impl Into<String>, hint: impl Into<Hint>) -> Sentence {
    (text.into(), Some(hint.into()))
}

/// Ends a sentence. A text that was cut ends with `…` already.
fn sentence(text: String) -> String {
    if text.ends_with(['…', '.']) { text } else { text + "." }
}

/// Returns the reasons for the state of task `id` as people read them.
pub fn render(id: TaskId, reasons: &[Reason], now: UnixMs, commands: &Commands) -> Vec<ReasonText> {
    let render = |reason: &Reason| {
        let (text, hint) = reason_sentence(id, reason, now);
        let next = hint.as_ref().map(Hint::steps).unwrap_or_default();
        ReasonText { kind: reason.kind(), text, hint: hint.map(|hint| commands.text(&hint)), next }
    };
    reasons.iter().map(render).collect()
}

fn reason_sentence(id: TaskId, reason: &Reason, now: UnixMs) -> Sentence {
    match reason {
        Reason::UnknownStatus { status, line } => unknown_status(id, status, *line),
        Reason::Invalid { file, reason } => {
            hinted(format!("Its file {file} is invalid: {}.", one_line(reason)), "correct the file, or remove it")
        }
        Reason::Quarantined(task) => {
            hinted(format!("Its file {}.", quarantine_text(task)), restore_hint(id, &task.place))
        }
        Reason::Missing => hinted(format!("There is no task {id} on the board."), Question::Tasks),
        Reason::Failed { failures, summary, worktree, has_verify } => {
            let text = failure(*failures, summary.as_deref());
            hinted(text, failure_hint(id, worktree.as_deref(), *has_verify))
        }
        Reason::AwaitsApproval { request } => {
            hinted(format!("Its {}.", waiting_request(request)), commands_for(request))
        }
        Reason::AsksYou { from, question, is_over } => asks_you(id, from, question, *is_over),
        Reason::BacksOff { until, failures } => {
            let failures = count(*failures as usize, "failure");
            (format!("It is retried {}, after {failures}.", ago(*until, now)), None)
        }
        Reason::AtCap { cap, is_own } => at_cap(id, *cap, *is_own),
        Reason::LastAttempt { attempt, summary } => {
            (sentence(format!("Attempt {attempt} ended: {}", summary_of(summary))), None)
        }
        Reason::ReservedFor { owner } => hinted(format!("It is reserved for {}.", one_line(owner)), free_hint(id)),
        Reason::MembersStopped { members } => members_stopped(members),
        Reason::Cycle { tasks } => cycle(tasks),
        Reason::Blocked(blocking) => blocked(blocking),
        Reason::MoreBlockers { more } => (format!("It waits for {}.", count(*more, "more task")), None),
        Reason::AwaitsOthers { members } => (awaits_others(members), None),
        Reason::Claimable { members, tasks_before } => (claimable(members, *tasks_before), None),
        Reason::NoClaimant(reason) => no_claimant(id, reason),
        Reason::Claim(reason) => claim(id, reason, now),
        Reason::Team(reason) => team(reason),
        Reason::Completion(fact) => completed::fact_sentence(id, fact, now),
    }
}

fn unknown_status(id: TaskId, status: &str, line: Option<usize>) -> Sentence {
    let word = one_line(status);
    let text = format!("Its status `{word}` is another program's word. Brigade leaves it as it is.");
    let line = line.map(|line| format!("line {line} of ")).unwrap_or_default();
    let file = id.file_name();
    hinted(text, format!("for a team to do it: set `\"status\": \"pending\"` in {line}.tasks/{file}"))
}

/// Returns the end of a sentence about the file of a quarantined task.
pub fn quarantine_text(task: &QuarantinedTask) -> String {
    one_line(&task.to_string())
}

fn failure(failures: u32, summary: Option<&str>) -> String {
    let why = summary.map(|summary| format!(": {}", summary_of(summary))).unwrap_or_default();
    let times = if failures > 1 { format!(" {failures} times") } else { String::new() };
    sentence(format!("It failed{times}{why}"))
}

/// The order that changes a task.
fn update(task: TaskId, change: EditForm) -> OrderForm {
    OrderForm::Update { task, change: Some(change) }
}

fn retry(task: TaskId) -> OrderForm {
    OrderForm::Retry { tasks: vec![task] }
}

fn failure_hint(id: TaskId, worktree: Option<&str>, has_verify: bool) -> Hint {
    let mut hint = hint!["to change it: ", update(id, EditForm::Description)];
    if has_verify {
        hint += hint!["\nto change its verify command: ", update(id, EditForm::Verify)];
    }
    hint += hint!["\nto retry it: ", retry(id)];
    hint += hint!["\nits full reason: ", Question::Task { task: id }];
    hint += hint!["\nits events: ", Question::Log { task: Some(id) }];
    if let Some(folder) = worktree {
        hint += format!("\nits work: {}", worktree_location(folder));
    }
    hint
}

fn waiting_request(request: &Request) -> String {
    let responder = super::requests::responder(request);
    format!("{} {} waits for {}", request.kind.noun(), one_line(&request.id), one_line(responder))
}

/// Returns the commands that answer the request, one on each line.
fn commands_for(request: &Request) -> Hint {
    let [show, approve, reject] = crate::api::request::steps(request, None);
    hint![show, "\n", approve, "\n", reject]
}

fn asks_you(id: TaskId, from: &str, question: &str, is_over: bool) -> Sentence {
    let hint = if is_over {
        let describe = update(id, EditForm::Description);
        hint!["to answer: add it to the description with ", describe, ", then ", retry(id)]
    } else {
        hint!["to answer: ", OrderForm::Send { to: Some(from.to_owned()) }]
    };
    hinted(format!("{} asks you: {}", one_line(from), first_line(question)), hint)
}

/// Returns a name for a sentence.
fn owner_name(owner: Option<&String>) -> String {
    one_line(owner.map_or("an unknown owner", String::as_str))
}

fn claim(id: TaskId, reason: &ClaimReason, now: UnixMs) -> Sentence {
    let release = hint!["to release it: ", OrderForm::Release { tasks: vec![id], force: true }];
    let since = |holder: &Holder| (owner_name(holder.owner.as_ref()), ago(holder.claimed_at, now));
    match reason {
        ClaimReason::Foreign { owner } => {
            let owner = owner_name(owner.as_ref());
            let text = format!(
                "Another program set it to in progress for {owner}. Brigade does not wait for it or reclaim it."
            );
            hinted(text, release)
        }
        ClaimReason::LeaseOver(lease) | ClaimReason::Leased(lease) => {
            let (owner, since) = since(&lease.holder);
            let end = ago(lease.ends_at, now);
            let lease_text = match reason {
                ClaimReason::LeaseOver(_) => format!("its lease expired {end}, and the next poll reclaims it"),
                _ => format!("its lease ends {end}"),
            };
            let attempt = lease.holder.attempt;
            hinted(format!("{owner} claimed it {since} by command (attempt {attempt}); {lease_text}."), release)
        }
        ClaimReason::WorkerGone(holder) => {
            let (owner, since) = since(holder);
            let text = format!("{owner} claimed it {since}, but the process of {owner} is gone.");
            hinted(text, hint!["to reclaim it: ", Launch::Up { team: None }, "\n", release])
        }
        ClaimReason::Held { holder, waits_for, awaits_approval } => {
            let (owner, since) = since(holder);
            let claimed = format!("attempt {}, claimed {since}", holder.attempt);
            let text = match waits_for {
                _ if *awaits_approval => format!("{owner} holds it ({claimed})."),
                Some(cause) => {
                    format!("{owner} holds it ({claimed}) and waits for {}.", one_line(&cause.to_string()))
                }
                None => format!("{owner} is working on it ({claimed})."),
            };
            (text, None)
        }
    }
}

fn at_cap(id: TaskId, cap: CapReached, is_own: bool) -> Sentence {
    let (max, needed) = (grouped(cap.tokens_max), grouped(cap.tokens_needed));
    let text = format!("Its attempts reached its cap of {max} tokens: with the next request they could use {needed}.");
    let suggested = cap.suggested_tokens_max();
    let of_team = "\nor raise `task_tokens_max` in brigade.toml, and launch again";
    let raise = update(id, EditForm::TokensMax(suggested));
    hinted(text, hint!["to raise its cap: ", raise, if is_own { "" } else { of_team }])
}

/// Returns the hint that ends the reservation of a task.
fn free_hint(id: TaskId) -> Hint {
    hint!["to let any teammate claim it: ", update(id, EditForm::AnyOwner)]
}

fn members_stopped(members: &[StoppedMember]) -> Sentence {
    let name = |one: &StoppedMember| {
        let start = if one.starts_at_next_launch { " (starts at the next launch)" } else { "" };
        format!("{}{start}", one.name)
    };
    let names = one_line(&members.iter().map(name).collect::<Vec<_>>().join(", "));
    let text = format!("Every teammate that could do it is stopped: {names}.");
    let (stop, start) = (OrderForm::Stop { now: false }, Launch::Up { team: None });
    hinted(text, hint!["to stop the team: ", stop, "\nto start it again: ", start])
}

fn cycle(tasks: &[TaskId]) -> Sentence {
    let names: Vec<String> = tasks.iter().chain(tasks.first()).map(ToString::to_string).collect();
    let text = format!("It waits for itself: {}.", names.join(" waits for "));
    let (waiter, blocker) = (tasks[0], *tasks.get(1).unwrap_or(&tasks[0]));
    hinted(text, hint!["remove one dependency: ", update(waiter, EditForm::NotAfter(blocker))])
}

fn blocked(blocking: &BlockingTask) -> Sentence {
    let mut text = "It waits for ".to_owned();
    text.extend(blocking.through.iter().map(|id| format!("{id}, which waits for ")));
    if blocking.through_more > 0 {
        let more = count(blocking.through_more, "more task");
        let _ = write!(text, "{more}, the last of which waits for ");
    }
    let subject = blocking.subject.as_ref().map(|subject| format!(" \"{}\"", one_line(subject))).unwrap_or_default();
    let (cause, hint) = blocking_cause(blocking);
    (format!("{text}{}{subject}, {cause}.", blocking.task), hint)
}

/// Returns the end of a sentence about a task that others wait for.
fn blocking_cause(blocking: &BlockingTask) -> Sentence {
    let (id, file) = (blocking.task, blocking.task.file_name());
    let why = Question::Why { task: Some(id) };
    match &blocking.cause {
        BlockingCause::AwaitsApproval { request } => {
            hinted(format!("whose {}", waiting_request(request)), commands_for(request))
        }
        BlockingCause::Quarantined(task) => {
            hinted(format!("whose file {}", quarantine_text(task)), restore_hint(id, &task.place))
        }
        BlockingCause::Missing => {
            let remove = update(blocking.waiter, EditForm::NotAfter(id));
            hinted("which is missing from the board", hint!["restore its file\nor remove the dependency: ", remove])
        }
        BlockingCause::Invalid => hinted(format!("whose file {file} is invalid"), format!("correct {file}")),
        BlockingCause::Failed => hinted("which failed", hint!["its reason: ", why, "\nto retry it: ", retry(id)]),
        BlockingCause::Foreign => hinted("which another program set to in progress", why),
        BlockingCause::Held { owner } => (format!("which {} is working on", owner_name(owner.as_ref())), None),
        BlockingCause::NoClaimant { reason } => {
            let (text, hint) = no_claimant(blocking.task, reason);
            (format!("which no teammate can do: {}", text.trim_end_matches('.')), hint)
        }
        BlockingCause::AtCap => hinted("which reached its cap of tokens", why),
        BlockingCause::NotStarted => hinted("which has not started", why),
        BlockingCause::NextAttempt { attempt } => hinted(format!("which waits for its attempt {attempt}"), why),
        BlockingCause::Other { status } => (format!("which is {status}"), None),
    }
}

const NO_SCRIPT: &str = "has no `sh` block, and no member with a model may do it";

/// Returns the reason why no member can ever claim a task, in a few words.
pub fn no_claimant_note(reason: &NoClaimant) -> String {
    match reason {
        NoClaimant::NoScript => NO_SCRIPT.to_owned(),
        NoClaimant::NoCapability { requires, .. } => {
            format!("requires {}, which no teammate has", requires.join(" or "))
        }
        NoClaimant::UnknownOwner { owner } => format!("reserved for {owner}, who is not in the team"),
        NoClaimant::UnfitOwner { owner, requires } => {
            format!("reserved for {owner}, who does not have {}", requires.join(" or "))
        }
    }
}

fn no_claimant(id: TaskId, reason: &NoClaimant) -> Sentence {
    match reason {
        NoClaimant::NoScript => {
            hinted(format!("It {NO_SCRIPT}."), hint!["to add a fenced `sh` block: ", update(id, EditForm::Description)])
        }
        NoClaimant::NoCapability { requires, members } => {
            let required = one_line(&requires.join(" or "));
            let have = |one: &MemberCapabilities| format!("{} ({})", one.name, one.capabilities.join(", "));
            let have = one_line(&members.iter().map(have).collect::<Vec<_>>().join("; "));
            let drop = update(id, EditForm::NoRequirement);
            let hint = hint!["add the capability to a member in brigade.toml, or: ", drop];
            hinted(format!("It requires {required}, which no teammate has: {have}."), hint)
        }
        NoClaimant::UnknownOwner { owner } => {
            hinted(format!("It is reserved for {}, who is not in the team.", one_line(owner)), free_hint(id))
        }
        NoClaimant::UnfitOwner { owner, requires } => {
            let (owner, required) = (one_line(owner), one_line(&requires.join(" or ")));
            let text = format!("It is reserved for {owner}, who does not have the required capability {required}.");
            let drop = update(id, EditForm::NoRequirement);
            hinted(text, hint![free_hint(id), "\nto drop the requirement: ", drop])
        }
    }
}

fn team(reason: &TeamReason) -> Sentence {
    match reason {
        TeamReason::BudgetSpent { note, is_running } => {
            let mut hint = hint!["raise the budget in brigade.toml, or reset the counters: ", OrderForm::ResetCost];
            hint += hint!["\nthen: ", OrderForm::SetMode { mode: Mode::Continuous }];
            if !is_running {
                hint += hint!["\nthen: ", Launch::Up { team: None }];
            }
            hinted(format!("The team is paused: {}.", one_line(note)), hint)
        }
        TeamReason::NoTeam => {
            let hint = hint![Launch::Up { team: None }, ", or ", Launch::Run { team: None }];
            hinted("No team is running in this workspace.", hint)
        }
        TeamReason::Silent { health, pid } => silent_lead(*health, *pid),
        TeamReason::DiskShortage { shortage } => hinted(
            format!("The team claims no tasks: {shortage}."),
            "free disk space; the team then continues automatically",
        ),
        TeamReason::Paused => {
            let set = |mode| OrderForm::SetMode { mode };
            let hint = hint![set(Mode::Continuous), "\n", set(Mode::RunOnce)];
            hinted("The team is paused and claims no tasks.", hint)
        }
    }
}

fn silent_lead(health: LeadHealth, pid: u32) -> Sentence {
    let text = format!("The team's process (pid {pid}) {}.", lead_status::message(health));
    hinted(text, lead_status::hint(health, pid))
}

fn awaits_others(members: &[MemberWait]) -> String {
    let wait = |one: &MemberWait| format!("{} waits for {}", one.name, one.waits_for);
    let waits: Vec<String> = members.iter().map(wait).collect();
    format!("Every teammate that could do it is waiting: {}.", one_line(&waits.join("; ")))
}

fn claimable(members: &[String], tasks_before: usize) -> String {
    let names = members.join(" or ");
    match tasks_before {
        _ if members.is_empty() => "It is ready to be claimed.".to_owned(),
        0 => format!("It is ready: {names} claims it when free."),
        tasks => format!("It is ready: {names} claims it after {}.", count(tasks, "other task")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, HashSet};
    use std::sync::Arc;

    use crate::api::task::{ClaimCandidate, Presence, TaskContext, TeamCondition};
    use crate::api::why::{CHAINS_MAX, explain};
    use crate::domain::task::{Claim, Task, TaskResult, TaskStatus};
    use crate::domain::team::approval::{RequestKind, ReviewSubject};
    use crate::domain::team::name::HUMAN;
    use crate::domain::team::pending_questions::Question;
    use crate::domain::team::state::Mode;
    use crate::domain::team::waiting_for::WaitingFor;
    use crate::ports::{BoardView, InvalidEntry};

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
        let reasons = explain(TaskId(id), &context);
        let lines: Vec<String> = render(TaskId(id), &reasons, context.now, &Commands::default())
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
        let limited = || Some(WaitingFor::Other("its model, limited until 22:39:14 UTC: no more".to_owned()));
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
