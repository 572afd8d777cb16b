//! Work is done in order, once, by whoever is free; idle costs nothing.

use std::time::Duration;

use brigade::domain::event::Fact;
use brigade::domain::message::MessageType;
use brigade::domain::task::{NewTask, TaskStatus};
use brigade::team::handle::{Command, End};
use serde_json::json;

use super::stage::{Stage, call, complete, has_new_task, lock, new_task, on_and_on, say, task_at_hand};

const CREW: [&str; 3] = ["alice", "bob", "cleo"];

#[tokio::test(start_paused = true)]
async fn twenty_tasks_with_dependencies_drain_in_order_each_claimed_once() {
    let mut stage = Stage::new(&CREW);
    for who in CREW {
        stage.brain(who, |request, _| async move {
            match task_at_hand(&request).filter(|_| has_new_task(&request)) {
                Some(task) => call(&[("nap", json!({"ms": 10 + task % 7})), complete(task)]),
                None => say("Done."),
            }
        });
    }
    let blockers = |index: usize| (0..index).filter(|other| index % (other + 2) == 1).collect();
    let tasks = (0..20).map(|index| NewTask { blocked_by_new: blockers(index), ..new_task(&format!("t{index}")) });
    let created = stage.create(tasks.collect()).await;
    let outcome = stage.run_once().await;
    assert_eq!((outcome.end, outcome.tally.completed, outcome.trouble), (End::SessionOver, 20, None));
    stage.check_laws().await;
    let facts = stage.facts();
    for task in &created {
        let claimed = |fact: &Fact| matches!(fact, Fact::TaskClaimed { task: id, .. } if *id == task.id);
        let completed = |fact: &Fact| matches!(fact, Fact::TaskCompleted { task: id, .. } if *id == task.id);
        assert_eq!((stage.count(claimed), stage.count(completed)), (1, 1), "{}", task.id);
        let begun = facts.iter().position(claimed).unwrap();
        for blocker in &task.blocked_by {
            let done = |fact: &Fact| matches!(fact, Fact::TaskCompleted { task: id, .. } if id == blocker);
            assert!(facts.iter().position(done).unwrap() < begun, "{} before {blocker}", task.id);
        }
    }
    for who in CREW {
        let by = |fact: &Fact| matches!(fact, Fact::TaskCompleted { teammate, .. } if teammate == who);
        assert!(stage.count(by) > 2, "{who} has its share");
    }
}

#[tokio::test(start_paused = true)]
async fn idle_is_free_and_a_new_task_wakes_one() {
    let mut stage = Stage::new(&CREW);
    stage.diligent(&CREW);
    stage.brain("lead", |_, _| async { say("All is done.") });
    stage.tasks(&["a", "b"]).await;
    let team = stage.launch(on_and_on()).await;
    stage.until_status(2, TaskStatus::Completed).await;
    stage.until_quiet().await;
    let (requests, sessions) = (stage.requests(), stage.count(|fact| matches!(fact, Fact::SessionStarted { .. })));
    for who in CREW.iter().chain(&["lead"]) {
        stage.mail_of(MessageType::IdleNotice, "bob", who, None).await;
    }
    lock(&stage.board.looks).clear();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(stage.requests(), requests, "idle, and notices, are free");
    assert_eq!(stage.count(|fact| matches!(fact, Fact::SessionStarted { .. })), sessions, "a notice opens no session");
    let delivered = |fact: &Fact| matches!(fact, Fact::MessageDelivered { to, .. } if to == "alice");
    assert_eq!(stage.count(delivered), 1, "notices are put away");
    assert!(lock(&stage.board.looks).is_empty(), "who is on call does not look");

    let before = tokio::time::Instant::now();
    stage.tasks(&["c"]).await;
    stage.until_status(3, TaskStatus::Completed).await;
    assert!(before.elapsed() < Duration::from_millis(100), "not by the poll: {:?}", before.elapsed());
    let looks = lock(&stage.board.looks).clone();
    assert!(looks.iter().all(|who| *who == looks[0]), "one is woken, not all: {looks:?}");
    team.command(Command::Stop).await;
    stage.ended(team).await;
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn a_task_goes_to_one_who_is_fit_and_not_out_of_reach() {
    let mut stage = Stage::new(&CREW);
    stage.spec.members[2].capabilities = vec!["rust".to_owned()];
    stage.diligent(&["bob", "cleo"]);
    // Alice is limited for an hour.
    stage.brain("alice", |_, _| async {
        let retry_after = Some(Duration::from_secs(3600));
        Err(brigade::ports::ModelError::Temporary { message: "limited".to_owned(), retry_after })
    });
    let team = stage.launch(on_and_on()).await;
    stage.create(vec![NewTask { owner: Some("alice".to_owned()), ..new_task("hers") }]).await;
    stage.until("alice met her limit", |stage| !stage.sent_by("alice").is_empty()).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    let before = tokio::time::Instant::now();
    stage.create(vec![NewTask { requires: vec!["rust".to_owned()], ..new_task("rusty") }, new_task("any")]).await;
    stage.until_status(2, TaskStatus::Completed).await;
    stage.until_status(3, TaskStatus::Completed).await;
    assert!(before.elapsed() < Duration::from_millis(100), "{:?}", before.elapsed());
    assert_eq!(stage.task(2).await.owner.as_deref(), Some("cleo"));
    assert_eq!(stage.sent_by("alice").len(), 1, "she waits for as long as she was asked to");
    team.command(Command::StopNow).await;
    stage.ended(team).await;
}
