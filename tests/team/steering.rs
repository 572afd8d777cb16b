//! The person steers: modes, clicks, stops.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use brigade::domain::event::Fact;
use brigade::domain::state::Mode;
use brigade::domain::task::TaskStatus;
use brigade::ports::{Listener, ModelClient, ModelRequest};
use brigade::team::Start;
use brigade::team::handle::{Command, End};
use serde_json::json;
use tokio::time::Instant;

use super::stage::{Answer, Stage, call, complete, diligent, has_new_task, name, on_and_on, once, say, task_at_hand};

/// One teammate whose tasks take this long each.
fn slow(ms: u64) -> Stage {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", move |request, _| async move {
        match task_at_hand(&request).filter(|_| has_new_task(&request)) {
            Some(task) => call(&[("nap", json!({"ms": ms})), complete(task)]),
            None => say("Done."),
        }
    });
    stage
}

#[tokio::test(start_paused = true)]
async fn a_pause_lets_the_task_in_hand_end_and_nothing_begins() {
    let stage = slow(10_000);
    stage.tasks(&["a", "b"]).await;
    let team = stage.launch(on_and_on()).await;
    stage.until("at it", |stage| !stage.notes().is_empty()).await;
    stage.click(Mode::Pause).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let state = stage.shared().await;
    assert_eq!((state.desired, state.current), (Mode::Pause, Mode::Continuous), "still finishing");
    stage.until_status(1, TaskStatus::Completed).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(stage.shared().await.current, Mode::Pause);
    assert_eq!((stage.task(2).await.status, stage.task(2).await.attempt), (TaskStatus::Pending, 0));
    let before = Instant::now();
    stage.click(Mode::Continuous).await;
    stage.until_status(2, TaskStatus::Completed).await;
    assert!(before.elapsed() < Duration::from_millis(10_600), "{:?}", before.elapsed());
    team.command(Command::Stop).await;
    let outcome = stage.ended(team).await;
    assert_eq!(outcome.end, End::Interrupted);
    assert_eq!(stage.shared().await.current, Mode::Pause);
    assert_eq!(stage.shared().await.desired, Mode::Continuous, "a stop is not a wish");
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn run_once_ends_in_pause_by_the_agent_with_a_note() {
    let stage = slow(10);
    stage.tasks(&["a"]).await;
    let team = stage.launch(Start { mode: Some(Mode::RunOnce), ..Start::default() }).await;
    stage.until_status(1, TaskStatus::Completed).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let state = stage.shared().await;
    assert_eq!((state.desired, state.current, state.set_by.as_str()), (Mode::Pause, Mode::Pause, "agent"));
    assert!(state.note.contains("run_once is done"), "{}", state.note);
    stage.tasks(&["b"]).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(stage.task(2).await.status, TaskStatus::Pending, "one session was wanted");
    stage.click(Mode::RunOnce).await;
    stage.until_status(2, TaskStatus::Completed).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(stage.shared().await.desired, Mode::Pause);
    assert_eq!(stage.count(|fact| matches!(fact, Fact::SessionFinished { .. })), 2);
    team.command(Command::Stop).await;
    stage.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn a_click_during_a_session_is_not_undone_by_its_end() {
    let stage = slow(5000);
    stage.tasks(&["a"]).await;
    let team = stage.launch(Start { mode: Some(Mode::RunOnce), ..Start::default() }).await;
    stage.until("at it", |stage| !stage.notes().is_empty()).await;
    stage.click(Mode::Continuous).await;
    stage.until_status(1, TaskStatus::Completed).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let state = stage.shared().await;
    assert_eq!((state.desired, state.set_by.as_str()), (Mode::Continuous, "human"));
    stage.tasks(&["b"]).await;
    stage.until_status(2, TaskStatus::Completed).await;
    team.command(Command::Stop).await;
    stage.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn an_unknown_wish_and_a_missing_file_are_a_pause() {
    for text in [Some(r#"{"desired_state":"hyperdrive","mine":1}"#), None] {
        let stage = slow(2000);
        stage.tasks(&["a"]).await;
        let team = stage.launch(on_and_on()).await;
        stage.until("at it", |stage| !stage.notes().is_empty()).await;
        stage.state.put(text);
        stage.until_status(1, TaskStatus::Completed).await;
        stage.tasks(&["b"]).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!((stage.task(2).await.status, stage.shared().await.current), (TaskStatus::Pending, Mode::Pause));
        let warned =
            |fact: &Fact| matches!(fact, Fact::Warning { text, .. } if text.contains("`hyperdrive` is none of"));
        assert_eq!(stage.count(warned), usize::from(text.is_some()));
        if text.is_some() {
            let file = stage.shared().await.to_file();
            assert!(file.contains("hyperdrive") && file.contains("mine"), "{file}");
        }
        stage.click(Mode::Continuous).await;
        stage.until_status(2, TaskStatus::Completed).await;
        team.command(Command::Stop).await;
        stage.ended(team).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_an_outside_writer_puts_back_is_corrected() {
    let stage = slow(5000);
    stage.tasks(&["a"]).await;
    let team = stage.launch(on_and_on()).await;
    stage.until("at it", |stage| !stage.notes().is_empty()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    stage.state.put(Some(r#"{"desired_state":"continuous","current_state":"pause","team":"crew","teammates":{}}"#));
    tokio::time::sleep(Duration::from_millis(100)).await;
    let state = stage.shared().await;
    assert_eq!(state.current, Mode::Continuous);
    assert!(state.to_file().contains("alice"), "{}", state.to_file());
    team.command(Command::StopNow).await;
    stage.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_finishes_the_running_turn_and_gives_claims_back() {
    let mut stage = Stage::new(&["alice", "bob"]);
    for who in ["alice", "bob"] {
        stage.brain(who, |_, _| async { call(&[("nap", json!({"ms": 20_000}))]) });
    }
    stage.tasks(&["a", "b", "c"]).await;
    let team = stage.launch(once()).await;
    stage.until("both at it", |stage| stage.notes().len() == 2).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (commands, asked) = (team.commands(), Instant::now());
    commands.send(Command::Stop).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(team.live().teammates()["alice"].phase, "stopping", "people see that it was heard");
    commands.send(Command::Stop).await.unwrap();
    let outcome = stage.ended(team).await;
    assert_eq!(outcome.end, End::Interrupted);
    assert!(
        asked.elapsed() >= Duration::from_secs(14) && asked.elapsed() < Duration::from_secs(17),
        "{:?}",
        asked.elapsed()
    );
    assert_eq!(stage.notes().iter().filter(|note| note.contains("ended")).count(), 2, "the turns ran to their end");
    assert_eq!(stage.requests(), 2);
    for id in 1..=3 {
        let task = stage.task(id).await;
        assert_eq!((task.status, task.failures, task.claim), (TaskStatus::Pending, 0, None));
    }
    assert_eq!(stage.shared().await.current, Mode::Pause);
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_takes_too_long_to_finish_is_broken_off() {
    let stage = slow(3_000_000);
    stage.tasks(&["a"]).await;
    let team = stage.launch(once()).await;
    stage.until("at it", |stage| !stage.notes().is_empty()).await;
    let asked = Instant::now();
    team.command(Command::Stop).await;
    stage.ended(team).await;
    assert!(asked.elapsed() >= Duration::from_secs(60) && asked.elapsed() < Duration::from_secs(63));
    assert_eq!((stage.task(1).await.status, stage.task(1).await.failures), (TaskStatus::Pending, 0));
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_a_limit() {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", |_, _| async {
        let retry_after = Some(Duration::from_secs(500));
        Err(brigade::ports::ModelError::Temporary { message: "limited".into(), retry_after })
    });
    stage.tasks(&["a"]).await;
    let team = stage.launch(once()).await;
    stage.until("asked", |stage| stage.requests() == 1).await;
    let asked = Instant::now();
    team.command(Command::Stop).await;
    stage.ended(team).await;
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    assert_eq!((stage.task(1).await.status, stage.task(1).await.failures), (TaskStatus::Pending, 0));
}

/// A model that says the first word, if any, at once, and the rest after a while.
struct Slow {
    first: Option<&'static str>,
}

#[async_trait]
impl ModelClient for Slow {
    async fn request(&self, _: ModelRequest, listener: &dyn Listener) -> Answer {
        listener.alive();
        if let Some(first) = self.first {
            listener.wrote(first.len());
            listener.text(first);
        }
        tokio::time::sleep(Duration::from_secs(20)).await;
        say("At last.")
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_finishes_an_answer_that_has_begun_and_waits_for_no_other() {
    for (first, least_s, most_s, said) in [(None, 0, 2, 0), (Some("At"), 14, 17, 1)] {
        let mut stage = Stage::new(&["alice"]);
        stage.model("alice", Arc::new(Slow { first }));
        stage.tasks(&["a"]).await;
        let team = stage.launch(once()).await;
        stage.until("asked", |stage| stage.count(|fact| matches!(fact, Fact::TurnStarted { .. })) == 1).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let asked = Instant::now();
        team.command(Command::Stop).await;
        stage.ended(team).await;
        let took = asked.elapsed();
        assert!(took >= Duration::from_secs(least_s) && took < Duration::from_secs(most_s), "{first:?}: {took:?}");
        assert_eq!(stage.count(|fact| matches!(fact, Fact::Said { .. })), said, "{first:?}");
        let task = stage.task(1).await;
        assert_eq!((task.status, task.failures), (TaskStatus::Pending, 0));
        assert_eq!(task.result.unwrap().summary, "the team stops");
        stage.check_laws().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_an_interrupted_run_left_is_no_wish_for_the_next_launch() {
    let up = || Start { mode_without_file: Some(Mode::Continuous), ..Start::default() };
    let stage = slow(10_000);
    stage.tasks(&["a"]).await;
    let team = stage.launch(once()).await;
    stage.until("at it", |stage| !stage.notes().is_empty()).await;
    team.command(Command::StopNow).await;
    stage.ended(team).await;
    assert_eq!(stage.shared().await.desired, Mode::RunOnce, "a stop is not a wish");
    let team = stage.launch(up()).await;
    assert_eq!(stage.shared().await.desired, Mode::Continuous, "nobody wants one session of this team");
    team.command(Command::StopNow).await;
    stage.ended(team).await;
    // One session that somebody asked for is one.
    stage.click(Mode::RunOnce).await;
    let team = stage.launch(up()).await;
    assert_eq!(stage.shared().await.desired, Mode::RunOnce);
    team.command(Command::StopNow).await;
    stage.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_given_back_at_a_stop_keeps_what_went_wrong_before() {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", |_, count| async move {
        match count {
            0 => call(&[("task_update", json!({"task_id": 1, "status": "failed", "result": "no compiler"}))]),
            1 => say("It failed."),
            _ => call(&[("nap", json!({"ms": 5_000}))]),
        }
    });
    stage.tasks(&["a"]).await;
    let team = stage.launch(once()).await;
    stage.until("at it again", |stage| !stage.notes().is_empty()).await;
    team.command(Command::Stop).await;
    stage.ended(team).await;
    let released =
        |fact: &Fact| matches!(fact, Fact::TaskReleased { attempt: 2, reason, .. } if reason == "the team stops");
    assert_eq!(stage.count(released), 1, "{}", stage.story());
    let result = stage.task(1).await.result.unwrap();
    assert_eq!(
        (result.summary.as_str(), result.evidence.as_str()),
        ("the team stops", "attempt 1 failed: no compiler")
    );
    let team = stage.launch(once()).await;
    stage.until("told", |stage| stage.sent_by("alice").iter().any(|sent| sent.text().contains("Before that: "))).await;
    let told = stage.sent_by("alice").last().unwrap().text();
    assert!(told.contains("ended: the team stops\nBefore that: attempt 1 failed: no compiler"), "{told}");
    team.command(Command::StopNow).await;
    stage.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_now_breaks_off_whatever_runs() {
    for waits_for in ["tool", "model"] {
        let mut stage = Stage::new(&["alice"]);
        stage.brain("alice", move |_, _| async move {
            if waits_for == "model" {
                std::future::pending::<()>().await;
            }
            call(&[("nap", json!({"ms": 3_000_000})), ("nap", json!({"note": "never"}))])
        });
        stage.tasks(&["a"]).await;
        let team = stage.launch(once()).await;
        stage.until("asked", |stage| stage.requests() == 1).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let asked = Instant::now();
        team.command(Command::Stop).await;
        team.command(Command::StopNow).await;
        let outcome = stage.ended(team).await;
        assert_eq!(outcome.end, End::Interrupted);
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
        let task = stage.task(1).await;
        assert_eq!((task.status, task.failures, task.claim), (TaskStatus::Pending, 0, None));
        assert!(!stage.notes().iter().any(|note| note.contains("never")));
        assert_eq!(stage.shared().await.current, Mode::Pause);
        // The next life finds a context it can go on with.
        stage.restart();
        stage.diligent(&["alice"]);
        assert_eq!(stage.run_once().await.tally.completed, 1);
        stage.check_laws().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_while_the_team_starts_stops_it() {
    for command in [Command::Stop, Command::StopNow] {
        let mut stage = Stage::new(&["alice", "bob"]);
        stage.diligent(&["alice", "bob"]);
        stage.tasks(&["a"]).await;
        let team = stage.launch(on_and_on()).await;
        let asked = Instant::now();
        team.command(command).await;
        team.command(Command::Stop).await;
        assert_eq!(stage.ended(team).await.end, End::Interrupted);
        assert!(asked.elapsed() < Duration::from_secs(1));
        assert_eq!(stage.shared().await.current, Mode::Pause);
        assert!(stage.task(1).await.claim.is_none());
        stage.check_laws().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_of_one_leaves_the_others_at_work() {
    let mut stage = Stage::new(&["alice", "bob"]);
    for who in ["alice", "bob"] {
        stage.brain(who, |request, _| async move {
            tokio::time::sleep(Duration::from_secs(10)).await;
            diligent(&request)
        });
    }
    stage.tasks(&["a", "b", "c", "d"]).await;
    let team = stage.launch(once()).await;
    stage.until("both asked", |stage| stage.requests() == 2).await;
    team.command(Command::StopTeammate { name: name("alice"), now: true }).await;
    let outcome = stage.ended(team).await;
    assert_eq!((outcome.end, outcome.tally.completed), (End::SessionOver, 4));
    assert_eq!(stage.sent_by("alice").len(), 1);
    stage.check_laws().await;
}
