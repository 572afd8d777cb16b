//! The time until an idle teammate starts a new task, and the cost of idling.

use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use brigade::domain::task::NewTask;
use brigade::domain::task::transition::{Actor, ActorKind};
use brigade::domain::team::name::HUMAN;
use brigade::domain::team::team_spec::Limits;
use brigade::ports::{Durability, ModelRequest};
use brigade::stores::file::board::BoardFiles;

use super::child_process::{ChildProcess, next_line, say};
use super::report::{Report, Target, format_figure, percentile};
use super::sessions::diligent;
use super::team::{FnModel, TeamSetup};
use super::workspace::{BenchWorkspace, now_ns, open_board, wait_until};
use crate::testkit::answers::{self, call, complete, new_task};

const MEMBERS: usize = 3;
/// Tasks that are created by each process.
const TASKS: usize = 200;
/// The longest pause between the end of a task and the next task, in milliseconds. The pauses are random, so that they
/// do not coincide with timers.
const PAUSE_MS_MAX: u64 = 30;
/// The time over which an idle team is measured.
const WATCHED: Duration = Duration::from_secs(10);
const SETTLING: Duration = Duration::from_secs(2);

pub fn measure(report: &mut Report) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let [same, other] = runtime.block_on(latencies());
    let comparison =
        |latencies: &[f64]| format!("{TASKS} tasks, p50 {}", format_figure(percentile(latencies, 50), "ms"));
    report.add(
        "create to request p99, same process",
        percentile(&same, 99),
        "ms",
        Target::AtMost(20.0),
        comparison(&same),
    );
    let p99 = percentile(&other, 99);
    report.add("create to request p99, other process", p99, "ms", Target::AtMost(100.0), comparison(&other));
    let (wakes, cpu) = idle_costs();
    let cpu = format!("{} of a core", format_figure(cpu, "%"));
    report.add("wake-ups of an idle team of 3, all threads", wakes, "/s", Target::Below(10.0), cpu);
}

/// The time from the return of the create call to the request, in milliseconds. This process and another one create
/// tasks in turn.
async fn latencies() -> [Vec<f64>; 2] {
    let workspace = BenchWorkspace::new();
    let (requests, requested) = mpsc::channel();
    let requests = Mutex::new(requests);
    let respond = move |request: &ModelRequest| match new_task(request) {
        Some(task) => {
            let _ = requests.lock().unwrap().send(now_ns());
            (call(&[complete(task)]), Duration::ZERO)
        }
        None => (answers::say("Done."), Duration::ZERO),
    };
    let model = Arc::new(FnModel { respond, on_answer: |_: &str| {} });
    let (durability, limits) = (Durability::Power, Limits::default());
    let team = TeamSetup { workspace: workspace.path(), members: MEMBERS, durability, limits, model }.launch().await;
    let mut other = ChildProcess::ready("create", workspace.path(), 0);
    let by = Actor::new(HUMAN, ActorKind::Person);
    let mut latencies = [Vec::new(), Vec::new()];
    for turn in 0..2 * TASKS {
        while !team.is_idle(MEMBERS) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(10 + fastrand::u64(..PAUSE_MS_MAX))).await;
        let created = if turn % 2 == 0 {
            team.workspace.stores.board.create(&by, vec![a_task()], false).await.unwrap();
            now_ns()
        } else {
            other.send_line("create");
            other.read_reply().parse().unwrap()
        };
        let requested = requested.recv_timeout(super::workspace::WAIT_TIME_MAX).unwrap();
        // The team may start before the create call returns.
        latencies[turn % 2].push(requested.saturating_sub(created) as f64 / 1e6);
    }
    other.finish();
    team.stop().await;
    latencies
}

fn a_task() -> NewTask {
    NewTask { subject: "Look into it".to_owned(), ..NewTask::default() }
}

/// A child: creates a task for each line it reads, and prints the time.
pub fn create_on_request(workspace: &Path, _: usize) {
    let board: BoardFiles = open_board(workspace, Durability::Power);
    let by = Actor::new(HUMAN, ActorKind::Person);
    say("ready");
    while next_line().is_some() {
        board.create(&by, vec![a_task()], false).unwrap();
        say(&now_ns().to_string());
    }
}

/// The wake-ups per second of an idle team's process, and its share of a core in percent.
fn idle_costs() -> (f64, f64) {
    let workspace = BenchWorkspace::new();
    workspace.write_team(MEMBERS, &diligent(), "");
    let up = workspace.start(&["up", "--headless"]);
    wait_until("the team reports", || {
        fs::read_to_string(workspace.join("agent_state.json")).is_ok_and(|state| state.contains("\"m3\""))
    });
    thread::sleep(SETTLING);
    let (wakes, ticks) = (wakes_of(up.id()), cpu_of(up.id()));
    thread::sleep(WATCHED);
    let seconds = WATCHED.as_secs_f64();
    let wakes = (wakes_of(up.id()) - wakes) as f64 / seconds;
    (wakes, (cpu_of(up.id()) - ticks) / seconds * 100.0)
}

/// The voluntary context switches of all threads of a process; each is one wake-up.
fn wakes_of(process: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let count = |status: String| {
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"))?;
        line.split_whitespace().last()?.parse::<u64>().ok()
    };
    threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok().and_then(count)).sum()
}

/// Seconds of CPU time that a process has used.
pub fn cpu_of(process: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let tick = |field: usize| fields.split_whitespace().nth(field).unwrap().parse::<f64>().unwrap();
    // Fields 14 and 15 of proc(5), in hundredths of a second on every Linux.
    (tick(11) + tick(12)) / 100.0
}
