//! The end of a task as sentences: who completed it, what shows that it is done, and the place of the work.

use super::{Sentence, hinted};
use crate::api::why::CompletionFact;
use crate::api::{OrderForm, Question};
use crate::domain::git::dropped_lines::short_commit;
use crate::domain::git::ignored_files::{FileList, FileSize, NAMED_MAX};
use crate::domain::git::worktree_name::WorktreeName;
use crate::domain::task::TaskId;
use crate::domain::text::{one_line, shell_word};
use crate::domain::time::UnixMs;
use crate::front::text::commands::hint;
use crate::front::text::evidence::caveat_sentence;
use crate::front::text::lines::ago;
use crate::front::text::requests::verify_line;

pub(super) fn fact_sentence(id: TaskId, fact: &CompletionFact, now: UnixMs) -> Sentence {
    let reopen = || OrderForm::Reopen { tasks: vec![id] };
    match fact {
        CompletionFact::Completed { by, at, attempt } => {
            let by = by.as_deref().map(|owner| format!(" by {}", one_line(owner))).unwrap_or_default();
            let at = at.map(|at| format!(", {}", ago(at, now))).unwrap_or_default();
            let attempt = if *attempt > 1 { format!(", in attempt {attempt}") } else { String::new() };
            hinted(format!("It is completed{by}{at}{attempt}."), hint!["to have it done again: ", reopen()])
        }
        CompletionFact::Result { summary } => {
            hinted(format!("Result: {}", one_line(summary)), hint!["in full: ", Question::Task { task: id }])
        }
        CompletionFact::Evidence { evidence } => (format!("Evidence: {}", one_line(evidence)), None),
        CompletionFact::Caveat { caveat } => {
            hinted(caveat_sentence(*caveat), hint!["look at the work, or have it done again: ", reopen()])
        }
        CompletionFact::Verify { run } => (format!("The {}.", verify_line(run)), None),
        CompletionFact::Reviewed { by } => (format!("Approved by {}.", one_line(by)), None),
        CompletionFact::Commit { commit } => {
            let short = one_line(short_commit(commit));
            hinted(format!("The work is in commit {short}."), hint!["to see it: ", Question::Diff { task: id }])
        }
        CompletionFact::MovedFiles { files } => {
            (format!("Files that git ignores were moved into the workspace: {files}."), None)
        }
        CompletionFact::LeftFiles { files, folder, is_removed } => {
            left_files(files, &folder.as_deref().map(one_line).unwrap_or_default(), *is_removed)
        }
        CompletionFact::NotMoved(file) => (format!("Brigade {file}."), None),
        CompletionFact::Dropped { reason } => {
            (format!("It removes lines of others on purpose: {}", one_line(reason)), None)
        }
    }
}

/// The files that git ignores, which are still in `folder`, or were removed with it.
fn left_files(left: &FileList, folder: &str, is_removed: bool) -> Sentence {
    if is_removed {
        return (format!("Files that git ignores were left in {folder}, which was removed later: {left}."), None);
    }
    let path = |file: &FileSize| shell_word(&format!("{folder}/{}", one_line(file.path.trim_end_matches('/'))));
    let named: Vec<String> = left.entries.iter().take(NAMED_MAX).map(path).collect();
    let hint = hint![
        format!("to take them: `cp -rn {} .`\nto see if there is other work too: ", named.join(" ")),
        Question::Leftovers,
        format!("\nto drop them: `rm -rf {}`", shell_word(folder))
    ];
    hinted(format!("Files that git ignores were left in {folder}: {left}."), hint)
}

/// The folder and the branch of a task's worktree.
pub fn worktree_location(folder: &str) -> String {
    let branch = WorktreeName::of_folder(folder).map(|name| format!(", on branch {}", one_line(name.branch().short())));
    format!("{}{}", one_line(folder), branch.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::api::task::TaskContext;
    use crate::api::why::explain;
    use crate::domain::git::ignored_files::{IgnoredFiles, NotMovedFile};
    use crate::domain::task::verify_run::VerifyRun;
    use crate::domain::task::{Task, TaskResult, TaskStatus};
    use crate::front::text::commands::Commands;
    use crate::front::text::why::{ReasonText, render};
    use crate::ports::BoardView;

    #[test]
    fn why_says_how_to_take_ignored_files() {
        let entry = |path: &str| FileSize { path: path.to_owned(), bytes: 2 };
        let files = IgnoredFiles {
            left: FileList::of(vec![entry("my reports/"), entry(".env")]),
            not_moved: vec![NotMovedFile { path: ".env".to_owned(), reason: "it exists there".to_owned() }],
            ..IgnoredFiles::default()
        };
        let mut task = Task::new(TaskId(1), "First");
        task.status = TaskStatus::Completed;
        task.worktree = Some(".worktrees/crew-task-1".to_owned());
        task.result = Some(TaskResult { ignored_files: Some(files), ..TaskResult::new("", "") });
        let view = BoardView { tasks: [(task.id, Arc::new(task))].into(), ..BoardView::default() };
        let reasons = |is_worktree_removed| -> Vec<ReasonText> {
            let context = TaskContext { is_worktree_removed, ..TaskContext::of(&view, UnixMs(0)) };
            render(TaskId(1), &explain(TaskId(1), &context), context.now, &Commands::default())
        };
        let [_, left, not_moved] = &reasons(false)[..] else { panic!() };
        let hint = left.hint.as_deref().unwrap();
        let copy = "`cp -rn .worktrees/crew-task-1/.env '.worktrees/crew-task-1/my reports' .`";
        assert!(hint.contains(copy), "{hint}");
        assert_eq!(not_moved.text, "Brigade cannot keep .env: it exists there.");
        let [_, removed] = &reasons(true)[..] else { panic!() };
        assert!(removed.text.contains("which was removed later") && removed.hint.is_none(), "{}", removed.text);
    }

    #[test]
    fn why_shows_completion_with_commit_and_drops() {
        let mut task = Task::new(TaskId(1), "First");
        task.status = TaskStatus::Completed;
        (task.owner, task.attempt, task.updated_at) = (Some("alice".into()), 2, Some(UnixMs(5_000)));
        task.result = Some(TaskResult {
            verify: Some(VerifyRun::new("make test", Some(0), "")),
            commit: Some("486eee0123456789486eee0123456789486eee01".into()),
            reviewed_by: Some("bob".into()),
            ..TaskResult::new("All of it.\nReally.", "verify exited 0 on your work merged into main; merged as 486eee0")
        });
        let view = BoardView { tasks: [(task.id, Arc::new(task))].into(), ..BoardView::default() };
        let context = TaskContext {
            dropped: vec!["the old list was \u{1b}[2Jwrong".into()],
            ..TaskContext::of(&view, UnixMs(65_000))
        };
        let reasons = render(TaskId(1), &explain(TaskId(1), &context), context.now, &Commands::default());
        let hint = reasons.iter().find(|reason| reason.kind == "commit").and_then(|reason| reason.hint.as_deref());
        // The commit is a merge, of which `git show` shows nothing.
        assert_eq!(hint, Some("to see it: `brigade tasks diff 1`"));
        let shown: Vec<String> = reasons.into_iter().map(|reason| reason.text).collect();
        assert_eq!(
            shown,
            [
                "It is completed by alice, 1 min ago, in attempt 2.",
                "Result: All of it. Really.",
                "Evidence: verify exited 0 on your work merged into main; merged as 486eee0",
                "The verify passed: make test (exit 0).",
                "Approved by bob.",
                "The work is in commit 486eee012345.",
                "It removes lines of others on purpose: the old list was \\u{1b}[2Jwrong",
            ]
        );
    }
}
