//! A disk that fills up, turns read-only, or loses what is ours: the team says so, waits, loses nothing, and goes on by itself.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::support::{Place, Process, files_below, is_root, wait_until};

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
            serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        }
    }
}

fn says(place: &Place, text: &str) -> bool {
    place.events().iter().any(|event| {
        event["kind"] == "warning" && event["about"] == "disk" && event["text"].as_str().unwrap().contains(text)
    })
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
    std::thread::sleep(std::time::Duration::from_secs(3));
    let ran: usize = (1..=40).map(|id| runs(&outside, id)).sum();
    std::thread::sleep(std::time::Duration::from_secs(2));
    let still: usize = (1..=40).map(|id| runs(&outside, id)).sum();
    assert!(ran < 40 && ran == still, "it took work while the disk was full: {ran}, then {still}\n{}", run.said());
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
    assert!(says(&place, "no new work is taken"), "{}", run.said());
    assert!(says(&place, "there is room again"), "{}", run.said());
    place.assert_no_temporaries();
}

/// A place that cannot be written, until the value is dropped: its folder lies over itself, read-only.
struct ReadOnly<'a>(&'a Place);

impl<'a> ReadOnly<'a> {
    fn turn(place: &'a Place) -> Self {
        let path = place.path();
        let is_bound = Command::new("mount").arg("--bind").args([path, path]).status().unwrap().success();
        let read_only = Self(place);
        assert!(is_bound && run("mount", &["-o", "remount,bind,ro"], path), "cannot turn read-only");
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

/// What a person or a task may do to our folders, and what has to hold after it.
fn go_on_after(what: &str, attack: impl FnOnce(&Place), exit: &[i32]) -> (Place, Place, String) {
    let (place, outside) = (Place::new(), Place::new());
    write_team(&place, &small_tasks(1, 9, &outside, "0.4"));
    let mut run = start(&place, &outside, &["run"]);
    wait_until("one ran", || runs(&outside, 1) > 0);
    attack(&place);
    let code = run.code();
    let said = run.said();
    println!("== {what}: {code:?}\n{said}");
    for path in files_below(place.path()) {
        println!("   {}", path.display());
    }
    assert!(exit.contains(&code.unwrap()), "{what}: {code:?}\n{said}");
    place.assert_nothing_is_left_running();
    (place, outside, said)
}

#[test]
fn a_board_that_is_removed() {
    let (place, outside, said) = go_on_after("rm .tasks", |place| fs::remove_dir_all(place.join(".tasks")).unwrap(), &[0, 1]);
}

#[test]
fn a_team_folder_that_is_removed() {
    let (place, outside, said) = go_on_after("rm .team", |place| fs::remove_dir_all(place.join(".team")).unwrap(), &[0, 1]);
}

#[test]
fn a_transcript_replaced_by_a_folder() {
    let (place, outside, said) = go_on_after("transcript", |place| {
        let path = place.join(".team/transcripts/m1.jsonl");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
    }, &[0, 1]);
}

#[test]
fn a_state_file_replaced_by_a_folder() {
    let (place, outside, said) = go_on_after("state", |place| {
        let path = place.join("agent_state.json");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
    }, &[0, 1]);
}

#[test]
fn a_task_replaced_by_a_folder() {
    let (place, outside, said) = go_on_after("task", |place| {
        for id in [4, 9] {
            let path = place.join(&format!(".tasks/task_{id}.json"));
            fs::remove_file(&path).unwrap();
            fs::create_dir(&path).unwrap();
        }
    }, &[0, 1]);
}
