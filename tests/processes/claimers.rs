//! Eight claimers that are killed at any moment: nobody shares an attempt, nothing is completed twice, nothing is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::support::{Answer, PATIENCE, Place};

const TASKS: usize = 200;
const CLAIMERS: usize = 8;
/// One command in so many is killed.
const KILLED_ONE_IN: u32 = 6;

/// What the claimers were told, all of it.
#[derive(Default)]
struct Told {
    /// Who was told that it holds this attempt of this task.
    claimed: BTreeMap<(u64, u64), BTreeSet<String>>,
    /// How often somebody was told that this task is completed.
    completed: BTreeMap<u64, u32>,
    kills: u32,
}

/// Runs a command, or kills it at a random moment of its life; says what it printed if it came to its end.
fn perhaps_killed(mut command: Command, told: &Mutex<Told>) -> Option<(Option<i32>, Value, String)> {
    let is_to_die = fastrand::u32(..KILLED_ONE_IN) == 0;
    if !is_to_die {
        let answer = Answer::of(command);
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

/// Claims and completes until the board is done. Whoever was killed has forgotten everything.
fn work(place: &Place, name: &str, told: &Mutex<Told>, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        let claim = place.brigade(&["tasks", "claim", "--as", name, "--lease", "1s", "--json"]);
        let Some((code, task, said)) = perhaps_killed(claim, told) else { continue };
        assert_eq!(code, Some(0), "{said}");
        let (Some(id), Some(attempt)) = (task["id"].as_u64(), task["attempt"].as_u64()) else {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        told.lock().unwrap().claimed.entry((id, attempt)).or_default().insert(name.to_owned());
        let (id_text, attempt_text) = (id.to_string(), attempt.to_string());
        let complete =
            place.brigade(&["tasks", "complete", &id_text, "--as", name, "--attempt", &attempt_text, "--json"]);
        match perhaps_killed(complete, told) {
            Some((Some(0), task, _)) => {
                assert_eq!((&task["status"], task["attempt"].as_u64()), (&"completed".into(), Some(attempt)));
                *told.lock().unwrap().completed.entry(id).or_default() += 1;
            }
            // On a slow machine the lease may be over and somebody else have it.
            Some((code, _, said)) => assert_eq!(code, Some(1), "{said}"),
            None => {}
        }
    }
}

#[test]
fn eight_claimers_killed_at_random_share_nothing_and_lose_nothing() {
    let place = Place::with_idle_team(1);
    let plan: String = (1..=TASKS).map(|number| format!("## Task {number}\n")).collect();
    place.write("tasks.md", &plan);
    assert_eq!(place.run(&["tasks", "import", "tasks.md"]).code, Some(0));
    let (told, is_over) = (Mutex::new(Told::default()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for number in 1..=CLAIMERS {
            let (place, told, is_over) = (&place, &told, &is_over);
            scope.spawn(move || work(place, &format!("claimer{number}"), told, is_over));
        }
        let began = Instant::now();
        while !place.all_are("completed") {
            if began.elapsed() > 2 * PATIENCE {
                is_over.store(true, Ordering::Relaxed);
                let left: Vec<_> = place.tasks().into_iter().filter(|task| task["status"] != "completed").collect();
                panic!("{} tasks are left: {left:#?}", left.len());
            }
            // A task that was lost with its claimer three times is given up: that is the rule. A person retries it.
            for task in place.tasks().iter().filter(|task| task["status"] == "failed") {
                assert_eq!(task["failures"], 3, "{task}");
                assert_eq!(place.run(&["tasks", "retry", &task["id"].to_string()]).code, Some(0));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let told = told.into_inner().unwrap();
    assert_eq!(place.tasks().len(), TASKS);
    assert!(told.kills > 20, "too few were killed to mean anything: {}", told.kills);
    let shared: Vec<_> = told.claimed.iter().filter(|(_, names)| names.len() > 1).collect();
    assert!(shared.is_empty(), "attempts with two holders: {shared:?}");
    let twice: Vec<_> = told.completed.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "completed twice: {twice:?}");
    // One more command sweeps what the killed ones left half written.
    place.run(&["tasks", "claim", "--as", "claimer1"]);
    place.assert_no_temporaries();
}

#[test]
fn a_claim_by_command_lives_by_its_lease_and_comes_back() {
    let place = Place::with_idle_team(1);
    assert_eq!(place.run(&["tasks", "add", "Walk the dog"]).code, Some(0));
    let mine = place.json(&["tasks", "claim", "--as", "ann", "--lease", "1s"]);
    assert_eq!((mine["owner"].as_str(), mine["attempt"].as_u64()), (Some("ann"), Some(1)));
    assert!(place.json(&["tasks", "claim", "--as", "bea"]).is_null(), "it is still held");
    super::support::wait_until("the lease runs out", || !place.json(&["tasks", "claim", "--as", "bea"]).is_null());
    assert_eq!(place.task(1)["owner"], "bea");
    assert_eq!(place.task(1)["attempt"], 2);
    let late = place.run(&["tasks", "complete", "1", "--as", "ann", "--attempt", "1"]);
    assert_eq!(late.code, Some(1), "{late:?}");
    assert_eq!(place.task(1)["status"], "in_progress");
}

#[test]
fn what_a_killed_team_held_is_claimed_by_command_at_once_and_its_command_has_ended() {
    let place = Place::with_team(1, "## One\n```sh\nsleep 300\n```\n");
    let claim = ["tasks", "claim", "--as", "ann"];
    let mut run = place.start(&["run"]);
    super::support::wait_until("its command runs", || run.said().contains("bash sleep 300"));
    assert!(place.json(&claim).is_null(), "who lives keeps its claim");
    run.kill();
    let mine = place.json(&claim);
    assert_eq!(
        (mine["id"].as_u64(), mine["owner"].as_str(), mine["attempt"].as_u64()),
        (Some(1), Some("ann"), Some(2))
    );
    assert_eq!(mine["failures"].as_u64().unwrap_or(0), 0, "the death of the team counts against nobody: {mine}");
    let commands = place.processes().into_iter().filter(|(_, command)| command.contains("sleep 300"));
    assert_eq!(commands.collect::<Vec<_>>(), []);
    assert!(place.json(&["tasks", "claim", "--as", "bea"]).is_null());
}
