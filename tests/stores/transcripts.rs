//! Transcripts: they grow, survive torn tails, and are archived without losing the records that a resume needs.

use std::fs;

use brigade::domain::agent::transcript::{Block, MessageRecord, Record, Role, TranscriptEntry, Usage};
use brigade::domain::time::UnixMs;
use brigade::ports::{StoreError, Transcripts};
use brigade::stores::file::Durability;
use brigade::stores::file::transcripts::{FileTranscripts, RECORD_BYTES_MAX};
use brigade::stores::fs::FileSystem;
use std::path::Path;
use std::sync::Arc;

use crate::stores::support::{real, store_fixtures};
use crate::testkit::fault_injection::{CallFault, FaultyFileSystem};
use crate::testkit::simulated::SimulatedDisk;

fn text_record(text: &str) -> Record {
    Record { at: UnixMs(7), entry: TranscriptEntry::Message(MessageRecord::new(Role::User, vec![Block::text(text)])) }
}

fn compaction(covers: u64) -> Record {
    Record {
        at: UnixMs(8),
        entry: TranscriptEntry::Compaction { summary: format!("{covers} said"), covers, todo_list: String::new() },
    }
}

#[tokio::test]
async fn transcript_records_load_in_order() {
    for fixture in store_fixtures().await {
        let transcripts = &fixture.stores.transcripts;
        assert!(transcripts.load("alice").await.unwrap().is_empty());
        transcripts.append("alice", &[text_record("a"), text_record("b\nc\u{2028}")], false).await.unwrap();
        transcripts.append("bob", &[text_record("x")], true).await.unwrap();
        transcripts.append("alice", &[compaction(2)], true).await.unwrap();
        transcripts.append("alice", &[], true).await.unwrap();
        let loaded = transcripts.load("alice").await.unwrap();
        assert_eq!(loaded, [text_record("a"), text_record("b\nc\u{2028}"), compaction(2)], "{}", fixture.kind);
        let error =
            transcripts.append("alice", &[text_record(&"x".repeat(RECORD_BYTES_MAX))], false).await.unwrap_err();
        assert!(matches!(error, StoreError::TooLarge { .. }), "{error}");
        assert_eq!(transcripts.load("alice").await.unwrap().len(), 3);
    }
}

#[tokio::test]
async fn torn_transcript_line_is_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("transcripts/alice.jsonl");
    let open = || FileTranscripts::new(real(), Durability::Process, folder.path());
    open().append("alice", &[text_record("a")], true).await.unwrap();
    for load_first in [false, true] {
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{text}{{\"v\":1,\"at\":1,\"ki")).unwrap();
        let transcripts = open();
        if load_first {
            assert_eq!(transcripts.load("alice").await.unwrap(), [text_record("a"), text_record("b")]);
        }
        transcripts.append("alice", &[text_record("b")], true).await.unwrap();
    }
    assert_eq!(open().load("alice").await.unwrap(), [text_record("a"), text_record("b"), text_record("b")]);
}

#[tokio::test]
async fn failed_transcript_append_can_be_retried_whole() {
    let folder = tempfile::tempdir().unwrap();
    for writes in 1..4 {
        let dying = FaultyFileSystem::new(real(), CallFault::DiskFullFrom(writes));
        let team = folder.path().join(writes.to_string());
        fs::create_dir(&team).unwrap();
        let transcripts = FileTranscripts::new(Arc::new(dying), Durability::Process, &team);
        let mut written = Vec::new();
        let failed = loop {
            let record = text_record(&format!("record {}", written.len()));
            match transcripts.append("alice", &[record.clone(), record.clone()], false).await {
                Ok(()) => written.extend([record.clone(), record]),
                Err(_) => break [record.clone(), record],
            }
        };
        // The disk has room again: for another process, or for this one later.
        let transcripts = FileTranscripts::new(real(), Durability::Process, &team);
        let loaded = transcripts.load("alice").await.unwrap();
        assert_eq!(loaded[..written.len()], written[..], "an accepted record is missing");
        assert!(loaded.len() <= written.len() + 1);
        transcripts.append("alice", &failed, false).await.unwrap();
        assert_eq!(transcripts.load("alice").await.unwrap()[loaded.len()..], failed[..]);
    }
}

/// Replaces the transcript by a pipe, a link or a folder.
fn replace_by_kind(path: &Path, kind: usize) {
    match kind {
        0 => assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success()),
        1 => std::os::unix::fs::symlink("/dev/zero", path).unwrap(),
        _ => fs::create_dir(path).unwrap(),
    }
}

#[tokio::test]
async fn transcript_that_is_no_file_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let transcripts = FileTranscripts::new(real(), Durability::Process, folder.path());
    let path = folder.path().join("transcripts/alice.jsonl");
    fs::create_dir(folder.path().join("transcripts")).unwrap();
    for kind in 0..3 {
        replace_by_kind(&path, kind);
        for error in
            [transcripts.load("alice").await.err(), transcripts.append("alice", &[text_record("a")], true).await.err()]
        {
            assert!(error.unwrap().to_string().contains("alice.jsonl"));
        }
        if kind == 2 { fs::remove_dir(&path).unwrap() } else { fs::remove_file(&path).unwrap() }
    }
}

#[tokio::test]
async fn transcript_name_with_path_parts_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let transcripts = FileTranscripts::new(real(), Durability::Process, folder.path());
    for name in ["../x", "", "a/b", ".archive"] {
        assert!(transcripts.append(name, &[text_record("a")], false).await.is_err(), "{name}");
        assert!(transcripts.load(name).await.is_err(), "{name}");
    }
    assert!(fs::read_dir(folder.path()).unwrap().next().is_none());
}

#[tokio::test]
async fn transcript_of_ten_thousand_records_loads() {
    let folder = tempfile::tempdir().unwrap();
    let transcripts = FileTranscripts::new(real(), Durability::Process, folder.path());
    let records: Vec<Record> =
        (0..10_000).map(|number| text_record(&format!("{number} {}", "word ".repeat(40)))).collect();
    transcripts.append("alice", &records, false).await.unwrap();
    assert_eq!(transcripts.load("alice").await.unwrap().len(), 10_000);
}

fn delivering(number: u64) -> Record {
    let mut record = text_record(&format!("turn {number}"));
    if let TranscriptEntry::Message(message) = &mut record.entry {
        message.delivered = vec![format!("m-{number}")];
        message.usage = Some(Usage { input_tokens: 10, output_tokens: 1, ..Usage::default() });
    }
    record
}

/// The data that a resume needs: the records after the last compaction, all delivered mail, all tokens.
fn needed(records: &[Record]) -> (Vec<Record>, Vec<String>, u64) {
    let covers = records.iter().rev().find_map(|record| match &record.entry {
        TranscriptEntry::Compaction { covers, .. } => Some(usize::try_from(*covers).unwrap()),
        TranscriptEntry::Message(_) | TranscriptEntry::Sent(_) => None,
    });
    let mut delivered = Vec::new();
    let mut tokens = 0;
    for record in records {
        if let TranscriptEntry::Message(message) = &record.entry {
            delivered.extend(message.delivered.clone());
            tokens += message.usage.unwrap_or_default().total();
        }
    }
    let live =
        records[covers.unwrap_or(0)..].iter().filter(|record| matches!(record.entry, TranscriptEntry::Message(_)));
    (live.cloned().collect(), delivered, tokens)
}

#[tokio::test]
async fn archived_transcript_keeps_records_needed_to_resume() {
    let folder = tempfile::tempdir().unwrap();
    let open = || FileTranscripts::with_live_bytes(real(), Durability::Power, folder.path(), 2_000);
    let mut transcripts = open();
    // The writer counts in its own records, from those it loaded.
    let mut mine: Vec<Record> = Vec::new();
    let mut said_so_far = 0;
    for round in 0..20 {
        for _ in 0..10 {
            let record = delivering(said_so_far);
            said_so_far += 1;
            transcripts.append("alice", std::slice::from_ref(&record), false).await.unwrap();
            mine.push(record);
        }
        let record = compaction(mine.len() as u64 - 3);
        transcripts.append("alice", std::slice::from_ref(&record), false).await.unwrap();
        mine.push(record);
        let loaded = open().load("alice").await.unwrap();
        assert_eq!(needed(&loaded), needed(&mine), "round {round}");
        if round % 3 == 2 {
            transcripts = open();
            mine = transcripts.load("alice").await.unwrap();
        }
    }
    assert!(fs::metadata(folder.path().join("transcripts/alice.jsonl")).unwrap().len() < 12_000);
    let archives = fs::read_dir(folder.path().join("transcripts/.archive")).unwrap();
    let lines: usize = archives.map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap().lines().count()).sum();
    assert!(lines > 150, "only {lines} records are archived");
}

#[tokio::test]
async fn transcript_append_retry_writes_once() {
    for call in 1.. {
        let disk = SimulatedDisk::default();
        let team = Path::new("/w/.team");
        let sound = FileTranscripts::new(Arc::new(disk.clone()), Durability::Power, team);
        sound.append("ann", &[text_record("a")], true).await.unwrap();
        let failing = Arc::new(FaultyFileSystem::new(Arc::new(disk), CallFault::FailsAt(call)));
        let transcripts = FileTranscripts::new(Arc::clone(&failing) as Arc<dyn FileSystem>, Durability::Power, team);
        let first = transcripts.append("ann", &[text_record("b")], true).await;
        if first.is_err() {
            transcripts.append("ann", &[text_record("b")], true).await.unwrap();
        }
        assert_eq!(sound.load("ann").await.unwrap(), [text_record("a"), text_record("b")], "call {call}, {first:?}");
        if !failing.has_failed() {
            assert!(call > 3, "too few calls failed: {call}");
            break;
        }
    }
}

#[tokio::test]
async fn synced_record_survives_crash_after_unsynced_one() {
    let (disk, team) = (SimulatedDisk::default(), Path::new("/w/.team"));
    disk.create_folder(&team.join("transcripts")).unwrap();
    disk.make_all_durable();
    let transcripts = FileTranscripts::new(Arc::new(disk.clone()), Durability::Power, team);
    transcripts.append("ann", &[text_record("a")], false).await.unwrap();
    transcripts.append("ann", &[text_record("b")], true).await.unwrap();
    let after = FileTranscripts::new(Arc::new(disk.crash(0)), Durability::Power, team);
    assert_eq!(after.load("ann").await.unwrap(), [text_record("a"), text_record("b")]);
}
