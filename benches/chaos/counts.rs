//! Counters of attacks and violations, and their table.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Attacks and other actions, in the order of the table.
pub const DONE: [(&str, &str); 19] = [
    ("workspaces", "repositories with a team, each drained in the end"),
    ("launches", "teams started"),
    ("kills", "SIGKILLs and SIGTERMs sent, of whatever kind"),
    ("kills-lead", "of a lead, with or without all it had started"),
    ("kills-guard", "of guards, inits and commands"),
    ("kills-git", "of a git of Brigade or of a command, in the middle of its work"),
    ("kills-command", "of a claimer, a sender, a person's command"),
    ("stops", "leads, guards and commands suspended and woken again"),
    ("two-leads", "two leads started at once, or one beside a suspended one"),
    ("replaced", "files replaced by folders, folders and locks removed"),
    ("read-only", "times a workspace turned read-only"),
    ("full-disk", "times a disk was full to the last byte"),
    ("clicks", "clicks in the state file, each followed by a kill"),
    ("tasks", "tasks accepted"),
    ("attempts", "attempts that ran"),
    ("claims", "claims by command"),
    ("mail", "messages accepted"),
    ("commits", "commits by teammates of tasks that are completed"),
    ("lines", "lines added by commits in the merged branch"),
];

/// Violations: each counter must stay zero.
pub const WRONG: [(&str, &str); 22] = [
    ("lost-tasks", "accepted, and not completed in the end"),
    ("doubled-tasks", "asked for once, twice on the board"),
    ("undone-tasks", "completed, then not completed any more"),
    ("run-twice", "attempts whose command was begun twice"),
    ("two-owners", "attempts that two held, or that went back"),
    ("completed-twice", "completions told to two"),
    ("lost-mail", "accepted, and in no transcript"),
    ("doubled-mail", "in a transcript twice"),
    ("reordered-mail", "behind a later one of the same sender"),
    ("lost-clicks", "wishes of the person that a launch did not find"),
    ("orphans", "processes that outlived their lead"),
    ("second-leads", "processes that led a workspace that was led"),
    ("torn-files", "files that are no whole version"),
    ("lost-lines", "added by a commit, removed by none, and gone"),
    ("short-worktrees", "given to an attempt with unchanged files missing"),
    ("lost-commits", "of a completed task, and on no branch of the team"),
    ("doubled-merges", "tasks merged twice"),
    ("broken-branches", "branches that went back, or repositories that are not sound"),
    ("temporaries", "temporaries and locks left after the last run"),
    ("worktrees", "worktrees, branches and marks left after the last run"),
    ("panics", "processes that panicked"),
    ("hung", "processes that had to be given up"),
];

/// The most violations of one kind that are printed in full.
const PRINTED_MAX: u64 = 5;

/// The counters of all workspaces.
#[derive(Default)]
pub struct Counts(Mutex<BTreeMap<&'static str, u64>>);

impl Counts {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, row: &'static str, times: usize) {
        debug_assert!(DONE.iter().any(|(name, _)| *name == row), "{row} is not in the table");
        *self.lock().entry(row).or_default() += times as u64;
    }

    pub fn kill(&self, row: &'static str) {
        self.add("kills", 1);
        self.add(row, 1);
    }

    pub fn wrong(&self, row: &'static str, text: &str) {
        debug_assert!(WRONG.iter().any(|(name, _)| *name == row), "{row} is not in the table");
        let mut counts = self.lock();
        let times = counts.entry(row).or_default();
        *times += 1;
        if *times <= PRINTED_MAX {
            eprintln!("WRONG {row}: {text}");
        }
    }

    pub fn of(&self, row: &'static str) -> u64 {
        self.lock().get(row).copied().unwrap_or(0)
    }

    /// The number of all violations.
    pub fn all_wrong(&self) -> u64 {
        WRONG.iter().map(|(row, _)| self.of(row)).sum()
    }

    pub fn table(&self) -> String {
        let row = |(name, about): &(&'static str, &str)| format!("{name:16} {:>8}  {about}", self.of(name));
        let done = DONE.iter().map(row);
        let wrong = WRONG.iter().map(row);
        let lines: Vec<String> = done.chain([String::new(), "must be zero:".to_owned()]).chain(wrong).collect();
        lines.join("\n")
    }
}
