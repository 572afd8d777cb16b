//! Claims: given back when forgotten, lost when taken away, taken up again after a crash.

use std::time::Duration;

use brigade::domain::change::{Actor, ActorKind, Change};
use brigade::domain::context::claimed_block;
use brigade::domain::event::Fact;
use brigade::domain::refusal::Refusal;
use brigade::domain::task::{NewTask, TaskId, TaskResult, TaskStatus};
use brigade::domain::time::UnixMs;
use brigade::domain::transcript::{Block, Entry, MessageRecord, Record, Role};
use brigade::ports::{Claimant, StoreError};
use brigade::team::handle::Command;
use serde_json::json;

use super::stage::{Stage, call, complete, diligent, has_new_task, new_task, on_and_on, once, say, task_at_hand};

#[tokio::test(start_paused = true)]
async fn work_that_ends_with_a_claim_is_reminded_once_and_then_given_back_as_a_failure() {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", |_, _| async { say("I am done, I think.") });
    stage.create(vec![NewTask { max_attempts: Some(2), ..new_task("forgotten") }]).await;
    let outcome = stage.run_once().await;
    assert_eq!((outcome.tally.failed, outcome.trouble), (1, None));
    let sent = stage.sent_by("alice");
    assert_eq!(sent.len(), 4, "two attempts of two requests each");
    let reminders = |index: usize| sent[index].text().matches("You still hold task #1").count();
    assert_eq!([0, 1, 2, 3].map(reminders), [0, 1, 1, 2]);
    assert_eq!(stage.task(1).await.failures, 2);
    let lead = stage.transcript("lead").await.join("\n");
    assert_eq!(lead.matches("[task_failed] from system").count(), 2, "{lead}");
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn a_reminder_is_enough_for_one_who_only_forgot() {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", |request, _| async move {
        let last = request.messages.last().unwrap();
        let is_reminded =
            last.content.iter().any(|block| matches!(block, Block::Text { text } if text.starts_with("You still")));
        if is_reminded { call(&[complete(1)]) } else { say("Done.") }
    });
    stage.tasks(&["a"]).await;
    assert_eq!(stage.run_once().await.tally.completed, 1);
    assert_eq!(stage.task(1).await.failures, 0);
}

/// What alice does while a person takes her first task away by force.
async fn taken_away(during: &'static str) -> Stage {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", move |request, count| async move {
        match (count, during) {
            (0, "tool") => call(&[("nap", json!({"ms": 60_000})), ("nap", json!({"note": "never"})), complete(1)]),
            (0, _) => {
                std::future::pending::<()>().await;
                say("")
            }
            _ => diligent(&request),
        }
    });
    stage.create(vec![NewTask { priority: 1, ..new_task("first") }, new_task("second")]).await;
    let team = stage.launch(on_and_on()).await;
    stage.until("she is at it", |stage| !stage.sent_by("alice").is_empty()).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let person = Actor::new("human", ActorKind::Person).forcing(true);
    let release = Change::Release { reason: "I do it".to_owned(), counts: false };
    stage.stores.board.change(TaskId(1), release, &person).await.unwrap();
    let by_hand = Claimant { name: "carl".into(), capabilities: vec![], worker: "lease:carl".into(), lease: None };
    stage.stores.board.claim(TaskId(1), &by_hand).await.unwrap();
    let taken = tokio::time::Instant::now();
    stage.until("she goes on", |stage| stage.sent_by("alice").len() > 1).await;
    assert!(taken.elapsed() < Duration::from_secs(1), "{:?}", taken.elapsed());
    stage.until_status(2, TaskStatus::Completed).await;
    team.command(Command::StopNow).await;
    stage.ended(team).await;
    stage
}

#[tokio::test(start_paused = true)]
async fn a_turn_whose_claim_is_taken_away_is_broken_off_and_other_work_goes_on() {
    for during in ["tool", "request"] {
        let stage = taken_away(during).await;
        let next = &stage.sent_by("alice")[1];
        assert!(next.text().contains("Task #1 is not yours any more (in_progress, carl)"), "{}", next.text());
        assert_eq!(task_at_hand(&next.request), Some(2));
        assert!(!stage.notes().iter().any(|note| note.contains("never")), "no further tool: {:?}", stage.notes());
        let (done, alice) = (Change::Complete(TaskResult::default()), Actor::holder("alice", 1));
        let stale = stage.stores.board.change(TaskId(1), done, &alice).await;
        assert!(matches!(stale, Err(StoreError::Refused(Refusal::Stale { .. }))));
        assert_eq!(stage.task(1).await.owner.as_deref(), Some("carl"));
        stage.check_laws().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_learns_that_the_claim_is_lost_and_nothing_behind_it_runs() {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", |request, count| async move {
        match count {
            0 => call(&[("nap", json!({"ms": 1})), complete(1), ("nap", json!({"note": "never"}))]),
            _ => diligent(&request),
        }
    });
    stage.tasks(&["a"]).await;
    let team = stage.launch(on_and_on()).await;
    // No hint reaches the lead: the stale report itself tells.
    stage.until("at it", |stage| !stage.notes().is_empty()).await;
    stage.until_status(1, TaskStatus::Completed).await;
    team.command(Command::StopNow).await;
    stage.ended(team).await;
    assert!(!stage.sent_by("alice")[1..].iter().any(|sent| sent.text().contains("not yours any more")));
    stage.check_laws().await;
}

/// Leaves alice on task 1, with a call that has no result, as a process that was killed does.
async fn killed_in_the_middle(stage: &Stage) {
    stage.create(vec![new_task("first"), NewTask { priority: 9, ..new_task("second") }]).await;
    let dead = Claimant { name: "alice".into(), capabilities: vec![], worker: "dead".into(), lease: None };
    let task = stage.stores.board.claim(TaskId(1), &dead).await.unwrap();
    let asked = Block::ToolUse { id: "c-1".into(), name: "bash".into(), input: json!({"command": "make"}) };
    let records = [
        MessageRecord::new(Role::User, vec![Block::text(claimed_block(&task, None))]),
        MessageRecord::new(Role::Assistant, vec![asked]),
    ];
    let records = records.map(|message| Record { at: UnixMs(1), entry: Entry::Message(message) });
    stage.stores.transcripts.append("alice", &records, true).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn after_a_kill_each_has_its_task_back_and_the_open_call_is_closed() {
    let mut stage = Stage::new(&["alice", "bob"]);
    stage.diligent(&["alice", "bob"]);
    killed_in_the_middle(&stage).await;
    assert_eq!(stage.run_once().await.tally.completed, 2);
    let first = &stage.sent_by("alice")[0];
    assert!(first.text().contains("result: Interrupted"), "{}", first.text());
    assert_eq!(task_at_hand(&first.request), Some(1), "her own, though the other is more urgent");
    assert!(has_new_task(&first.request));
    let task = stage.task(1).await;
    assert_eq!((task.owner.as_deref(), task.attempt, task.failures), (Some("alice"), 2, 0));
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_nobody_holds_is_taken_back() {
    let mut stage = Stage::new(&["alice"]);
    stage.diligent(&["alice"]);
    let team = stage.launch(on_and_on()).await;
    // As if its holder had been ended between the board's answer and its first note of it.
    stage.create(vec![NewTask { requires: vec!["nobody".into()], ..new_task("a") }]).await;
    let worker = stage.stores.workers.me().to_owned();
    let ghost = Claimant { name: "alice".into(), capabilities: vec!["nobody".into()], worker, lease: None };
    stage.stores.board.claim(TaskId(1), &ghost).await.unwrap();
    stage.until_status(1, TaskStatus::Pending).await;
    let task = stage.task(1).await;
    assert_eq!((task.failures, task.claim), (0, None));
    let told =
        |fact: &Fact| matches!(fact, Fact::TaskReclaimed { reason, .. } if reason.contains("just as it claimed"));
    assert_eq!(stage.count(told), 1);
    team.command(Command::Stop).await;
    stage.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_waits_for_others_says_for_whom_once() {
    const LEASE: Duration = Duration::from_secs(90);
    let mut stage = Stage::new(&["alice"]);
    stage.diligent(&["alice"]);
    stage.tasks(&["taken", "ours"]).await;
    let by_hand = Claimant { name: "eve".into(), capabilities: vec![], worker: "lease:eve".into(), lease: Some(LEASE) };
    stage.stores.board.claim(TaskId(1), &by_hand).await.unwrap();
    let team = stage.launch(once()).await;
    stage.until_status(2, TaskStatus::Completed).await;
    let said = |stage: &Stage| {
        stage.count(|fact| matches!(fact, Fact::Warning { text, .. } if text.contains("#1 is claimed by eve")))
    };
    stage.until("it is said", |stage| said(stage) == 1).await;
    tokio::time::sleep(LEASE / 2).await;
    assert_eq!(said(&stage), 1);
    // The lease ends, and alice takes it.
    stage.ended(team).await;
    assert_eq!(stage.task(1).await.owner.as_deref(), Some("alice"));
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_forward_ends_no_claim_by_command() {
    const LEASE: Duration = Duration::from_secs(90);
    let mut stage = Stage::new(&["alice"]);
    stage.diligent(&["alice"]);
    stage.tasks(&["taken"]).await;
    let by_hand = Claimant { name: "eve".into(), capabilities: vec![], worker: "lease:eve".into(), lease: Some(LEASE) };
    stage.stores.board.claim(TaskId(1), &by_hand).await.unwrap();
    let team = stage.launch(on_and_on()).await;
    tokio::time::sleep(LEASE / 3).await;
    stage.wall.set_forward(Duration::from_secs(3_600));
    tokio::time::sleep(LEASE / 3).await;
    assert_eq!(stage.task(1).await.owner.as_deref(), Some("eve"));
    // As long as it was given it has lasted now.
    stage.until_status(1, TaskStatus::Completed).await;
    assert_eq!(stage.task(1).await.owner.as_deref(), Some("alice"));
    team.command(Command::Stop).await;
    stage.ended(team).await;
}
