//! Lock files that somebody holds without end: what needs one says who has it, and stopping needs none.

use std::fs::{self, File};
use std::io::Write;
use std::time::{Duration, Instant};

use brigade::stores::file::LOCK_FILES;

use super::support::{Place, Process, wait_until};

/// Two tasks that run until they are ended, and a third that waits for room.
const ENDLESS: &str = "## One\n```sh\nsleep 300\n```\n## Two\n```sh\nsleep 300\n```\n## Three\n```sh\ntrue\n```\n";

/// The bound of all waits of one command together, with room for its start: one wait of two seconds, not two.
const COMMAND_TIME_MAX: Duration = Duration::from_millis(3900);

/// What a command may take: some waits of two seconds each, on a slow machine.
const BOUND: Duration = Duration::from_secs(25);

fn at_work(place: &Place) -> Process {
    let run = place.start(&["run"]);
    wait_until("two commands run", || run.said().matches("bash sleep 300").count() == 2);
    run
}

/// Takes the lock of every file that the lead does not hold itself, for as long as the result lives.
fn hold_all(place: &Place) -> Vec<File> {
    let take = |name: &str| {
        let file = File::options().read(true).write(true).open(place.join(name)).unwrap();
        wait_until(name, || file.try_lock().is_ok());
        file
    };
    LOCK_FILES.into_iter().filter(|name| *name != ".team/lead.lock").map(take).collect()
}

/// How often the commands of the tasks run.
fn commands(place: &Place) -> usize {
    place.processes().iter().filter(|(_, command)| command.trim_end() == "sleep 300").count()
}

#[test]
fn held_locks_are_named_and_stop_needs_none() {
    let place = Place::with_team(2, ENDLESS);
    let mut run = at_work(&place);
    let locks = hold_all(&place);
    let holder = format!("process {} (", std::process::id());
    for (command, lock) in [(&["tasks", "add", "Four"][..], ".tasks/.lock"), (&["send", "m1", "hello"], "inbox/.lock")]
    {
        let began = Instant::now();
        let answer = place.run(command);
        assert_eq!(answer.code, Some(1), "{answer:?}");
        assert!(answer.err.contains(&holder) && answer.err.contains(lock), "{answer:?}");
        assert!(began.elapsed() < COMMAND_TIME_MAX, "{command:?}: {:?}", began.elapsed());
    }
    let began = Instant::now();
    let stopped = place.run(&["stop", "m1", "--now"]);
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(began.elapsed() < Duration::from_secs(2), "it waits for a lock: {:?}", began.elapsed());
    let has_stopped =
        || place.events().iter().any(|event| event["kind"] == "teammate_stopped" && event["teammate"] == "m1");
    wait_until("it stops, and its command with it", || has_stopped() && commands(&place) == 1);
    assert!(began.elapsed() < BOUND, "stop NAME: {:?}", began.elapsed());
    // The other is in the middle of a turn, which it may finish.
    let asked = place.run(&["stop", "--wait", "0"]);
    assert!(asked.code == Some(1) && asked.err.contains("was asked to stop"), "{asked:?}");
    wait_until("it is heard", || run.said().contains("stopping"));
    let began = Instant::now();
    let stopped = place.run(&["stop", "--now"]);
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert_eq!(run.code(), Some(130), "{}", run.said());
    assert!(began.elapsed() < COMMAND_TIME_MAX, "stop --now: {:?}", began.elapsed());
    place.assert_nothing_is_left_running();
    drop(locks);
    assert_eq!(place.tasks().len(), 3);
}

#[test]
fn stray_lock_of_lead_is_named_for_a_person() {
    let place = Place::with_team(1, ENDLESS);
    place.write(".team/lead.lock", "");
    let lock = File::options().read(true).write(true).open(place.join(".team/lead.lock")).unwrap();
    lock.lock().unwrap();
    let lock_path = place.join(".team/lead.lock").display().to_string();
    let holder = format!("process {} (", std::process::id());
    let (team, stopped) = (place.run(&["team"]), place.run(&["stop"]));
    assert_eq!((team.code, stopped.code), (Some(0), Some(1)), "{team:?} {stopped:?}");
    assert!(team.out.contains("crew does not run"), "{team:?}");
    for said in [&team.err, &stopped.err] {
        assert!(said.contains(&lock_path) && (said.contains(&holder) || said.contains("lsof")), "{said}");
        assert!(!said.contains("pid 0") && !said.contains("process 0") && !said.contains("unknown"), "{said}");
    }
    let data = place.json(&["team"]);
    assert_eq!((&data["running"], &data["pid"]), (&false.into(), &().into()), "{data}");
}

#[test]
fn odd_files_of_workers_stop_nothing() {
    let place = Place::with_team(1, "## One\n```sh\nsleep 300\n```\n");
    for folder in ["1-2-a.json", "1-2-b.lock", "strange.json", "strange.lock"] {
        fs::create_dir_all(place.join(".team/workers").join(folder)).unwrap();
    }
    place.write(".team/workers/1-2-c.json", "{");
    place.write(".team/workers/1-2-d.lock", "");
    let pipe = place.join(".team/workers/1-2-e.json");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut run = place.start(&["run"]);
    wait_until("a command runs", || run.said().contains("bash sleep 300"));
    assert!(run.said().contains("1-2-a.json"), "{}", run.said());
    let team = place.run(&["team"]);
    assert!(team.code == Some(0) && team.out.contains("runs (pid"), "{team:?}");
    assert_eq!(place.run(&["tasks"]).code, Some(0));
    let claim = place.run(&["tasks", "claim", "--as", "m9"]);
    assert_eq!(claim.code, Some(0), "{claim:?}");
    assert_eq!(place.run(&["stop", "--now"]).code, Some(0));
    assert_eq!(run.code(), Some(130), "{}", run.said());
}

#[test]
fn two_interrupts_end_a_run_whose_locks_are_held() {
    let place = Place::with_team(2, ENDLESS);
    let mut run = at_work(&place);
    let locks = hold_all(&place);
    let began = Instant::now();
    run.signal("INT");
    wait_until("it is heard", || run.said().contains("stopping"));
    run.signal("INT");
    assert_eq!(run.code(), Some(130), "{}", run.said());
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
    let holder = format!("process {} (", std::process::id());
    assert!(run.said().contains(&holder), "{}", run.said());
    place.assert_nothing_is_left_running();
    drop(locks);
    // What it could not give back is taken up.
    let mut again = at_work(&place);
    again.kill();
    place.assert_nothing_is_left_running();
}

#[test]
fn two_interrupts_end_a_run_that_hangs() {
    let place = Place::with_team(1, ENDLESS);
    let (reader, mut writer) = std::io::pipe().unwrap();
    // Nobody reads: the loop that hears of signals waits for its output for ever.
    let mut full = writer.try_clone().unwrap();
    std::thread::spawn(move || full.write_all(&[b'\n'; 1 << 20]));
    writer.flush().unwrap();
    let mut command = place.brigade(&["run"]);
    command.stdout(writer).stderr(File::create(place.join("said.txt")).unwrap());
    let mut child = command.spawn().unwrap();
    wait_until("a command runs", || commands(&place) == 1);
    // Signals of one kind that wait together are one.
    for kind in ["INT", "TERM"] {
        super::support::signal(child.id(), kind);
    }
    let began = Instant::now();
    let mut ended = None;
    wait_until("it ends", || {
        ended = child.try_wait().unwrap();
        ended.is_some()
    });
    assert_eq!(ended.unwrap().code(), Some(130));
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
    let said = fs::read_to_string(place.join("said.txt")).unwrap();
    assert!(said.contains("the next launch takes up what it left"), "{said}");
    place.assert_nothing_is_left_running();
    drop(reader);
}
