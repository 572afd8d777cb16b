//! The outcome of a clean-up, or what it would remove.

use crate::api::clean::{Cleanup, KeptAttempt, KeptWorktree, Leftover, Selection, TakenCommits};
use crate::domain::text::units::{bytes, count};
use crate::domain::text::{one_line, shell_word};
use crate::front::cli::context::Context;
use crate::front::cli::error::CliResult;
use crate::front::cli::location;
use crate::front::cli::output::CommandAnswer;
use crate::front::text::commands::{Hint, hint, line};
use crate::front::text::style::{DIM, paint};

/// The things that a clean-up found or removed, as the answer.
pub fn cleaned(context: &Context, found: &Cleanup) -> CliResult<CommandAnswer> {
    let Selection { attempts, taken, .. } = found.selection;
    let answer = context.output.answer(found, || lines(context, found))?;
    let kept_notes = if attempts { Vec::new() } else { kept_notes(&found.attempts) };
    let taken_notes = if taken { Vec::new() } else { taken_notes(&found.taken) };
    let stays: Vec<&KeptWorktree> = found.other_worktrees().collect();
    let notes = found.leftovers.iter().map(leftover_note).map(Hint::from).chain(kept_notes).chain(taken_notes);
    let notes: Vec<Hint> = notes.chain(worktree_notes(&stays)).collect();
    let has_notes = !notes.is_empty();
    let answer = answer.notes(notes);
    Ok(match (found.is_empty(), found.removed) {
        (true, _) if has_notes => answer,
        (true, _) => answer.note(paint(DIM, "nothing to clean")),
        (false, true) => answer.note(paint(DIM, &size(found))),
        (false, false) => {
            let remove = line(format!("clean{} --yes", flags(found.selection)));
            answer.note(hint![size(found), "; ", remove, " removes them"])
        }
    })
}

/// The lines about branches with the work of failed attempts.
fn kept_notes(kept: &[KeptAttempt]) -> Vec<Hint> {
    if kept.is_empty() {
        return Vec::new();
    }
    let note =
        |kept: &KeptAttempt| format!("attempt {} at {} is kept on branch {}", kept.attempt, kept.task, kept.branch);
    let hint = hint![line("clean --attempts --yes"), " removes these branches"];
    kept.iter().map(note).map(Hint::from).chain([hint]).collect()
}

/// The lines about commits that the person took over in another form.
fn taken_notes(all_taken: &[TakenCommits]) -> Vec<Hint> {
    if all_taken.is_empty() {
        return Vec::new();
    }
    let note = |taken: &TakenCommits| {
        one_line(&format!("commits of a team that you took over in another form are kept by {}", taken.name))
    };
    let hint = hint![line("clean --taken --yes"), " removes these refs"];
    all_taken.iter().map(note).map(Hint::from).chain([hint]).collect()
}

/// The options that select files, for the hint.
fn flags(selection: Selection) -> String {
    let Selection { all, board, attempts, taken, worktrees } = selection;
    let flags = [
        (all, " --all"),
        (board, " --board"),
        (attempts, " --attempts"),
        (taken, " --taken"),
        (worktrees, " --worktrees"),
    ];
    flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).collect()
}

/// A line for each selected thing.
fn lines(context: &Context, found: &Cleanup) -> String {
    let files = found.files.iter().map(|file| location::display(&context.workspace.location, &file.path));
    let branches = found.selected_attempts().iter().map(|kept| format!("branch {}", one_line(kept.branch.short())));
    let refs = found.selected_taken().iter().map(|taken| format!("ref {}", one_line(&taken.name)));
    let worktrees = found.selected_worktrees().map(|kept| one_line(&kept.folder));
    let verb = if found.removed { "removed" } else { "would remove" };
    let names = files.map(|file| one_line(&file)).chain(branches).chain(refs).chain(worktrees);
    names.map(|name| format!("{verb} {name}\n")).collect()
}

/// The number of the selected things, and the size of the files.
fn size(found: &Cleanup) -> String {
    let mut size = format!("{}, {}", count(found.files.len(), "file"), bytes(found.bytes));
    let branches = found.selected_attempts().len();
    if branches > 0 {
        let word = if branches == 1 { "branch" } else { "branches" };
        size.push_str(&format!(", {branches} {word}"));
    }
    for (number, word) in [(found.selected_taken().len(), "ref"), (found.selected_worktrees().count(), "worktree")] {
        if number > 0 {
            size.push_str(&format!(", {}", count(number, word)));
        }
    }
    size
}

/// The line about a deleted task's worktree and branch, with the commands that remove them.
fn leftover_note(leftover: &Leftover) -> String {
    let places = [leftover.folder.clone(), leftover.branch.as_ref().map(|branch| format!("branch {branch}"))];
    let places = places.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let folder = leftover.folder.as_ref().map(|folder| format!("rm -rf {}", shell_word(folder)));
    let branch = leftover.branch.as_ref().map(|branch| format!("git branch -D {}", shell_word(branch.short())));
    let how = [folder, branch].into_iter().flatten().collect::<Vec<_>>().join(" && ");
    one_line(&format!("work of deleted {} is still there: {places} (remove it: `{how}`)", leftover.task))
}

/// The lines about worktrees that stay, with the commands that remove them.
fn worktree_notes(kept: &[&KeptWorktree]) -> Vec<Hint> {
    let note = |kept: &&KeptWorktree| {
        let KeptWorktree { task, attempt, folder, files, other_work } = kept;
        let of = attempt.map_or_else(|| format!("completed {task}"), |attempt| format!("attempt {attempt} at {task}"));
        let files = files.as_ref().filter(|files| !files.is_empty());
        let files = files.map(|files| format!(", with files that git ignores: {files}")).unwrap_or_default();
        one_line(&match other_work {
            Some(reason) => format!("{folder} of {of} is kept: {reason}"),
            None => format!("{folder} of {of} is kept{files} (remove it: `rm -rf {}`)", shell_word(folder)),
        })
    };
    let mut notes: Vec<Hint> = kept.iter().map(note).map(Hint::from).collect();
    if kept.iter().any(|kept| kept.files.is_some()) {
        let command = line("clean --worktrees --yes");
        notes.push(hint![command, " removes the worktrees with files that git ignores"]);
    }
    notes
}
