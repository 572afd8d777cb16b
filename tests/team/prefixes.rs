//! Each request of a context begins with the request before, in teams of every size and through everything that happens to them.

use std::time::Duration;

use brigade::domain::log::event::EventKind;
use brigade::ports::{ModelError, ModelRequest, ModelResponse, StopReason};
use brigade::team::handle::TeamCommand;
use serde_json::json;

use super::harness::{
    LONG, ModelResult, TestTeam, answer, call, complete, diligent, has_new_task, new_task, once, say, start_continuous,
    task_at_hand,
};

fn overloaded() -> ModelResult {
    Err(ModelError::Temporary { message: "overloaded".to_owned(), retry_after: None })
}

/// Works in small steps: fails, naps, sends mail, says nothing, looks at the board and completes.
fn teammate(request: &ModelRequest, count: usize, neighbour: &str) -> ModelResult {
    match (count % 7, task_at_hand(request)) {
        (0 | 4, _) => overloaded(),
        (1, Some(_)) => {
            call(&[("nap", json!({"ms": 700})), ("send_message", json!({"to": neighbour, "content": "hello"}))])
        }
        (2, Some(_)) => answer(Vec::new(), StopReason::EndTurn),
        (3, Some(_)) => call(&[("task_list", json!({})), ("todo", json!({"content": format!("step {count}")}))]),
        (5, Some(task)) => call(&[complete(task)]),
        _ => diligent(request),
    }
}

/// Starts a teammate while the others work, and asks another one to stop.
fn lead(request: &ModelRequest, count: usize, last: &str) -> ModelResult {
    match count {
        0 => call(&[
            ("task_create", json!({"subject": "late", "description": "x"})),
            ("spawn_teammate", json!({"name": "zoe", "role": "tester", "prompt": "Test."})),
        ]),
        1 => overloaded(),
        2 => call(&[("list_teammates", json!({})), ("shutdown_request", json!({"teammate": last}))]),
        3 => call(&[("broadcast", json!({"content": "all hands"}))]),
        _ if has_new_task(request) => diligent(request),
        _ => say("Planned."),
    }
}

/// Runs a team of this size twice, with a compaction in the second run.
async fn run_twice(size: usize) -> TestTeam {
    let names: Vec<String> = (1..=size).map(|number| format!("m{number}")).collect();
    let mut harness = TestTeam::new(&names.iter().map(String::as_str).collect::<Vec<_>>());
    for (index, name) in names.iter().enumerate() {
        let neighbour = names[(index + 1) % size].clone();
        harness.set_model_fn(name, move |request, count| {
            let neighbour = neighbour.clone();
            async move {
                match request.is_for_summary() {
                    true => say("SUMMARY"),
                    false => teammate(&request, count, &neighbour),
                }
            }
        });
    }
    let last = names.last().unwrap().clone();
    harness.set_model_fn("lead", move |request, count| {
        let last = last.clone();
        async move { lead(&request, count, &last) }
    });
    harness.spec.goal = Some("many small things".to_owned());
    let tasks = |from: usize| (from..from + 2 * size).map(|number| new_task(&format!("task {number}"))).collect();
    harness.create(tasks(0)).await;
    harness.run_once().await;
    harness.restart();
    harness.create(tasks(100)).await;
    let team = harness.launch(start_continuous()).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (reply, mut done) = tokio::sync::mpsc::channel(1);
    team.command(TeamCommand::Compact { name: "m1".to_owned(), reply }).await;
    let _ = tokio::time::timeout(LONG, done.recv()).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
    harness
}

#[tokio::test(start_paused = true)]
async fn requests_begin_with_the_last_one() {
    for size in [2, 5, 50] {
        let harness = run_twice(size).await;
        harness.check_invariants().await;
        let happened = |matches: fn(&EventKind) -> bool| harness.count(matches) > 0;
        assert!(happened(|event| matches!(event, EventKind::Compacted { .. })), "{}", harness.event_lines());
        assert!(happened(|event| matches!(event, EventKind::ModelRetried { .. })));
        assert!(happened(|event| matches!(event, EventKind::MessageDelivered { to, .. } if to == "m1")));
        assert!(happened(|event| matches!(event, EventKind::TeammateSpawned { teammate, .. } if teammate == "zoe")));
        let sent = harness.sent_by("m1");
        assert!(sent.len() > 10, "{} requests", sent.len());
        let first = sent[0].text();
        let team = first.lines().find(|line| line.starts_with("Team: ")).unwrap();
        assert_eq!(team.matches(" (coder)").count(), size, "{first}");
    }
}

#[tokio::test(start_paused = true)]
async fn new_context_has_task_text_once() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |request, count| async move {
        match count {
            _ if request.is_for_summary() => say("SUMMARY"),
            // Without a report, the size is estimated.
            0..4 => call(&[("nap", json!({"note": "x".repeat(2_000)}))])
                .map(|response| ModelResponse { usage: None, ..response }),
            _ => diligent(&request),
        }
    });
    harness.spec.limits.model.compact_at_tokens = 3_000;
    let description = "a description that is long enough to be found again".to_owned();
    harness.create(vec![brigade::domain::task::NewTask { description: description.clone(), ..new_task("a") }]).await;
    let team = harness.launch(once()).await;
    let is_compacted =
        |harness: &TestTeam| harness.sent_by("alice").iter().any(|sent| sent.text().contains("<summary>"));
    harness.wait_until("a compaction", is_compacted).await;
    let sent = harness.sent_by("alice");
    let compacted = sent.iter().find(|sent| sent.text().contains("<summary>")).unwrap();
    for request in [&sent[0], compacted] {
        assert_eq!(request.text().matches(&description).count(), 1, "{}", request.text());
    }
    team.command(TeamCommand::Abort).await;
    harness.ended(team).await;
    harness.check_invariants().await;
}
