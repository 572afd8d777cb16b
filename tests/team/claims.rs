//! Claims: released after forgotten work, lost when taken away, reclaimed after a crash.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use brigade::domain::agent::prompt::claimed_block;
use brigade::domain::agent::transcript::{Block, MessageRecord, Record, Role, TranscriptEntry};
use brigade::domain::log::event::EventKind;
use brigade::domain::task::claim_queue::TaskScope;
use brigade::domain::task::task_error::TaskError;
use brigade::domain::task::transition::{Actor, Change};
use brigade::domain::task::{NewTask, TaskId, TaskResult, TaskStatus};
use brigade::domain::time::UnixMs;
use brigade::ports::{Call, Claimant, IoAction, StoreError};
use brigade::team::handle::TeamCommand;
use serde_json::json;

use super::harness::{
    TestTeam, call, complete, diligent, has_new_task, new_task, once, say, start_continuous, task_at_hand,
};
use crate::testkit::interceptors::{CallFate, with_fates};

#[tokio::test(start_paused = true)]
async fn unfinished_claim_is_reminded_then_fails_attempt() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |_, _| async { say("I am done, I think.") });
    harness.create(vec![NewTask { max_attempts: Some(2), ..new_task("forgotten") }]).await;
    let outcome = harness.run_once().await;
    assert_eq!((outcome.task_counts.failed, outcome.error), (1, None));
    let sent = harness.sent_by("alice");
    assert_eq!(sent.len(), 4, "two attempts of two requests each");
    let reminders = |index: usize| sent[index].text().matches("You still hold task #1").count();
    assert_eq!([0, 1, 2, 3].map(reminders), [0, 1, 0, 1], "the second attempt starts a new context");
    assert_eq!(harness.task(1).await.failures, 2);
    let lead = harness.transcript("lead").await.join("\n");
    assert_eq!(lead.matches("[task_failed] from system").count(), 2, "{lead}");
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn reminded_teammate_can_still_complete() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |request, _| async move {
        let last = request.messages.last().unwrap();
        let is_reminded =
            last.content.iter().any(|block| matches!(block, Block::Text { text } if text.starts_with("You still")));
        if is_reminded { call(&[complete(1)]) } else { say("Done.") }
    });
    harness.tasks(&["a"]).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 1);
    assert_eq!(harness.task(1).await.failures, 0);
}

/// Runs alice's first task while a person takes it away by force.
async fn lose_claim_during(during: &'static str) -> TestTeam {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", move |request, count| async move {
        match (count, during) {
            (0, "tool") => call(&[("nap", json!({"ms": 60_000})), ("nap", json!({"note": "never"})), complete(1)]),
            (0, _) => {
                std::future::pending::<()>().await;
                say("")
            }
            _ => diligent(&request),
        }
    });
    harness.create(vec![NewTask { priority: 1, ..new_task("first") }, new_task("second")]).await;
    let team = harness.launch(start_continuous()).await;
    harness.wait_until("alice works", |harness| !harness.sent_by("alice").is_empty()).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    harness.take_by_hand(1).await;
    let taken = tokio::time::Instant::now();
    harness.wait_until("alice continues", |harness| harness.sent_by("alice").len() > 1).await;
    assert!(taken.elapsed() < Duration::from_secs(1), "{:?}", taken.elapsed());
    harness.wait_for_status(2, TaskStatus::Completed).await;
    team.command(TeamCommand::Abort).await;
    harness.ended(team).await;
    harness
}

#[tokio::test(start_paused = true)]
async fn lost_claim_aborts_turn_and_next_task_runs() {
    for during in ["tool", "request"] {
        let harness = lose_claim_during(during).await;
        let next = &harness.sent_by("alice")[1];
        assert!(next.text().contains("Task #1 is not yours any more (in_progress, carl)"), "{}", next.text());
        assert_eq!(task_at_hand(&next.request), Some(2));
        assert!(
            !harness.notes().iter().any(|note| note.contains("never")),
            "a further tool ran: {:?}",
            harness.notes()
        );
        let (done, alice) = (Change::Complete(TaskResult::default()), Actor::holder("alice", 1));
        let stale = harness.stores.board.change(TaskId(1), done, &alice).await;
        assert!(matches!(stale, Err(StoreError::Refused(TaskError::Stale { .. }))));
        assert_eq!(harness.task(1).await.owner.as_deref(), Some("carl"));
        harness.check_invariants().await;
    }
}

#[tokio::test(start_paused = true)]
async fn lost_claim_skips_remaining_tool_calls() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |request, count| async move {
        match count {
            0 => call(&[("nap", json!({"ms": 1})), complete(1), ("nap", json!({"note": "never"}))]),
            _ => diligent(&request),
        }
    });
    harness.tasks(&["a"]).await;
    let team = harness.launch(start_continuous()).await;
    // No hint reaches the lead: the stale report shows the loss.
    harness.wait_until("alice works", |harness| !harness.notes().is_empty()).await;
    harness.wait_for_status(1, TaskStatus::Completed).await;
    team.command(TeamCommand::Abort).await;
    harness.ended(team).await;
    assert!(!harness.sent_by("alice")[1..].iter().any(|sent| sent.text().contains("not yours any more")));
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn slow_report_that_ends_its_claim_succeeds() {
    for by_report in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let mut harness = TestTeam::new(&["alice"]);
        harness.workspace = folder.path().to_owned();
        harness.set_model_fn("alice", move |request, count| async move {
            match count {
                0 if !by_report => call(&[("write_file", json!({"path": "a.txt", "content": "a"}))]),
                _ if by_report => diligent(&request),
                _ => say("Done."),
            }
        });
        // On a slow disk, the lead sees that the task is completed before the report returns.
        harness.stores = with_fates(&harness.stores, |call| match call {
            Call::ChangeTask(_, Change::Complete(_), _) => CallFate::AnswersLate(Duration::from_secs(3)),
            _ => CallFate::Proceeds,
        });
        harness.tasks(&["a"]).await;
        assert_eq!(harness.run_once().await.task_counts.completed, 1, "{}", harness.event_lines());
        let failed = |event: &EventKind| matches!(event, EventKind::ToolFinished { ok: false, .. });
        assert_eq!(harness.count(failed), 0, "{}", harness.event_lines());
        let transcript = harness.transcript("alice").await.join("\n");
        assert!(!transcript.contains("nterrupted") && transcript.contains("task #1 is completed"), "{transcript}");
        harness.check_invariants().await;
    }
}

/// Leaves alice on task 1 with a call without a result, as a killed process does.
async fn kill_mid_turn(harness: &TestTeam) {
    harness.create(vec![new_task("first"), NewTask { priority: 9, ..new_task("second") }]).await;
    let task = harness.claim(1, "alice", "dead", None).await;
    let asked = Block::tool_use("c-1", "bash", json!({"command": "make"}));
    let records = [
        MessageRecord::new(Role::User, vec![Block::text(claimed_block(&task, None))]),
        MessageRecord::new(Role::Assistant, vec![asked]),
    ];
    let records = records.map(|message| Record { at: UnixMs(1), entry: TranscriptEntry::Message(message) });
    harness.stores.transcripts.append("alice", &records, true).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn killed_team_reclaims_tasks_for_their_owners() {
    let mut harness = TestTeam::new(&["alice", "bob"]);
    harness.diligent(&["alice", "bob"]);
    kill_mid_turn(&harness).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 2);
    let first = &harness.sent_by("alice")[0];
    assert!(first.text().contains("result: Interrupted"), "{}", first.text());
    assert_eq!(task_at_hand(&first.request), Some(1), "she did not resume her own task first");
    assert!(has_new_task(&first.request));
    let task = harness.task(1).await;
    assert_eq!((task.owner.as_deref(), task.attempt, task.failures), (Some("alice"), 2, 0));
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn claim_unknown_to_its_teammate_is_reclaimed() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    let team = harness.launch(start_continuous()).await;
    // As if its holder had ended between the board's answer and its first record of it.
    harness.create(vec![NewTask { requires: vec!["absent".into()], ..new_task("a") }]).await;
    let worker = harness.stores.workers.worker_id().to_owned();
    let ghost = Claimant {
        name: "alice".into(),
        capabilities: vec!["absent".into()],
        worker,
        lease: None,
        scope: TaskScope::All,
    };
    harness.stores.board.claim(TaskId(1), &ghost).await.unwrap();
    harness.wait_for_status(1, TaskStatus::Pending).await;
    let task = harness.task(1).await;
    assert_eq!((task.failures, task.claim), (0, None));
    let told = |event: &EventKind| matches!(event, EventKind::TaskReclaimed { reason, .. } if reason.contains("just as it claimed"));
    assert_eq!(harness.count(told), 1);
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
}

/// Stops a team of three while each member has a task that it cannot release. The lead's first `failing` tries to reclaim fail. Returns
/// the team, and the number of all tries.
async fn stop_while_reclaims_fail(failing: usize) -> (TestTeam, usize) {
    let mut harness = TestTeam::new(&["alice", "bob", "carol"]);
    // No poll reclaims during the test.
    harness.spec.limits.poll_interval = Duration::from_secs(3600);
    for who in ["alice", "bob", "carol"] {
        harness.set_model_fn(who, |_, _| async { call(&[("nap", json!({"ms": 60_000}))]) });
    }
    let (is_stopping, reclaims) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (counts, counted) = (Arc::clone(&is_stopping), Arc::clone(&reclaims));
    harness.stores = with_fates(&harness.stores, move |call| {
        let is_locked = match call {
            Call::ChangeTask(_, Change::Release { .. }, _) => true,
            Call::Reclaim if counts.load(Ordering::Relaxed) => counted.fetch_add(1, Ordering::Relaxed) < failing,
            _ => false,
        };
        let (action, source) = (IoAction::Lock, ErrorKind::TimedOut.into());
        if is_locked {
            CallFate::Fails(StoreError::Io { action, place: "the board".into(), source })
        } else {
            CallFate::Proceeds
        }
    });
    harness.tasks(&["a", "b", "c"]).await;
    let team = harness.launch(start_continuous()).await;
    let is_at_work = |harness: &TestTeam| harness.notes().len() == 3;
    harness.wait_until("all work", is_at_work).await;
    is_stopping.store(true, Ordering::Relaxed);
    team.command(TeamCommand::Abort).await;
    harness.ended(team).await;
    (harness, reclaims.load(Ordering::Relaxed))
}

#[tokio::test(start_paused = true)]
async fn reclaim_failing_during_stop_is_repeated_once() {
    // One fails, and then each member's claim is reclaimed at the end of the stop.
    let (harness, reclaims) = stop_while_reclaims_fail(1).await;
    assert_eq!(reclaims, 4, "{}", harness.event_lines());
    for id in 1..=3 {
        let task = harness.task(id).await;
        assert_eq!((task.status, task.attempt, task.failures), (TaskStatus::Pending, 1, 0));
    }
    for who in ["alice", "bob", "carol"] {
        let reason = format!("{who} has stopped: cannot lock the board: timed out");
        let is_hers =
            |event: &EventKind| matches!(event, EventKind::TaskReclaimed { reason: text, .. } if *text == reason);
        assert_eq!(harness.count(is_hers), 1, "{}", harness.event_lines());
    }

    let (harness, reclaims) = stop_while_reclaims_fail(usize::MAX).await;
    assert_eq!(reclaims, 2, "{}", harness.event_lines());
    assert_eq!(harness.task(1).await.status, TaskStatus::InProgress);
}

#[tokio::test(start_paused = true)]
async fn session_waiting_for_other_claim_warns_once() {
    const LEASE: Duration = Duration::from_secs(90);
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    harness.tasks(&["taken", "ours"]).await;
    harness.claim(1, "eve", "lease:eve", Some(LEASE)).await;
    let team = harness.launch(once()).await;
    harness.wait_for_status(2, TaskStatus::Completed).await;
    let said = |harness: &TestTeam| {
        harness.count(|event| matches!(event, EventKind::Warning { text, .. } if text.contains("#1 is claimed by eve")))
    };
    harness.wait_until("the notice is printed", |harness| said(harness) == 1).await;
    tokio::time::sleep(LEASE / 2).await;
    assert_eq!(said(&harness), 1);
    // The lease ends, and alice claims it.
    harness.ended(team).await;
    assert_eq!(harness.task(1).await.owner.as_deref(), Some("alice"));
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn clock_set_forward_does_not_expire_lease() {
    const LEASE: Duration = Duration::from_secs(90);
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    harness.tasks(&["taken"]).await;
    harness.claim(1, "eve", "lease:eve", Some(LEASE)).await;
    let team = harness.launch(start_continuous()).await;
    tokio::time::sleep(LEASE / 3).await;
    harness.wall_clock.advance(Duration::from_secs(3_600));
    tokio::time::sleep(LEASE / 3).await;
    assert_eq!(harness.task(1).await.owner.as_deref(), Some("eve"));
    // The lease has lasted as long as it was granted.
    harness.wait_for_status(1, TaskStatus::Completed).await;
    assert_eq!(harness.task(1).await.owner.as_deref(), Some("alice"));
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
}
