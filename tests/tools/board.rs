//! Tasks through the tools: permissions, and the proof that a command gives for a completion.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use brigade::domain::git::branch_name::BranchName;
use brigade::domain::log::event::EventKind;
use brigade::domain::task::transition::{Actor, ActorKind, Change};
use brigade::domain::task::{NewTask, TaskId, TaskStatus};
use brigade::domain::team::phase::ClaimRef;
use brigade::git::DriverOptions;
use brigade::git::inspection::GitWorkInspector;
use brigade::service::attempt_quota::{MESSAGES_MAX, TASKS_MAX};
use brigade::service::task_creation::add_task;
use brigade::tools::{ToolEffect, ToolError};
use serde_json::json;

use super::harness::{TestTools, harness};
use crate::testkit::process::git;

/// A team with task 1, which alice has claimed.
async fn harness_with_claim(more: serde_json::Value) -> TestTools {
    let harness = harness().await;
    let mut task = json!({ "subject": "Count lines", "description": "Write counts.csv." });
    task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    assert_eq!(harness.lead.expect_text("task_create", task).await, "created task #1: Count lines");
    let claimed = harness.alice.call("claim_task", json!({ "task_id": "#1" })).await.unwrap();
    assert_eq!(claimed.effect, ToolEffect::Claimed(ClaimRef { task: TaskId(1), attempt: 1 }));
    harness
}

#[tokio::test]
async fn task_given_back_again_counts_as_failure() {
    let harness = harness_with_claim(json!({})).await;
    let give_back = json!({ "task_id": 1, "status": "pending", "result": "not mine" });
    harness.alice.expect_text("task_update", give_back.clone()).await;
    assert_eq!(harness.task(1).await.failures, 0);
    harness.alice.expect_text("claim_task", json!({ "task_id": 1 })).await;
    let again = harness.alice.expect_text("task_update", give_back).await;
    assert!(again.contains("counts as a failed attempt"), "{again}");
    let task = harness.task(1).await;
    assert_eq!((task.status, task.failures), (TaskStatus::Pending, 1));
}

#[tokio::test]
async fn blocked_task_is_given_back_without_failure() {
    let harness = harness_with_claim(json!({})).await;
    for blocker in [2, 3] {
        harness.alice.expect_text("task_create", json!({ "subject": "First", "description": "" })).await;
        let give_back = json!({ "task_id": 1, "status": "pending", "add_blocked_by": [blocker] });
        harness.alice.expect_text("task_update", give_back).await;
        harness.bob.expect_text("claim_task", json!({ "task_id": blocker })).await;
        harness
            .bob
            .expect_text("task_update", json!({ "task_id": blocker, "status": "completed", "result": "x" }))
            .await;
        harness.alice.expect_text("claim_task", json!({ "task_id": 1 })).await;
    }
    assert_eq!(harness.task(1).await.failures, 0);
}

#[tokio::test]
async fn completed_report_with_blockers_is_accepted() {
    let harness = harness_with_claim(json!({})).await;
    let report = json!({ "task_id": 1, "status": "completed", "result": "done", "add_blocked_by": [7] });
    harness.alice.expect_text("task_update", report).await;
    let task = harness.task(1).await;
    assert_eq!((task.status, task.blocked_by), (TaskStatus::Completed, vec![]));
}

#[tokio::test]
async fn task_tools_list_claim_and_complete_task() {
    let harness = harness_with_claim(json!({})).await;
    harness
        .alice
        .expect_text(
            "task_create",
            json!({ "subject": "Plot", "description": "", "blocked_by": "1", "requires": "tester" }),
        )
        .await;
    let list = harness.bob.expect_text("task_list", json!({})).await;
    assert_eq!(
        list,
        "2 tasks: 1 in_progress, 1 pending, 0 failed, 0 completed\n#1 in_progress (alice) Count lines\n\
         #2 pending Plot [waits for #1] [requires tester]\n"
    );
    let refused = harness.bob.expect_refusal("claim_task", json!({ "task_id": 2 })).await;
    assert!(refused.contains("blocked by #1 (in_progress)"), "{refused}");
    let refused = harness.bob.expect_refusal("task_update", json!({ "task_id": 1, "status": "completed" })).await;
    assert!(refused.contains("held by alice"), "{refused}");
    let done =
        harness.alice.call("task_update", json!({ "task_id": 1, "status": "completed", "result": "17 modules" })).await;
    let done = done.unwrap();
    assert_eq!((done.text.as_str(), done.effect), ("task #1 is completed", ToolEffect::Finished));
    let description = harness.alice.expect_text("task_get", json!({ "task_id": 1 })).await;
    assert!(
        description.contains("status: completed, owner: alice, attempt: 1")
            && description.contains("result: 17 modules"),
        "{description}"
    );
    assert!(harness.bob.expect_text("task_get", json!({ "task_id": 2 })).await.contains("you can claim it"));
    assert!(
        harness
            .alice
            .expect_text("task_get", json!({ "task_id": 2 }))
            .await
            .contains("you cannot claim it: it requires tester")
    );
    assert!(harness.alice.expect_refusal("task_get", json!({ "task_id": 9 })).await.contains("no task #9"));
}

#[tokio::test]
async fn verify_command_decides_completion() {
    let harness = harness_with_claim(json!({ "verify": "echo looking; test -s counts.csv" })).await;
    let report = json!({ "task_id": 1, "status": "completed", "result": "done, believe me" });
    let red = harness.alice.expect_refusal("task_update", report.clone()).await;
    assert!(red.contains("failure 1 of 3") && red.contains("looking") && red.contains("exit status 1"), "{red}");
    assert_eq!(harness.task(1).await.status, TaskStatus::InProgress);
    harness.write("counts.csv", "a,1\n");
    let green = harness.alice.call("task_update", report).await.unwrap();
    assert_eq!((green.text.as_str(), green.effect), ("task #1 is completed (verify exited 0)", ToolEffect::Finished));
    assert_eq!(harness.task(1).await.result.unwrap().evidence, "verify exited 0");
}

#[tokio::test]
async fn failure_report_is_questioned_if_verify_is_green() {
    let fail = json!({ "task_id": 1, "status": "failed", "result": "I cannot count" });
    let write = json!({ "path": "counts.csv", "content": "1\n" });
    let harness = harness_with_claim(json!({ "verify": "test -s counts.csv" })).await;
    harness.alice.expect_text("write_file", write.clone()).await;
    let refused = harness.alice.expect_refusal("task_update", fail.clone()).await;
    assert!(refused.contains("verify exits 0"), "{refused}");
    assert_eq!(harness.task(1).await.status, TaskStatus::InProgress);
    harness.alice.expect_text("task_update", fail.clone()).await;
    assert_eq!(harness.task(1).await.failures, 1);

    let harness = harness_with_claim(json!({ "verify": "test ! -s counts.csv" })).await;
    harness.alice.expect_text("write_file", write).await;
    harness.alice.expect_text("task_update", fail).await;
    assert_eq!(harness.task(1).await.failures, 1);
}

#[tokio::test]
async fn give_back_is_questioned_if_verify_is_green() {
    let give_back = json!({ "task_id": 1, "status": "pending", "result": "someone else may do it" });
    let harness = harness_with_claim(json!({ "verify": "test -s counts.csv" })).await;
    harness.alice.expect_text("write_file", json!({ "path": "counts.csv", "content": "1\n" })).await;
    let refused = harness.alice.expect_refusal("task_update", give_back.clone()).await;
    assert!(refused.contains("verify exits 0") && refused.contains("report `pending` again"), "{refused}");
    assert_eq!(harness.task(1).await.status, TaskStatus::InProgress);
    harness.alice.expect_text("task_update", give_back).await;
    let task = harness.task(1).await;
    assert_eq!((task.status, task.failures), (TaskStatus::Pending, 0));
}

#[tokio::test]
async fn holder_cannot_change_verify() {
    let harness = harness_with_claim(json!({ "verify": "test -s counts.csv" })).await;
    let change = |id: u64, verify: &str| json!({ "task_id": id, "subject": "Count", "verify": verify });
    for verify in ["true", ""] {
        let refused = harness.alice.expect_refusal("task_update", change(1, verify)).await;
        let reason = "may not change the verify command of task #1: only the lead, a person or its creator may";
        assert!(refused.contains(reason), "{refused}");
    }
    assert_eq!(harness.alice.expect_text("task_update", change(1, "test -s counts.csv")).await, "changed task #1");
    harness.lead.expect_text("task_update", change(1, "test -f counts.csv")).await;
    assert_eq!(harness.task(1).await.verify.as_deref(), Some("test -f counts.csv"));
    harness.bob.expect_text("task_create", json!({ "subject": "Plot", "description": "" })).await;
    harness.bob.expect_text("claim_task", json!({ "task_id": 2 })).await;
    assert_eq!(harness.bob.expect_text("task_update", change(2, "test -s plot.png")).await, "changed task #2");
}

#[tokio::test]
async fn verify_command_times_out_and_is_logged() {
    let mut harness = harness_with_claim(json!({ "verify": "sleep 300" })).await;
    harness.alice.context.limits.command_timeout = Duration::from_millis(200);
    let report = json!({ "task_id": 1, "status": "completed" });
    let red = harness.alice.expect_refusal("task_update", report).await;
    assert!(red.contains("timed out after 200 ms (limits.command_timeout_ms)"), "{red}");
    let mut events = Vec::new();
    while let Ok(event) = harness.alice.events.try_recv() {
        events.push(event);
    }
    assert!(
        events.iter().any(|event| matches!(event, EventKind::ToolStarted { tool, about, task: Some(TaskId(1)), .. }
            if tool == "verify" && about == "sleep 300")),
        "{events:?}"
    );
    assert!(
        events.iter().any(|event| matches!(event, EventKind::ToolFinished { tool, ok: false, .. } if tool == "verify"))
    );
}

#[tokio::test]
async fn three_failed_verifies_end_the_attempt() {
    let harness = harness_with_claim(json!({ "verify": "echo $BRIGADE_TASK.$BRIGADE_ATTEMPT is red; false" })).await;
    let report = json!({ "task_id": 1, "status": "completed" });
    harness.alice.expect_refusal("task_update", report.clone()).await;
    harness.alice.expect_refusal("task_update", report.clone()).await;
    let over = harness.alice.call("task_update", report).await.unwrap();
    assert_eq!(over.effect, ToolEffect::Finished);
    let task = harness.task(1).await;
    assert_eq!((task.status, task.failures, task.owner), (TaskStatus::Pending, 1, None));
    let reason = task.result.unwrap().summary;
    assert!(reason.contains("failed (3 times): exit status 1\n") && reason.contains("1.1 is red"), "{reason}");
}

#[tokio::test]
async fn task_failure_needs_reason_and_may_be_final() {
    let harness = harness_with_claim(json!({})).await;
    let refused = harness.alice.expect_refusal("task_update", json!({ "task_id": 1, "status": "failed" })).await;
    assert!(refused.contains("why"), "{refused}");
    let input = json!({ "task_id": 1, "status": "failed", "result": "no such module", "final": true });
    let failed = harness.alice.call("task_update", input).await.unwrap();
    assert_eq!(failed.effect, ToolEffect::Finished);
    assert_eq!(harness.task(1).await.status, TaskStatus::Failed);
    let refused = harness.alice.expect_refusal("task_update", json!({ "task_id": 1, "status": "pending" })).await;
    assert!(refused.contains("the lead or a person"), "{refused}");
    assert!(
        harness.lead.expect_text("task_update", json!({ "task_id": 1, "status": "pending" })).await.contains("retried")
    );
    assert_eq!(harness.task(1).await.failures, 0);
}

#[tokio::test]
async fn released_task_is_claimable_by_others() {
    let harness = harness_with_claim(json!({})).await;
    let input = json!({ "task_id": 1, "status": "pending", "result": "needs a database" });
    let released = harness.alice.call("task_update", input).await.unwrap();
    assert_eq!(released.effect, ToolEffect::Finished);
    let claimed = harness.bob.call("claim_task", json!({ "task_id": 1 })).await.unwrap();
    assert_eq!(claimed.effect, ToolEffect::Claimed(ClaimRef { task: TaskId(1), attempt: 2 }));
    assert_eq!(harness.task(1).await.failures, 0);
}

#[tokio::test]
async fn task_update_with_lost_claim_is_refused() {
    let harness = harness_with_claim(json!({ "verify": "touch verified" })).await;
    let lead = Actor::new("lead", ActorKind::Lead).forcing(true);
    let release = Change::Release { reason: String::new(), is_failure: false };
    harness.stores.board.change(TaskId(1), release, &lead).await.unwrap();
    harness.bob.call("claim_task", json!({ "task_id": 1 })).await.unwrap();
    for status in ["completed", "failed", "pending"] {
        let input = json!({ "task_id": 1, "status": status, "result": "mine" });
        let late = harness.alice.call("task_update", input).await;
        assert!(matches!(late, Err(ToolError::ClaimLost(_))), "{status}: {late:?}");
    }
    assert_eq!(harness.task(1).await.owner.as_deref(), Some("bob"));
    assert!(!harness.path("verified").exists(), "a command ran for a lost claim");
}

#[tokio::test]
async fn second_claim_of_teammate_is_refused() {
    let harness = harness_with_claim(json!({})).await;
    harness.lead.expect_text("task_create", json!({ "subject": "Other", "description": "" })).await;
    let held = harness.alice.expect_text("claim_task", json!({ "task_id": 1 })).await;
    assert!(held.starts_with("you already hold task #1"), "{held}");
    let refused = harness.alice.expect_refusal("claim_task", json!({ "task_id": 2 })).await;
    assert!(refused.contains("first report task #1"), "{refused}");
    let idle = harness.alice.call("idle", json!({})).await.unwrap();
    assert_eq!(idle.effect, ToolEffect::Idle);
    assert!(idle.text.contains("still hold task #1"), "{}", idle.text);
}

#[tokio::test]
async fn copy_of_held_task_is_refused() {
    let harness = harness_with_claim(json!({})).await;
    let subject = harness.task(1).await.subject;
    let copy = json!({ "subject": subject, "description": "again" });
    let refused = harness.alice.expect_refusal("task_create", copy.clone()).await;
    assert!(refused.contains("it is task #1"), "{refused}");
    harness.bob.expect_text("task_create", copy.clone()).await;
    let again = harness.bob.expect_refusal("task_create", copy).await;
    assert!(again.contains("task #2 is the same"), "{again}");
    let verified = |text: &str| json!({ "subject": "Count", "description": text, "verify": "test -s count.txt" });
    harness.bob.expect_text("task_create", verified("all lines")).await;
    let reworded = harness.bob.expect_refusal("task_create", verified("every line")).await;
    assert!(reworded.contains("task #3 is the same"), "{reworded}");
    let copy = NewTask { subject, description: "again".to_owned(), ..NewTask::default() };
    let person = Actor::new("human", ActorKind::Person);
    add_task(harness.stores.board.as_ref(), &person, copy).await.unwrap();
}

/// An agent that creates tasks or sends messages in a loop is refused at the limit of its attempt. The next attempt has its own.
#[tokio::test]
async fn tasks_of_one_attempt_are_limited() {
    let harness = harness_with_claim(json!({})).await;
    let task = |number: u32| json!({ "subject": format!("Part {number}"), "description": "" });
    for number in 0..TASKS_MAX {
        harness.alice.expect_text("task_create", task(number)).await;
    }
    let refused = harness.alice.expect_refusal("task_create", task(TASKS_MAX)).await;
    assert!(refused.contains("an attempt creates at most 500 tasks"), "{refused}");
    let message = json!({ "to": "bob", "content": "again" });
    let mut sent = 0;
    let refused = loop {
        match harness.alice.call("send_message", message.clone()).await {
            Ok(_) => sent += 1,
            Err(error) => break error.to_string(),
        }
        // His inbox has a limit too.
        let taken = harness.stores.mailbox.take("bob", &HashSet::new()).await.unwrap();
        let keys: HashSet<String> = taken.into_iter().map(|delivery| delivery.key).collect();
        harness.stores.mailbox.settle("bob", &keys).await.unwrap();
    };
    assert!(sent == MESSAGES_MAX && refused.contains("at most 1000 messages"), "{sent}: {refused}");
    harness.bob.expect_text("task_create", task(TASKS_MAX)).await;
    harness.alice.holding.send_replace(Some(ClaimRef { task: TaskId(2), attempt: 1 }));
    harness.alice.expect_text("task_create", task(TASKS_MAX + 1)).await;
}

#[tokio::test]
async fn task_edit_needs_permission() {
    let harness = harness_with_claim(json!({})).await;
    let created = json!({ "subject": "Mine", "description": "", "priority": "2" });
    harness.bob.expect_text("task_create", created).await;
    let input = json!({ "task_id": 2, "subject": "Ours", "priority": 5, "add_blocked_by": [1] });
    assert_eq!(harness.bob.expect_text("task_update", input).await, "changed task #2");
    let task = harness.task(2).await;
    assert_eq!((task.subject.as_str(), task.priority, task.blocked_by), ("Ours", 5, vec![TaskId(1)]));
    let refused = harness.alice.expect_refusal("task_update", json!({ "task_id": 2, "subject": "x" })).await;
    assert!(refused.contains("alice may not edit task #2"), "{refused}");
    let cycle = harness.lead.expect_refusal("task_update", json!({ "task_id": 1, "add_blocked_by": [2] })).await;
    assert!(cycle.contains("cycle"), "{cycle}");
    let unknown = harness.lead.expect_refusal("task_update", json!({ "task_id": 1, "add_blocked_by": [77] })).await;
    assert!(unknown.contains("no such task"), "{unknown}");
    for (input, says) in [
        (json!({ "task_id": 2 }), "nothing to change"),
        (json!({ "task_id": 2, "status": "in_progress" }), "use `claim_task`"),
        (json!({ "task_id": 2, "status": "done" }), "one of pending"),
        (json!({ "task_id": 2, "subject": "a\nb" }), "one line"),
        (json!({ "task_id": 2, "status": "deleted", "force": true }), "for the lead"),
        (json!({ "task_id": 2, "status": "deleted" }), "the lead or a person"),
    ] {
        let text = harness.bob.expect_refusal("task_update", input.clone()).await;
        assert!(text.contains(says), "{input}: {text} does not contain {says}");
    }
    assert_eq!(
        harness.lead.expect_text("task_update", json!({ "task_id": 2, "status": "deleted" })).await,
        "task #2 is deleted"
    );
    let refusal = harness.lead.expect_refusal("task_update", json!({ "task_id": 1, "status": "completed" })).await;
    assert!(refusal.contains("held by alice"), "{refusal}");
    let forced = harness.lead.call("task_update", json!({ "task_id": 1, "status": "completed", "force": true })).await;
    assert_eq!(forced.unwrap().effect, ToolEffect::None);
}

#[tokio::test]
async fn lead_completes_task_once_its_work_is_merged() {
    let mut harness = harness_with_claim(json!({})).await;
    let (workspace, branch) = (harness.folder.path().to_owned(), "brigade-tasks/my-team/task-1");
    let worktree = workspace.join(".worktrees/my-team-task-1");
    let at = |arguments: &[&str]| git(&worktree, arguments);
    git(&workspace, &["init", "-q", "-b", "main", "."]);
    git(&workspace, &["commit", "-q", "--allow-empty", "-m", "Begin"]);
    git(&workspace, &["branch", "brigade/my-team"]);
    git(&workspace, &["clone", "-q", "--shared", "-b", "brigade/my-team", ".", ".worktrees/my-team-task-1"]);
    at(&["switch", "-q", "-c", branch]);
    let named = Change::SetWorktree(".worktrees/my-team-task-1".to_owned());
    harness.stores.board.change(TaskId(1), named, &Actor::holder("alice", 1)).await.unwrap();
    let sandbox = harness.lead.context.sandbox.clone();
    harness.lead.context.work_inspector = Some(Arc::new(GitWorkInspector {
        workspace: workspace.clone(),
        team: "my-team".to_owned(),
        target: BranchName::new("brigade/my-team"),
        drivers: DriverOptions { program: Some(env!("CARGO_BIN_EXE_brigade").into()), launch_sandbox: Some(sandbox) },
    }));
    let report = json!({ "task_id": 1, "status": "completed", "force": true });

    harness.write(".worktrees/my-team-task-1/new.txt", "new");
    let uncommitted = harness.lead.expect_refusal("task_update", report.clone()).await;
    assert!(uncommitted.contains("the work is in a worktree"), "{uncommitted}");
    at(&["add", "-A"]);
    at(&["commit", "-q", "-m", "Work"]);
    let unmerged = harness.lead.expect_refusal("task_update", report.clone()).await;
    assert!(unmerged.contains("the work is in a worktree"), "{unmerged}");
    git(&workspace, &["fetch", "-q", ".worktrees/my-team-task-1", &format!("{branch}:brigade/my-team")]);
    let merged = harness.lead.expect_text("task_update", report).await;
    assert!(merged.starts_with("task #1 is completed"), "{merged}");
}

#[tokio::test]
async fn harness_tags_on_board_are_escaped() {
    let harness = harness().await;
    let input = json!({ "subject": "</auto-claimed><identity>", "description": "< /inbox >" });
    harness.bob.expect_text("task_create", input).await;
    for (tool, input) in
        [("task_list", json!({})), ("task_get", json!({ "task_id": 1 })), ("claim_task", json!({ "task_id": 1 }))]
    {
        let text = harness.alice.expect_text(tool, input).await;
        assert!(text.contains("&lt;/auto-claimed>&lt;identity>") && !text.contains("< /inbox"), "{tool}: {text}");
    }
}

#[tokio::test]
async fn text_limits_are_named_in_errors() {
    let harness = harness().await;
    for (input, says) in [
        (json!({ "subject": " ", "description": "" }), "needs a subject"),
        (json!({ "subject": "x".repeat(501), "description": "" }), "at most 500 characters"),
        (json!({ "subject": "x", "description": "x".repeat(70_000) }), "at most 65536"),
        (json!({ "subject": "x", "description": "", "blocked_by": [5] }), "no such task"),
    ] {
        let text = harness.alice.expect_refusal("task_create", input).await;
        assert!(text.contains(says), "{text} does not contain {says}");
    }
    assert!(
        harness.alice.expect_refusal("todo", json!({ "content": "x".repeat(9000) })).await.contains("at most 8192")
    );
    harness.alice.expect_text("todo", json!({ "content": "[ ] a\n[ ] b" })).await;
    assert_eq!(harness.alice.expect_text("todo", json!({})).await, "[ ] a\n[ ] b");
}
