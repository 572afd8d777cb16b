//! The summary of a run: the closing table and sentences for people, and the same data for programs. It observes the events
//! of the run and reads the board at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::command_form::CommandForm;
use super::evidence::{caveat_sentences, evidence_text, joined, with_evidence};
use super::pending::PendingView;
use super::planning::Planning;
pub use super::planning::UnplannedGoal;
use super::style::{BAD, BOLD, BUSY, DIM, GOOD, PLAIN, WARN, paint};
use super::table::{Cell, TABLE_WIDTH_MIN, Table};
use super::task_context::ClaimCandidate;
use super::tasks::obstacles;
use super::text::{count, duration, first_line, join_up_to, one_line, reason, wrap};
use crate::domain::dependencies::{self, unfinished_blockers};
use crate::domain::event::{Event, EventKind, GoalCheck, TaskCounts};
use crate::domain::task::{Task, TaskId, TaskResult, TaskStatus};
use crate::domain::time::UnixMs;
use crate::domain::transcript::Usage;
use crate::ports::BoardView;

/// Rows of the closing table; completed tasks are left out first.
const ROWS_MAX: usize = 40;
/// Ids that a hint names.
const HINTED_MAX: usize = 5;
/// Failed tasks whose full reason follows the table.
const REASONS_MAX: usize = 3;
/// A note does not fit the table if it is longer than the width of the terminal divided by this.
const NOTE_SHARE: usize = 4;
/// Below [`TABLE_WIDTH_MIN`] columns, a note has room for at least this many lines.
const NOTE_LINES_MIN: usize = 3;

/// The time that the run spent on one task.
#[derive(Debug, Clone, Copy, Default)]
struct TaskTime {
    /// The time of all finished attempts.
    spent: Duration,
    /// The start of the current attempt.
    since: Option<UnixMs>,
}

/// Collects the data of the summary from the events of a run.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    first: Option<UnixMs>,
    last: UnixMs,
    times: BTreeMap<TaskId, TaskTime>,
    completed: BTreeSet<TaskId>,
    stopped: Option<String>,
    goal: Option<GoalCheck>,
    /// The members, to explain unfinished tasks.
    candidates: Vec<ClaimCandidate>,
    planning: Planning,
}

/// The status of a task at the end of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub enum OutcomeStatus {
    /// Pending, with an unfinished blocker.
    Blocked,
    Own(TaskStatus),
    /// A status that another program wrote.
    Foreign(String),
}

impl OutcomeStatus {
    fn of(task: &Task, view: &BoardView) -> Self {
        match task.status {
            _ if dependencies::is_blocked(task, view) => Self::Blocked,
            TaskStatus::Unknown => Self::Foreign(task.status_word().into_owned()),
            status => Self::Own(status),
        }
    }

    fn word(&self) -> &str {
        match self {
            Self::Blocked => "blocked",
            Self::Own(status) => status.as_str(),
            Self::Foreign(word) => word,
        }
    }
}

impl From<OutcomeStatus> for String {
    fn from(status: OutcomeStatus) -> Self {
        status.word().to_owned()
    }
}

/// One task of the summary, for programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskOutcome {
    pub id: TaskId,
    pub subject: String,
    pub status: OutcomeStatus,
    pub owner: Option<String>,
    /// Attempts so far.
    pub attempt: u32,
    /// The time spent on it in this run, in milliseconds.
    pub ms: u64,
    /// Its result, or its obstacles.
    pub note: String,
    /// The evidence of a completed task: its verify command and the exit status, `unverified`, or the author's own evidence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub evidence: String,
    /// True if the task has no verify command and its agent ended without a report.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unverified: bool,
    /// True if its verify command ran no test.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub nothing_ran: bool,
    /// The note and the evidence, the more important part first.
    #[serde(skip)]
    note_and_evidence: String,
}

/// The tokens of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct RunUsage {
    pub input_tokens: u64,
    pub output_tokens: u64,
}

impl From<Usage> for RunUsage {
    fn from(usage: Usage) -> Self {
        Self { input_tokens: usage.total() - usage.output_tokens, output_tokens: usage.output_tokens }
    }
}

/// The outcome of a run, for programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunOutcome {
    pub team: String,
    /// The counts of all tasks of the board.
    #[serde(rename = "tally")]
    pub task_counts: TaskCounts,
    /// Tasks completed in this run.
    pub completed_now: usize,
    /// The duration of the run in milliseconds.
    pub ms: u64,
    #[serde(flatten)]
    pub usage: RunUsage,
    /// The reason why the team stopped.
    pub reason: Option<String>,
    /// The last check of the goal.
    pub goal: Option<GoalCheck>,
    /// A problem of the team itself, not of its tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// The goal, if it has no tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unplanned: Option<UnplannedGoal>,
    #[serde(skip_serializing_if = "PendingView::is_nothing")]
    pub for_you: PendingView,
    /// The tasks of this run and all unfinished ones.
    pub tasks: Vec<TaskOutcome>,
}

impl RunOutcome {
    pub fn is_all_done(&self) -> bool {
        self.task_counts.is_all_completed()
    }

    /// Returns true if the team could go on: a task is pending or in progress, or the goal has no tasks yet.
    pub fn has_work_left(&self) -> bool {
        self.task_counts.pending + self.task_counts.in_progress > 0 || self.unplanned.is_some()
    }

    /// Returns a text such as `2 m 5 s, 18,234 tokens`.
    fn usage_text(&self) -> String {
        let took = duration(Duration::from_millis(self.ms));
        match self.usage.input_tokens.saturating_add(self.usage.output_tokens) {
            0 => took,
            tokens => format!("{took}, {} tokens", super::cost::grouped(tokens)),
        }
    }

    /// Returns true if the lead neither planned the goal nor answered it in words.
    pub fn is_goal_ignored(&self) -> bool {
        self.unplanned.as_ref().is_some_and(|goal| goal.is_ignored)
    }

    /// Returns true if the run has a problem and did nothing. Tasks that earlier runs completed are then no success.
    fn is_trouble_alone(&self) -> bool {
        let has_no_work = self.task_counts.total() == 0 || self.is_all_done();
        self.trouble.is_some() && has_no_work && self.completed_now == 0
    }
}

impl Summary {
    /// Returns an empty summary of a team with these members. `has_goal` is true if its lead plans a goal.
    pub fn new(candidates: Vec<ClaimCandidate>, has_goal: bool) -> Self {
        Self { candidates, planning: Planning::new(has_goal), ..Self::default() }
    }

    /// Records an event of the run.
    pub fn observe(&mut self, event: &Event) {
        self.first.get_or_insert(event.at);
        self.last = self.last.max(event.at);
        self.planning.observe(&event.kind);
        match &event.kind {
            EventKind::TaskClaimed { task, .. } => {
                self.times.entry(*task).or_default().since = Some(event.at);
            }
            EventKind::TaskCompleted { task, .. } => {
                self.completed.insert(*task);
                self.end_claim(*task, event.at);
            }
            EventKind::TaskFailed { task, .. }
            | EventKind::TaskReleased { task, .. }
            | EventKind::TaskReclaimed { task, .. } => {
                self.end_claim(*task, event.at);
            }
            EventKind::SessionFinished { goal, .. } => self.goal.clone_from(goal),
            EventKind::TeamStopped { reason, .. } => self.stopped = Some(reason.clone()),
            _ => {}
        }
    }

    fn end_claim(&mut self, task: TaskId, at: UnixMs) {
        let time = self.times.entry(task).or_default();
        if let Some(since) = time.since.take() {
            time.spent += at.since(since);
        }
    }

    /// Returns the outcome of the run, with the board's current tasks. Its usage is zero: the caller sets it, because the events do not show all
    /// requests.
    pub fn outcome(&self, team: &str, view: &BoardView) -> RunOutcome {
        let task_counts = dependencies::count_tasks(view.tasks.values().map(AsRef::as_ref), view);
        let is_goal_met = self.goal.as_ref().is_some_and(|goal| goal.met);
        let mut tasks = Vec::new();
        for task in view.tasks.values() {
            if task.status != TaskStatus::Completed || self.times.contains_key(&task.id) {
                tasks.push(self.task(task, view));
            }
        }
        let unplanned = if is_goal_met { None } else { self.planning.unplanned(!view.tasks.is_empty()) };
        RunOutcome {
            team: team.to_owned(),
            task_counts,
            completed_now: self.completed.len(),
            ms: millis(self.first.map_or(Duration::ZERO, |first| self.last.since(first))),
            usage: RunUsage::default(),
            reason: self.stopped.clone(),
            goal: self.goal.clone(),
            trouble: None,
            unplanned,
            for_you: PendingView::default(),
            tasks,
        }
    }

    fn task(&self, task: &Task, view: &BoardView) -> TaskOutcome {
        let time = self.times.get(&task.id).copied().unwrap_or_default();
        let running = time.since.map_or(Duration::ZERO, |since| self.last.since(since));
        let result = task.result.as_ref().filter(|result| !result.summary.trim().is_empty());
        let result = result.map(|result| match task.status {
            TaskStatus::Completed => first_line(&result.summary),
            TaskStatus::Pending if !result.is_failure() => format!("released: {}", reason(&result.summary)),
            _ => reason(&result.summary),
        });
        let mut note = Vec::new();
        if task.status == TaskStatus::Pending {
            let blockers: Vec<_> = unfinished_blockers(task, view).collect();
            note = obstacles(task, &blockers, &self.candidates, self.last);
        }
        note.extend(result);
        let completed = task.completion();
        let note = joined(note);
        TaskOutcome {
            id: task.id,
            subject: task.subject.clone(),
            status: OutcomeStatus::of(task, view),
            owner: task.owner.clone(),
            attempt: task.attempt,
            ms: millis(time.spent + running),
            note_and_evidence: completed.map_or(note.clone(), |result| with_evidence(&note, result)),
            note,
            evidence: completed.map(evidence_text).unwrap_or_default(),
            unverified: completed.is_some_and(|result| result.unverified),
            nothing_ran: completed.is_some_and(TaskResult::nothing_ran),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The workspace of the run.
#[derive(Debug, Clone, Copy)]
pub struct WorkspaceView<'a> {
    /// The folder with the results; `None` if they go to the team branch.
    pub results: Option<&'a Path>,
    /// The form of the commands in hints.
    pub commands: &'a CommandForm,
}

/// Returns the closing table and sentences.
pub fn render(outcome: &RunOutcome, place: &WorkspaceView<'_>, columns: usize) -> String {
    let mut out = String::from("\n");
    if !outcome.tasks.is_empty() {
        out.push_str(&table(outcome).render_table_or_list(columns));
        if let Some(more) = outcome.tasks.len().checked_sub(ROWS_MAX).filter(|more| *more > 0) {
            out.push_str(&paint(DIM, &place.commands.render(&format!("and {more} more: `brigade tasks`"))));
            out.push('\n');
        }
        out.push('\n');
    }
    for (style, sentence) in sentences(outcome, place.results, columns) {
        let sentence = place.commands.render(&one_line(&sentence));
        out.push_str(&paint(style, &wrap(&sentence, columns, 0)));
        out.push('\n');
    }
    out
}

fn table(outcome: &RunOutcome) -> Table {
    let mut table = Table::new(&["TASK", "STATUS", "OWNER", "ATTEMPTS", "TIME", "NOTE"])
        .numbers(&["ATTEMPTS", "TIME"])
        .flexible(&["TASK", "NOTE"]);
    for task in rows(outcome) {
        table.row(vec![
            Cell::new(&format!("{} {}", task.id, task.subject), PLAIN),
            Cell::new(task.status.word(), style(task)),
            Cell::new(task.owner.as_deref().unwrap_or_default(), PLAIN),
            Cell::new(&if task.attempt == 0 { String::new() } else { task.attempt.to_string() }, PLAIN),
            Cell::new(&if task.ms == 0 { String::new() } else { duration(Duration::from_millis(task.ms)) }, PLAIN),
            match task.status {
                OutcomeStatus::Own(TaskStatus::Failed) => Cell::reason(&task.note, DIM),
                _ => Cell::new(&task.note_and_evidence, DIM),
            },
        ]);
    }
    table
}

/// Returns the tasks to show; completed ones are left out first.
fn rows(outcome: &RunOutcome) -> Vec<&TaskOutcome> {
    let mut rows: Vec<&TaskOutcome> = outcome.tasks.iter().collect();
    rows.sort_by_key(|task| task.status == OutcomeStatus::Own(TaskStatus::Completed));
    rows.truncate(ROWS_MAX);
    rows.sort_by_key(|task| task.id);
    rows
}

fn style(task: &TaskOutcome) -> anstyle::Style {
    match task.status {
        OutcomeStatus::Own(TaskStatus::Completed) if task.unverified || task.nothing_ran => WARN,
        OutcomeStatus::Own(TaskStatus::Completed) => GOOD,
        OutcomeStatus::Own(TaskStatus::Failed) => BAD,
        OutcomeStatus::Own(TaskStatus::InProgress) => BUSY,
        _ => WARN,
    }
}

fn sentences(outcome: &RunOutcome, results: Option<&Path>, columns: usize) -> Vec<(anstyle::Style, String)> {
    let total = outcome.task_counts.total();
    let mut sentences = vec![result(outcome)];
    // If tasks failed or are left, a passed check of the goal is no success: its sentence comes last.
    let mut passed_check = None;
    if let Some(goal) = &outcome.goal {
        let sentence = goal.sentence(outcome.task_counts);
        match (goal.met, outcome.is_all_done()) {
            (false, _) => sentences.push((BAD, sentence)),
            (true, true) => sentences.push((GOOD, sentence)),
            (true, false) => passed_check = Some((WARN, sentence)),
        }
    }
    if let Some(trouble) = &outcome.trouble
        && !outcome.is_trouble_alone()
    {
        sentences.push((BAD, trouble.clone()));
    }
    for (status, label, purpose, style) in [
        (OutcomeStatus::Own(TaskStatus::Failed), "failed", "to try again", BAD),
        (OutcomeStatus::Blocked, "blocked", "for the blockers", WARN),
        (OutcomeStatus::Own(TaskStatus::InProgress), "still in progress", "for the owner", WARN),
        (OutcomeStatus::Own(TaskStatus::Pending), "left to do", "for the reason", WARN),
    ] {
        let ids: Vec<TaskId> = outcome.tasks.iter().filter(|task| task.status == status).map(|task| task.id).collect();
        let is_failed = status == OutcomeStatus::Own(TaskStatus::Failed);
        if let Some(first) = ids.first() {
            let command = if is_failed {
                format!("`brigade tasks retry {}` {purpose}", numbers(&ids))
            } else {
                format!("`brigade why {}` {purpose}", first.0)
            };
            sentences
                .push((style, format!("{} {label}: {}; {command}.", ids.len(), join_up_to(ids.iter(), HINTED_MAX))));
        }
        if is_failed {
            sentences.extend(reasons(outcome, columns).map(|reason| (PLAIN, reason)));
        }
    }
    sentences.extend(caveat_sentences(&outcome.tasks).into_iter().map(|sentence| (WARN, sentence)));
    sentences.extend(passed_check);
    sentences.extend(outcome.for_you.sentences().into_iter().map(|sentence| (WARN, sentence)));
    if total > 0 {
        let place = results.map(|folder| format!("Results are in {}. ", folder.display())).unwrap_or_default();
        sentences.push((DIM, format!("{place}Log: `brigade log`.")));
    }
    sentences
}

/// Returns the first sentence: the number of completed tasks, or the reason why there are none.
fn result(outcome: &RunOutcome) -> (anstyle::Style, String) {
    let counts = &outcome.task_counts;
    let total = counts.total();
    let usage = outcome.usage_text();
    if outcome.is_trouble_alone() {
        return (BAD, outcome.trouble.clone().unwrap_or_default());
    }
    if let Some(goal) = &outcome.unplanned {
        return (WARN, format!("{} ({usage})", goal.reason));
    }
    let (tasks, now) = (count(total, "task"), outcome.completed_now);
    match (total, outcome.is_all_done()) {
        (0, _) => (
            WARN,
            format!("The board has no tasks. Give the team a plan, or a goal if its lead has a model ({usage})."),
        ),
        (1, true) => (GOOD, format!("The task is done ({usage}).")),
        (_, true) => (GOOD, format!("All {tasks} done, {now} in this run ({usage}).")),
        _ => (BOLD, format!("{} of {tasks} done, {now} in this run ({usage}).", counts.completed)),
    }
}

/// Returns the numbers of the first tasks, as arguments of a command.
fn numbers(ids: &[TaskId]) -> String {
    ids.iter().take(HINTED_MAX).map(|id| id.0.to_string()).collect::<Vec<_>>().join(" ")
}

/// Returns the reasons of failed tasks that the table cuts.
fn reasons(outcome: &RunOutcome, columns: usize) -> impl Iterator<Item = String> {
    let failed =
        outcome.tasks.iter().filter(|task| task.status == OutcomeStatus::Own(TaskStatus::Failed)).take(REASONS_MAX);
    let note_columns = if columns < TABLE_WIDTH_MIN { columns * NOTE_LINES_MIN } else { columns / NOTE_SHARE };
    let is_cut = move |task: &&TaskOutcome| task.note.chars().count() > note_columns;
    failed.filter(is_cut).map(|task| format!("{} {}: {}", task.id, task.subject, task.note))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::domain::event::NewEvent;
    use crate::domain::name::LEAD;
    use crate::ui::command_form::GlobalFlags;

    fn event(seq: u64, at: i64, kind: EventKind) -> Event {
        NewEvent::from(kind).number(seq, UnixMs(at))
    }

    fn run() -> Summary {
        let mut summary = Summary::default();
        let claim =
            |task: u64, attempt: u32| EventKind::TaskClaimed { task: TaskId(task), attempt, teammate: "alice".into() };
        let kinds = [
            (0, EventKind::TeamStarted { team: "t".into(), members: vec!["alice".into()] }),
            (1_000, claim(1, 1)),
            (
                3_000,
                EventKind::TaskReleased {
                    task: TaskId(1),
                    attempt: 1,
                    teammate: "alice".into(),
                    reason: "x".into(),
                    not_before: None,
                    by: None,
                },
            ),
            (4_000, claim(1, 2)),
            (
                9_000,
                EventKind::TaskCompleted {
                    task: TaskId(1),
                    attempt: 2,
                    teammate: "alice".into(),
                    evidence: "e".into(),
                    unverified: false,
                    nothing_ran: false,
                },
            ),
            (9_000, claim(2, 1)),
            (
                9_500,
                EventKind::TaskFailed {
                    task: TaskId(2),
                    attempt: 1,
                    teammate: "alice".into(),
                    reason: "y".into(),
                    by: None,
                },
            ),
            (70_000, EventKind::TeamStopped { team: "t".into(), reason: "done".into() }),
        ];
        for (seq, (at, kind)) in kinds.into_iter().enumerate() {
            summary.observe(&event(seq as u64 + 1, at, kind));
        }
        summary
    }

    fn board() -> BoardView {
        let mut tasks: Vec<Task> = (1..=5).map(|id| Task::new(TaskId(id), format!("Task {id}"))).collect();
        tasks[0].status = TaskStatus::Completed;
        tasks[0].attempt = 2;
        tasks[0].owner = Some("alice".into());
        tasks[1].status = TaskStatus::Failed;
        tasks[1].attempt = 1;
        tasks[1].owner = Some("alice".into());
        tasks[1].result = Some(TaskResult::new("the compiler said no", ""));
        tasks[2].blocked_by = vec![TaskId(2)];
        tasks[4].status = TaskStatus::Completed;
        BoardView { tasks: tasks.into_iter().map(|task| (task.id, Arc::new(task))).collect(), ..BoardView::default() }
    }

    #[test]
    fn summary_says_why_goal_has_no_tasks() {
        let place =
            WorkspaceView { results: Some(Path::new("/w")), commands: &CommandForm::Shell(GlobalFlags::default()) };
        let closing = |kinds: Vec<EventKind>, has_goal: bool| {
            let mut summary = Summary::new(Vec::new(), has_goal);
            kinds.into_iter().for_each(|kind| summary.observe(&event(1, 0, kind)));
            render(&summary.outcome("t", &BoardView::default()), &place, 200)
        };
        let refused =
            || EventKind::Warning { about: LEAD.into(), text: "its model: Connection refused; asked again".into() };
        let said = || EventKind::Said { teammate: LEAD.into(), task: None, text: "Which database?".into() };
        assert!(closing(vec![refused()], false).contains("The board has no tasks."));
        assert!(closing(vec![], true).contains("The lead created no tasks for the goal."));
        let text = closing(vec![said(), refused()], true);
        assert!(text.contains("no tasks for the goal: its model: Connection refused; asked again."), "{text}");
        let text = closing(vec![refused(), said()], true);
        assert!(text.contains("no tasks for the goal. It said last: Which database?"), "{text}");
        let said_more = EventKind::Said { teammate: LEAD.into(), task: None, text: "Hello.\nWhich database?".into() };
        assert!(closing(vec![said_more], true).contains("It said last: Hello. … ("));
        // A completed task of an earlier run is no result of this goal.
        let with_old_task = |kinds: Vec<EventKind>| {
            let mut summary = Summary::new(Vec::new(), true);
            kinds.into_iter().for_each(|kind| summary.observe(&event(1, 0, kind)));
            let mut view = board();
            view.tasks.retain(|_, task| task.status == TaskStatus::Completed);
            render(&summary.outcome("t", &view), &place, 200)
        };
        assert!(with_old_task(vec![said()]).contains("no tasks for the goal. It said last: Which database?"));
        assert!(with_old_task(vec![]).contains("All 2 tasks done"), "the goal was planned before");
        let answered = || EventKind::TurnFinished {
            teammate: LEAD.into(),
            task: None,
            input_tokens: 1,
            output_tokens: 1,
            cache_read_tokens: 0,
            cache_write_tokens: 0,
            ms: 1,
        };
        assert!(with_old_task(vec![answered()]).contains("The lead created no tasks for the goal."), "without words");
        let created = EventKind::TaskCreated { task: TaskId(9), subject: "a".into(), by: LEAD.into() };
        assert!(with_old_task(vec![created, said()]).contains("All 2 tasks done"));
    }

    #[test]
    fn problem_comes_first_if_run_did_nothing() {
        let place =
            WorkspaceView { results: Some(Path::new("/w")), commands: &CommandForm::Shell(GlobalFlags::default()) };
        let mut done = board();
        done.tasks.retain(|_, task| task.status == TaskStatus::Completed);
        let closing = |summary: Summary| {
            let trouble = Some("The lead cannot work (its key was refused).".to_owned());
            render(&RunOutcome { trouble, ..summary.outcome("t", &done) }, &place, 200)
        };
        let text = closing(Summary::default());
        assert!(!text.contains("All 2 tasks done"), "tasks of earlier runs: {text}");
        assert_eq!(text.matches("The lead cannot work").count(), 1, "{text}");
        assert!(closing(run()).contains("All 2 tasks done, 1 in this run"));
    }

    #[test]
    fn passed_goal_check_is_no_success_if_tasks_failed() {
        let place =
            WorkspaceView { results: Some(Path::new("/w")), commands: &CommandForm::Shell(GlobalFlags::default()) };
        let closing = |board: &BoardView, met: bool| {
            let goal = Some(GoalCheck { met, evidence: "`true`: exit status 0".into() });
            render(&RunOutcome { goal, ..run().outcome("t", board) }, &place, 200)
        };
        let mut done = board();
        done.tasks.retain(|_, task| task.status == TaskStatus::Completed);
        let met = format!("{GOOD}The goal is met: `true`: exit status 0.{GOOD:#}\n");
        assert!(closing(&done, true).contains(&met));
        let text = closing(&board(), true);
        assert!(!text.contains("The goal is met"), "{text}");
        let but = "`done_when` passed (`true`: exit status 0), but not all tasks are completed: 1 failed, 1 blocked, 1 not done.";
        let last = text.find(&format!("{WARN}{but}{WARN:#}\n"));
        assert!(last > text.find("left to do") && last.is_some(), "{text}");
        assert!(closing(&board(), false).contains(&format!("{BAD}The goal is not met")));
    }

    #[test]
    fn summary_shows_results_and_next_steps() {
        let usage = RunUsage { input_tokens: 900, output_tokens: 100 };
        let outcome_of = |board: &BoardView| RunOutcome { usage, ..run().outcome("t", board) };
        let outcome = outcome_of(&board());
        let repo = WorkspaceView {
            results: Some(Path::new("/srv/repo")),
            commands: &CommandForm::Shell(GlobalFlags::default()),
        };
        let flags = GlobalFlags { flags: "--workspace repo".to_owned(), commands: &["tasks", "why", "log"] };
        let narrow = render(&outcome, &WorkspaceView { commands: &CommandForm::Shell(flags), ..repo }, 40);
        let text = render(&outcome, &repo, 90) + "---" + &narrow;
        let mut done = board();
        done.tasks.retain(|_, task| task.status == TaskStatus::Completed);
        let all = render(&outcome_of(&done), &repo, 40);
        let none = render(&Summary::default().outcome("t", &BoardView::default()), &repo, 80);
        let plain = anstream::adapter::strip_str(&format!("{text}---{all}---{none}")).to_string();
        insta::assert_snapshot!(format!("{plain}---\n{}", serde_json::to_string_pretty(&outcome).unwrap()));
        assert!(!outcome.is_all_done());
    }
}
