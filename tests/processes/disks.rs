//! A disk that is full, becomes read-only, or loses files of Brigade: the team reports it, waits, loses nothing, and
//! continues by itself.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::testkit::process::{Process, files_below, is_root, put_folder, wait_until};
use crate::testkit::workspace::TestWorkspace;

/// A disk mounted at a workspace's root, unmounted when the value is dropped.
struct Disk<'a>(&'a TestWorkspace);

impl<'a> Disk<'a> {
    /// Mounts `megabytes` of memory there. Returns `None` if this machine does not permit mounts.
    fn mount(workspace: &'a TestWorkspace, test: &str, megabytes: u32) -> Option<Self> {
        if !is_root(test) {
            return None;
        }
        let size = format!("size={megabytes}m");
        if run("mount", &["-t", "tmpfs", "-o", &size, "tmpfs"], workspace.path()) {
            return Some(Self(workspace));
        }
        println!("{test}: skipped, because tmpfs cannot be mounted here");
        None
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        // The mount stays until open files on it are closed.
        let _ = run("umount", &["--lazy"], self.0.path());
    }
}

fn run(program: &str, arguments: &[&str], path: &Path) -> bool {
    Command::new(program).args(arguments).arg(path).status().is_ok_and(|status| status.success())
}

/// A team of three that claims no task while less than 256 KB are free.
fn write_team(workspace: &TestWorkspace, plan: &str) {
    workspace.write("plan.md", plan);
    workspace.write_team(3, "plan = \"plan.md\"\nlimits = { free_bytes_min = 262144, poll_interval_ms = 1000 }");
}

/// Starts a run whose output does not go to the full disk.
fn start(workspace: &TestWorkspace, outside: &TestWorkspace, arguments: &[&str]) -> Process {
    Process::start(workspace.brigade(arguments), &outside.join("said.txt"))
}

/// Tasks that take `seconds` each, and note their runs outside.
fn small_tasks(from: u32, to: u32, outside: &TestWorkspace, seconds: &str) -> String {
    let folder = outside.path().display();
    let task = |id| format!("## Small {id}\n```sh\nsleep {seconds}\necho {id} >> {folder}/ran-{id}\n```\n");
    (from..=to).map(task).collect()
}

/// Tasks that note their start outside and wait for the file `open` there. Then they run as [`small_tasks`].
fn gated_tasks(from: u32, to: u32, outside: &TestWorkspace) -> String {
    let folder = outside.path().display();
    let gate = format!("while ! test -e {folder}/open; do sleep 0.01; done");
    let run = |id| format!("sleep 0.4\necho {id} >> {folder}/ran-{id}");
    let task = |id| format!("## Small {id}\n```sh\n: > {folder}/begun-{id}; {gate}\n{}\n```\n", run(id));
    (from..=to).map(task).collect()
}

/// Waits until these tasks wait for the file `open`.
fn wait_until_begun(outside: &TestWorkspace, ids: std::ops::RangeInclusive<u32>) {
    wait_until("the tasks have begun", || ids.clone().all(|id| outside.join(&format!("begun-{id}")).exists()));
}

/// The number of runs of this task.
fn runs(outside: &TestWorkspace, id: u32) -> usize {
    fs::read_to_string(outside.join(&format!("ran-{id}"))).unwrap_or_default().lines().count()
}

/// Checks that every file of Brigade is valid: `tasks`, `events` and `state` fail on a torn one.
fn assert_files_valid(workspace: &TestWorkspace) {
    workspace.tasks();
    workspace.state();
    for (index, event) in workspace.events().iter().enumerate() {
        assert_eq!(event["seq"], index as u64 + 1, "{event}");
    }
    for path in files_below(&workspace.join(".team/transcripts")) {
        for line in fs::read_to_string(&path).unwrap().lines().filter(|line| !line.is_empty()) {
            serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        }
    }
}

/// Checks that no task is claimed between the reports of a full disk and of free space.
fn assert_claims_nothing_while_full(workspace: &TestWorkspace) {
    let events = workspace.events();
    let warning_position = |text: &str| {
        let is_warning = |event: &Value| {
            event["kind"] == "warning" && event["about"] == "disk" && event["text"].as_str().unwrap().contains(text)
        };
        events.iter().position(is_warning).unwrap_or_else(|| panic!("the notice is missing: {text}"))
    };
    let between = &events[warning_position("claims no new tasks")..warning_position("there is room again")];
    let claims = between.iter().filter(|event| event["kind"] == "task_claimed").count();
    // Two may have polled just before the third saw the full disk.
    assert!(claims <= 2, "{between:#?}");
}

#[test]
fn full_disk_pauses_team_until_room_and_loses_nothing() {
    let (workspace, outside) = (TestWorkspace::new(), TestWorkspace::new());
    let Some(_disk) = Disk::mount(&workspace, "tasks_that_fill_the_disk", 4) else { return };
    // The first tasks fill the disk to the last byte while others run and have not reported yet.
    let hog = "## Hog\npriority: 9\n```sh\nsleep 0.3\nhead -c 8000000 /dev/zero > hog || true\n```\n";
    write_team(&workspace, &format!("{hog}{}", small_tasks(1, 40, &outside, "0.4")));
    let mut run = start(&workspace, &outside, &["run"]);
    wait_until("the disk is full", || workspace.join("hog").metadata().is_ok_and(|hog| hog.len() > 1 << 20));
    wait_until("the team reports the full disk", || run.output_so_far().contains("disk"));
    // Time enough to claim more tasks.
    std::thread::sleep(Duration::from_secs(3));
    assert!(
        (1..=40).map(|id| runs(&outside, id)).sum::<usize>() < 40,
        "the team claimed all tasks: {}",
        run.output_so_far()
    );
    assert!(!run.has_ended(), "{}", run.output_so_far());
    workspace.tasks();
    fs::remove_file(workspace.join("hog")).unwrap();
    assert_eq!(run.code(), Some(0), "{}", run.output_so_far());
    assert!(workspace.all_are("completed"), "{}", run.output_so_far());
    for id in 1..=40 {
        assert_eq!(runs(&outside, id), 1, "small {id}: {}", run.output_so_far());
    }
    for task in workspace.tasks() {
        assert_eq!((task["failures"].as_u64().unwrap_or(0), &task["attempt"]), (0, &1.into()), "{task}");
    }
    assert_files_valid(&workspace);
    assert_claims_nothing_while_full(&workspace);
    workspace.assert_no_temporaries();
}

/// A workspace mounted over itself read-only until the value is dropped.
struct ReadOnly<'a>(&'a TestWorkspace);

impl<'a> ReadOnly<'a> {
    fn turn(workspace: &'a TestWorkspace) -> Self {
        let path = workspace.path();
        let is_bound = Command::new("mount").arg("--bind").args([path, path]).status().unwrap().success();
        let read_only = Self(workspace);
        assert!(is_bound, "the folder cannot be mounted over itself");
        // The kernel refuses this while a file below is open for writing.
        wait_until("the folder becomes read-only", || run("mount", &["-o", "remount,bind,ro"], path));
        assert!(fs::write(workspace.join("probe"), "x").is_err(), "the folder is writable");
        read_only
    }
}

impl Drop for ReadOnly<'_> {
    fn drop(&mut self) {
        let _ = run("umount", &["--lazy"], self.0.path());
    }
}

#[test]
fn read_only_workspace_waits_and_loses_nothing() {
    let (workspace, outside) = (TestWorkspace::new(), TestWorkspace::new());
    let Some(_disk) = Disk::mount(&workspace, "a_workspace_that_turns_read_only", 16) else { return };
    write_team(&workspace, &gated_tasks(1, 12, &outside));
    let mut run = start(&workspace, &outside, &["run"]);
    wait_until_begun(&outside, 1..=3);
    let read_only = ReadOnly::turn(&workspace);
    outside.write("open", "");
    wait_until("the team reports the full disk", || run.output_so_far().contains("waits to be recorded"));
    wait_until("the started tasks ran", || (1..=3).all(|id| runs(&outside, id) > 0));
    assert!(!run.has_ended(), "{}", run.output_so_far());
    drop(read_only);
    assert_eq!(run.code(), Some(0), "{}", run.output_so_far());
    for id in 1..=12 {
        assert_eq!(runs(&outside, id), 1, "small {id}: {}", run.output_so_far());
    }
    assert!(workspace.all_are("completed"));
    assert_files_valid(&workspace);
}

#[test]
fn read_only_workspace_can_be_read() {
    let workspace = TestWorkspace::new();
    let Some(_disk) = Disk::mount(&workspace, "read_only_workspace_can_be_read", 16) else { return };
    workspace.write_team(1, "plan = \"plan.md\"");
    workspace.write("plan.md", "## One\n```sh\ntrue\n```\n");
    assert_eq!(workspace.run(&["run"]).code, Some(0));
    let _read_only = ReadOnly::turn(&workspace);
    for (command, expected) in
        [("team", "is not running"), ("why 1", "completed"), ("inbox", ""), ("tasks", "One"), ("log", "completes")]
    {
        let answer = workspace.run(&command.split(' ').collect::<Vec<_>>());
        assert!(answer.code == Some(0) && answer.out.contains(expected), "{command}: {answer:?}");
    }
    let refused = workspace.run(&["tasks", "add", "more"]);
    assert!(refused.code != Some(0) && refused.err.contains("mount the file system for writing"), "{refused:?}");
}

/// Runs nine tasks and calls `attack` after the first, while three others run.
fn run_with_file_attack(attack: impl FnOnce(&TestWorkspace, &Process)) -> (TestWorkspace, TestWorkspace, Process) {
    let (workspace, outside) = (TestWorkspace::new(), TestWorkspace::new());
    let plan = small_tasks(1, 1, &outside, "0") + &gated_tasks(2, 9, &outside);
    write_team(&workspace, &plan);
    let run = start(&workspace, &outside, &["run"]);
    wait_until("a task ran", || runs(&outside, 1) > 0);
    wait_until_begun(&outside, 2..=4);
    attack(&workspace, &run);
    outside.write("open", "");
    (workspace, outside, run)
}

/// `rm -rf`, while other processes may still write files there.
fn remove(workspace: &TestWorkspace, name: &str) {
    wait_until("the file is removed", || fs::remove_dir_all(workspace.join(name)).is_ok());
}

fn replace_by_folder(workspace: &TestWorkspace, name: &str) {
    put_folder(&workspace.join(name));
}

#[test]
fn removed_board_is_reported_and_later_task_runs() {
    let (workspace, outside) = (TestWorkspace::new(), TestWorkspace::new());
    write_team(&workspace, &small_tasks(1, 9, &outside, "0.4"));
    let mut up = start(&workspace, &outside, &["up", "--headless"]);
    wait_until("a task ran", || runs(&outside, 1) > 0);
    remove(&workspace, ".tasks");
    wait_until("the team says that tasks are gone", || up.output_so_far().contains("deletes #9"));
    let description = format!("```sh\necho late >> {}\n```", outside.join("late").display());
    assert_eq!(workspace.run(&["tasks", "add", "Late", "--description", &description]).code, Some(0));
    wait_until("the tasks are done", || outside.join("late").exists() && workspace.all_are("completed"));
    up.signal("INT");
    assert_eq!(up.code(), Some(130), "the removed tasks were not done: {}", up.output_so_far());
    assert!(up.output_so_far().contains("Missing from the board, but not deleted: #2"), "{}", up.output_so_far());
    workspace.assert_nothing_is_left_running();
}

#[test]
fn removed_team_folder_is_recreated() {
    let (workspace, outside, mut run) = run_with_file_attack(|workspace, _| remove(workspace, ".team"));
    assert_eq!(run.code(), Some(0), "{}", run.output_so_far());
    for id in 1..=9 {
        assert_eq!(runs(&outside, id), 1, "small {id}: {}", run.output_so_far());
    }
    assert!(workspace.all_are("completed"));
    workspace.assert_nothing_is_left_running();
    assert_eq!(workspace.run(&["send", "m1", "hello"]).code, Some(0), "the team receives mail again");
}

#[test]
fn transcript_replaced_by_folder_stops_one_teammate() {
    let (workspace, outside, mut run) =
        run_with_file_attack(|workspace, _| replace_by_folder(workspace, ".team/transcripts/m1.jsonl"));
    assert_eq!(run.code(), Some(0), "{}", run.output_so_far());
    assert!(workspace.all_are("completed"), "{}", run.output_so_far());
    assert!((1..=9).all(|id| runs(&outside, id) > 0));
    let failures: u64 = workspace.tasks().iter().filter_map(|task| task["failures"].as_u64()).sum();
    assert!(failures <= 1, "more than the held task failed: {}", run.output_so_far());
    assert!(
        run.output_so_far().contains("m1.jsonl") || run.output_so_far().contains("restart 1: "),
        "{}",
        run.output_so_far()
    );
}

#[test]
fn state_file_replaced_by_folder_pauses_team() {
    // There is a moment without file or folder, in which the team may make the file again.
    let ways =
        ["the state file cannot be read", "agent_state.json was missing", "warning: agent_state.json: cannot read"];
    let is_named = |output: &str| ways.iter().any(|way| output.contains(way));
    let (workspace, outside, mut run) = run_with_file_attack(|workspace, run| {
        replace_by_folder(workspace, "agent_state.json");
        wait_until("the team is paused", || is_named(&run.output_so_far()));
    });
    assert_eq!(run.code(), Some(1), "{}", run.output_so_far());
    assert!(workspace.tasks().iter().all(|task| task["status"] != "in_progress"), "a running task did not end");
    fs::remove_dir(workspace.join("agent_state.json")).unwrap();
    let mut again = workspace.start(&["run"]);
    assert_eq!(again.code(), Some(0), "{}", again.output_so_far());
    for id in 1..=9 {
        assert_eq!(runs(&outside, id), 1, "small {id}: {}", again.output_so_far());
    }
}

#[test]
fn task_replaced_by_folder_is_named_others_complete() {
    let (workspace, outside, mut run) =
        run_with_file_attack(|workspace, _| replace_by_folder(workspace, ".tasks/task_9.json"));
    let code = run.code();
    assert!(
        run.output_so_far().contains("task_9.json is not a valid task: it is a folder"),
        "{code:?} {}",
        run.output_so_far()
    );
    assert!((1..=8).all(|id| runs(&outside, id) == 1), "{}", run.output_so_far());
    assert_eq!(runs(&outside, 9), 0);
    assert_eq!(workspace.run(&["tasks"]).err.matches("task_9.json").count(), 1);
}
