//! A run whose lead is killed repeatedly: in the end everything is done, in order, and no process or temporary file is
//! left.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::testkit::process::wait_until;
use crate::testkit::workspace::TestWorkspace;

const TASKS: u64 = 120;
const KILLS: u32 = 12;

/// The blockers of a task: a grid of chains with cross-links.
fn blockers(id: u64) -> Vec<u64> {
    [10, 13].iter().filter(|step| id > **step).map(|step| id - step).collect()
}

/// Each task notes its run, and missing blockers; some leave processes running.
fn plan() -> String {
    let mut plan = String::new();
    for id in 1..=TASKS {
        let after: Vec<String> = blockers(id).iter().map(|blocker| format!("Task {blocker}")).collect();
        let _ = writeln!(plan, "## Task {id}\nafter: {}\n\n```sh", after.join(", "));
        for blocker in blockers(id) {
            let _ = writeln!(plan, "test -e done/{blocker} || echo {blocker} >> violations/{id}");
        }
        let leftover = match id % 12 {
            1 => "sleep 300 &",
            5 => "setsid sleep 300 >/dev/null 2>&1 &",
            9 => "nohup sleep 300 >/dev/null 2>&1 &",
            _ => "",
        };
        let _ = writeln!(plan, "{leftover}\nsleep 0.0{}\necho {id} >> done/{id}\n```", id % 7 + 1);
    }
    plan.replace("after: \n", "")
}

#[test]
fn lead_killed_often_loses_no_task_and_leaves_nothing() {
    let workspace = TestWorkspace::with_team(4, &plan());
    for folder in ["done", "violations"] {
        fs::create_dir(workspace.join(folder)).unwrap();
    }
    let mut logs = RunLogs::default();
    for kill in 0..KILLS {
        let mut run = workspace.start(&["run"]);
        // A random moment between the start and the end of the next few tasks.
        let tasks_done = fs::read_dir(workspace.join("done")).unwrap().count() + fastrand::usize(..8);
        if kill % 4 != 0 {
            wait_until("some tasks are done", || fs::read_dir(workspace.join("done")).unwrap().count() >= tasks_done);
        }
        std::thread::sleep(Duration::from_micros(fastrand::u64(..60_000)));
        assert!(!run.has_ended(), "the plan is too short: {}", run.output_so_far());
        run.kill();
        workspace.assert_nothing_is_left_running();
        logs.read_log(&workspace);
    }
    let mut run = workspace.start(&["run"]);
    assert_eq!(run.code(), Some(0), "{}", run.output_so_far());
    workspace.assert_nothing_is_left_running();
    assert_all_done_in_order(&workspace);
    logs.read_log(&workspace);
    workspace.assert_no_temporaries();
    assert_eq!(fs::read_dir(workspace.join(".team/workers")).unwrap().count(), 0, "records of dead workers are left");
    assert_calls_are_answered(&workspace);
}

/// The number of unused ids. A lead that is killed between reserving ids and writing its tasks leaves them unused
/// forever.
fn unused_numbers(workspace: &TestWorkspace) -> u64 {
    workspace.tasks().first().map_or(0, |task| task["id"].as_u64().unwrap() - 1)
}

fn assert_all_done_in_order(workspace: &TestWorkspace) {
    let tasks = workspace.tasks();
    assert_eq!(tasks.len() as u64, TASKS);
    let unused = unused_numbers(workspace);
    for task in &tasks {
        let id = task["id"].as_u64().unwrap() - unused;
        assert_eq!(task["status"], "completed", "{task}");
        assert_eq!(task["failures"].as_u64().unwrap_or(0), 0, "the end of the team counts as a failure: {task}");
        let runs = workspace.read(&format!("done/{id}")).lines().count() as u64;
        let attempts = task["attempt"].as_u64().unwrap();
        assert!((1..=attempts).contains(&runs), "task {id} ran {runs} times in {attempts} attempts");
    }
    let violations: Vec<_> =
        fs::read_dir(workspace.join("violations")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(violations.is_empty(), "tasks ran before their blockers: {violations:?}");
}

/// The logs of all runs; each run begins a new log.
#[derive(Default)]
struct RunLogs {
    last_run: Value,
    attempts: BTreeMap<u64, u64>,
    completed: BTreeSet<u64>,
}

impl RunLogs {
    /// Reads the log of the ended run: numbers without gaps, and valid transitions of each task.
    fn read_log(&mut self, workspace: &TestWorkspace) {
        let events = workspace.events();
        // A lead that was killed before its first event leaves the log of the run before.
        if events.first().is_none_or(|first| *first == self.last_run) {
            return;
        }
        self.last_run = events[0].clone();
        let unused = unused_numbers(workspace);
        for (place_in_log, event) in events.iter().enumerate() {
            assert_eq!(event["seq"], place_in_log as u64 + 1, "{event}");
            let Some(id) = event["task"].as_u64() else { continue };
            let task = id - unused;
            match event["kind"].as_str().unwrap() {
                "task_claimed" => self.claimed(task, event, &|task| workspace.task(task + unused)),
                "task_completed" => assert!(self.completed.insert(task), "completed twice: {event}"),
                _ => {}
            }
        }
    }

    fn claimed(&mut self, task: u64, event: &Value, on_board: &dyn Fn(u64) -> Value) {
        let attempt = event["attempt"].as_u64().unwrap();
        let before = self.attempts.insert(task, attempt).unwrap_or(0);
        assert!(attempt > before, "attempt {before} of task {task} was followed by {event}");
        let open = blockers(task).into_iter().filter(|id| !self.completed.contains(id));
        // A lead may be killed between a completion and its event: the board decides.
        let open: Vec<u64> = open.filter(|id| on_board(*id)["status"] != "completed").collect();
        assert!(open.is_empty(), "{event} while {open:?} are open");
    }
}

/// Every call of a model has its result before the next request.
fn assert_calls_are_answered(workspace: &TestWorkspace) {
    for path in crate::testkit::process::files_below(&workspace.join(".team/transcripts")) {
        let text = fs::read_to_string(&path).unwrap();
        let mut open: BTreeSet<String> = BTreeSet::new();
        for line in text.lines() {
            let record: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            let is_assistant = record["role"] == "assistant";
            assert!(!is_assistant || open.is_empty(), "{}: {open:?} are open before {line}", path.display());
            for block in record["content"].as_array().into_iter().flatten() {
                match block["type"].as_str() {
                    Some("tool_use") => assert!(open.insert(block["id"].to_string()), "{line}"),
                    Some("tool_result") => assert!(open.remove(&block["tool_use_id"].to_string()), "{line}"),
                    _ => {}
                }
            }
        }
        assert!(open.is_empty(), "{}: {open:?} were never answered", path.display());
    }
}
