//! The teams that `brigade init` writes.

use std::collections::BTreeSet;

use crate::testkit::process::{git, wait_until};
use crate::testkit::workspace::TestWorkspace;

fn initialized(arguments: &[&str]) -> TestWorkspace {
    let workspace = TestWorkspace::new();
    let answer = workspace.run(&[&["init"], arguments].concat());
    assert_eq!(answer.code, Some(0), "{arguments:?}: {answer:?}");
    workspace
}

/// Runs the team to its end. Returns the owners of the tasks.
fn owners_after_run(workspace: &TestWorkspace) -> BTreeSet<String> {
    let answer = workspace.run(&["run"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert!(workspace.all_are("completed"), "{answer:?}");
    workspace.tasks().iter().map(|task| task["owner"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn starter_members_share_the_work() {
    let both = BTreeSet::from(["alice".to_owned(), "bob".to_owned()]);
    assert_eq!(owners_after_run(&initialized(&[])), both);
    assert_eq!(owners_after_run(&initialized(&["--template", "solo"])), BTreeSet::from(["alice".to_owned()]));
    let isolated = TestWorkspace::new();
    git(isolated.path(), &["init", "-q", "-b", "main", "."]);
    assert_eq!(isolated.run(&["init", "--template", "worktrees"]).code, Some(0));
    git(isolated.path(), &["add", "-A"]);
    git(isolated.path(), &["commit", "-q", "-m", "Begin"]);
    assert_eq!(owners_after_run(&isolated), both);
    assert!(!isolated.join("report.txt").exists());
    assert_eq!(isolated.run(&["merge"]).code, Some(0));
    assert!(isolated.read("report.txt").contains("lines"));
}

#[test]
fn starter_with_review_waits_for_person() {
    let workspace = initialized(&["--template", "review"]);
    let mut run = workspace.start(&["run"]);
    wait_until("all reviews are approved", || {
        for review in workspace.json(&["review"]).as_array().unwrap() {
            workspace.run(&["review", "approve", review["id"].as_str().unwrap()]);
        }
        run.has_ended()
    });
    assert_eq!(run.code(), Some(0), "{}", run.output_so_far());
    assert!(workspace.all_are("completed"));
}

#[test]
fn starter_with_model_has_budget_and_no_plan() {
    for template in ["solo", "review", "worktrees"] {
        let workspace = initialized(&["--provider", "anthropic", "--template", template]);
        let shown = workspace.run(&["config", "show"]);
        assert_eq!(shown.code, Some(0), "{template}: {shown:?}");
        assert!(shown.out.contains("500000") && !workspace.join("plan.md").exists(), "{template}: {shown:?}");
    }
}
