//! The event log: numbers without gaps, also over full disks, parts and runs.

use std::fs;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use brigade::domain::log::event::{Event, EventKind, NewEvent};
use brigade::domain::log::replay::ReplayState;
use brigade::domain::log::snapshot::TaskSnapshot;
use brigade::domain::task::NewTask;
use brigade::domain::task::transition::{Actor, ActorKind};
use brigade::domain::team::approval::{Request, RequestKind};
use brigade::domain::team::name::HUMAN;
use brigade::domain::time::UnixMs;
use brigade::ports::{Call, EventLog, EventReader, Runs, StoreError, Stores};
use brigade::run::recorder;
use brigade::stores::file::events::{FileEventLog, FileEventReader, PARTS_MAX};
use brigade::stores::workspace::STORES;

use crate::stores::support::{clock, lead, real, store_fixtures};
use crate::testkit::fault_injection::{CallFault, FaultyFileSystem};
use crate::testkit::interceptors::{CallFate, with_fates};

fn warning(text: &str) -> NewEvent {
    EventKind::Note { about: "test".into(), text: text.into() }.into()
}

fn numbers(events: &[Event]) -> Vec<u64> {
    events.iter().map(|event| event.seq).collect()
}

#[tokio::test]
async fn events_are_numbered_and_read_in_order() {
    for fixture in store_fixtures().await {
        let log = &fixture.stores.events;
        let mut reader = log.reader(Runs::All);
        assert!(log.append(Vec::new()).await.unwrap().is_empty());
        let first = log.append(vec![warning("a"), warning("b")]).await.unwrap();
        assert_eq!(reader.read_new().await.unwrap(), first, "{}", fixture.kind);
        let second = log.append(vec![warning("c")]).await.unwrap();
        assert_eq!(reader.read_new().await.unwrap(), second, "{}", fixture.kind);
        assert_eq!((numbers(&first), numbers(&second)), (vec![1, 2], vec![3]), "{}", fixture.kind);
        assert_eq!(first[1].kind, warning("b").kind);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_leave_event_log_without_gaps() {
    let folder = tempfile::tempdir().unwrap();
    let log = Arc::new(FileEventLog::with_part_bytes_max(real(), clock(), folder.path(), 20_000));
    let mut reader = FileEventReader::new(real(), folder.path(), Runs::Newest);
    let writers: Vec<_> = (0..8)
        .map(|_| {
            let log = Arc::clone(&log);
            tokio::spawn(async move {
                for number in 0..50 {
                    log.append(vec![warning(&number.to_string()), warning("x")]).await.unwrap();
                }
            })
        })
        .collect();
    let mut read = Vec::new();
    while read.len() < 800 {
        read.extend(reader.read_new().await.unwrap());
        tokio::task::yield_now().await;
    }
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(numbers(&read), (1..=800).collect::<Vec<_>>());
    assert!(folder.path().join("events.2.jsonl").exists());
    // A later reader finds the whole run over all parts.
    assert_eq!(
        numbers(&FileEventReader::new(real(), folder.path(), Runs::Newest).read_new().await.unwrap()),
        numbers(&read)
    );
}

#[tokio::test]
async fn new_run_restarts_numbers_and_log_parts_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    for run in 0..10 {
        let log = FileEventLog::new(real(), clock(), folder.path());
        let events = log.append(vec![warning(&run.to_string()), warning("x")]).await.unwrap();
        assert_eq!(numbers(&events), [1, 2]);
        let read = FileEventReader::new(real(), folder.path(), Runs::Newest).read_new().await.unwrap();
        assert_eq!(read, events, "not exactly the newest run");
    }
    let parts = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(parts, PARTS_MAX as usize + 1);
}

#[tokio::test]
async fn partial_event_line_is_read_once_complete() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    let sample = include_str!("../contracts/events.jsonl");
    let (begun, rest) = sample.split_at(sample.len() - 40);
    fs::write(&path, begun).unwrap();
    let mut reader = FileEventReader::new(real(), folder.path(), Runs::Newest);
    let last = sample.lines().count() as u64;
    assert_eq!(numbers(&reader.read_new().await.unwrap()), (1..last).collect::<Vec<_>>());
    assert!(reader.read_new().await.unwrap().is_empty());
    fs::write(&path, format!("{begun}{rest}")).unwrap();
    assert_eq!(numbers(&reader.read_new().await.unwrap()), [last]);
}

#[tokio::test]
async fn failed_event_write_leaves_no_gap() {
    for at in 1..8 {
        let folder = tempfile::tempdir().unwrap();
        let dying = Arc::new(FaultyFileSystem::new(real(), CallFault::FailsAt(at)));
        let log = FileEventLog::with_part_bytes_max(dying, clock(), folder.path(), 500);
        for number in 1..=20_u64 {
            let events = log.append(vec![warning("one"), warning("two")]).await.unwrap();
            assert_eq!(numbers(&events), [2 * number - 1, 2 * number]);
        }
        let mut read = Vec::new();
        for part in (1..=PARTS_MAX).rev().map(|part| format!("events.{part}.jsonl")).chain(["events.jsonl".into()]) {
            let text = fs::read_to_string(folder.path().join(part)).unwrap_or_default();
            read.extend(text.lines().map(|line| serde_json::from_str::<Event>(line).unwrap().seq));
        }
        let first = read[0];
        assert_eq!(read, (first..=40).collect::<Vec<_>>(), "failed at call {at}");
    }
}

#[tokio::test]
async fn events_wait_in_memory_while_disk_is_full() {
    let folder = tempfile::tempdir().unwrap();
    let dying = Arc::new(FaultyFileSystem::new(real(), CallFault::DiskFullFrom(2)));
    let log = FileEventLog::new(dying, clock(), folder.path());
    log.append(vec![warning("written")]).await.unwrap();
    let mut accepted = 1;
    let large = "x".repeat(100_000);
    let refused = loop {
        match log.append(vec![warning(&large)]).await {
            Ok(events) => accepted = events[0].seq,
            Err(error) => break error,
        }
    };
    assert!(refused.to_string().contains("events.jsonl"), "{refused}");
    assert!(accepted > 50, "only {accepted} events waited");
    // A refused event gets no number.
    assert_eq!(numbers(&log.append(vec![warning("small")]).await.unwrap()), [accepted + 1]);
}

/// The oldest parts of a large log are removed, so the rest must be enough for a replay.
#[tokio::test]
async fn newest_log_part_restores_the_board() {
    for fixture in store_fixtures().await {
        let folder = tempfile::tempdir().unwrap();
        let mut stores = fixture.stores.clone();
        stores.events = Arc::new(FileEventLog::with_part_bytes_max(real(), clock(), folder.path(), 20_000));
        let lead = Actor::new("lead", ActorKind::Lead);
        let task = |number: usize| NewTask { subject: format!("Part {number}"), ..NewTask::default() };
        let created = stores.board.create(&lead, (0..20).map(task).collect(), false).await.unwrap();
        let (sink, ..) = recorder::start(stores.clone(), clock()).await.unwrap();
        sink.record(EventKind::TeamStarted { team: "crew".into(), members: vec!["alice".into()] });
        for (number, task) in created.iter().enumerate() {
            if number % 3 == 0 {
                stores.board.delete(task.id, &lead).await.unwrap();
                sink.request_board_read();
            }
            for _ in 0..30 {
                sink.record(warning("a line that fills the log"));
            }
            sink.flush().await;
        }
        assert!(folder.path().join("events.2.jsonl").exists(), "{}", fixture.kind);
        (1..=PARTS_MAX).for_each(|part| drop(fs::remove_file(folder.path().join(format!("events.{part}.jsonl")))));
        let rest = FileEventReader::new(real(), folder.path(), Runs::Newest).read_new().await.unwrap();
        let replay = ReplayState::of(&rest);
        assert!(rest[0].seq > 1, "{}", fixture.kind);
        assert_eq!((replay.has_whole_board, replay.tasks_to_follow, replay.lacks_rows), (true, 0, false));
        let view = stores.board.view().await.unwrap();
        let rows: Vec<TaskSnapshot> = view.tasks.values().map(|task| TaskSnapshot::of(task)).collect();
        let replayed: Vec<TaskSnapshot> = replay.tasks.values().map(|row| TaskSnapshot::clone(row)).collect();
        assert_eq!((replayed, replay.team.team.as_str(), replay.members.len()), (rows, "crew", 1), "{}", fixture.kind);
    }
}

/// The log of the previous run shows which requests it has: the next one continues, whichever of its reads fails, and also if a crash
/// left only the first event of the previous run.
#[tokio::test]
async fn request_is_recorded_once_over_failing_reads() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = store_fixtures().await.remove(0);
    let stores = fixture.stores.clone();
    stores.requests.record(Request::new("a", RequestKind::PlanApproval, "bob", HUMAN, UnixMs(1))).await.unwrap();
    for failing_read in [None, Some(0), Some(1), Some(2)] {
        let reads = AtomicUsize::new(0);
        let events = Arc::new(FileEventLog::new(real(), clock(), folder.path()));
        let run = with_fates(&Stores { events, ..stores.clone() }, move |call| {
            if !matches!(call, Call::Read) || Some(reads.fetch_add(1, Ordering::Relaxed)) != failing_read {
                return CallFate::Proceeds;
            }
            let (action, place) = ("read".into(), "requests.json".to_owned());
            CallFate::Fails(StoreError::Io { action, place, source: ErrorKind::Other.into() })
        });
        let started = recorder::start(run, clock()).await;
        assert_eq!(started.is_err(), failing_read == Some(0));
        let Ok((sink, ..)) = started else { continue };
        sink.record(EventKind::TeamStarted { team: "crew".into(), members: Vec::new() });
        sink.request_requests_read();
        sink.flush().await;
        if failing_read.is_some() {
            let log = fs::read_to_string(folder.path().join("events.jsonl")).unwrap();
            fs::write(folder.path().join("events.jsonl"), log.split_inclusive('\n').next().unwrap()).unwrap();
        }
    }
    let events = FileEventReader::new(real(), folder.path(), Runs::All).read_new().await.unwrap();
    let made = events.iter().filter(|event| matches!(event.kind, EventKind::RequestMade(_)));
    assert_eq!(made.count(), 1, "{events:?}");
}

/// A command of another process may move the file before this process reads it as invalid.
#[tokio::test]
async fn quarantined_task_is_recorded_as_invalid_once() {
    let folder = tempfile::tempdir().unwrap();
    let workspace = STORES[0].open(folder.path(), lead()).await.unwrap();
    let stores = &workspace.stores;
    let by = Actor::new("lead", ActorKind::Lead);
    let task = |subject: &str| NewTask { subject: subject.to_owned(), ..NewTask::default() };
    stores.board.create(&by, vec![task("one"), task("two")], false).await.unwrap();
    let (sink, ..) = recorder::start(stores.clone(), clock()).await.unwrap();
    fs::create_dir_all(folder.path().join(".tasks/.spoiled")).unwrap();
    fs::rename(folder.path().join(".tasks/task_1.json"), folder.path().join(".tasks/.spoiled/task_1.json")).unwrap();
    fs::write(folder.path().join(".tasks/.spoiled/task_1.json"), "{\n  \"status\" 5\n}").unwrap();
    let mut view = stores.board.view().await.unwrap();
    while view.tasks.len() > 1 {
        view = stores.board.view().await.unwrap();
    }
    for _ in 0..2 {
        sink.request_board_read();
        sink.flush().await;
        stores.board.create(&by, vec![task("more")], false).await.unwrap();
    }
    let events = stores.events.reader(Runs::All).read_new().await.unwrap();
    let count = |is_wanted: fn(&EventKind) -> bool| events.iter().filter(|event| is_wanted(&event.kind)).count();
    assert_eq!(
        count(|kind| matches!(kind, EventKind::InvalidTaskFileFound(invalid) if invalid.file == "task_1.json")),
        1
    );
    assert_eq!(count(|kind| matches!(kind, EventKind::TaskDeleted { .. })), 0);
    let found = events.iter().find_map(|event| match &event.kind {
        EventKind::InvalidTaskFileFound(invalid) => Some((invalid.reason.as_str(), invalid.place.as_deref())),
        _ => None,
    });
    let (reason, place) = found.unwrap();
    assert_eq!(place, Some(".tasks/.spoiled/task_1.json"));
    assert!(reason.contains("at line 2 column 12, in `status`"), "{reason}");
}
