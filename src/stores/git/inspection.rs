//! The state of git in a workspace, as `brigade doctor` reports it.

use std::path::Path;

use super::command::{git, git_in};

/// The state of git in a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inspection {
    /// Git was not found.
    NoGit,
    /// The workspace is not in a repository. The text is git's version.
    NoRepository(String),
    /// Git does not ignore Brigade's run-time files. The text is git's version.
    NotIgnored(String),
    /// Git failed, for this reason.
    Failed(String),
    /// No problem was found. The text is git's version.
    Good(String),
}

/// Inspects git in `workspace`. Git should ignore `run_time_file`. It blocks.
pub fn inspect(workspace: &Path, run_time_file: &str) -> Inspection {
    let Ok(version) = git(["--version"]).ok() else { return Inspection::NoGit };
    let version = version.line();
    let is_ok = |arguments: &[&str]| git_in(workspace, arguments).run().map(|output| output.code == 0);
    match is_ok(&["rev-parse", "--is-inside-work-tree"]) {
        Err(error) => return Inspection::Failed(error.to_string()),
        Ok(false) => return Inspection::NoRepository(version),
        Ok(true) => {}
    }
    match is_ok(&["check-ignore", "-q", run_time_file]) {
        Err(error) => Inspection::Failed(error.to_string()),
        Ok(false) => Inspection::NotIgnored(version),
        Ok(true) => Inspection::Good(version),
    }
}
