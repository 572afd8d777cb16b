//! Panics, hangs, and waits that are neither.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use brigade::domain::log::event::EventKind;
use brigade::domain::task::{NewTask, TaskStatus};
use brigade::domain::team::name::HUMAN;
use brigade::domain::team::phase::ReportedPhase;
use brigade::domain::team::team_spec::MemberSpec;
use brigade::domain::team::waiting_for::WaitingFor;
use brigade::ports::{ModelError, StoreChange};
use brigade::stores::memory::board::MemoryBoard;
use brigade::team::StartOptions;
use brigade::team::handle::{TeamCommand, TeamEnd};
use serde_json::json;

use super::harness::{
    TestTeam, call, complete, diligent, has_new_task, new_task, once, parts_of, say, start_continuous, task_at_hand,
};

fn respawned(harness: &TestTeam, who: &str) -> usize {
    harness.count(|event| matches!(event, EventKind::TeammateRespawned { teammate, .. } if teammate == who))
}

#[tokio::test(start_paused = true)]
async fn model_panic_costs_one_failure_and_respawns() {
    let mut harness = TestTeam::new(&["alice"]);
    let panics = Arc::new(AtomicUsize::new(0));
    harness.set_model_fn("alice", move |request, _| {
        let panics = Arc::clone(&panics);
        async move {
            let text = super::harness::text_of(&request);
            if !text.contains("result: marked") {
                return call(&[("nap", json!({"note": "marked"}))]);
            }
            assert!(panics.fetch_add(1, Ordering::Relaxed) > 0, "the model panics, as the test wants");
            match task_at_hand(&request).filter(|_| has_new_task(&request)) {
                Some(task) => call(&[complete(task)]),
                None => say("Done."),
            }
        }
    });
    harness.tasks(&["mark it"]).await;
    let outcome = harness.run_once().await;
    assert_eq!((outcome.end, outcome.task_counts.completed), (TeamEnd::SessionOver, 1));
    let task = harness.task(1).await;
    assert_eq!((task.failures, task.attempt), (1, 2));
    assert_eq!(harness.notes(), ["alice begins marked", "alice ended marked"], "a finished call ran again");
    assert_eq!(respawned(&harness, "alice"), 1);
    let reclaimed =
        |event: &EventKind| matches!(event, EventKind::TaskReclaimed { reason, .. } if reason.contains("panicked"));
    assert_eq!(harness.count(reclaimed), 1, "{}", harness.event_lines());
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn tool_panic_leaves_valid_context() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.set_model_fn("alice", |request, count| async move {
        if count == 0 { call(&[("boom", json!({})), ("nap", json!({}))]) } else { diligent(&request) }
    });
    harness.tasks(&["a"]).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 1);
    let sent = harness.sent_by("alice");
    assert!(sent[1].text().contains("Interrupted"), "{}", sent[1].text());
    assert!(harness.notes().iter().all(|note| !note.contains("nap")), "the next call ran");
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn always_panicking_teammate_is_stopped_others_work() {
    let mut harness = TestTeam::new(&["alice", "bob"]);
    harness.spec.limits.respawns_max = 2;
    harness.set_model_fn("alice", |_, _| async { panic!("the model panics, as the test wants") });
    harness.set_model_fn("bob", |request, _| async move {
        tokio::time::sleep(Duration::from_secs(3)).await;
        diligent(&request)
    });
    let task = |index| NewTask { max_attempts: Some(20), ..new_task(&format!("t{index}")) };
    harness.create((0..6).map(task).collect()).await;
    let team = harness.launch(once()).await;
    harness
        .wait_until("the worker is dead", |_| {
            team.live().teammates().get("alice").is_some_and(|row| row.phase == ReportedPhase::Dead)
        })
        .await;
    let why = team.live().teammates()["alice"].waiting_for.clone().unwrap().to_file_text();
    assert!(why.contains("it panicked; restarted 2 times"), "{why}");
    let outcome = harness.ended(team).await;
    assert_eq!(outcome.task_counts.completed, 6);
    assert_eq!(respawned(&harness, "alice"), 2);
    let stopped = harness.event_kinds().into_iter().find_map(|event| match event {
        EventKind::TeammateStopped { teammate, reason, .. } if teammate == "alice" => Some(reason),
        _ => None,
    });
    let reason = stopped.unwrap();
    assert!(reason.contains("panicked") && reason.contains("2 times"), "{reason}");
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn run_without_live_teammates_ends_with_reason() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.spec.limits.respawns_max = 1;
    harness.set_model_fn("alice", |_, _| async { panic!("the model panics, as the test wants") });
    harness.create(vec![NewTask { max_attempts: Some(9), ..new_task("a") }]).await;
    let outcome = harness.run_once().await;
    assert_eq!(outcome.task_counts.pending, 1);
    let trouble = outcome.error.unwrap();
    assert!(trouble.contains("alice: it panicked"), "{trouble}");
    assert!(outcome.summary.contains(&trouble));
}

fn stopped_because(harness: &TestTeam, who: &str, why: &str) -> usize {
    harness.count(|event| matches!(event, EventKind::TeammateStopped { teammate, reason, .. } if teammate == who && reason == why))
}

fn spawned(harness: &TestTeam, who: &str) -> usize {
    harness.count(|event| matches!(event, EventKind::TeammateSpawned { teammate, .. } if teammate == who))
}

#[tokio::test(start_paused = true)]
async fn idle_teammate_ends_and_returns_for_task_or_mail() {
    let mut harness = TestTeam::new(&["alice", "bob"]);
    harness.spec.limits.idle_shutdown = Duration::from_secs(30);
    harness.diligent(&["alice", "bob"]);
    let team = harness.launch(start_continuous()).await;
    tokio::time::sleep(Duration::from_secs(40)).await;
    for who in ["alice", "bob"] {
        assert_eq!(stopped_because(&harness, who, "idle for 30 s"), 1, "{}", harness.event_lines());
        let row = team.live().teammates()[who].clone();
        assert_eq!((row.phase, &row.waiting_for), (ReportedPhase::Stopped, &Some(WaitingFor::MailOrTask)));
        assert!(!row.is_gone());
    }
    // One task starts one teammate, mail its recipient.
    harness.tasks(&["a"]).await;
    harness.wait_for_status(1, TaskStatus::Completed).await;
    assert_eq!(spawned(&harness, "alice") + spawned(&harness, "bob"), 3, "{}", harness.event_lines());
    tokio::time::sleep(Duration::from_secs(40)).await;
    let before = (spawned(&harness, "bob"), harness.sent_by("bob").len());
    harness.mail(HUMAN, "bob", "hello").await;
    harness.wait_until("bob answers", |harness| harness.sent_by("bob").len() > before.1).await;
    assert_eq!(spawned(&harness, "bob"), before.0 + 1);
    tokio::time::sleep(Duration::from_secs(40)).await;
    team.command(TeamCommand::Stop).await;
    assert_eq!(harness.ended(team).await.end, TeamEnd::Interrupted);
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn claim_without_hint_starts_no_second_teammate() {
    let mut harness = TestTeam::new(&["alice", "bob"]);
    harness.spec.limits.idle_shutdown = Duration::from_secs(30);
    // The lead hears of no change of this board, as if a busy machine delayed the file events.
    let (unheard, _) = tokio::sync::broadcast::channel(1);
    harness.stores.board = Arc::new(MemoryBoard::new(Arc::clone(&harness.clock), unheard));
    for who in ["alice", "bob"] {
        harness.set_model_fn(who, |request, _| async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            diligent(&request)
        });
    }
    let team = harness.launch(start_continuous()).await;
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(stopped_because(&harness, "alice", "idle for 30 s"), 1, "{}", harness.event_lines());
    assert_eq!(stopped_because(&harness, "bob", "idle for 30 s"), 1, "{}", harness.event_lines());
    harness.tasks(&["a"]).await;
    harness.stores.changes.send(StoreChange::Board).unwrap();
    harness.wait_for_status(1, TaskStatus::Completed).await;
    assert_eq!(spawned(&harness, "alice") + spawned(&harness, "bob"), 3, "{}", harness.event_lines());
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn one_session_run_waits_for_ended_teammate() {
    let mut harness = TestTeam::new(&["alice", "bob"]);
    harness.spec.limits.idle_shutdown = Duration::from_secs(30);
    harness.diligent(&["alice"]);
    harness.set_model_fn("bob", |request, _| async move {
        tokio::time::sleep(Duration::from_secs(300)).await;
        diligent(&request)
    });
    let reserved = NewTask { owner: Some("bob".to_owned()), ..new_task("slow") };
    let after = NewTask { owner: Some("alice".to_owned()), blocked_by_new: vec![0], ..new_task("next") };
    harness.create(vec![reserved, after]).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 2, "{}", harness.event_lines());
    assert!(stopped_because(&harness, "alice", "idle for 30 s") > 0, "{}", harness.event_lines());
    assert_eq!(spawned(&harness, "alice"), 2);
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn unresponsive_model_is_stalled_and_loses_claim() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.spec.limits.stall_timeout = Duration::from_secs(60);
    harness.set_model_fn("alice", |request, count| async move {
        if count == 0 {
            std::future::pending::<()>().await;
        }
        diligent(&request)
    });
    harness.tasks(&["a"]).await;
    let begun = tokio::time::Instant::now();
    let team = harness.launch(once()).await;
    harness
        .wait_until("the notice is printed", |_| {
            team.live().teammates().get("alice").is_some_and(|row| row.phase == ReportedPhase::Stalled)
        })
        .await;
    assert!(begun.elapsed() > Duration::from_secs(30), "the time limit was too short");
    assert_eq!(harness.ended(team).await.task_counts.completed, 1);
    assert!(begun.elapsed() >= Duration::from_secs(60) && begun.elapsed() < Duration::from_secs(70));
    assert_eq!((harness.task(1).await.failures, respawned(&harness, "alice")), (1, 1));
    let hung =
        |event: &EventKind| matches!(event, EventKind::TeammateRespawned { reason, .. } if reason.contains("hung"));
    assert_eq!(harness.count(hung), 1);
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn teammate_waiting_for_rate_limit_is_not_stalled() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.spec.limits.stall_timeout = Duration::from_secs(60);
    harness.set_model_fn("alice", |request, count| async move {
        if count == 0 {
            let retry_after = Some(Duration::from_secs(300));
            return Err(ModelError::Temporary { message: "limited".to_owned(), retry_after });
        }
        diligent(&request)
    });
    harness.tasks(&["a"]).await;
    let team = harness.launch(once()).await;
    tokio::time::sleep(Duration::from_secs(200)).await;
    let live = team.live().teammates();
    let waits = live["alice"].waiting_for.clone().unwrap().to_file_text();
    assert!(waits.starts_with("its model, limited until ") && waits.ends_with("retry 1 of 5): limited"), "{waits}");
    assert_eq!(harness.ended(team).await.task_counts.completed, 1);
    let sent = harness.sent_by("alice");
    let waited = (sent[1].at - sent[0].at).as_secs_f64();
    assert!((300.0..305.01).contains(&waited), "the wait is shorter than asked, or much longer: {waited}");
    assert_eq!((harness.task(1).await.failures, respawned(&harness, "alice")), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn long_tool_call_is_not_a_stall() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.spec.limits.stall_timeout = Duration::from_secs(60);
    harness.set_model_fn("alice", |request, count| async move {
        if count == 0 { call(&[("nap", json!({"ms": 3_000_000})), complete(1)]) } else { diligent(&request) }
    });
    harness.tasks(&["a"]).await;
    assert_eq!(harness.run_once().await.task_counts.completed, 1);
    assert_eq!(respawned(&harness, "alice"), 0);
}

#[tokio::test(start_paused = true)]
async fn teammate_spawned_at_run_time_works_and_reads_mail() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    harness.set_model_fn("lead", |request, count| async move {
        if &*request.teammate == "dora" {
            return diligent(&request);
        }
        let spawn = |name: &str| json!({"name": name, "role": "reviewer", "prompt": "Review."});
        match count {
            0 => call(&[
                ("spawn_teammate", spawn("dora")),
                ("spawn_teammate", spawn("dora")),
                ("spawn_teammate", spawn("Dora")),
                ("spawn_teammate", spawn("human")),
                ("send_message", json!({"to": "dora", "content": "welcome"})),
                ("task_create", json!({"subject": "look at it", "description": "please", "requires": ["reviewer"]})),
            ]),
            _ => say("Settled."),
        }
    });
    harness.spec.goal = Some("review".to_owned());
    let outcome = harness.run_once().await;
    assert_eq!((outcome.task_counts.completed, outcome.task_counts.blocked), (1, 0), "{}", harness.event_lines());
    assert_eq!(harness.task(1).await.owner.as_deref(), Some("dora"));
    let dora = harness.transcript("dora").await.join("\n");
    assert!(dora.contains("from lead: welcome"), "{dora}");
    assert!(harness.sent_by("dora")[0].request.system.contains("Review."));
    let lead = harness.transcript("lead").await.join("\n");
    for answer in ["`dora` is started", "`dora` is running already", "differ only in case", "`human` is reserved"] {
        assert!(lead.contains(answer), "{answer}: {lead}");
    }
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn relaunch_with_spawned_teammates_keeps_lead_tools() {
    let mut harness = TestTeam::new(&[]);
    harness.set_model_fn("lead", |request, count| async move {
        let spawn = |name: &str| json!({"name": name, "role": "reviewer", "prompt": "Review."});
        match (&*request.teammate, count) {
            ("lead", 0) => call(&[("spawn_teammate", spawn("dora")), ("spawn_teammate", spawn("emil"))]),
            _ => say("Settled."),
        }
    });
    for goal in ["review", "again"] {
        let team = harness.launch(StartOptions { goal: Some(goal.to_owned()), ..once() }).await;
        harness.ended(team).await;
        harness.restart();
    }
    let sent = harness.sent_by("lead");
    let last = sent.last().unwrap();
    assert!(last.text().contains("from human: again"), "{}", last.text());
    assert!(parts_of(&last.request).starts_with(&parts_of(&sent[0].request)), "{}", last.text());
}

#[tokio::test(start_paused = true)]
async fn stopped_teammate_can_be_spawned_again() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    let team = harness.launch(start_continuous()).await;
    harness.ask_to_stop("alice", false).await;
    harness
        .wait_until("stopped", |harness| harness.count(|event| matches!(event, EventKind::TeammateStopped { .. })) == 1)
        .await;
    harness.tasks(&["a"]).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(harness.task(1).await.status, TaskStatus::Pending, "a member is left");
    let (reply, answered) = tokio::sync::oneshot::channel();
    team.command(TeamCommand::Spawn { spec: Box::new(harness.spec.members[0].clone()), reply }).await;
    answered.await.unwrap().unwrap();
    harness.wait_for_status(1, TaskStatus::Completed).await;
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn respawned_teammate_keeps_config_settings() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    harness.spec.members[0].plan_first = true;
    let team = harness.launch(start_continuous()).await;
    harness.ask_to_stop("alice", false).await;
    harness
        .wait_until("stopped", |harness| harness.count(|event| matches!(event, EventKind::TeammateStopped { .. })) == 1)
        .await;
    // As the lead's tool creates it.
    let mut spec = MemberSpec::new("alice", "reviewer", harness.spec.lead.model.clone()).unwrap();
    spec.prompt = "Review.".to_owned();
    let (reply, answered) = tokio::sync::oneshot::channel();
    team.command(TeamCommand::Spawn { spec: Box::new(spec), reply }).await;
    answered.await.unwrap().unwrap();
    harness.tasks(&["a"]).await;
    harness.wait_until("asked", |harness| !harness.sent_by("alice").is_empty()).await;
    let request = harness.sent_by("alice")[0].request.clone();
    assert_eq!(&*request.model, harness.spec.members[0].model.model.as_str());
    for told in ["You hand in a plan first.", "role: reviewer", "Review."] {
        assert!(request.system.contains(told), "{told}: {}", request.system);
    }
    team.command(TeamCommand::Abort).await;
    harness.ended(team).await;
}
