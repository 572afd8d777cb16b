//! What a killed process left is taken up where it was: calls, requests, plans, steps.

use std::time::Duration;

use brigade::domain::context::claimed_block;
use brigade::domain::event::Fact;
use brigade::domain::name::HUMAN;
use brigade::domain::request::{Request, RequestKind};
use brigade::domain::task::{TaskId, TaskStatus};
use brigade::domain::time::UnixMs;
use brigade::domain::transcript::{Block, Entry, MessageRecord, Record, Role};
use brigade::domain::waiting_for::WaitingFor;
use brigade::ports::Claimant;
use brigade::team::handle::Command;
use serde_json::{Value, json};

use super::stage::{Stage, approve_plan, call, complete, diligent, has_new_task, on_and_on, say, task_at_hand};

/// When the process lived that was killed.
const THEN: UnixMs = UnixMs(1_763_687_000_000);

fn asks(id: &str, tool: &str, input: Value) -> Block {
    Block::ToolUse { id: id.to_owned(), name: tool.to_owned(), input }
}

fn answers(id: &str, text: &str) -> Block {
    Block::ToolResult { tool_use_id: id.to_owned(), content: text.to_owned(), is_error: false }
}

/// Leaves alice on task 1 as a process that was killed does: claimed, told of it, and then these messages.
async fn killed_at(stage: &Stage, behind: Vec<(Role, Vec<Block>)>) {
    stage.tasks(&["first"]).await;
    let dead = Claimant { name: "alice".into(), capabilities: vec![], worker: "dead".into(), lease: None };
    let task = stage.stores.board.claim(TaskId(1), &dead).await.unwrap();
    let told = (Role::User, vec![Block::text(claimed_block(&task, None))]);
    let records = [told].into_iter().chain(behind).map(|(role, content)| Record {
        at: THEN,
        entry: Entry::Message(MessageRecord {
            task: Some(TaskId(1)),
            attempt: Some(1),
            ..MessageRecord::new(role, content)
        }),
    });
    stage.stores.transcripts.append("alice", &records.collect::<Vec<_>>(), true).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn calls_without_a_result_are_not_made_again_and_the_model_is_told_which_may_have_been() {
    let mut stage = Stage::new(&["alice"]);
    stage.diligent(&["alice"]);
    let calls = ["c-1", "c-2", "c-3"].map(|id| asks(id, "nap", json!({"note": id})));
    killed_at(&stage, vec![(Role::Assistant, calls.to_vec()), (Role::User, vec![answers("c-1", "c-1")])]).await;
    stage.run_once().await;
    let text = stage.sent_by("alice")[0].text();
    let results: Vec<&str> = text.lines().filter(|line| line.starts_with("result: ")).collect();
    assert_eq!(results.len(), 3, "{text}");
    assert_eq!(results[0], "result: c-1");
    assert!(results[1].starts_with("result: Interrupted: ") && results[1].contains("is not known"), "{text}");
    assert!(results[2].starts_with("result: Not called: ") && results[2].contains("before it came to"), "{text}");
    assert_eq!(stage.notes(), Vec::<String>::new(), "nobody made them again");
    assert_eq!(stage.task(1).await.owner.as_deref(), Some("alice"));
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_in_flight_is_sent_again() {
    let mut stage = Stage::new(&["alice", "bob"]);
    stage.diligent(&["alice", "bob"]);
    let said = "I begin with what is easy.";
    let steps = vec![
        (Role::Assistant, vec![Block::text(said), asks("c-1", "nap", json!({}))]),
        (Role::User, vec![answers("c-1", "slept")]),
    ];
    killed_at(&stage, steps).await;
    // And bob was asked something that his model had not answered.
    let mut asked = MessageRecord::new(Role::User, vec![Block::text("<inbox>\n[message] from human: well?\n</inbox>")]);
    asked.delivered = vec!["m-1".to_owned()];
    let record = Record { at: THEN, entry: Entry::Message(asked) };
    stage.stores.transcripts.append("bob", &[record], true).await.unwrap();
    stage.run_once().await;
    let first = &stage.sent_by("alice")[0];
    assert!(first.text().contains(said) && first.text().contains("result: slept"), "{}", first.text());
    assert_eq!(task_at_hand(&first.request), Some(1));
    assert_eq!(stage.task(1).await.status, TaskStatus::Completed);
    let bobs = stage.sent_by("bob");
    assert_eq!((bobs.len(), bobs[0].text().contains("human: well?")), (1, true), "{}", stage.story());
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn who_waited_for_the_answer_to_its_plan_waits_on_whatever_was_killed_and_goes_on_with_it() {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", |request, _| async move {
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
    killed_at(&stage, handed_in).await;
    let plan = Request {
        plan: "1. this 2. that".into(),
        ..Request::new("plan-1", RequestKind::PlanApproval, "alice", HUMAN, THEN)
    };
    stage.stores.requests.open(plan).await.unwrap();
    // One kill more: what was claimed then is newer than the plan.
    let dead = Claimant { name: "alice".into(), capabilities: vec![], worker: "dead too".into(), lease: None };
    let claims = vec![(TaskId(1), 1)];
    let lost = brigade::ports::LostClaims { claims, reason: "killed".into(), ..Default::default() };
    stage.stores.board.reclaim(&lost).await.unwrap();
    stage.stores.board.claim(TaskId(1), &dead).await.unwrap();
    let team = stage.launch(on_and_on()).await;
    stage.until_status(1, TaskStatus::InProgress).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(stage.requests(), 0, "waiting costs nothing\n{}", stage.story());
    let alice = team.live().teammates()["alice"].clone();
    assert_eq!((alice.task, alice.attempt), (Some(TaskId(1)), Some(3)));
    assert_eq!(alice.waiting_for, Some(WaitingFor::Other("a person (plan plan-1)".into())));
    approve_plan(&stage.stores, "plan-1", stage.clock.now()).await;
    stage.until_status(1, TaskStatus::Completed).await;
    assert_eq!(stage.task(1).await.failures, 0);
    team.command(Command::Stop).await;
    stage.ended(team).await;
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn a_list_of_steps_outlives_its_process_and_its_context() {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", |request, _| async move {
        if request.is_for_summary() {
            return say("SUMMARY");
        }
        match task_at_hand(&request).filter(|_| has_new_task(&request)) {
            Some(1) => call(&[("todo", json!({"content": "look\nleap"})), complete(1)]),
            Some(_) => call(&[("todo", json!({}))]),
            None => diligent(&request),
        }
    });
    stage.tasks(&["first"]).await;
    stage.run_once().await;
    stage.tasks(&["second"]).await;
    let team = stage.launch(on_and_on()).await;
    stage
        .until("asked for", |stage| {
            stage.sent_by("alice").iter().any(|sent| sent.text().contains("result: look\nleap"))
        })
        .await;
    // Whoever compacts does not lose them either.
    let (reply, mut done) = tokio::sync::mpsc::channel(1);
    team.command(Command::Compact { name: "alice".into(), reply }).await;
    assert_eq!(done.recv().await, Some(Ok(())));
    stage.mail("human", "alice", "well?").await;
    let is_told =
        |stage: &Stage| stage.sent_by("alice").last().is_some_and(|sent| sent.text().contains("human: well?"));
    stage.until("she is asked", is_told).await;
    let text = stage.sent_by("alice").pop().unwrap().text();
    assert!(text.contains("SUMMARY") && text.contains("`todo` keeps it:\nlook\nleap"), "{text}");
    team.command(Command::StopNow).await;
    stage.ended(team).await;
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn tokens_spent_are_counted_on() {
    let mut stage = Stage::new(&["alice"]);
    stage.diligent(&["alice"]);
    stage.tasks(&["first"]).await;
    stage.run_once().await;
    let spent = |stage: &Stage| brigade::domain::replay::Replay::of(&stage.events()).members["alice"].tokens;
    let before = spent(&stage);
    assert!(before > 0);
    stage.tasks(&["second"]).await;
    let started = stage.count(|fact| matches!(fact, Fact::TurnStarted { .. }));
    stage.run_once().await;
    let turns = stage.count(|fact| matches!(fact, Fact::TurnStarted { .. })) - started;
    assert_eq!(spent(&stage), before + 11 * turns as u64);
    stage.check_laws().await;
}
