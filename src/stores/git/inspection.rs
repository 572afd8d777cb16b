//! The state of git in a workspace, as `brigade doctor` reports it.

use std::path::Path;

use super::run::{git, git_in};

/// The state of git in a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inspection {
    /// There is no git.
    NoGit,
    /// The workspace is in no repository; the text is git's version.
    NoRepository(String),
    /// Git would commit run-time files.
    NotIgnored(String),
    /// Git gives no answer, for this reason.
    Failed(String),
    /// Nothing is amiss.
    Good(String),
}

/// Inspects git in `workspace`, where `run_time_file` is to be ignored. It blocks.
#[must_use]
pub fn inspect(workspace: &Path, run_time_file: &str) -> Inspection {
    let Ok(version) = git(["--version"]).ok() else { return Inspection::NoGit };
    let version = version.line();
    let is_ok = |arguments: &[&str]| git_in(workspace, arguments).run().map(|said| said.code == 0);
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
