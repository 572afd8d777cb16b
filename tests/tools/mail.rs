//! Mail, requests and the lead's tools.

use brigade::domain::event::Fact;
use brigade::domain::message::{Message, MessageType};
use brigade::domain::request::PLAN_BYTES_MAX;
use brigade::tools::ToolEffect;
use serde_json::json;

use super::stage::{Stage, stage, stage_with};

async fn mail_of(stage: &Stage, name: &str) -> Vec<Message> {
    stage.stores.mailbox.peek(name).await.unwrap().into_iter().map(|delivery| delivery.message).collect()
}

#[tokio::test]
async fn a_message_reaches_its_inbox_and_the_events() {
    let mut stage = stage().await;
    assert_eq!(
        stage.alice.says("send_message", json!({ "to": "@BOB", "content": "hello\nthere" })).await,
        "sent to @BOB"
    );
    let mail = mail_of(&stage, "bob").await;
    assert_eq!(
        (mail[0].from.as_str(), mail[0].content.as_str(), mail[0].kind),
        ("alice", "hello\nthere", MessageType::Message)
    );
    match stage.alice.facts.try_recv().unwrap() {
        Fact::MessageSent { from, to, about, .. } => assert_eq!([from, to, about], ["alice", "bob", "hello"]),
        other => panic!("{other:?}"),
    }
    stage.alice.says("send_message", json!({ "to": "lead", "content": "x" })).await;
    stage.alice.says("send_message", json!({ "to": "human", "content": "x" })).await;
    for (to, says) in [
        ("alice", "yourself"),
        ("carol", "nobody called `carol`"),
        ("all", "nobody's inbox"),
        ("system", "nobody's inbox"),
    ] {
        let text = stage.alice.refused("send_message", json!({ "to": to, "content": "x" })).await;
        assert!(text.contains(says), "{text} should say {says}");
    }
    let peeked = stage.bob.says("read_inbox", json!({})).await;
    assert!(peeked.contains("1 message is waiting") && peeked.contains("message from alice"), "{peeked}");
    assert_eq!(mail_of(&stage, "bob").await.len(), 1, "looking takes nothing");
    assert!(stage.alice.says("read_inbox", json!({})).await.contains("no mail"));
}

#[tokio::test]
async fn a_broadcast_reaches_every_teammate() {
    let stage = stage().await;
    assert_eq!(stage.lead.says("broadcast", json!({ "content": "main is frozen" })).await, "sent to alice, bob");
    for name in ["alice", "bob"] {
        assert_eq!(mail_of(&stage, name).await[0].kind, MessageType::Broadcast);
    }
    assert!(mail_of(&stage, "lead").await.is_empty());
}

#[tokio::test]
async fn a_plan_is_answered_once_by_the_lead() {
    let mut stage = stage().await;
    stage.alice.says("plan_approval", json!({ "plan": "1. a 2. b" })).await;
    let request = mail_of(&stage, "lead").await.remove(0);
    assert_eq!((request.kind, request.plan.as_deref()), (MessageType::PlanApprovalRequest, Some("1. a 2. b")));
    let id = request.request_id.unwrap();
    let told = stage.alice.facts.try_recv().unwrap();
    let Fact::MessageSent { about, .. } = &told else { panic!("{told:?}") };
    assert!(about.starts_with("hands in plan ") && about.ends_with(": 1. a 2. b"), "{about}");
    let unknown = stage.lead.refused("plan_approval", json!({ "request_id": "nope", "approve": true })).await;
    assert!(unknown.contains(&id), "{unknown}");
    let answer = json!({ "request_id": id, "approve": false, "feedback": "Split b." });
    assert_eq!(stage.lead.says("plan_approval", answer.clone()).await, "alice is told: rejected");
    let reply = mail_of(&stage, "alice").await.remove(0);
    assert_eq!(
        (reply.kind, reply.request_id, reply.approve),
        (MessageType::PlanApprovalResponse, Some(id), Some(false))
    );
    assert_eq!(reply.feedback.as_deref(), Some("Split b."));
    assert!(stage.lead.refused("plan_approval", answer).await.contains("answered already (rejected by lead)"));
    assert_eq!(mail_of(&stage, "alice").await.len(), 1);
}

#[tokio::test]
async fn under_a_lead_that_goes_by_rule_a_plan_is_the_persons_to_answer() {
    let stage = stage_with(false).await;
    let said = stage.alice.says("plan_approval", json!({ "plan": "1. a 2. b" })).await;
    assert!(said.contains("to the person"), "{said}");
    assert!(mail_of(&stage, "lead").await.is_empty());
    let request = mail_of(&stage, "human").await.remove(0);
    assert_eq!((request.kind, request.plan.as_deref()), (MessageType::PlanApprovalRequest, Some("1. a 2. b")));
    let book = stage.stores.requests.all().await.unwrap();
    let open: Vec<_> = book.open_plans().map(|plan| (plan.to.as_str(), plan.plan.as_str())).collect();
    assert_eq!(open, [("human", "1. a 2. b")]);
    let too_long = "x".repeat(PLAN_BYTES_MAX + 1);
    let refused = stage.alice.refused("plan_approval", json!({ "plan": too_long })).await;
    assert!(refused.contains("put details into a file"), "{refused}");
    assert_eq!(mail_of(&stage, "human").await.len(), 1, "what is refused is not sent");
}

#[tokio::test]
async fn a_teammate_stops_when_it_agrees_and_only_for_its_own_request() {
    let stage = stage().await;
    let asked = stage.lead.says("shutdown_request", json!({ "teammate": "Bob" })).await;
    let id = mail_of(&stage, "bob").await.remove(0).request_id.unwrap();
    assert!(asked.contains(&id), "{asked}");
    assert!(stage.lead.refused("shutdown_request", json!({ "teammate": "bob" })).await.contains("asked already"));
    assert!(
        stage.lead.refused("shutdown_request", json!({ "teammate": "carol" })).await.contains("there are: alice, bob")
    );
    assert_eq!(stage.lead.says("shutdown_response", json!({ "request_id": id })).await, "bob has not answered yet");
    let others = stage.alice.refused("shutdown_response", json!({ "request_id": id, "approve": true })).await;
    assert!(others.contains("for bob to answer"), "{others}");
    let made_up = stage.bob.refused("shutdown_response", json!({ "request_id": "12345678", "approve": true })).await;
    assert!(made_up.contains("no shutdown request"), "{made_up}");
    let answer = json!({ "request_id": id, "approve": true });
    let stops = stage.bob.call("shutdown_response", answer.clone()).await.unwrap();
    assert_eq!(stops.effect, ToolEffect::Stop);
    assert!(stage.bob.refused("shutdown_response", answer).await.contains("answered already"));
    let reply = mail_of(&stage, "lead").await.remove(0);
    assert_eq!(
        (reply.kind, reply.approve, reply.request_id),
        (MessageType::ShutdownResponse, Some(true), Some(id.clone()))
    );
    assert_eq!(stage.lead.says("shutdown_response", json!({ "request_id": id })).await, "bob approved: Shutting down.");
}

#[tokio::test]
async fn who_does_not_want_to_stop_goes_on() {
    let stage = stage().await;
    stage.lead.says("shutdown_request", json!({ "teammate": "alice" })).await;
    let id = mail_of(&stage, "alice").await.remove(0).request_id.unwrap();
    let input = json!({ "request_id": id, "approve": "false", "reason": "a copy is running" });
    assert_eq!(stage.alice.call("shutdown_response", input).await.unwrap().effect, ToolEffect::None);
    assert!(
        stage.lead.says("shutdown_response", json!({ "request_id": id })).await.contains("rejected: a copy is running")
    );
    stage.lead.says("shutdown_request", json!({ "teammate": "alice" })).await;
}

#[tokio::test]
async fn the_lead_sees_to_its_team() {
    let stage = stage().await;
    let input = json!({ "name": "dora", "role": "reviewer", "prompt": "Review." });
    assert_eq!(stage.lead.says("spawn_teammate", input.clone()).await, "dora (reviewer) has started");
    assert!(stage.lead.refused("spawn_teammate", input).await.contains("there already"));
    for (name, says) in [("lead", "reserved"), ("a b", "not a valid name")] {
        let input = json!({ "name": name, "role": "r", "prompt": "" });
        assert!(stage.lead.refused("spawn_teammate", input).await.contains(says));
    }
    assert_eq!(stage.lead.says("list_teammates", json!({})).await, "alice\nbob\ndora");
    let done = stage.lead.call("goal_done", json!({ "summary": "ported; tests pass" })).await.unwrap();
    assert_eq!(done.effect, ToolEffect::GoalDone { summary: "ported; tests pass".into() });
    assert!(stage.lead.refused("goal_done", json!({ "summary": " " })).await.contains("empty"));
}
