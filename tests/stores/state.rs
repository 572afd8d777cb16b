//! The shared state file with outside writers that take no locks.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use brigade::domain::team::phase::ReportedPhase;
use brigade::domain::team::state::{
    DesiredStateChange, Mode, SetBy, SharedState, StatePrecondition, StateReport, StateUpdate, TeammateReport,
};
use brigade::ports::{StateStore, StoreChange};
use brigade::stores::file::Durability;
use brigade::stores::file::exchange_file::{ExchangeFile, SETTLE_TIME};
use brigade::stores::file::state::FileState;
use brigade::stores::workspace::{FILE, OpenMode};
use serde_json::{Value, json};

use crate::stores::support::{changes, clock, lead, options, real, state_store, store_fixtures};
use crate::testkit::fault_injection::{CallFault, FaultyFileSystem};
use crate::testkit::process::{WAIT_TIME_MAX, eventually};

const TRUNCATED: &str = include_str!("../contracts/agent_state_truncated.json");

fn report(current: Mode, tokens: u64) -> StateUpdate {
    let teammate = TeammateReport {
        role: "coder".into(),
        phase: ReportedPhase::Work,
        task: None,
        attempt: None,
        since: "2025-11-21T09:14:58.001Z".into(),
        heartbeat: "2025-11-21T09:15:02.100Z".into(),
        tokens,
        cost_usd: 0.1,
        waiting_for: None,
        fallback: None,
    };
    let teammates = Arc::new(BTreeMap::from([("alice".to_owned(), Arc::new(teammate))]));
    StateUpdate {
        report: Some(StateReport {
            team: "t".into(),
            current: Some(current),
            teammates,
            lead: None,
            waiting_for: None,
        }),
        desired: None,
    }
}

fn set(mode: Mode, only_if: Option<Mode>) -> StateUpdate {
    let only_if = only_if.map(StatePrecondition::Mode);
    let desired = DesiredStateChange { mode, by: SetBy::Brigade, note: "done".into(), only_if };
    StateUpdate { report: None, desired: Some(desired) }
}

/// The content that a second program writes: the whole file, with outdated fields of the team.
fn click(number: u64) -> String {
    let mode = Mode::ALL[usize::try_from(number % 4).unwrap()];
    json!({
        "desired_state": mode, "current_state": "pause", "timestamp": "2025-10-15T22:39:14.372Z", "setBy": "human",
        "note": number.to_string(), "theirs": {"n": number},
    })
    .to_string()
}

#[derive(Clone, Copy, Debug)]
enum Writer {
    Rename,
    InPlace,
}

impl Writer {
    fn write(self, workspace: &Path, text: &str) {
        let path = workspace.join("agent_state.json");
        match self {
            Self::InPlace => fs::write(path, text).unwrap(),
            Self::Rename => {
                let temporary = workspace.join("their.tmp");
                fs::write(&temporary, text).unwrap();
                fs::rename(temporary, path).unwrap();
            }
        }
    }
}

fn note(state: &SharedState) -> Option<u64> {
    state.note.parse().ok()
}

fn on_disk(workspace: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(workspace.join("agent_state.json")).ok()?).ok()
}

/// Bursts of clicks at full speed, while reports and session ends are written at full speed. After each burst its last
/// click is in effect, no click returns after a later one, and the team's own fields are correct again.
async fn click_and_report(writer: Writer) {
    const BURSTS: u64 = 40;
    const CLICKS: u64 = 25;
    /// The least number of reports during the clicks, on any machine.
    const REPORTS: u64 = 100;
    let folder = tempfile::tempdir().unwrap();
    let workspace: PathBuf = folder.path().to_owned();
    let store = Arc::new(state_store(&workspace, Durability::Process));
    store.update(report(Mode::RunOnce, 0)).await.unwrap();
    let (is_over, reports) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let reporting = tokio::spawn(report_at_full_speed(Arc::clone(&store), Arc::clone(&is_over), Arc::clone(&reports)));
    for burst in (0..).take_while(|burst| *burst < BURSTS || reports.load(Ordering::SeqCst) < REPORTS) {
        let clicks = burst * CLICKS + 1..=(burst + 1) * CLICKS;
        let (last, workspace) = (*clicks.end(), workspace.clone());
        let outside = tokio::task::spawn_blocking(move || {
            for number in clicks {
                writer.write(&workspace, &click(number));
                std::thread::sleep(Duration::from_micros(number % 5 * 60));
            }
        });
        outside.await.unwrap();
        eventually(&format!("{writer:?}: click {last} stands"), async || {
            let state = store.read().await.unwrap().unwrap();
            let theirs: Option<Value> = state.document.get("theirs").unwrap();
            let is_theirs = theirs == Some(json!({"n": last}));
            is_theirs && (note(&state) == Some(last) || state.note == "done") && state.document.contains("teammates")
        })
        .await;
    }
    is_over.store(true, Ordering::SeqCst);
    reporting.await.unwrap();
}

async fn report_at_full_speed(store: Arc<impl StateStore>, is_over: Arc<AtomicBool>, count: Arc<AtomicU64>) {
    let mut newest_seen = 0;
    while !is_over.load(Ordering::SeqCst) {
        let reports = count.fetch_add(1, Ordering::SeqCst) + 1;
        // Session ends compete with the clicks too, and never override one. A change of the current state is written at
        // once.
        let update = match reports % 5 {
            0 => set(Mode::Pause, Some(Mode::RunOnce)),
            1 => report(Mode::Continuous, reports),
            _ => report(Mode::RunOnce, reports),
        };
        let updated = store.update(update).await.unwrap();
        let read = store.read().await.unwrap().unwrap();
        for seen in [note(&updated), note(&read)].into_iter().flatten() {
            assert!(seen >= newest_seen, "click {seen} came back after {newest_seen}");
            newest_seen = seen;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fast_state_changes_by_rename_are_not_lost() {
    click_and_report(Writer::Rename).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fast_state_changes_in_place_are_not_lost() {
    click_and_report(Writer::InPlace).await;
}

/// A writer may have opened the file before the exchange, and write into it afterwards.
#[tokio::test]
async fn state_written_into_displaced_file_is_found() {
    for (wait_ms, later_click) in [(0, false), (300, false), (700, false), (300, true)] {
        while !late_write_is_found(Duration::from_millis(wait_ms), later_click).await {
            println!("the machine is busy: the file was written too late, again");
        }
    }
}

/// Returns false if this test was too slow: a displaced file is watched for a limited time.
async fn late_write_is_found(wait: Duration, later_click: bool) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent_state.json");
    fs::write(&path, click(1)).unwrap();
    let store = state_store(folder.path(), Durability::Process);
    let mut file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let started_at = Instant::now();
    store.update(report(Mode::RunOnce, 1)).await.unwrap();
    tokio::time::sleep(wait).await;
    file.set_len(0).unwrap();
    file.write_all(click(2).as_bytes()).unwrap();
    drop(file);
    if started_at.elapsed() >= SETTLE_TIME {
        return false;
    }
    let expected = if later_click {
        Writer::Rename.write(folder.path(), &click(3));
        3
    } else {
        2
    };
    eventually("the latest click is in effect", async || {
        let state = store.read().await.unwrap().unwrap();
        note(&state) == Some(expected) && state.current == Mode::RunOnce
    })
    .await;
    eventually("no displaced file is left", async || {
        fs::read_dir(folder.path().join(".team/aside")).unwrap().count() == 0
    })
    .await;
    assert_eq!(note(&store.read().await.unwrap().unwrap()), Some(expected));
    true
}

/// The process is killed between the exchange and the check of the displaced file, or while that file is moved.
#[tokio::test]
async fn state_change_unseen_by_killed_process_is_found() {
    for into_old_file in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent_state.json");
        fs::write(&path, click(1)).unwrap();
        let mut old = fs::OpenOptions::new().write(true).open(&path).unwrap();
        // The calls of an update of an existing file; the kill comes after the exchange at the earliest.
        let calls = (1..40).rev();
        for call in calls {
            let dying = Arc::new(FaultyFileSystem::new(real(), CallFault::CrashBefore(call)));
            let team = folder.path().join(".team");
            let file = ExchangeFile::new(
                dying,
                Durability::Process,
                folder.path(),
                "agent_state.json",
                &team,
                FileState::is_valid,
            );
            let store = FileState::new(file, clock(), changes(), true);
            let _ = store.update(set(Mode::Pause, None)).await;
        }
        if into_old_file {
            old.set_len(0).unwrap();
            old.write_all(click(2).as_bytes()).unwrap();
        }
        let expected = if into_old_file { "2" } else { "done" };
        let store = state_store(folder.path(), Durability::Process);
        store.update(report(Mode::RunOnce, 1)).await.unwrap();
        eventually("the latest change is in effect", async || {
            let state = store.read().await.unwrap().unwrap();
            state.note == expected && state.document.contains("teammates")
        })
        .await;
        eventually("no displaced file is left", async || {
            fs::read_dir(folder.path().join(".team/aside")).unwrap().count() == 0
        })
        .await;
        assert_eq!(store.read().await.unwrap().unwrap().note, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_state_fields_of_other_writers_are_corrected() {
    for with_events in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let workspace = FILE.open(folder.path(), lead()).await.unwrap();
        let store: Arc<dyn StateStore> = if with_events {
            workspace.stores.state.clone()
        } else {
            Arc::new(state_store(folder.path(), Durability::Process))
        };
        store.update(report(Mode::RunOnce, 77)).await.unwrap();
        for number in 1..=20 {
            let writer = if number % 2 == 0 { Writer::InPlace } else { Writer::Rename };
            writer.write(folder.path(), &click(number));
            let started_at = Instant::now();
            loop {
                let state = on_disk(folder.path()).unwrap_or_default();
                if state["teammates"]["alice"]["tokens"] == 77 && state["current_state"] == "run_once" {
                    assert_eq!(state["note"], number.to_string());
                    assert_eq!(state["theirs"]["n"], number);
                    break;
                }
                assert!(started_at.elapsed() < WAIT_TIME_MAX, "the report was not corrected");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
}

#[tokio::test]
async fn state_round_trips_in_every_store() {
    for fixture in store_fixtures().await {
        let store = &fixture.stores.state;
        assert_eq!(store.read().await.unwrap(), None, "{}", fixture.kind);
        let updated = store.update(report(Mode::RunOnce, 5)).await.unwrap();
        assert_eq!((updated.desired, updated.current), (Mode::Pause, Mode::RunOnce), "{}", fixture.kind);
        assert_eq!(store.update(set(Mode::Continuous, Some(Mode::RunOnce))).await.unwrap().desired, Mode::Pause);
        assert_eq!(store.update(set(Mode::Continuous, Some(Mode::Pause))).await.unwrap().desired, Mode::Continuous);
        let state = store.read().await.unwrap().unwrap();
        assert_eq!((state.desired, state.current, state.note.as_str()), (Mode::Continuous, Mode::RunOnce, "done"));
        let StateUpdate { report: Some(told), .. } = report(Mode::RunOnce, 9) else { unreachable!() };
        let answer = store.update(report(Mode::RunOnce, 9)).await.unwrap();
        assert!(answer.contains_report(&told), "{}: the answer lacks the report that is written later", fixture.kind);
        eventually("the report is written", async || store.read().await.unwrap().unwrap().contains_report(&told)).await;
    }
}

#[tokio::test]
async fn state_reports_are_rate_limited_and_last_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let store = state_store(folder.path(), Durability::Process);
    store.update(report(Mode::RunOnce, 0)).await.unwrap();
    let started_at = Instant::now();
    let mut writes = 0;
    let mut last = None;
    for tokens in 1..=2000 {
        store.update(report(Mode::RunOnce, tokens)).await.unwrap();
        let now = fs::metadata(folder.path().join("agent_state.json")).unwrap().modified().unwrap();
        writes += u128::from(last.replace(now) != Some(now));
        if started_at.elapsed() > Duration::from_millis(1200) {
            break;
        }
    }
    let most = started_at.elapsed().as_millis() / 250 + 2;
    assert!(writes <= most, "{writes} writes in {:?}", started_at.elapsed());
    drop(store);
    eventually("the last report is in the file", async || {
        let file = on_disk(folder.path()).unwrap();
        file["teammates"]["alice"]["tokens"].as_u64() > Some(1)
    })
    .await;
}

#[tokio::test]
async fn pending_state_report_is_written_on_drop() {
    let folder = tempfile::tempdir().unwrap();
    let store = state_store(folder.path(), Durability::Process);
    for tokens in 0..=30 {
        store.update(report(Mode::RunOnce, tokens)).await.unwrap();
    }
    drop(store);
    eventually("the report is written", async || on_disk(folder.path()).unwrap()["teammates"]["alice"]["tokens"] == 30)
        .await;
}

#[tokio::test]
async fn torn_state_is_awaited() {
    while !late_rest_is_awaited().await {
        println!("the machine is busy: the rest was written too late, again");
    }
}

/// Returns false if this test was too slow: a torn file counts as invalid after a time.
async fn late_rest_is_awaited() -> bool {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent_state.json");
    let started_at = Instant::now();
    fs::write(&path, TRUNCATED).unwrap();
    let store = Arc::new(state_store(folder.path(), Durability::Process));
    let reading = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.read().await.unwrap().unwrap() }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let was_read = reading.is_finished();
    fs::write(&path, click(1)).unwrap();
    if started_at.elapsed() >= SETTLE_TIME {
        return false;
    }
    assert!(!was_read, "a torn file was read");
    assert_eq!(note(&reading.await.unwrap()), Some(1));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "a second file is left");
    true
}

#[tokio::test]
async fn invalid_state_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent_state.json");
    let store = state_store(folder.path(), Durability::Process);
    for round in 1..=7 {
        let broken = format!("{TRUNCATED} {round}");
        fs::write(&path, &broken).unwrap();
        let started_at = Instant::now();
        let state = store.read().await.unwrap().unwrap();
        assert!(started_at.elapsed() >= Duration::from_millis(900), "invalid after {:?}", started_at.elapsed());
        assert_eq!((state.desired, state.current), (Mode::Pause, Mode::Pause));
        let (line, column) = (broken.lines().count(), broken.lines().last().unwrap().len());
        let place = format!("line {line} column {column}, in `current_state`");
        let note = format!("{place}; its copy is agent_state.json.malformed-{round}");
        assert!(
            state.note.starts_with("agent_state.json was invalid: ") && state.note.ends_with(&note),
            "{}",
            state.note
        );
        assert_eq!(
            fs::read_to_string(folder.path().join(format!("agent_state.json.malformed-{round}"))).unwrap(),
            broken
        );
        assert_eq!(on_disk(folder.path()).unwrap()["desired_state"], "pause");
    }
    let quarantined_files = fs::read_dir(folder.path())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains("malformed"));
    assert_eq!(quarantined_files.count(), 5);
}

#[tokio::test]
async fn state_samples_keep_foreign_fields() {
    for sample in ["agent_state", "agent_state_team", "agent_state_unknown"] {
        let folder = tempfile::tempdir().unwrap();
        let text = fs::read_to_string(format!("tests/contracts/{sample}.json")).unwrap();
        let text = text.replacen('{', "{\n  \"theirs\": 1.50e+3,", 1);
        fs::write(folder.path().join("agent_state.json"), &text).unwrap();
        let store = state_store(folder.path(), Durability::Process);
        let state = store.read().await.unwrap().unwrap();
        assert_eq!(state.unknown_desired.is_some(), sample == "agent_state_unknown");
        assert_eq!(
            fs::read_to_string(folder.path().join("agent_state.json")).unwrap(),
            text,
            "reading changed the file"
        );
        store.update(report(Mode::Pause, 3)).await.unwrap();
        let written = fs::read_to_string(folder.path().join("agent_state.json")).unwrap();
        assert!(written.contains("\"theirs\": 1.50e+3,") && written.ends_with("}\n"), "{written}");
        let after: Value = serde_json::from_str(&written).unwrap();
        let before: Value = serde_json::from_str(&text).unwrap();
        for field in ["desired_state", "setBy", "note", "theirs"] {
            assert_eq!(after[field], before[field], "{sample}: {field}");
        }
    }
}

#[tokio::test]
async fn desired_state_of_other_process_reaches_team() {
    let folder = tempfile::tempdir().unwrap();
    let workspace = FILE.open(folder.path(), lead()).await.unwrap();
    workspace.stores.state.update(report(Mode::RunOnce, 1)).await.unwrap();
    let mut changes = workspace.stores.changes.subscribe();
    let beside = FILE.open(folder.path(), options(OpenMode::Write)).await.unwrap();
    let merged_state = beside.stores.state.update(set(Mode::RunCleanup, None)).await.unwrap();
    assert_eq!((merged_state.desired, merged_state.current), (Mode::RunCleanup, Mode::RunOnce));
    while changes.recv().await.unwrap() != StoreChange::State {}
    drop(beside);
    eventually("the team reads it", async || {
        let state = workspace.stores.state.read().await.unwrap().unwrap();
        state.desired == Mode::RunCleanup && state.current == Mode::RunOnce
    })
    .await;
    eventually("the displaced file of the other process is removed", async || {
        fs::read_dir(folder.path().join(".team/aside")).unwrap().count() == 0
    })
    .await;
}

#[tokio::test]
async fn only_team_recreates_removed_state_file() {
    let folder = tempfile::tempdir().unwrap();
    let workspace = FILE.open(folder.path(), lead()).await.unwrap();
    let looker = state_store(folder.path(), Durability::Process);
    assert_eq!(looker.read().await.unwrap(), None);
    assert_eq!(on_disk(folder.path()), None);
    workspace.stores.state.update(report(Mode::RunOnce, 1)).await.unwrap();
    fs::remove_file(folder.path().join("agent_state.json")).unwrap();
    eventually("the file is there again", async || on_disk(folder.path()).is_some()).await;
    let state = looker.read().await.unwrap().unwrap();
    assert_eq!((state.desired, state.current), (Mode::Pause, Mode::RunOnce));
    assert_eq!(state.note, "agent_state.json was missing");
}
