//! Workers: locks show which ones run, and the processes of dead ones are ended.

#![cfg(target_os = "linux")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use brigade::domain::task::claim_queue::TaskScope;
use brigade::domain::task::transition::{Actor, ActorKind};
use brigade::domain::task::{NewTask, TaskId};
use brigade::domain::team::phase::ClaimRef;
use brigade::domain::team::records::{GuardProcess, LeadRecord, WorkerRecord, WorkerTeammate};
use brigade::platform::processes;
use brigade::ports::{
    Board, Claimant, Clock, CurrentLead, LeadHolder, LeadershipCheck, ReclaimRequest, StoreError, WorkerSurvey, Workers,
};
use brigade::sandbox::WORKER_VARIABLE;
use brigade::service;
use brigade::stores::file::workers::leader_lock::{LeaderLock, acquire_leader_lock, current_lead};
use brigade::stores::file::workers::{FileWorkers, ProcessId};
use brigade::stores::memory::board::MemoryBoard;

use crate::stores::support::{changes, clock, real, store_fixtures};
use crate::testkit::clock::ManualClock;
use crate::testkit::process::eventually;

fn worker(team: &Path) -> FileWorkers {
    FileWorkers::register(&ProcessId::own(), real(), clock(), team, "t").unwrap()
}

/// Leads as this process.
fn lead(workspace: &Path, team: &str) -> Result<LeaderLock, StoreError> {
    acquire_leader_lock(real(), workspace, &ProcessId::own(), team)
}

/// The team and the process id of the lead.
fn leading(workspace: &Path) -> Option<(String, u32)> {
    match current_lead(&*real(), workspace).unwrap() {
        CurrentLead::Known(lead) => Some((lead.team, lead.pid)),
        _ => None,
    }
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

async fn survey(workers: &dyn Workers) -> WorkerSurvey {
    workers.survey(&BTreeSet::new()).await.unwrap()
}

async fn is_live(workers: &FileWorkers, other: &FileWorkers) -> bool {
    survey(workers).await.live.contains_key(other.worker_id())
}

/// Waits until a survey finds this worker dead. A child of another test keeps the lock until it executes its program.
async fn wait_for_death(workers: &FileWorkers, id: &str) {
    eventually("the worker is dead", async || survey(workers).await.dead.contains_key(id)).await;
}

async fn end_dead(workers: &FileWorkers) {
    service::workers::end_dead(workers, &BTreeSet::new()).await.unwrap();
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
    for fixture in store_fixtures().await {
        let workers = &fixture.stores.workers;
        workers.renew(running(None)).await.unwrap();
        let survey = survey(workers.as_ref()).await;
        assert!(survey.live.contains_key(workers.worker_id()) && survey.dead.is_empty(), "{}", fixture.kind);
    }
}

#[tokio::test]
async fn dead_worker_is_reported_until_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (worker(folder.path()), worker(folder.path()));
    assert!(is_live(&first, &second).await && is_live(&second, &first).await);
    let (mut child, group) = command();
    let dead = {
        let third = worker(folder.path());
        third.renew(running(Some(group))).await.unwrap();
        assert!(is_live(&first, &third).await);
        third.worker_id().to_owned()
    };
    // It had a command running, so its record stays, and its lock is free.
    wait_for_death(&first, &dead).await;
    assert!(survey(&second).await.dead[&dead].is_some());
    assert!(child.try_wait().unwrap().is_none(), "a survey ended its command");
    end_dead(&first).await;
    assert!(!child.wait().unwrap().success(), "its command was not ended");
    assert!(survey(&second).await.dead.is_empty());
    assert_eq!(names(folder.path()).len(), 4, "a file is left: {:?}", names(folder.path()));
    first.remove(second.worker_id()).await.unwrap();
    first.remove(&dead).await.unwrap();
    assert!(is_live(&first, &second).await, "a live worker was removed");
}

#[tokio::test]
async fn commands_of_dead_worker_end_before_its_claims() {
    let folder = tempfile::tempdir().unwrap();
    let board = MemoryBoard::new(clock(), changes());
    let task = NewTask { subject: "one".into(), ..NewTask::default() };
    board.create(&Actor::new("lead", ActorKind::Lead), vec![task], false).await.unwrap();
    let path = folder.path().join("alive");
    let script = format!("trap '' TERM; while :; do date +%s%N > {}; sleep 0.02; done", path.display());
    let mut child = marked("sh").arg("-c").arg(script).process_group(0).spawn().unwrap();
    let group = i32::try_from(child.id()).unwrap();
    let dead = worker(folder.path());
    dead.renew(running(Some(group))).await.unwrap();
    let id = dead.worker_id().to_owned();
    let claimant = Claimant {
        name: "alice".into(),
        capabilities: Vec::new(),
        worker: id.clone(),
        lease: None,
        scope: TaskScope::All,
    };
    board.claim_next(&claimant).await.unwrap().unwrap();
    let other = worker(folder.path());
    let lost = async || service::workers::claims_of_dead(&board, &other).await.unwrap();
    assert_eq!(lost().await, [], "its worker lives");
    drop(dead);
    let waiting = std::thread::spawn(move || child.wait().unwrap());
    wait_for_death(&other, &id).await;
    assert_eq!(lost().await, [ClaimRef { task: TaskId(1), attempt: 1 }]);
    let last = fs::read_to_string(&path).unwrap_or_default();
    assert!(!waiting.join().unwrap().success());
    assert_eq!(fs::read_to_string(&path).unwrap_or_default(), last, "the command ran after its claim was lost");
}

#[tokio::test]
async fn worker_leaves_no_files_after_clean_exit() {
    let folder = tempfile::tempdir().unwrap();
    let looker = FileWorkers::open_read_only(real(), clock(), folder.path());
    assert!(survey(&looker).await.live.is_empty());
    let one = worker(folder.path());
    one.renew(running(None)).await.unwrap();
    assert_eq!(survey(&looker).await.live.len(), 1);
    drop(one);
    assert!(names(folder.path()).is_empty());
}

#[tokio::test]
async fn worker_with_removed_lock_counts_as_live() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (worker(folder.path()), worker(folder.path()));
    fs::remove_file(folder.path().join(format!("workers/{}.lock", second.worker_id()))).unwrap();
    assert!(is_live(&first, &second).await);
    second.renew(running(None)).await.unwrap();
    assert!(folder.path().join(format!("workers/{}.lock", second.worker_id())).exists());
    assert!(is_live(&first, &second).await);
}

#[tokio::test]
async fn worker_record_is_not_rewritten_for_progress() {
    let folder = tempfile::tempdir().unwrap();
    let one = worker(folder.path());
    let path = folder.path().join(format!("workers/{}.json", one.worker_id()));
    one.renew(running(Some(2_000_000_000))).await.unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let record: WorkerRecord = serde_json::from_str(&text).unwrap();
    assert_eq!(record.teammates["alice"].process_groups, [2_000_000_000]);
    assert!(!record.boot.is_empty() && record.uptime_ms > 0);
    let mut teammates = running(Some(2_000_000_000));
    teammates.get_mut("alice").unwrap().progress = brigade::domain::time::UnixMs(99);
    one.renew(teammates.clone()).await.unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    teammates.get_mut("alice").unwrap().process_groups.clear();
    one.renew(teammates).await.unwrap();
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
    let mut counts = (0, 0, 0);
    // A process that another test has just forked holds the locks of a survey until its exec.
    for _ in 0..100 {
        let survey = survey(&one).await;
        counts = (survey.live.len(), survey.dead.len(), survey.dead.values().flatten().count());
        if counts == (1, 3, 1) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(counts, (1, 3, 1));
    end_dead(&one).await;
    assert_eq!(names(folder.path()).len(), 2);
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
    let dead = survey(&one).await.dead;
    assert_eq!(dead.values().flatten().map(|record| &*record.worker).collect::<Vec<_>>(), ["999999-1-0000abcd"]);
    end_dead(&one).await;
    assert!(child.try_wait().unwrap().is_none(), "a planted record ended the process");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test]
async fn reused_pid_keeps_neither_claim_nor_lead_alive() {
    let (folder, workspace) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let one = worker(folder.path());
    // A dead worker had the pid of this process.
    let ProcessId { pid, started_ms } = ProcessId::own();
    let dead = format!("{pid}-{}-0000abcd", started_ms - 1);
    let board = MemoryBoard::new(clock(), changes());
    let task = NewTask { subject: "one".into(), ..NewTask::default() };
    board.create(&Actor::new("lead", ActorKind::Lead), vec![task], false).await.unwrap();
    let claimant = Claimant {
        name: "alice".into(),
        capabilities: Vec::new(),
        worker: dead.clone(),
        lease: None,
        scope: TaskScope::All,
    };
    board.claim_next(&claimant).await.unwrap().unwrap();
    let lost = async || service::workers::claims_of_dead(&board, &one).await.unwrap();
    assert_eq!(lost().await, [ClaimRef { task: TaskId(1), attempt: 1 }], "without a record");
    let record = |id: &str| folder.path().join(format!("workers/{id}.json"));
    let own: WorkerRecord = serde_json::from_str(&fs::read_to_string(record(one.worker_id())).unwrap()).unwrap();
    fs::write(record(&dead), serde_json::to_string(&WorkerRecord { worker: dead.clone(), ..own }).unwrap()).unwrap();
    let looker = FileWorkers::open_read_only(real(), clock(), folder.path());
    assert!(survey(&looker).await.dead.contains_key(&dead) && survey(&one).await.dead.contains_key(&dead));
    assert_eq!(lost().await, [ClaimRef { task: TaskId(1), attempt: 1 }], "with a record");
    // The same for the lead.
    let path = workspace.path().join(".team/lead.json");
    let former = lead(workspace.path(), "t").unwrap();
    let own: LeadRecord = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!((own.pid, own.started_ms), (pid, started_ms));
    drop(former);
    fs::write(&path, serde_json::to_string(&LeadRecord { started_ms: started_ms - 1, ..own }).unwrap()).unwrap();
    assert_eq!(leading(workspace.path()), None);
    lead(workspace.path(), "other").unwrap();
}

#[tokio::test]
async fn lease_of_other_program_holds_until_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let one = worker(folder.path());
    let clock = Arc::new(ManualClock::default());
    let board = MemoryBoard::new(Arc::clone(&clock) as Arc<dyn Clock>, changes());
    let task = NewTask { subject: "one".into(), ..NewTask::default() };
    board.create(&Actor::new("lead", ActorKind::Lead), vec![task], false).await.unwrap();
    let claimant = Claimant {
        name: "carol".into(),
        capabilities: Vec::new(),
        worker: "carol-session".into(),
        lease: Some(Duration::from_secs(60)),
        scope: TaskScope::All,
    };
    board.claim_next(&claimant).await.unwrap().unwrap();
    assert_eq!(service::workers::claims_of_dead(&board, &one).await.unwrap(), []);
    clock.advance(Duration::from_secs(60));
    let reclaimed = board.reclaim(&ReclaimRequest::default()).await.unwrap();
    assert_eq!(reclaimed.iter().map(|claim| claim.reason.as_str()).collect::<Vec<_>>(), ["its lease ran out"]);
}

#[tokio::test]
async fn reading_leader_blocks_no_lead() {
    let folder = tempfile::tempdir().unwrap();
    drop(lead(folder.path(), "t").unwrap());
    let path = folder.path().to_owned();
    let asking = std::thread::spawn(move || {
        for _ in 0..300 {
            current_lead(&*real(), &path).unwrap();
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
    let team = folder.path().join(".team");
    let leadership = lead(folder.path(), "my-team").unwrap();
    assert_eq!(leadership.check().unwrap(), LeadershipCheck::Held);
    for removed in ["lead.lock", "lead.json"] {
        fs::remove_file(team.join(removed)).unwrap();
        assert!(lead(folder.path(), "other").is_err(), "{removed}: two processes lead");
        let current = current_lead(&*real(), folder.path()).unwrap();
        assert!(!matches!(current, CurrentLead::None(_)), "{removed}");
        assert_eq!(leadership.check().unwrap(), LeadershipCheck::Restored, "{removed}");
        assert_eq!(leading(folder.path()).unwrap().0, "my-team", "{removed}");
        assert_eq!(leadership.check().unwrap(), LeadershipCheck::Held, "{removed}");
    }
    // Both: they are made again at the next check, unless another process made them first.
    fs::remove_dir_all(&team).unwrap();
    assert_eq!(leadership.check().unwrap(), LeadershipCheck::Restored);
    assert!(matches!(lead(folder.path(), "other").err(), Some(StoreError::AlreadyLed(_))));
    fs::remove_dir_all(&team).unwrap();
    let other = lead(folder.path(), "other").unwrap();
    let lost = LeadHolder { team: "other".into(), process: format!("pid {}", std::process::id()) };
    assert_eq!(leadership.check().unwrap(), LeadershipCheck::Lost(lost));
    drop(leadership);
    assert_eq!(leading(folder.path()).unwrap().0, "other", "the former lead removed the record");
    drop(other);
}

#[tokio::test]
async fn stray_leader_lock_error_names_holder() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join(".team")).unwrap();
    // A clone contained a record too.
    fs::write(folder.path().join(".team/lead.json"), "{\"team\": \"planted\", \"pid\": 1}").unwrap();
    let stranger = real().hold(&folder.path().join(".team/lead.lock")).unwrap().unwrap();
    assert_eq!(leading(folder.path()), Some(("planted".to_owned(), 1)));
    assert_eq!(processes::is_running(1, 0, ""), None, "the process may not be signalled");
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
    let lead = lead(&folder, "first").unwrap();
    // A program without support for records, such as an older Brigade, took the lock's file after its removal.
    fs::remove_file(folder.join(".team/lead.lock")).unwrap();
    let other = real().hold(&folder.join(".team/lead.lock")).unwrap().unwrap();
    assert_eq!(lead.check().unwrap(), LeadershipCheck::Held, "its record does not keep other leads out");
    fs::write(folder.join(".team/lead.json"), "{\"team\": \"second\", \"pid\": 7}").unwrap();
    assert_eq!(
        lead.check().unwrap(),
        LeadershipCheck::Lost(LeadHolder { team: "second".into(), process: "pid 7".into() })
    );
    drop(other);
    fs::rename(&folder, outer.path().join("moved")).unwrap();
    assert_eq!(lead.check().unwrap(), LeadershipCheck::NoWorkspace);
    fs::create_dir(&folder).unwrap();
    assert_eq!(
        lead.check().unwrap(),
        LeadershipCheck::NoWorkspace,
        "another folder of the same name counts as the workspace"
    );
}

#[tokio::test]
async fn worker_without_files_counts_as_live() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (worker(folder.path()), worker(folder.path()));
    fs::remove_dir_all(folder.path().join("workers")).unwrap();
    let claimants = BTreeSet::from([second.worker_id(), "999999-1-0000abcd", "lease:zoe", "x"].map(str::to_owned));
    let live = first.survey(&claimants).await.unwrap().live;
    assert_eq!(
        live.keys().collect::<BTreeSet<_>>(),
        [first.worker_id(), second.worker_id()].map(str::to_owned).iter().collect()
    );
    // The next report makes a new record; then locks show whether the worker runs.
    second.renew(running(None)).await.unwrap();
    assert!(folder.path().join(format!("workers/{}.json", second.worker_id())).exists());
    assert!(is_live(&first, &second).await);
}
