//! The texts about a session: its facts, its failures and the members that could not work.

use std::sync::Arc;

use super::done_when::DoneWhenResult;
use crate::domain::log::event::TaskCounts;
use crate::domain::task::failure_summary;
use crate::domain::task::{Task, TaskStatus};
use crate::domain::text::tags::escape_tags;
use crate::ports::BoardView;
use crate::team::NAMED_MAX;
use crate::team::running_member::RunningMember;

/// Returns the request for the lead's report.
pub(super) fn report_prompt(facts: &str, goal: Option<&str>, check_result: Option<&DoneWhenResult>) -> String {
    let goal = goal.unwrap_or("(none)");
    let check = check_result
        .map_or_else(String::new, |result| format!("\nThe check of the goal: {}", escape_tags(&result.text)));
    let facts = escape_tags(facts);
    format!(
        "<report>The team has no work left. {facts}\nThe goal: {goal}{check}\nReport to the person, or add tasks for what is missing.</report>"
    )
}

/// Returns the result of a session in one or two sentences.
pub(super) fn session_facts(view: &BoardView, counts: TaskCounts, check_result: Option<&DoneWhenResult>) -> String {
    let noun = if view.tasks.len() == 1 { "task" } else { "tasks" };
    let mut text = format!("{} {noun}: {}.", view.tasks.len(), task_counts_sentence(view, counts));
    if let Some(result) = check_result {
        text.push_str(&format!(" {}", result.for_event().sentence(counts)));
    }
    text
}

/// Returns the reasons of failed tasks for the lead's report; people have seen them already.
pub(super) fn failures(view: &BoardView) -> String {
    let failed = view.tasks.values().filter(|task| task.status == TaskStatus::Failed);
    let sentence = |task: &Arc<Task>| {
        let reason = failure_summary::summary_of(task.result.as_ref().map_or("", |result| result.summary.as_str()));
        format!(" {} ({}) failed: {}.", task.id, task.subject, reason.trim_end_matches('.'))
    };
    failed.take(NAMED_MAX).map(sentence).collect()
}

/// Returns the number of tasks in each status, and the failed tasks.
pub(super) fn task_counts_sentence(view: &BoardView, counts: TaskCounts) -> String {
    let mut parts = vec![format!("{} completed", counts.completed)];
    let is_unverified = |task: &&Arc<Task>| task.completion().is_some_and(|result| result.unverified);
    let unverified = view.tasks.values().filter(is_unverified).count();
    if unverified > 0 {
        let ids = ids_of(view.tasks.values().filter(is_unverified));
        parts.push(format!("{unverified} of them unverified ({ids})"));
    }
    let ids = ids_of(view.tasks.values().filter(|task| task.status == TaskStatus::Failed));
    for (count, word) in [
        (counts.failed, format!("failed ({ids})")),
        (counts.blocked, "blocked".to_owned()),
        (counts.pending, "pending".to_owned()),
        (counts.in_progress, "in progress".to_owned()),
    ] {
        if count > 0 {
            parts.push(format!("{count} {word}"));
        }
    }
    parts.join(", ")
}

/// Returns the ids of the first tasks.
fn ids_of<'a>(tasks: impl Iterator<Item = &'a Arc<Task>>) -> String {
    let mut ids: Vec<String> = tasks.take(NAMED_MAX + 1).map(|task| task.id.to_string()).collect();
    if ids.len() > NAMED_MAX {
        ids[NAMED_MAX] = "…".to_owned();
    }
    ids.join(", ")
}

/// Returns the members that cannot work, grouped by reason: `alice, bob: the disk is full; carol: it was asked to stop`.
pub(super) fn members_by_reason(members: &[&RunningMember]) -> String {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for member in members.iter().take(NAMED_MAX) {
        let reason = member.unusable_reason().unwrap_or_else(|| "it was asked to stop".to_owned());
        let reason = reason.lines().next().unwrap_or("").trim_end_matches('.').to_owned();
        match groups.iter_mut().find(|(other, _)| *other == reason) {
            Some((_, names)) => names.push(member.spec.name.as_str()),
            None => groups.push((reason, vec![member.spec.name.as_str()])),
        }
    }
    let groups: Vec<String> =
        groups.into_iter().map(|(reason, names)| format!("{}: {reason}", names.join(", "))).collect();
    groups.join("; ")
}
