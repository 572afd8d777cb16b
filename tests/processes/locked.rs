//! Lock files that are held without end: a command that needs one names the holder, and stopping needs none.

use std::fs::{self, File};
use std::io::Write;
use std::time::{Duration, Instant};

use brigade::stores::file::LOCK_FILES;
use brigade::stores::fs::LOCK_WAIT_MAX;
use serde_json::Value;

use crate::testkit::process::wait_until;
use crate::testkit::workspace::{ENDLESS, TestWorkspace, endless_commands, start_working};

/// The limit of all waits of one command, with its start: one wait of two seconds, not two.
const COMMAND_TIME_MAX: Duration = Duration::from_millis(3900);

/// Time limit of a command with several waits of two seconds on a slow machine.
const BOUND: Duration = Duration::from_secs(25);

/// Locks a file until the result is dropped.
fn lock_file(workspace: &TestWorkspace, name: &str) -> File {
    let file = File::options().read(true).write(true).open(workspace.join(name)).unwrap();
    wait_until(name, || file.try_lock().is_ok());
    file
}

/// Locks every file that the lead does not hold itself, until the result is dropped.
fn lock_all(workspace: &TestWorkspace) -> Vec<File> {
    let names = LOCK_FILES.into_iter().filter(|name| *name != ".team/lead.lock");
    names.map(|name| lock_file(workspace, name)).collect()
}

/// Asserts that an action can end within this time. A busy machine may slow down some attempts.
#[track_caller]
fn assert_ends_within(time_max: Duration, action: impl Fn()) {
    const ATTEMPTS: usize = 5;
    let times: Vec<Duration> = (0..ATTEMPTS)
        .map(|_| {
            let started_at = Instant::now();
            action();
            started_at.elapsed()
        })
        .take_while(|time| *time >= time_max)
        .collect();
    assert!(times.len() < ATTEMPTS, "the attempts took {times:?}");
}

#[test]
fn held_lock_error_names_holder_and_stop_works() {
    let workspace = TestWorkspace::with_team(2, ENDLESS);
    let mut run = start_working(&workspace, &["run"]);
    let locks = lock_all(&workspace);
    let holder = format!("process {} (", std::process::id());
    for (command, lock) in [(&["tasks", "add", "Four"][..], ".tasks/.lock"), (&["send", "m1", "hello"], "inbox/.lock")]
    {
        assert_ends_within(COMMAND_TIME_MAX, || {
            let answer = workspace.run(command);
            assert_eq!(answer.code, Some(1), "{answer:?}");
            assert!(answer.err.contains(&holder) && answer.err.contains(lock), "{answer:?}");
        });
    }
    let started_at = Instant::now();
    assert_ends_within(LOCK_WAIT_MAX, || {
        let stopped = workspace.run(&["stop", "m1", "--now"]);
        assert_eq!(stopped.code, Some(0), "{stopped:?}");
    });
    let has_stopped =
        || workspace.events().iter().any(|event| event["kind"] == "teammate_stopped" && event["teammate"] == "m1");
    wait_until("the run and its command end", || has_stopped() && endless_commands(&workspace) == 1);
    assert!(started_at.elapsed() < BOUND, "stop NAME: {:?}", started_at.elapsed());
    // The other teammate is in the middle of a turn, which it may finish.
    let stop = workspace.run(&["stop", "--wait", "0"]);
    assert!(stop.code == Some(1) && stop.err.contains("cannot confirm the stop"), "{stop:?}");
    wait_until("the signal is reported", || run.output_so_far().contains("stopping"));
    let started_at = Instant::now();
    let stopped = workspace.run(&["stop", "--now"]);
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert_eq!(run.code(), Some(130), "{}", run.output_so_far());
    assert!(started_at.elapsed() < BOUND, "stop --now: {:?}", started_at.elapsed());
    workspace.assert_nothing_is_left_running();
    drop(locks);
    assert_eq!(workspace.tasks().len(), 3);
}

#[test]
fn stray_lead_lock_error_names_path_and_holder() {
    let workspace = TestWorkspace::with_team(1, ENDLESS);
    workspace.write(".team/lead.lock", "");
    let lock = File::options().read(true).write(true).open(workspace.join(".team/lead.lock")).unwrap();
    lock.lock().unwrap();
    let lock_path = workspace.join(".team/lead.lock").display().to_string();
    let holder = format!("process {} (", std::process::id());
    let (team, stopped) = (workspace.run(&["team"]), workspace.run(&["stop"]));
    assert_eq!((team.code, stopped.code), (Some(0), Some(1)), "{team:?} {stopped:?}");
    assert!(team.out.contains("crew is not running"), "{team:?}");
    for said in [&team.err, &stopped.err] {
        assert!(said.contains(&lock_path) && (said.contains(&holder) || said.contains("lsof")), "{said}");
        assert!(!said.contains("pid 0") && !said.contains("process 0") && !said.contains("unknown"), "{said}");
    }
    let data = workspace.json(&["team"]);
    assert_eq!((&data["running"], &data["pid"]), (&false.into(), &().into()), "{data}");
}

#[test]
fn invalid_worker_files_stop_no_command() {
    let workspace = TestWorkspace::with_team(1, "## One\n```sh\nsleep 300\n```\n");
    for folder in ["1-2-a.json", "1-2-b.lock", "strange.json", "strange.lock"] {
        fs::create_dir_all(workspace.join(".team/workers").join(folder)).unwrap();
    }
    workspace.write(".team/workers/1-2-c.json", "{");
    workspace.write(".team/workers/1-2-d.lock", "");
    let pipe = workspace.join(".team/workers/1-2-e.json");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut run = workspace.start(&["run"]);
    wait_until("a command runs", || run.output_so_far().contains("bash sleep 300"));
    assert!(run.output_so_far().contains("1-2-a.json"), "{}", run.output_so_far());
    let team = workspace.run(&["team"]);
    assert!(team.code == Some(0) && team.out.contains("is running (pid"), "{team:?}");
    assert_eq!(workspace.run(&["tasks"]).code, Some(0));
    let claim = workspace.run(&["tasks", "claim", "--as", "m9"]);
    assert_eq!(claim.code, Some(0), "{claim:?}");
    assert_eq!(workspace.run(&["stop", "--now"]).code, Some(0));
    assert_eq!(run.code(), Some(130), "{}", run.output_so_far());
}

#[test]
fn two_interrupts_end_run_with_held_locks() {
    let workspace = TestWorkspace::with_team(2, ENDLESS);
    let mut run = start_working(&workspace, &["run"]);
    let locks = lock_all(&workspace);
    let started_at = Instant::now();
    run.signal("INT");
    wait_until("the signal is reported", || run.output_so_far().contains("stopping"));
    run.signal("INT");
    assert_eq!(run.code(), Some(130), "{}", run.output_so_far());
    assert!(started_at.elapsed() < BOUND, "{:?}", started_at.elapsed());
    let holder = format!("process {} (", std::process::id());
    assert!(run.output_so_far().contains(&holder), "{}", run.output_so_far());
    workspace.assert_nothing_is_left_running();
    drop(locks);
    // The next lead reclaims the task that could not be released.
    let mut again = start_working(&workspace, &["run"]);
    again.kill();
    workspace.assert_nothing_is_left_running();
}

/// Writes the tasks 1 to `count`. Each has a block that notes its run and waits for the file `open`, and then `more`.
fn gated_plan(count: usize, more: &str) -> String {
    let gate = "while ! test -e open; do sleep 0.1; done";
    let task = |id| format!("## Task {id}\n```sh\necho run >> ran-{id}\n{gate}\n```\n{more}");
    (1..=count).map(task).collect()
}

/// The number of runs of a task of [`gated_plan`].
fn runs(workspace: &TestWorkspace, id: usize) -> usize {
    fs::read_to_string(workspace.join(&format!("ran-{id}"))).unwrap_or_default().lines().count()
}

#[test]
fn finished_work_waits_for_held_lock() {
    let workspace = TestWorkspace::with_team(2, &gated_plan(4, ""));
    let mut run = workspace.start(&["run"]);
    wait_until("two tasks run", || (1..=2).all(|id| runs(&workspace, id) == 1));
    let lock = lock_file(&workspace, ".tasks/.lock");
    workspace.write("open", "");
    let place = workspace.join(".tasks/.lock").display().to_string();
    let has_warned = |text: &str| {
        let is_meant = |event: &Value| event["about"] == "lock" && event["text"].as_str().unwrap().starts_with(text);
        workspace.events().iter().any(is_meant)
    };
    let holder = format!("cannot lock {place}: process {} (", std::process::id());
    let warning = format!("finished work waits to be recorded, and the team claims no new tasks: {holder}");
    wait_until("the wait is reported", || has_warned(&warning));
    let reason = format!("the lock {place}");
    let waits = |name: &str| workspace.state()["teammates"][name]["waiting_for"] == *reason;
    wait_until("the members wait", || waits("m1") && waits("m2"));
    drop(lock);
    assert_eq!(run.code(), Some(0), "{}", run.output_so_far());
    for (id, task) in (1..=4).zip(workspace.tasks()) {
        let failures = task["failures"].as_u64().unwrap_or(0);
        assert_eq!((runs(&workspace, id), &task["attempt"], failures), (1, &1.into(), 0), "{}", run.output_so_far());
    }
    assert!(has_warned(&format!("nothing waits for {reason} any longer")), "{}", run.output_so_far());
}

#[test]
fn stop_waits_once_for_held_lock() {
    const MEMBERS: usize = 16;
    // Each member stops after its first block and cannot release its task.
    let workspace = TestWorkspace::with_team(MEMBERS, &gated_plan(MEMBERS, "```sh\nsleep 300\n```\n"));
    let mut run = workspace.start(&["run"]);
    wait_until("all tasks run", || (1..=MEMBERS).all(|id| runs(&workspace, id) == 1));
    let lock = lock_file(&workspace, ".tasks/.lock");
    let _stop = workspace.start(&["stop"]);
    wait_until("the signal is reported", || run.output_so_far().contains("stopping"));
    let started_at = Instant::now();
    workspace.write("open", "");
    assert_eq!(run.code(), Some(130), "{}", run.output_so_far());
    assert!(started_at.elapsed() < BOUND, "{:?}: {}", started_at.elapsed(), run.output_so_far());
    drop(lock);
    // A command reclaims the claims that could not be released.
    let claim = workspace.run(&["tasks", "claim", "--as", "m99"]);
    assert_eq!(claim.code, Some(0), "{claim:?}");
    let tasks = workspace.tasks();
    assert_eq!(tasks.iter().filter(|task| task["status"] == "pending").count(), MEMBERS - 1, "{tasks:?}");
    assert!(tasks.iter().all(|task| task["failures"].as_u64().unwrap_or(0) == 0), "{tasks:?}");
}

#[test]
fn two_interrupts_end_run_with_blocked_output() {
    let workspace = TestWorkspace::with_team(1, ENDLESS);
    let (reader, mut writer) = std::io::pipe().unwrap();
    // The reader is stalled: the signal loop waits for its output forever.
    let mut full = writer.try_clone().unwrap();
    std::thread::spawn(move || full.write_all(&[b'\n'; 1 << 20]));
    writer.flush().unwrap();
    let mut command = workspace.brigade(&["run"]);
    command.stdout(writer).stderr(File::create(workspace.join("said.txt")).unwrap());
    let mut child = command.spawn().unwrap();
    wait_until("a command runs", || endless_commands(&workspace) == 1);
    // Pending signals of one kind are merged.
    for kind in ["INT", "TERM"] {
        crate::testkit::process::signal(child.id(), kind);
    }
    let started_at = Instant::now();
    let mut ended = None;
    wait_until("the run ends", || {
        ended = child.try_wait().unwrap();
        ended.is_some()
    });
    assert_eq!(ended.unwrap().code(), Some(130));
    assert!(started_at.elapsed() < BOUND, "{:?}", started_at.elapsed());
    let output = fs::read_to_string(workspace.join("said.txt")).unwrap();
    assert!(output.contains("the next launch continues its work"), "{output}");
    workspace.assert_nothing_is_left_running();
    drop(reader);
}
