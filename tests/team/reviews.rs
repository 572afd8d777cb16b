//! Teams that have their tasks reviewed, and members that hand in a plan first.

use brigade::domain::event::Fact;
use brigade::domain::name::HUMAN;
use brigade::domain::request::{Request, RequestKind};
use brigade::domain::task::{NewTask, TaskStatus};
use brigade::ports::{ModelError, ModelRequest};
use brigade::team::handle::{Command, TeamHandle};
use brigade::tools::answers::{self, Answerer, Asked};
use serde_json::json;

use super::stage::{Answer, Stage, call, complete, diligent, has_new_task, name, new_task, once, say, text_of};

/// A team of coders and one critic, who is to review what the others do.
fn reviewed(coders: &[&str]) -> Stage {
    let members: Vec<&str> = coders.iter().copied().chain(["carol"]).collect();
    let mut stage = Stage::new(&members);
    stage.spec.review = Some("critic".to_owned());
    for member in &mut stage.spec.members {
        if member.name.as_str() == "carol" {
            member.role = "critic".to_owned();
        }
    }
    stage
}

/// Reports its task, and again once it is told that the work was approved.
fn reports(request: &ModelRequest) -> Answer {
    let text = text_of(request);
    let is_told = |word: &str| text.rsplit_once("call: task_update").is_some_and(|(_, since)| since.contains(word));
    match () {
        () if has_new_task(request) || is_told("(approve: ") => call(&[complete(1)]),
        () => say("I wait."),
    }
}

/// Gives the review it was asked for, as `approves` says of how many it gave before.
fn reviews(request: &ModelRequest, approves: impl Fn(usize) -> bool) -> Answer {
    let text = text_of(request);
    let given = text.matches("call: review").count();
    match text.matches("its tool review and this request_id").count() > given {
        true => {
            let (_, rest) = text.rsplit_once("(request_id: ").unwrap();
            let id = rest.split(')').next().unwrap();
            call(&[("review", json!({ "request_id": id, "approve": approves(given), "feedback": "as I see it" }))])
        }
        false => say("Done."),
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

async fn review_of(stage: &Stage) -> Option<Request> {
    stage.stores.requests.all().await.unwrap().open(RequestKind::Review).next().cloned()
}

async fn approve(stage: &Stage) {
    let id = review_of(stage).await.expect("a review waits").id;
    let (by, asked) = (Answerer { name: HUMAN, process: "test" }, Asked { id: &id, kind: RequestKind::Review });
    let now = stage.clock.now();
    let compose = |request: &Request| answers::reply(request, HUMAN, true, None, now);
    answers::answer(&stage.stores, by, now, asked, true, compose).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_task_is_completed_once_another_member_approved_it() {
    let mut stage = reviewed(&["alice"]);
    stage.brain("alice", |request, _| async move { reports(&request) });
    stage.brain("carol", |request, _| async move { reviews(&request, |given| given > 0) });
    stage.create(vec![for_coders("count")]).await;
    let team = stage.launch(once()).await;
    assert_eq!(stage.ended(team).await.tally.completed, 1, "{}", stage.story());
    let task = stage.task(1).await;
    assert_eq!((task.owner.as_deref(), task.attempt), (Some("alice"), 1), "{}", stage.story());
    assert_eq!(task.result.unwrap().reviewed_by.as_deref(), Some("carol"));
    let said = stage.transcript("alice").await.join("\n");
    assert!(said.contains("(approve: false)") && said.contains("as I see it"), "it was rejected once: {said}");
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_review_is_free_and_is_said() {
    let mut stage = reviewed(&["alice"]);
    stage.spec.review = Some(HUMAN.to_owned());
    stage.brain("alice", |request, _| async move { reports(&request) });
    stage.brain("carol", |request, _| async move { reports(&request) });
    stage.tasks(&["count"]).await;
    let team = stage.launch(once()).await;
    let says = |who: &str| waits_for(&team, who).starts_with("a person (review ");
    stage.until("it waits", |_| says("alice") || says("carol")).await;
    let requests = stage.requests();
    tokio::time::sleep(std::time::Duration::from_secs(3_600)).await;
    assert_eq!(stage.requests(), requests, "waiting is free");
    let task = stage.task(1).await;
    assert_eq!((task.status, task.attempt, task.failures), (TaskStatus::InProgress, 1, 0));
    approve(&stage).await;
    assert_eq!(stage.ended(team).await.tally.completed, 1, "{}", stage.story());
    assert_eq!(stage.task(1).await.result.unwrap().reviewed_by.as_deref(), Some(HUMAN));
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn a_reviewer_that_says_nothing_is_reminded_once_and_then_it_is_the_persons() {
    let mut stage = reviewed(&["alice"]);
    stage.brain("alice", |request, _| async move { reports(&request) });
    stage.brain("carol", |_, _| async move { say("Nice.") });
    stage.create(vec![for_coders("count")]).await;
    let team = stage.launch(once()).await;
    stage.until("it is the person's", |_| waits_for(&team, "alice").starts_with("a person (review ")).await;
    assert!(stage.transcript("carol").await.join("\n").contains("waits for your answer to review"), "it was reminded");
    assert_eq!(review_of(&stage).await.unwrap().to, HUMAN);
    approve(&stage).await;
    assert_eq!(stage.ended(team).await.tally.completed, 1, "{}", stage.story());
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn the_review_of_one_that_is_gone_is_handed_on() {
    let mut stage = reviewed(&["alice"]);
    stage.brain("alice", |request, _| async move { reports(&request) });
    stage.brain("carol", |_, _| async move {
        tokio::time::sleep(std::time::Duration::from_secs(30)).await;
        say("Too late.")
    });
    stage.create(vec![for_coders("count")]).await;
    let team = stage.launch(once()).await;
    stage.until("carol is asked", |_| waits_for(&team, "alice").starts_with("carol (review ")).await;
    team.command(Command::StopTeammate { name: name("carol"), now: true }).await;
    stage.until("it is the person's", |_| waits_for(&team, "alice").starts_with("a person (review ")).await;
    approve(&stage).await;
    assert_eq!(stage.ended(team).await.tally.completed, 1, "{}", stage.story());
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn a_review_by_a_lead_out_of_reach_is_the_persons_and_nobody_is_asked_without_end() {
    let mut stage = reviewed(&["alice"]);
    stage.spec.review = Some("lead".to_owned());
    stage.diligent(&["carol"]);
    stage.brain("alice", |request, _| async move { reports(&request) });
    stage.brain("lead", |_, _| async move { Err(ModelError::Final("no such model".to_owned())) });
    stage.create(vec![for_coders("count")]).await;
    let team = stage.launch(once()).await;
    stage.until("it is the person's", |_| waits_for(&team, "alice").starts_with("a person (review ")).await;
    approve(&stage).await;
    assert_eq!(stage.ended(team).await.tally.completed, 1, "{}", stage.story());
    let asked = stage.count(|fact| matches!(fact, Fact::MessageSent { from, .. } if from == "alice"));
    assert!(asked <= 2, "asked {asked} times: {}", stage.story());
    stage.check_laws().await;
}

/// Tries to write, hands in a plan, and writes once that was answered.
fn plans_first(request: &ModelRequest) -> Answer {
    let text = text_of(request);
    let write = ("write_file", json!({ "path": "done.txt", "content": "done" }));
    match () {
        () if has_new_task(request) => call(&[write, ("plan_approval", json!({ "plan": "write done.txt" }))]),
        () if text.contains("(approve: true)") && !text.contains("call: task_update") => call(&[write, complete(1)]),
        () => say("I wait."),
    }
}

#[tokio::test(start_paused = true)]
async fn who_plans_first_writes_once_its_plan_is_approved() {
    let folder = tempfile::tempdir().unwrap();
    let mut stage = Stage::new(&["alice"]);
    stage.workspace = folder.path().to_owned();
    stage.spec.members[0].plan_first = true;
    stage.brain("alice", |request, _| async move { plans_first(&request) });
    stage.brain("lead", |request, _| async move {
        let text = text_of(&request);
        match text.contains("[plan_approval_request]") && !text.contains("call: plan_approval") {
            true => {
                let (_, rest) = text.rsplit_once("(request_id: ").unwrap();
                call(&[("plan_approval", json!({ "request_id": rest.split(')').next().unwrap(), "approve": true }))])
            }
            false => diligent(&request),
        }
    });
    stage.tasks(&["risky"]).await;
    let team = stage.launch(once()).await;
    assert_eq!(stage.ended(team).await.tally.completed, 1, "{}", stage.story());
    let alice = stage.transcript("alice").await.join("\n");
    assert_eq!(alice.matches("read-only until your plan is approved").count(), 1, "{alice}");
    assert_eq!(std::fs::read_to_string(folder.path().join("done.txt")).unwrap(), "done");
    stage.check_laws().await;
}
