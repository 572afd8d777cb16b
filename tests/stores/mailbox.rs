//! Mail: accepted once, delivered once, in order, with any other writers of the inboxes.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use brigade::domain::team::message::{MESSAGE_BYTES_MAX, Message, MessageType};
use brigade::domain::team::name::Name;
use brigade::domain::time::UnixMs;
use brigade::ports::{Delivery, Mailbox, StoreChange, StoreError};
use brigade::stores::file::Durability;

use crate::stores::support::{mailbox, real, store_fixtures};
use crate::testkit::process::eventually;

fn message(from: &str, content: &str) -> Message {
    Message::new(MessageType::Message, from, content, UnixMs(1_763_688_000_000))
}

fn names(names: &[&str]) -> Vec<Name> {
    names.iter().map(|name| Name::new(name).unwrap()).collect()
}

fn contents(deliveries: &[Delivery]) -> Vec<&str> {
    deliveries.iter().map(|delivery| delivery.message.content.as_str()).collect()
}

fn keys(deliveries: &[Delivery]) -> HashSet<String> {
    deliveries.iter().map(|delivery| delivery.key.clone()).collect()
}

fn inbox(workspace: &Path, name: &str) -> PathBuf {
    workspace.join(".team/inbox").join(format!("{name}.jsonl"))
}

/// Appends a line as a program without locks does.
fn append_without_lock(workspace: &Path, name: &str, line: &str) {
    fs::create_dir_all(workspace.join(".team/inbox")).unwrap();
    let mut file = fs::OpenOptions::new().append(true).create(true).open(inbox(workspace, name)).unwrap();
    file.write_all(line.as_bytes()).unwrap();
}

fn taken_files(workspace: &Path) -> Vec<PathBuf> {
    fs::read_dir(workspace.join(".team/inbox/.taken")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[tokio::test]
async fn mail_is_delivered_until_settled() {
    for fixture in store_fixtures().await {
        let mail = &fixture.stores.mailbox;
        mail.open_inboxes(&names(&["alice"])).await.unwrap();
        assert!(mail.recipients_with_mail().await.unwrap().is_empty());
        for content in ["one", "two"] {
            mail.send("Alice", message("bob", content)).await.unwrap();
        }
        assert_eq!(mail.recipients_with_mail().await.unwrap(), ["alice"], "{}", fixture.kind);
        assert_eq!(mail.peek("alice").await.unwrap().len(), 2);
        let first = mail.take("alice", &HashSet::new()).await.unwrap();
        assert_eq!(contents(&first), ["one", "two"], "{}", fixture.kind);
        mail.send("alice", message("bob", "three")).await.unwrap();
        let again = mail.take("ALICE", &HashSet::new()).await.unwrap();
        assert_eq!(contents(&again), ["one", "two", "three"], "{}", fixture.kind);
        let carried = keys(&first);
        mail.settle("alice", &carried).await.unwrap();
        assert_eq!(contents(&mail.take("alice", &carried).await.unwrap()), ["three"], "{}", fixture.kind);
        assert_eq!(mail.recipients_with_mail().await.unwrap(), ["alice"]);
        mail.settle("alice", &keys(&again)).await.unwrap();
        assert!(mail.recipients_with_mail().await.unwrap().is_empty(), "{}", fixture.kind);
    }
}

#[tokio::test]
async fn sent_mail_gets_id_and_change_notice() {
    for fixture in store_fixtures().await {
        let mail = &fixture.stores.mailbox;
        let mut changes = fixture.stores.changes.subscribe();
        let first = mail.send("lead", message("bob", "x")).await.unwrap();
        let second = mail.send("LEAD", message("bob", "x")).await.unwrap();
        assert_ne!(first, second);
        assert_eq!(changes.recv().await.unwrap(), StoreChange::Mail("lead".into()), "{}", fixture.kind);
        let taken = mail.take("lead", &HashSet::new()).await.unwrap();
        assert_eq!(taken.iter().map(|delivery| &delivery.key).collect::<Vec<_>>(), [&first, &second]);
        assert_eq!(taken[0].message.id.as_ref(), Some(&first));
    }
}

#[tokio::test]
async fn unknown_recipient_is_refused() {
    for fixture in store_fixtures().await {
        let mail = &fixture.stores.mailbox;
        mail.open_inboxes(&names(&["alice"])).await.unwrap();
        for name in ["carol", "all", "system", "", "../../etc/passwd", "alice.jsonl", "a/../alice", ".taken"] {
            let error = mail.send(name, message("bob", "x")).await.unwrap_err();
            let StoreError::UnknownRecipient { recipients, .. } = &error else { panic!("{name}: {error}") };
            assert_eq!(recipients, &["lead", "human", "alice"], "{}", fixture.kind);
        }
        mail.send("human", message("bob", "x")).await.unwrap();
    }
}

#[tokio::test]
async fn long_message_and_full_inbox_are_errors() {
    for fixture in store_fixtures().await {
        let mail = &fixture.stores.mailbox;
        let error = mail.send("lead", message("bob", &"x".repeat(MESSAGE_BYTES_MAX))).await.unwrap_err();
        assert!(matches!(error, StoreError::TooLarge { .. }), "{error}");
        let large = message("bob", &"x".repeat(MESSAGE_BYTES_MAX - 1000));
        let mut sent = 0;
        let error = loop {
            match mail.send("lead", large.clone()).await {
                Ok(_) => sent += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, StoreError::InboxFull { .. }), "{error}");
        assert_eq!(sent, 16, "{}", fixture.kind);
        let taken = mail.take("lead", &HashSet::new()).await.unwrap();
        assert_eq!(taken.len(), 16);
        // The taken messages still wait.
        assert!(
            matches!(mail.send("lead", large.clone()).await, Err(StoreError::InboxFull { .. })),
            "{}",
            fixture.kind
        );
        mail.settle("lead", &keys(&taken)).await.unwrap();
        eventually("the disk has room again", async || mail.send("lead", large.clone()).await.is_ok()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_senders_keep_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let reader = mailbox(real(), folder.path(), Durability::Process);
    let senders: Vec<_> = (0..8)
        .map(|sender| {
            let mail = mailbox(real(), folder.path(), Durability::Process);
            tokio::spawn(async move {
                for number in 0..50 {
                    mail.send("lead", message(&format!("s{sender}"), &number.to_string())).await.unwrap();
                }
            })
        })
        .collect();
    let mut delivered = HashSet::new();
    let mut received: Vec<(String, u32)> = Vec::new();
    while received.len() < 400 {
        for delivery in reader.take("lead", &delivered).await.unwrap() {
            received.push((delivery.message.from, delivery.message.content.parse().unwrap()));
            assert!(delivered.insert(delivery.key), "delivered twice");
        }
        reader.settle("lead", &delivered).await.unwrap();
    }
    for sender in senders {
        sender.await.unwrap();
    }
    assert!(reader.take("lead", &delivered).await.unwrap().is_empty());
    for sender in 0..8 {
        let from: Vec<u32> =
            received.iter().filter(|(from, _)| *from == format!("s{sender}")).map(|got| got.1).collect();
        assert_eq!(from, (0..50).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn mail_of_program_without_locks_is_delivered_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mail = mailbox(real(), path, Durability::Process);
    mail.open_inboxes(&names(&["alice"])).await.unwrap();
    let sample = include_str!("../contracts/inbox.jsonl");
    append_without_lock(path, "alice", sample);
    let first = mail.take("alice", &HashSet::new()).await.unwrap();
    assert_eq!(first.len(), sample.lines().count());
    let carried = keys(&first);
    assert_eq!(carried.len(), first.len());
    drop(mail);
    let mail = mailbox(real(), path, Durability::Process);
    assert_eq!(keys(&mail.take("alice", &HashSet::new()).await.unwrap()), carried, "the keys changed");
    assert!(mail.take("alice", &carried).await.unwrap().is_empty());
    eventually("the taken file is removed without a call", async || taken_files(path).is_empty()).await;
    // The same lines again are new messages.
    append_without_lock(path, "alice", sample);
    assert_eq!(mail.take("alice", &carried).await.unwrap().len(), first.len());
}

#[tokio::test]
async fn line_written_into_taken_file_is_delivered() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mail = mailbox(real(), path, Durability::Process);
    append_without_lock(path, "lead", "{\"content\": \"one\"}\n");
    let mut late = fs::OpenOptions::new().append(true).open(inbox(path, "lead")).unwrap();
    let mut delivered = keys(&mail.take("lead", &HashSet::new()).await.unwrap());
    mail.settle("lead", &delivered).await.unwrap();
    assert!(mail.recipients_with_mail().await.unwrap().is_empty());
    late.write_all(b"{\"content\": \"two\"}\n").unwrap();
    drop(late);
    let mut late_mail = Vec::new();
    eventually("the late line is delivered", async || {
        late_mail = mail.take("lead", &delivered).await.unwrap();
        !late_mail.is_empty()
    })
    .await;
    assert_eq!(contents(&late_mail), ["two"]);
    delivered.extend(keys(&late_mail));
    mail.settle("lead", &delivered).await.unwrap();
    eventually("the taken file is removed", async || taken_files(path).is_empty()).await;
}

#[tokio::test]
async fn torn_line_loses_no_other_message() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mail = mailbox(real(), path, Durability::Process);
    mail.send("lead", message("bob", "before")).await.unwrap();
    append_without_lock(path, "lead", "{\"type\": \"message\", \"content\": \"half a li");
    mail.send("lead", message("bob", "after")).await.unwrap();
    append_without_lock(path, "lead", "{\"content\": \"no newline\"}");
    assert_eq!(contents(&mail.take("lead", &HashSet::new()).await.unwrap()), ["before", "after", "no newline"]);
    let restarted = mailbox(real(), path, Durability::Process);
    let taken = restarted.take("lead", &HashSet::new()).await.unwrap();
    restarted.settle("lead", &keys(&taken)).await.unwrap();
    eventually("the taken file is removed", async || taken_files(path).is_empty()).await;
    let quarantine = fs::read_to_string(path.join(".team/inbox/.spoiled.jsonl")).unwrap();
    assert!(quarantine.contains("half a li") && quarantine.lines().count() == 1, "{quarantine}");
}

#[tokio::test]
async fn torn_line_is_waited_for_then_quarantined() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mail = mailbox(real(), path, Durability::Process);
    append_without_lock(path, "lead", "{\"content\": ");
    let mut rest = fs::OpenOptions::new().append(true).open(inbox(path, "lead")).unwrap();
    assert!(mail.take("lead", &HashSet::new()).await.unwrap().is_empty());
    assert!(!path.join(".team/inbox/.spoiled.jsonl").exists());
    assert_eq!(mail.recipients_with_mail().await.unwrap(), ["lead"]);
    rest.write_all(b"\"whole\"}\n").unwrap();
    let taken = mail.take("lead", &HashSet::new()).await.unwrap();
    assert_eq!(contents(&taken), ["whole"]);
    mail.settle("lead", &keys(&taken)).await.unwrap();
    append_without_lock(path, "lead", "{\"content\": \"never who");
    eventually("the line is set aside", async || {
        assert!(mail.take("lead", &keys(&taken)).await.unwrap().is_empty());
        path.join(".team/inbox/.spoiled.jsonl").exists()
    })
    .await;
    assert!(mail.recipients_with_mail().await.unwrap().is_empty());
    eventually("no temporary file is left", async || taken_files(path).is_empty()).await;
}

#[tokio::test]
async fn invalid_inbox_lines_block_no_message() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mail = mailbox(real(), path, Durability::Process);
    mail.send("lead", message("bob", "first")).await.unwrap();
    let mut garbage: Vec<u8> =
        b"\xff\xfe\x00\n[1]\nnull\n{\"content\": 5}\n{\"id\": 7, \"content\": \"x\"}\n\n \n".to_vec();
    garbage.extend(format!("{{\"content\": \"{}\"}}\n", "x".repeat(2 * MESSAGE_BYTES_MAX)).bytes());
    let mut file = fs::OpenOptions::new().append(true).open(inbox(path, "lead")).unwrap();
    file.write_all(&garbage).unwrap();
    mail.send("lead", message("bob", "last")).await.unwrap();
    let taken = mail.take("lead", &HashSet::new()).await.unwrap();
    assert_eq!(contents(&taken), ["first", "last"]);
    mail.settle("lead", &keys(&taken)).await.unwrap();
    eventually("the taken file is removed", async || taken_files(path).is_empty()).await;
    let quarantine = fs::read_to_string(path.join(".team/inbox/.spoiled.jsonl")).unwrap();
    assert_eq!(quarantine.lines().count(), 6);
    fs::create_dir(inbox(path, "human")).unwrap();
    assert!(mail.send("human", message("bob", "x")).await.is_err());
    assert!(mail.take("human", &HashSet::new()).await.unwrap().is_empty());
}

#[tokio::test]
async fn linked_inbox_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mail = mailbox(real(), path, Durability::Process);
    mail.open_inboxes(&names(&["alice"])).await.unwrap();
    fs::write(path.join("secret"), "{\"content\": \"secret\"}\n").unwrap();
    std::os::unix::fs::symlink(path.join("secret"), inbox(path, "alice")).unwrap();
    assert!(mail.send("alice", message("bob", "x")).await.is_err());
    assert_eq!(fs::read_to_string(path.join("secret")).unwrap().lines().count(), 1);
    assert!(mail.take("alice", &HashSet::new()).await.unwrap().is_empty());
    mail.send("alice", message("bob", "x")).await.unwrap();
    assert_eq!(mail.take("alice", &HashSet::new()).await.unwrap().len(), 1);
}

#[tokio::test]
async fn inbox_emptied_by_other_reader_keeps_working() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let mail = mailbox(real(), &path, Durability::Process);
    let other_reader = {
        let path = inbox(&path, "lead");
        std::thread::spawn(move || {
            let mut taken = 0;
            for _ in 0..200 {
                if let Ok(text) = fs::read_to_string(&path) {
                    taken += text.lines().count();
                    fs::write(&path, "").unwrap();
                }
                std::thread::sleep(Duration::from_micros(300));
            }
            taken
        })
    };
    let mut delivered = HashSet::new();
    for number in 0..200 {
        mail.send("lead", message("bob", &number.to_string())).await.unwrap();
        if number % 3 == 0 {
            let taken = mail.take("lead", &delivered).await.unwrap();
            delivered.extend(keys(&taken));
            mail.settle("lead", &delivered).await.unwrap();
        }
    }
    assert!(other_reader.join().unwrap() > 0);
    let taken = mail.take("lead", &delivered).await.unwrap();
    delivered.extend(keys(&taken));
    mail.send("lead", message("bob", "still works")).await.unwrap();
    assert_eq!(contents(&mail.take("lead", &delivered).await.unwrap()), ["still works"]);
}

#[tokio::test]
async fn inbox_name_is_found_in_any_case() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mail = mailbox(real(), path, Durability::Process);
    mail.open_inboxes(&names(&["Alice"])).await.unwrap();
    append_without_lock(path, "alice", "{\"content\": \"hello\"}\n");
    append_without_lock(path, "stranger", "{\"content\": \"hello\"}\n");
    assert_eq!(mail.recipients_with_mail().await.unwrap(), ["Alice"]);
    assert_eq!(contents(&mail.take("Alice", &HashSet::new()).await.unwrap()), ["hello"]);
}

#[tokio::test]
async fn new_run_replaces_recipients_for_all_processes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let first = mailbox(real(), path, Durability::Process);
    first.open_inboxes(&names(&["alice", "bob"])).await.unwrap();
    let visitor = mailbox(real(), path, Durability::Process);
    visitor.send("bob", message("human", "x")).await.unwrap();
    first.open_inboxes(&names(&["carol"])).await.unwrap();
    visitor.send("carol", message("human", "x")).await.unwrap();
    let second = mailbox(real(), path, Durability::Process);
    second.open_inboxes(&names(&["alice"])).await.unwrap();
    assert!(matches!(visitor.send("bob", message("human", "x")).await, Err(StoreError::UnknownRecipient { .. })));
    visitor.send("alice", message("human", "x")).await.unwrap();
    assert_eq!(second.recipients_with_mail().await.unwrap(), ["alice"]);
}

#[tokio::test]
async fn invalid_inboxes_are_quarantined() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mail = mailbox(real(), path, Durability::Process);
    mail.open_inboxes(&names(&["alice", "bob", "carol"])).await.unwrap();
    fs::create_dir(inbox(path, "alice")).unwrap();
    std::os::unix::fs::symlink("/nowhere", inbox(path, "bob")).unwrap();
    fs::File::create(inbox(path, "carol")).unwrap().set_len(65 * 1024 * 1024).unwrap();
    assert!(mail.recipients_with_mail().await.unwrap().is_empty());
    assert_eq!(fs::read_dir(path.join(".team/inbox/.spoiled")).unwrap().count(), 3);
    for name in ["alice", "bob", "carol"] {
        mail.send(name, message("lead", "hello")).await.unwrap();
        assert_eq!(contents(&mail.take(name, &HashSet::new()).await.unwrap()), ["hello"], "{name}");
    }
    fs::create_dir(inbox(path, "alice")).unwrap();
    mail.take("alice", &HashSet::new()).await.unwrap();
    assert!(!inbox(path, "alice").exists(), "a folder is quarantined without a list of waiting mail");
}

#[tokio::test]
async fn settled_mail_is_removed_by_later_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let first = mailbox(real(), path, Durability::Process);
    append_without_lock(path, "human", "{\"content\": \"one\"}\n{\"content\": \"two\"}\n");
    let taken = first.take("human", &HashSet::new()).await.unwrap();
    assert_eq!(first.peek("human").await.unwrap(), taken, "the same keys");
    first.settle("human", &HashSet::from([taken[0].key.clone()])).await.unwrap();
    assert_eq!(contents(&first.peek("human").await.unwrap()), ["two"]);
    drop(first);
    // Each process that looks once releases the messages that settled before it started.
    eventually("the taken file is removed", async || {
        mailbox(real(), path, Durability::Process).settle("human", &keys(&taken)).await.unwrap();
        taken_files(path).is_empty()
    })
    .await;
}
