//! A store that takes nothing for a while: what was done waits for it in one place, and is neither lost nor done twice.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use brigade::domain::event::Fact;
use brigade::domain::task::{NewTask, TaskStatus};
use brigade::domain::transcript::Record;
use brigade::domain::waiting_for::WaitingFor;
use brigade::ports::{StoreError, StoreResult, Transcripts};
use brigade::team::handle::{Command, End};
use serde_json::json;
use tokio::time::Instant;

use super::stage::{Stage, call, complete, diligent, has_new_task, lock, new_task, on_and_on, once, say};

/// Transcripts on a disk that can be full; it fails so often at first, or for as long as it is told to.
struct OnDisk {
    inner: Arc<dyn Transcripts>,
    kind: ErrorKind,
    is_full: AtomicBool,
    tries: AtomicUsize,
    failing: Mutex<Option<&'static str>>,
}

#[async_trait]
impl Transcripts for OnDisk {
    async fn load(&self, name: &str) -> StoreResult<Vec<Record>> {
        self.inner.load(name).await
    }
    async fn append(&self, name: &str, records: &[Record], sync: bool) -> StoreResult<()> {
        let is_meant = lock(&self.failing).is_none_or(|whose| whose == name);
        if is_meant && self.is_full.load(Ordering::Relaxed) {
            self.tries.fetch_add(1, Ordering::Relaxed);
            return Err(StoreError::Io { action: "append to", path: "transcript".into(), source: self.kind.into() });
        }
        self.inner.append(name, records, sync).await
    }
}

fn disk_of(stage: &mut Stage, kind: ErrorKind) -> Arc<OnDisk> {
    let inner = Arc::clone(&stage.stores.transcripts);
    let (is_full, tries, failing) = (AtomicBool::new(false), AtomicUsize::new(0), Mutex::new(None));
    let disk = Arc::new(OnDisk { inner, kind, is_full, tries, failing });
    stage.stores.transcripts = disk.clone();
    disk
}

fn said(stage: &Stage, what: &str) -> usize {
    stage.count(|fact| matches!(fact, Fact::Warning { about, text } if about == "disk" && text.contains(what)))
}

/// Alice fills the disk with her first tool; the record of that is what meets it.
async fn filled(kind: ErrorKind) -> (Stage, Arc<OnDisk>) {
    let mut stage = Stage::new(&["alice", "bob"]);
    let disk = disk_of(&mut stage, kind);
    let filling = Arc::clone(&disk);
    stage.brain("alice", move |request, count| {
        if count == 0 {
            filling.is_full.store(true, Ordering::Relaxed);
        }
        async move { if count == 0 { call(&[complete(1)]) } else { diligent(&request) } }
    });
    stage.diligent(&["bob"]);
    stage.create(vec![NewTask { owner: Some("alice".to_owned()), ..new_task("hers") }]).await;
    (stage, disk)
}

#[tokio::test(start_paused = true)]
async fn what_meets_a_full_or_read_only_disk_waits_and_goes_on_by_itself() {
    for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::ReadOnlyFilesystem] {
        let (stage, disk) = filled(kind).await;
        let team = stage.launch(once()).await;
        stage.until("it is said", |stage| said(stage, "waits to be recorded") == 1).await;
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert_eq!(team.live().teammates()["alice"].waiting_for, Some(WaitingFor::Other("room on the disk".into())));
        stage.tasks(&["another"]).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(stage.task(2).await.status, TaskStatus::Pending, "no new work is taken meanwhile");
        disk.is_full.store(false, Ordering::Relaxed);
        assert_eq!(stage.ended(team).await.tally.completed, 2);
        assert_eq!((stage.task(1).await.attempt, stage.task(1).await.failures), (1, 0));
        assert_eq!(
            (said(&stage, "waits to be recorded"), said(&stage, "waits no longer")),
            (1, 1),
            "{}",
            stage.story()
        );
        let respawned = |fact: &Fact| matches!(fact, Fact::TeammateRespawned { .. });
        assert_eq!(stage.count(respawned), 0);
        stage.check_laws().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_room_is_bounded_and_a_stop_now_does_not_wait_for_it() {
    let (stage, disk) = filled(ErrorKind::StorageFull).await;
    *lock(&disk.failing) = Some("alice");
    let team = stage.launch(once()).await;
    let begun = Instant::now();
    let respawned =
        |fact: &Fact| matches!(fact, Fact::TeammateRespawned { reason, .. } if reason.contains("transcript"));
    stage.until("she is started again", |stage| stage.count(respawned) >= 1).await;
    assert!((600..660).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert_eq!(stage.task(1).await.failures, 0, "the disk's failure is not the task's");
    drop(team);

    let (stage, _) = filled(ErrorKind::StorageFull).await;
    let team = stage.launch(on_and_on()).await;
    stage.until("it is said", |stage| said(stage, "waits to be recorded") == 1).await;
    let begun = Instant::now();
    team.command(Command::StopNow).await;
    assert_eq!(stage.ended(team).await.end, End::Interrupted);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn another_error_of_the_disk_is_not_waited_for() {
    let (stage, disk) = filled(ErrorKind::PermissionDenied).await;
    *lock(&disk.failing) = Some("alice");
    let begun = Instant::now();
    let team = stage.launch(once()).await;
    let respawned = |fact: &Fact| matches!(fact, Fact::TeammateRespawned { .. });
    stage.until("she is started again", |stage| stage.count(respawned) >= 1).await;
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    disk.is_full.store(false, Ordering::Relaxed);
    stage.ended(team).await;
    assert_eq!((said(&stage, "waits to be recorded"), stage.task(1).await.failures), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn where_less_is_free_than_is_kept_free_nothing_is_claimed_by_anybody() {
    let mut stage = Stage::new(&["alice"]);
    stage.spec.limits.free_bytes_min = u64::MAX;
    stage.brain("alice", |request, _| async move {
        match has_new_task(&request) {
            false if !super::stage::text_of(&request).contains("result:") => {
                call(&[("claim_task", json!({"task_id": 1}))])
            }
            _ => say("Then not."),
        }
    });
    stage.tasks(&["a"]).await;
    let team = stage.launch(on_and_on()).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(stage.task(1).await.attempt, 0);
    assert_eq!(said(&stage, "no new work is taken"), 1, "{}", stage.story());
    let waits = team.live().teammates()["alice"].waiting_for.clone().unwrap().to_file_text();
    assert!(waits.starts_with("room on the disk: ") && waits.ends_with(" needed (limits.free_bytes_min)"), "{waits}");
    assert_eq!(stage.requests(), 0, "and nobody's model is asked");
    team.command(Command::Stop).await;
    stage.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn a_goal_that_cannot_be_recorded_at_first_is_told_later() {
    let mut stage = Stage::new(&["alice"]);
    let disk = disk_of(&mut stage, ErrorKind::Other);
    *lock(&disk.failing) = Some("lead");
    disk.is_full.store(true, Ordering::Relaxed);
    stage.spec.goal = Some("a greeting".to_owned());
    stage.diligent(&["alice"]);
    stage.brain("lead", |_, _| async { say("Hello.") });
    let team = stage.launch(once()).await;
    stage.until("it was tried", |_| disk.tries.load(Ordering::Relaxed) > 0).await;
    disk.is_full.store(false, Ordering::Relaxed);
    assert_eq!(stage.ended(team).await.end, End::SessionOver);
    let told = stage.transcript("lead").await;
    assert_eq!(told.iter().filter(|line| line.contains("<goal>a greeting")).count(), 1, "{told:?}");
}
