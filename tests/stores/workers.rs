//! Workers: locks show which ones run, and the processes of dead ones are ended.

#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;

use brigade::domain::records::{GuardProcess, WorkerRecord, WorkerTeammate};
use brigade::platform::processes;
use brigade::ports::{LeaderStatus, StoreError, WorkerSurvey, Workers};
use brigade::sandbox::WORKER_VARIABLE;
use brigade::stores::file::workers::leader_lock::{LeaderLock, acquire_leader_lock, current_leader};
use brigade::stores::file::workers::{FileWorkers, ProcessId};

use crate::support::{clock, eventually, real, worlds};

fn worker(team: &Path) -> FileWorkers {
    FileWorkers::register(real(), clock(), team, "t").unwrap()
}

/// Leads as this process.
fn lead(workspace: &Path, team: &str) -> Result<LeaderLock, StoreError> {
    acquire_leader_lock(real(), workspace, &ProcessId::own(), team)
}

fn running(group: Option<i32>) -> BTreeMap<String, WorkerTeammate> {
    let process_groups = group.into_iter().collect();
    BTreeMap::from([("alice".to_owned(), WorkerTeammate { process_groups, ..WorkerTeammate::default() })])
}

/// A program with the mark of this process, as the commands of its teammates have.
fn marked(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env(WORKER_VARIABLE, processes::own_mark());
    command
}

fn command() -> (Child, i32) {
    let child = marked("sleep").arg("60").process_group(0).spawn().unwrap();
    let group = i32::try_from(child.id()).unwrap();
    (child, group)
}

/// The first survey that finds this worker dead. A child of another test keeps the lock until it executes its program.
async fn survey_without(workers: &FileWorkers, dead: &str) -> WorkerSurvey {
    let mut survey = WorkerSurvey::default();
    eventually("the worker is dead", async || {
        survey = workers.reap_dead_workers().await.unwrap();
        !survey.live.contains(dead)
    })
    .await;
    survey
}

fn names(team: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(team.join("workers"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn running_worker_is_in_survey() {
    for world in worlds().await {
        let workers = &world.stores.workers;
        workers.report(running(None)).await.unwrap();
        let survey = workers.reap_dead_workers().await.unwrap();
        assert!(survey.live.contains(workers.worker_id()) && survey.dead.is_empty(), "{}", world.kind);
    }
}

#[tokio::test]
async fn dead_worker_is_reported_once_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (worker(folder.path()), worker(folder.path()));
    let both =
        |survey: &WorkerSurvey| survey.live.contains(first.worker_id()) && survey.live.contains(second.worker_id());
    assert!(both(&first.reap_dead_workers().await.unwrap()) && both(&second.reap_dead_workers().await.unwrap()));
    let (mut child, group) = command();
    let dead = {
        let third = worker(folder.path());
        third.report(running(Some(group))).await.unwrap();
        assert!(first.reap_dead_workers().await.unwrap().live.contains(third.worker_id()));
        third.worker_id().to_owned()
    };
    // It had a command running, so its record stays, and its lock is free.
    let survey = survey_without(&first, &dead).await;
    assert!(both(&survey));
    assert_eq!(survey.dead.iter().map(|record| &record.worker).collect::<Vec<_>>(), [&dead]);
    assert!(!child.wait().unwrap().success(), "its command was not ended");
    let survey = second.reap_dead_workers().await.unwrap();
    assert!(survey.dead.is_empty() && both(&survey));
    assert_eq!(names(folder.path()).len(), 4, "a file is left: {:?}", names(folder.path()));
}

#[tokio::test]
async fn dead_worker_is_reported_after_its_commands_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("alive");
    let script = format!("trap '' TERM; while :; do date +%s%N > {}; sleep 0.02; done", path.display());
    let mut child = marked("sh").arg("-c").arg(script).process_group(0).spawn().unwrap();
    let group = i32::try_from(child.id()).unwrap();
    let dead = worker(folder.path());
    dead.report(running(Some(group))).await.unwrap();
    let id = dead.worker_id().to_owned();
    drop(dead);
    let waiting = std::thread::spawn(move || child.wait().unwrap());
    let survey = survey_without(&worker(folder.path()), &id).await;
    assert_eq!(survey.dead.len(), 1);
    let last = fs::read_to_string(&path).unwrap_or_default();
    assert!(!waiting.join().unwrap().success());
    assert_eq!(fs::read_to_string(&path).unwrap_or_default(), last, "the process ran after the survey");
}

#[tokio::test]
async fn worker_leaves_no_files_after_clean_exit() {
    let folder = tempfile::tempdir().unwrap();
    let looker = FileWorkers::open_read_only(real(), clock(), folder.path());
    assert!(looker.reap_dead_workers().await.unwrap().live.is_empty());
    let one = worker(folder.path());
    one.report(running(None)).await.unwrap();
    assert_eq!(looker.reap_dead_workers().await.unwrap().live.len(), 1);
    drop(one);
    assert!(names(folder.path()).is_empty());
}

#[tokio::test]
async fn worker_with_removed_lock_counts_as_live() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (worker(folder.path()), worker(folder.path()));
    fs::remove_file(folder.path().join(format!("workers/{}.lock", second.worker_id()))).unwrap();
    assert!(first.reap_dead_workers().await.unwrap().live.contains(second.worker_id()));
    second.report(running(None)).await.unwrap();
    assert!(folder.path().join(format!("workers/{}.lock", second.worker_id())).exists());
    assert!(first.reap_dead_workers().await.unwrap().live.contains(second.worker_id()));
}

#[tokio::test]
async fn worker_record_is_not_rewritten_for_progress() {
    let folder = tempfile::tempdir().unwrap();
    let one = worker(folder.path());
    let path = folder.path().join(format!("workers/{}.json", one.worker_id()));
    one.report(running(Some(2_000_000_000))).await.unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let record: WorkerRecord = serde_json::from_str(&text).unwrap();
    assert_eq!(record.teammates["alice"].process_groups, [2_000_000_000]);
    assert!(!record.boot.is_empty() && record.uptime_ms > 0);
    let mut teammates = running(Some(2_000_000_000));
    teammates.get_mut("alice").unwrap().progress = brigade::domain::time::UnixMs(99);
    one.report(teammates.clone()).await.unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    teammates.get_mut("alice").unwrap().process_groups.clear();
    one.report(teammates).await.unwrap();
    assert_ne!(fs::read_to_string(&path).unwrap(), text);
}

#[tokio::test]
async fn invalid_worker_record_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let one = worker(folder.path());
    fs::write(folder.path().join("workers/1-2-3.json"), "{\"half").unwrap();
    fs::write(folder.path().join("workers/4-5-6.lock"), "").unwrap();
    // The sample of the contracts: from another machine, and not provably from this one.
    fs::write(folder.path().join("workers/4021-88213-5f0c9e2b.json"), include_str!("../contracts/worker.json"))
        .unwrap();
    let survey = one.reap_dead_workers().await.unwrap();
    assert_eq!(survey.dead.len(), 1);
    assert_eq!((survey.live.len(), names(folder.path()).len()), (1, 2));
}

#[tokio::test]
async fn planted_worker_record_kills_no_process() {
    let folder = tempfile::tempdir().unwrap();
    let one = worker(folder.path());
    let mut child = Command::new("sleep").arg("60").env_remove(WORKER_VARIABLE).process_group(0).spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    let guard = GuardProcess { pid, started_ms: processes::process(pid).unwrap().started_ms };
    let own = fs::read_to_string(folder.path().join(format!("workers/{}.json", one.worker_id()))).unwrap();
    let own: WorkerRecord = serde_json::from_str(&own).unwrap();
    // All facts about this machine are right in it: the boot, the host, the time.
    let mut teammates = running(Some(pid));
    teammates.get_mut("alice").unwrap().guards.push(guard);
    let planted = WorkerRecord { worker: "999999-1-0000abcd".into(), teammates, uptime_ms: u64::MAX, ..own };
    let text = serde_json::to_string(&planted).unwrap();
    fs::write(folder.path().join("workers/999999-1-0000abcd.json"), &text).unwrap();
    // Under another name it would replace the record of another worker.
    fs::write(folder.path().join("workers/1-1-1.json"), &text).unwrap();
    let survey = one.reap_dead_workers().await.unwrap();
    assert!(child.try_wait().unwrap().is_none(), "a planted record ended the process");
    assert_eq!(survey.dead.iter().map(|record| &*record.worker).collect::<Vec<_>>(), ["999999-1-0000abcd"]);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test]
async fn second_lead_error_names_team_and_pid() {
    let folder = tempfile::tempdir().unwrap();
    let files = real();
    assert_eq!(current_leader(&*files, folder.path()).unwrap(), None);
    let leadership = lead(folder.path(), "my-team").unwrap();
    let leader = current_leader(&*files, folder.path()).unwrap().unwrap();
    assert_eq!((leader.team.as_str(), leader.pid), ("my-team", std::process::id()));
    match lead(folder.path(), "other") {
        Err(StoreError::AlreadyLed { team, pid }) => assert_eq!((team.as_str(), pid), ("my-team", std::process::id())),
        other => panic!("{:?}", other.err()),
    }
    drop(leadership);
    eventually("no process leads", async || current_leader(&*files, folder.path()).unwrap().is_none()).await;
    eventually("the workspace can be led again", async || lead(folder.path(), "other").is_ok()).await;
}

#[tokio::test]
async fn reading_leader_blocks_no_lead() {
    let folder = tempfile::tempdir().unwrap();
    drop(lead(folder.path(), "t").unwrap());
    let path = folder.path().to_owned();
    let asking = std::thread::spawn(move || {
        for _ in 0..300 {
            current_leader(&*real(), &path).unwrap();
        }
    });
    for _ in 0..30 {
        drop(lead(folder.path(), "t").unwrap());
    }
    asking.join().unwrap();
}

#[tokio::test]
async fn leader_lock_or_record_alone_excludes_others() {
    let folder = tempfile::tempdir().unwrap();
    let (files, team) = (real(), folder.path().join(".team"));
    let leadership = Arc::new(lead(folder.path(), "my-team").unwrap());
    let worker = FileWorkers::register(real(), clock(), &team, "my-team").unwrap().as_leader(&leadership);
    assert_eq!(worker.leader_status().await.unwrap(), LeaderStatus::Held);
    for removed in ["lead.lock", "lead.json"] {
        fs::remove_file(team.join(removed)).unwrap();
        assert!(lead(folder.path(), "other").is_err(), "{removed}: two processes lead");
        assert!(current_leader(&*files, folder.path()).unwrap().is_some(), "{removed}");
        assert_eq!(worker.leader_status().await.unwrap(), LeaderStatus::Renewed, "{removed}");
        assert_eq!(current_leader(&*files, folder.path()).unwrap().unwrap().team, "my-team", "{removed}");
        assert_eq!(worker.leader_status().await.unwrap(), LeaderStatus::Held, "{removed}");
    }
    // Both: they are made again at the next check, unless another process made them first.
    fs::remove_dir_all(&team).unwrap();
    assert_eq!(worker.leader_status().await.unwrap(), LeaderStatus::Renewed);
    assert!(matches!(lead(folder.path(), "other").err(), Some(StoreError::AlreadyLed { .. })));
    fs::remove_dir_all(&team).unwrap();
    let other = lead(folder.path(), "other").unwrap();
    let lost = LeaderStatus::Lost { team: "other".into(), pid: std::process::id() };
    assert_eq!(worker.leader_status().await.unwrap(), lost);
    drop((worker, leadership));
    assert_eq!(
        current_leader(&*files, folder.path()).unwrap().unwrap().team,
        "other",
        "the former lead removed the record"
    );
    drop(other);
}

#[tokio::test]
async fn stray_leader_lock_error_names_holder() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join(".team")).unwrap();
    // A clone contained a record too.
    fs::write(folder.path().join(".team/lead.json"), "{\"team\": \"planted\", \"pid\": 1}").unwrap();
    let stranger = real().hold(&folder.path().join(".team/lead.lock")).unwrap().unwrap();
    let planted = current_leader(&*real(), folder.path()).unwrap().unwrap();
    assert_eq!((planted.pid, planted.is_running()), (1, None), "the process may not be signalled");
    fs::remove_file(folder.path().join(".team/lead.json")).unwrap();
    let error = lead(folder.path(), "t").err().unwrap().to_string();
    let holder = format!("process {} (", std::process::id());
    assert!(error.contains("lead.lock") && error.contains(&holder), "{error}");
    drop(stranger);
    lead(folder.path(), "t").unwrap();
}

#[tokio::test]
async fn leader_detects_loss_and_moved_workspace() {
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("workspace");
    fs::create_dir(&folder).unwrap();
    let leadership = Arc::new(lead(&folder, "first").unwrap());
    let lead = FileWorkers::register(real(), clock(), &folder.join(".team"), "first").unwrap().as_leader(&leadership);
    // A program without support for records, such as an older Brigade, took the lock's file after its removal.
    fs::remove_file(folder.join(".team/lead.lock")).unwrap();
    let other = real().hold(&folder.join(".team/lead.lock")).unwrap().unwrap();
    assert_eq!(lead.leader_status().await.unwrap(), LeaderStatus::Held, "its record does not keep other leads out");
    fs::write(folder.join(".team/lead.json"), "{\"team\": \"second\", \"pid\": 7}").unwrap();
    assert_eq!(lead.leader_status().await.unwrap(), LeaderStatus::Lost { team: "second".into(), pid: 7 });
    drop(other);
    fs::rename(&folder, outer.path().join("moved")).unwrap();
    assert_eq!(lead.leader_status().await.unwrap(), LeaderStatus::NoWorkspace);
    fs::create_dir(&folder).unwrap();
    assert_eq!(
        lead.leader_status().await.unwrap(),
        LeaderStatus::NoWorkspace,
        "another folder of the same name counts as the workspace"
    );
}

#[tokio::test]
async fn worker_without_files_counts_as_live() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (worker(folder.path()), worker(folder.path()));
    fs::remove_dir_all(folder.path().join("workers")).unwrap();
    let ids =
        vec![second.worker_id().to_owned(), "999999-1-0000abcd".to_owned(), "lease:zoe".to_owned(), "x".to_owned()];
    let living = first.live_without_record(ids.clone()).await.unwrap();
    assert_eq!(living.into_iter().collect::<Vec<_>>(), [second.worker_id()]);
    // The next report makes a new record; then locks show whether the worker runs.
    second.report(running(None)).await.unwrap();
    assert!(folder.path().join(format!("workers/{}.json", second.worker_id())).exists());
    assert!(first.reap_dead_workers().await.unwrap().live.contains(second.worker_id()));
    assert!(first.live_without_record(ids).await.unwrap().is_empty());
}
