//! The overhead of a turn: the time from the model's answer to its next request. The tools take no time here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use brigade::domain::team::team_spec::Limits;
use brigade::ports::{Durability, ModelRequest};

use super::report::{ROUNDS, Report, Target, format_figure, median, ms, percentile};
use super::team::{FnModel, NO_OP, TeamSetup};
use super::workspace::{BenchWorkspace, pending};
use crate::testkit::answers::{call, complete, new_task};

/// The measured time of a round, after all members started.
const ROUND: Duration = Duration::from_millis(1200);
/// The time that is not measured at the start of a round, when all first turns begin at once.
const WARM_UP: Duration = Duration::from_millis(600);
const TURNS_PER_TASK: usize = 40;

/// The cases: the number of teammates and the delay of their model. Both request about as many turns per second.
const CASES: [(usize, Duration); 2] = [(3, Duration::from_millis(20)), (100, Duration::from_millis(600))];

/// The times at which answers were returned, and the overheads after them.
#[derive(Default)]
struct TurnTimes {
    answered_at: HashMap<String, Instant>,
    turns: HashMap<String, usize>,
    overheads: Vec<f64>,
}

pub fn measure(report: &mut Report) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cases: Vec<(usize, Duration, Durability)> = CASES
        .into_iter()
        .flat_map(|(members, model_delay)| {
            [Durability::Process, Durability::Power].map(|durability| (members, model_delay, durability))
        })
        .collect();
    let mut results = vec![(Vec::new(), Vec::new(), 0_usize); cases.len()];
    for _ in 0..ROUNDS {
        for ((members, model_delay, durability), (p50, p99, count)) in cases.iter().zip(&mut results) {
            let overheads = runtime.block_on(round(*members, *model_delay, *durability));
            p50.push(percentile(&overheads, 50));
            p99.push(percentile(&overheads, 99));
            *count += overheads.len();
        }
    }
    for ((members, model_delay, durability), (p50, p99, count)) in cases.into_iter().zip(results) {
        let title = |of: &str| format!("{of}, {members} teammates, durability {}", durability.as_str());
        let comparison = format!("{count} turns, model {}", format_figure(ms(model_delay), "ms"));
        report.add(title("p50"), median(&p50), "ms", Target::AtMost(2.0), &comparison);
        report.add(title("p99"), median(&p99), "ms", Target::AtMost(5.0), &comparison);
    }
}

/// The turn overheads of one round, in milliseconds.
async fn round(members: usize, model_delay: Duration, durability: Durability) -> Vec<f64> {
    let workspace = BenchWorkspace::with_board(pending(members as u64 * 20));
    let times = Arc::new(Mutex::new(TurnTimes::default()));
    let (request_times, answer_times) = (Arc::clone(&times), Arc::clone(&times));
    let respond = move |request: &ModelRequest| {
        let now = Instant::now();
        let mut times = request_times.lock().unwrap();
        let who = request.teammate.to_string();
        let turns = times.turns.entry(who.clone()).or_default();
        *turns = if new_task(request).is_some() { 0 } else { *turns + 1 };
        let turns = *turns;
        if let Some(answered) = times.answered_at.remove(&who).filter(|_| turns > 0) {
            times.overheads.push(ms(now - answered));
        }
        drop(times);
        let response = match (turns, task_of(request)) {
            (TURNS_PER_TASK.., Some(task)) => call(&[complete(task)]),
            _ => call(&[(NO_OP, serde_json::json!({}))]),
        };
        // Random delays keep the models out of step.
        (response, model_delay.mul_f64(0.5 + fastrand::f64()))
    };
    let on_answer = move |who: &str| {
        answer_times.lock().unwrap().answered_at.insert(who.to_owned(), Instant::now());
    };
    let model = Arc::new(FnModel { respond, on_answer });
    let setup = TeamSetup { workspace: workspace.path(), members, durability, limits: Limits::default(), model };
    let team = setup.launch().await;
    tokio::time::sleep(WARM_UP).await;
    times.lock().unwrap().overheads.clear();
    tokio::time::sleep(ROUND).await;
    let overheads = std::mem::take(&mut times.lock().unwrap().overheads);
    team.stop().await;
    assert!(overheads.len() > 50, "too few turns: {}", overheads.len());
    overheads
}

/// The last task that was assigned.
fn task_of(request: &ModelRequest) -> Option<u64> {
    let texts = request.messages.iter().rev().flat_map(|message| message.content.iter().rev());
    texts
        .filter_map(|block| match block {
            brigade::domain::agent::transcript::Block::Text { text } => text.strip_prefix("<auto-claimed>Task #"),
            _ => None,
        })
        .find_map(|rest| rest.split(':').next()?.parse().ok())
}
