//! The person steers: desired states and stops.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use brigade::domain::log::event::EventKind;
use brigade::domain::task::TaskStatus;
use brigade::domain::team::phase::ReportedPhase;
use brigade::domain::team::state::{Mode, SetBy};
use brigade::ports::{Listener, ModelClient, ModelRequest};
use brigade::team::StartOptions;
use brigade::team::handle::{TeamCommand, TeamEnd};
use serde_json::json;
use tokio::time::Instant;

use super::harness::{
    ModelResult, TestTeam, call, complete, diligent, has_new_task, lock, once, say, start_continuous, task_at_hand,
};

/// One teammate whose tasks take this many milliseconds each.
fn team_with_slow_tasks(ms: u64) -> TestTeam {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", move |request, _| async move {
        match task_at_hand(&request).filter(|_| has_new_task(&request)) {
            Some(task) => call(&[("nap", json!({"ms": ms})), complete(task)]),
            None => say("Done."),
        }
    });
    harness
}

#[tokio::test(start_paused = true)]
async fn pause_finishes_current_task_and_starts_none() {
    let harness = team_with_slow_tasks(10_000);
    harness.tasks(&["a", "b"]).await;
    let team = harness.launch(start_continuous()).await;
    harness.wait_until("alice works", |harness| !harness.notes().is_empty()).await;
    harness.click(Mode::Pause).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let state = harness.shared().await;
    assert_eq!((state.desired, state.current), (Mode::Pause, Mode::Continuous), "a turn still runs");
    harness.wait_for_status(1, TaskStatus::Completed).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(harness.shared().await.current, Mode::Pause);
    assert_eq!((harness.task(2).await.status, harness.task(2).await.attempt), (TaskStatus::Pending, 0));
    let before = Instant::now();
    harness.click(Mode::Continuous).await;
    harness.wait_for_status(2, TaskStatus::Completed).await;
    assert!(before.elapsed() < Duration::from_millis(10_600), "{:?}", before.elapsed());
    team.command(TeamCommand::Stop).await;
    let outcome = harness.ended(team).await;
    assert_eq!(outcome.end, TeamEnd::Interrupted);
    assert_eq!(harness.shared().await.current, Mode::Pause);
    assert_eq!(harness.shared().await.desired, Mode::Continuous, "a stop changed the desired state");
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn run_once_ends_in_pause_with_note() {
    let harness = team_with_slow_tasks(10);
    harness.tasks(&["a"]).await;
    let team = harness.launch(StartOptions { mode: Some(Mode::RunOnce), ..StartOptions::default() }).await;
    harness.wait_for_status(1, TaskStatus::Completed).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let state = harness.shared().await;
    assert_eq!((state.desired, state.current, &state.set_by), (Mode::Pause, Mode::Pause, &SetBy::Brigade));
    assert!(state.note.contains("run_once is done"), "{}", state.note);
    harness.tasks(&["b"]).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(harness.task(2).await.status, TaskStatus::Pending, "a second session ran");
    harness.click(Mode::RunOnce).await;
    harness.wait_for_status(2, TaskStatus::Completed).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(harness.shared().await.desired, Mode::Pause);
    assert_eq!(harness.count(|event| matches!(event, EventKind::SessionFinished { .. })), 2);
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn session_without_work_shows_its_mode() {
    let harness = TestTeam::new(&[]);
    assert_eq!(harness.run_once().await.end, TeamEnd::SessionOver);
    assert_eq!(*lock(&harness.state.current_states), [Mode::Pause, Mode::RunOnce, Mode::Pause]);
    for (before, modes) in [
        (Mode::Continuous, &[Mode::Continuous, Mode::RunOnce, Mode::Pause][..]),
        (Mode::Pause, &[Mode::Pause, Mode::RunOnce, Mode::Pause]),
    ] {
        let harness = TestTeam::new(&[]);
        let team = harness.launch(StartOptions { mode: Some(before), ..StartOptions::default() }).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        lock(&harness.state.current_states).retain(|mode| *mode == before);
        harness.click(Mode::RunOnce).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(*lock(&harness.state.current_states), modes);
        assert_eq!(harness.shared().await.desired, Mode::Pause);
        team.command(TeamCommand::Stop).await;
        harness.ended(team).await;
    }
}

#[tokio::test(start_paused = true)]
async fn replaced_state_file_is_reported_also_in_pause() {
    let harness = TestTeam::new(&[]);
    let team = harness.launch(StartOptions { mode: Some(Mode::Pause), ..StartOptions::default() }).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let invalid =
        "agent_state.json was invalid: expected value at line 1 column 1; its copy is agent_state.json.malformed-1";
    let reported = |text: &str| {
        harness
            .count(|event| matches!(event, EventKind::ModeChanged { desired: Mode::Pause, note, .. } if note == text))
    };
    harness.state.put(None);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(reported("agent_state.json was missing"), 1, "{}", harness.event_lines());
    assert_eq!(harness.shared().await.desired, Mode::Pause, "the file was not written again");
    harness.state.put(Some(&json!({"desired_state": "pause", "note": invalid}).to_string()));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(reported(invalid), 1, "{}", harness.event_lines());
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn desired_state_set_in_session_survives_its_end() {
    let harness = team_with_slow_tasks(5000);
    harness.tasks(&["a"]).await;
    let team = harness.launch(StartOptions { mode: Some(Mode::RunOnce), ..StartOptions::default() }).await;
    harness.wait_until("alice works", |harness| !harness.notes().is_empty()).await;
    harness.click(Mode::Continuous).await;
    harness.wait_for_status(1, TaskStatus::Completed).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let state = harness.shared().await;
    assert_eq!((state.desired, &state.set_by), (Mode::Continuous, &SetBy::Person));
    harness.tasks(&["b"]).await;
    harness.wait_for_status(2, TaskStatus::Completed).await;
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn unknown_or_missing_desired_state_pauses() {
    for text in [Some(r#"{"desired_state":"hyperdrive","mine":1}"#), None] {
        let harness = team_with_slow_tasks(2000);
        harness.tasks(&["a"]).await;
        let team = harness.launch(start_continuous()).await;
        harness.wait_until("alice works", |harness| !harness.notes().is_empty()).await;
        harness.state.put(text);
        harness.wait_for_status(1, TaskStatus::Completed).await;
        harness.tasks(&["b"]).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!((harness.task(2).await.status, harness.shared().await.current), (TaskStatus::Pending, Mode::Pause));
        let warned = |event: &EventKind| matches!(event, EventKind::Warning { text, .. } if text.contains("unknown desired_state `hyperdrive`"));
        assert_eq!(harness.count(warned), usize::from(text.is_some()));
        if text.is_some() {
            let file = harness.shared().await.to_file();
            assert!(file.contains("hyperdrive") && file.contains("mine"), "{file}");
        }
        harness.click(Mode::Continuous).await;
        harness.wait_for_status(2, TaskStatus::Completed).await;
        team.command(TeamCommand::Stop).await;
        harness.ended(team).await;
    }
}

#[tokio::test(start_paused = true)]
async fn stale_fields_of_outside_writer_are_corrected() {
    let harness = team_with_slow_tasks(5000);
    harness.tasks(&["a"]).await;
    let team = harness.launch(start_continuous()).await;
    harness.wait_until("alice works", |harness| !harness.notes().is_empty()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    harness.state.put(Some(r#"{"desired_state":"continuous","current_state":"pause","team":"crew","teammates":{}}"#));
    tokio::time::sleep(Duration::from_millis(100)).await;
    let state = harness.shared().await;
    assert_eq!(state.current, Mode::Continuous);
    assert!(state.to_file().contains("alice"), "{}", state.to_file());
    team.command(TeamCommand::Abort).await;
    harness.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn stop_finishes_turn_and_releases_claims() {
    let mut harness = TestTeam::new(&["alice", "bob"]);
    for who in ["alice", "bob"] {
        harness.set_model_fn(who, |_, _| async { call(&[("nap", json!({"ms": 20_000}))]) });
    }
    harness.tasks(&["a", "b", "c"]).await;
    let team = harness.launch(once()).await;
    harness.wait_until("both members work", |harness| harness.notes().len() == 2).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (commands, requested_at) = (team.commands(), Instant::now());
    commands.send(TeamCommand::Stop).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(team.live().teammates()["alice"].phase, ReportedPhase::Stopping, "the status does not show the stop");
    commands.send(TeamCommand::Stop).await.unwrap();
    let outcome = harness.ended(team).await;
    assert_eq!(outcome.end, TeamEnd::Interrupted);
    assert!(
        requested_at.elapsed() >= Duration::from_secs(14) && requested_at.elapsed() < Duration::from_secs(17),
        "{:?}",
        requested_at.elapsed()
    );
    assert_eq!(harness.notes().iter().filter(|note| note.contains("ended")).count(), 2, "a turn was aborted");
    assert_eq!(harness.requests(), 2);
    for id in 1..=3 {
        let task = harness.task(id).await;
        assert_eq!((task.status, task.failures, task.claim), (TaskStatus::Pending, 0, None));
    }
    assert_eq!(harness.shared().await.current, Mode::Pause);
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn stop_aborts_turn_after_time_limit() {
    let harness = team_with_slow_tasks(3_000_000);
    harness.tasks(&["a"]).await;
    let team = harness.launch(once()).await;
    harness.wait_until("alice works", |harness| !harness.notes().is_empty()).await;
    let requested_at = Instant::now();
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
    assert!(requested_at.elapsed() >= Duration::from_secs(60) && requested_at.elapsed() < Duration::from_secs(63));
    assert_eq!((harness.task(1).await.status, harness.task(1).await.failures), (TaskStatus::Pending, 0));
}

#[tokio::test(start_paused = true)]
async fn stop_does_not_wait_for_rate_limit() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |_, _| async {
        let retry_after = Some(Duration::from_secs(500));
        Err(brigade::ports::ModelError::Temporary { message: "limited".into(), retry_after })
    });
    harness.tasks(&["a"]).await;
    let team = harness.launch(once()).await;
    harness.wait_until("asked", |harness| harness.requests() == 1).await;
    let requested_at = Instant::now();
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
    assert!(requested_at.elapsed() < Duration::from_secs(1), "{:?}", requested_at.elapsed());
    assert_eq!((harness.task(1).await.status, harness.task(1).await.failures), (TaskStatus::Pending, 0));
}

/// A model that streams the first word, if any, at once, and the rest after a while.
struct SlowModel {
    first: Option<&'static str>,
}

#[async_trait]
impl ModelClient for SlowModel {
    async fn request(&self, _: ModelRequest, listener: &dyn Listener) -> ModelResult {
        listener.on_activity();
        if let Some(first) = self.first {
            listener.on_bytes(first.len());
            listener.on_text(first);
        }
        tokio::time::sleep(Duration::from_secs(20)).await;
        say("At last.")
    }
}

#[tokio::test(start_paused = true)]
async fn stop_finishes_only_started_answer() {
    for (first, least_s, most_s, said) in [(None, 0, 2, 0), (Some("At"), 14, 17, 1)] {
        let mut harness = TestTeam::new(&["alice"]);
        harness.model("alice", Arc::new(SlowModel { first }));
        harness.tasks(&["a"]).await;
        let team = harness.launch(once()).await;
        harness
            .wait_until("asked", |harness| harness.count(|event| matches!(event, EventKind::TurnStarted { .. })) == 1)
            .await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let requested_at = Instant::now();
        team.command(TeamCommand::Stop).await;
        harness.ended(team).await;
        let took = requested_at.elapsed();
        assert!(took >= Duration::from_secs(least_s) && took < Duration::from_secs(most_s), "{first:?}: {took:?}");
        assert_eq!(harness.count(|event| matches!(event, EventKind::Said { .. })), said, "{first:?}");
        let task = harness.task(1).await;
        assert_eq!((task.status, task.failures), (TaskStatus::Pending, 0));
        assert_eq!(task.result.unwrap().summary, "the team stopped");
        harness.check_invariants().await;
    }
}

#[tokio::test(start_paused = true)]
async fn desired_state_of_interrupted_run_is_not_reused() {
    let up = || StartOptions { mode_without_file: Some(Mode::Continuous), ..StartOptions::default() };
    let harness = team_with_slow_tasks(10_000);
    harness.tasks(&["a"]).await;
    let team = harness.launch(once()).await;
    harness.wait_until("alice works", |harness| !harness.notes().is_empty()).await;
    team.command(TeamCommand::Abort).await;
    harness.ended(team).await;
    assert_eq!(harness.shared().await.desired, Mode::RunOnce, "a stop changed the desired state");
    let team = harness.launch(up()).await;
    assert_eq!(harness.shared().await.desired, Mode::Continuous, "a single session was set");
    team.command(TeamCommand::Abort).await;
    harness.ended(team).await;
    // A single requested session is possible.
    harness.click(Mode::RunOnce).await;
    let team = harness.launch(up()).await;
    assert_eq!(harness.shared().await.desired, Mode::RunOnce);
    team.command(TeamCommand::Abort).await;
    harness.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn task_released_at_stop_keeps_failure_reason() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |_, count| async move {
        match count {
            0 => call(&[("task_update", json!({"task_id": 1, "status": "failed", "result": "no compiler"}))]),
            1 => say("It failed."),
            _ => call(&[("nap", json!({"ms": 5_000}))]),
        }
    });
    harness.tasks(&["a"]).await;
    let team = harness.launch(once()).await;
    harness.wait_until("the member works again", |harness| !harness.notes().is_empty()).await;
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
    let released = |event: &EventKind| matches!(event, EventKind::TaskReleased { attempt: 2, reason, .. } if reason == "the team stopped");
    assert_eq!(harness.count(released), 1, "{}", harness.event_lines());
    let result = harness.task(1).await.result.unwrap();
    assert_eq!(
        (result.summary.as_str(), result.evidence.as_str()),
        ("the team stopped", "attempt 1 failed: no compiler")
    );
    let team = harness.launch(once()).await;
    harness
        .wait_until("told", |harness| harness.sent_by("alice").iter().any(|sent| sent.text().contains("Before that: ")))
        .await;
    let told = harness.sent_by("alice").last().unwrap().text();
    assert!(told.contains("ended: the team stopped\nBefore that: attempt 1 failed: no compiler"), "{told}");
    team.command(TeamCommand::Abort).await;
    harness.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn stop_now_aborts_tool_and_model_request() {
    for waits_for in ["tool", "model"] {
        let mut harness = TestTeam::new(&["alice"]);
        harness.set_model_fn("alice", move |_, _| async move {
            if waits_for == "model" {
                std::future::pending::<()>().await;
            }
            call(&[("nap", json!({"ms": 3_000_000})), ("nap", json!({"note": "never"}))])
        });
        harness.tasks(&["a"]).await;
        let team = harness.launch(once()).await;
        harness.wait_until("asked", |harness| harness.requests() == 1).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let requested_at = Instant::now();
        team.command(TeamCommand::Stop).await;
        team.command(TeamCommand::Abort).await;
        let outcome = harness.ended(team).await;
        assert_eq!(outcome.end, TeamEnd::Interrupted);
        assert!(requested_at.elapsed() < Duration::from_secs(1), "{:?}", requested_at.elapsed());
        let task = harness.task(1).await;
        assert_eq!((task.status, task.failures, task.claim), (TaskStatus::Pending, 0, None));
        assert!(!harness.notes().iter().any(|note| note.contains("never")));
        assert_eq!(harness.shared().await.current, Mode::Pause);
        // The next process finds a valid context.
        harness.restart();
        harness.diligent(&["alice"]);
        assert_eq!(harness.run_once().await.task_counts.completed, 1);
        harness.check_invariants().await;
    }
}

#[tokio::test(start_paused = true)]
async fn stop_during_start_stops_team() {
    for command in [TeamCommand::Stop, TeamCommand::Abort] {
        let mut harness = TestTeam::new(&["alice", "bob"]);
        harness.diligent(&["alice", "bob"]);
        harness.tasks(&["a"]).await;
        let team = harness.launch(start_continuous()).await;
        let requested_at = Instant::now();
        team.command(command).await;
        team.command(TeamCommand::Stop).await;
        assert_eq!(harness.ended(team).await.end, TeamEnd::Interrupted);
        assert!(requested_at.elapsed() < Duration::from_secs(1));
        assert_eq!(harness.shared().await.current, Mode::Pause);
        assert!(harness.task(1).await.claim.is_none());
        harness.check_invariants().await;
    }
}

#[tokio::test(start_paused = true)]
async fn stop_of_one_teammate_keeps_others_working() {
    let mut harness = TestTeam::new(&["alice", "bob"]);
    for who in ["alice", "bob"] {
        harness.set_model_fn(who, |request, _| async move {
            tokio::time::sleep(Duration::from_secs(10)).await;
            diligent(&request)
        });
    }
    harness.tasks(&["a", "b", "c", "d"]).await;
    let team = harness.launch(once()).await;
    harness.wait_until("both members sent requests", |harness| harness.requests() == 2).await;
    harness.ask_to_stop("alice", true).await;
    let outcome = harness.ended(team).await;
    assert_eq!((outcome.end, outcome.task_counts.completed), (TeamEnd::SessionOver, 4));
    assert_eq!(harness.sent_by("alice").len(), 1);
    harness.check_invariants().await;
}
