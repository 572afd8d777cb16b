//! A store that fails for a while: the results wait in one place, and are neither lost nor written twice.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use brigade::domain::log::event::EventKind;
use brigade::domain::task::{NewTask, TaskStatus};
use brigade::domain::team::waiting_for::WaitingFor;
use brigade::ports::{Call, IoAction, StoreError};
use brigade::team::handle::{TeamCommand, TeamEnd};
use serde_json::json;
use tokio::time::Instant;

use super::harness::{TestTeam, call, complete, diligent, has_new_task, lock, new_task, once, say, start_continuous};
use crate::testkit::interceptors::{CallFate, with_fates};

/// A disk of transcripts that can be full, for all members or for one.
struct FillableDisk {
    is_full: AtomicBool,
    tries: AtomicUsize,
    failing: Mutex<Option<&'static str>>,
}

fn disk_of(harness: &mut TestTeam, action: IoAction, kind: ErrorKind) -> Arc<FillableDisk> {
    let (is_full, tries, failing) = (AtomicBool::new(false), AtomicUsize::new(0), Mutex::new(None));
    let disk = Arc::new(FillableDisk { is_full, tries, failing });
    let seen = Arc::clone(&disk);
    harness.stores = with_fates(&harness.stores, move |call| {
        let Call::AppendTranscript(name) = call else { return CallFate::Proceeds };
        let is_meant = lock(&seen.failing).is_none_or(|whose| whose == name);
        if !is_meant || !seen.is_full.load(Ordering::Relaxed) {
            return CallFate::Proceeds;
        }
        seen.tries.fetch_add(1, Ordering::Relaxed);
        CallFate::Fails(StoreError::Io { action, place: "transcript".into(), source: kind.into() })
    });
    disk
}

fn message(harness: &TestTeam, what: &str) -> usize {
    message_about(harness, "disk", what)
}

fn message_about(harness: &TestTeam, subject: &str, what: &str) -> usize {
    harness.count(
        |event| matches!(event, EventKind::Warning { about, text, .. } if about == subject && text.contains(what)),
    )
}

/// Alice's first tool fills the disk; the record of its result is the first write to fail.
async fn team_filling_disk(kind: ErrorKind) -> (TestTeam, Arc<FillableDisk>) {
    team_failing_to("append to".into(), kind).await
}

async fn team_failing_to(action: IoAction, kind: ErrorKind) -> (TestTeam, Arc<FillableDisk>) {
    let mut harness = TestTeam::new(&["alice", "bob"]);
    let disk = disk_of(&mut harness, action, kind);
    let filling = Arc::clone(&disk);
    harness.set_model_fn("alice", move |request, count| {
        if count == 0 {
            filling.is_full.store(true, Ordering::Relaxed);
        }
        async move { if count == 0 { call(&[complete(1)]) } else { diligent(&request) } }
    });
    harness.diligent(&["bob"]);
    harness.create(vec![NewTask { owner: Some("alice".to_owned()), ..new_task("hers") }]).await;
    (harness, disk)
}

#[tokio::test(start_paused = true)]
async fn full_disk_or_held_lock_is_waited_for() {
    for (action, kind, subject, awaited) in [
        (IoAction::Other("append to"), ErrorKind::StorageFull, "disk", "room on the disk"),
        (IoAction::Other("append to"), ErrorKind::QuotaExceeded, "disk", "room on the disk"),
        (IoAction::Lock, ErrorKind::ReadOnlyFilesystem, "disk", "room on the disk"),
        (IoAction::Lock, ErrorKind::TimedOut, "lock", "the lock transcript"),
    ] {
        let (harness, disk) = team_failing_to(action, kind).await;
        let team = harness.launch(once()).await;
        let message = |harness: &TestTeam, what: &str| message_about(harness, subject, what);
        harness.wait_until("the notice is printed", |harness| message(harness, "waits to be recorded") == 1).await;
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert_eq!(team.live().teammates()["alice"].waiting_for, Some(WaitingFor::Other(awaited.into())));
        harness.tasks(&["another"]).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(harness.task(2).await.status, TaskStatus::Pending, "a task was claimed meanwhile");
        disk.is_full.store(false, Ordering::Relaxed);
        assert_eq!(harness.ended(team).await.task_counts.completed, 2);
        assert_eq!((harness.task(1).await.attempt, harness.task(1).await.failures), (1, 0));
        assert_eq!(
            (message(&harness, "waits to be recorded"), message(&harness, &format!("waits for {awaited} any longer"))),
            (1, 1),
            "{}",
            harness.event_lines()
        );
        let respawned = |event: &EventKind| matches!(event, EventKind::TeammateRespawned { .. });
        assert_eq!(harness.count(respawned), 0);
        harness.check_invariants().await;
    }
}

#[tokio::test(start_paused = true)]
async fn disk_wait_is_bounded_and_stop_now_skips_it() {
    let (harness, disk) = team_filling_disk(ErrorKind::StorageFull).await;
    *lock(&disk.failing) = Some("alice");
    let team = harness.launch(once()).await;
    let begun = Instant::now();
    let respawned = |event: &EventKind| matches!(event, EventKind::TeammateRespawned { reason, .. } if reason.contains("transcript"));
    harness.wait_until("alice is started again", |harness| harness.count(respawned) >= 1).await;
    assert!((600..660).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert_eq!(harness.task(1).await.failures, 0, "the disk error counts as a failure of the task");
    drop(team);

    let (harness, _) = team_filling_disk(ErrorKind::StorageFull).await;
    let team = harness.launch(start_continuous()).await;
    harness.wait_until("the notice is printed", |harness| message(harness, "waits to be recorded") == 1).await;
    let begun = Instant::now();
    team.command(TeamCommand::Abort).await;
    assert_eq!(harness.ended(team).await.end, TeamEnd::Interrupted);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn other_disk_error_is_not_waited_for() {
    let (harness, disk) = team_filling_disk(ErrorKind::PermissionDenied).await;
    *lock(&disk.failing) = Some("alice");
    let begun = Instant::now();
    let team = harness.launch(once()).await;
    let respawned = |event: &EventKind| matches!(event, EventKind::TeammateRespawned { .. });
    harness.wait_until("alice is started again", |harness| harness.count(respawned) >= 1).await;
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    disk.is_full.store(false, Ordering::Relaxed);
    harness.ended(team).await;
    assert_eq!((message(&harness, "waits to be recorded"), harness.task(1).await.failures), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn low_disk_space_stops_claims() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.spec.limits.free_bytes_min = u64::MAX;
    harness.set_model_fn("alice", |request, _| async move {
        match has_new_task(&request) {
            false if !super::harness::text_of(&request).contains("result:") => {
                call(&[("claim_task", json!({"task_id": 1}))])
            }
            _ => say("Then not."),
        }
    });
    harness.tasks(&["a"]).await;
    let team = harness.launch(start_continuous()).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(harness.task(1).await.attempt, 0);
    assert_eq!(message(&harness, "claims no new tasks"), 1, "{}", harness.event_lines());
    let waits = team.live().teammates()["alice"].waiting_for.clone().unwrap().to_file_text();
    assert!(waits.starts_with("room on the disk: ") && waits.ends_with(" needed (limits.free_bytes_min)"), "{waits}");
    assert_eq!(harness.requests(), 0, "a model got a request");
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn goal_is_recorded_after_disk_recovers() {
    let mut harness = TestTeam::new(&["alice"]);
    let disk = disk_of(&mut harness, "append to".into(), ErrorKind::Other);
    *lock(&disk.failing) = Some("lead");
    disk.is_full.store(true, Ordering::Relaxed);
    harness.spec.goal = Some("a greeting".to_owned());
    harness.diligent(&["alice"]);
    harness.set_model_fn("lead", |_, _| async { say("Hello.") });
    let team = harness.launch(once()).await;
    harness.wait_until("the write was tried", |_| disk.tries.load(Ordering::Relaxed) > 0).await;
    disk.is_full.store(false, Ordering::Relaxed);
    assert_eq!(harness.ended(team).await.end, TeamEnd::SessionOver);
    let told = harness.transcript("lead").await;
    assert_eq!(told.iter().filter(|line| line.contains("from human: a greeting")).count(), 1, "{told:?}");
}
