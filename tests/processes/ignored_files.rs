//! A task whose only result are files that git ignores: they reach the workspace, also if Brigade is killed while it moves them.

use std::fs;

use serde_json::Value;

use crate::testkit::process::{git, wait_until};
use crate::testkit::workspace::TestWorkspace;

/// So many that the moves take some time.
const FILES: usize = 3_000;

#[test]
fn kill_while_files_are_kept_loses_none() {
    let script = format!("mkdir -p out/reports\nfor n in $(seq {FILES}); do echo $n > out/reports/$n.md; done");
    let workspace =
        TestWorkspace::with_team(1, &format!("## Write the reports\n```sh\n{script}\necho x > out/x\n```\n"));
    workspace.write_team(1, "plan = \"plan.md\"\nisolation = \"worktree\"\nkeep = [\"out/reports/**\"]");
    workspace.write(".gitignore", "out/\n");
    git(workspace.path(), &["init", "-q", "-b", "main", "."]);
    git(workspace.path(), &["add", "-A"]);
    git(workspace.path(), &["commit", "-q", "-m", "Begin"]);
    let mut run = workspace.start(&["run", "crew"]);
    wait_until("the first file is moved", || workspace.join("out/reports").exists() || run.has_ended());
    run.kill();
    let last = workspace.run(&["run", "crew"]);
    assert_eq!(last.code, Some(0), "{last:?}");
    let mut kept: Vec<usize> = fs::read_dir(workspace.join("out/reports"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().strip_suffix(".md").unwrap().parse().unwrap())
        .collect();
    kept.sort_unstable();
    assert_eq!(kept, (1..=FILES).collect::<Vec<_>>());
    let task: Value = serde_json::from_str(&workspace.read(".tasks/task_1.json")).unwrap();
    let ignored = &task["result"]["ignoredFiles"];
    assert_eq!(ignored["moved"]["more"], FILES - 5, "{task}");
    assert_eq!(ignored["left"]["entries"][0]["path"], "out/", "{task}");
    assert!(
        last.out.contains("Files of #1 that git ignores are still in .worktrees/crew-task-1: out/"),
        "{}",
        last.out
    );
    let why = workspace.run(&["why", "1"]);
    assert!(why.out.contains("Files that git ignores were left in .worktrees/crew-task-1: out/"), "{}", why.out);
    // A clean-up without its option leaves work where it is.
    assert!(workspace.run(&["clean", "--yes"]).err.contains("brigade clean --worktrees --yes"));
    assert!(workspace.join(".worktrees/crew-task-1/out/x").exists());
    workspace.run(&["clean", "--worktrees", "--yes"]);
    assert!(!workspace.join(".worktrees/crew-task-1").exists());
}
