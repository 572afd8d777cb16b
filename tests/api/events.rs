//! The events after a position: in the log, across runs, and as they happen.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use brigade::api::events::{EventId, EventStream, Since, since};
use brigade::domain::log::event::{Event, EventKind, NewEvent};
use brigade::embed::SystemClock;
use brigade::ports::EventLog;
use brigade::stores::file::events::FileEventLog;
use brigade::stores::fs::RealFileSystem;
use tokio::sync::broadcast;

use super::workspace;

/// A run with small parts.
fn run_in(folder: &Path) -> FileEventLog {
    FileEventLog::with_part_bytes_max(
        Arc::new(RealFileSystem::default()),
        Arc::new(SystemClock),
        &folder.join(".team"),
        400,
    )
}

async fn append(log: &FileEventLog, text: &str) -> Event {
    let event = NewEvent::from(EventKind::Note { about: "test".into(), text: text.into() });
    log.append(vec![event]).await.unwrap().remove(0)
}

async fn stream_after(folder: &Path, position: Option<EventId>) -> EventStream {
    match since(&workspace(folder), None, position).await.unwrap() {
        Since::Events(stream) => stream,
        Since::Gone => panic!("{position:?} is gone"),
    }
}

async fn next(stream: &mut EventStream) -> Arc<Event> {
    let next = tokio::time::timeout(Duration::from_secs(20), stream.next());
    next.await.expect("no event came").unwrap().unwrap()
}

/// The numbers of the next events.
async fn next_numbers(stream: &mut EventStream, count: usize) -> Vec<u64> {
    let mut numbers = Vec::new();
    for _ in 0..count {
        numbers.push(next(stream).await.id.unwrap().seq);
    }
    numbers
}

#[tokio::test(flavor = "multi_thread")]
async fn position_holds_across_parts_and_restarts() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join(".tasks")).unwrap();
    let first = run_in(folder.path());
    let mut ids = Vec::new();
    for number in 0..6 {
        ids.push(append(&first, &format!("{number} fills a part of the log")).await.id.unwrap());
    }
    assert!(folder.path().join(".team/events.1.jsonl").exists());
    let mut from_start = stream_after(folder.path(), None).await;
    assert_eq!(next_numbers(&mut from_start, 6).await, [1, 2, 3, 4, 5, 6]);
    drop(first);
    tokio::time::sleep(Duration::from_millis(2)).await;

    let second = run_in(folder.path());
    let begun = append(&second, "a new run").await.id.unwrap();
    assert!(begun > ids[5], "{begun} follows {}", ids[5]);
    assert_eq!(next(&mut from_start).await.id, Some(begun), "a reader of the log sees the next run");
    let mut after_third = stream_after(folder.path(), Some(ids[2])).await;
    assert_eq!(next_numbers(&mut after_third, 4).await, [4, 5, 6, 1]);
    let newest = stream_after(folder.path(), None).await.next().await.unwrap().unwrap();
    assert_eq!(newest.id, Some(begun));

    for part in 1..=5 {
        let _ = std::fs::remove_file(folder.path().join(format!(".team/events.{part}.jsonl")));
    }
    for gone in [ids[2], EventId { seq: 7, ..begun }] {
        let answer = since(&workspace(folder.path()), None, Some(gone)).await.unwrap();
        assert!(matches!(answer, Since::Gone), "{gone}");
    }
}

/// Older versions wrote no ids.
#[tokio::test(flavor = "multi_thread")]
async fn event_of_old_log_gets_an_id() {
    let folder = tempfile::tempdir().unwrap();
    for name in [".tasks", ".team"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
    }
    let line = |seq: u64, at: u64| format!(r#"{{"v":1,"seq":{seq},"at":{at},"kind":"note","about":"a","text":"b"}}"#);
    let log = [line(1, 500), line(2, 600), line(1, 700), line(2, 800)].join("\n") + "\n";
    std::fs::write(folder.path().join(".team/events.jsonl"), log).unwrap();
    let position: EventId = "500-2".parse().unwrap();
    let mut stream = stream_after(folder.path(), Some(position)).await;
    let ids = [next(&mut stream).await.id.unwrap(), next(&mut stream).await.id.unwrap()];
    assert_eq!(ids.map(|id| id.to_string()), ["700-1", "700-2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn live_events_come_once_and_without_gap() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join(".tasks")).unwrap();
    let log = run_in(folder.path());
    let (sender, receiver) = broadcast::channel(2);
    let first = append(&log, "one").await;
    sender.send(Arc::new(first)).unwrap();
    let Since::Events(mut stream) = since(&workspace(folder.path()), Some(receiver), None).await.unwrap() else {
        panic!("no position can be gone")
    };
    assert_eq!(next_numbers(&mut stream, 1).await, [1]);
    // The channel has room for two, so the log has the others.
    for number in 2..=6 {
        let event = append(&log, &number.to_string()).await;
        sender.send(Arc::new(event)).unwrap();
    }
    assert_eq!(next_numbers(&mut stream, 5).await, [2, 3, 4, 5, 6]);
    drop(sender);
    assert!(stream.next().await.unwrap().is_none(), "the team has ended");
}
