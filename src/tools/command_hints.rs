//! Runs a command of a member, and adds hints about git to its outcome.

use std::ffi::OsStr;
use std::path::Path;

use super::ToolContext;
use crate::domain::git_hints::{self, GitPlace, GitRefs};
use crate::platform::reading;
use crate::platform::{FileKind, Folder};
use crate::service::ServiceError;
use crate::service::command::{self, CommandOutcome, TimeLimit};

/// The largest `HEAD`, in bytes.
const HEAD_BYTES_MAX: u64 = 4096;
/// The most refs and folders of refs that are read. With more there is no hint about refs.
const ENTRIES_MAX: usize = 1_000;
/// The deepest folder of refs.
const DEPTH_MAX: usize = 20;

/// Runs a command that the caller's agent wants, for at most `limit`. Dropping the future ends it.
///
/// # Errors
/// As [`command::run`].
pub(crate) async fn run(
    command: &str,
    limit: TimeLimit,
    context: &ToolContext,
) -> Result<CommandOutcome, ServiceError> {
    let commands = context.command_context();
    let Some(place) = git_place(context) else { return command::run(command, limit, &commands).await };
    let before = refs_here(context).await;
    let mut outcome = command::run(command, limit, &commands).await?;
    if let Some(task_worktree) = &context.working_dir.task_worktree
        && let (Some(before), Some(after)) = (before, refs_here(context).await)
    {
        let worktree = &task_worktree.worktree;
        outcome.hints.extend(after.hint_since(&before, &worktree.branch, &worktree.into));
    }
    outcome.hints.extend(git_hints::refusal_hint(&outcome.output, place).map(str::to_owned));
    Ok(outcome)
}

/// The caller's place; `None` in a team without isolation, where git works as everywhere.
fn git_place(context: &ToolContext) -> Option<GitPlace> {
    let working_dir = &context.working_dir;
    match (working_dir.read_only, &working_dir.task_worktree) {
        (Some(reason), _) => Some(GitPlace::ReadOnly(reason)),
        (None, Some(_)) => Some(GitPlace::Task),
        (None, None) => working_dir.port_base.map(|_| GitPlace::Lead),
    }
}

/// Reads the refs in the caller's folder on a blocking thread.
async fn refs_here(context: &ToolContext) -> Option<GitRefs> {
    let root = context.working_dir.root.clone();
    tokio::task::spawn_blocking(move || read_refs(&root)).await.ok().flatten()
}

/// The refs of the git folder in `root`. Commands may have written there anything: no link is followed, and everything is bounded.
fn read_refs(root: &Path) -> Option<GitRefs> {
    let git = Folder::open(root).ok()?.open_folder(".git".as_ref()).ok()?;
    let head = reading::read_all(git.open_for_reading("HEAD".as_ref()).ok()?, HEAD_BYTES_MAX).ok()?;
    let head = String::from_utf8_lossy(&head);
    let branch = head.trim_end().strip_prefix("ref: refs/heads/").map(str::to_owned);
    let mut reader = RefReader { refs: GitRefs { branch, ..GitRefs::default() }, entries_left: ENTRIES_MAX };
    let refs = git.open_folder("refs".as_ref()).ok()?;
    for name in ["heads", "tags"] {
        if let Ok(folder) = refs.open_folder(name.as_ref()) {
            reader.read(&folder, &format!("refs/{name}"), 0)?;
        }
    }
    if refs.open_for_reading("stash".as_ref()).is_ok() {
        reader.refs.names.insert("refs/stash".to_owned());
    }
    Some(reader.refs)
}

struct RefReader {
    refs: GitRefs,
    entries_left: usize,
}

impl RefReader {
    /// Adds the refs in a folder and below it. Returns `None` at a limit.
    fn read(&mut self, folder: &Folder, path: &str, depth: usize) -> Option<()> {
        let entries = folder.entries(self.entries_left + 1).ok()?;
        self.entries_left = self.entries_left.checked_sub(entries.len()).filter(|_| depth < DEPTH_MAX)?;
        for (name, kind) in entries {
            let path = format!("{path}/{}", name.to_string_lossy());
            if kind == FileKind::Folder {
                self.read(&folder.open_folder(&name).ok()?, &path, depth + 1)?;
            } else if kind == FileKind::File && !is_lock(&name) {
                self.refs.names.insert(path);
            }
        }
        Some(())
    }
}

/// Returns true for git's lock of a ref, which no ref can be named like.
fn is_lock(name: &OsStr) -> bool {
    Path::new(name).extension() == Some("lock".as_ref())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    /// Runs commands of git in a shell, as an agent does.
    fn run_git(folder: &Path, script: &str) {
        let mut shell = Command::new("sh");
        shell.arg("-ec").arg(script).current_dir(folder).env("HOME", folder);
        for variable in ["GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"] {
            shell.env(variable, "alice");
        }
        let output = shell.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    fn place() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        run_git(folder.path(), "git init -q -b work; echo a > a; git add a; git commit -q -m Begin");
        folder
    }

    #[test]
    fn branches_tags_and_stash_of_git_are_read() {
        let folder = place();
        let start = read_refs(folder.path()).unwrap();
        assert_eq!(start.branch.as_deref(), Some("work"));
        assert_eq!(start.names, ["refs/heads/work".to_owned()].into());
        run_git(folder.path(), "git checkout -q -b feature/login; git tag v1; echo b > a; git stash -q; git branch ä");
        let after = read_refs(folder.path()).unwrap();
        assert_eq!(after.branch.as_deref(), Some("feature/login"));
        let made = ["refs/heads/feature/login", "refs/heads/ä", "refs/stash", "refs/tags/v1"];
        assert_eq!(after.names.difference(&start.names).collect::<Vec<_>>(), made);
        run_git(folder.path(), "git stash pop -q; git tag -d v1; git gc -q; git checkout -q --detach");
        let packed = read_refs(folder.path()).unwrap();
        assert_eq!((packed.branch, packed.names), (None, [].into()));
    }

    #[test]
    fn git_folder_of_other_kind_has_no_refs() {
        let folder = place();
        let git = folder.path().join(".git");
        let tags = git.join("refs/tags");
        for number in 0..ENTRIES_MAX {
            fs::write(tags.join(number.to_string()), "").unwrap();
        }
        assert_eq!(read_refs(folder.path()), None, "too many refs");
        fs::remove_dir_all(&tags).unwrap();
        symlink("/etc", &tags).unwrap();
        assert_eq!(
            read_refs(folder.path()).unwrap().names,
            ["refs/heads/work".to_owned()].into(),
            "a link to other files"
        );
        fs::remove_file(git.join("HEAD")).unwrap();
        run_git(folder.path(), "mkfifo .git/HEAD");
        assert_eq!(read_refs(folder.path()), None, "a pipe");
        fs::remove_dir_all(&git).unwrap();
        fs::write(&git, "gitdir: /nowhere\n").unwrap();
        assert_eq!(read_refs(folder.path()), None, "a file");
    }
}
