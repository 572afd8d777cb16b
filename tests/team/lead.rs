//! A lead with a model: it turns a goal into tasks, answers, reports, and says when the goal is met.

use std::time::Duration;

use brigade::domain::log::event::EventKind;
use brigade::domain::task::{NewTask, TaskStatus};
use brigade::domain::team::phase::ReportedPhase;
use brigade::domain::team::state::{Mode, SetBy};
use brigade::domain::team::waiting_for::WaitingFor;
use brigade::ports::{ModelError, ModelRequest};
use brigade::team::StartOptions;
use brigade::team::handle::TeamCommand;
use serde_json::json;

use super::harness::{
    ModelResult, TestTeam, block_text, call, complete, has_new_task, new_task, once, say, start_continuous, text_of,
};

/// The kind of the last request to the lead: a report, the person's words, other mail, or a cleanup.
fn last_request_kind(request: &ModelRequest) -> &'static str {
    let last = request.messages.last().map(|message| message.content.as_slice()).unwrap_or_default();
    let starts = [
        ("<report>", "report"),
        ("<inbox>\n[message] from human: ", "person"),
        ("<inbox>", "mail"),
        ("<goal>", "cleanup"),
    ];
    let is_in = |start: &str| last.iter().any(|block| block_text(block).starts_with(start));
    starts.into_iter().find(|(start, _)| is_in(start)).map_or("", |(_, kind)| kind)
}

fn plan(subjects: &[&str]) -> ModelResult {
    let calls: Vec<_> = subjects
        .iter()
        .map(|subject| ("task_create", json!({"subject": subject, "description": format!("do {subject}")})))
        .collect();
    call(&calls)
}

/// Sets a lead that plans three tasks, answers questions, and reports with `goal_done` if `is_done`.
fn set_planning_lead(harness: &mut TestTeam, is_done: bool) {
    harness.spec.goal = Some("port the parser".to_owned());
    harness.set_model_fn("lead", move |request, _| async move {
        match last_request_kind(&request) {
            "person" => plan(&["one", "two", "three"]),
            "mail" => call(&[("send_message", json!({"to": "alice", "content": "use the old way"}))]),
            "report" if is_done => call(&[("goal_done", json!({"summary": "it is ported"}))]),
            _ => say("All three are done."),
        }
    });
}

/// Sets a teammate that asks the lead a question before it completes its first task.
fn set_asking_teammate(harness: &mut TestTeam, who: &str) {
    harness.set_model_fn(who, |request, _| async move {
        let text = text_of(&request);
        if has_new_task(&request) && !text.contains("call: send_message") {
            return call(&[
                ("send_message", json!({"to": "lead", "content": "old way or new way?"})),
                ("nap", json!({"ms": 500})),
            ]);
        }
        let open = !text.rsplit("<auto-claimed>").next().unwrap_or("").contains("is completed");
        match super::harness::task_at_hand(&request) {
            Some(task) if open => call(&[complete(task)]),
            _ => say("Done."),
        }
    });
}

#[tokio::test(start_paused = true)]
async fn goal_session_plans_answers_and_reports() {
    let mut harness = TestTeam::new(&["alice", "bob"]);
    harness.diligent(&["bob"]);
    set_asking_teammate(&mut harness, "alice");
    set_planning_lead(&mut harness, false);
    let outcome = harness.run_once().await;
    assert_eq!(
        (outcome.task_counts.completed, outcome.summary.as_str()),
        (3, "All three are done."),
        "{}",
        harness.event_lines()
    );
    assert_eq!(outcome.error, None);
    let alice = harness.transcript("alice").await.join("\n");
    assert!(alice.contains("[message] from lead: use the old way"), "{alice}");
    let last_request_kind: Vec<&str> =
        harness.sent_by("lead").iter().map(|sent| last_request_kind(&sent.request)).filter(|a| !a.is_empty()).collect();
    assert_eq!(last_request_kind, ["person", "mail", "report"]);
    let finished = harness.event_kinds().into_iter().find_map(|event| match event {
        EventKind::SessionFinished { summary, tally, .. } => Some((summary, tally.completed)),
        _ => None,
    });
    assert_eq!(finished, Some(("All three are done.".to_owned(), 3)));
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn goal_done_pauses_continuous_team_once() {
    let mut harness = TestTeam::new(&["alice", "bob"]);
    harness.diligent(&["alice", "bob"]);
    set_planning_lead(&mut harness, true);
    let team = harness.launch(start_continuous()).await;
    harness.wait_for_status(3, TaskStatus::Completed).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let state = harness.shared().await;
    assert_eq!((state.desired, state.current, &state.set_by), (Mode::Pause, Mode::Pause, &SetBy::Brigade));
    assert_eq!(state.note, "goal met: it is ported");
    // The earlier verdict about the goal does not end the new session.
    harness.set_model_fn("lead", |_, _| async { say("Nothing to add.") });
    harness.tasks(&["four"]).await;
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
    harness.restart();
    let team = harness.launch(start_continuous()).await;
    harness.wait_for_status(4, TaskStatus::Completed).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(harness.shared().await.desired, Mode::Continuous);
    let told = harness
        .transcript("lead")
        .await
        .iter()
        .filter(|line| line.contains("[message] from human: port the parser"))
        .count();
    assert_eq!(told, 1, "the goal was sent again");
    assert_eq!(harness.stores.board.view().await.unwrap().tasks.len(), 4);
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn goal_done_does_not_end_second_session() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    harness.spec.goal = Some("a".to_owned());
    harness.set_model_fn("lead", |_, count| async move {
        if count == 0 { call(&[("goal_done", json!({"summary": "it was there already"}))]) } else { say("I see.") }
    });
    let team = harness.launch(start_continuous()).await;
    harness
        .wait_until("ended", |harness| harness.count(|event| matches!(event, EventKind::SessionFinished { .. })) == 1)
        .await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(harness.shared().await.desired, Mode::Pause);
    harness.click(Mode::Continuous).await;
    harness.tasks(&["b"]).await;
    harness
        .wait_until("ended", |harness| harness.count(|event| matches!(event, EventKind::SessionFinished { .. })) == 2)
        .await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(harness.shared().await.desired, Mode::Continuous);
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn goal_interrupted_by_stop_is_planned_next_launch() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    harness.spec.goal = Some("port the parser".to_owned());
    harness.set_model_fn("lead", |request, count| async move {
        if count == 0 {
            std::future::pending::<()>().await;
        }
        match last_request_kind(&request) {
            "person" => plan(&["one"]),
            _ => say("Reported."),
        }
    });
    let team = harness.launch(start_continuous()).await;
    harness.wait_until("asked", |harness| harness.requests() == 1).await;
    team.command(TeamCommand::Abort).await;
    harness.ended(team).await;
    harness.restart();
    let team = harness.launch(start_continuous()).await;
    harness
        .wait_until("planned", |harness| harness.count(|event| matches!(event, EventKind::TaskCompleted { .. })) == 1)
        .await;
    let told =
        harness.transcript("lead").await.iter().filter(|line| line.contains("from human: port the parser")).count();
    assert_eq!(told, 1);
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn lead_panic_on_goal_is_retried_in_same_run() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    harness.spec.goal = Some("port the parser".to_owned());
    harness.set_model_fn("lead", |request, count| async move {
        assert!(count > 0, "the model panics, as the test wants");
        match last_request_kind(&request) {
            "person" => plan(&["one"]),
            _ => say("Reported."),
        }
    });
    let outcome = harness.run_once().await;
    assert_eq!(
        (outcome.task_counts.completed, outcome.summary.as_str()),
        (1, "Reported."),
        "{}",
        harness.event_lines()
    );
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn tasks_added_by_reports_are_bounded() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    harness.set_model_fn("lead", |request, _| async move {
        match last_request_kind(&request) {
            "report" => plan(&["one more"]),
            _ => say("One more was needed."),
        }
    });
    harness.tasks(&["first"]).await;
    let outcome = harness.run_once().await;
    assert_eq!((outcome.task_counts.completed, outcome.task_counts.pending), (6, 1), "{}", harness.event_lines());
}

#[tokio::test(start_paused = true)]
async fn cleanup_session_uses_cleanup_prompt_not_goal() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    harness.spec.goal = Some("port the parser".to_owned());
    harness.set_model_fn("lead", |request, _| async move {
        let text = text_of(&request);
        match last_request_kind(&request) {
            "cleanup" if text.contains("This session tidies") => plan(&["tidy"]),
            "person" => plan(&["port"]),
            _ => say("Reported."),
        }
    });
    let team = harness
        .launch(StartOptions { mode: Some(Mode::RunCleanup), one_session: true, ..StartOptions::default() })
        .await;
    let outcome = harness.ended(team).await;
    assert_eq!(outcome.task_counts.completed, 1);
    assert_eq!(harness.task(1).await.subject, "tidy");
    assert!(harness.shared().await.note.contains("run_cleanup is done"));
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn goal_without_work_creates_no_tasks() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    harness.spec.goal = Some("hello".to_owned());
    harness.set_model_fn("lead", |request, count| async move {
        let answer = ["Hello.", "Hello again."][count];
        if last_request_kind(&request) == "person" { say(answer) } else { say("We said hello.") }
    });
    let team = harness.launch(once()).await;
    let outcome = harness.ended(team).await;
    assert_eq!((outcome.summary.as_str(), outcome.error), ("Hello.", None));
    assert_eq!(harness.sent_by("lead").len(), 1, "a session without work asked for a report");
    assert!(harness.sent_by("alice").is_empty());
    harness.restart();
    let outcome = harness.run_once().await;
    assert_eq!(outcome.summary, "Hello again.", "an answer of an earlier run is repeated");
}

#[tokio::test(start_paused = true)]
async fn lead_status_shows_work_question_and_model_error() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    harness.spec.goal = Some("port the parser".to_owned());
    harness.set_model_fn("lead", |request, count| async move {
        if count == 0 {
            tokio::time::sleep(Duration::from_secs(20)).await;
            return say("There are two databases.\nWhich one?");
        }
        match last_request_kind(&request) {
            "person" => Err(ModelError::Final("no credit".to_owned())),
            _ => say("Which one?"),
        }
    });
    let team = harness.launch(start_continuous()).await;
    let is = |phase: ReportedPhase, waiting_for: Option<&str>| {
        team.live().lead().is_some_and(|lead| {
            (lead.phase, lead.waiting_for.as_ref().map(WaitingFor::to_file_text).as_deref()) == (phase, waiting_for)
        })
    };
    harness.wait_until("the lead's model works", |_| is(ReportedPhase::Work, None)).await;
    assert!(!team.live().teammates().contains_key("lead"), "the lead counts as a teammate");
    harness.wait_until("the program asks", |_| is(ReportedPhase::Idle, Some("a person: Which one?"))).await;
    harness.mail("human", "lead", "the old one").await;
    harness.wait_until("its model fails", |_| is(ReportedPhase::Idle, Some("its model: no credit"))).await;
    let reported = || async { harness.shared().await.lead().and_then(|lead| lead.waiting_for.clone()) };
    while reported().await != Some(WaitingFor::Model("no credit".into())) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
    assert_eq!(harness.shared().await.lead().unwrap().phase, ReportedPhase::Stopped);
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn plan_update_is_logged_once_and_names_the_plan() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    let plan = |description: &str| {
        let source = Some("plan:plan.md#Count".to_owned());
        let requires = vec!["absent".to_owned()];
        let task = NewTask { description: description.to_owned(), requires, source, ..new_task("Count") };
        StartOptions { plan: vec![task], ..once() }
    };
    for description in ["all", "all but one"] {
        let team = harness.launch(plan(description)).await;
        harness.ended(team).await;
    }
    assert_eq!(harness.task(1).await.description, "all but one");
    let is_update = |event: &EventKind| matches!(event, EventKind::Warning { about, text, .. } if about == "plan" && text.contains("updated"));
    assert_eq!(harness.count(is_update), 1);
    let is_edit = |event: &EventKind| matches!(event, EventKind::TaskChanged { .. });
    assert_eq!(harness.count(is_edit), 0, "{}", harness.event_lines());
    harness.check_invariants().await;
}
