//! The checks that a repository passes before a team with isolation uses it.

use std::path::{Path, PathBuf};

use super::command::{GitOutput, RepoPath, git, git_in, path_of, text_of};
use super::settings::Settings;
use super::{DriverOptions, RUNNING_LOCK_FILE};
use crate::domain::text::one_line;
use crate::ports::RepositoryError;

/// The oldest git version that can merge without a checkout (`git merge-tree --write-tree`).
const VERSION_MIN: (u32, u32) = (2, 38);

/// The person's checkout, after checks that isolation can use its repository.
pub(super) fn open_checked(workspace: &Path, drivers: DriverOptions) -> Result<RepoPath, RepositoryError> {
    check_version()?;
    let main = find_checkout(workspace, drivers)?;
    if main.common_dir.join("reftable").exists() {
        let reason = "cannot use isolation: the repository stores its refs as reftable";
        return Err(RepositoryError::unusable_until(reason, "`git refs migrate --ref-format=files`"));
    }
    if main.checked_head()?.is_some() {
        return Ok(main);
    }
    let branch = main.checked_out_branch()?.map_or_else(|| "HEAD".to_owned(), |branch| branch.to_string());
    let reason = format!("cannot create worktrees: the branch `{branch}` has no commit");
    Err(RepositoryError::unusable_until(reason, "`git add -A && git commit -m Start`, then launch the team again"))
}

fn check_version() -> Result<(), RepositoryError> {
    let version_text = git(["--version"]).ok()?.line();
    let numbers = version_text.split_whitespace().nth(2).unwrap_or_default();
    let mut numbers = numbers.split('.').map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= VERSION_MIN {
        return Ok(());
    }
    let (major, minor) = VERSION_MIN;
    Err(RepositoryError::NoGit(format!(
        "cannot use isolation: it needs git {major}.{minor} or newer, and this is {version_text}"
    )))
}

/// The person's checkout. `workspace` must be the top folder of a repository's working tree.
pub(super) fn find_checkout(workspace: &Path, drivers: DriverOptions) -> Result<RepoPath, RepositoryError> {
    let folder = one_line(&text_of(workspace));
    let arguments = ["rev-parse", "--path-format=absolute", "--git-dir", "--git-common-dir", "--show-toplevel"];
    let output = git_in(workspace, arguments).run()?;
    if output.code != 0 {
        return Err(if is_in_no_repository(&output) {
            let reason = format!("cannot use isolation: {folder} is not in a git repository");
            RepositoryError::unusable_until(reason, "`git init && git add -A && git commit -m Start`")
        } else {
            RepositoryError::unusable(format!("cannot use the repository of {folder}: {}", output.err.trim()))
        });
    }
    // Git reads the paths of worktrees and of shared objects from files with one path in each line.
    let lines = output.out.strip_suffix(b"\n").unwrap_or(&output.out).split(|byte| *byte == b'\n');
    let Ok([git_dir, common_dir, top]) = <[PathBuf; 3]>::try_from(lines.map(path_of).collect::<Vec<_>>()) else {
        let reason = format!("cannot use isolation: a path of the repository of {folder} contains a newline");
        return Err(RepositoryError::unusable_until(reason, "move the repository to a path without one"));
    };
    let resolved = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if resolved(&top) != resolved(workspace) {
        let top = one_line(&text_of(&top));
        let reason =
            format!("cannot use isolation: the workspace {folder} is not the top folder of its repository, {top}");
        return Err(RepositoryError::unusable_until(
            reason,
            format!("move the config there, or pass --workspace {top}"),
        ));
    }
    let running_lock_file = git_dir.join(RUNNING_LOCK_FILE);
    let settings = Settings::new([&git_dir, &common_dir, workspace], drivers);
    Ok(RepoPath {
        git_dir,
        common_dir,
        work_tree: workspace.to_owned(),
        running_lock_file,
        settings,
        is_confined: false,
        syncs_objects: false,
    })
}

/// Returns true if git says that a folder is in no repository. It fails for other reasons too.
pub(super) fn is_in_no_repository(output: &GitOutput) -> bool {
    output.err.contains("not a git repository")
}
