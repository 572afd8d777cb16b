//! Teams with reviewed tasks, and members that submit a plan first.

use brigade::domain::log::event::EventKind;
use brigade::domain::task::{NewTask, TaskStatus};
use brigade::domain::team::approval::{Request, RequestKind};
use brigade::domain::team::name::HUMAN;
use brigade::ports::{ModelError, ModelRequest};
use brigade::service::messages::Outbox;
use brigade::service::request_mail::{self, Answer, Responder};
use brigade::team::handle::{TeamCommand, TeamHandle};
use serde_json::json;

use super::harness::{
    ModelResult, TestTeam, call, complete, has_new_task, new_task, once, say, start_continuous, text_of,
};

/// A team of coders and one critic who reviews their tasks.
fn reviewed(coders: &[&str]) -> TestTeam {
    let members: Vec<&str> = coders.iter().copied().chain(["carol"]).collect();
    let mut harness = TestTeam::new(&members);
    harness.spec.review = Some("critic".to_owned());
    for member in &mut harness.spec.members {
        if member.name.as_str() == "carol" {
            member.role = "critic".to_owned();
        }
    }
    harness
}

/// Reports its task, and again after the work was approved.
fn report_task(request: &ModelRequest) -> ModelResult {
    let text = text_of(request);
    let is_told = |word: &str| text.rsplit_once("call: task_update").is_some_and(|(_, since)| since.contains(word));
    match () {
        () if has_new_task(request) || is_told("(approve: ") => call(&[complete(1)]),
        () => say("I wait."),
    }
}

fn for_coders(subject: &str) -> NewTask {
    NewTask { requires: vec!["coder".to_owned()], ..new_task(subject) }
}

fn waits_for(team: &TeamHandle, who: &str) -> String {
    team.live()
        .teammates()
        .get(who)
        .and_then(|report| Some(report.waiting_for.as_ref()?.to_file_text()))
        .unwrap_or_default()
}

async fn review_of(harness: &TestTeam) -> Option<Request> {
    harness.stores.requests.all().await.unwrap().open(RequestKind::Review).next().cloned()
}

pub async fn approve(harness: &TestTeam) {
    let id = review_of(harness).await.expect("a review waits").id;
    let by = Responder { name: HUMAN, process: "test" };
    let outbox = Outbox { stores: &harness.stores, now: harness.clock.now(), events: None };
    let answer = Answer { approve: true, feedback: None, for_run: false, digest: None };
    request_mail::send_answer(&outbox, by, &id, RequestKind::Review, answer).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn review_wait_makes_no_requests_and_is_shown() {
    let mut harness = reviewed(&["alice"]);
    harness.spec.review = Some(HUMAN.to_owned());
    harness.set_model_fn("alice", |request, _| async move { report_task(&request) });
    harness.set_model_fn("carol", |request, _| async move { report_task(&request) });
    harness.tasks(&["count"]).await;
    let team = harness.launch(once()).await;
    let says = |who: &str| waits_for(&team, who).starts_with("a person (review ");
    harness.wait_until("the plan waits", |_| says("alice") || says("carol")).await;
    let requests = harness.requests();
    tokio::time::sleep(std::time::Duration::from_secs(3_600)).await;
    assert_eq!(harness.requests(), requests, "a waiting member made requests");
    let task = harness.task(1).await;
    assert_eq!((task.status, task.attempt, task.failures), (TaskStatus::InProgress, 1, 0));
    approve(&harness).await;
    assert_eq!(harness.ended(team).await.task_counts.completed, 1, "{}", harness.event_lines());
    assert_eq!(harness.task(1).await.result.unwrap().reviewed_by.as_deref(), Some(HUMAN));
    harness.check_invariants().await;
}

/// A teammate continues its stopped attempt. It neither works again before the answer nor asks again after it.
#[tokio::test(start_paused = true)]
async fn review_continues_after_stop() {
    for is_answered_while_stopped in [true, false] {
        let mut harness = TestTeam::new(&["alice"]);
        harness.spec.review = Some(HUMAN.to_owned());
        harness.set_model_fn("alice", |request, _| async move { report_task(&request) });
        harness.tasks(&["count"]).await;
        let team = harness.launch(start_continuous()).await;
        harness.wait_until("the review waits", |_| waits_for(&team, "alice").starts_with("a person (review ")).await;
        team.command(TeamCommand::Stop).await;
        harness.ended(team).await;
        assert_eq!(harness.task(1).await.status, TaskStatus::Pending);
        if is_answered_while_stopped {
            approve(&harness).await;
        }
        let requests = harness.requests();
        let team = harness.launch(once()).await;
        if !is_answered_while_stopped {
            harness
                .wait_until("the review waits again", |_| waits_for(&team, "alice").starts_with("a person (review "))
                .await;
            assert_eq!(harness.requests(), requests, "a waiting member made requests");
            approve(&harness).await;
        }
        assert_eq!(harness.ended(team).await.task_counts.completed, 1, "{}", harness.event_lines());
        let task = harness.task(1).await;
        assert_eq!((task.attempt, task.result.unwrap().reviewed_by.as_deref()), (2, Some(HUMAN)));
        assert_eq!(harness.stores.requests.all().await.unwrap().requests.len(), 1, "it asked again");
        harness.check_invariants().await;
    }
}

#[tokio::test(start_paused = true)]
async fn approved_report_completes_task_at_end_of_work() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.spec.review = Some(HUMAN.to_owned());
    harness.set_model_fn("alice", |request, _| async move {
        let report = json!({ "task_id": 1, "status": "completed", "result": "17 modules" });
        if has_new_task(&request) { call(&[("task_update", report)]) } else { say("Thank you.") }
    });
    harness.tasks(&["count"]).await;
    let team = harness.launch(once()).await;
    harness.wait_until("the review waits", |_| waits_for(&team, "alice").starts_with("a person (review ")).await;
    approve(&harness).await;
    assert_eq!(harness.ended(team).await.task_counts.completed, 1, "{}", harness.event_lines());
    let result = harness.task(1).await.result.unwrap();
    assert_eq!((result.summary.as_str(), result.unverified), ("17 modules", false));
    assert_eq!(result.reviewed_by.as_deref(), Some(HUMAN));
    assert_eq!(harness.sent_by("alice").len(), 3, "she was reminded of an approved task");
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn silent_reviewer_is_reminded_then_person_reviews() {
    let mut harness = reviewed(&["alice"]);
    harness.set_model_fn("alice", |request, _| async move { report_task(&request) });
    harness.set_model_fn("carol", |_, _| async move { say("Nice.") });
    harness.create(vec![for_coders("count")]).await;
    let team = harness.launch(once()).await;
    harness
        .wait_until("the review waits for the person", |_| waits_for(&team, "alice").starts_with("a person (review "))
        .await;
    assert!(
        harness.transcript("carol").await.join("\n").contains("waits for your answer to review"),
        "the reviewer got no reminder"
    );
    assert_eq!(review_of(&harness).await.unwrap().to, HUMAN);
    approve(&harness).await;
    assert_eq!(harness.ended(team).await.task_counts.completed, 1, "{}", harness.event_lines());
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn review_of_stopped_reviewer_goes_to_person() {
    let mut harness = reviewed(&["alice"]);
    harness.set_model_fn("alice", |request, _| async move { report_task(&request) });
    harness.set_model_fn("carol", |_, _| async move {
        tokio::time::sleep(std::time::Duration::from_secs(30)).await;
        say("Too late.")
    });
    harness.create(vec![for_coders("count")]).await;
    let team = harness.launch(once()).await;
    harness.wait_until("carol gets the request", |_| waits_for(&team, "alice").starts_with("carol (review ")).await;
    harness.ask_to_stop("carol", true).await;
    harness
        .wait_until("the review waits for the person", |_| waits_for(&team, "alice").starts_with("a person (review "))
        .await;
    approve(&harness).await;
    assert_eq!(harness.ended(team).await.task_counts.completed, 1, "{}", harness.event_lines());
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn review_of_unreachable_lead_goes_to_person() {
    let mut harness = reviewed(&["alice"]);
    harness.spec.review = Some("lead".to_owned());
    harness.diligent(&["carol"]);
    harness.set_model_fn("alice", |request, _| async move { report_task(&request) });
    harness.set_model_fn("lead", |_, _| async move { Err(ModelError::Final("no such model".to_owned())) });
    harness.create(vec![for_coders("count")]).await;
    let team = harness.launch(once()).await;
    harness
        .wait_until("the review waits for the person", |_| waits_for(&team, "alice").starts_with("a person (review "))
        .await;
    approve(&harness).await;
    assert_eq!(harness.ended(team).await.task_counts.completed, 1, "{}", harness.event_lines());
    let asked = harness.count(|event| matches!(event, EventKind::MessageSent { from, .. } if from == "alice"));
    assert!(asked <= 2, "{asked} requests: {}", harness.event_lines());
    harness.check_invariants().await;
}
