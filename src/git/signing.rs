//! Signatures of commits. Brigade signs one commit: the merge by which the person takes a team branch over, as the person's git would.
//!
//! Git runs the signing program outside of the sandbox, with the person's key. So this git reads no setting of the repository: it has an
//! empty git folder, and only the objects are those of the repository. Its settings are those of the system and the user, and the name of
//! the person. Its environment has [`SIGNING_VARIABLES`], the absolute folders of `PATH`, the name of the person ([`identity_variables`]), those
//! settings, and the variables of every git that Brigade runs. Nothing else of the environment of Brigade.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use super::command::{GitOutput, RepoPath, git_in};
use super::files::{self, failed, remove_folder};
use super::settings::Variables;
use crate::ports::RepositoryError;

/// The empty git folder, in the git folder of the checkout. It exists while a commit is signed.
const SIGNING_FOLDER: &str = "brigade-signing";
/// The person's variables for the author and the committer of the merge.
const IDENTITY_VARIABLES: [&str; 5] =
    ["GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL", "EMAIL"];
/// The variables that a program needs to find the person's key, and to ask for its passphrase. `PATH` is passed without relative folders.
#[rustfmt::skip]
pub(super) const SIGNING_VARIABLES: [&str; 24] = [
    "HOME", "USER", "LOGNAME", "TMPDIR", "TZ", "LANG", "TERM", "COLORTERM", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY",
    "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "GNUPGHOME", "GPG_TTY",
    "GPG_AGENT_INFO", "PINENTRY_USER_DATA", "SSH_AUTH_SOCK", "SSH_AGENT_PID", "SSH_ASKPASS", "SSH_ASKPASS_REQUIRE",
    "SSH_SK_PROVIDER",
];
/// The header of a signature in a commit object; with SHA-256 it is `gpgsig-sha256`.
const SIGNATURE_HEADER: &[u8] = b"gpgsig";

impl RepoPath {
    /// Creates a commit as the person, and signs it as the person's git would. It moves no ref.
    ///
    /// # Errors
    /// Git cannot be started, or the empty git folder cannot be written. An exit code other than 0 says that there is no signature.
    pub(super) fn signed_commit_tree(
        &self,
        tree: &str,
        message: Vec<u8>,
        parents: &[&str],
    ) -> Result<GitOutput, RepositoryError> {
        let folder = SigningFolder::create(self)?;
        let parents = parents.iter().flat_map(|parent| ["-p", parent]);
        let arguments = ["commit-tree", "-S", tree].into_iter().chain(parents).chain(["-F", "-"]);
        let call = git_in(&self.work_tree, arguments).input(message).variables(identity_variables());
        let call = call.variables(folder.variables(self));
        call.signing(self.settings.signing_variables()?).run()
    }

    /// The number of commits of `to` that `from` lacks and that have no signature.
    pub(super) fn unsigned_commits(&self, from: &str, to: &str) -> Result<usize, RepositoryError> {
        let output = self.git(["rev-list", "--header", to, &format!("^{from}"), "--"]).ok()?;
        Ok(output.fields().filter(|commit| !is_signed(commit)).count())
    }
}

/// Returns true if a commit object has a signature.
fn is_signed(commit: &[u8]) -> bool {
    let head = commit.split(|byte| *byte == b'\n').take_while(|line| !line.is_empty());
    head.into_iter().any(|line| line.starts_with(SIGNATURE_HEADER))
}

/// An empty git folder, removed when this value is dropped.
struct SigningFolder(PathBuf);

impl SigningFolder {
    fn create(at: &RepoPath) -> Result<Self, RepositoryError> {
        let path = at.git_dir.join(SIGNING_FOLDER);
        remove_folder(&path)?;
        fs::create_dir_all(path.join("refs")).map_err(|error| failed("create", &path, &error))?;
        let folder = Self(path);
        let format = at.git(["rev-parse", "--show-object-format"]).ok()?.line();
        let config = match format.as_str() {
            "sha1" => "[core]\n\trepositoryFormatVersion = 0\n".to_owned(),
            _ => format!("[core]\n\trepositoryFormatVersion = 1\n[extensions]\n\tobjectFormat = {format}\n"),
        };
        files::write(&folder.0.join("config"), &config)?;
        files::write(&folder.0.join("HEAD"), "ref: refs/heads/none\n")?;
        Ok(folder)
    }

    fn variables(&self, at: &RepoPath) -> [(&'static str, PathBuf); 2] {
        [("GIT_DIR", self.0.clone()), ("GIT_OBJECT_DIRECTORY", at.common_dir.join("objects"))]
    }
}

impl Drop for SigningFolder {
    fn drop(&mut self) {
        // The next call removes what stays.
        let _ = remove_folder(&self.0);
    }
}

/// The variables of [`IDENTITY_VARIABLES`] that are set.
pub(super) fn identity_variables() -> impl Iterator<Item = (&'static str, OsString)> {
    IDENTITY_VARIABLES.iter().filter_map(|name| Some((*name, std::env::var_os(name)?)))
}

/// The variables of [`SIGNING_VARIABLES`] that are set, and `PATH`: a program in the workspace must not be found by it.
pub(super) fn signing_environment() -> Variables {
    let named = SIGNING_VARIABLES.iter().filter_map(|name| Some((name.into(), std::env::var_os(name)?)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let absolute = std::env::split_paths(&path).filter(|folder| folder.is_absolute());
    // The folders come from a list, so that they can be joined.
    named.chain([("PATH".into(), std::env::join_paths(absolute).unwrap_or_default())]).collect()
}

/// The reason of a git that could not sign, in one line.
pub(super) fn reason_of(output: &GitOutput) -> String {
    let lines = output.err.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("[GNUPG:]"));
    lines.collect::<Vec<_>>().join("; ")
}
