//! Requests to stop, and plans that need approval.

use std::time::Duration;

use brigade::domain::log::event::EventKind;
use brigade::domain::task::transition::{Actor, ActorKind, Change, TaskEdit};
use brigade::domain::task::{NewTask, TaskId, TaskStatus};
use brigade::domain::team::approval::RequestKind;
use brigade::domain::team::message::{Message, MessageType};
use brigade::domain::team::name::HUMAN;
use brigade::domain::team::phase::ReportedPhase;
use brigade::domain::team::state::Mode;
use brigade::domain::time::UnixMs;
use brigade::ports::ModelRequest;
use brigade::team::handle::{TeamCommand, TeamHandle};
use serde_json::{Value, json};

use super::harness::{
    ModelResult, TestTeam, approve_plan, call, complete, diligent, has_new_task, new_task, once, say, start_continuous,
    text_of,
};

fn stopped(harness: &TestTeam, who: &str) -> bool {
    harness.count(|event| matches!(event, EventKind::TeammateStopped { teammate, .. } if teammate == who)) == 1
}

/// The id of the last request in the context.
fn request_id(request: &ModelRequest) -> Option<String> {
    let text = text_of(request);
    let (_, rest) = text.rsplit_once("(request_id: ")?;
    Some(rest.split(')').next()?.to_owned())
}

/// Waits until alice works on task 1, which is reserved for her, and lets the others claim it after her.
async fn wait_until_alice_works(harness: &TestTeam) {
    harness.wait_until("alice works", |harness| !harness.sent_by("alice").is_empty()).await;
    let edit = TaskEdit { owner: Some(String::new()), ..TaskEdit::default() };
    let person = Actor::new(HUMAN, ActorKind::Person);
    harness.stores.board.change(TaskId(1), Change::Edit(edit), &person).await.unwrap();
}

/// Sets a lead that asks alice to stop, and then reports the answer it reads.
fn set_lead_requesting_shutdown(harness: &mut TestTeam) {
    harness.spec.goal = Some("stop alice".to_owned());
    harness.set_model_fn("lead", |_, count| async move {
        match count {
            0 => call(&[("nap", json!({"ms": 1000})), ("shutdown_request", json!({"teammate": "alice"}))]),
            _ => say("I see."),
        }
    });
}

async fn recorded_answers(harness: &TestTeam) -> Vec<(String, Option<bool>)> {
    let recorded_answers = harness.stores.requests.all().await.unwrap();
    recorded_answers
        .requests
        .into_iter()
        .map(|request| (request.to, request.answer.map(|answer| answer.approve)))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn idle_teammate_agrees_to_stop_without_model() {
    let mut harness = TestTeam::new(&["alice", "bob"]);
    harness.diligent(&["alice", "bob"]);
    set_lead_requesting_shutdown(&mut harness);
    let team = harness.launch(start_continuous()).await;
    harness.wait_until("stopped", |harness| stopped(harness, "alice")).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(harness.sent_by("alice").is_empty(), "a model got a request");
    assert_eq!(recorded_answers(&harness).await, [("alice".to_owned(), Some(true))]);
    let lead = harness.transcript("lead").await.join("\n");
    assert!(lead.contains("[shutdown_response] from alice") && lead.contains("(approve: true)"), "{lead}");
    // Stopped, not on call: neither a task nor mail wakes it.
    harness.create(vec![NewTask { owner: Some("alice".into()), ..new_task("hers") }]).await;
    harness.mail("human", "alice", "hello").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((harness.sent_by("alice").len(), harness.task(1).await.status), (0, TaskStatus::Pending));
    assert_eq!(team.live().teammates()["alice"].phase, ReportedPhase::Stopped);
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
    harness.check_invariants().await;
}

/// Asks alice to stop while she works. She answers, and completes her task if she stays.
async fn request_shutdown_at_work(approve: bool) -> TestTeam {
    let mut harness = TestTeam::new(&["alice", "bob"]);
    harness.diligent(&["bob"]);
    set_lead_requesting_shutdown(&mut harness);
    harness.set_model_fn("alice", move |request, count| async move {
        let asked = request_id(&request).filter(|_| text_of(&request).matches("call: shutdown_response").count() == 0);
        match (count, asked) {
            (0, _) => call(&[("nap", json!({"ms": 5000}))]),
            (_, Some(id)) => call(&[
                ("shutdown_response", json!({"request_id": id, "approve": approve, "reason": "as I see it"})),
                ("nap", json!({"note": "behind"})),
            ]),
            (2, None) => call(&[complete(1)]),
            _ => diligent(&request),
        }
    });
    let hers = NewTask { owner: Some("alice".into()), ..new_task("hers") };
    harness.create(vec![hers]).await;
    let team = harness.launch(start_continuous()).await;
    wait_until_alice_works(&harness).await;
    harness.wait_until("answered", |harness| harness.sent_by("lead").len() > 2).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
    harness.check_invariants().await;
    harness
}

#[tokio::test(start_paused = true)]
async fn working_teammate_model_answers_shutdown_request() {
    let harness = request_shutdown_at_work(true).await;
    assert_eq!(recorded_answers(&harness).await, [("alice".to_owned(), Some(true))]);
    assert!(!harness.notes().iter().any(|note| note.contains("behind")), "a tool ran after she agreed");
    let task = harness.task(1).await;
    assert_eq!(
        (task.failures, task.owner.as_deref()),
        (0, Some("bob")),
        "not released uncounted and done by the other"
    );
    assert_eq!(harness.sent_by("alice").len(), 2);

    let harness = request_shutdown_at_work(false).await;
    assert_eq!(
        recorded_answers(&harness).await,
        [("alice".to_owned(), Some(false))],
        "the harness overruled her once idle"
    );
    assert_eq!(harness.task(1).await.status, TaskStatus::Completed);
    let lead = harness.transcript("lead").await.join("\n");
    assert!(
        lead.contains("(approve: false): as I see it") && lead.matches("[shutdown_response]").count() == 1,
        "{lead}"
    );
}

#[tokio::test(start_paused = true)]
async fn unanswered_shutdown_request_stops_idle_teammate() {
    let mut harness = TestTeam::new(&["alice"]);
    set_lead_requesting_shutdown(&mut harness);
    harness.set_model_fn("alice", |_, count| async move {
        match count {
            0 => call(&[("nap", json!({"ms": 5000}))]),
            1 => call(&[complete(1)]),
            _ => say("Done."),
        }
    });
    harness.tasks(&["a"]).await;
    let team = harness.launch(start_continuous()).await;
    harness.wait_until("stopped", |harness| stopped(harness, "alice")).await;
    assert_eq!(harness.task(1).await.status, TaskStatus::Completed);
    assert_eq!(recorded_answers(&harness).await, [("alice".to_owned(), Some(true))]);
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn shutdown_by_person_stops_in_every_mode() {
    // At work, idle, and paused.
    for (work, mode) in [(true, Mode::Continuous), (false, Mode::Continuous), (false, Mode::Pause)] {
        let mut harness = TestTeam::new(&["alice", "bob"]);
        harness.set_model_fn("alice", |_, _| async { call(&[("nap", json!({"ms": 2000}))]) });
        harness.diligent(&["bob"]);
        if work {
            harness.create(vec![NewTask { owner: Some("alice".into()), ..new_task("hers") }]).await;
        }
        let team = harness.launch(start_continuous()).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        if work {
            wait_until_alice_works(&harness).await;
        }
        harness.click(mode).await;
        tokio::time::sleep(Duration::from_secs(90)).await;
        let requests = harness.sent_by("alice").len();
        harness.mail_of(MessageType::ShutdownRequest, "human", "alice", Some("stop-1")).await;
        harness.mail("human", "alice", "and this behind it").await;
        harness.wait_until("stopped", |harness| stopped(harness, "alice")).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(harness.sent_by("alice").len() <= requests + 1, "more than the running turn was finished");
        if work {
            let task = harness.task(1).await;
            assert_eq!((task.status, task.failures, task.owner.as_deref()), (TaskStatus::Completed, 0, Some("bob")));
        }
        let respawned = |event: &EventKind| matches!(event, EventKind::TeammateRespawned { .. });
        assert_eq!(harness.count(respawned), 0, "{}", harness.event_lines());
        team.command(TeamCommand::Stop).await;
        harness.ended(team).await;
        harness.check_invariants().await;
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_now_by_person_aborts_turn() {
    let mut harness = TestTeam::new(&["alice", "bob"]);
    harness.set_model_fn("alice", |_, _| async {
        std::future::pending::<()>().await;
        say("")
    });
    harness.diligent(&["bob"]);
    harness.create(vec![NewTask { owner: Some("alice".into()), ..new_task("hers") }]).await;
    let team = harness.launch(start_continuous()).await;
    wait_until_alice_works(&harness).await;
    harness.mail_of(MessageType::ShutdownRequest, "human", "alice", Some("stop-1")).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!stopped(&harness, "alice"), "a plain request aborted the turn");
    let order = Message { now: Some(true), ..Message::new(MessageType::ShutdownRequest, "bob", "x", UnixMs(0)) };
    harness.stores.mailbox.send("alice", order.clone()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!stopped(&harness, "alice"), "a teammate aborted a turn");
    harness.stores.mailbox.send("alice", Message { from: "human".to_owned(), ..order }).await.unwrap();
    harness.wait_until("stopped", |harness| stopped(harness, "alice")).await;
    harness.wait_for_status(1, TaskStatus::Completed).await;
    let task = harness.task(1).await;
    assert_eq!((task.failures, task.owner.as_deref(), harness.sent_by("alice").len()), (0, Some("bob"), 1));
    assert!(!harness.has_mail().await, "the request would stop a later process");
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
    harness.check_invariants().await;
}

fn plan_answer(request: &ModelRequest, approve: bool) -> ModelResult {
    let answer = |id: String| -> Value { json!({"request_id": id, "approve": approve, "feedback": "split step 2"}) };
    match request_id(request).filter(|_| !text_of(request).contains("call: plan_approval")) {
        Some(id) => call(&[("plan_approval", answer(id))]),
        None => say("I see."),
    }
}

#[tokio::test(start_paused = true)]
async fn plan_is_answered_by_lead() {
    for approve in [true, false] {
        let mut harness = TestTeam::new(&["alice"]);
        harness.set_model_fn("lead", move |request, _| async move { plan_answer(&request, approve) });
        harness.set_model_fn("alice", |request, _| async move {
            let text = text_of(&request);
            if text.contains("[plan_approval_response]") && !text.contains("call: task_update") {
                return call(&[complete(1)]);
            }
            match has_new_task(&request) {
                true => call(&[("plan_approval", json!({"plan": "1. this 2. that"}))]),
                false if !text.contains("call: task_update") => call(&[("nap", json!({"ms": 100}))]),
                false => say("Done."),
            }
        });
        harness.tasks(&["risky"]).await;
        let team = harness.launch(once()).await;
        assert_eq!(harness.ended(team).await.task_counts.completed, 1);
        let alice = harness.transcript("alice").await.join("\n");
        assert!(alice.contains(&format!("(approve: {approve}): split step 2")), "{alice}");
        assert_eq!(recorded_answers(&harness).await, [("lead".to_owned(), Some(approve))]);
        harness.check_invariants().await;
    }
}

#[tokio::test(start_paused = true)]
async fn plan_of_other_program_is_answered() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    harness.set_model_fn("lead", |request, _| async move { plan_answer(&request, true) });
    let team = harness.launch(start_continuous()).await;
    harness.mail_of(MessageType::PlanApprovalRequest, "alice", "lead", Some("9b1d4e05")).await;
    harness.wait_until("answered", |harness| harness.sent_by("alice").len() == 1).await;
    let alice = harness.transcript("alice").await.join("\n");
    assert!(alice.contains("(request_id: 9b1d4e05) (approve: true)"), "{alice}");
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
    harness.check_invariants().await;
}

/// Submits a plan for a new task, ends its turn, and does the task after any answer to the plan.
fn plan_then_complete(request: &ModelRequest) -> ModelResult {
    let text = text_of(request);
    match () {
        () if has_new_task(request) => call(&[("plan_approval", json!({"plan": "1. this 2. that"}))]),
        () if text.contains("[plan_approval_response]") && !text.contains("call: task_update") => call(&[complete(1)]),
        () => say("I wait for an answer."),
    }
}

/// The subject that alice waits for, after she has reported one.
fn waits_for(team: &TeamHandle) -> String {
    team.live()
        .teammates()
        .get("alice")
        .and_then(|alice| Some(alice.waiting_for.as_ref()?.to_file_text()))
        .unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn plan_wait_keeps_claim_and_makes_no_requests() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |request, _| async move { plan_then_complete(&request) });
    harness.tasks(&["risky"]).await;
    let team = harness.launch(once()).await;
    harness.wait_until("the plan waits", |_| waits_for(&team).starts_with("a person (plan ")).await;
    assert_eq!(harness.requests(), 2);
    tokio::time::sleep(std::time::Duration::from_secs(3_600)).await;
    assert_eq!(harness.requests(), 2, "a waiting member made requests");
    let task = harness.task(1).await;
    assert_eq!((task.status, task.attempt, task.failures), (TaskStatus::InProgress, 1, 0), "{}", harness.event_lines());
    let plan = harness.stores.requests.all().await.unwrap().open(RequestKind::PlanApproval).next().unwrap().id.clone();
    approve_plan(&harness.stores, &plan, harness.clock.now()).await;
    assert_eq!(harness.ended(team).await.task_counts.completed, 1, "{}", harness.event_lines());
    assert_eq!(harness.task(1).await.attempt, 1);
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn plan_wait_ends_on_stop_or_deleted_task() {
    for is_stopped in [true, false] {
        let mut harness = TestTeam::new(&["alice"]);
        harness.set_model_fn("alice", |request, _| async move { plan_then_complete(&request) });
        harness.tasks(&["risky"]).await;
        let team = harness.launch(start_continuous()).await;
        harness.wait_until("the plan waits", |_| waits_for(&team).starts_with("a person (plan ")).await;
        if is_stopped {
            team.command(TeamCommand::Stop).await;
        } else {
            let person = Actor::new(HUMAN, ActorKind::Person).forcing(true);
            harness.stores.board.delete(TaskId(1), &person).await.unwrap();
            harness
                .wait_until("the member is idle", |_| team.live().teammates()["alice"].phase == ReportedPhase::Idle)
                .await;
            assert!(
                harness.transcript("alice").await.join("\n").contains("not yours any more"),
                "the notice is printed"
            );
            team.command(TeamCommand::Stop).await;
        }
        harness.ended(team).await;
        if is_stopped {
            let task = harness.task(1).await;
            assert_eq!((task.status, task.failures), (TaskStatus::Pending, 0), "{}", harness.event_lines());
        }
        harness.check_invariants().await;
    }
}
