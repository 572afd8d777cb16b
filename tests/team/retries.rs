//! A failed attempt leaves no trace in the next one; a crash does.

use brigade::domain::log::event::EventKind;
use brigade::domain::task::transition::{Actor, ActorKind, Change};
use brigade::domain::task::{TaskId, TaskStatus};
use brigade::domain::team::name::HUMAN;
use brigade::domain::team::team_spec::Memory;
use brigade::ports::{ModelError, ModelRequest};
use brigade::team::handle::TeamCommand;
use serde_json::json;

use super::harness::{TestTeam, call, complete, diligent, has_new_task, once, say, start_continuous, task_at_hand};

/// A text of the first attempt that the second one must not see.
const TRACE: &str = "def truncate";

/// Fails task 1 in its first attempt, after it wrote [`TRACE`] and a list of steps.
fn fail_first(harness: &mut TestTeam, who: &str) {
    harness.set_model_fn(who, |request, _| async move {
        let is_first = !request.messages.iter().any(|message| {
            message.content.iter().any(|block| super::harness::block_text(block).contains("An earlier attempt"))
        });
        match task_at_hand(&request).filter(|_| has_new_task(&request)) {
            Some(1) if is_first => call(&[
                ("todo", json!({"content": TRACE})),
                ("nap", json!({"note": TRACE})),
                ("task_update", json!({"task_id": 1, "status": "failed", "result": "the tests are red"})),
            ]),
            Some(task) => call(&[complete(task)]),
            None => say("Done."),
        }
    });
}

#[tokio::test(start_paused = true)]
async fn refused_context_ends_the_attempt() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |request, _| async move {
        let text = all_text(&request);
        match task_at_hand(&request).filter(|_| has_new_task(&request)) {
            _ if text.contains(TRACE) => Err(ModelError::Final("messages.2 is not valid".to_owned())),
            Some(_) if !text.contains("An earlier attempt") => call(&[("todo", json!({"content": TRACE}))]),
            Some(task) => call(&[complete(task)]),
            None => say("Done."),
        }
    });
    harness.tasks(&["first"]).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 1);
    let task = harness.task(1).await;
    assert_eq!((task.attempt, task.failures), (2, 1));
    assert!(task.failed_attempts[0].reason.contains("messages.2 is not valid"), "{:?}", task.failed_attempts);
}

/// A small model claimed a task and gave it back without end.
#[tokio::test(start_paused = true)]
async fn task_given_back_without_end_fails() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |_, _| async {
        call(&[("task_update", json!({"task_id": 1, "status": "pending", "result": "not now"}))])
    });
    harness.tasks(&["first"]).await;
    assert_eq!(harness.run_once().await.task_counts.failed, 1);
    let task = harness.task(1).await;
    assert_eq!((task.attempt, task.failures), (4, 3));
    assert_eq!(harness.requests(), 4);
    harness.check_invariants().await;
}

/// All texts of a request.
fn all_text(request: &ModelRequest) -> String {
    let blocks = request.messages.iter().flat_map(|message| &message.content);
    blocks.map(|block| super::harness::block_text(block) + &format!("{block:?}")).collect()
}

/// The number of contexts that a transcript starts.
async fn contexts(harness: &TestTeam, who: &str) -> usize {
    let records = harness.stores.transcripts.load(who).await.unwrap();
    records.iter().filter(|record| record.entry.starts_context()).count()
}

#[tokio::test(start_paused = true)]
async fn retry_starts_context_without_failed_attempt() {
    let mut harness = TestTeam::new(&["alice"]);
    fail_first(&mut harness, "alice");
    harness.tasks(&["first"]).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 1);
    let task = harness.task(1).await;
    assert_eq!((task.attempt, task.failures), (2, 1));
    assert_eq!((task.failed_attempts[0].attempt, task.failed_attempts[0].owner.as_str()), (1, "alice"));
    let sent = harness.sent_by("alice");
    let second = sent.iter().find(|sent| sent.text().contains("An earlier attempt")).unwrap();
    let text = second.text();
    assert!(!text.contains(TRACE), "{text}");
    assert!(text.starts_with("<identity>") && text.contains("An earlier attempt failed: the tests are red"), "{text}");
    assert_eq!(second.request.messages.len(), 1, "{text}");
    let records = harness.stores.transcripts.load("alice").await.unwrap();
    let has_trace = |record: &brigade::domain::agent::transcript::Record| record.to_line().contains(TRACE);
    assert!(records.iter().any(has_trace), "the transcript keeps everything");
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn restart_rebuilds_context_of_retry() {
    let mut harness = TestTeam::new(&["alice"]);
    fail_first(&mut harness, "alice");
    harness.tasks(&["first"]).await;
    harness.run_once().await;
    harness.restart();
    harness.tasks(&["second"]).await;
    harness.run_once().await;
    let text = harness.sent_by("alice").last().unwrap().text();
    assert!(text.contains("An earlier attempt failed") && text.contains("Task #2") && !text.contains(TRACE), "{text}");
    assert_eq!(contexts(&harness, "alice").await, 1);
    harness.check_invariants().await;
}

fn is_released(event: &EventKind) -> bool {
    matches!(event, EventKind::TaskReleased { .. })
}

#[tokio::test(start_paused = true)]
async fn failed_task_claimed_by_call_gets_new_context() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |request, count| async move {
        match (count, task_at_hand(&request).filter(|_| has_new_task(&request))) {
            (0, _) => call(&[
                ("nap", json!({"note": TRACE})),
                ("task_update", json!({"task_id": 1, "status": "failed", "result": "red"})),
            ]),
            // A message starts this turn before the back-off ends.
            (1, _) => call(&[("nap", json!({"ms": 5_000}))]),
            (2, _) => call(&[("claim_task", json!({"task_id": 1}))]),
            (_, Some(task)) => call(&[complete(task)]),
            _ => say("Done."),
        }
    });
    harness.tasks(&["first"]).await;
    let team = harness.launch(once()).await;
    harness.wait_until("alice has failed", |harness| harness.count(is_released) == 1).await;
    harness.mail("human", "alice", "claim it again").await;
    assert_eq!(harness.ended(team).await.task_counts.completed, 1, "{}", harness.event_lines());
    let text = harness.sent_by("alice")[3].text();
    assert!(text.contains("<auto-claimed>Task #1") && !text.contains(TRACE) && !text.contains("claim_task"), "{text}");
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn memory_of_one_task_forgets_earlier_tasks() {
    for (memory, of_member) in [(Memory::Session, None), (Memory::Task, None), (Memory::Session, Some(Memory::Task))] {
        let mut harness = TestTeam::new(&["alice"]);
        harness.diligent(&["alice"]);
        (harness.spec.memory, harness.spec.members[0].memory) = (memory, of_member);
        harness.tasks(&["first", "second", "third"]).await;
        harness.run_once().await;
        let is_session = memory == Memory::Session && of_member.is_none();
        let text = harness.sent_by("alice").last().unwrap().text();
        assert_eq!(text.contains("Task #1: first"), is_session, "{text}");
        assert!(text.contains("Task #3: third"), "{text}");
        assert_eq!(contexts(&harness, "alice").await, if is_session { 0 } else { 2 });
        harness.check_invariants().await;
    }
}

#[tokio::test(start_paused = true)]
async fn failed_task_retried_by_person_starts_new_context() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |request, count| async move {
        match count {
            0 => call(&[
                ("nap", json!({"note": TRACE})),
                ("task_update", json!({"task_id": 1, "status": "failed", "result": "red", "final": true})),
            ]),
            _ => diligent(&request),
        }
    });
    harness.tasks(&["first"]).await;
    let team = harness.launch(start_continuous()).await;
    harness.wait_for_status(1, TaskStatus::Failed).await;
    let person = Actor::new(HUMAN, ActorKind::Person);
    harness.stores.board.change(TaskId(1), Change::Retry, &person).await.unwrap();
    harness.wait_for_status(1, TaskStatus::Completed).await;
    let text = harness.sent_by("alice").iter().map(|sent| sent.text()).find(|text| text.contains("attempt failed"));
    assert!(text.as_ref().is_some_and(|text| text.contains("An earlier attempt failed: red") && !text.contains(TRACE)));
    assert_eq!(contexts(&harness, "alice").await, 1);
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
    harness.check_invariants().await;
}
