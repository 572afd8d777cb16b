//! The process dies, or the power is cut, at every call of the file system: accepted changes are there, and messages
//! are delivered once.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use brigade::domain::agent::transcript::{Block, MessageRecord, Record, Role, TranscriptEntry};
use brigade::domain::team::message::{Message, MessageType};
use brigade::domain::team::name::Name;
use brigade::domain::team::state::{DesiredStateChange, Mode, SetBy, SharedState, StatePrecondition, StateUpdate};
use brigade::domain::time::UnixMs;
use brigade::ports::{Mailbox, StateStore, StoreResult, Transcripts};
use brigade::stores::file::Durability;
use brigade::stores::file::exchange_file::ExchangeFile;
use brigade::stores::file::mailbox::FileMailbox;
use brigade::stores::file::state::FileState;
use brigade::stores::file::transcripts::FileTranscripts;
use brigade::stores::fs::FileSystem;

use crate::stores::support::{changes, clock};
use crate::testkit::fault_injection::{CallFault, FaultyFileSystem};
use crate::testkit::simulated::{DiskOptions, SimulatedDisk};

const TEAM: &str = "/w/.team";

/// A process that sends to alice and delivers her mail.
struct TestProcess {
    mail: FileMailbox,
    transcripts: FileTranscripts,
}

impl TestProcess {
    fn begin(files: Arc<dyn FileSystem>, durability: Durability) -> Self {
        let team = Path::new(TEAM);
        Self {
            mail: FileMailbox::with_settle_time(
                Arc::clone(&files),
                durability,
                clock(),
                changes(),
                team,
                Duration::ZERO,
            ),
            transcripts: FileTranscripts::new(files, durability, team),
        }
    }

    async fn open(&self) -> StoreResult<()> {
        self.mail.open_inboxes(&[Name::new("alice").unwrap()]).await
    }

    async fn send(&self, number: u32, accepted: &mut Vec<u32>) -> StoreResult<()> {
        let message = Message::new(MessageType::Message, "bob", number.to_string(), UnixMs(0));
        self.mail.send("alice", message).await?;
        accepted.push(number);
        Ok(())
    }

    /// Delivers as a teammate does: takes, appends to the transcript durably, settles.
    async fn deliver(&self) -> StoreResult<()> {
        let delivered = delivered(&self.transcripts.load("alice").await?);
        let mail = self.mail.take("alice", &delivered).await?;
        if !mail.is_empty() {
            let blocks = mail.iter().map(|delivery| Block::text(delivery.message.content.clone())).collect();
            let mut message = MessageRecord::new(Role::User, blocks);
            message.delivered = mail.into_iter().map(|delivery| delivery.key).collect();
            self.transcripts
                .append("alice", &[Record { at: UnixMs(0), entry: TranscriptEntry::Message(message) }], true)
                .await?;
        }
        self.mail.settle("alice", &self::delivered(&self.transcripts.load("alice").await?)).await
    }

    /// The calls of the process until it dies; `accepted` lists the messages whose send returned.
    async fn run_to_end(&self, first: u32, accepted: &mut Vec<u32>) -> StoreResult<()> {
        self.open().await?;
        self.send(first, accepted).await?;
        self.send(first + 1, accepted).await?;
        self.deliver().await?;
        self.send(first + 2, accepted).await?;
        self.deliver().await?;
        self.deliver().await?;
        self.send(first + 3, accepted).await
    }

    async fn received(&self) -> Vec<u32> {
        let mut received = Vec::new();
        for record in self.transcripts.load("alice").await.unwrap() {
            if let TranscriptEntry::Message(message) = record.entry {
                received.extend(message.content.iter().map(|block| match block {
                    Block::Text { text } => text.parse::<u32>().unwrap(),
                    other => panic!("{other:?}"),
                }));
            }
        }
        received
    }
}

fn delivered(records: &[Record]) -> HashSet<String> {
    let keys = records.iter().flat_map(|record| match &record.entry {
        TranscriptEntry::Message(message) => message.delivered.clone(),
        TranscriptEntry::Compaction { .. } | TranscriptEntry::Sent(_) => Vec::new(),
    });
    keys.collect()
}

async fn check(files: Arc<dyn FileSystem>, durability: Durability, accepted: &[u32], what: &str) {
    let life = TestProcess::begin(files, durability);
    life.open().await.unwrap();
    life.deliver().await.unwrap();
    let received = life.received().await;
    let accepted_and_received: Vec<u32> = received.iter().copied().filter(|number| accepted.contains(number)).collect();
    assert_eq!(accepted_and_received, accepted, "{what}: accepted and received differ (all received: {received:?})");
    let once: HashSet<u32> = received.iter().copied().collect();
    assert_eq!(once.len(), received.len(), "{what}: delivered twice: {received:?}");
    assert!(life.mail.recipients_with_mail().await.unwrap().is_empty(), "{what}");
    assert!(life.mail.peek("alice").await.unwrap().is_empty(), "{what}");
}

#[tokio::test]
async fn kill_at_any_call_delivers_mail_exactly_once() {
    for fate in [CallFault::CrashBefore as fn(u64) -> CallFault, CallFault::CrashDuring, CallFault::FailsAt] {
        for call in 1.. {
            let disk = SimulatedDisk::new(DiskOptions::default());
            let mut accepted = Vec::new();
            // An earlier process, so that the files exist.
            TestProcess::begin(Arc::new(disk.clone()), Durability::Power).run_to_end(0, &mut accepted).await.unwrap();
            let dying = Arc::new(FaultyFileSystem::new(Arc::new(disk.clone()), fate(call)));
            let life = TestProcess::begin(Arc::clone(&dying) as Arc<dyn FileSystem>, Durability::Power);
            let outcome = life.run_to_end(10, &mut accepted).await;
            drop(life);
            let what = format!("{:?}, outcome {outcome:?}", fate(call));
            check(Arc::new(disk), Durability::Power, &accepted, &what).await;
            if !dying.has_failed() {
                assert!(call > 15, "too few calls were tested: {call}");
                break;
            }
        }
    }
}

#[tokio::test]
async fn power_cut_at_any_call_delivers_mail_exactly_once() {
    for call in 1.. {
        let mut is_over = false;
        for seed in 0..8 {
            let disk = SimulatedDisk::new(DiskOptions { renames_after_bytes: seed % 2 == 0, ..DiskOptions::default() });
            let mut accepted = Vec::new();
            TestProcess::begin(Arc::new(disk.clone()), Durability::Power).run_to_end(0, &mut accepted).await.unwrap();
            let dying = Arc::new(FaultyFileSystem::new(Arc::new(disk.clone()), CallFault::CrashDuring(call)));
            let life = TestProcess::begin(Arc::clone(&dying) as Arc<dyn FileSystem>, Durability::Power);
            let outcome = life.run_to_end(10, &mut accepted).await;
            drop(life);
            let disk_after_cut = disk.crash(seed);
            let what = format!("call {call}, seed {seed}, outcome {outcome:?}");
            check(Arc::new(disk_after_cut), Durability::Power, &accepted, &what).await;
            is_over = !dying.has_failed();
        }
        if is_over {
            break;
        }
    }
}

#[tokio::test]
async fn mail_after_unsynced_line_survives_power_cut() {
    let disk = SimulatedDisk::new(DiskOptions::default());
    let life = TestProcess::begin(Arc::new(disk.clone()), Durability::Power);
    life.open().await.unwrap();
    disk.make_all_durable();
    disk.append(&Path::new(TEAM).join("inbox/alice.jsonl"), b"{\"type\": \"message\", \"content\": \"7\"}\n").unwrap();
    let mut accepted = Vec::new();
    life.send(1, &mut accepted).await.unwrap();
    check(Arc::new(disk.crash(0)), Durability::Power, &accepted, "behind a foreign line").await;
}

fn state_text(mode: &str) -> String {
    format!(
        "{{\"desired_state\": \"{mode}\", \"current_state\": \"pause\", \"setBy\": \"human\", \"note\": \"\", \"theirs\": 1.50}}"
    )
}

/// A state store on a disk whose state file durably contains `continuous`.
fn disk_with_state() -> (SimulatedDisk, PathBuf) {
    let disk = SimulatedDisk::new(DiskOptions { renames_after_bytes: false, ..DiskOptions::default() });
    let path = PathBuf::from("/w/agent_state.json");
    disk.create_folder(Path::new("/w")).unwrap();
    disk.write(&path, state_text("continuous").as_bytes()).unwrap();
    disk.make_all_durable();
    (disk, path)
}

fn state_store(files: Arc<dyn FileSystem>) -> FileState {
    let file = ExchangeFile::new(
        files,
        Durability::Power,
        Path::new("/w"),
        "agent_state.json",
        Path::new(TEAM),
        FileState::is_valid,
    );
    FileState::new(file.with_spare_inodes(&Path::new(TEAM).join("spare")), clock(), changes(), true)
}

#[tokio::test]
async fn power_cut_leaves_old_or_new_state_file() {
    let wish = DesiredStateChange { mode: Mode::RunCleanup, by: SetBy::Person, note: String::new(), only_if: None };
    for call in 1.. {
        let mut is_over = false;
        for seed in 0..16 {
            let (disk, path) = disk_with_state();
            let dying = Arc::new(FaultyFileSystem::new(Arc::new(disk.clone()), CallFault::CrashDuring(call)));
            let update = StateUpdate { desired: Some(wish.clone()), report: None };
            let outcome = state_store(Arc::clone(&dying) as Arc<dyn FileSystem>).update(update).await;
            let is_cut = seed % 2 == 0;
            let disk_after_fault = if is_cut { disk.crash(seed) } else { disk };
            let what = format!("call {call}, seed {seed}, outcome {outcome:?}");
            let (bytes, _) = disk_after_fault.read(&path, 0, 1 << 20).unwrap();
            let state_after = SharedState::parse(&bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(matches!(state_after.desired, Mode::Continuous | Mode::RunCleanup), "{what}");
            assert_eq!(state_after.document.raw("theirs"), Some("1.50"), "{what}");
            if outcome.is_ok() && !is_cut {
                assert_eq!(state_after.desired, Mode::RunCleanup, "{what}");
            }
            // The file of the dead process is no click.
            let state = state_store(Arc::new(disk_after_fault)).update(StateUpdate::default()).await.unwrap();
            assert_eq!(state.desired, state_after.desired, "{what}");
            is_over = !dying.has_failed();
        }
        if is_over {
            break;
        }
    }
}

#[tokio::test]
async fn desired_state_set_during_session_end_wins() {
    for (call, in_place) in (1..70).flat_map(|call| [(call, false), (call, true)]) {
        let (disk, path) = disk_with_state();
        let clicking = clicking_at(call, in_place, disk.clone(), path);
        let ending = DesiredStateChange {
            mode: Mode::Pause,
            by: SetBy::Brigade,
            note: "goal met".into(),
            only_if: Some(StatePrecondition::Mode(Mode::Continuous)),
        };
        let store = state_store(Arc::clone(&clicking) as Arc<dyn FileSystem>);
        let update = StateUpdate { desired: Some(ending), report: None };
        let ended = store.update(update).await.unwrap();
        while clicking.calls() < call {
            store.update(StateUpdate::default()).await.unwrap();
        }
        let state = store.update(StateUpdate::default()).await.unwrap();
        assert!(
            matches!(ended.desired, Mode::RunOnce | Mode::Pause),
            "click at call {call}, in place {in_place}: {:?}",
            ended.desired
        );
        assert_eq!(state.desired, Mode::RunOnce, "click at call {call}, in place {in_place}");
    }
}

#[tokio::test]
async fn desired_state_set_during_launch_wins() {
    let text_before = state_text("run_once").replace("\"note\": \"\"", "\"note\": \"left\"");
    for (call, in_place) in (1..70).flat_map(|call| [(call, false), (call, true)]) {
        let noted = StatePrecondition::ModeWithNote(Mode::RunOnce, "left".to_owned());
        for (before, only_if) in [(Some(&text_before), noted), (None, StatePrecondition::NoFile)] {
            let (disk, path) = disk_with_state();
            match before {
                Some(text) => disk.write(&path, text.as_bytes()).unwrap(),
                None => disk.remove(&path).unwrap(),
            }
            disk.make_all_durable();
            let clicking = clicking_at(call, in_place, disk, path);
            let store = state_store(Arc::clone(&clicking) as Arc<dyn FileSystem>);
            let note = "launched".to_owned();
            let launch = DesiredStateChange { mode: Mode::Continuous, by: SetBy::Person, note, only_if: Some(only_if) };
            store.update(StateUpdate { desired: Some(launch), report: None }).await.unwrap();
            while clicking.calls() < call {
                store.update(StateUpdate::default()).await.unwrap();
            }
            let state = store.update(StateUpdate::default()).await.unwrap();
            let desired_and_note = (state.desired, state.note.as_str());
            assert_eq!(
                desired_and_note,
                (Mode::RunOnce, ""),
                "click at call {call}, in place {in_place}, before {before:?}"
            );
        }
    }
}

/// A file system on which `run_once` is clicked just before one call.
fn clicking_at(call: u64, in_place: bool, disk: SimulatedDisk, path: PathBuf) -> Arc<FaultyFileSystem> {
    let click = {
        let disk = disk.clone();
        move || {
            let temporary = Path::new("/w/their.tmp");
            let written = if in_place { &path } else { temporary };
            disk.write(written, state_text("run_once").as_bytes()).unwrap();
            if !in_place {
                disk.rename(temporary, &path).unwrap();
            }
        }
    };
    Arc::new(FaultyFileSystem::with_action(Arc::new(disk), call, click))
}
