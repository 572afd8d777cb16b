//! Requests to stop, and plans to approve.

use std::time::Duration;

use brigade::domain::change::{Actor, ActorKind};
use brigade::domain::event::Fact;
use brigade::domain::message::{Message, MessageType};
use brigade::domain::name::HUMAN;
use brigade::domain::state::Mode;
use brigade::domain::task::{NewTask, TaskId, TaskStatus};
use brigade::domain::time::UnixMs;
use brigade::ports::ModelRequest;
use brigade::team::handle::{Command, TeamHandle};
use serde_json::{Value, json};

use super::stage::{
    Answer, Stage, approve_plan, call, complete, diligent, has_new_task, new_task, on_and_on, once, say, text_of,
};

fn stopped(stage: &Stage, who: &str) -> bool {
    stage.count(|fact| matches!(fact, Fact::TeammateStopped { teammate, .. } if teammate == who)) == 1
}

/// The id of the last request that was told.
fn request_id(request: &ModelRequest) -> Option<String> {
    let text = text_of(request);
    let (_, rest) = text.rsplit_once("(request_id: ")?;
    Some(rest.split(')').next()?.to_owned())
}

/// A lead that asks alice to stop, and then reports what it reads.
fn asking_lead(stage: &mut Stage) {
    stage.spec.goal = Some("stop alice".to_owned());
    stage.brain("lead", |_, count| async move {
        match count {
            0 => call(&[("nap", json!({"ms": 1000})), ("shutdown_request", json!({"teammate": "alice"}))]),
            _ => say("I see."),
        }
    });
}

async fn book(stage: &Stage) -> Vec<(String, Option<bool>)> {
    let book = stage.stores.requests.all().await.unwrap();
    book.requests.into_iter().map(|request| (request.to, request.answer.map(|answer| answer.approve))).collect()
}

#[tokio::test(start_paused = true)]
async fn an_idle_teammate_agrees_without_its_model() {
    let mut stage = Stage::new(&["alice", "bob"]);
    stage.diligent(&["alice", "bob"]);
    asking_lead(&mut stage);
    let team = stage.launch(on_and_on()).await;
    stage.until("stopped", |stage| stopped(stage, "alice")).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(stage.sent_by("alice").is_empty(), "no model was asked");
    assert_eq!(book(&stage).await, [("alice".to_owned(), Some(true))]);
    let lead = stage.transcript("lead").await.join("\n");
    assert!(lead.contains("[shutdown_response] from alice") && lead.contains("(approve: true)"), "{lead}");
    // Stopped, not on call: neither a task nor mail brings it back.
    stage.create(vec![NewTask { owner: Some("alice".into()), ..new_task("hers") }]).await;
    stage.mail("human", "alice", "hello").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((stage.sent_by("alice").len(), stage.task(1).await.status), (0, TaskStatus::Pending));
    assert_eq!(team.live().teammates()["alice"].phase, "stopped");
    team.command(Command::Stop).await;
    stage.ended(team).await;
    stage.check_laws().await;
}

/// Alice is asked to stop while she works; she answers so, and goes on to complete her task if she stays.
async fn asked_at_work(approve: bool) -> Stage {
    let mut stage = Stage::new(&["alice", "bob"]);
    stage.diligent(&["bob"]);
    asking_lead(&mut stage);
    stage.brain("alice", move |request, count| async move {
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
    stage.create(vec![hers]).await;
    let team = stage.launch(on_and_on()).await;
    stage.until("answered", |stage| stage.sent_by("lead").len() > 2).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    team.command(Command::Stop).await;
    stage.ended(team).await;
    stage.check_laws().await;
    stage
}

#[tokio::test(start_paused = true)]
async fn a_working_teammate_is_asked_by_its_model() {
    let stage = asked_at_work(true).await;
    assert_eq!(book(&stage).await, [("alice".to_owned(), Some(true))]);
    assert!(!stage.notes().iter().any(|note| note.contains("behind")), "nothing after it agreed");
    let task = stage.task(1).await;
    assert_eq!(
        (task.failures, task.owner.as_deref()),
        (0, Some("bob")),
        "given back, not counted, and done by the other"
    );
    assert_eq!(stage.sent_by("alice").len(), 2);

    let stage = asked_at_work(false).await;
    assert_eq!(book(&stage).await, [("alice".to_owned(), Some(false))], "the harness does not overrule her once idle");
    assert_eq!(stage.task(1).await.status, TaskStatus::Completed);
    let lead = stage.transcript("lead").await.join("\n");
    assert!(
        lead.contains("(approve: false): as I see it") && lead.matches("[shutdown_response]").count() == 1,
        "{lead}"
    );
}

#[tokio::test(start_paused = true)]
async fn one_that_does_not_answer_stops_once_it_is_idle() {
    let mut stage = Stage::new(&["alice"]);
    asking_lead(&mut stage);
    stage.brain("alice", |_, count| async move {
        match count {
            0 => call(&[("nap", json!({"ms": 5000}))]),
            1 => call(&[complete(1)]),
            _ => say("Done."),
        }
    });
    stage.tasks(&["a"]).await;
    let team = stage.launch(on_and_on()).await;
    stage.until("stopped", |stage| stopped(stage, "alice")).await;
    assert_eq!(stage.task(1).await.status, TaskStatus::Completed);
    assert_eq!(book(&stage).await, [("alice".to_owned(), Some(true))]);
    team.command(Command::Stop).await;
    stage.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn a_person_is_always_obeyed() {
    // At work, idle, and under a pause.
    for (work, mode) in [(true, Mode::Continuous), (false, Mode::Continuous), (false, Mode::Pause)] {
        let mut stage = Stage::new(&["alice", "bob"]);
        stage.brain("alice", |_, _| async { call(&[("nap", json!({"ms": 2000}))]) });
        stage.diligent(&["bob"]);
        if work {
            stage.create(vec![NewTask { owner: Some("alice".into()), ..new_task("hers") }]).await;
        }
        let team = stage.launch(on_and_on()).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        stage.click(mode).await;
        tokio::time::sleep(Duration::from_secs(90)).await;
        let requests = stage.sent_by("alice").len();
        stage.mail_of(MessageType::ShutdownRequest, "human", "alice", Some("stop-1")).await;
        stage.mail("human", "alice", "and this behind it").await;
        stage.until("stopped", |stage| stopped(stage, "alice")).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(stage.sent_by("alice").len() <= requests + 1, "at most the turn that ran");
        if work {
            let task = stage.task(1).await;
            assert_eq!((task.status, task.failures, task.owner.as_deref()), (TaskStatus::Completed, 0, Some("bob")));
        }
        let respawned = |fact: &Fact| matches!(fact, Fact::TeammateRespawned { .. });
        assert_eq!(stage.count(respawned), 0, "{}", stage.story());
        team.command(Command::Stop).await;
        stage.ended(team).await;
        stage.check_laws().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_person_who_does_not_wait_for_the_turn_breaks_it_off() {
    let mut stage = Stage::new(&["alice", "bob"]);
    stage.brain("alice", |_, _| async {
        std::future::pending::<()>().await;
        say("")
    });
    stage.diligent(&["bob"]);
    stage.create(vec![NewTask { owner: Some("alice".into()), ..new_task("hers") }]).await;
    let team = stage.launch(on_and_on()).await;
    stage.until("she is at it", |stage| !stage.sent_by("alice").is_empty()).await;
    stage.mail_of(MessageType::ShutdownRequest, "human", "alice", Some("stop-1")).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!stopped(&stage, "alice"), "a plain request waits for the turn");
    let order = Message { now: Some(true), ..Message::new(MessageType::ShutdownRequest, "bob", "x", UnixMs(0)) };
    stage.stores.mailbox.send("alice", order.clone()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!stopped(&stage, "alice"), "only a person breaks off a turn");
    stage.stores.mailbox.send("alice", Message { from: "human".to_owned(), ..order }).await.unwrap();
    stage.until("stopped", |stage| stopped(stage, "alice")).await;
    stage.until_status(1, TaskStatus::Completed).await;
    let task = stage.task(1).await;
    assert_eq!((task.failures, task.owner.as_deref(), stage.sent_by("alice").len()), (0, Some("bob"), 1));
    assert!(!stage.mailbox_waits().await, "the order was read: it stops no later life");
    team.command(Command::Stop).await;
    stage.ended(team).await;
    stage.check_laws().await;
}

fn plan_answer(request: &ModelRequest, approve: bool) -> Answer {
    let answer = |id: String| -> Value { json!({"request_id": id, "approve": approve, "feedback": "split step 2"}) };
    match request_id(request).filter(|_| !text_of(request).contains("call: plan_approval")) {
        Some(id) => call(&[("plan_approval", answer(id))]),
        None => say("I see."),
    }
}

#[tokio::test(start_paused = true)]
async fn a_plan_goes_to_the_lead_and_its_answer_comes_back() {
    for approve in [true, false] {
        let mut stage = Stage::new(&["alice"]);
        stage.brain("lead", move |request, _| async move { plan_answer(&request, approve) });
        stage.brain("alice", |request, _| async move {
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
        stage.tasks(&["risky"]).await;
        let team = stage.launch(once()).await;
        assert_eq!(stage.ended(team).await.tally.completed, 1);
        let alice = stage.transcript("alice").await.join("\n");
        assert!(alice.contains(&format!("(approve: {approve}): split step 2")), "{alice}");
        assert_eq!(book(&stage).await, [("lead".to_owned(), Some(approve))]);
        stage.check_laws().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_plan_of_another_program_can_be_answered() {
    let mut stage = Stage::new(&["alice"]);
    stage.diligent(&["alice"]);
    stage.brain("lead", |request, _| async move { plan_answer(&request, true) });
    let team = stage.launch(on_and_on()).await;
    stage.mail_of(MessageType::PlanApprovalRequest, "alice", "lead", Some("9b1d4e05")).await;
    stage.until("answered", |stage| stage.sent_by("alice").len() == 1).await;
    let alice = stage.transcript("alice").await.join("\n");
    assert!(alice.contains("(request_id: 9b1d4e05) (approve: true)"), "{alice}");
    team.command(Command::Stop).await;
    stage.ended(team).await;
    stage.check_laws().await;
}

/// Hands in a plan for a new task, ends its turn, and does the task once it is told something about the plan.
fn plans_first(request: &ModelRequest) -> Answer {
    let text = text_of(request);
    match () {
        () if has_new_task(request) => call(&[("plan_approval", json!({"plan": "1. this 2. that"}))]),
        () if text.contains("[plan_approval_response]") && !text.contains("call: task_update") => call(&[complete(1)]),
        () => say("I wait for an answer."),
    }
}

/// What alice waits for, once she has reported.
fn waits_for(team: &TeamHandle) -> String {
    team.live()
        .teammates()
        .get("alice")
        .and_then(|alice| Some(alice.waiting_for.as_ref()?.to_file_text()))
        .unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_the_answer_to_its_plan_keeps_its_task_and_costs_nothing() {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", |request, _| async move { plans_first(&request) });
    stage.tasks(&["risky"]).await;
    let team = stage.launch(once()).await;
    stage.until("it waits", |_| waits_for(&team).starts_with("a person (plan ")).await;
    assert_eq!(stage.requests(), 2);
    tokio::time::sleep(std::time::Duration::from_secs(3_600)).await;
    assert_eq!(stage.requests(), 2, "waiting is free");
    let task = stage.task(1).await;
    assert_eq!((task.status, task.attempt, task.failures), (TaskStatus::InProgress, 1, 0), "{}", stage.story());
    let plan = stage.stores.requests.all().await.unwrap().open_plans().next().unwrap().id.clone();
    approve_plan(&stage.stores, &plan, stage.clock.now()).await;
    assert_eq!(stage.ended(team).await.tally.completed, 1, "{}", stage.story());
    assert_eq!(stage.task(1).await.attempt, 1);
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_an_answer_can_be_stopped_and_can_lose_its_task() {
    for is_stopped in [true, false] {
        let mut stage = Stage::new(&["alice"]);
        stage.brain("alice", |request, _| async move { plans_first(&request) });
        stage.tasks(&["risky"]).await;
        let team = stage.launch(on_and_on()).await;
        stage.until("it waits", |_| waits_for(&team).starts_with("a person (plan ")).await;
        if is_stopped {
            team.command(Command::Stop).await;
        } else {
            let person = Actor::new(HUMAN, ActorKind::Person).forcing(true);
            stage.stores.board.delete(TaskId(1), &person).await.unwrap();
            stage.until("it is idle", |_| team.live().teammates()["alice"].phase == "idle").await;
            assert!(stage.transcript("alice").await.join("\n").contains("not yours any more"), "it is told");
            team.command(Command::Stop).await;
        }
        stage.ended(team).await;
        if is_stopped {
            let task = stage.task(1).await;
            assert_eq!((task.status, task.failures), (TaskStatus::Pending, 0), "{}", stage.story());
        }
        stage.check_laws().await;
    }
}
