//! A new process resumes the state that a killed one left: calls, requests, plans, steps.

use std::time::Duration;

use brigade::domain::agent::prompt::{claimed_block, mail_record};
use brigade::domain::agent::transcript::{Block, MessageRecord, Record, Role, TranscriptEntry};
use brigade::domain::log::event::EventKind;
use brigade::domain::task::{TaskId, TaskStatus};
use brigade::domain::team::approval::{Request, RequestKind, ReviewSubject};
use brigade::domain::team::message::{Message, MessageType};
use brigade::domain::team::name::HUMAN;
use brigade::domain::team::phase::ClaimRef;
use brigade::domain::team::waiting_for::WaitingFor;
use brigade::domain::time::UnixMs;
use brigade::team::handle::TeamCommand;
use serde_json::{Value, json};

use super::harness::{
    TestTeam, approve_plan, call, complete, diligent, has_new_task, say, start_continuous, task_at_hand,
};

/// The time at which the killed process ran.
const THEN: UnixMs = UnixMs(1_763_687_000_000);

fn asks(id: &str, tool: &str, input: Value) -> Block {
    Block::tool_use(id, tool, input)
}

fn answers(id: &str, text: &str) -> Block {
    Block::ToolResult { tool_use_id: id.to_owned(), content: text.to_owned(), is_error: false }
}

/// Leaves alice on task 1 as a killed process does: a claimed task, its message, and then these messages.
async fn kill_after_messages(harness: &TestTeam, behind: Vec<(Role, Vec<Block>)>) {
    harness.tasks(&["first"]).await;
    let task = harness.claim(1, "alice", "dead", None).await;
    let told = (Role::User, vec![Block::text(claimed_block(&task, None))]);
    let records = [told].into_iter().chain(behind).map(|(role, content)| Record {
        at: THEN,
        entry: TranscriptEntry::Message(MessageRecord {
            task: Some(TaskId(1)),
            attempt: Some(1),
            ..MessageRecord::new(role, content)
        }),
    });
    harness.stores.transcripts.append("alice", &records.collect::<Vec<_>>(), true).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn interrupted_tool_calls_are_not_repeated() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    let calls = ["c-1", "c-2", "c-3"].map(|id| asks(id, "nap", json!({"note": id})));
    kill_after_messages(&harness, vec![(Role::Assistant, calls.to_vec()), (Role::User, vec![answers("c-1", "c-1")])])
        .await;
    harness.run_once().await;
    let text = harness.sent_by("alice")[0].text();
    let results: Vec<&str> = text.lines().filter(|line| line.starts_with("result: ")).collect();
    assert_eq!(results.len(), 3, "{text}");
    assert_eq!(results[0], "result: c-1");
    assert!(results[1].starts_with("result: Interrupted: ") && results[1].contains("is not known"), "{text}");
    assert!(results[2].starts_with("result: Not called: ") && results[2].contains("before it reached"), "{text}");
    assert_eq!(harness.notes(), Vec::<String>::new(), "the calls were repeated");
    assert_eq!(harness.task(1).await.owner.as_deref(), Some("alice"));
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn interrupted_model_request_is_sent_again() {
    let mut harness = TestTeam::new(&["alice", "bob"]);
    harness.diligent(&["alice", "bob"]);
    let said = "I begin with what is easy.";
    let steps = vec![
        (Role::Assistant, vec![Block::text(said), asks("c-1", "nap", json!({}))]),
        (Role::User, vec![answers("c-1", "slept")]),
    ];
    kill_after_messages(&harness, steps).await;
    // Bob has a request that his model had not answered.
    let question = Message::new(MessageType::Message, HUMAN, "well?", THEN);
    let record = Record { at: THEN, entry: TranscriptEntry::Message(mail_record(&[question], vec!["m-1".to_owned()])) };
    harness.stores.transcripts.append("bob", &[record], true).await.unwrap();
    harness.run_once().await;
    let first = &harness.sent_by("alice")[0];
    assert!(first.text().contains(said) && first.text().contains("result: slept"), "{}", first.text());
    assert_eq!(task_at_hand(&first.request), Some(1));
    assert_eq!(harness.task(1).await.status, TaskStatus::Completed);
    let bobs = harness.sent_by("bob");
    assert_eq!((bobs.len(), bobs[0].text().contains("human: well?")), (1, true), "{}", harness.event_lines());
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn plan_approval_wait_resumes_after_kill() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |request, _| async move {
        let is_answered = request
            .messages
            .iter()
            .flat_map(|message| &message.content)
            .any(|block| matches!(block, Block::Text { text } if text.contains("[plan_approval_response]")));
        if is_answered && !has_new_task(&request) { call(&[complete(1)]) } else { say("I wait.") }
    });
    let handed_in = vec![
        (Role::Assistant, vec![asks("c-1", "plan_approval", json!({"plan": "1. this 2. that"}))]),
        (Role::User, vec![answers("c-1", "handed in as plan-1")]),
        (Role::Assistant, vec![Block::text("I wait.")]),
    ];
    kill_after_messages(&harness, handed_in).await;
    let plan = Request {
        plan: "1. this 2. that".into(),
        about: Some(ReviewSubject::of(&harness.task(1).await, None)),
        ..Request::new("plan-1", RequestKind::PlanApproval, "alice", HUMAN, THEN)
    };
    harness.stores.requests.record(plan).await.unwrap();
    // One more kill: that claim is newer than the plan.
    let claims = vec![ClaimRef { task: TaskId(1), attempt: 1 }];
    let lost = brigade::ports::ReclaimRequest { claims, reason: "killed".into(), ..Default::default() };
    harness.stores.board.reclaim(&lost).await.unwrap();
    harness.claim(1, "alice", "dead too", None).await;
    let team = harness.launch(start_continuous()).await;
    harness.wait_for_status(1, TaskStatus::InProgress).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(harness.requests(), 0, "a waiting member made requests\n{}", harness.event_lines());
    let alice = team.live().teammates()["alice"].clone();
    assert_eq!((alice.task, alice.attempt), (Some(TaskId(1)), Some(3)));
    assert_eq!(alice.waiting_for, Some(WaitingFor::from_file_text("a person (plan plan-1)")));
    approve_plan(&harness.stores, "plan-1", harness.clock.now()).await;
    harness.wait_for_status(1, TaskStatus::Completed).await;
    assert_eq!(harness.task(1).await.failures, 0);
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn todo_list_survives_restart_and_compaction() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |request, _| async move {
        if request.is_for_summary() {
            return say("SUMMARY");
        }
        match task_at_hand(&request).filter(|_| has_new_task(&request)) {
            Some(1) => call(&[("todo", json!({"content": "look\nleap"})), complete(1)]),
            Some(_) => call(&[("todo", json!({}))]),
            None => diligent(&request),
        }
    });
    harness.tasks(&["first"]).await;
    harness.run_once().await;
    harness.tasks(&["second"]).await;
    let team = harness.launch(start_continuous()).await;
    harness
        .wait_until("the approval is requested", |harness| {
            harness.sent_by("alice").iter().any(|sent| sent.text().contains("result: look\nleap"))
        })
        .await;
    // A compaction does not lose them either.
    let (reply, mut done) = tokio::sync::mpsc::channel(1);
    team.command(TeamCommand::Compact { name: "alice".into(), reply }).await;
    assert_eq!(done.recv().await, Some(Ok(())));
    harness.mail("human", "alice", "well?").await;
    let is_told =
        |harness: &TestTeam| harness.sent_by("alice").last().is_some_and(|sent| sent.text().contains("human: well?"));
    harness.wait_until("alice gets the request", is_told).await;
    let text = harness.sent_by("alice").pop().unwrap().text();
    assert!(text.contains("SUMMARY") && text.contains("`todo` keeps it:\nlook\nleap"), "{text}");
    team.command(TeamCommand::Abort).await;
    harness.ended(team).await;
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn token_count_continues_over_launches() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    harness.tasks(&["first"]).await;
    harness.run_once().await;
    let spent =
        |harness: &TestTeam| brigade::domain::log::replay::ReplayState::of(&harness.events()).members["alice"].tokens;
    let before = spent(&harness);
    assert!(before > 0);
    harness.tasks(&["second"]).await;
    let started = harness.count(|event| matches!(event, EventKind::TurnStarted { .. }));
    harness.run_once().await;
    let turns = harness.count(|event| matches!(event, EventKind::TurnStarted { .. })) - started;
    assert_eq!(spent(&harness), before + 11 * turns as u64);
    harness.check_invariants().await;
}
