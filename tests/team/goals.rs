//! The person's words to the lead: they always reach it, in one form, for one request each.

use std::time::Duration;

use brigade::domain::log::event::EventKind;
use brigade::domain::task::TaskStatus;
use brigade::domain::team::approval::{Request, RequestKind};
use brigade::domain::team::name::{HUMAN, LEAD};
use brigade::domain::team::state::Mode;
use brigade::domain::team::waiting_for::WaitingFor;
use brigade::service::messages::Outbox;
use brigade::service::request_mail::send_request;
use brigade::team::StartOptions;
use brigade::team::handle::{TeamCommand, TeamEnd, TeamHandle};
use serde_json::json;

use super::harness::{TestTeam, approve_plan, call, new_task, say, start_continuous};

/// A team of alice, who completes each task, and a lead that only talks.
fn talking_team() -> TestTeam {
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    harness.set_model_fn(LEAD, |_, _| async { say("I see.") });
    harness
}

fn with_goal(goal: &str, start: StartOptions) -> StartOptions {
    StartOptions { goal: Some(goal.to_owned()), ..start }
}

fn up() -> StartOptions {
    StartOptions { mode_without_file: Some(Mode::Continuous), ..StartOptions::default() }
}

fn run() -> StartOptions {
    StartOptions { mode: Some(Mode::RunOnce), one_session: true, ..StartOptions::default() }
}

/// The number of times that the person's text is in the lead's transcript.
async fn times_told(harness: &TestTeam, text: &str) -> usize {
    let line = format!("[message] from human: {text}\n");
    harness.transcript(LEAD).await.iter().map(|entry| entry.matches(&line).count()).sum()
}

fn sessions_over(harness: &TestTeam) -> usize {
    harness.count(|event| matches!(event, EventKind::SessionFinished { .. }))
}

async fn stop(harness: &TestTeam, team: TeamHandle) {
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn typed_goal_reaches_lead_at_each_launch() {
    let mut harness = talking_team();
    for launch in 1..=3 {
        let team = harness.launch(with_goal("port it", run())).await;
        harness.ended(team).await;
        assert_eq!(times_told(&harness, "port it").await, launch, "{}", harness.event_lines());
        harness.restart();
    }
    // A plan does not replace a goal that the person gives at the launch.
    let plan = vec![new_task("planned")];
    let team = harness.launch(StartOptions { plan, ..with_goal("port it", run()) }).await;
    assert_eq!(harness.ended(team).await.task_counts.completed, 1);
    assert_eq!(times_told(&harness, "port it").await, 4);
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn configured_goal_is_sent_until_planned() {
    let mut harness = talking_team();
    harness.spec.goal = Some("port it".to_owned());
    for launch in 1..=2 {
        harness.run_once().await;
        assert_eq!(times_told(&harness, "port it").await, launch, "{}", harness.event_lines());
        harness.restart();
    }
    harness.tasks(&["port"]).await;
    harness.run_once().await;
    assert_eq!(times_told(&harness, "port it").await, 2, "{}", harness.event_lines());
}

#[tokio::test(start_paused = true)]
async fn configured_goal_is_not_sent_after_it_is_met() {
    let mut harness = talking_team();
    harness.spec.goal = Some("answer it".to_owned());
    harness.set_model_fn(LEAD, |_, count| async move {
        if count == 0 { call(&[("goal_done", json!({ "summary": "42" }))]) } else { say("I see.") }
    });
    for _ in 0..2 {
        harness.run_once().await;
        assert_eq!(times_told(&harness, "answer it").await, 1, "{}", harness.event_lines());
        harness.restart();
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_team_names_unmet_goal() {
    let mut harness = talking_team();
    harness.spec.goal = Some("port it".to_owned());
    let team = harness.launch(up()).await;
    harness.wait_until("the session is over", |harness| sessions_over(harness) == 1).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let reason =
        "a claimable task or a message to the lead: the lead has not reported in this run that the goal is met";
    let shown = |waiting_for: Option<WaitingFor>| waiting_for.map(|reason| reason.to_file_text());
    let state = harness.shared().await;
    assert_eq!(shown(state.waiting_for()).as_deref(), Some(reason));
    assert_eq!(shown(state.lead().unwrap().waiting_for.clone()).as_deref(), Some(reason));
    assert_eq!(shown(team.live().waiting_for()).as_deref(), Some(reason));
    harness.click(Mode::Pause).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(harness.shared().await.waiting_for(), None);
    stop(&harness, team).await;
}

#[tokio::test(start_paused = true)]
async fn typed_goal_ends_pause_of_finished_session() {
    let mut harness = talking_team();
    harness.run_once().await;
    assert_eq!(harness.shared().await.desired, Mode::Pause);
    harness.restart();
    let team = harness.launch(with_goal("port it", up())).await;
    harness.wait_until("the lead answers", |harness| harness.sent_by(LEAD).len() == 1).await;
    assert_eq!(harness.shared().await.desired, Mode::Continuous);
    stop(&harness, team).await;
    harness.restart();
    // A pause of the person stays. The goal waits in the inbox, also without this process.
    harness.click(Mode::Pause).await;
    let team = harness.launch(with_goal("and this", up())).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((harness.shared().await.desired, harness.sent_by(LEAD).len()), (Mode::Pause, 1));
    stop(&harness, team).await;
    harness.restart();
    harness.click(Mode::Continuous).await;
    let team = harness.launch(up()).await;
    harness.wait_until("the lead answers", |harness| harness.sent_by(LEAD).len() == 2).await;
    assert_eq!(times_told(&harness, "and this").await, 1);
    stop(&harness, team).await;
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn unread_goal_is_not_sent_again() {
    let mut harness = talking_team();
    harness.click(Mode::Pause).await;
    for _ in 0..2 {
        let team = harness.launch(with_goal("port it", up())).await;
        stop(&harness, team).await;
        harness.restart();
    }
    harness.click(Mode::Continuous).await;
    let team = harness.launch(with_goal("port it", up())).await;
    harness.wait_until("the lead answers", |harness| harness.sent_by(LEAD).len() == 1).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((times_told(&harness, "port it").await, harness.sent_by(LEAD).len()), (1, 1));
    stop(&harness, team).await;
}

#[tokio::test(start_paused = true)]
async fn message_costs_one_request_and_no_report() {
    let mut harness = talking_team();
    let team = harness.launch(start_continuous()).await;
    harness.mail(HUMAN, LEAD, "how is it?").await;
    harness.wait_until("the session is over", |harness| sessions_over(harness) == 1).await;
    assert_eq!((harness.sent_by(LEAD).len(), harness.sent_by("alice").len()), (1, 0));
    harness.mail(HUMAN, "alice", "how is it?").await;
    harness.wait_until("the session is over", |harness| sessions_over(harness) == 2).await;
    assert_eq!((harness.sent_by(LEAD).len(), harness.sent_by("alice").len()), (1, 1));
    // Work is reported.
    harness.tasks(&["a"]).await;
    harness.wait_until("the session is over", |harness| sessions_over(harness) == 3).await;
    assert_eq!(harness.sent_by(LEAD).len(), 2, "{}", harness.event_lines());
    assert!(harness.sent_by(LEAD)[1].text().contains("<report>"));
    stop(&harness, team).await;
    harness.restart();
    assert_eq!(harness.run_once().await.task_counts.completed, 1);
    assert_eq!(harness.sent_by(LEAD).len(), 2, "a run without work asked for a report");
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn unanswered_message_keeps_next_run_open() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |_, count| async move {
        if count == 0 {
            std::future::pending::<()>().await;
        }
        say("Here I am.")
    });
    let team = harness.launch(start_continuous()).await;
    harness.mail(HUMAN, "alice", "are you there?").await;
    harness.wait_until("asked", |harness| harness.requests() == 1).await;
    team.command(TeamCommand::Abort).await;
    harness.ended(team).await;
    harness.restart();
    harness.run_once().await;
    assert_eq!(harness.sent_by("alice").len(), 2, "the message stayed unanswered: {}", harness.event_lines());
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn stopped_run_names_unanswered_goal_of_earlier_run() {
    let mut harness = talking_team();
    harness.set_model_fn(LEAD, |_, _| async { std::future::pending().await });
    for (number, start) in [with_goal("port it", run()), run()].into_iter().enumerate() {
        let team = harness.launch(start).await;
        harness.wait_until("the lead is asked", |harness| harness.sent_by(LEAD).len() == number + 1).await;
        team.command(TeamCommand::Abort).await;
        let outcome = harness.ended(team).await;
        assert_eq!(outcome.end, TeamEnd::Interrupted);
        assert_eq!(outcome.error.as_deref(), Some("The lead has not answered its mail."), "run {number}");
        harness.restart();
    }
}

#[tokio::test(start_paused = true)]
async fn run_changes_only_pause_and_ends_only_run_once() {
    let mut harness = talking_team();
    for (before, after) in [
        (None, Mode::Pause),
        (Some(Mode::Pause), Mode::Pause),
        (Some(Mode::RunOnce), Mode::Pause),
        (Some(Mode::Continuous), Mode::Continuous),
        (Some(Mode::RunCleanup), Mode::RunCleanup),
    ] {
        match before {
            Some(mode) => harness.click(mode).await,
            None => harness.state.put(None),
        }
        let tasks = harness.tasks(&["a"]).await;
        let outcome = harness.run_once().await;
        assert_eq!((outcome.task_counts.pending, outcome.error), (0, None), "{before:?}");
        assert_eq!(harness.task(tasks[0].id.0).await.status, TaskStatus::Completed, "{before:?}");
        let state = harness.shared().await;
        assert_eq!((state.desired, state.current), (after, Mode::Pause), "{before:?}: {}", state.to_file());
        harness.restart();
    }
    // An unknown word counts as pause.
    harness.state.put(Some(r#"{"desired_state":"contineous"}"#));
    harness.tasks(&["b"]).await;
    assert_eq!(harness.run_once().await.task_counts.pending, 0);
    let is_reported =
        |event: &EventKind| matches!(event, EventKind::Warning { text, .. } if text.contains("contineous"));
    assert_eq!(harness.count(is_reported), 1);
}

#[tokio::test(start_paused = true)]
async fn pause_during_run_is_named_in_its_outcome() {
    for file in [r#"{"desired_state":"pause","note":"the disk is needed"}"#, r#"{"desired_state":"continuous"}"#] {
        let mut harness = TestTeam::new(&["alice"]);
        harness.set_model_fn("alice", |request, _| async move {
            tokio::time::sleep(Duration::from_secs(10)).await;
            super::harness::diligent(&request)
        });
        harness.click(Mode::Continuous).await;
        harness.tasks(&["a", "b"]).await;
        let team = harness.launch(run()).await;
        harness.wait_until("alice works", |harness| harness.requests() == 1).await;
        harness.state.put(Some(file));
        let outcome = harness.ended(team).await;
        let expected =
            file.contains("pause").then_some("The team was paused before its work was done (the disk is needed).");
        assert_eq!(outcome.error.as_deref(), expected, "{}", harness.event_lines());
        let of_event = harness.event_kinds().into_iter().find_map(|event| match event {
            EventKind::SessionFinished { error, .. } => Some(error),
            _ => None,
        });
        assert_eq!(of_event, Some(outcome.error));
        assert_eq!(outcome.task_counts.completed, if expected.is_some() { 1 } else { 2 });
    }
}

#[tokio::test(start_paused = true)]
async fn met_goal_waits_for_answer_to_open_plan() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    harness.spec.goal = Some("port it".to_owned());
    harness.set_model_fn(LEAD, |_, count| async move {
        if count == 0 { call(&[("goal_done", json!({"summary": "it is there already"}))]) } else { say("I see.") }
    });
    let outbox = Outbox { stores: &harness.stores, now: harness.clock.now(), events: None };
    harness.open_inboxes().await;
    let plan = Request {
        plan: "one, two".to_owned(),
        ..Request::new("p1", RequestKind::PlanApproval, "alice", HUMAN, outbox.now)
    };
    send_request(&outbox, plan).await.unwrap();
    let team = harness.launch(start_continuous()).await;
    harness.wait_until("the session is over", |harness| sessions_over(harness) == 1).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(harness.shared().await.desired, Mode::Continuous, "the answer to the plan would not be read");
    approve_plan(&harness.stores, "p1", harness.clock.now()).await;
    harness.wait_until("alice reads the answer", |harness| harness.sent_by("alice").len() == 1).await;
    harness.wait_until("the session is over", |harness| sessions_over(harness) == 2).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let state = harness.shared().await;
    assert_eq!((state.desired, state.note.as_str()), (Mode::Pause, "goal met: it is there already"));
    stop(&harness, team).await;
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn launch_names_tasks_that_no_member_can_do() {
    let harness = talking_team();
    let requires = |subject: &str, role: &str| brigade::domain::task::NewTask {
        requires: vec![role.to_owned()],
        ..new_task(subject)
    };
    let reserved = brigade::domain::task::NewTask { owner: Some("zoe".to_owned()), ..new_task("three") };
    let plan = vec![requires("one", "welder"), requires("two", "coder"), reserved];
    let team = harness.launch(StartOptions { plan, ..run() }).await;
    harness.ended(team).await;
    let warnings: Vec<String> = harness
        .event_kinds()
        .into_iter()
        .filter_map(|event| match event {
            EventKind::Warning { about, text, .. } if about == "board" => Some(text),
            _ => None,
        })
        .collect();
    assert_eq!(
        warnings,
        ["no member can do #1 (one): it requires welder", "no member can do #3 (three): it is reserved for zoe"]
    );
}

#[tokio::test(start_paused = true)]
async fn failure_of_task_with_long_subject_is_reported() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |_, _| async { say("I give up.") });
    harness.set_model_fn(LEAD, |_, _| async { say("I see.") });
    let task = harness.tasks(&["x"]).await.remove(0);
    let mut long = task.clone();
    long.subject = "y".repeat(900 * 1024);
    let outbox = Outbox { stores: &harness.stores, now: harness.clock.now(), events: None };
    outbox.notify_lead_of_failure(&long, &"z".repeat(900 * 1024)).await.unwrap();
    let mail = harness.stores.mailbox.peek(LEAD).await.unwrap().remove(0).message;
    assert!(mail.content.starts_with("Task #1 (yyy") && mail.content.len() < 10_000, "{}", mail.content.len());
}
