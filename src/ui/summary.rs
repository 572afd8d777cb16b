//! How a run came out: the closing table and the closing sentence, for people and for programs. It is told the events of
//! the run and, at the end, the board.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::style::{BAD, BOLD, BUSY, DIM, GOOD, PLAIN, WARN, paint};
use super::table::{Cell, Column, Table};
use super::text::{count, cut, duration, first_line, fold, one_line, reason, with_flags, wrap};
use super::why::{Candidate, in_short};
use crate::domain::event::{Event, Fact, GoalCheck, Tally};
use crate::domain::graph::{self, RootBlockers};
use crate::domain::name::LEAD;
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::domain::time::UnixMs;
use crate::ports::BoardView;

/// Rows of the closing table; what went well is left out first.
const ROWS_MAX: usize = 40;
/// Tasks that a hint names.
const HINTED_MAX: usize = 5;
/// Failed tasks whose reason is told in full below the table.
const REASONS_MAX: usize = 3;
/// A note longer than the line's width divided by this does not fit the table.
const NOTE_SHARE: usize = 4;
/// In less room than this there is no table, but a few lines for each task.
const TABLE_WIDTH_MIN: usize = 64;
/// Lines of a note where there is no table.
const NOTE_LINES_MAX: usize = 4;

/// What the run did with one task.
#[derive(Debug, Clone, Copy, Default)]
struct Work {
    /// Time somebody held it, over all attempts.
    held: Duration,
    /// When the present attempt began.
    since: Option<UnixMs>,
}

/// Collects what the closing needs.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    first: Option<UnixMs>,
    last: UnixMs,
    work: BTreeMap<TaskId, Work>,
    completed: BTreeSet<TaskId>,
    workers: BTreeSet<String>,
    input_tokens: u64,
    output_tokens: u64,
    stopped: Option<String>,
    goal: Option<GoalCheck>,
    /// Who could do what, to say why tasks were left.
    candidates: Vec<Candidate>,
    /// Whether the lead was to make tasks of a goal.
    has_goal: bool,
    /// What the lead said last, and what its model fails of since.
    lead_said: Option<String>,
    lead_trouble: Option<String>,
}

/// One task of the closing, for programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskOutcome {
    /// Its number.
    pub id: TaskId,
    /// What it is about.
    pub subject: String,
    /// Where it stands: a status, or `blocked`.
    pub status: &'static str,
    /// Who worked on it.
    pub owner: Option<String>,
    /// Attempts so far.
    pub attempt: u32,
    /// How long it was worked on in this run, in milliseconds.
    pub ms: u64,
    /// What came of it, or what is in its way.
    pub note: String,
}

/// How the run came out, for programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The team.
    pub team: String,
    /// All tasks of the board, counted.
    pub tally: Tally,
    /// Tasks completed in this run.
    pub completed_now: usize,
    /// How long the run took, in milliseconds.
    pub ms: u64,
    /// Tokens that models read.
    pub input_tokens: u64,
    /// Tokens that models wrote.
    pub output_tokens: u64,
    /// Why the team stopped.
    pub reason: Option<String>,
    /// How the check of the goal came out, where there is one and it was made.
    pub goal: Option<GoalCheck>,
    /// What kept the team from its work, other than its tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Why there is no task at all, though the team has a goal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unplanned: Option<String>,
    /// What waits for the person.
    #[serde(skip_serializing_if = "ForYou::is_nothing")]
    pub for_you: ForYou,
    /// The tasks: those of this run and all that are unfinished.
    pub tasks: Vec<TaskOutcome>,
}

/// What waits for the person.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ForYou {
    /// Messages they have not read.
    pub messages: usize,
    /// Plans that only they can answer, by id.
    pub plans: Vec<String>,
    /// Work that only they can review, by the id of the review.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reviews: Vec<String>,
    /// Why the files of the workspace are not what was merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkout: Option<String>,
}

impl ForYou {
    /// Whether nothing does.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.messages == 0 && self.plans.is_empty() && self.reviews.is_empty() && self.checkout.is_none()
    }

    /// What to do about it, a sentence each.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        if self.messages > 0 {
            let wait = if self.messages == 1 { "message for you waits" } else { "messages for you wait" };
            let how = "`brigade inbox --take` shows what is written to you, `brigade send NAME TEXT` answers";
            sentences.push(format!("{} {wait}: {how}.", self.messages));
        }
        for (what, ids) in
            [("plan", &self.plans), ("review", &self.reviews)].into_iter().filter(|(_, ids)| !ids.is_empty())
        {
            let wait = if ids.len() == 1 { format!("{what} waits") } else { format!("{what}s wait") };
            let named = ids.iter().take(HINTED_MAX).cloned().collect::<Vec<_>>().join(", ");
            let more = if ids.len() > HINTED_MAX { ", …" } else { "" };
            let how =
                format!("`brigade {what} show ID`, then `brigade {what} approve ID` or `brigade {what} reject ID`");
            sentences.push(format!("{} {wait} for your answer ({named}{more}): {how}.", ids.len()));
        }
        sentences.extend(self.checkout.as_ref().map(|why| format!("Mind that {why}.")));
        sentences
    }
}

impl Outcome {
    /// Whether every task of the board is completed.
    #[must_use]
    pub fn is_all_done(&self) -> bool {
        let tally = &self.tally;
        tally.failed + tally.blocked + tally.in_progress + tally.pending == 0
    }
}

impl Summary {
    /// Of a run of this team.
    #[must_use]
    pub fn of(candidates: Vec<Candidate>) -> Self {
        Self { candidates, ..Self::default() }
    }

    /// The same for a team whose lead is to make tasks of a goal.
    #[must_use]
    pub fn with_goal(self, has_goal: bool) -> Self {
        Self { has_goal, ..self }
    }

    /// Takes note of what became of the lead's model.
    fn observe_lead(&mut self, fact: &Fact) {
        match fact {
            Fact::Said { teammate, text, .. } if teammate == LEAD && !text.trim().is_empty() => {
                (self.lead_said, self.lead_trouble) = (Some(text.clone()), None);
            }
            Fact::ModelRetried { teammate, reason, .. } if teammate == LEAD => {
                self.lead_trouble = Some(format!("its model: {reason}"));
            }
            Fact::Warning { about, text } if about == LEAD => self.lead_trouble = Some(text.clone()),
            Fact::TurnFinished { teammate, .. } if teammate == LEAD => self.lead_trouble = None,
            _ => {}
        }
    }

    /// Why there is nothing on the board, where a goal was to bring something.
    fn unplanned(&self) -> Option<String> {
        let why = match (&self.lead_trouble, &self.lead_said) {
            (Some(trouble), _) => format!(": {}", first_line(trouble).trim_end_matches('.')),
            (None, Some(said)) => format!("; it said last: {}", first_line(said).trim_end_matches('.')),
            (None, None) => String::new(),
        };
        self.has_goal.then(|| format!("The lead has made no task of the goal{why}."))
    }

    /// Takes note of an event.
    pub fn observe(&mut self, event: &Event) {
        self.first.get_or_insert(event.at);
        self.last = self.last.max(event.at);
        self.observe_lead(&event.fact);
        match &event.fact {
            Fact::TaskClaimed { task, teammate, .. } => {
                self.workers.insert(teammate.clone());
                self.work.entry(*task).or_default().since = Some(event.at);
            }
            Fact::TaskCompleted { task, .. } => {
                self.completed.insert(*task);
                self.let_go(*task, event.at);
            }
            Fact::TaskFailed { task, .. } | Fact::TaskReleased { task, .. } | Fact::TaskReclaimed { task, .. } => {
                self.let_go(*task, event.at);
            }
            Fact::TurnFinished { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, .. } => {
                for read in [input_tokens, cache_read_tokens, cache_write_tokens] {
                    self.input_tokens = self.input_tokens.saturating_add(*read);
                }
                self.output_tokens = self.output_tokens.saturating_add(*output_tokens);
            }
            Fact::SessionFinished { goal, .. } => self.goal.clone_from(goal),
            Fact::TeamStopped { reason, .. } => self.stopped = Some(reason.clone()),
            _ => {}
        }
    }

    fn let_go(&mut self, task: TaskId, at: UnixMs) {
        let work = self.work.entry(task).or_default();
        if let Some(since) = work.since.take() {
            work.held += at.since(since);
        }
    }

    /// How it came out, by what the board says now.
    #[must_use]
    pub fn outcome(&self, team: &str, view: &BoardView) -> Outcome {
        let tally = graph::tally(view.tasks.values().map(AsRef::as_ref), view);
        let mut tasks = Vec::new();
        let mut roots = RootBlockers::new(view);
        for task in view.tasks.values() {
            let status = if graph::is_blocked(task, view) { "blocked" } else { task.status.as_str() };
            if task.status != TaskStatus::Completed || self.work.contains_key(&task.id) {
                tasks.push(self.task(task, status, view, &mut roots));
            }
        }
        Outcome {
            team: team.to_owned(),
            tally,
            completed_now: self.completed.len(),
            ms: millis(self.first.map_or(Duration::ZERO, |first| self.last.since(first))),
            input_tokens: self.input_tokens,
            output_tokens: self.output_tokens,
            reason: self.stopped.clone(),
            goal: self.goal.clone(),
            trouble: None,
            unplanned: self.unplanned().filter(|_| view.tasks.is_empty()),
            for_you: ForYou::default(),
            tasks,
        }
    }

    fn task(&self, task: &Task, status: &'static str, view: &BoardView, roots: &mut RootBlockers<'_>) -> TaskOutcome {
        let work = self.work.get(&task.id).copied().unwrap_or_default();
        let running = work.since.map_or(Duration::ZERO, |since| self.last.since(since));
        let shorten = if task.status == TaskStatus::Completed { first_line } else { reason };
        let result = task.result.as_ref().map(|result| shorten(&result.summary)).unwrap_or_default();
        let in_the_way = in_short(task, view, roots, &self.candidates, self.last);
        TaskOutcome {
            id: task.id,
            subject: task.subject.clone(),
            status,
            owner: task.owner.clone(),
            attempt: task.attempt,
            ms: millis(work.held + running),
            note: [in_the_way, result].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; "),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Where the run was.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The workspace.
    pub workspace: &'a Path,
    /// The flags that name it, for hints; empty where none are needed.
    pub flags: &'a str,
}

/// The closing table and sentence.
#[must_use]
pub fn render(outcome: &Outcome, place: &Place<'_>, columns: usize) -> String {
    let mut out = String::from("\n");
    if !outcome.tasks.is_empty() {
        let narrow = columns < TABLE_WIDTH_MIN;
        out.push_str(&if narrow { list(outcome, columns) } else { table(outcome).render(columns) });
        if let Some(more) = outcome.tasks.len().checked_sub(ROWS_MAX).filter(|more| *more > 0) {
            out.push_str(&paint(DIM, &format!("and {more} more: brigade tasks")));
            out.push('\n');
        }
        out.push('\n');
    }
    for (style, sentence) in sentences(outcome, place.workspace, columns) {
        let sentence = with_flags(&one_line(&sentence), place.flags);
        out.push_str(&paint(style, &wrap(&sentence, columns, 0)));
        out.push('\n');
    }
    out
}

fn table(outcome: &Outcome) -> Table {
    let mut table = Table::new(&[
        Column::flexible("TASK"),
        Column::new("STATUS"),
        Column::new("OWNER"),
        Column::number("ATTEMPTS"),
        Column::number("TIME"),
        Column::flexible("NOTE"),
    ]);
    for task in rows(outcome) {
        table.row(vec![
            Cell::new(&format!("{} {}", task.id, task.subject), PLAIN),
            Cell::new(task.status, style(task)),
            Cell::new(task.owner.as_deref().unwrap_or_default(), PLAIN),
            Cell::new(&if task.attempt == 0 { String::new() } else { task.attempt.to_string() }, PLAIN),
            Cell::new(&time(task), PLAIN),
            if task.status == "failed" { Cell::reason(&task.note, DIM) } else { Cell::new(&task.note, DIM) },
        ]);
    }
    table
}

/// The tasks that are shown: what went well is left out first.
fn rows(outcome: &Outcome) -> Vec<&TaskOutcome> {
    let mut rows: Vec<&TaskOutcome> = outcome.tasks.iter().collect();
    rows.sort_by_key(|task| task.status == "completed");
    rows.truncate(ROWS_MAX);
    rows.sort_by_key(|task| task.id);
    rows
}

fn style(task: &TaskOutcome) -> anstyle::Style {
    match task.status {
        "completed" => GOOD,
        "failed" => BAD,
        "in_progress" => BUSY,
        _ => WARN,
    }
}

fn time(task: &TaskOutcome) -> String {
    if task.ms == 0 { String::new() } else { duration(Duration::from_millis(task.ms)) }
}

/// The same as the table where there is no room for one: a few lines a task.
fn list(outcome: &Outcome, columns: usize) -> String {
    let mut out = String::new();
    for task in rows(outcome) {
        out.push_str(&format!("{}\n", cut(&one_line(&format!("{} {}", task.id, task.subject)), columns)));
        let attempts = if task.attempt == 0 { String::new() } else { count(task.attempt as usize, "attempt") };
        let owner = task.owner.clone().unwrap_or_default();
        let parts = [task.status.to_owned(), owner, attempts, time(task)];
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let indent = "  ";
        let mut line = |text: &str, style| {
            for line in fold(&one_line(text), columns.saturating_sub(indent.len()).max(2), NOTE_LINES_MAX) {
                out.push_str(&format!("{indent}{}\n", paint(style, &line)));
            }
        };
        line(&parts.join(", "), style(task));
        if !task.note.is_empty() {
            line(&task.note, DIM);
        }
    }
    out
}

fn sentences(outcome: &Outcome, workspace: &Path, columns: usize) -> Vec<(anstyle::Style, String)> {
    let tally = &outcome.tally;
    let total = tally.completed + tally.failed + tally.blocked + tally.in_progress + tally.pending;
    let took = duration(Duration::from_millis(outcome.ms));
    let tokens = match outcome.input_tokens.saturating_add(outcome.output_tokens) {
        0 => String::new(),
        tokens => format!(", {tokens} tokens"),
    };
    let done = match (total, outcome.is_all_done()) {
        (0, _) if outcome.trouble.is_some() => (BAD, outcome.trouble.clone().unwrap_or_default()),
        (0, _) if outcome.unplanned.is_some() => {
            (WARN, format!("{} ({took}{tokens})", outcome.unplanned.as_deref().unwrap_or_default()))
        }
        (0, _) => (
            WARN,
            format!("There was nothing to do: the board has no task; a goal or a plan gives it some ({took}{tokens})."),
        ),
        (1, true) => (GOOD, format!("The one task is done ({took}{tokens}).")),
        (_, true) => (
            GOOD,
            format!("All {} done, {} in this run ({took}{tokens}).", count(total, "task"), outcome.completed_now),
        ),
        _ => (
            BOLD,
            format!(
                "{} of {} done, {} in this run ({took}{tokens}).",
                tally.completed,
                count(total, "task"),
                outcome.completed_now
            ),
        ),
    };
    let mut sentences = vec![done];
    if let Some(goal) = &outcome.goal {
        let (style, word) = if goal.met { (GOOD, "met") } else { (BAD, "not met") };
        sentences.push((style, format!("The goal is {word}: {}.", goal.evidence)));
    }
    sentences.extend(outcome.trouble.clone().filter(|_| total > 0).map(|trouble| (BAD, trouble)));
    let ids = |status: &str| -> Vec<u64> {
        outcome.tasks.iter().filter(|task| task.status == status).map(|task| task.id.0).collect()
    };
    for (status, what, command, style) in [
        ("failed", "failed", "try again with `brigade tasks retry ID`", BAD),
        ("blocked", "blocked", "`brigade why ID` says by what", WARN),
        ("in_progress", "still in progress", "`brigade why ID` says for whom", WARN),
        ("pending", "left to do", "`brigade why ID` says why", WARN),
    ] {
        let ids = ids(status);
        if !ids.is_empty() {
            sentences.push((style, format!("{} {what}: {}; {command}.", ids.len(), listed(&ids))));
        }
        if status == "failed" {
            sentences.extend(reasons(outcome, columns).map(|reason| (PLAIN, reason)));
        }
    }
    sentences.extend(outcome.for_you.sentences().into_iter().map(|sentence| (WARN, sentence)));
    if total > 0 {
        sentences
            .push((DIM, format!("Results are in {}; what happened is in .team/events.jsonl.", workspace.display())));
    }
    sentences
}

/// Why tasks failed, where the table has too little room to say it: what a person reads first.
fn reasons(outcome: &Outcome, columns: usize) -> impl Iterator<Item = String> {
    let failed = outcome.tasks.iter().filter(|task| task.status == "failed").take(REASONS_MAX);
    let room = if columns < TABLE_WIDTH_MIN { columns * (NOTE_LINES_MAX - 1) } else { columns / NOTE_SHARE };
    let is_cut = move |task: &&TaskOutcome| task.note.chars().count() > room;
    failed.filter(is_cut).map(|task| format!("{} {}: {}", task.id, task.subject, task.note))
}

fn listed(ids: &[u64]) -> String {
    let named = ids.iter().take(HINTED_MAX).map(|id| format!("#{id}")).collect::<Vec<_>>().join(", ");
    if ids.len() > HINTED_MAX { format!("{named}, …") } else { named }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::domain::task::TaskResult;

    fn event(seq: u64, at: i64, fact: Fact) -> Event {
        Event { v: 1, seq, at: UnixMs(at), fact }
    }

    fn run() -> Summary {
        let mut summary = Summary::default();
        let claim =
            |task: u64, attempt: u32| Fact::TaskClaimed { task: TaskId(task), attempt, teammate: "alice".into() };
        let facts = [
            (0, Fact::TeamStarted { team: "t".into(), members: vec!["alice".into()] }),
            (1_000, claim(1, 1)),
            (
                3_000,
                Fact::TaskReleased {
                    task: TaskId(1),
                    attempt: 1,
                    teammate: "alice".into(),
                    reason: "x".into(),
                    not_before: None,
                },
            ),
            (4_000, claim(1, 2)),
            (
                9_000,
                Fact::TaskCompleted { task: TaskId(1), attempt: 2, teammate: "alice".into(), evidence: "e".into() },
            ),
            (9_000, claim(2, 1)),
            (9_500, Fact::TaskFailed { task: TaskId(2), attempt: 1, teammate: "alice".into(), reason: "y".into() }),
            (
                9_600,
                Fact::TurnFinished {
                    teammate: "alice".into(),
                    task: None,
                    input_tokens: 900,
                    output_tokens: 100,
                    cache_read_tokens: 0,
                    cache_write_tokens: 0,
                    ms: 5,
                },
            ),
            (70_000, Fact::TeamStopped { team: "t".into(), reason: "done".into() }),
        ];
        for (seq, (at, fact)) in facts.into_iter().enumerate() {
            summary.observe(&event(seq as u64 + 1, at, fact));
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
        tasks[1].result = Some(TaskResult::said("the compiler said no", ""));
        tasks[2].blocked_by = vec![TaskId(2)];
        tasks[4].status = TaskStatus::Completed;
        BoardView { tasks: tasks.into_iter().map(|task| (task.id, Arc::new(task))).collect(), ..BoardView::default() }
    }

    #[test]
    fn a_goal_of_which_nothing_was_made_says_why() {
        let place = Place { workspace: Path::new("/w"), flags: "" };
        let closing = |facts: Vec<Fact>, has_goal: bool| {
            let mut summary = Summary::default().with_goal(has_goal);
            facts.into_iter().for_each(|fact| summary.observe(&event(1, 0, fact)));
            render(&summary.outcome("t", &BoardView::default()), &place, 200)
        };
        let refused =
            || Fact::Warning { about: LEAD.into(), text: "its model: Connection refused; asked again".into() };
        let said = || Fact::Said { teammate: LEAD.into(), task: None, text: "Which database?".into() };
        assert!(closing(vec![refused()], false).contains("There was nothing to do"));
        assert!(closing(vec![], true).contains("The lead has made no task of the goal."));
        let text = closing(vec![said(), refused()], true);
        assert!(text.contains("no task of the goal: its model: Connection refused; asked again."), "{text}");
        let text = closing(vec![refused(), said()], true);
        assert!(text.contains("no task of the goal; it said last: Which database?"), "{text}");
    }

    #[test]
    fn the_closing_says_what_was_done_and_what_to_do() {
        let outcome = run().outcome("t", &board());
        let repo = Place { workspace: Path::new("/srv/repo"), flags: "" };
        let narrow = render(&outcome, &Place { flags: "--workspace repo", ..repo }, 40);
        let text = render(&outcome, &repo, 90) + "---" + &narrow;
        let mut done = board();
        done.tasks.retain(|_, task| task.status == TaskStatus::Completed);
        let all = render(&run().outcome("t", &done), &repo, 40);
        let none = render(&Summary::default().outcome("t", &BoardView::default()), &repo, 80);
        let plain = anstream::adapter::strip_str(&format!("{text}---{all}---{none}")).to_string();
        insta::assert_snapshot!(format!("{plain}---\n{}", serde_json::to_string_pretty(&outcome).unwrap()));
        assert!(!outcome.is_all_done());
    }
}
