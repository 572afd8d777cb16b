//! Reviews before completion, and members that submit a plan first: the answers to a completion.

use brigade::domain::agent::access::PathRule;
use brigade::domain::task::TaskStatus;
use brigade::domain::team::approval::{Request, RequestKind};
use brigade::domain::team::member_place::ReadOnly;
use brigade::service::review::REJECTIONS_MAX;
use brigade::tools::ToolEffect;
use serde_json::{Value, json};

use super::harness::{TestTools, harness};

/// A team in which alice holds task 1 and bob reviews her work.
async fn reviewed_by(what: &str, more: Value) -> TestTools {
    let mut harness = harness().await;
    harness.alice.context.review = Some(what.into());
    harness.lead.context.review = Some(what.into());
    let mut task = json!({ "subject": "Count", "description": "" });
    task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    harness.lead.expect_text("task_create", task).await;
    harness.alice.expect_text("claim_task", json!({ "task_id": 1 })).await;
    harness
}

fn report() -> Value {
    json!({ "task_id": 1, "status": "completed", "result": "17 modules" })
}

async fn open_review(harness: &TestTools) -> Request {
    harness.stores.requests.all().await.unwrap().open(RequestKind::Review).next().unwrap().clone()
}

#[tokio::test]
async fn task_completes_after_reviewer_approves() {
    let harness = reviewed_by("tester", json!({ "verify": "echo 17 modules are counted" })).await;
    let waits = harness.alice.call("task_update", report()).await.unwrap();
    let review = open_review(&harness).await;
    assert_eq!(waits.effect, ToolEffect::None);
    assert!(waits.text.contains(&format!("waits for review {} by bob", review.id)), "{}", waits.text);
    assert_eq!(harness.task(1).await.status, TaskStatus::InProgress);
    let mail = harness.stores.mailbox.peek("bob").await.unwrap().remove(0).message;
    assert_eq!((mail.request_id.as_ref(), mail.from.as_str()), (Some(&review.id), "alice"));
    for part in ["task #1 (Count), attempt 1, by alice", "17 modules", "exit status 0", "17 modules are counted"] {
        assert!(mail.content.contains(part), "{part}: {}", mail.content);
    }
    let again = harness.alice.expect_text("task_update", report()).await;
    assert!(again.contains(&review.id), "a second review was requested: {again}");

    let answer = json!({ "request_id": review.id, "approve": true });
    let own = harness.alice.expect_refusal("review", answer.clone()).await;
    assert!(own.contains("for bob to answer"), "{own}");
    assert_eq!(harness.bob.expect_text("review", answer).await, "answer sent to alice: approved");
    let reply = harness.stores.mailbox.peek("alice").await.unwrap().remove(0).message;
    assert_eq!((reply.approve, reply.request_id), (Some(true), Some(review.id)));
    let done = harness.alice.call("task_update", report()).await.unwrap();
    assert_eq!(done.effect, ToolEffect::Finished);
    let result = harness.task(1).await.result.unwrap();
    let run = result.verify.unwrap();
    assert_eq!(result.reviewed_by.as_deref(), Some("bob"));
    assert_eq!((run.command.as_str(), run.exit_status), ("echo 17 modules are counted", Some(0)));
    assert_eq!(run.output_tail, "17 modules are counted");
}

#[tokio::test]
async fn task_failing_verify_is_not_reviewed() {
    let harness = reviewed_by("tester", json!({ "verify": "false" })).await;
    assert!(harness.alice.expect_refusal("task_update", report()).await.contains("verify `false` failed"));
    assert!(harness.stores.requests.all().await.unwrap().requests.is_empty());
}

#[tokio::test]
async fn attempt_ends_after_rejection_limit() {
    let harness = reviewed_by("tester", json!({})).await;
    for number in 1..=REJECTIONS_MAX {
        harness.alice.expect_text("task_update", report()).await;
        let id = open_review(&harness).await.id;
        let mut rejection = json!({ "request_id": id, "approve": false });
        // A rejection without words counts too.
        if number != 2 {
            rejection["feedback"] = json!("count again");
        }
        harness.bob.expect_text("review", rejection).await;
    }
    let over = harness.alice.call("task_update", report()).await.unwrap();
    assert_eq!(over.effect, ToolEffect::Finished);
    let task = harness.task(1).await;
    assert_eq!((task.status, task.failures), (TaskStatus::Pending, 1));
    assert!(task.result.unwrap().summary.contains("rejected it 3 times; the last time: count again"));
}

#[tokio::test]
async fn approval_is_valid_for_one_attempt_only() {
    let harness = reviewed_by("tester", json!({})).await;
    let forced = json!({ "task_id": 1, "status": "completed", "force": true });
    assert!(harness.lead.expect_refusal("task_update", forced).await.contains("reviews tasks before completion"));
    harness.alice.expect_text("task_update", report()).await;
    let first = open_review(&harness).await.id;
    harness.bob.expect_text("review", json!({ "request_id": first, "approve": true })).await;
    harness.alice.expect_text("task_update", json!({ "task_id": 1, "status": "pending" })).await;
    harness.alice.expect_text("claim_task", json!({ "task_id": 1 })).await;
    let waits = harness.alice.expect_text("task_update", report()).await;
    assert!(waits.contains("waits for review") && !waits.contains(&first), "{waits}");
}

#[tokio::test]
async fn forced_completion_by_lead_keeps_open_review() {
    let harness = reviewed_by("tester", json!({})).await;
    harness.alice.expect_text("task_update", report()).await;
    let request = open_review(&harness).await;
    let forced = json!({ "task_id": 1, "status": "completed", "force": true });
    let waits = harness.lead.expect_text("task_update", forced).await;
    assert!(waits.contains(&format!("waits for review {}", request.id)), "{waits}");
    assert_eq!(open_review(&harness).await, request);
}

#[tokio::test]
async fn review_by_human_goes_to_person() {
    let harness = reviewed_by("human", json!({})).await;
    assert!(harness.alice.expect_text("task_update", report()).await.contains("by human"));
    assert_eq!(harness.stores.mailbox.peek("human").await.unwrap().len(), 1);
}

#[tokio::test]
async fn plan_first_member_is_read_only_before_approval() {
    let mut harness = reviewed_by("tester", json!({})).await;
    harness.alice.context.review = None;
    harness.write("kept.txt", "as it was\n");
    harness.alice.context.working_dir.read_only = Some(ReadOnly::NoPlan);
    harness.alice.context.working_dir.boundaries =
        [PathRule::read_only(&harness.alice.context.working_dir.root)].into();
    let why = "read-only until the plan is approved";
    for (tool, input) in [
        ("write_file", json!({ "path": "new.txt", "content": "x" })),
        ("edit_file", json!({ "path": "kept.txt", "old_text": "as", "new_text": "is" })),
        ("task_update", report()),
    ] {
        let refused = harness.alice.expect_refusal(tool, input).await;
        assert!(refused.contains(why), "{tool}: {refused}");
    }
    let command = "cat kept.txt; echo x > new.txt; echo x >> kept.txt; mkdir -p a/b";
    let refused = harness.alice.expect_refusal("bash", json!({ "command": command })).await;
    assert!(refused.contains("Read-only file system") || refused.contains(why), "{refused}");
    assert_eq!(harness.read("kept.txt"), "as it was\n");
    assert!(!harness.path("new.txt").exists() && !harness.path("a").exists());
}
