//! Mail, requests and the lead's tools.

use brigade::domain::log::event::EventKind;
use brigade::domain::team::approval::{PLAN_BYTES_MAX, RequestKind};
use brigade::domain::team::message::{Message, MessageType};
use brigade::tools::ToolEffect;
use serde_json::json;

use super::harness::{TestTools, harness, harness_with};

async fn mail_of(harness: &TestTools, name: &str) -> Vec<Message> {
    harness.stores.mailbox.peek(name).await.unwrap().into_iter().map(|delivery| delivery.message).collect()
}

#[tokio::test]
async fn send_message_reaches_inbox_and_events() {
    let mut harness = harness().await;
    assert_eq!(
        harness.alice.expect_text("send_message", json!({ "to": "@BOB", "content": "hello\nthere" })).await,
        "sent to @BOB"
    );
    let mail = mail_of(&harness, "bob").await;
    assert_eq!(
        (mail[0].from.as_str(), mail[0].content.as_str(), mail[0].kind),
        ("alice", "hello\nthere", MessageType::Message)
    );
    match harness.alice.events.try_recv().unwrap() {
        EventKind::MessageSent { from, to, about, .. } => assert_eq!([from, to, about], ["alice", "bob", "hello …"]),
        other => panic!("{other:?}"),
    }
    harness.alice.expect_text("send_message", json!({ "to": "lead", "content": "x" })).await;
    harness.alice.expect_text("send_message", json!({ "to": "human", "content": "x" })).await;
    for (to, says) in [
        ("alice", "itself"),
        ("carol", "cannot find an inbox for `carol`"),
        ("all", "has no inbox"),
        ("system", "has no inbox"),
    ] {
        let text = harness.alice.expect_refusal("send_message", json!({ "to": to, "content": "x" })).await;
        assert!(text.contains(says), "{text} does not contain {says}");
    }
    let peeked = harness.bob.expect_text("read_inbox", json!({})).await;
    assert!(peeked.contains("1 message is waiting") && peeked.contains("message from alice"), "{peeked}");
    assert_eq!(mail_of(&harness, "bob").await.len(), 1, "reading took a message");
    assert!(harness.alice.expect_text("read_inbox", json!({})).await.contains("no mail"));
}

#[tokio::test]
async fn broadcast_reaches_every_teammate() {
    let harness = harness().await;
    assert_eq!(
        harness.lead.expect_text("broadcast", json!({ "content": "main is frozen" })).await,
        "sent to alice, bob"
    );
    for name in ["alice", "bob"] {
        assert_eq!(mail_of(&harness, name).await[0].kind, MessageType::Broadcast);
    }
    assert!(mail_of(&harness, "lead").await.is_empty());
}

#[tokio::test]
async fn plan_approval_is_answered_once_by_lead() {
    let mut harness = harness().await;
    harness.alice.expect_text("plan_approval", json!({ "plan": "1. a 2. b" })).await;
    let request = mail_of(&harness, "lead").await.remove(0);
    assert_eq!((request.kind, request.plan.as_deref()), (MessageType::PlanApprovalRequest, Some("1. a 2. b")));
    let id = request.request_id.unwrap();
    let event = harness.alice.events.try_recv().unwrap();
    let EventKind::RequestMade(made) = &event else { panic!("{event:?}") };
    assert_eq!((&made.request, made.from.as_str(), made.to.as_str()), (&id, "alice", "lead"));
    let event = harness.alice.events.try_recv().unwrap();
    let EventKind::MessageSent { about, .. } = &event else { panic!("{event:?}") };
    assert!(about.starts_with("submits plan ") && about.ends_with(": 1. a 2. b"), "{about}");
    let unknown = harness.lead.expect_refusal("plan_approval", json!({ "request_id": "nope", "approve": true })).await;
    assert!(unknown.contains(&id), "{unknown}");
    let answer = json!({ "request_id": id, "approve": false, "feedback": "Split b." });
    assert_eq!(harness.lead.expect_text("plan_approval", answer.clone()).await, "answer sent to alice: rejected");
    let EventKind::RequestAnswered { by, to, approved, feedback, .. } = harness.lead.events.try_recv().unwrap() else {
        panic!("another event")
    };
    assert_eq!((by.as_str(), to.as_str(), approved, feedback.as_str()), ("lead", "alice", false, "Split b."));
    assert!(harness.lead.events.try_recv().is_err(), "the answer has more than one event");
    let reply = mail_of(&harness, "alice").await.remove(0);
    assert_eq!(
        (reply.kind, reply.request_id, reply.approve),
        (MessageType::PlanApprovalResponse, Some(id), Some(false))
    );
    assert_eq!(reply.feedback.as_deref(), Some("Split b."));
    assert!(harness.lead.expect_refusal("plan_approval", answer).await.contains("already answered (rejected by lead)"));
    assert_eq!(mail_of(&harness, "alice").await.len(), 1);
}

#[tokio::test]
async fn plan_under_runbook_lead_goes_to_person() {
    let harness = harness_with(false).await;
    let output = harness.alice.expect_text("plan_approval", json!({ "plan": "1. a 2. b" })).await;
    assert!(output.contains("to the person"), "{output}");
    assert!(mail_of(&harness, "lead").await.is_empty());
    let request = mail_of(&harness, "human").await.remove(0);
    assert_eq!((request.kind, request.plan.as_deref()), (MessageType::PlanApprovalRequest, Some("1. a 2. b")));
    let book = harness.stores.requests.all().await.unwrap();
    let open: Vec<_> =
        book.open(RequestKind::PlanApproval).map(|plan| (plan.to.as_str(), plan.plan.as_str())).collect();
    assert_eq!(open, [("human", "1. a 2. b")]);
    let too_long = "x".repeat(PLAN_BYTES_MAX + 1);
    let refused = harness.alice.expect_refusal("plan_approval", json!({ "plan": too_long })).await;
    assert!(refused.contains("put details into a file"), "{refused}");
    assert_eq!(mail_of(&harness, "human").await.len(), 1, "a refused message was sent");
}

#[tokio::test]
async fn shutdown_is_approved_only_by_its_teammate() {
    let harness = harness().await;
    let output = harness.lead.expect_text("shutdown_request", json!({ "teammate": "Bob" })).await;
    let id = mail_of(&harness, "bob").await.remove(0).request_id.unwrap();
    assert!(output.contains(&id), "{output}");
    assert!(
        harness.lead.expect_refusal("shutdown_request", json!({ "teammate": "bob" })).await.contains("already asked")
    );
    assert!(
        harness
            .lead
            .expect_refusal("shutdown_request", json!({ "teammate": "carol" }))
            .await
            .contains("the teammates are: alice, bob")
    );
    assert_eq!(
        harness.lead.expect_text("shutdown_response", json!({ "request_id": id })).await,
        "bob has not answered yet"
    );
    let others = harness.alice.expect_refusal("shutdown_response", json!({ "request_id": id, "approve": true })).await;
    assert!(others.contains("for bob to answer"), "{others}");
    let made_up =
        harness.bob.expect_refusal("shutdown_response", json!({ "request_id": "12345678", "approve": true })).await;
    assert!(made_up.contains("no shutdown request"), "{made_up}");
    let answer = json!({ "request_id": id, "approve": true });
    let stops = harness.bob.call("shutdown_response", answer.clone()).await.unwrap();
    assert_eq!(stops.effect, ToolEffect::Stop);
    assert!(harness.bob.expect_refusal("shutdown_response", answer).await.contains("already answered"));
    let reply = mail_of(&harness, "lead").await.remove(0);
    assert_eq!(
        (reply.kind, reply.approve, reply.request_id),
        (MessageType::ShutdownResponse, Some(true), Some(id.clone()))
    );
    assert_eq!(
        harness.lead.expect_text("shutdown_response", json!({ "request_id": id })).await,
        "bob approved: Shutting down."
    );
}

#[tokio::test]
async fn rejected_shutdown_keeps_teammate_running() {
    let harness = harness().await;
    harness.lead.expect_text("shutdown_request", json!({ "teammate": "alice" })).await;
    let id = mail_of(&harness, "alice").await.remove(0).request_id.unwrap();
    let input = json!({ "request_id": id, "approve": "false", "reason": "a copy is running" });
    assert_eq!(harness.alice.call("shutdown_response", input).await.unwrap().effect, ToolEffect::None);
    assert!(
        harness
            .lead
            .expect_text("shutdown_response", json!({ "request_id": id }))
            .await
            .contains("rejected: a copy is running")
    );
    harness.lead.expect_text("shutdown_request", json!({ "teammate": "alice" })).await;
}

#[tokio::test]
async fn lead_tools_spawn_list_and_finish_goal() {
    let harness = harness().await;
    let input = json!({ "name": "dora", "role": "reviewer", "prompt": "Review." });
    assert_eq!(harness.lead.expect_text("spawn_teammate", input.clone()).await, "dora (reviewer) has started");
    assert!(harness.lead.expect_refusal("spawn_teammate", input).await.contains("there already"));
    for (name, says) in [("lead", "reserved"), ("a b", "not a valid name")] {
        let input = json!({ "name": name, "role": "r", "prompt": "" });
        assert!(harness.lead.expect_refusal("spawn_teammate", input).await.contains(says));
    }
    assert_eq!(harness.lead.expect_text("list_teammates", json!({})).await, "alice\nbob\ndora");
    let done = harness.lead.call("goal_done", json!({ "summary": "ported; tests pass" })).await.unwrap();
    assert_eq!(done.effect, ToolEffect::GoalDone { summary: "ported; tests pass".into() });
    assert!(harness.lead.expect_refusal("goal_done", json!({ "summary": " " })).await.contains("empty"));
}
