//! The audit demo on unusual repositories.

use std::fs;

use crate::testkit::process::{ProcessOutput, git};
use crate::testkit::workspace::TestWorkspace;

/// Runs this project's demo in the workspace.
fn demo(workspace: &TestWorkspace, folder: &str) -> ProcessOutput {
    let mut command = workspace.command(env!("CARGO_BIN_EXE_brigade"));
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/brigade.toml");
    command.args(["run", "demo", "--config", config, "--workspace"]).arg(workspace.join(folder));
    ProcessOutput::of(command)
}

/// Makes a repository in the workspace, with one commit of all files.
fn commit_all(workspace: &TestWorkspace, subject: &str) {
    for arguments in [["init", "-q", "."].as_slice(), &["add", "-A"], &["commit", "-qm", subject]] {
        git(workspace.path(), arguments);
    }
}

/// Runs the demo, and returns its report.
fn report_of_demo(workspace: &TestWorkspace, folder: &str) -> String {
    let answer = demo(workspace, folder);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    let report = workspace.read(&format!("{folder}/REPORT.md"));
    assert!(report.starts_with("# Audit of ") && report.contains("## Repository hygiene"), "{report}");
    report
}

#[test]
fn audit_demo_reports_repository_without_commits() {
    let workspace = TestWorkspace::new();
    git(workspace.path(), &["init", "-q", "."]);
    workspace.write("main.rs", "fn main() {}\n");
    assert!(report_of_demo(&workspace, ".").contains("no commits yet"));
}

#[test]
fn audit_demo_handles_odd_file_names() {
    let workspace = TestWorkspace::new();
    fs::create_dir(workspace.join("a b")).unwrap();
    for name in [
        "a b/with space.py",
        "it's.rs",
        "\"quoted\".c",
        "-n.sh",
        "größe.go",
        "two\nlines.txt",
        "tab\there.md",
        "$(evil).js",
    ] {
        fs::write(workspace.join(name), "x = 1  # TODO: tidy\n").unwrap();
    }
    commit_all(&workspace, "All names");
    let report = report_of_demo(&workspace, ".");
    assert!(report.contains("with space.py"), "{report}");
    assert!(!workspace.join("evil").exists());
}

#[test]
fn audit_demo_without_repository_fails_with_hint() {
    let workspace = TestWorkspace::new();
    let answer = demo(&workspace, ".");
    assert_eq!(answer.code, Some(1), "{answer:?}");
    let output = answer.out + &answer.err;
    assert!(output.contains("git init") && output.contains("--workspace"), "{output}");
    assert!(!workspace.join("REPORT.md").exists());
}

#[test]
fn audit_demo_of_subfolder_reports_only_it() {
    let workspace = TestWorkspace::new();
    fs::create_dir(workspace.join("part")).unwrap();
    workspace.write("part/lib.rs", "pub fn f() {}\n");
    workspace.write("other.py", "print(1)\n");
    commit_all(&workspace, "Two parts");
    let report = report_of_demo(&workspace, "part");
    assert!(report.contains("subfolder") && !report.contains("other.py"), "{report}");
}
