//! Tasks are done in order, once, by any free teammate. Idle teammates make no requests.

use std::time::Duration;

use brigade::domain::agent::permission::PermissionMode;
use brigade::domain::log::event::EventKind;
use brigade::domain::task::{NewTask, TaskStatus};
use brigade::domain::team::message::MessageType;
use brigade::team::handle::{TeamCommand, TeamEnd};
use serde_json::json;

use super::harness::{TestTeam, call, complete, has_new_task, lock, new_task, say, start_continuous, task_at_hand};

const CREW: [&str; 3] = ["alice", "bob", "cleo"];

#[tokio::test(start_paused = true)]
async fn dependent_tasks_run_in_order_and_once() {
    let mut harness = TestTeam::new(&CREW);
    for who in CREW {
        harness.set_model_fn(who, |request, _| async move {
            match task_at_hand(&request).filter(|_| has_new_task(&request)) {
                Some(task) => call(&[("nap", json!({"ms": 10 + task % 7})), complete(task)]),
                None => say("Done."),
            }
        });
    }
    let blockers = |index: usize| (0..index).filter(|other| index % (other + 2) == 1).collect();
    let tasks = (0..20).map(|index| NewTask { blocked_by_new: blockers(index), ..new_task(&format!("t{index}")) });
    let created = harness.create(tasks.collect()).await;
    let outcome = harness.run_once().await;
    assert_eq!((outcome.end, outcome.task_counts.completed, outcome.error), (TeamEnd::SessionOver, 20, None));
    harness.check_invariants().await;
    let events = harness.event_kinds();
    for task in &created {
        let claimed = |event: &EventKind| matches!(event, EventKind::TaskClaimed { task: id, .. } if *id == task.id);
        let completed =
            |event: &EventKind| matches!(event, EventKind::TaskCompleted { task: id, .. } if *id == task.id);
        assert_eq!((harness.count(claimed), harness.count(completed)), (1, 1), "{}", task.id);
        let begun = events.iter().position(claimed).unwrap();
        for blocker in &task.blocked_by {
            let done = |event: &EventKind| matches!(event, EventKind::TaskCompleted { task: id, .. } if id == blocker);
            assert!(events.iter().position(done).unwrap() < begun, "{} before {blocker}", task.id);
        }
    }
    for who in CREW {
        let by = |event: &EventKind| matches!(event, EventKind::TaskCompleted { teammate, .. } if teammate == who);
        assert!(harness.count(by) > 2, "{who} did too few tasks");
    }
}

#[tokio::test(start_paused = true)]
async fn idle_makes_no_requests_and_new_task_wakes_one() {
    let mut harness = TestTeam::new(&CREW);
    harness.diligent(&CREW);
    harness.set_model_fn("lead", |_, _| async { say("All is done.") });
    harness.tasks(&["a", "b"]).await;
    let team = harness.launch(start_continuous()).await;
    harness.wait_for_status(2, TaskStatus::Completed).await;
    harness.wait_for_all_on_call().await;
    let (requests, sessions) =
        (harness.requests(), harness.count(|event| matches!(event, EventKind::SessionStarted { .. })));
    for who in CREW.iter().chain(&["lead"]) {
        harness.mail_of(MessageType::IdleNotice, "bob", who, None).await;
    }
    lock(&harness.polls).clear();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(harness.requests(), requests, "idle members or notices made requests");
    assert_eq!(
        harness.count(|event| matches!(event, EventKind::SessionStarted { .. })),
        sessions,
        "a notice started a session"
    );
    let delivered = |event: &EventKind| matches!(event, EventKind::MessageDelivered { to, .. } if to == "alice");
    assert_eq!(harness.count(delivered), 1, "the notice is not recorded");
    assert!(lock(&harness.polls).is_empty(), "a member on call polled");

    let before = tokio::time::Instant::now();
    harness.tasks(&["c"]).await;
    harness.wait_for_status(3, TaskStatus::Completed).await;
    assert!(before.elapsed() < Duration::from_millis(100), "the task started by a poll: {:?}", before.elapsed());
    let polls = lock(&harness.polls).clone();
    assert!(polls.iter().all(|who| *who == polls[0]), "more than one member woke: {polls:?}");
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn task_goes_to_capable_and_reachable_teammate() {
    let mut harness = TestTeam::new(&CREW);
    harness.spec.members[2].capabilities = vec!["rust".to_owned()];
    harness.diligent(&["bob", "cleo"]);
    // Alice is rate-limited for ten minutes: longer would be a quota, which all three share.
    harness.set_model_fn("alice", |_, _| async {
        let retry_after = Some(Duration::from_secs(600));
        Err(brigade::ports::ModelError::Temporary { message: "limited".to_owned(), retry_after })
    });
    let team = harness.launch(start_continuous()).await;
    harness.create(vec![NewTask { owner: Some("alice".to_owned()), ..new_task("hers") }]).await;
    harness.wait_until("alice reached her limit", |harness| !harness.sent_by("alice").is_empty()).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    let before = tokio::time::Instant::now();
    harness.create(vec![NewTask { requires: vec!["rust".to_owned()], ..new_task("rusty") }, new_task("any")]).await;
    harness.wait_for_status(2, TaskStatus::Completed).await;
    harness.wait_for_status(3, TaskStatus::Completed).await;
    assert!(before.elapsed() < Duration::from_millis(100), "{:?}", before.elapsed());
    assert_eq!(harness.task(2).await.owner.as_deref(), Some("cleo"));
    assert_eq!(harness.sent_by("alice").len(), 1, "she did not wait for the full time");
    team.command(TeamCommand::Abort).await;
    harness.ended(team).await;
}

/// A member that may change nothing would only burn attempts of tasks that others can do.
#[tokio::test(start_paused = true)]
async fn read_only_member_claims_only_tasks_that_name_it() {
    let mut harness = TestTeam::new(&["alice", "bob"]);
    harness.spec.members[0].permissions.mode = PermissionMode::Plan;
    harness.spec.members[0].capabilities = vec!["look".to_owned()];
    harness.diligent(&["alice", "bob"]);
    let look = NewTask { requires: vec!["look".to_owned()], ..new_task("look") };
    harness.create(vec![new_task("a"), new_task("b"), new_task("c"), look]).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 4);
    let owners = [harness.task(1).await, harness.task(2).await, harness.task(3).await, harness.task(4).await];
    assert_eq!(owners.map(|task| task.owner.unwrap()), ["bob", "bob", "bob", "alice"]);
    harness.check_invariants().await;
}
