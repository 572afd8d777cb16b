//! The end of a task: who completed it, what shows that it is done, the attempts, and the place of the work.

use super::{Reason, reason};
use crate::api::task::TaskContext;
use crate::domain::git::dropped_lines::short_commit;
use crate::domain::git::ignored_files::{FileSize, IgnoredFiles, NAMED_MAX};
use crate::domain::git::worktree_name::WorktreeName;
use crate::domain::task::Task;
use crate::ui::approvals::verify_line;
use crate::ui::command_form::shell_word;
use crate::ui::evidence::caveat_sentence;
use crate::ui::text::{ago, one_line};

/// One line for each fact about a completed task. The first says who completed it.
pub(super) fn completion_reasons(task: &Task, context: &TaskContext<'_>) -> Vec<Reason> {
    let id = task.id.0;
    let by = task.owner.as_deref().map(|owner| format!(" by {}", one_line(owner))).unwrap_or_default();
    let at = task.updated_at.map(|at| format!(", {}", ago(at, context.now))).unwrap_or_default();
    let attempt = if task.attempt > 1 { format!(", in attempt {}", task.attempt) } else { String::new() };
    let mut facts = vec![
        reason("completed", format!("It is completed{by}{at}{attempt}."))
            .hint(format!("to have it done again: `brigade tasks reopen {id}`")),
    ];
    let Some(result) = &task.result else { return facts };
    if !result.summary.trim().is_empty() {
        let text = format!("Result: {}", one_line(&result.summary));
        facts.push(reason("result", text).hint(format!("in full: `brigade tasks show {id}`")));
    }
    if !result.evidence.trim().is_empty() {
        facts.push(reason("evidence", format!("Evidence: {}", one_line(&result.evidence))));
    }
    if let Some(caveat) = result.caveat() {
        let hint = format!("look at the work, or have it done again: `brigade tasks reopen {id}`");
        facts.push(reason("caveat", caveat_sentence(caveat).to_owned()).hint(hint));
    }
    if let Some(run) = &result.verify {
        facts.push(reason("verify", format!("The {}.", verify_line(run))));
    }
    if let Some(by) = &result.reviewed_by {
        facts.push(reason("reviewed", format!("Approved by {}.", one_line(by))));
    }
    if let Some(commit) = &result.commit {
        let short = one_line(short_commit(commit));
        facts.push(
            reason("commit", format!("The work is in commit {short}."))
                .hint(format!("to see it: `brigade tasks diff {id}`")),
        );
    }
    if let Some(files) = &result.ignored_files {
        let folder = task.worktree.as_deref().map(one_line).unwrap_or_default();
        facts.extend(ignored_file_reasons(files, &folder, context.is_worktree_removed));
    }
    for dropped in &context.dropped {
        facts.push(reason("dropped", format!("It removes lines of others on purpose: {}", one_line(dropped))));
    }
    facts
}

/// One line for the files that were moved, one for the others, and one for each that was not moved although it should be.
fn ignored_file_reasons(files: &IgnoredFiles, folder: &str, is_removed: bool) -> Vec<Reason> {
    let IgnoredFiles { moved, left, .. } = files;
    let mut facts = Vec::new();
    if !moved.is_empty() {
        facts.push(reason("moved_files", format!("Files that git ignores were moved into the workspace: {moved}.")));
    }
    if left.is_empty() {
        return facts;
    }
    if is_removed {
        let text = format!("Files that git ignores were left in {folder}, which was removed later: {left}.");
        facts.push(reason("left_files", text));
        return facts;
    }
    let path = |file: &FileSize| shell_word(&format!("{folder}/{}", one_line(file.path.trim_end_matches('/'))));
    let named: Vec<String> = left.entries.iter().take(NAMED_MAX).map(path).collect();
    let text = format!("Files that git ignores were left in {folder}: {left}.");
    facts.push(reason("left_files", text).hint(format!(
        "to take them: `cp -rn {} .`\nto see if there is other work too: `brigade clean`\nto drop them: `rm -rf {}`",
        named.join(" "),
        shell_word(folder)
    )));
    facts.extend(files.problems().map(|problem| reason("not_moved", format!("Brigade {problem}."))));
    facts
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
    use crate::domain::git::ignored_files::{FileList, NotMovedFile};
    use crate::domain::task::verify_run::VerifyRun;
    use crate::domain::task::{TaskId, TaskResult, TaskStatus};
    use crate::domain::time::UnixMs;
    use crate::ports::BoardView;
    use crate::ui::why::explain;

    #[test]
    fn why_says_how_to_take_ignored_files() {
        let entry = |path: &str| FileSize { path: path.to_owned(), bytes: 2 };
        let files = IgnoredFiles {
            left: FileList::of(vec![entry("my reports/"), entry(".env")]),
            not_moved: vec![NotMovedFile { path: ".env".to_owned(), reason: "it exists there".to_owned() }],
            ..IgnoredFiles::default()
        };
        let [left, not_moved] = &ignored_file_reasons(&files, ".worktrees/crew-task-1", false)[..] else { panic!() };
        let hint = left.hint.as_deref().unwrap();
        let copy = "`cp -rn .worktrees/crew-task-1/.env '.worktrees/crew-task-1/my reports' .`";
        assert!(hint.contains(copy), "{hint}");
        assert_eq!(not_moved.text, "Brigade cannot keep .env: it exists there.");
        let [removed] = &ignored_file_reasons(&files, ".worktrees/crew-task-1", true)[..] else { panic!() };
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
        let reasons = explain(TaskId(1), &context);
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
