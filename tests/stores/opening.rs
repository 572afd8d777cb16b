//! Opening a workspace: permissions, notices, and hints about changes by other processes.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::time::Instant;

use brigade::domain::task::NewTask;
use brigade::domain::task::transition::{Actor, ActorKind};
use brigade::domain::team::approval::{Request, RequestKind};
use brigade::domain::team::message::{Message, MessageType};
use brigade::domain::team::name::Name;
use brigade::domain::team::state::{DesiredStateChange, Mode, SetBy, StateUpdate};
use brigade::domain::time::UnixMs;
use brigade::ports::{CurrentLead, StoreChange, StoreError, Stores};
use brigade::stores::file::LOCK_FILES;
use brigade::stores::workspace::{FILE, OpenMode};
use tokio::sync::broadcast::Receiver;

use crate::stores::support::{lead, options};
use crate::testkit::process::WAIT_TIME_MAX;

/// Waits for this hint and skips all others.
async fn hint(changes: &mut Receiver<StoreChange>, wanted: &StoreChange) {
    let wait = async {
        loop {
            match changes.recv().await.unwrap() {
                change if change == *wanted => return,
                _ => {}
            }
        }
    };
    tokio::time::timeout(WAIT_TIME_MAX, wait).await.unwrap_or_else(|_| panic!("no hint of {wanted:?}"));
}

#[tokio::test]
async fn second_lead_is_refused_but_other_processes_may_act() {
    let folder = tempfile::tempdir().unwrap();
    let first = FILE.open(folder.path(), lead()).await.unwrap();
    let refused = FILE.open(folder.path(), lead()).await.err().unwrap();
    assert!(matches!(refused, StoreError::AlreadyLed { .. }), "{refused}");
    let beside = FILE.open(folder.path(), options(OpenMode::Write)).await.unwrap();
    first.stores.mailbox.open_inboxes(&[Name::new("alice").unwrap()]).await.unwrap();
    let message = Message::new(MessageType::Message, "human", "hello", UnixMs(0));
    beside.stores.mailbox.send("alice", message).await.unwrap();
    assert_eq!(first.stores.mailbox.recipients_with_mail().await.unwrap(), ["alice"]);
    assert_eq!(beside.stores.workers.survey(&BTreeSet::new()).await.unwrap().live.len(), 1);
    let current = beside.stores.leadership.current().await.unwrap();
    assert!(matches!(&current, CurrentLead::Known(lead) if lead.team == "my-team"), "{current:?}");
    drop(first);
    assert_eq!(beside.stores.leadership.current().await.unwrap(), CurrentLead::None(None));
    FILE.open(folder.path(), lead()).await.unwrap();
}

#[tokio::test]
async fn lock_files_exist_at_open_and_match_list() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let workspace = FILE.open(folder.path(), lead()).await.unwrap();
    for file in LOCK_FILES {
        let about = fs::metadata(folder.path().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert_eq!(about.permissions().mode() & 0o777, 0o600, "{file}");
    }
    // No store call creates another one.
    let Stores { mailbox, state, roster, requests, board, .. } = &workspace.stores;
    mailbox.open_inboxes(&[Name::new("alice").unwrap()]).await.unwrap();
    mailbox.send("alice", Message::new(MessageType::Message, "human", "hello", UnixMs(0))).await.unwrap();
    mailbox.take("alice", &HashSet::new()).await.unwrap();
    let desired = DesiredStateChange { mode: Mode::Pause, by: SetBy::Person, note: String::new(), only_if: None };
    state.update(StateUpdate { desired: Some(desired), ..StateUpdate::default() }).await.unwrap();
    roster.report("t", &[]).await.unwrap();
    requests.record(Request::new("r", RequestKind::Shutdown, "lead", "alice", UnixMs(1))).await.unwrap();
    board
        .create(
            &Actor::new("human", ActorKind::Person),
            vec![NewTask { subject: "one".into(), ..NewTask::default() }],
            false,
        )
        .await
        .unwrap();
    let mut paths = BTreeSet::new();
    let mut folders = vec![folder.path().to_owned()];
    while let Some(inside) = folders.pop() {
        for entry in fs::read_dir(inside).unwrap().map(|entry| entry.unwrap().path()) {
            let relative = entry.strip_prefix(folder.path()).unwrap().to_string_lossy().into_owned();
            if entry.is_dir() {
                folders.push(entry);
            } else if relative.ends_with("lock") && !relative.starts_with(".team/workers") {
                paths.insert(relative);
            }
        }
    }
    assert_eq!(paths, LOCK_FILES.map(str::to_owned).into());
}

#[tokio::test]
async fn read_only_open_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let looker = FILE.open(folder.path(), options(OpenMode::ReadOnly)).await.unwrap();
    assert_eq!(looker.stores.state.read().await.unwrap(), None);
    assert!(looker.stores.roster.read().await.unwrap().is_empty());
    assert!(looker.stores.mailbox.recipients_with_mail().await.unwrap().is_empty());
    assert!(looker.stores.mailbox.peek("human").await.unwrap().is_empty());
    assert!(looker.stores.transcripts.load("alice").await.unwrap().is_empty());
    assert!(looker.stores.workers.survey(&BTreeSet::new()).await.unwrap().live.is_empty());
    assert!(looker.stores.board.view().await.unwrap().tasks.is_empty());
    assert!(fs::read_dir(folder.path()).unwrap().next().is_none());
}

#[tokio::test]
async fn newer_format_is_refused_in_every_mode() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join(".team")).unwrap();
    fs::write(folder.path().join(".team/FORMAT"), "2\n").unwrap();
    for mode in [OpenMode::Lead { team: "t".into() }, OpenMode::Write, OpenMode::ReadOnly] {
        let refused = FILE.open(folder.path(), options(mode)).await.err().unwrap();
        assert!(matches!(refused, StoreError::NewerFormat { version: 2, .. }), "{refused}");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_by_other_program_sends_notice() {
    let folder = tempfile::tempdir().unwrap();
    let workspace = FILE.open(folder.path(), lead()).await.unwrap();
    assert!(workspace.warnings.is_empty(), "{:?}", workspace.warnings);
    let mut changes = workspace.stores.changes.subscribe();
    let path = folder.path();
    for round in 0..3 {
        // In place, as a program without locks writes.
        fs::write(
            path.join(".tasks/task_7.json"),
            format!("{{\"id\": 7, \"subject\": \"{round}\", \"status\": \"pending\"}}"),
        )
        .unwrap();
        hint(&mut changes, &StoreChange::Board).await;
        fs::write(path.join(".team/inbox/alice.jsonl"), "{\"content\": \"x\"}\n").unwrap();
        hint(&mut changes, &StoreChange::Mail("alice".into())).await;
        fs::write(path.join("x.tmp"), "{\"desired_state\": \"pause\"}").unwrap();
        fs::rename(path.join("x.tmp"), path.join("agent_state.json")).unwrap();
        hint(&mut changes, &StoreChange::State).await;
        fs::rename(path.join(".tasks/task_7.json"), path.join("away")).unwrap();
        hint(&mut changes, &StoreChange::Board).await;
    }
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn irrelevant_files_send_no_notice_and_bursts_merge() {
    let folder = tempfile::tempdir().unwrap();
    let workspace = FILE.open(folder.path(), lead()).await.unwrap();
    let mut changes = workspace.stores.changes.subscribe();
    let path = folder.path();
    for number in 0..200 {
        fs::write(path.join(format!("file{number}")), "x").unwrap();
        fs::write(path.join(".tasks/.highwatermark"), "x").unwrap();
        fs::write(path.join(".team/inbox/.lock"), "").unwrap();
        fs::write(path.join(".team/inbox/bob.jsonl"), "").unwrap();
    }
    fs::write(path.join(".tasks/task_9.json"), "{").unwrap();
    // Events arrive in order: after this one, all others have arrived.
    let mut seen = Vec::new();
    while seen.last() != Some(&StoreChange::Board) {
        seen.push(tokio::time::timeout(WAIT_TIME_MAX, changes.recv()).await.unwrap().unwrap());
    }
    assert_eq!(seen, [StoreChange::Board]);
    let started_at = Instant::now();
    for number in 0..1000 {
        fs::write(path.join(".tasks/task_9.json"), number.to_string()).unwrap();
    }
    fs::write(path.join(".team/inbox/alice.jsonl"), "{}\n").unwrap();
    let mut hints: u128 = 0;
    while changes.recv().await.unwrap() != StoreChange::Mail("alice".into()) {
        hints += 1;
    }
    let most = started_at.elapsed().as_millis() / 4 + 2;
    assert!(hints <= most, "{hints} hints, more than one in 4 ms ({most})");
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recreated_folder_is_watched_again() {
    let folder = tempfile::tempdir().unwrap();
    let workspace = FILE.open(folder.path(), lead()).await.unwrap();
    let mut changes = workspace.stores.changes.subscribe();
    let board = folder.path().join(".tasks");
    fs::remove_dir_all(&board).unwrap();
    hint(&mut changes, &StoreChange::Everything).await;
    fs::create_dir(&board).unwrap();
    hint(&mut changes, &StoreChange::Everything).await;
    fs::write(board.join("task_1.json"), "{").unwrap();
    hint(&mut changes, &StoreChange::Board).await;
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_threads_end_with_workspace() {
    let watchers = || {
        fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok())
            .filter(|name| name.starts_with("brigade-watch"))
            .count()
    };
    let folder = tempfile::tempdir().unwrap();
    let before = FILE.open(folder.path(), lead()).await.unwrap();
    // A thread sets its name after its start.
    crate::testkit::process::eventually("a watcher runs", async || watchers() >= 1).await;
    drop(before);
    // Other tests have watchers too: the number must only not grow.
    for _ in 0..20 {
        drop(FILE.open(folder.path(), lead()).await.unwrap());
    }
    crate::testkit::process::eventually("the watchers end", async || watchers() < 12).await;
}
