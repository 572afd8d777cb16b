//! Whole sessions of the program: a small one to its end, and the time to the first request on a large board.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::report::{ROUNDS, Report, Target, format_figure, median, ms};
use super::workspace::{BenchWorkspace, Process, mostly_closed, time_of};

/// The script of a model that completes each task with its first answer.
pub fn diligent() -> Value {
    let input = json!({ "task_id": "{{task}}", "status": "completed", "result": "done" });
    json!({ "task": [{ "call": [{ "tool": "task_update", "input": input }] }] })
}

pub fn measure_session(report: &mut Report) {
    for durability in ["power", "process"] {
        let mut times = Vec::new();
        let mut nothing = Vec::new();
        for _ in 0..ROUNDS {
            times.push(session(durability, 20).as_secs_f64());
            nothing.push(session(durability, 0).as_secs_f64());
        }
        let nothing = format!("without any task: {}", format_figure(median(&nothing), "s"));
        let what = format!("20 tasks, 3 teammates, durability {durability}");
        report.add(what, median(&times), "s", Target::Below(1.2), nothing);
    }
}

/// The time of a session with this many tasks, from start to end of the process.
fn session(durability: &str, tasks: usize) -> Duration {
    let workspace = BenchWorkspace::new();
    workspace.write_team(3, &diligent(), &format!("durability = \"{durability}\""));
    let plan: String = (1..=tasks).map(|number| format!("## Task {number}\n")).collect();
    workspace.write("plan.md", &plan);
    let arguments: &[&str] = if tasks > 0 { &["run", "bench", "--plan", "plan.md"] } else { &["run", "bench"] };
    let time = time_of(&mut workspace.brigade(arguments));
    let done = std::fs::read_dir(workspace.join(".tasks")).unwrap().flatten();
    let is_task = |name: &str| name.starts_with("task_");
    let files: Vec<_> = done.filter(|entry| is_task(&entry.file_name().to_string_lossy())).collect();
    assert_eq!(files.len(), tasks);
    for file in files {
        assert!(std::fs::read_to_string(file.path()).unwrap().contains("\"status\": \"completed\""));
    }
    time
}

pub fn measure_start(report: &mut Report) {
    let cases = [10_000, 100].map(|tasks| {
        let workspace = BenchWorkspace::with_board(mostly_closed(tasks));
        workspace.write_team(3, &diligent(), "");
        workspace
    });
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (workspace, times) in cases.iter().zip(&mut times) {
            times.push(ms(time_to_first_request(workspace)));
        }
    }
    let small = format!("100 tasks: {}", format_figure(median(&times[1]), "ms"));
    report.add("cold start to the first request, 10,000 tasks", median(&times[0]), "ms", Target::Below(300.0), small);
}

/// The time from the process start to the message that a turn began. The process is then killed.
fn time_to_first_request(workspace: &BenchWorkspace) -> Duration {
    let started_at = Instant::now();
    let mut command = workspace.brigade(&["run", "bench", "--output-format", "stream-json"]);
    let mut process = Process(command.stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
    let first = lines.map(Result::unwrap).find(|line| line.contains("\"turn_started\""));
    let time = started_at.elapsed();
    assert!(first.is_some(), "a turn begins");
    time
}
