//! Eight claimers that are killed at any moment: no attempt is shared, no task is completed twice, no task is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::testkit::process::{ProcessOutput, WAIT_TIME_MAX};
use crate::testkit::workspace::TestWorkspace;

const TASKS: usize = 100;
const CLAIMERS: usize = 8;
/// One command in this many is killed.
const KILLED_ONE_IN: u32 = 4;

/// The answers that the claimers got.
#[derive(Default)]
struct Answers {
    /// The claimers that were granted this attempt of this task.
    claimed: BTreeMap<(u64, u64), BTreeSet<String>>,
    /// The number of confirmed completions of this task.
    completed: BTreeMap<u64, u32>,
    kills: u32,
}

/// Runs a command; at random, kills it at any moment. Returns its output if it ended normally.
fn run_or_kill(mut command: Command, told: &Mutex<Answers>) -> Option<(Option<i32>, Value, String)> {
    let is_to_die = fastrand::u32(..KILLED_ONE_IN) == 0;
    if !is_to_die {
        let answer = ProcessOutput::of(command);
        let value = serde_json::from_str::<Value>(&answer.out).unwrap_or_default();
        return Some((answer.code, value["data"].clone(), answer.err + &answer.out));
    }
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_micros(fastrand::u64(..40_000)));
    child.kill().unwrap();
    child.wait().unwrap();
    told.lock().unwrap().kills += 1;
    None
}

/// Claims and completes until the board is done. A killed claimer remembers nothing.
fn claim_until_done(workspace: &TestWorkspace, name: &str, told: &Mutex<Answers>, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        let claim = workspace.brigade(&["tasks", "claim", "--as", name, "--lease", "1s", "--json"]);
        let Some((code, task, said)) = run_or_kill(claim, told) else { continue };
        assert_eq!(code, Some(0), "{said}");
        let (Some(id), Some(attempt)) = (task["id"].as_u64(), task["attempt"].as_u64()) else {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        told.lock().unwrap().claimed.entry((id, attempt)).or_default().insert(name.to_owned());
        let (id_text, attempt_text) = (id.to_string(), attempt.to_string());
        let complete =
            workspace.brigade(&["tasks", "complete", &id_text, "--as", name, "--attempt", &attempt_text, "--json"]);
        match run_or_kill(complete, told) {
            Some((Some(0), task, _)) => {
                assert_eq!((&task["status"], task["attempt"].as_u64()), (&"completed".into(), Some(attempt)));
                *told.lock().unwrap().completed.entry(id).or_default() += 1;
            }
            // On a slow machine the lease may have expired, and another claimer may hold the task.
            Some((code, _, said)) => assert_eq!(code, Some(1), "{said}"),
            None => {}
        }
    }
}

#[test]
fn claimers_killed_at_random_complete_tasks_once() {
    let workspace = TestWorkspace::with_idle_team(1);
    let plan: String = (1..=TASKS).map(|number| format!("## Task {number}\n")).collect();
    workspace.write("tasks.md", &plan);
    assert_eq!(workspace.run(&["tasks", "import", "tasks.md"]).code, Some(0));
    let (answers, is_over) = (Mutex::new(Answers::default()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for number in 1..=CLAIMERS {
            let (workspace, answers, is_over) = (&workspace, &answers, &is_over);
            scope.spawn(move || claim_until_done(workspace, &format!("claimer{number}"), answers, is_over));
        }
        let started_at = Instant::now();
        while !workspace.all_are("completed") {
            if started_at.elapsed() > 2 * WAIT_TIME_MAX {
                is_over.store(true, Ordering::Relaxed);
                let open_tasks: Vec<_> =
                    workspace.tasks().into_iter().filter(|task| task["status"] != "completed").collect();
                panic!("{} tasks are left: {open_tasks:#?}", open_tasks.len());
            }
            // A task that was lost with its claimer three times fails. A person retries it.
            for task in workspace.tasks().iter().filter(|task| task["status"] == "failed") {
                assert_eq!(task["failures"], 3, "{task}");
                assert_eq!(workspace.run(&["tasks", "retry", &task["id"].to_string()]).code, Some(0));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let answers = answers.into_inner().unwrap();
    assert_eq!(workspace.tasks().len(), TASKS);
    assert!(answers.kills > 15, "too few commands were killed for a valid test: {}", answers.kills);
    let shared: Vec<_> = answers.claimed.iter().filter(|(_, names)| names.len() > 1).collect();
    assert!(shared.is_empty(), "attempts with two holders: {shared:?}");
    let twice: Vec<_> = answers.completed.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "completed twice: {twice:?}");
    // One more command removes the half-written files of killed commands.
    workspace.run(&["tasks", "claim", "--as", "claimer1"]);
    workspace.assert_no_temporaries();
}

#[test]
fn claim_by_command_expires_with_its_lease() {
    let workspace = TestWorkspace::with_idle_team(1);
    assert_eq!(workspace.run(&["tasks", "add", "Walk the dog", "--priority", "1"]).code, Some(0));
    assert_eq!(workspace.run(&["tasks", "add", "Feed the cat"]).code, Some(0));
    let mine = workspace.json(&["tasks", "claim", "--as", "ann", "--lease", "1s"]);
    assert_eq!((&mine["id"], &mine["owner"], &mine["attempt"]), (&1.into(), &"ann".into(), &1.into()));
    let held = workspace.json(&["tasks", "claim", "--as", "zoe", "--lease", "1h"]);
    assert_eq!(held["id"], 2, "a lease that still holds was not respected");
    crate::testkit::process::wait_until("the lease expires", || {
        !workspace.json(&["tasks", "claim", "--as", "bea"]).is_null()
    });
    assert_eq!(workspace.task(1)["owner"], "bea");
    assert_eq!((&workspace.task(1)["attempt"], &workspace.task(1)["failures"]), (&2.into(), &1.into()));
    let late = workspace.run(&["tasks", "complete", "1", "--as", "ann", "--attempt", "1"]);
    assert_eq!(late.code, Some(1), "{late:?}");
    assert_eq!(workspace.task(1)["status"], "in_progress");
}

#[test]
fn claim_of_killed_team_is_claimable_by_command() {
    let workspace = TestWorkspace::with_team(1, "## One\n```sh\nsleep 300\n```\n");
    let claim = ["tasks", "claim", "--as", "ann"];
    let mut run = workspace.start(&["run"]);
    crate::testkit::process::wait_until("the command runs", || run.output_so_far().contains("bash sleep 300"));
    assert!(workspace.json(&claim).is_null(), "a running worker lost its claim");
    run.kill();
    let mine = workspace.json(&claim);
    assert_eq!(
        (mine["id"].as_u64(), mine["owner"].as_str(), mine["attempt"].as_u64()),
        (Some(1), Some("ann"), Some(2))
    );
    assert_eq!(mine["failures"].as_u64().unwrap_or(0), 0, "the end of the team counts as a failure: {mine}");
    let commands = workspace.processes().into_iter().filter(|process| process.command.contains("sleep 300"));
    assert_eq!(commands.map(|process| process.command).collect::<Vec<_>>(), Vec::<String>::new());
    assert!(workspace.json(&["tasks", "claim", "--as", "bea"]).is_null());
}
