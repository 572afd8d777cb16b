//! Mail arrives once, in order, between turns. It wakes idle members. A stop or a crash loses none of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use brigade::domain::agent::transcript::Block;
use brigade::domain::log::event::EventKind;
use brigade::domain::team::message::MessageType;
use brigade::domain::team::state::Mode;
use brigade::ports::{Call, ModelError, StoreError};
use brigade::team::handle::TeamCommand;
use serde_json::json;

use super::harness::{TestTeam, call, complete, diligent, has_new_task, once, say, start_continuous};
use crate::testkit::interceptors::{CallFate, with_fates};

/// The number of times that a text is in the transcript of a member.
async fn times_told(harness: &TestTeam, who: &str, text: &str) -> usize {
    harness
        .transcript(who)
        .await
        .iter()
        .filter(|line| line.starts_with("< "))
        .map(|line| line.matches(text).count())
        .sum()
}

#[tokio::test(start_paused = true)]
async fn mail_during_tool_calls_follows_their_results() {
    let mut harness = TestTeam::new(&["alice", "bob"]);
    harness.diligent(&["bob"]);
    harness.set_model_fn("alice", |request, count| async move {
        match count {
            0 => call(&[("nap", json!({"ms": 1000})), ("nap", json!({"ms": 1000}))]),
            1 => call(&[complete(1)]),
            _ => diligent(&request),
        }
    });
    let mut task = super::harness::new_task("a");
    task.owner = Some("alice".into());
    harness.create(vec![task]).await;
    let team = harness.launch(once()).await;
    harness.wait_until("alice works", |harness| !harness.notes().is_empty()).await;
    harness.mail("bob", "alice", "first").await;
    tokio::time::sleep(Duration::from_millis(1200)).await;
    harness.mail("bob", "alice", "second").await;
    harness.ended(team).await;
    let last = harness.sent_by("alice")[1].last();
    let kinds: Vec<bool> = last.iter().map(|block| matches!(block, Block::ToolResult { .. })).collect();
    assert_eq!(kinds, [true, true, false], "{last:?}");
    let Some(Block::Text { text }) = last.last() else { panic!("mail") };
    let places = (text.find("first"), text.find("second"));
    assert!(text.starts_with("<inbox>") && places.0 < places.1 && places.0.is_some(), "{text}");
    assert_eq!((times_told(&harness, "alice", "first").await, times_told(&harness, "alice", "second").await), (1, 1));
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn mail_wakes_only_its_idle_recipient() {
    let mut harness = TestTeam::new(&["alice", "bob"]);
    for who in ["alice", "bob"] {
        harness.set_model_fn(who, |_, _| async { say("I see.") });
    }
    let team = harness.launch(start_continuous()).await;
    for rest in [1, 300] {
        tokio::time::sleep(Duration::from_secs(rest)).await;
        let before = harness.requests();
        let sent = tokio::time::Instant::now();
        harness.mail("human", "alice", "hello").await;
        harness.wait_until("read", |harness| harness.requests() > before).await;
        assert!(sent.elapsed() < Duration::from_millis(100), "{:?}", sent.elapsed());
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(harness.requests(), before + 1);
    }
    assert!(harness.sent_by("bob").is_empty());
    let before = harness.requests();
    harness.mail_of(MessageType::IdleNotice, "bob", "alice", None).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(harness.requests(), before, "a notice made a request");
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn mail_during_pause_waits_without_requests() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    let team = harness.launch(start_continuous()).await;
    harness.click(Mode::Pause).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    harness.mail("human", "alice", "when you can").await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!((harness.requests(), times_told(&harness, "alice", "when you can").await), (0, 0));
    harness.click(Mode::Continuous).await;
    harness.wait_until("answered", |harness| harness.requests() == 1).await;
    assert_eq!(times_told(&harness, "alice", "when you can").await, 1);
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn mail_is_answered_once_after_model_recovers() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.spec.limits.model.retries_max = 0;
    harness.set_model_fn("alice", |_, count| async move {
        if count < 2 {
            return Err(ModelError::Temporary { message: "busy".into(), retry_after: None });
        }
        say("I see.")
    });
    let team = harness.launch(start_continuous()).await;
    harness.mail("human", "alice", "please answer").await;
    harness.wait_until("answered", |harness| harness.count(|event| matches!(event, EventKind::Said { .. })) == 1).await;
    assert_eq!((harness.requests(), times_told(&harness, "alice", "please answer").await), (3, 1));
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn stop_during_delivery_delivers_mail_once() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |_, _| async { say("I see.") });
    let hangs = Arc::new(AtomicBool::new(true));
    // The delivery hangs between the transcript and its own record.
    let hanging = Arc::clone(&hangs);
    harness.stores = with_fates(&harness.stores, move |call| match call {
        Call::SettleMail(keys) if hanging.load(Ordering::Relaxed) && !keys.is_empty() => CallFate::Hangs,
        _ => CallFate::Proceeds,
    });
    let team = harness.launch(start_continuous()).await;
    harness.mail("human", "alice", "in between").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(
        (harness.requests(), times_told(&harness, "alice", "in between").await),
        (0, 1),
        "the delivery hangs after the transcript"
    );
    team.command(TeamCommand::Abort).await;
    let requested_at = tokio::time::Instant::now();
    harness.ended(team).await;
    assert!(
        requested_at.elapsed() < Duration::from_secs(5),
        "the hanging delivery was not ended: {:?}",
        requested_at.elapsed()
    );
    hangs.store(false, Ordering::Relaxed);
    harness.restart();
    let team = harness.launch(start_continuous()).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(
        (harness.requests(), times_told(&harness, "alice", "in between").await),
        (1, 1),
        "the message was not answered once"
    );
    assert!(!harness.has_mail().await);
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn large_inbox_is_read_in_batches_in_order() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |request, _| async move {
        if has_new_task(&request) { call(&[complete(1)]) } else { say("I see.") }
    });
    harness.open_inboxes().await;
    for number in 0..40 {
        harness.mail("human", "alice", &format!("[{number}] {}", "x".repeat(10_000))).await;
    }
    let team = harness.launch(once()).await;
    harness.ended(team).await;
    let sent = harness.sent_by("alice");
    assert!(sent.len() >= 6, "{} requests", sent.len());
    let transcript = harness.transcript("alice").await.join("\n");
    let places: Vec<usize> = (0..40).map(|number| transcript.find(&format!("[{number}] x")).unwrap()).collect();
    assert!(places.is_sorted());
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn unreadable_mail_ends_session_with_trouble() {
    let mut harness = TestTeam::new(&["alice", "bob"]);
    harness.diligent(&["alice", "bob"]);
    harness.open_inboxes().await;
    harness.tasks(&["one"]).await;
    harness.mail("human", "alice", "are you there?").await;
    harness.stores = with_fates(&harness.stores, |call| match call {
        Call::TakeMail("alice") | Call::PeekMail("alice") => {
            let source = std::io::ErrorKind::PermissionDenied.into();
            CallFate::Fails(StoreError::Io { action: "read".into(), place: "the inbox".into(), source })
        }
        _ => CallFate::Proceeds,
    });
    let outcome = harness.run_once().await;
    assert_eq!(outcome.task_counts.completed, 1);
    assert_eq!(outcome.error.as_deref(), Some("Mail of alice was not read."), "{}", harness.event_lines());
}
