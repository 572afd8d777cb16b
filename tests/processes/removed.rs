//! Files and folders that are removed while a team runs.

use std::fs;

use crate::testkit::process::wait_until;
use crate::testkit::workspace::{ENDLESS, TestWorkspace, start_working};

/// Removes a folder in which the team may still make a file.
fn remove(workspace: &TestWorkspace, name: &str) {
    wait_until("the folder is removed", || fs::remove_dir_all(workspace.join(name)).is_ok());
}

#[test]
fn second_lead_is_refused_after_lead_files_removed() {
    for removed in [".team/lead.lock", ".team"] {
        let workspace = TestWorkspace::with_team(2, ENDLESS);
        let mut first = start_working(&workspace, &["run"]);
        let path = workspace.join(removed);
        // The team may make a file in it in the meantime.
        wait_until("the file is removed", || fs::remove_file(&path).is_ok() || fs::remove_dir_all(&path).is_ok());
        if removed == ".team/lead.lock" {
            let second = workspace.run(&["run"]);
            assert_eq!(second.code, Some(4), "{removed}: {second:?}");
        }
        wait_until("the lead writes its record again", || workspace.join(".team/lead.json").exists());
        let second = workspace.run(&["run"]);
        assert!(second.code == Some(4) && second.err.contains(&first.id().to_string()), "{removed}: {second:?}");
        assert_eq!((&workspace.task(1)["attempt"], &workspace.task(2)["attempt"]), (&1.into(), &1.into()), "{removed}");
        wait_until("the members receive mail", || workspace.run(&["send", "m1", "still there?"]).code == Some(0));
        first.signal("INT");
        // Two signals at once are merged.
        wait_until("the run stops", || first.output_so_far().contains("stopping"));
        first.signal("INT");
        assert_eq!(first.code(), Some(130), "{removed}: {}", first.output_so_far());
        workspace.assert_nothing_is_left_running();
    }
}

#[test]
fn removed_board_is_reported_and_exits_1() {
    let workspace = TestWorkspace::with_team(2, ENDLESS);
    let mut run = start_working(&workspace, &["run"]);
    remove(&workspace, ".tasks");
    assert_eq!(run.code(), Some(1), "{}", run.output_so_far());
    let output = run.output_so_far();
    assert!(output.contains("not deleted: #1 (One), #2 (Two), #3 (Three)"), "{output}");
    assert!(!output.contains("The board has no tasks."), "{output}");
    workspace.assert_nothing_is_left_running();
}

#[test]
fn removed_task_file_is_reported_but_deleted_is_not() {
    let workspace = TestWorkspace::with_team(
        1,
        "## One\n```sh\ntouch begun; while ! test -e open; do sleep 0.01; done\n```\n## Two\n```sh\ntrue\n```\n## Three\n```sh\ntrue\n```\n",
    );
    let mut run = workspace.start(&["run"]);
    wait_until("the member works", || workspace.join("begun").exists());
    assert_eq!(workspace.run(&["tasks", "rm", "2"]).code, Some(0));
    fs::remove_file(workspace.join(".tasks/task_3.json")).unwrap();
    workspace.write("open", "");
    assert_eq!(run.code(), Some(1), "{}", run.output_so_far());
    assert!(run.output_so_far().contains("not deleted: #3 (Three)."), "{}", run.output_so_far());
}

#[test]
fn removed_or_moved_workspace_ends_run() {
    for is_moved in [false, true] {
        let workspace = TestWorkspace::with_team(2, ENDLESS);
        fs::create_dir(workspace.join("sub")).unwrap();
        let mut run = start_working(&workspace, &["run", "--workspace", "sub"]);
        // In one step: a team that finds only half of its files removed reports the missing ones instead.
        fs::rename(workspace.join("sub"), workspace.join("moved")).unwrap();
        if !is_moved {
            wait_until("the file is removed", || fs::remove_dir_all(workspace.join("moved")).is_ok());
        }
        assert_eq!(run.code(), Some(1), "{}", run.output_so_far());
        assert!(run.output_so_far().contains("it was removed or moved away"), "{}", run.output_so_far());
        assert!(!workspace.join("sub").exists(), "the removed folder was made again: {}", run.output_so_far());
        workspace.assert_nothing_is_left_running();
    }
}

#[test]
fn removed_workers_folder_costs_no_attempt() {
    let gate = "touch begun; while ! test -e open; do sleep 0.01; done";
    let workspace = TestWorkspace::with_team(
        1,
        &format!("## One\n```sh\n{gate}\n```\n## Two\n```sh\ntrue\n```\n## Three\n```sh\ntrue\n```\n"),
    );
    let mut run = workspace.start(&["run"]);
    wait_until("the member works", || workspace.join("begun").exists());
    remove(&workspace, ".team/workers");
    workspace.write("open", "");
    assert_eq!(run.code(), Some(0), "{}", run.output_so_far());
    assert!(workspace.all_are("completed"));
    assert!(
        workspace.tasks().iter().all(|task| task["failures"].as_u64().unwrap_or(0) == 0),
        "{:#?}",
        workspace.tasks()
    );
}

#[test]
fn harness_failure_releases_task_without_counting() {
    let gate = "touch begun; while ! test -e open; do sleep 0.01; done";
    let workspace = TestWorkspace::with_team(1, &format!("## One\n```sh\n{gate}\n```\n## Two\n```sh\ntrue\n```\n"));
    let mut run = workspace.start(&["run"]);
    wait_until("the member works", || workspace.join("begun").exists());
    // The folder prevents all records while it is there.
    let folder = workspace.join(".team/workers");
    wait_until("a file is in its place", || {
        let _ = fs::remove_dir_all(&folder);
        fs::write(&folder, "").is_ok()
    });
    workspace.write("open", "");
    wait_until("the team cannot record its command", || run.output_so_far().contains("tools or workspace failed"));
    wait_until("the task is released", || workspace.task(2)["status"] == "pending");
    assert_eq!(workspace.task(2)["failures"].as_u64().unwrap_or(0), 0);
    fs::remove_file(&folder).unwrap();
    assert_eq!(run.code(), Some(0), "{}", run.output_so_far());
    assert!(workspace.all_are("completed"));
    assert_eq!(workspace.task(2)["failures"].as_u64().unwrap_or(0), 0);
}
