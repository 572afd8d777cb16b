//! Hints for agents about git: the next step after a refused command, and what counts after one that leaves the branch.

use crate::domain::team::member_place::ReadOnly;

/// The starts of git's messages.
const MESSAGE_STARTS: [&str; 4] = ["error: ", "fatal: ", "warning: ", "remote: "];

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

/// The messages of git about a file outside of the place. Not all have the system's error.
const REFUSALS: [&str; 4] = [
    "Read-only file system",
    "unable to create temporary object directory",
    "unable to create directory for ",
    "could not write index",
];

/// The starts of git's messages when a branch or a stash was made.
const MADE: [&str; 2] = ["Switched to a new branch '", "Saved working directory and index state "];

/// The last line of a git that could not sign a commit: the program has no key, or asks for a passphrase.
const NOT_COMMITTED: &str = "fatal: failed to write commit object";

/// Returns the next step if git reports in `output` that it could not write outside of the member's place or not sign, or that it made a
/// branch or a stash in the task's. The command may have succeeded in spite of a refusal: its last part did.
pub fn hint(output: &str, place: GitPlace) -> Option<&'static str> {
    let is_made = || output.lines().any(|line| MADE.iter().any(|start| line.starts_with(start)));
    if let Some(hint) = refusal_hint(output, place) {
        return Some(hint);
    }
    match place {
        GitPlace::Task if output.lines().any(|line| line == NOT_COMMITTED) => {
            Some("if git could not sign the commit, use git commit --no-gpg-sign.")
        }
        GitPlace::Task if is_made() => Some(
            "the commit that is checked out when you complete the task is merged; other branches, tags and stashes are not.",
        ),
        _ => None,
    }
}

fn refusal_hint(output: &str, place: GitPlace) -> Option<&'static str> {
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
        if line.contains("failed to remove .agent/") {
            return Some("Brigade's folder .agent stays. Use git clean -e .agent, or end the command with || true.");
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
            ("error: gpg failed to sign the data:\n\nfatal: failed to write commit object\n", Some("--no-gpg-sign")),
            ("Switched to a new branch 'a'\n", Some("is merged; other branches")),
            ("Saved working directory and index state WIP on a: 1 b\nx\n", Some("tags and stashes are not")),
            ("Switched to branch 'a'\n", None),
            ("error: could not write index", Some(commit_here)),
            ("warning: failed to remove .agent/port: Read-only file system", Some("git clean -e .agent")),
            ("error: unable to unlink old 'brigade.toml': Device or resource busy", None),
            ("error: could not lock config file .git/config: File exists", None),
            ("fatal: Unable to create '/r/.git/index.lock': File exists.", None),
            ("src/a.rs: \"fatal: Read-only file system\"", None),
            ("", None),
        ] {
            let found = super::hint(output, GitPlace::Task);
            assert_eq!(found.is_some(), hint.is_some(), "{output}: {found:?}");
            assert!(found.unwrap_or_default().contains(hint.unwrap_or_default()), "{output}: {found:?}");
        }
        let refused = "fatal: Unable to create '/r/.git/index.lock': Read-only file system";
        assert!(refusal_hint(refused, GitPlace::Lead).unwrap().contains("Add a task"));
        let no_task = refusal_hint(refused, GitPlace::ReadOnly(ReadOnly::NoTask));
        assert_eq!(no_task, Some(ReadOnly::NoTask.explanation()));
    }
}
