//! Hints for agents that use git: the branches, tags and stashes that are not merged, and the next step after a refused command.

use std::collections::BTreeSet;

use super::member_place::ReadOnly;
use super::output::{one_line, shortened};

/// Git's ref of the stash.
const STASH: &str = "refs/stash";
/// The most refs that one hint names.
const NAMED_REFS_MAX: usize = 3;
/// The longest name of a ref in a hint.
const NAME_CHARS_MAX: usize = 100;
/// The starts of git's messages.
const MESSAGE_STARTS: [&str; 4] = ["error: ", "fatal: ", "warning: ", "remote: "];

/// The part of a git folder that says what is merged and what is not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GitRefs {
    /// The branch that is checked out, if it is one.
    pub branch: Option<String>,
    /// The full names of branches, tags and the stash that have a file of their own. Refs that git packed are missing.
    pub names: BTreeSet<String>,
}

/// The place of a member's commands, in a team with isolation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GitPlace {
    /// The worktree of its task.
    Task,
    /// The team worktree, for the lead.
    Lead,
    /// A place where it can write nothing.
    ReadOnly(ReadOnly),
}

impl GitRefs {
    /// Returns a hint if a command, which found `before`, checked out another branch than the task's, or made a ref that is not merged.
    /// The team branch is none: Brigade renews it while commands run.
    pub fn hint_since(&self, before: &Self, task_branch: &str, team_branch: &str) -> Option<String> {
        let other_branch = self.branch.as_ref().filter(|branch| *branch != task_branch);
        let mut facts = Vec::new();
        if let Some(branch) = other_branch
            && self.branch != before.branch
        {
            facts.push(format!("the branch {} is checked out", shown(branch)));
        }
        let is_merged = |name: &str| {
            let branch = name.strip_prefix("refs/heads/");
            branch.is_some_and(|branch| {
                [task_branch, team_branch].contains(&branch) || Some(branch) == self.branch.as_deref()
            })
        };
        let made: Vec<&String> = self.names.difference(&before.names).filter(|name| !is_merged(name)).collect();
        if !made.is_empty() {
            let mut listed: Vec<String> = made.iter().take(NAMED_REFS_MAX).map(|name| described(name)).collect();
            if made.len() > NAMED_REFS_MAX {
                listed.push(format!("{} more", made.len() - NAMED_REFS_MAX));
            }
            facts.push(format!("new or changed: {}", listed.join(", ")));
        }
        if facts.is_empty() {
            return None;
        }
        Some(format!(
            "{}. The commit that is checked out when you complete the task is merged, if it contains {task_branch}; other branches, tags and the stash are not.",
            facts.join("; ")
        ))
    }
}

fn described(name: &str) -> String {
    if name == STASH {
        return "the stash (git stash pop)".to_owned();
    }
    match (name.strip_prefix("refs/heads/"), name.strip_prefix("refs/tags/")) {
        (Some(branch), _) => format!("the branch {}", shown(branch)),
        (_, Some(tag)) => format!("the tag {}", shown(tag)),
        (None, None) => shown(name),
    }
}

fn shown(name: &str) -> String {
    shortened(&one_line(name), NAME_CHARS_MAX)
}

/// The messages of git about a file outside of the place. Not all have the system's error.
const REFUSALS: [&str; 4] = [
    "Read-only file system",
    "unable to create temporary object directory",
    "unable to create directory for ",
    "could not write index",
];

/// Returns the next step if git reports in `output` that it could not write outside of the member's place. The command may have
/// succeeded in spite of that: its last part did.
pub fn refusal_hint(output: &str, place: GitPlace) -> Option<&'static str> {
    let is_message = |line: &&str| MESSAGE_STARTS.iter().any(|start| line.starts_with(start));
    output.lines().filter(is_message).find_map(|line| {
        let is_refused = REFUSALS.iter().any(|refusal| line.contains(refusal));
        if line.contains(" config file ") && (is_refused || line.contains("Device or resource busy")) {
            return Some(
                "commands cannot change the repository's git settings. Use git -c NAME=VALUE for one command, and the URL of a remote in place of its name.",
            );
        }
        if !is_refused {
            return None;
        }
        Some(match place {
            GitPlace::Task => {
                "outside of this folder the workspace is read-only. Commit here, and make other checkouts in $(mktemp -d). The commit that is checked out when you complete the task is merged."
            }
            GitPlace::Lead => "the lead's commands cannot change the repository. Add a task for each change.",
            GitPlace::ReadOnly(reason) => reason.explanation(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK_BRANCH: &str = "brigade-tasks/t/task-1";

    fn refs(branch: &str, names: &[&str]) -> GitRefs {
        let names = names.iter().map(|name| format!("refs/{name}")).collect();
        GitRefs { branch: Some(branch.to_owned()).filter(|branch| !branch.is_empty()), names }
    }

    /// The facts of a hint, without the rule.
    fn facts(before: &GitRefs, after: &GitRefs) -> Option<String> {
        let hint = after.hint_since(before, TASK_BRANCH, "brigade/t")?;
        let (facts, rule) = hint.split_once(". ").unwrap();
        assert!(rule.contains("is merged, if it contains brigade-tasks/t/task-1; other branches"), "{hint}");
        Some(facts.to_owned())
    }

    #[test]
    fn unmerged_refs_are_named_once() {
        let start = refs(TASK_BRANCH, &["heads/brigade-tasks/t/task-1"]);
        let login = refs("login", &["heads/login", "tags/v1", "stash"]);
        let named = "the branch login is checked out; new or changed: the stash (git stash pop), the tag v1";
        assert_eq!(facts(&start, &login).as_deref(), Some(named));
        assert_eq!(facts(&login, &login), None, "the same facts again");
        let back = refs(TASK_BRANCH, &["heads/brigade-tasks/t/task-1", "heads/login"]);
        assert_eq!(facts(&login, &back), None, "the task's branch again");
        assert_eq!(facts(&start, &back).as_deref(), Some("new or changed: the branch login"));
        let detached = refs("", &["heads/brigade-tasks/t/task-1"]);
        assert_eq!(facts(&start, &detached), None, "git itself describes a detached HEAD");
        let merged = refs(TASK_BRANCH, &["heads/brigade-tasks/t/task-1", "heads/brigade/t"]);
        assert_eq!(facts(&start, &merged), None, "Brigade shows a merge of another task");
        let main = refs("main", &["heads/brigade-tasks/t/task-1"]);
        assert_eq!(facts(&start, &main).as_deref(), Some("the branch main is checked out"));
    }

    #[test]
    fn hint_about_many_or_long_refs_is_short() {
        let names: Vec<String> = (1..=500).map(|number| format!("tags/{number}\n{}", "x".repeat(300))).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let hint = facts(&refs(TASK_BRANCH, &[]), &refs(&"y".repeat(5000), &names)).unwrap();
        assert!(hint.len() < 700 && !hint.contains('\n') && hint.ends_with(", 497 more"), "{hint}");
    }

    #[test]
    fn refused_git_command_names_next_step() {
        let settings = "commands cannot change the repository's git settings";
        let commit_here = "Commit here";
        // The messages of git 2.47 in a worktree.
        for (output, hint) in [
            ("error: could not write config file /r/.git/config: Device or resource busy\n", Some(settings)),
            ("error: could not lock config file .git/config: Read-only file system", Some(settings)),
            (
                "Preparing worktree\nfatal: could not create leading directories of '../x/.git': Read-only file system",
                Some(commit_here),
            ),
            ("fatal: Unable to create '/r/.git/index.lock': Read-only file system", Some(commit_here)),
            (
                "fatal: cannot lock ref 'refs/heads/a': Unable to create '/r/.git/refs/heads/a.lock': Read-only file system",
                Some(commit_here),
            ),
            ("error: remote unpack failed: unable to create temporary object directory\nTo ../..\n", Some(commit_here)),
            (
                "fatal: cannot lock ref 'refs/heads/a/b': unable to create directory for /r/.git/refs/heads/a/b",
                Some(commit_here),
            ),
            ("error: could not write index", Some(commit_here)),
            ("error: unable to unlink old 'brigade.toml': Device or resource busy", None),
            ("error: could not lock config file .git/config: File exists", None),
            ("fatal: Unable to create '/r/.git/index.lock': File exists.", None),
            ("src/a.rs: \"fatal: Read-only file system\"", None),
            ("", None),
        ] {
            let found = refusal_hint(output, GitPlace::Task);
            assert_eq!(found.is_some(), hint.is_some(), "{output}: {found:?}");
            assert!(found.unwrap_or_default().contains(hint.unwrap_or_default()), "{output}: {found:?}");
        }
        let refused = "fatal: Unable to create '/r/.git/index.lock': Read-only file system";
        assert!(refusal_hint(refused, GitPlace::Lead).unwrap().contains("Add a task"));
        let no_task = refusal_hint(refused, GitPlace::ReadOnly(ReadOnly::NoTask));
        assert_eq!(no_task, Some(ReadOnly::NoTask.explanation()));
    }
}
