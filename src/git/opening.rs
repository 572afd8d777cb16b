//! The checks that a repository passes before a team with isolation uses it.

use std::path::{Path, PathBuf};

use super::command::{GitOutput, RepoPath, git, git_in, path_of, text_of};
use super::settings::Settings;
use super::{DriverOptions, RUNNING_LOCK_FILE};
use crate::domain::text::one_line;
use crate::ports::RepositoryError;

/// The oldest git version that can merge without a checkout (`git merge-tree --write-tree`).
const VERSION_MIN: (u32, u32) = (2, 38);
/// An option that `git rev-parse` does not know. It prints such a one as it is, in a line of its own.
const SEPARATOR: &str = "--next-path";

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
    let arguments = [
        "rev-parse",
        "--path-format=absolute",
        "--git-dir",
        SEPARATOR,
        "--git-common-dir",
        SEPARATOR,
        "--show-toplevel",
    ];
    let output = git_in(workspace, arguments).run()?;
    if output.code != 0 {
        return Err(if is_in_no_repository(&output) {
            let reason = format!("cannot use isolation: {folder} is not in a git repository");
            RepositoryError::unusable_until(reason, "`git init && git add -A && git commit -m Start`")
        } else {
            RepositoryError::unusable(format!("cannot use the repository of {folder}: {}", output.err.trim()))
        });
    }
    let Some([git_dir, common_dir, top]) = printed_paths(&output) else {
        let reason =
            format!("cannot use the repository of {folder}: git printed something else than its three folders");
        return Err(RepositoryError::unusable(reason));
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
    // Git reads the paths of worktrees and of shared objects from files with one path in each line.
    if let Some(path) = [&top, &git_dir, &common_dir].into_iter().find(|path| has_newline(path)) {
        let path = text_of(path);
        let reason = format!("cannot use isolation: the path {} contains a newline", path.escape_debug());
        return Err(RepositoryError::unusable_until(reason, "move the repository to a path without one"));
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

/// The paths that `git rev-parse` printed, each with any bytes.
fn printed_paths(output: &GitOutput) -> Option<[PathBuf; 3]> {
    let mut rest = output.out.strip_suffix(b"\n")?;
    let between = format!("\n{SEPARATOR}\n").into_bytes();
    let mut paths = Vec::new();
    while let Some(at) = rest.windows(between.len()).position(|bytes| bytes == between) {
        paths.push(path_of(&rest[..at]));
        rest = &rest[at + between.len()..];
    }
    paths.push(path_of(rest));
    paths.try_into().ok()
}

fn has_newline(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().contains(&b'\n')
}
