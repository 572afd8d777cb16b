//! A disk that fills up, turns read-only, or loses what is ours: the team says so, waits, loses nothing, and goes on by itself.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::support::{Place, Process, files_below, is_root, put_folder, wait_until};

/// A disk of its own at a place's root, gone with the value.
struct Disk<'a>(&'a Place);

impl<'a> Disk<'a> {
    /// Mounts `megabytes` of memory there; none when this machine does not let us.
    fn mount(place: &'a Place, test: &str, megabytes: u32) -> Option<Self> {
        if !is_root(test) {
            return None;
        }
        let size = format!("size={megabytes}m");
        if run("mount", &["-t", "tmpfs", "-o", &size, "tmpfs"], place.path()) {
            return Some(Self(place));
        }
        println!("{test}: skipped, because tmpfs cannot be mounted here");
        None
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        // What is still open there keeps it until it is closed.
        let _ = run("umount", &["--lazy"], self.0.path());
    }
}

fn run(program: &str, arguments: &[&str], path: &Path) -> bool {
    Command::new(program).args(arguments).arg(path).status().is_ok_and(|status| status.success())
}

/// A team of three on a place, that takes no new work once less than 256 KB are free.
fn write_team(place: &Place, plan: &str) {
    place.write("plan.md", plan);
    place.write_team(3, "plan = \"plan.md\"\nlimits = { free_bytes_min = 262144, poll_interval_ms = 1000 }");
}

/// Starts a run whose output goes elsewhere than to the disk that is full.
fn start(place: &Place, outside: &Place, arguments: &[&str]) -> Process {
    Process::start(place.brigade(arguments), &outside.join("said.txt"))
}

/// Tasks that take a moment each and note that they ran, outside.
fn small_tasks(from: u32, to: u32, outside: &Place, seconds: &str) -> String {
    let folder = outside.path().display();
    let task = |id| format!("## Small {id}\n```sh\nsleep {seconds}\necho {id} >> {folder}/ran-{id}\n```\n");
    (from..=to).map(task).collect()
}

/// How often the small tasks ran.
fn runs(outside: &Place, id: u32) -> usize {
    fs::read_to_string(outside.join(&format!("ran-{id}"))).unwrap_or_default().lines().count()
}

/// Every file of ours is whole: `tasks`, `events` and `state` fail on one that is torn.
fn assert_whole(place: &Place) {
    place.tasks();
    place.state();
    for (index, event) in place.events().iter().enumerate() {
        assert_eq!(event["seq"], index as u64 + 1, "{event}");
    }
    for path in files_below(&place.join(".team/transcripts")) {
        for line in fs::read_to_string(&path).unwrap().lines().filter(|line| !line.is_empty()) {
            serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        }
    }
}

/// Nothing is claimed from when the team says that the disk is full until it says that there is room.
fn assert_claims_nothing_while_full(place: &Place) {
    let events = place.events();
    let said = |text: &str| {
        let says = |event: &Value| {
            event["kind"] == "warning" && event["about"] == "disk" && event["text"].as_str().unwrap().contains(text)
        };
        events.iter().position(says).unwrap_or_else(|| panic!("it never said: {text}"))
    };
    let between = &events[said("no new work is taken")..said("there is room again")];
    let claims = between.iter().filter(|event| event["kind"] == "task_claimed").count();
    // Two may have looked just before the third saw that it is full.
    assert!(claims <= 2, "{between:#?}");
}

#[test]
fn tasks_that_fill_the_disk_lose_nothing_and_the_team_goes_on_once_there_is_room() {
    let (place, outside) = (Place::new(), Place::new());
    let Some(_disk) = Disk::mount(&place, "tasks_that_fill_the_disk", 4) else { return };
    // The first of them fill the disk to the last byte, while others are at work and have yet to report.
    let hog = "## Hog\npriority: 9\n```sh\nsleep 0.3\nhead -c 8000000 /dev/zero > hog || true\n```\n";
    write_team(&place, &format!("{hog}{}", small_tasks(1, 40, &outside, "0.4")));
    let mut run = start(&place, &outside, &["run"]);
    wait_until("the disk is full", || place.join("hog").metadata().is_ok_and(|hog| hog.len() > 1 << 20));
    wait_until("the team says so", || run.said().contains("disk"));
    // Time enough to take more work, if it did.
    std::thread::sleep(Duration::from_secs(3));
    assert!((1..=40).map(|id| runs(&outside, id)).sum::<usize>() < 40, "it worked on: {}", run.said());
    assert!(!run.has_ended(), "{}", run.said());
    place.tasks();
    fs::remove_file(place.join("hog")).unwrap();
    assert_eq!(run.code(), Some(0), "{}", run.said());
    assert!(place.all_are("completed"), "{}", run.said());
    for id in 1..=40 {
        assert_eq!(runs(&outside, id), 1, "small {id}: {}", run.said());
    }
    for task in place.tasks() {
        assert_eq!((task["failures"].as_u64().unwrap_or(0), &task["attempt"]), (0, &1.into()), "{task}");
    }
    assert_whole(&place);
    assert_claims_nothing_while_full(&place);
    place.assert_no_temporaries();
}

/// A place that cannot be written, until the value is dropped: its folder lies over itself, read-only.
struct ReadOnly<'a>(&'a Place);

impl<'a> ReadOnly<'a> {
    fn turn(place: &'a Place) -> Self {
        let path = place.path();
        let is_bound = Command::new("mount").arg("--bind").args([path, path]).status().unwrap().success();
        let read_only = Self(place);
        assert!(is_bound, "cannot be mounted over itself");
        // It is refused for as long as somebody has a file there open to write it.
        wait_until("it turns read-only", || run("mount", &["-o", "remount,bind,ro"], path));
        assert!(fs::write(place.join("probe"), "x").is_err(), "it can be written");
        read_only
    }
}

impl Drop for ReadOnly<'_> {
    fn drop(&mut self) {
        let _ = run("umount", &["--lazy"], self.0.path());
    }
}

#[test]
fn a_workspace_that_turns_read_only_and_comes_back_loses_nothing() {
    let (place, outside) = (Place::new(), Place::new());
    let Some(_disk) = Disk::mount(&place, "a_workspace_that_turns_read_only", 16) else { return };
    write_team(&place, &small_tasks(1, 12, &outside, "0.5"));
    let mut run = start(&place, &outside, &["run"]);
    wait_until("one ran", || runs(&outside, 1) > 0);
    let read_only = ReadOnly::turn(&place);
    wait_until("the team says so", || run.said().contains("waits to be recorded"));
    wait_until("what was begun ran", || runs(&outside, 3) > 0);
    assert!(!run.has_ended(), "{}", run.said());
    drop(read_only);
    assert_eq!(run.code(), Some(0), "{}", run.said());
    for id in 1..=12 {
        assert_eq!(runs(&outside, id), 1, "small {id}: {}", run.said());
    }
    assert!(place.all_are("completed"));
    assert_whole(&place);
}

/// A run of nine tasks to whose files somebody does something in the middle.
fn attacked(attack: impl FnOnce(&Place)) -> (Place, Place, Process) {
    let (place, outside) = (Place::new(), Place::new());
    write_team(&place, &small_tasks(1, 9, &outside, "0.4"));
    let run = start(&place, &outside, &["run"]);
    wait_until("one ran", || runs(&outside, 1) > 0);
    attack(&place);
    (place, outside, run)
}

/// `rm -rf`, while others may still put files there.
fn remove(place: &Place, name: &str) {
    wait_until("it is removed", || fs::remove_dir_all(place.join(name)).is_ok());
}

fn replace_by_folder(place: &Place, name: &str) {
    put_folder(&place.join(name));
}

#[test]
fn a_board_that_is_removed_is_told_of_and_a_task_that_comes_later_is_done() {
    let (place, outside) = (Place::new(), Place::new());
    write_team(&place, &small_tasks(1, 9, &outside, "0.4"));
    let mut up = start(&place, &outside, &["up", "--headless"]);
    wait_until("one ran", || runs(&outside, 1) > 0);
    remove(&place, ".tasks");
    wait_until("the team says that tasks are gone", || up.said().contains("deletes #9"));
    let description = format!("```sh\necho late >> {}\n```", outside.join("late").display());
    assert_eq!(place.run(&["tasks", "add", "Late", "--description", &description]).code, Some(0));
    wait_until("it is done", || outside.join("late").exists() && place.all_are("completed"));
    up.signal("INT");
    assert_eq!(up.code(), Some(130), "{}", up.said());
    place.assert_nothing_is_left_running();
}

#[test]
fn a_team_folder_that_is_removed_is_made_anew_and_every_task_is_done_once() {
    let (place, outside, mut run) = attacked(|place| remove(place, ".team"));
    assert_eq!(run.code(), Some(0), "{}", run.said());
    for id in 1..=9 {
        assert_eq!(runs(&outside, id), 1, "small {id}: {}", run.said());
    }
    assert!(place.all_are("completed"));
    place.assert_nothing_is_left_running();
    assert_eq!(place.run(&["send", "m1", "hello"]).code, Some(0), "the team can be written to again");
}

#[test]
fn a_transcript_replaced_by_a_folder_stops_its_teammate_and_the_others_do_the_work() {
    let (place, outside, mut run) = attacked(|place| replace_by_folder(place, ".team/transcripts/m1.jsonl"));
    assert_eq!(run.code(), Some(0), "{}", run.said());
    assert!(place.all_are("completed"), "{}", run.said());
    assert!((1..=9).all(|id| runs(&outside, id) > 0));
    let failures: u64 = place.tasks().iter().filter_map(|task| task["failures"].as_u64()).sum();
    assert!(failures <= 1, "only what it held then: {}", run.said());
    assert!(run.said().contains("m1.jsonl") || run.said().contains("started again"), "{}", run.said());
}

#[test]
fn a_state_file_replaced_by_a_folder_pauses_the_team_and_loses_nothing() {
    let (place, outside, mut run) = attacked(|place| replace_by_folder(place, "agent_state.json"));
    assert_eq!(run.code(), Some(1), "{}", run.said());
    // Between the file and the folder there is nothing for a moment, in which the team may make the file anew.
    let said = run.said();
    let ways = ["the state file cannot be read", "the state file is missing", "warning: agent_state.json: cannot read"];
    assert!(ways.iter().any(|way| said.contains(way)), "{said}");
    assert!(place.tasks().iter().all(|task| task["status"] != "in_progress"), "work in hand ran to its end");
    fs::remove_dir(place.join("agent_state.json")).unwrap();
    let mut again = place.start(&["run"]);
    assert_eq!(again.code(), Some(0), "{}", again.said());
    for id in 1..=9 {
        assert_eq!(runs(&outside, id), 1, "small {id}: {}", again.said());
    }
}

#[test]
fn a_task_replaced_by_a_folder_is_named_and_the_others_are_done() {
    let (place, outside, mut run) = attacked(|place| replace_by_folder(place, ".tasks/task_9.json"));
    let code = run.code();
    assert!(run.said().contains("task_9.json is no task: it is a folder"), "{code:?} {}", run.said());
    assert!((1..=8).all(|id| runs(&outside, id) == 1), "{}", run.said());
    assert_eq!(runs(&outside, 9), 0);
    assert_eq!(place.run(&["tasks"]).err.matches("task_9.json").count(), 1);
}
