//! Compactions that a person asks for: when they happen, what they cost, and what is said where there is nothing to compact.

use std::time::Duration;

use brigade::domain::event::Fact;
use brigade::domain::message::MessageType;
use brigade::domain::task::TaskStatus;
use brigade::ports::ModelError;
use brigade::team::handle::{Command, TeamHandle};
use serde_json::json;
use tokio::sync::mpsc;

use super::stage::{Answer, Stage, call, complete, diligent, on_and_on, say, text_of};

/// Asks for a compaction, and returns what came of it.
async fn compact(team: &TeamHandle, name: &str) -> Result<(), String> {
    let (reply, mut done) = mpsc::channel(1);
    team.command(Command::Compact { name: name.to_owned(), reply }).await;
    done.recv().await.expect("somebody answers")
}

fn compactions(stage: &Stage) -> usize {
    stage.count(|fact| matches!(fact, Fact::Compacted { .. }))
}

async fn end(stage: &Stage, team: TeamHandle) {
    team.command(Command::Stop).await;
    stage.ended(team).await;
    stage.check_laws().await;
}

/// A team of alice, who has done her only task and is idle.
async fn rested(summary: fn() -> Answer) -> (Stage, TeamHandle) {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", move |request, _| async move {
        if request.is_for_summary() { summary() } else { diligent(&request) }
    });
    stage.tasks(&["a"]).await;
    let team = stage.launch(on_and_on()).await;
    stage.until_status(1, TaskStatus::Completed).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    (stage, team)
}

#[tokio::test(start_paused = true)]
async fn one_that_is_idle_compacts_at_once_with_one_request_and_goes_on_from_the_summary() {
    let (stage, team) = rested(|| say("SUMMARY")).await;
    let before = stage.sent_by("alice").len();
    assert_eq!(compact(&team, "Alice").await, Ok(()));
    assert_eq!((stage.sent_by("alice").len(), compactions(&stage)), (before + 1, 1));
    let again = compact(&team, "alice").await.unwrap_err();
    assert!(again.contains("nothing to compact"), "{again}");
    assert_eq!(stage.sent_by("alice").len(), before + 1, "that costs nothing");
    stage.mail_of(MessageType::Message, "human", "alice", None).await;
    stage.until("she answers", |stage| stage.sent_by("alice").len() == before + 2).await;
    let last = stage.sent_by("alice").pop().unwrap().request;
    let text = text_of(&last);
    assert!(last.messages.len() == 1 && text.contains("SUMMARY") && !text.contains("auto-claimed"), "{text}");
    stage.tasks(&["b"]).await;
    stage.until_status(2, TaskStatus::Completed).await;
    end(&stage, team).await;
}

#[tokio::test(start_paused = true)]
async fn one_in_a_turn_compacts_after_it_and_keeps_its_task() {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", |request, count| async move {
        match count {
            _ if request.is_for_summary() => say("SUMMARY"),
            0 => call(&[("nap", json!({"ms": 60_000}))]),
            _ if text_of(&request).contains("task #1 is completed") => say("Done."),
            _ => call(&[complete(1)]),
        }
    });
    stage.tasks(&["a"]).await;
    let team = stage.launch(on_and_on()).await;
    stage.until("she naps", |stage| stage.notes().len() == 1).await;
    assert_eq!(compact(&team, "alice").await, Ok(()));
    assert_eq!(stage.notes().len(), 2, "the nap was not broken off");
    stage.until_status(1, TaskStatus::Completed).await;
    let sent = stage.sent_by("alice");
    assert!(sent[1].request.is_for_summary() && text_of(&sent[1].request).contains("nap"), "the turn is in it");
    assert!(text_of(&sent[2].request).contains("SUMMARY"), "{}", text_of(&sent[2].request));
    assert_eq!((stage.task(1).await.attempt, compactions(&stage)), (1, 1));
    end(&stage, team).await;
}

#[tokio::test(start_paused = true)]
async fn a_context_that_is_full_is_compacted_without_its_model_and_one_that_is_not_stays() {
    let full = || Err(ModelError::ContextTooLong { message: "too long".to_owned(), window_tokens: None });
    let (stage, team) = rested(full).await;
    assert_eq!(compact(&team, "alice").await, Ok(()));
    assert_eq!(compactions(&stage), 1);
    end(&stage, team).await;
    let unreachable = || Err(ModelError::Final("no such key".to_owned()));
    let (stage, team) = rested(unreachable).await;
    let reason = compact(&team, "alice").await.unwrap_err();
    assert!(reason.contains("stays as it is") && reason.contains("no such key"), "{reason}");
    assert_eq!(compactions(&stage), 0);
    // It was of no consequence for her.
    stage.tasks(&["b"]).await;
    stage.until_status(2, TaskStatus::Completed).await;
    end(&stage, team).await;
}

#[tokio::test(start_paused = true)]
async fn who_has_no_context_says_so() {
    let mut stage = Stage::new(&["alice"]);
    stage.diligent(&["alice"]);
    let team = stage.launch(on_and_on()).await;
    for (name, says) in [
        ("lead", "the lead goes by rule"),
        ("alice", "nothing to compact"),
        ("carol", "nobody called `carol`; there are: alice"),
    ] {
        let reason = compact(&team, name).await.unwrap_err();
        assert!(reason.contains(says), "{name}: {reason}");
    }
    assert_eq!(stage.requests(), 0);
    end(&stage, team).await;
}

#[tokio::test(start_paused = true)]
async fn a_team_that_stops_does_not_wait_for_a_compaction() {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", |request, _| async move {
        if request.is_for_summary() {
            tokio::time::sleep(Duration::from_secs(100_000)).await;
        }
        diligent(&request)
    });
    stage.tasks(&["a"]).await;
    let team = stage.launch(on_and_on()).await;
    stage.until_status(1, TaskStatus::Completed).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let (reply, mut done) = mpsc::channel(1);
    team.command(Command::Compact { name: "alice".to_owned(), reply }).await;
    stage.until("the model is asked", |stage| stage.sent_by("alice").last().unwrap().request.is_for_summary()).await;
    team.command(Command::StopNow).await;
    stage.ended(team).await;
    assert!(!matches!(done.recv().await, Some(Ok(()))));
    assert_eq!(compactions(&stage), 0);
}
