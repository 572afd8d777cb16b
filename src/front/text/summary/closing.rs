//! The text at the end of a run: the table of its tasks, and the sentences below it.

use std::path::Path;
use std::time::Duration;

use anstyle::Style;

use super::outcome::{RunOutcome, TaskOutcome};
use crate::api::run_summary::OutcomeStatus;
use crate::api::{Next, OrderForm, Question};
use crate::domain::git::ignored_files::IgnoredFiles;
use crate::domain::log::event::GoalResult;
use crate::domain::task::{TaskId, TaskStatus};
use crate::domain::team::name::LEAD;
use crate::domain::team::run_verdict::{GoalAnswer, RunAchievement, UnplannedGoal};
use crate::domain::text::one_line;
use crate::domain::text::units::{count, duration, join_up_to};
use crate::front::text::commands::{Commands, Hint, hint};
use crate::front::text::lines::wrap;
use crate::front::text::style::{BAD, BOLD, BUSY, DIM, GOOD, PLAIN, WARN, paint};
use crate::front::text::table::{Cell, TABLE_WIDTH_MIN, Table};

/// Rows of the table; completed tasks are left out first.
const ROWS_MAX: usize = 40;
/// Ids that a hint names.
const HINTED_MAX: usize = 5;
/// Failed tasks whose full reason follows the table.
const REASONS_MAX: usize = 3;
/// A note does not fit the table if it is longer than the width of the terminal divided by this.
const NOTE_SHARE: usize = 4;
/// Below [`TABLE_WIDTH_MIN`] columns, a note has room for at least this many lines.
const NOTE_LINES_MIN: usize = 3;

/// The next step after a run that ended because of a wrong setting of a model.
pub fn setting_hint() -> Hint {
    hint!["hint: ", Question::Doctor, " checks servers and keys, and shows the names of models\n"]
}

/// The workspace of the run.
#[derive(Debug, Clone, Copy)]
pub struct WorkspaceView<'a> {
    /// The folder with the results; `None` if they go to the team branch.
    pub results: Option<&'a Path>,
    /// The commands as they are typed.
    pub commands: &'a Commands,
}

/// Returns the closing table and sentences.
pub fn render(outcome: &RunOutcome, workspace: &WorkspaceView<'_>, columns: usize) -> String {
    let mut out = String::from("\n");
    if !outcome.tasks.is_empty() {
        out.push_str(&task_table(outcome).render_table_or_list(columns));
        if let Some(more) = outcome.tasks.len().checked_sub(ROWS_MAX).filter(|more| *more > 0) {
            out.push_str(&paint(DIM, &workspace.commands.text(&hint![format!("and {more} more: "), Question::Tasks])));
            out.push('\n');
        }
        out.push('\n');
    }
    for (style, sentence) in sentences(outcome, workspace.results, columns) {
        let sentence = one_line(&workspace.commands.text(&sentence));
        out.push_str(&paint(style, &wrap(&sentence, columns, 0)));
        out.push('\n');
    }
    out
}

/// Returns the steps that the sentences below the table name.
pub fn next_steps(outcome: &RunOutcome) -> Vec<Next> {
    sentences(outcome, None, usize::MAX).iter().flat_map(|(_, sentence)| sentence.steps()).collect()
}

fn task_table(outcome: &RunOutcome) -> Table {
    let mut table = Table::new(&["TASK", "STATUS", "OWNER", "ATTEMPTS", "TIME", "NOTE"])
        .numbers(&["ATTEMPTS", "TIME"])
        .flexible(&["TASK", "NOTE"]);
    for task in tasks_of_table(outcome) {
        table.row(vec![
            Cell::new(&format!("{} {}", task.id, task.subject), PLAIN),
            Cell::new(task.status.word(), status_style(task)),
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
fn tasks_of_table(outcome: &RunOutcome) -> Vec<&TaskOutcome> {
    let mut tasks: Vec<&TaskOutcome> = outcome.tasks.iter().collect();
    tasks.sort_by_key(|task| task.status == OutcomeStatus::Own(TaskStatus::Completed));
    tasks.truncate(ROWS_MAX);
    tasks.sort_by_key(|task| task.id);
    tasks
}

fn status_style(task: &TaskOutcome) -> Style {
    match task.status {
        OutcomeStatus::Own(TaskStatus::Completed) if task.unverified || task.nothing_ran => WARN,
        OutcomeStatus::Own(TaskStatus::Completed) => GOOD,
        OutcomeStatus::Own(TaskStatus::Failed) => BAD,
        OutcomeStatus::Own(TaskStatus::InProgress) => BUSY,
        _ => WARN,
    }
}

/// Returns the sentences below the table, each with its style.
fn sentences(outcome: &RunOutcome, results: Option<&Path>, columns: usize) -> Vec<(Style, Hint)> {
    let achievement = outcome.view.facts().achievement();
    let (style, first) = achievement_sentence(achievement, outcome);
    let mut sentences = vec![(style, Hint::from(first))];
    if let RunAchievement::UnplannedGoal(UnplannedGoal { answer: GoalAnswer::Question, .. }) = achievement {
        let send = OrderForm::Send { to: Some(LEAD.to_owned()) };
        sentences.push((WARN, hint!["The lead waits for your answer: ", send, ", then launch the team again."]));
    }
    // If tasks failed or are left, a passed check of the goal is no success: its sentence comes last.
    let mut passed_check = None;
    if let Some(goal) = &outcome.view.goal {
        let sentence = Hint::from(goal.sentence(outcome.view.task_counts));
        match goal.result(outcome.view.task_counts) {
            GoalResult::NotMet => sentences.push((BAD, sentence)),
            GoalResult::Met => sentences.push((GOOD, sentence)),
            GoalResult::TasksLeft => passed_check = Some((WARN, sentence)),
        }
    }
    if let Some(error) = &outcome.view.error
        && !matches!(achievement, RunAchievement::Nothing(_))
    {
        sentences.push((BAD, error.clone().into()));
    }
    sentences.extend(unfinished_sentences(outcome, columns));
    sentences.extend(caveat_sentences(&outcome.tasks).into_iter().map(|sentence| (WARN, sentence)));
    sentences.extend(unverified_sentence(outcome).map(|sentence| (WARN, sentence)));
    sentences.extend(ignored_file_sentences(&outcome.tasks).into_iter().map(|sentence| (WARN, sentence)));
    sentences.extend(passed_check);
    sentences.extend(outcome.pending.sentences().into_iter().map(|sentence| (WARN, sentence)));
    if outcome.view.task_counts.total() > 0 {
        let place = results.map(|folder| format!("Results are in {}. ", folder.display())).unwrap_or_default();
        sentences.push((DIM, hint![place, "Log: ", Question::Log { task: None }, "."]));
    }
    sentences
}

/// Returns the first sentence.
fn achievement_sentence(achievement: RunAchievement<'_>, outcome: &RunOutcome) -> (Style, String) {
    let (total, now, usage) = (outcome.view.task_counts.total(), outcome.view.completed_now, outcome.usage_text());
    let tasks = count(total, "task");
    match achievement {
        RunAchievement::Nothing(error) => (BAD, error.to_owned()),
        RunAchievement::UnplannedGoal(goal) => (WARN, format!("{} ({usage})", goal.reason)),
        RunAchievement::NoTasks => (
            WARN,
            format!("The board has no tasks. Give the team a plan, or a goal if its lead has a model ({usage})."),
        ),
        RunAchievement::AllTasks => {
            let style = if outcome.view.unverified_now > 0 { WARN } else { GOOD };
            match total {
                1 => (style, format!("The task is done ({usage}).")),
                _ => (style, format!("All {tasks} done, {now} in this run ({usage}).")),
            }
        }
        RunAchievement::SomeTasks => {
            (BOLD, format!("{} of {tasks} done, {now} in this run ({usage}).", outcome.view.task_counts.completed))
        }
    }
}

/// Returns a sentence that explains the exit code of a run with unverified work of its own agents.
fn unverified_sentence(outcome: &RunOutcome) -> Option<Hint> {
    let task = outcome.tasks.iter().find(|task| task.unverified)?.id;
    (outcome.view.unverified_now > 0).then(|| {
        hint![
            "No report and no verify command shows this work, so the exit code is 1. ",
            Question::Task { task },
            " shows the result, ",
            OrderForm::Reopen { tasks: vec![task] },
            " has it done again. A `verify` command lets Brigade decide."
        ]
    })
}

/// Returns a sentence with the next command for the tasks of each unfinished status, and the reasons of failed tasks.
fn unfinished_sentences(outcome: &RunOutcome, columns: usize) -> Vec<(Style, Hint)> {
    let mut sentences = Vec::new();
    for (status, label, purpose, style) in [
        (OutcomeStatus::Own(TaskStatus::Failed), "failed", "to try again", BAD),
        (OutcomeStatus::Blocked, "blocked", "for the blockers", WARN),
        (OutcomeStatus::Own(TaskStatus::InProgress), "still in progress", "for the owner", WARN),
        (OutcomeStatus::Own(TaskStatus::Pending), "left to do", "for the reason", WARN),
    ] {
        let ids: Vec<TaskId> = outcome.tasks.iter().filter(|task| task.status == status).map(|task| task.id).collect();
        let Some(first) = ids.first() else { continue };
        let is_failed = status == OutcomeStatus::Own(TaskStatus::Failed);
        let step: Next = if is_failed {
            OrderForm::Retry { tasks: ids.iter().take(HINTED_MAX).copied().collect() }.into()
        } else {
            Question::Why { task: Some(*first) }.into()
        };
        let named = join_up_to(ids.iter(), HINTED_MAX);
        let tasks = format!("{} {label}: {named}; ", ids.len());
        sentences.push((style, hint![tasks, step, format!(" {purpose}.")]));
        if is_failed {
            sentences.extend(cut_failure_reasons(outcome, columns).map(|reason| (PLAIN, reason.into())));
        }
    }
    sentences
}

/// Returns the reasons of failed tasks that the table cuts.
fn cut_failure_reasons(outcome: &RunOutcome, columns: usize) -> impl Iterator<Item = String> {
    let failed =
        outcome.tasks.iter().filter(|task| task.status == OutcomeStatus::Own(TaskStatus::Failed)).take(REASONS_MAX);
    let note_columns = if columns < TABLE_WIDTH_MIN { columns * NOTE_LINES_MIN } else { columns / NOTE_SHARE };
    let is_cut = move |task: &&TaskOutcome| task.note.chars().count() > note_columns;
    failed.filter(is_cut).map(|task| format!("{} {}: {}", task.id, task.subject, task.note))
}

/// Returns a sentence for each weakness of these tasks. A table may leave completed tasks out.
fn caveat_sentences(tasks: &[TaskOutcome]) -> Vec<Hint> {
    let ids = |is_weak: fn(&&TaskOutcome) -> bool| tasks.iter().filter(is_weak).map(|task| task.id).collect();
    let unverified: Vec<TaskId> = ids(|task| task.unverified);
    let nothing_ran: Vec<TaskId> = ids(|task| task.nothing_ran);
    let mut sentences = Vec::new();
    for (ids, label) in
        [(unverified, "completed unverified"), (nothing_ran, "completed by a verify command that ran no tests")]
    {
        if let Some(first) = ids.first() {
            let named = join_up_to(ids.iter(), HINTED_MAX);
            let why = Question::Why { task: Some(*first) };
            sentences.push(hint![format!("{} {label}: {named}; ", ids.len()), why, " for the reason."]);
        }
    }
    sentences
}

/// Returns a sentence for each task with files that git ignores.
fn ignored_file_sentences(tasks: &[TaskOutcome]) -> Vec<Hint> {
    let mut sentences: Vec<Hint> = Vec::new();
    for task in tasks {
        let Some(IgnoredFiles { moved, left, .. }) = &task.ignored_files else { continue };
        if !moved.is_empty() {
            sentences.push(format!("Files of {} that git ignores are now in the workspace: {moved}.", task.id).into());
        }
        if !left.is_empty() {
            let folder = one_line(task.worktree.as_deref().unwrap_or_default());
            let files = format!("Files of {} that git ignores are still in {folder}: {left}; ", task.id);
            sentences.push(hint![files, Question::Why { task: Some(task.id) }, " for more."]);
        }
    }
    let more = sentences.len().saturating_sub(HINTED_MAX);
    sentences.truncate(HINTED_MAX);
    if more > 0 {
        let files = format!("{more} more tasks have such files; ");
        sentences.push(hint![files, Question::Leftovers, " lists their worktrees."]);
    }
    sentences
}
