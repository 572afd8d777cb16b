//! Reviews before completion, and members that hand in a plan first: what a report meets.

use brigade::domain::access::PathRule;
use brigade::domain::request::{Request, RequestKind};
use brigade::domain::task::TaskStatus;
use brigade::tools::review::REJECTIONS_MAX;
use brigade::tools::{ReadOnly, ToolEffect};
use serde_json::{Value, json};

use super::stage::{Stage, stage};

/// A stage on which alice holds task 1 and bob is to review what she does.
async fn reviewed_by(what: &str, more: Value) -> Stage {
    let mut stage = stage().await;
    stage.alice.context.review = Some(what.into());
    stage.lead.context.review = Some(what.into());
    let mut task = json!({ "subject": "Count", "description": "" });
    task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    stage.lead.says("task_create", task).await;
    stage.alice.says("claim_task", json!({ "task_id": 1 })).await;
    stage
}

fn report() -> Value {
    json!({ "task_id": 1, "status": "completed", "result": "17 modules" })
}

async fn open_review(stage: &Stage) -> Request {
    stage.stores.requests.all().await.unwrap().open(RequestKind::Review).next().unwrap().clone()
}

#[tokio::test]
async fn a_task_is_completed_once_somebody_else_approved_it() {
    let stage = reviewed_by("tester", json!({ "verify": "echo 17 modules are counted" })).await;
    let waits = stage.alice.call("task_update", report()).await.unwrap();
    let review = open_review(&stage).await;
    assert_eq!(waits.effect, ToolEffect::None);
    assert!(waits.text.contains(&format!("waits for review {} by bob", review.id)), "{}", waits.text);
    assert_eq!(stage.task(1).await.status, TaskStatus::InProgress);
    let mail = stage.stores.mailbox.peek("bob").await.unwrap().remove(0).message;
    assert_eq!((mail.request_id.as_ref(), mail.from.as_str()), (Some(&review.id), "alice"));
    for part in ["task #1 (Count), attempt 1, by alice", "17 modules", "exit status 0", "17 modules are counted"] {
        assert!(mail.content.contains(part), "{part}: {}", mail.content);
    }
    let again = stage.alice.says("task_update", report()).await;
    assert!(again.contains(&review.id), "asked once: {again}");

    let answer = json!({ "request_id": review.id, "approve": true });
    let own = stage.alice.refused("review", answer.clone()).await;
    assert!(own.contains("for bob to answer"), "{own}");
    assert_eq!(stage.bob.says("review", answer).await, "alice is told: approved");
    let reply = stage.stores.mailbox.peek("alice").await.unwrap().remove(0).message;
    assert_eq!((reply.approve, reply.request_id), (Some(true), Some(review.id)));
    let done = stage.alice.call("task_update", report()).await.unwrap();
    assert_eq!(done.effect, ToolEffect::Finished);
    let result = stage.task(1).await.result.unwrap();
    let run = result.verify.unwrap();
    assert_eq!(result.reviewed_by.as_deref(), Some("bob"));
    assert_eq!((run.command.as_str(), run.exit_status), ("echo 17 modules are counted", Some(0)));
    assert_eq!(run.output_tail, "17 modules are counted");
}

#[tokio::test]
async fn what_is_red_is_not_reviewed() {
    let stage = reviewed_by("tester", json!({ "verify": "false" })).await;
    assert!(stage.alice.refused("task_update", report()).await.contains("came out red"));
    assert!(stage.stores.requests.all().await.unwrap().requests.is_empty());
}

#[tokio::test]
async fn an_attempt_is_rejected_a_bounded_number_of_times() {
    let stage = reviewed_by("tester", json!({})).await;
    for _ in 0..REJECTIONS_MAX {
        stage.alice.says("task_update", report()).await;
        let id = open_review(&stage).await.id;
        stage.bob.says("review", json!({ "request_id": id, "approve": false, "feedback": "count again" })).await;
    }
    let over = stage.alice.call("task_update", report()).await.unwrap();
    assert_eq!(over.effect, ToolEffect::Finished);
    let task = stage.task(1).await;
    assert_eq!((task.status, task.failures), (TaskStatus::Pending, 1));
    assert!(task.result.unwrap().summary.contains("rejected it 3 times; the last time: count again"));
}

#[tokio::test]
async fn an_approval_is_of_one_attempt_and_nobody_gets_past_it() {
    let stage = reviewed_by("tester", json!({})).await;
    let forced = json!({ "task_id": 1, "status": "completed", "force": true });
    assert!(stage.lead.refused("task_update", forced).await.contains("reviewed before they are completed"));
    stage.alice.says("task_update", report()).await;
    let first = open_review(&stage).await.id;
    stage.bob.says("review", json!({ "request_id": first, "approve": true })).await;
    stage.alice.says("task_update", json!({ "task_id": 1, "status": "pending" })).await;
    stage.alice.says("claim_task", json!({ "task_id": 1 })).await;
    let waits = stage.alice.says("task_update", report()).await;
    assert!(waits.contains("waits for review") && !waits.contains(&first), "{waits}");
}

#[tokio::test]
async fn only_its_holder_takes_over_the_review_of_a_task() {
    let stage = reviewed_by("tester", json!({})).await;
    stage.alice.says("task_update", report()).await;
    let asked = open_review(&stage).await;
    let forced = json!({ "task_id": 1, "status": "completed", "force": true });
    let waits = stage.lead.says("task_update", forced).await;
    assert!(waits.contains(&format!("waits for review {}", asked.id)), "{waits}");
    assert_eq!(open_review(&stage).await, asked);
}

#[tokio::test]
async fn without_another_who_can_review_it_is_the_persons() {
    let stage = reviewed_by("human", json!({})).await;
    assert!(stage.alice.says("task_update", report()).await.contains("by human"));
    assert_eq!(stage.stores.mailbox.peek("human").await.unwrap().len(), 1);
}

#[tokio::test]
async fn who_hands_in_its_plan_first_writes_nothing_and_completes_nothing_before() {
    let mut stage = reviewed_by("tester", json!({})).await;
    stage.alice.context.review = None;
    stage.write("kept.txt", "as it was\n");
    stage.alice.context.read_only = Some(ReadOnly::NoPlan);
    stage.alice.context.boundaries = [PathRule::read_only(&stage.alice.context.workspace)].into();
    let why = "read-only until your plan is approved";
    for (tool, input) in [
        ("write_file", json!({ "path": "new.txt", "content": "x" })),
        ("edit_file", json!({ "path": "kept.txt", "old_text": "as", "new_text": "is" })),
        ("task_update", report()),
    ] {
        let refused = stage.alice.refused(tool, input).await;
        assert!(refused.contains(why), "{tool}: {refused}");
    }
    let command = "cat kept.txt; echo x > new.txt; echo x >> kept.txt; mkdir -p a/b";
    let refused = stage.alice.refused("bash", json!({ "command": command })).await;
    assert!(refused.contains("Read-only file system") || refused.contains(why), "{refused}");
    assert_eq!(stage.read("kept.txt"), "as it was\n");
    assert!(!stage.path("new.txt").exists() && !stage.path("a").exists());
}
