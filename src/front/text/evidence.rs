//! The evidence of a completed task in a few words.

use super::commands::{Hint, hint};
use super::summary::TaskOutcome;
use crate::api::Question;
use crate::domain::git::ignored_files::IgnoredFiles;
use crate::domain::task::evidence::{Caveat, joined};
use crate::domain::task::verify_run::VerifyRun;
use crate::domain::task::{TaskId, TaskResult};
use crate::domain::text::units::join_up_to;
use crate::domain::text::{first_line, one_line};

/// Ids that a sentence names.
const NAMED_MAX: usize = 5;

/// Returns the evidence of a result: of Brigade, or else of its author.
pub(super) fn evidence_text(result: &TaskResult) -> String {
    short_evidence(result).unwrap_or_else(|| first_line(&result.evidence))
}

/// Returns a note with the evidence of its result. The evidence of Brigade comes first, without the command, which can be longer than
/// the note. That of the author comes last.
pub(super) fn with_evidence(note: &str, result: &TaskResult) -> String {
    let verdict = result.verify.as_ref().map(exit_text);
    let caveat = result.caveat().map(|caveat| caveat.to_string());
    match [verdict, caveat].into_iter().flatten().reduce(|verdict, caveat| format!("{verdict}, {caveat}")) {
        Some(evidence) => joined([evidence, note.to_owned()]),
        None => joined([note.to_owned(), first_line(&result.evidence)]),
    }
}

/// Returns a sentence for each weakness of these tasks. A table may leave completed tasks out.
pub(super) fn caveat_sentences(tasks: &[TaskOutcome]) -> Vec<Hint> {
    let ids = |is_weak: fn(&&TaskOutcome) -> bool| tasks.iter().filter(is_weak).map(|task| task.id).collect();
    let unverified: Vec<TaskId> = ids(|task| task.unverified);
    let nothing_ran: Vec<TaskId> = ids(|task| task.nothing_ran);
    let mut sentences = Vec::new();
    for (ids, label) in
        [(unverified, "completed unverified"), (nothing_ran, "completed by a verify command that ran no tests")]
    {
        if let Some(first) = ids.first() {
            let named = join_up_to(ids.iter(), NAMED_MAX);
            let why = Question::Why { task: Some(*first) };
            sentences.push(hint![format!("{} {label}: {named}; ", ids.len()), why, " for the reason."]);
        }
    }
    sentences
}

/// Returns a sentence for each task with files that git ignores.
pub(super) fn ignored_file_sentences(tasks: &[TaskOutcome]) -> Vec<Hint> {
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
    let more = sentences.len().saturating_sub(NAMED_MAX);
    sentences.truncate(NAMED_MAX);
    if more > 0 {
        let files = format!("{more} more tasks have such files; ");
        sentences.push(hint![files, Question::Leftovers, " lists their worktrees."]);
    }
    sentences
}

/// Returns the evidence of a result that its author did not give: `exit 0: make test` or `unverified`. `None` if there is only the
/// author's word.
fn short_evidence(result: &TaskResult) -> Option<String> {
    match (&result.verify, result.caveat()) {
        (Some(run), None) => Some(format!("{}: {}", exit_text(run), one_line(&run.command))),
        (Some(run), Some(caveat)) => Some(format!("{}, {caveat}: {}", exit_text(run), one_line(&run.command))),
        (None, caveat) => caveat.map(|caveat| caveat.to_string()),
    }
}

fn exit_text(run: &VerifyRun) -> String {
    run.exit_status.map_or_else(|| "no exit status".to_owned(), |status| format!("exit {status}"))
}

/// Returns a sentence about the weakness of a result's evidence.
pub fn caveat_sentence(caveat: Caveat) -> &'static str {
    match caveat {
        Caveat::Unverified => "Unverified: the task has no verify command, and its agent ended without a report.",
        Caveat::NothingRan => "The verify command exited 0, but it ran no tests.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_evidence_names_command_or_caveat() {
        let verified = |output: &str| TaskResult {
            verify: Some(VerifyRun::new("make\ntest", Some(0), output)),
            ..TaskResult::new("Done.", "verify exited 0")
        };
        let unverified = TaskResult { unverified: true, ..TaskResult::new("Done.", "merged into main as 4f2a") };
        for (result, expected) in [
            (verified("ok"), Some("exit 0: make test")),
            (verified("Ran 0 tests in 0.000s"), Some("exit 0, no tests ran: make test")),
            (unverified, Some("unverified")),
            (TaskResult::new("Done.", "commit 4f2a"), None),
        ] {
            assert_eq!(short_evidence(&result).as_deref(), expected);
        }
        assert_eq!(with_evidence("Done.", &verified("ok")), "exit 0; Done.");
        assert_eq!(with_evidence("Done.", &verified("Ran 0 tests in 0.000s")), "exit 0, no tests ran; Done.");
        assert_eq!(with_evidence("Done.", &TaskResult::new("Done.", "commit 4f2a")), "Done.; commit 4f2a");
    }
}
