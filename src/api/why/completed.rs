//! The end of a task: who completed it, what shows that it is done, the attempts, and the place of the work.

use super::CompletionFact;
use crate::api::task::TaskContext;
use crate::domain::git::ignored_files::{IgnoredFiles, NAMED_MAX};
use crate::domain::task::Task;

/// Returns the facts about a completed task. The first says who completed it.
pub(super) fn facts(task: &Task, context: &TaskContext<'_>) -> Vec<CompletionFact> {
    let mut facts =
        vec![CompletionFact::Completed { by: task.owner.clone(), at: task.updated_at, attempt: task.attempt }];
    let Some(result) = &task.result else { return facts };
    if !result.summary.trim().is_empty() {
        facts.push(CompletionFact::Result { summary: result.summary.clone() });
    }
    if !result.evidence.trim().is_empty() {
        facts.push(CompletionFact::Evidence { evidence: result.evidence.clone() });
    }
    facts.extend(result.caveat().map(|caveat| CompletionFact::Caveat { caveat }));
    facts.extend(result.verify.clone().map(|run| CompletionFact::Verify { run }));
    facts.extend(result.reviewed_by.clone().map(|by| CompletionFact::Reviewed { by }));
    facts.extend(result.commit.clone().map(|commit| CompletionFact::Commit { commit }));
    if let Some(files) = &result.ignored_files {
        facts.extend(ignored_files(files, task.worktree.as_ref(), context.is_worktree_removed));
    }
    facts.extend(context.dropped.iter().map(|reason| CompletionFact::Dropped { reason: reason.clone() }));
    facts
}

/// One fact for the files that were moved, one for the others, and one for each that was not moved although it should be.
fn ignored_files(files: &IgnoredFiles, folder: Option<&String>, is_removed: bool) -> Vec<CompletionFact> {
    let IgnoredFiles { moved, left, not_moved } = files;
    let mut facts = Vec::new();
    if !moved.is_empty() {
        facts.push(CompletionFact::MovedFiles { files: moved.clone() });
    }
    if left.is_empty() {
        return facts;
    }
    facts.push(CompletionFact::LeftFiles { files: left.clone(), folder: folder.cloned(), is_removed });
    if !is_removed {
        // Others may have written the file with the list.
        facts.extend(not_moved.iter().take(NAMED_MAX).cloned().map(CompletionFact::NotMoved));
    }
    facts
}
