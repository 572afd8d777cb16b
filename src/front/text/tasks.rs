//! Views of the board: a table of tasks, and one task in full.

use std::borrow::Cow;
use std::fmt::Write as _;

use anstyle::Style;

use super::commands::{Hint, hint};
use super::cost::grouped;
use super::evidence::caveat_sentence;
use super::lines::{ago, indented};
use super::requests;
use super::style::{BAD, BOLD, BUSY, DIM, GOOD, PLAIN, WARN, paint, warning};
use super::table::{Cell, Table};
use super::why::no_claimant_note;
use crate::api::Question;
use crate::api::task::{ClaimCandidate, TaskContext};
use crate::api::why::{lacks_script, no_claimant};
use crate::domain::task::dependencies::{self, Blocker, BlockerState, unfinished_blockers};
use crate::domain::task::evidence::{Caveat, joined};
use crate::domain::task::failure_summary::summary_of;
use crate::domain::task::transition::Action;
use crate::domain::task::{Task, TaskId, TaskResult, TaskStatus};
use crate::domain::team::approval::Request;
use crate::domain::text::units::{count, join_up_to};
use crate::domain::text::{first_line, one_line, printable};
use crate::domain::time::UnixMs;
use crate::ports::{BoardView, InvalidEntry};

/// Blockers that are named in a row; the rest are counted.
const BLOCKERS_NAMED_MAX: usize = 4;
/// Invalid files that get a warning each; the rest are counted.
const INVALID_FILES_NAMED_MAX: usize = 10;

pub fn list<'a>(tasks: impl Iterator<Item = &'a Task>, context: &TaskContext<'_>, columns: usize) -> String {
    let mut table = Table::new(&["ID", "STATUS", "OWNER", "SUBJECT", "NOTE"])
        .numbers(&["ID"])
        .flexible(&["OWNER", "SUBJECT", "NOTE"])
        .optional(&["OWNER", "NOTE"]);
    for task in tasks {
        let blockers: Vec<Blocker> = unfinished_blockers(task, context.view).collect();
        let (status, style) = status(task, &blockers);
        table.row(vec![
            Cell::new(&task.id.0.to_string(), PLAIN),
            Cell::new(&status, style),
            Cell::new(holder(task).unwrap_or_default(), PLAIN),
            Cell::new(&task.subject, if task.status == TaskStatus::Completed { DIM } else { PLAIN }),
            match task.status {
                TaskStatus::Failed => Cell::reason(&note(task, &blockers, context), DIM),
                _ => Cell::new(&note(task, &blockers, context), DIM),
            },
        ]);
    }
    table.render(columns)
}

/// Returns the status as shown: a pending task with unfinished blockers is `blocked`.
fn status<'a>(task: &'a Task, blockers: &[Blocker]) -> (Cow<'a, str>, Style) {
    let style = match task.status {
        TaskStatus::Pending if !blockers.is_empty() => return (Cow::Borrowed("blocked"), DIM),
        TaskStatus::Pending => PLAIN,
        TaskStatus::InProgress => BUSY,
        TaskStatus::Completed if caveat(task).is_some() => WARN,
        TaskStatus::Completed => GOOD,
        TaskStatus::Failed => BAD,
        TaskStatus::Unknown => WARN,
    };
    (task.status_word(), style)
}

/// Returns the weakness in the evidence of a completed task.
fn caveat(task: &Task) -> Option<Caveat> {
    task.completion()?.caveat()
}

fn note(task: &Task, blockers: &[Blocker], context: &TaskContext<'_>) -> String {
    let now = context.now;
    let approvals = context.open_requests(task.id).map(requests::waits_for);
    let mut parts = Vec::new();
    match task.status {
        TaskStatus::Pending => {
            parts.extend(approvals);
            if lacks_script(task, &context.candidates) {
                parts.extend(waits(task, blockers, now));
                parts.push("no `sh` block".to_owned());
            } else {
                parts.extend(obstacles(task, blockers, &context.candidates, now));
            }
            if task.failures > 0 {
                parts.push(format!("failed {} of {}", task.failures, task.max_attempts));
            }
        }
        TaskStatus::Unknown => parts.push("a status of another program".to_owned()),
        TaskStatus::InProgress if task.is_foreign() => parts.push("set by another program".to_owned()),
        TaskStatus::InProgress => {
            parts.extend(approvals);
            parts.extend(
                context.open_question(task).map(|question| format!("asks you: {}", first_line(&question.text))),
            );
            if context.is_abandoned(task) {
                parts.push("its worker is gone".to_owned());
            }
            parts.extend(claim_note(task, now));
        }
        TaskStatus::Completed => {
            parts.extend(caveat(task).map(|caveat| caveat.to_string()));
            parts.extend(task.result.as_ref().map(|result| first_line(&result.summary)));
        }
        TaskStatus::Failed => parts.extend(task.result.as_ref().map(|result| summary_of(&result.summary))),
    }
    joined(parts)
}

/// Returns what the notes of a list leave out: why no member may do the tasks without a `sh` block.
pub fn no_script_note<'a>(mut tasks: impl Iterator<Item = &'a Task>, context: &TaskContext<'_>) -> Option<Hint> {
    let is_without = |task: &Task| task.status == TaskStatus::Pending && lacks_script(task, &context.candidates);
    let text = "no member with a model may do the tasks without a `sh` block; to change that: ";
    tasks.any(is_without).then(|| hint![text, Question::Why { task: None }])
}

/// Returns the obstacles of a pending task with these unfinished blockers, each in a few words.
pub fn obstacles(task: &Task, blockers: &[Blocker], candidates: &[ClaimCandidate], now: UnixMs) -> Vec<String> {
    let mut parts = waits(task, blockers, now);
    parts.extend(task.cap_in_force().map(|cap| format!("at its cap of {} tokens", grouped(cap.tokens_max))));
    let reserved = || task.owner.as_ref().map(|owner| format!("reserved for {owner}"));
    let required = || (!task.requires.is_empty()).then(|| format!("requires {}", task.requires.join(" or ")));
    let no_claimant = no_claimant(task, candidates).as_ref().map(no_claimant_note);
    parts.extend(no_claimant.or_else(reserved).or_else(required));
    parts
}

/// Returns the obstacles that end by themselves.
fn waits(task: &Task, blockers: &[Blocker], now: UnixMs) -> Vec<String> {
    let mut parts = Vec::new();
    if !blockers.is_empty() {
        parts.push(format!("waits for {}", join_up_to(blockers.iter().map(short_blocker), BLOCKERS_NAMED_MAX)));
    }
    if let Some(until) = task.not_before.filter(|until| *until > now) {
        parts.push(format!("retrying {}", ago(until, now)));
    }
    parts
}

fn claim_note(task: &Task, now: UnixMs) -> Option<String> {
    let claim = task.claim.as_ref()?;
    let lease = match claim.expires {
        Some(end) if end <= now => format!(", lease expired {}", ago(end, now)),
        Some(end) => format!(", lease ends {}", ago(end, now)),
        None => String::new(),
    };
    Some(format!("claimed {}{lease}", ago(claim.at, now)))
}

fn short_blocker(blocker: &Blocker) -> String {
    match blocker.state {
        BlockerState::Unfinished(TaskStatus::Failed) => format!("{} (failed)", blocker.id),
        BlockerState::Unfinished(_) => blocker.id.to_string(),
        BlockerState::Missing => format!("{} (missing)", blocker.id),
        BlockerState::Invalid => format!("{} (invalid file)", blocker.id),
    }
}

/// Returns `12 tasks: 3 completed, 1 in_progress, 2 blocked, 6 pending`.
pub fn counts_text(view: &BoardView) -> String {
    let counts = dependencies::count_tasks(view.tasks.values().map(AsRef::as_ref), view);
    let parts: Vec<String> = [
        (counts.completed, "completed"),
        (counts.in_progress, "in_progress"),
        (counts.failed, "failed"),
        (counts.blocked, "blocked"),
        (counts.pending, "pending"),
    ]
    .into_iter()
    .filter(|(tasks, _)| *tasks > 0)
    .map(|(tasks, word)| format!("{tasks} {word}"))
    .collect();
    let total = count(view.tasks.len(), "task");
    if parts.is_empty() { total } else { format!("{total}: {}", parts.join(", ")) }
}

/// The width of the labels of a card, with the space after them.
const LABEL_COLUMNS: usize = 12;

/// Returns one task in full, with its approval requests.
pub fn card(task: &Task, requests: &[&Request], context: &TaskContext<'_>, columns: usize) -> String {
    let now = context.now;
    let blockers: Vec<Blocker> = unfinished_blockers(task, context.view).collect();
    let (word, style) = status(task, &blockers);
    let mut out = format!("{} {}\n", paint(BOLD, &task.id.to_string()), paint(BOLD, &one_line(&task.subject)));
    // The result of a finished task has its own field.
    let is_over = matches!(task.status, TaskStatus::Completed | TaskStatus::Failed);
    let caveat = caveat(task).map(caveat_sentence).unwrap_or_default().to_owned();
    let _ = writeln!(out, "{} {}", label_cell("status"), paint(style, &one_line(&word)));
    for (label, text) in [
        ("owner", holder(task).unwrap_or_default()),
        ("note", &if is_over { caveat } else { note(task, &blockers, context) }),
        ("blocked by", &ids(&task.blocked_by)),
        ("blocks", &ids(&task.blocks)),
        ("priority", &if task.priority == 0 { String::new() } else { task.priority.to_string() }),
        ("requires", &task.requires.join(" or ")),
        ("verify", task.verify.as_deref().unwrap_or_default()),
        ("worktree", task.worktree.as_deref().unwrap_or_default()),
        ("tokens", &task.tokens_max.map(|max| format!("at most {}", grouped(max))).unwrap_or_default()),
        ("attempt", &attempts(task)),
    ] {
        field(&mut out, label, &one_line(text), columns);
    }
    if let Some(result) = &task.result {
        self::result(&mut out, result, columns);
    }
    for request in requests {
        field(&mut out, request.kind.noun(), &requests::summary(request, now), columns);
    }
    field(&mut out, "created", &created(task, now), columns);
    field(&mut out, "changed", &task.updated_at.map(|at| ago(at, now)).unwrap_or_default(), columns);
    if !task.description.trim().is_empty() {
        let _ = write!(out, "\n{}\n", printable(task.description.trim_end()));
    }
    out
}

/// A label of a card, right-aligned.
fn label_cell(label: &str) -> String {
    paint(DIM, &format!("{label:>11}"))
}

fn field(out: &mut String, label: &str, text: &str, columns: usize) {
    if !text.trim().is_empty() {
        let text = indented(text.trim(), columns.max(LABEL_COLUMNS + 20), LABEL_COLUMNS);
        let _ = writeln!(out, "{} {}", label_cell(label), text.trim());
    }
}

fn result(out: &mut String, result: &TaskResult, columns: usize) {
    field(out, "result", &result.summary, columns);
    field(out, "evidence", &result.evidence, columns);
    if let Some(run) = &result.verify {
        field(out, "verified by", &format!("{}: {}", one_line(&run.command), run.exit_text()), columns);
        field(out, "it printed", &run.output_tail, columns);
    }
    field(out, "commit", result.commit.as_deref().unwrap_or_default(), columns);
    if let Some(files) = &result.ignored_files {
        field(out, "moved here", &files.moved.to_string(), columns);
        field(out, "left there", &files.left.to_string(), columns);
        field(out, "not moved", &files.problems().collect::<Vec<_>>().join("\n"), columns);
    }
    field(out, "reviewed by", result.reviewed_by.as_deref().unwrap_or_default(), columns);
}

fn ids(ids: &[TaskId]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The teammate that has claimed the task. The note of a pending task says for whom it is reserved.
fn holder(task: &Task) -> Option<&str> {
    if task.status == TaskStatus::Pending { None } else { task.owner.as_deref() }
}

fn attempts(task: &Task) -> String {
    if task.attempt == 0 {
        return String::new();
    }
    match task.failures {
        0 => task.attempt.to_string(),
        failures => format!("{}; {failures} of {} failures", task.attempt, task.max_attempts),
    }
}

fn created(task: &Task, now: UnixMs) -> String {
    let by = task.created_by.as_deref().map(|by| format!("by {by}"));
    let at = task.created_at.map(|at| ago(at, now));
    [by, at].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Returns a warning for each of the first invalid files of the board, and one for the others.
pub fn invalid_file_warnings(view: &BoardView) -> Vec<Hint> {
    let named = view.invalid.iter().take(INVALID_FILES_NAMED_MAX);
    let mut warnings: Vec<Hint> = named.map(|invalid| invalid_file_warning(invalid).into()).collect();
    let others = view.invalid.len() - warnings.len();
    if others > 0 {
        let others = warning(&format!("{}: ", count(others, "more invalid file")));
        warnings.push(hint![others, Question::Doctor, " lists all"]);
    }
    warnings
}

/// Returns a warning for an invalid file.
pub fn invalid_file_warning(invalid: &InvalidEntry) -> String {
    let (name, reason) = (one_line(&invalid.name), one_line(&invalid.reason));
    warning(&format!("{name} is not a valid task: {reason}. Correct the file, or remove it"))
}

/// Returns the line about a changed task.
pub fn changed(task: &Task, action: Action, now: UnixMs) -> String {
    let rest = match (action, task.status, task.not_before) {
        (Action::Fail, TaskStatus::Failed, _) => "; no attempts are left".to_owned(),
        (Action::Fail, _, Some(until)) if until > now => format!("; retry {}", ago(until, now)),
        (Action::Complete, ..) => {
            let caveat = task.result.as_ref().and_then(TaskResult::caveat);
            caveat.map(|caveat| format!("; {caveat}")).unwrap_or_default()
        }
        _ => String::new(),
    };
    format!("{} {} {}{rest}\n", action.past_participle(), task.id, one_line(&task.subject))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Arc;

    use crate::domain::task::Claim;
    use crate::domain::task::claim_queue::TaskScope;
    use crate::domain::team::approval::{ApprovalAnswer, RequestKind, ReviewSubject};
    use crate::domain::team::pending_questions::Question;

    fn view() -> BoardView {
        let mut tasks = vec![Task::new(TaskId(1), "Count lines"), Task::new(TaskId(2), "日本語のタスク\x1b[2J")];
        tasks[0].status = TaskStatus::Failed;
        tasks[0].failures = 3;
        tasks[0].attempt = 3;
        tasks[0].owner = Some("alice".into());
        tasks[0].result = Some(TaskResult::new(
            "verify `test -s lines.csv` failed: exit status 1\none\nerror: it is empty",
            "attempt 3 failed:\n  left: 1\n right: 2",
        ));
        tasks[1].blocked_by = vec![TaskId(1), TaskId(9)];
        tasks[1].requires = vec!["coder".into()];
        tasks[1].description = "Do it.\n\n```sh\necho \x07\n```\n".into();
        let mut claimed = Task::new(TaskId(3), "Report");
        claimed.status = TaskStatus::InProgress;
        claimed.owner = Some("bob".into());
        claimed.attempt = 2;
        claimed.claim = Some(Claim { worker: "lease:bob".into(), at: UnixMs(40_000), expires: Some(UnixMs(90_000)) });
        let mut foreign = Task::new(TaskId(4), "Elsewhere");
        foreign.status = TaskStatus::InProgress;
        foreign.owner = Some("carol".into());
        let mut waiting = Task::new(TaskId(5), "Again");
        waiting.not_before = Some(UnixMs(64_000));
        waiting.failures = 1;
        let mut abandoned = Task::new(TaskId(6), "Left");
        abandoned.status = TaskStatus::InProgress;
        abandoned.owner = Some("dan".into());
        abandoned.attempt = 1;
        abandoned.claim = Some(Claim { worker: "w0".into(), at: UnixMs(40_000), expires: None });
        let tasks = tasks.into_iter().chain([claimed, foreign, waiting, abandoned]);
        BoardView {
            tasks: tasks.map(|task| (task.id, Arc::new(task))).collect(),
            invalid: vec![InvalidEntry {
                id: Some(TaskId(8)),
                name: "task_8.json".into(),
                reason: "not a JSON object".into(),
            }],
            ..BoardView::default()
        }
    }

    #[test]
    fn task_list_fits_wide_and_narrow_terminals() {
        let view = view();
        let tasks = || view.tasks.values().map(Arc::as_ref);
        let plain = |text: String| anstream::adapter::strip_str(&text).to_string();
        let live = HashSet::from(["w1".to_owned()]);
        let about_three =
            ReviewSubject { task: TaskId(3), attempt: 2, claimed_at: UnixMs(40_000), failures: 0, commit: None };
        let waiting = Request::new("4910291a", RequestKind::Review, "bob", "human", UnixMs(50_000));
        let waiting = Request { about: Some(about_three), ..waiting };
        let context = TaskContext {
            live_workers: Some(live),
            approvals: vec![waiting],
            ..TaskContext::of(&view, UnixMs(60_000))
        };
        let wide = plain(list(tasks(), &context, 120));
        let narrow = plain(list(tasks(), &context, 60));
        insta::assert_snapshot!(format!(
            "{wide}---\n{narrow}---\n{}\n{}",
            counts_text(&view),
            plain(invalid_file_warnings(&view).iter().map(Hint::to_string).collect::<Vec<_>>().join("\n"))
        ));
        let about =
            ReviewSubject { task: TaskId(1), attempt: 3, claimed_at: UnixMs(40_000), failures: 2, commit: None };
        let request = |kind, id: &str| Request {
            about: Some(about.clone()),
            ..Request::new(id, kind, "alice", "bob", UnixMs(50_000))
        };
        let text = "No tests.\nWrite some.".to_owned();
        let answer =
            ApprovalAnswer { approve: false, text, by: "bob".into(), at: UnixMs(55_000), for_run: false, digest: None };
        let answered = Request { answer: Some(answer), ..request(RequestKind::Review, "review-1") };
        let requests = [&answered, &request(RequestKind::PlanApproval, "plan-2")];
        let of = |task: &Task| requests[..if task.id == TaskId(1) { 2 } else { 0 }].to_vec();
        let cards: Vec<String> = tasks().map(|task| plain(card(task, &of(task), &context, 80))).collect();
        insta::assert_snapshot!(cards.join("---\n"));
    }

    #[test]
    fn invalid_files_after_ten_are_counted() {
        let entry = |id| InvalidEntry { id: None, name: format!("task_{id}.json"), reason: "it is empty".into() };
        let warnings = |files| {
            let invalid = (1..=files).map(entry).collect();
            invalid_file_warnings(&BoardView { invalid, ..BoardView::default() })
        };
        assert_eq!(warnings(10).len(), 10);
        let many = warnings(10_000);
        assert!(
            many.len() == 11 && many[10].to_string().ends_with("9990 more invalid files: `brigade doctor` lists all"),
            "{many:?}"
        );
    }

    #[test]
    fn missing_scripts_are_explained_once() {
        let tasks = [Task::new(TaskId(1), "One"), Task::new(TaskId(2), "Two")];
        let view = BoardView::default();
        let runbook = ClaimCandidate { scope: TaskScope::WithScript, ..ClaimCandidate::of("m1", vec!["m1".into()]) };
        let context = TaskContext { candidates: vec![runbook], ..TaskContext::of(&view, UnixMs(0)) };
        let rows = list(tasks.iter(), &context, 100);
        assert_eq!((rows.matches("no `sh` block").count(), rows.contains("model")), (2, false), "{rows}");
        assert!(no_script_note(tasks.iter(), &context).is_some_and(|note| note.to_string().contains("model")));
        assert_eq!(no_script_note(tasks.iter(), &TaskContext::of(&view, UnixMs(0))), None);
    }

    #[test]
    fn task_list_shows_question_of_holder() {
        let view = view();
        let from = |name: &str| Question { id: None, from: name.into(), text: "Which port?".into() };
        let context =
            TaskContext { questions: vec![from("bob"), from("ann")], ..TaskContext::of(&view, UnixMs(60_000)) };
        let shown = list(view.tasks.values().map(Arc::as_ref), &context, 120);
        let rows: Vec<&str> = shown.lines().filter(|row| row.contains("asks you: Which port?")).collect();
        assert!(matches!(rows.as_slice(), [row] if row.contains("Report")), "{shown}");
    }

    #[test]
    fn obstacles_name_blockers_and_members() {
        let task = |owner: Option<&str>, requires: &[&str]| Task {
            owner: owner.map(str::to_owned),
            requires: requires.iter().map(|word| (*word).to_owned()).collect(),
            ..Task::new(TaskId(1), "Task")
        };
        let alice = [ClaimCandidate::of("alice", vec!["coder".into()])];
        let of = |task: &Task, candidates| obstacles(task, &[], candidates, UnixMs(4_000)).join("; ");
        assert_eq!(of(&task(Some("zoe"), &[]), &alice), "reserved for zoe, who is not in the team");
        assert_eq!(of(&task(Some("alice"), &["gpu"]), &alice), "reserved for alice, who does not have gpu");
        assert_eq!(of(&task(None, &["gpu"]), &alice), "requires gpu, which no teammate has");
        assert_eq!(of(&task(None, &["gpu"]), &[]), "requires gpu", "the members are not known");
        let waiting = Task { not_before: Some(UnixMs(9_000)), ..task(None, &["coder"]) };
        assert_eq!(of(&waiting, &alice), "retrying in 5 s; requires coder");
    }
}
