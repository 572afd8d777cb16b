//! A lead that thinks: it turns a goal into tasks, answers, reports, and says when the goal is met.

use std::time::Duration;

use brigade::domain::event::Fact;
use brigade::domain::state::Mode;
use brigade::domain::task::TaskStatus;
use brigade::domain::waiting_for::WaitingFor;
use brigade::ports::{ModelError, ModelRequest};
use brigade::team::Start;
use brigade::team::handle::Command;
use serde_json::json;

use super::stage::{Answer, Stage, block_text, call, complete, has_new_task, on_and_on, once, say, text_of};

/// What the lead was last asked, by how the text begins.
fn asked(request: &ModelRequest) -> &'static str {
    let last = request.messages.last().map(|message| message.content.as_slice()).unwrap_or_default();
    let starts = ["<report>", "<inbox>", "<goal>"];
    let is_in = |start: &&str| last.iter().any(|block| block_text(block).starts_with(start));
    starts.into_iter().find(is_in).unwrap_or("")
}

fn plan(subjects: &[&str]) -> Answer {
    let calls: Vec<_> = subjects
        .iter()
        .map(|subject| ("task_create", json!({"subject": subject, "description": format!("do {subject}")})))
        .collect();
    call(&calls)
}

/// A lead that plans three tasks, answers questions, and reports with `goal_done` when told to.
fn good_lead(stage: &mut Stage, is_done: bool) {
    stage.spec.goal = Some("port the parser".to_owned());
    stage.brain("lead", move |request, _| async move {
        match asked(&request) {
            "<goal>" => plan(&["one", "two", "three"]),
            "<inbox>" => call(&[("send_message", json!({"to": "alice", "content": "use the old way"}))]),
            "<report>" if is_done => call(&[("goal_done", json!({"summary": "it is ported"}))]),
            _ => say("All three are done."),
        }
    });
}

/// A teammate that asks the lead something before it completes its first task.
fn curious(stage: &mut Stage, who: &str) {
    stage.brain(who, |request, _| async move {
        let text = text_of(&request);
        if has_new_task(&request) && !text.contains("call: send_message") {
            return call(&[
                ("send_message", json!({"to": "lead", "content": "old way or new way?"})),
                ("nap", json!({"ms": 500})),
            ]);
        }
        let open = !text.rsplit("<auto-claimed>").next().unwrap_or("").contains("is completed");
        match super::stage::task_at_hand(&request) {
            Some(task) if open => call(&[complete(task)]),
            _ => say("Done."),
        }
    });
}

#[tokio::test(start_paused = true)]
async fn a_goal_becomes_tasks_questions_are_answered_and_a_report_closes_the_session() {
    let mut stage = Stage::new(&["alice", "bob"]);
    stage.diligent(&["bob"]);
    curious(&mut stage, "alice");
    good_lead(&mut stage, false);
    let outcome = stage.run_once().await;
    assert_eq!((outcome.tally.completed, outcome.summary.as_str()), (3, "All three are done."), "{}", stage.story());
    assert_eq!(outcome.trouble, None);
    let alice = stage.transcript("alice").await.join("\n");
    assert!(alice.contains("[message] from lead: use the old way"), "{alice}");
    let asked: Vec<&str> =
        stage.sent_by("lead").iter().map(|sent| asked(&sent.request)).filter(|a| !a.is_empty()).collect();
    assert_eq!(asked, ["<goal>", "<inbox>", "<report>"]);
    let finished = stage.facts().into_iter().find_map(|fact| match fact {
        Fact::SessionFinished { summary, tally, .. } => Some((summary, tally.completed)),
        _ => None,
    });
    assert_eq!(finished, Some(("All three are done.".to_owned(), 3)));
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn goal_done_ends_a_continuous_team_in_pause_and_counts_once() {
    let mut stage = Stage::new(&["alice", "bob"]);
    stage.diligent(&["alice", "bob"]);
    good_lead(&mut stage, true);
    let team = stage.launch(on_and_on()).await;
    stage.until_status(3, TaskStatus::Completed).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let state = stage.shared().await;
    assert_eq!((state.desired, state.current, state.set_by.as_str()), (Mode::Pause, Mode::Pause, "agent"));
    assert_eq!(state.note, "goal met: it is ported");
    // What was said of the goal then does not end what the person begins now.
    stage.brain("lead", |_, _| async { say("Nothing to add.") });
    stage.tasks(&["four"]).await;
    team.command(Command::Stop).await;
    stage.ended(team).await;
    stage.restart();
    let team = stage.launch(on_and_on()).await;
    stage.until_status(4, TaskStatus::Completed).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(stage.shared().await.desired, Mode::Continuous);
    let told = stage.transcript("lead").await.iter().filter(|line| line.contains("<goal>port the parser")).count();
    assert_eq!(told, 1, "the goal is not handed over again");
    assert_eq!(stage.stores.board.view().await.unwrap().tasks.len(), 4);
    team.command(Command::Stop).await;
    stage.ended(team).await;
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn a_second_session_of_the_same_process_is_not_ended_by_the_first_ones_goal() {
    let mut stage = Stage::new(&["alice"]);
    stage.diligent(&["alice"]);
    stage.spec.goal = Some("a".to_owned());
    stage.brain("lead", |_, count| async move {
        if count == 0 { call(&[("goal_done", json!({"summary": "it was there already"}))]) } else { say("I see.") }
    });
    let team = stage.launch(on_and_on()).await;
    stage.until("ended", |stage| stage.count(|fact| matches!(fact, Fact::SessionFinished { .. })) == 1).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(stage.shared().await.desired, Mode::Pause);
    stage.click(Mode::Continuous).await;
    stage.tasks(&["b"]).await;
    stage.until("ended", |stage| stage.count(|fact| matches!(fact, Fact::SessionFinished { .. })) == 2).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(stage.shared().await.desired, Mode::Continuous);
    team.command(Command::Stop).await;
    stage.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn a_goal_the_lead_was_stopped_over_is_taken_up_again() {
    let mut stage = Stage::new(&["alice"]);
    stage.diligent(&["alice"]);
    stage.spec.goal = Some("port the parser".to_owned());
    stage.brain("lead", |request, count| async move {
        if count == 0 {
            std::future::pending::<()>().await;
        }
        match asked(&request) {
            "<goal>" => plan(&["one"]),
            _ => say("Reported."),
        }
    });
    let team = stage.launch(on_and_on()).await;
    stage.until("asked", |stage| stage.requests() == 1).await;
    team.command(Command::StopNow).await;
    stage.ended(team).await;
    stage.restart();
    let team = stage.launch(on_and_on()).await;
    stage.until("planned", |stage| stage.count(|fact| matches!(fact, Fact::TaskCompleted { .. })) == 1).await;
    let told = stage.transcript("lead").await.iter().filter(|line| line.contains("<goal>")).count();
    assert_eq!(told, 1);
    team.command(Command::Stop).await;
    stage.ended(team).await;
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn a_lead_that_panics_over_the_goal_is_asked_again_in_the_same_run() {
    let mut stage = Stage::new(&["alice"]);
    stage.diligent(&["alice"]);
    stage.spec.goal = Some("port the parser".to_owned());
    stage.brain("lead", |request, count| async move {
        assert!(count > 0, "the model panics, as the test wants");
        match asked(&request) {
            "<goal>" => plan(&["one"]),
            _ => say("Reported."),
        }
    });
    let outcome = stage.run_once().await;
    assert_eq!((outcome.tally.completed, outcome.summary.as_str()), (1, "Reported."), "{}", stage.story());
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn a_report_that_adds_tasks_has_them_done_a_bounded_number_of_times() {
    let mut stage = Stage::new(&["alice"]);
    stage.diligent(&["alice"]);
    stage.brain("lead", |request, _| async move {
        match asked(&request) {
            "<report>" => plan(&["one more"]),
            _ => say("One more was needed."),
        }
    });
    stage.tasks(&["first"]).await;
    let outcome = stage.run_once().await;
    assert_eq!((outcome.tally.completed, outcome.tally.pending), (6, 1), "{}", stage.story());
}

#[tokio::test(start_paused = true)]
async fn a_cleanup_session_is_led_by_its_prompt_though_a_goal_waits() {
    let mut stage = Stage::new(&["alice"]);
    stage.diligent(&["alice"]);
    stage.spec.goal = Some("port the parser".to_owned());
    stage.brain("lead", |request, _| async move {
        let text = text_of(&request);
        match asked(&request) {
            "<goal>" if text.contains("This session tidies") => plan(&["tidy"]),
            "<goal>" => plan(&["port"]),
            _ => say("Reported."),
        }
    });
    let team = stage.launch(Start { mode: Some(Mode::RunCleanup), one_session: true, ..Start::default() }).await;
    let outcome = stage.ended(team).await;
    assert_eq!(outcome.tally.completed, 1);
    assert_eq!(stage.task(1).await.subject, "tidy");
    assert!(stage.shared().await.note.contains("run_cleanup is done"));
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn a_greeting_is_answered_not_planned() {
    let mut stage = Stage::new(&["alice"]);
    stage.diligent(&["alice"]);
    stage.spec.goal = Some("hello".to_owned());
    stage.brain("lead", |request, _| async move {
        if asked(&request) == "<goal>" { say("Hello.") } else { say("We said hello.") }
    });
    let team = stage.launch(once()).await;
    let outcome = stage.ended(team).await;
    assert_eq!((outcome.summary.as_str(), outcome.trouble), ("We said hello.", None));
    assert!(stage.sent_by("alice").is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_lead_is_seen_to_work_to_wait_for_the_person_and_for_its_model() {
    let mut stage = Stage::new(&["alice"]);
    stage.diligent(&["alice"]);
    stage.spec.goal = Some("port the parser".to_owned());
    stage.brain("lead", |request, count| async move {
        if count == 0 {
            tokio::time::sleep(Duration::from_secs(20)).await;
            return say("There are two databases.\nWhich one?");
        }
        match asked(&request) {
            "<inbox>" => Err(ModelError::Final("no credit".to_owned())),
            _ => say("Which one?"),
        }
    });
    let team = stage.launch(on_and_on()).await;
    let is = |phase: &str, waiting_for: Option<&str>| {
        team.live().lead().is_some_and(|lead| {
            (lead.phase.as_str(), lead.waiting_for.as_ref().map(WaitingFor::to_file_text).as_deref())
                == (phase, waiting_for)
        })
    };
    stage.until("it thinks", |_| is("work", None)).await;
    assert!(!team.live().teammates().contains_key("lead"), "it is no teammate");
    stage.until("it asks", |_| is("idle", Some("a person: Which one?"))).await;
    stage.mail("human", "lead", "the old one").await;
    stage.until("its model fails", |_| is("idle", Some("its model: no credit"))).await;
    let reported = || async { stage.shared().await.lead().and_then(|lead| lead.waiting_for.clone()) };
    while reported().await != Some(WaitingFor::Model("no credit".into())) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    team.command(Command::Stop).await;
    stage.ended(team).await;
    assert_eq!(stage.shared().await.lead().unwrap().phase, "stopped");
    stage.check_laws().await;
}
