//! Mail arrives once, in order, between turns; it wakes who is idle; a stop or a crash loses none of it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use brigade::domain::event::Fact;
use brigade::domain::message::{Message, MessageType};
use brigade::domain::name::Name;
use brigade::domain::state::Mode;
use brigade::domain::transcript::Block;
use brigade::ports::{Delivery, Mailbox, ModelError, StoreResult};
use brigade::team::handle::Command;
use serde_json::json;

use super::stage::{Stage, call, complete, diligent, has_new_task, on_and_on, once, say};

/// How often a text stands in what a member was told, over all its life.
async fn told(stage: &Stage, who: &str, text: &str) -> usize {
    stage
        .transcript(who)
        .await
        .iter()
        .filter(|line| line.starts_with("< "))
        .map(|line| line.matches(text).count())
        .sum()
}

#[tokio::test(start_paused = true)]
async fn mail_that_comes_during_tools_stands_behind_their_results_in_the_same_message() {
    let mut stage = Stage::new(&["alice", "bob"]);
    stage.diligent(&["bob"]);
    stage.brain("alice", |request, count| async move {
        match count {
            0 => call(&[("nap", json!({"ms": 1000})), ("nap", json!({"ms": 1000}))]),
            1 => call(&[complete(1)]),
            _ => diligent(&request),
        }
    });
    let mut task = super::stage::new_task("a");
    task.owner = Some("alice".into());
    stage.create(vec![task]).await;
    let team = stage.launch(once()).await;
    stage.until("at it", |stage| !stage.notes().is_empty()).await;
    stage.mail("bob", "alice", "first").await;
    tokio::time::sleep(Duration::from_millis(1200)).await;
    stage.mail("bob", "alice", "second").await;
    stage.ended(team).await;
    let last = stage.sent_by("alice")[1].last();
    let kinds: Vec<bool> = last.iter().map(|block| matches!(block, Block::ToolResult { .. })).collect();
    assert_eq!(kinds, [true, true, false], "{last:?}");
    let Some(Block::Text { text }) = last.last() else { panic!("mail") };
    let places = (text.find("first"), text.find("second"));
    assert!(text.starts_with("<inbox>") && places.0 < places.1 && places.0.is_some(), "{text}");
    assert_eq!((told(&stage, "alice", "first").await, told(&stage, "alice", "second").await), (1, 1));
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn mail_wakes_who_is_idle_or_on_call_and_nobody_else() {
    let mut stage = Stage::new(&["alice", "bob"]);
    for who in ["alice", "bob"] {
        stage.brain(who, |_, _| async { say("I see.") });
    }
    let team = stage.launch(on_and_on()).await;
    for rest in [1, 300] {
        tokio::time::sleep(Duration::from_secs(rest)).await;
        let before = stage.requests();
        let sent = tokio::time::Instant::now();
        stage.mail("human", "alice", "hello").await;
        stage.until("read", |stage| stage.requests() > before).await;
        assert!(sent.elapsed() < Duration::from_millis(100), "{:?}", sent.elapsed());
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(stage.requests(), before + 1);
    }
    assert!(stage.sent_by("bob").is_empty());
    let before = stage.requests();
    stage.mail_of(MessageType::IdleNotice, "bob", "alice", None).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(stage.requests(), before, "a notice costs nothing");
    team.command(Command::Stop).await;
    stage.ended(team).await;
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn mail_under_a_pause_waits_and_costs_nothing() {
    let mut stage = Stage::new(&["alice"]);
    stage.diligent(&["alice"]);
    let team = stage.launch(on_and_on()).await;
    stage.click(Mode::Pause).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    stage.mail("human", "alice", "when you can").await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!((stage.requests(), told(&stage, "alice", "when you can").await), (0, 0));
    stage.click(Mode::Continuous).await;
    stage.until("answered", |stage| stage.requests() == 1).await;
    assert_eq!(told(&stage, "alice", "when you can").await, 1);
    team.command(Command::Stop).await;
    stage.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn restarts_lose_and_repeat_no_mail() {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", |_, _| async { say("I see.") });
    stage.open_inboxes().await;
    for round in 0..5 {
        stage.restart();
        stage.mail("human", "alice", &format!("before {round};")).await;
        let team = stage.launch(on_and_on()).await;
        tokio::time::sleep(Duration::from_millis(round * 3)).await;
        stage.mail("human", "alice", &format!("during {round};")).await;
        if round % 2 == 0 {
            tokio::time::sleep(Duration::from_millis(round)).await;
        }
        team.command(if round % 2 == 0 { Command::StopNow } else { Command::Stop }).await;
        stage.ended(team).await;
    }
    stage.restart();
    let team = stage.launch(on_and_on()).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    for round in 0..5 {
        for when in ["before", "during"] {
            assert_eq!(told(&stage, "alice", &format!("{when} {round};")).await, 1, "{when} {round}");
        }
    }
    assert!(!stage.mailbox_waits().await);
    team.command(Command::Stop).await;
    stage.ended(team).await;
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn mail_that_was_delivered_but_not_answered_is_answered_by_the_next_life() {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", |_, count| async move {
        if count == 0 {
            std::future::pending::<()>().await;
        }
        say("I see.")
    });
    let team = stage.launch(on_and_on()).await;
    stage.mail("human", "alice", "please answer").await;
    stage.until("asked", |stage| stage.requests() == 1).await;
    team.command(Command::StopNow).await;
    stage.ended(team).await;
    stage.restart();
    let team = stage.launch(on_and_on()).await;
    stage.until("asked again", |stage| stage.requests() == 2).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((stage.requests(), told(&stage, "alice", "please answer").await), (2, 1));
    team.command(Command::Stop).await;
    stage.ended(team).await;
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn mail_whose_answer_failed_is_answered_once_the_model_is_back() {
    let mut stage = Stage::new(&["alice"]);
    stage.spec.limits.model_retries_max = 0;
    stage.brain("alice", |_, count| async move {
        if count < 2 {
            return Err(ModelError::Temporary { message: "busy".into(), retry_after: None });
        }
        say("I see.")
    });
    let team = stage.launch(on_and_on()).await;
    stage.mail("human", "alice", "please answer").await;
    stage.until("answered", |stage| stage.count(|fact| matches!(fact, Fact::Said { .. })) == 1).await;
    assert_eq!((stage.requests(), told(&stage, "alice", "please answer").await), (3, 1));
    team.command(Command::Stop).await;
    stage.ended(team).await;
}

/// A mailbox whose delivery hangs between the transcript and its own note of it, while told to.
struct Hanging {
    inner: Arc<dyn Mailbox>,
    hangs: Arc<AtomicBool>,
}

#[async_trait]
impl Mailbox for Hanging {
    async fn send(&self, to: &str, message: Message) -> StoreResult<String> {
        self.inner.send(to, message).await
    }
    async fn open_inboxes(&self, names: &[Name]) -> StoreResult<()> {
        self.inner.open_inboxes(names).await
    }
    async fn take(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<Vec<Delivery>> {
        self.inner.take(name, delivered).await
    }
    async fn settle(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<()> {
        if self.hangs.load(Ordering::Relaxed) && !delivered.is_empty() {
            std::future::pending::<()>().await;
        }
        self.inner.settle(name, delivered).await
    }
    async fn peek(&self, name: &str) -> StoreResult<Vec<Delivery>> {
        self.inner.peek(name).await
    }
    async fn waiting(&self) -> StoreResult<Vec<String>> {
        self.inner.waiting().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_in_the_middle_of_a_delivery_loses_and_repeats_nothing() {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", |_, _| async { say("I see.") });
    let hangs = Arc::new(AtomicBool::new(true));
    stage.stores.mailbox = Arc::new(Hanging { inner: stage.stores.mailbox.clone(), hangs: Arc::clone(&hangs) });
    let team = stage.launch(on_and_on()).await;
    stage.mail("human", "alice", "in between").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!((stage.requests(), told(&stage, "alice", "in between").await), (0, 1), "it hangs behind the transcript");
    team.command(Command::StopNow).await;
    let asked = tokio::time::Instant::now();
    stage.ended(team).await;
    assert!(asked.elapsed() < Duration::from_secs(5), "what hangs is ended: {:?}", asked.elapsed());
    hangs.store(false, Ordering::Relaxed);
    stage.restart();
    let team = stage.launch(on_and_on()).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((stage.requests(), told(&stage, "alice", "in between").await), (1, 1), "answered once");
    assert!(!stage.mailbox_waits().await);
    team.command(Command::Stop).await;
    stage.ended(team).await;
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_mail_is_read_in_portions_and_in_order() {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", |request, _| async move {
        if has_new_task(&request) { call(&[complete(1)]) } else { say("I see.") }
    });
    stage.open_inboxes().await;
    for number in 0..40 {
        stage.mail("human", "alice", &format!("[{number}] {}", "x".repeat(10_000))).await;
    }
    let team = stage.launch(once()).await;
    stage.ended(team).await;
    let sent = stage.sent_by("alice");
    assert!(sent.len() >= 6, "{} requests", sent.len());
    let transcript = stage.transcript("alice").await.join("\n");
    let places: Vec<usize> = (0..40).map(|number| transcript.find(&format!("[{number}] x")).unwrap()).collect();
    assert!(places.is_sorted());
    stage.check_laws().await;
}

/// A mailbox in which the inbox of alice cannot be read.
struct Unreadable(Arc<dyn Mailbox>);

fn unreadable(name: &str) -> StoreResult<()> {
    let source = std::io::ErrorKind::PermissionDenied.into();
    let error = brigade::ports::StoreError::Io { action: "read", path: "the inbox".into(), source };
    if name == "alice" { Err(error) } else { Ok(()) }
}

#[async_trait]
impl Mailbox for Unreadable {
    async fn send(&self, to: &str, message: Message) -> StoreResult<String> {
        self.0.send(to, message).await
    }
    async fn open_inboxes(&self, names: &[Name]) -> StoreResult<()> {
        self.0.open_inboxes(names).await
    }
    async fn take(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<Vec<Delivery>> {
        unreadable(name)?;
        self.0.take(name, delivered).await
    }
    async fn settle(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<()> {
        self.0.settle(name, delivered).await
    }
    async fn peek(&self, name: &str) -> StoreResult<Vec<Delivery>> {
        unreadable(name)?;
        self.0.peek(name).await
    }
    async fn waiting(&self) -> StoreResult<Vec<String>> {
        self.0.waiting().await
    }
}

#[tokio::test(start_paused = true)]
async fn mail_that_cannot_be_read_keeps_no_session_open_and_is_no_success() {
    let mut stage = Stage::new(&["alice", "bob"]);
    stage.diligent(&["alice", "bob"]);
    stage.open_inboxes().await;
    stage.tasks(&["one"]).await;
    stage.mail("human", "alice", "are you there?").await;
    stage.stores.mailbox = Arc::new(Unreadable(stage.stores.mailbox.clone()));
    let outcome = stage.run_once().await;
    assert_eq!(outcome.tally.completed, 1);
    assert_eq!(outcome.trouble.as_deref(), Some("Mail was not read: brigade inbox alice."), "{}", stage.story());
}
