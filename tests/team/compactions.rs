//! Compactions that a person requests: their time, their cost, and the answer if nothing is to compact.

use std::time::Duration;

use brigade::domain::log::event::EventKind;
use brigade::domain::task::TaskStatus;
use brigade::domain::team::message::MessageType;
use brigade::ports::ModelError;
use brigade::team::handle::{TeamCommand, TeamHandle};
use serde_json::json;
use tokio::sync::mpsc;

use super::harness::{ModelResult, TestTeam, call, complete, diligent, say, start_continuous, text_of};

/// Requests a compaction, and returns its result.
async fn compact(team: &TeamHandle, name: &str) -> Result<(), String> {
    let (reply, mut done) = mpsc::channel(1);
    team.command(TeamCommand::Compact { name: name.to_owned(), reply }).await;
    done.recv().await.expect("the team answers")
}

fn compactions(harness: &TestTeam) -> usize {
    harness.count(|event| matches!(event, EventKind::Compacted { .. }))
}

async fn end(harness: &TestTeam, team: TeamHandle) {
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
    harness.check_invariants().await;
}

/// A team of alice, who has done her only task and is idle.
async fn idle_after_one_task(summary: fn() -> ModelResult) -> (TestTeam, TeamHandle) {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", move |request, _| async move {
        if request.is_for_summary() { summary() } else { diligent(&request) }
    });
    harness.tasks(&["a"]).await;
    let team = harness.launch(start_continuous()).await;
    harness.wait_for_status(1, TaskStatus::Completed).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    (harness, team)
}

#[tokio::test(start_paused = true)]
async fn idle_teammate_compacts_with_one_request() {
    let (harness, team) = idle_after_one_task(|| say("SUMMARY")).await;
    let before = harness.sent_by("alice").len();
    assert_eq!(compact(&team, "Alice").await, Ok(()));
    assert_eq!((harness.sent_by("alice").len(), compactions(&harness)), (before + 1, 1));
    let again = compact(&team, "alice").await.unwrap_err();
    assert!(again.contains("nothing to compact"), "{again}");
    assert_eq!(harness.sent_by("alice").len(), before + 1, "the compaction made a request");
    harness.mail_of(MessageType::Message, "human", "alice", None).await;
    harness.wait_until("alice answers", |harness| harness.sent_by("alice").len() == before + 2).await;
    let last = harness.sent_by("alice").pop().unwrap().request;
    let text = text_of(&last);
    assert!(last.messages.len() == 1 && text.contains("SUMMARY") && !text.contains("auto-claimed"), "{text}");
    harness.tasks(&["b"]).await;
    harness.wait_for_status(2, TaskStatus::Completed).await;
    end(&harness, team).await;
}

#[tokio::test(start_paused = true)]
async fn working_teammate_compacts_after_its_turn() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |request, count| async move {
        match count {
            _ if request.is_for_summary() => say("SUMMARY"),
            0 => call(&[("nap", json!({"ms": 60_000}))]),
            _ if text_of(&request).contains("task #1 is completed") => say("Done."),
            _ => call(&[complete(1)]),
        }
    });
    harness.tasks(&["a"]).await;
    let team = harness.launch(start_continuous()).await;
    harness.wait_until("the slow tool runs", |harness| harness.notes().len() == 1).await;
    assert_eq!(compact(&team, "alice").await, Ok(()));
    assert_eq!(harness.notes().len(), 2, "the slow tool was aborted");
    harness.wait_for_status(1, TaskStatus::Completed).await;
    let sent = harness.sent_by("alice");
    assert!(
        sent[1].request.is_for_summary() && text_of(&sent[1].request).contains("nap"),
        "the summary request lacks the turn"
    );
    assert!(text_of(&sent[2].request).contains("SUMMARY"), "{}", text_of(&sent[2].request));
    assert_eq!((harness.task(1).await.attempt, compactions(&harness)), (1, 1));
    end(&harness, team).await;
}

#[tokio::test(start_paused = true)]
async fn full_context_is_compacted_without_model() {
    let full = || Err(ModelError::ContextTooLong { message: "too long".to_owned(), window_tokens: None });
    let (harness, team) = idle_after_one_task(full).await;
    assert_eq!(compact(&team, "alice").await, Ok(()));
    assert_eq!(compactions(&harness), 1);
    end(&harness, team).await;
    let unreachable = || Err(ModelError::Final("no such key".to_owned()));
    let (harness, team) = idle_after_one_task(unreachable).await;
    let reason = compact(&team, "alice").await.unwrap_err();
    assert!(reason.contains("stays as it is") && reason.contains("no such key"), "{reason}");
    assert_eq!(compactions(&harness), 0);
    // It had no effect on her.
    harness.tasks(&["b"]).await;
    harness.wait_for_status(2, TaskStatus::Completed).await;
    end(&harness, team).await;
}

#[tokio::test(start_paused = true)]
async fn compacted_lead_knows_itself_and_its_team() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    harness.set_model_fn("lead", |request, count| async move {
        match count {
            _ if request.is_for_summary() => say("I forget everything."),
            _ if &*request.teammate == "dora" => diligent(&request),
            0 => call(&[("spawn_teammate", json!({"name": "dora", "role": "reviewer", "prompt": "Review."}))]),
            _ => say("Hello."),
        }
    });
    let team = harness.launch(start_continuous()).await;
    harness.mail("human", "lead", "the first words").await;
    harness.wait_until("the lead has answered", |harness| harness.sent_by("lead").len() >= 2).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(compact(&team, "lead").await, Ok(()));
    let before = harness.sent_by("lead").len();
    harness.mail("human", "lead", "the next words").await;
    harness.wait_until("the lead is asked again", |harness| harness.sent_by("lead").len() > before).await;
    let text = text_of(&harness.sent_by("lead")[before].request);
    assert!(text.starts_with("<identity>You are 'lead', role: lead, team: crew"), "{text}");
    let members = text.lines().find(|line| line.starts_with("Team: ")).unwrap();
    assert!(members.contains("alice (coder)") && members.contains("dora (reviewer)"), "{text}");
    assert!(text.contains("I forget everything.") && text.contains("the next words"), "{text}");
    assert!(!text.contains("the first words"), "{text}");
    end(&harness, team).await;
}

#[tokio::test(start_paused = true)]
async fn compact_without_context_is_refused() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    let team = harness.launch(start_continuous()).await;
    for (name, says) in [
        ("lead", "the lead uses the `runbook` provider"),
        ("alice", "nothing to compact"),
        ("carol", "there is no member `carol`; members: alice"),
    ] {
        let reason = compact(&team, name).await.unwrap_err();
        assert!(reason.contains(says), "{name}: {reason}");
    }
    assert_eq!(harness.requests(), 0);
    end(&harness, team).await;
}

#[tokio::test(start_paused = true)]
async fn stop_now_does_not_wait_for_compaction() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |request, _| async move {
        if request.is_for_summary() {
            tokio::time::sleep(Duration::from_secs(100_000)).await;
        }
        diligent(&request)
    });
    harness.tasks(&["a"]).await;
    let team = harness.launch(start_continuous()).await;
    harness.wait_for_status(1, TaskStatus::Completed).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let (reply, mut done) = mpsc::channel(1);
    team.command(TeamCommand::Compact { name: "alice".to_owned(), reply }).await;
    harness
        .wait_until("the model is asked", |harness| harness.sent_by("alice").last().unwrap().request.is_for_summary())
        .await;
    team.command(TeamCommand::Abort).await;
    harness.ended(team).await;
    assert!(!matches!(done.recv().await, Some(Ok(()))));
    assert_eq!(compactions(&harness), 0);
}
