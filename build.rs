//! Names the commit, the profile and the target of the build for `brigade --version`.
//!
//! Only release builds name the commit. A development build would be compiled again after each commit.

use std::path::Path;
use std::process::Command;

/// The file in a packaged crate that names its commit.
const PACKAGED: &str = ".cargo_vcs_info.json";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=BRIGADE_COMMIT");
    let profile = std::env::var("PROFILE").unwrap_or_default();
    let target = std::env::var("TARGET").unwrap_or_default();
    let commit = if profile == "release" { commit() } else { None };
    let commit = commit.map(|commit| format!("{commit}, ")).unwrap_or_default();
    println!("cargo:rustc-env=BRIGADE_BUILD={commit}{profile}, {target}");
}

/// The commit that is built: the value of `BRIGADE_COMMIT`, the commit of the packaged crate, or that of the repository. `None` if it is
/// unknown.
fn commit() -> Option<String> {
    let given = std::env::var("BRIGADE_COMMIT").map(|commit| shorten(&commit)).unwrap_or_default();
    if !given.is_empty() {
        return Some(given);
    }
    if Path::new(PACKAGED).exists() {
        println!("cargo:rerun-if-changed={PACKAGED}");
        let info = std::fs::read_to_string(PACKAGED).ok()?;
        let (_, rest) = info.split_once("\"sha1\"")?;
        return rest.split('"').nth(1).map(shorten);
    }
    println!("cargo:rerun-if-changed=.git/HEAD");
    println!("cargo:rerun-if-changed=.git/logs/HEAD");
    println!("cargo:rerun-if-changed=src");
    // Without `.git` here, git could find the repository of another project in a parent folder.
    let has_repository = Path::new(".git").exists();
    let output = Command::new("git").args(["describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]).output();
    let output = output.ok().filter(|output| has_repository && output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

/// The first 12 letters and digits of a commit's id.
fn shorten(commit: &str) -> String {
    commit.chars().filter(char::is_ascii_alphanumeric).take(12).collect()
}
