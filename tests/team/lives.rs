//! Panics, hangs, and waits that are neither.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use brigade::domain::event::Fact;
use brigade::domain::task::{NewTask, TaskStatus};
use brigade::ports::ModelError;
use brigade::team::handle::{Command, End};
use brigade::team::spec::MemberSpec;
use serde_json::json;

use super::stage::{Stage, call, complete, diligent, has_new_task, name, new_task, on_and_on, once, say, task_at_hand};

fn respawned(stage: &Stage, who: &str) -> usize {
    stage.count(|fact| matches!(fact, Fact::TeammateRespawned { teammate, .. } if teammate == who))
}

#[tokio::test(start_paused = true)]
async fn a_model_that_panics_costs_one_failure_and_the_restarted_one_knows() {
    let mut stage = Stage::new(&["alice"]);
    let panics = Arc::new(AtomicUsize::new(0));
    stage.brain("alice", move |request, _| {
        let panics = Arc::clone(&panics);
        async move {
            let text = super::stage::text_of(&request);
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
    stage.tasks(&["mark it"]).await;
    let outcome = stage.run_once().await;
    assert_eq!((outcome.end, outcome.tally.completed), (End::SessionOver, 1));
    let task = stage.task(1).await;
    assert_eq!((task.failures, task.attempt), (1, 2));
    assert_eq!(stage.notes(), ["alice begins marked", "alice ended marked"], "what ran is not run again");
    assert_eq!(respawned(&stage, "alice"), 1);
    let reclaimed = |fact: &Fact| matches!(fact, Fact::TaskReclaimed { reason, .. } if reason.contains("panicked"));
    assert_eq!(stage.count(reclaimed), 1, "{}", stage.story());
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_panics_leaves_a_context_a_provider_takes() {
    let mut stage = Stage::new(&["alice"]);
    stage.brain("alice", |request, count| async move {
        if count == 0 { call(&[("boom", json!({})), ("nap", json!({}))]) } else { diligent(&request) }
    });
    stage.tasks(&["a"]).await;
    assert_eq!(stage.run_once().await.tally.completed, 1);
    let sent = stage.sent_by("alice");
    assert!(sent[1].text().contains("Interrupted"), "{}", sent[1].text());
    assert!(stage.notes().iter().all(|note| !note.contains("nap")), "the call behind it was not made");
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_always_panics_is_stopped_with_the_reason_and_the_others_go_on() {
    let mut stage = Stage::new(&["alice", "bob"]);
    stage.spec.limits.respawns_max = 2;
    stage.brain("alice", |_, _| async { panic!("the model panics, as the test wants") });
    stage.brain("bob", |request, _| async move {
        tokio::time::sleep(Duration::from_secs(3)).await;
        diligent(&request)
    });
    let task = |index| NewTask { max_attempts: Some(20), ..new_task(&format!("t{index}")) };
    stage.create((0..6).map(task).collect()).await;
    let team = stage.launch(once()).await;
    stage.until("it is dead", |_| team.live().teammates().get("alice").is_some_and(|row| row.phase == "dead")).await;
    let why = team.live().teammates()["alice"].waiting_for.clone().unwrap().to_file_text();
    assert!(why.contains("it panicked; started again 2 times"), "{why}");
    let outcome = stage.ended(team).await;
    assert_eq!(outcome.tally.completed, 6);
    assert_eq!(respawned(&stage, "alice"), 2);
    let stopped = stage.facts().into_iter().find_map(|fact| match fact {
        Fact::TeammateStopped { teammate, reason, .. } if teammate == "alice" => Some(reason),
        _ => None,
    });
    let reason = stopped.unwrap();
    assert!(reason.contains("panicked") && reason.contains("2 times"), "{reason}");
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn when_everybody_is_gone_a_run_ends_and_says_why() {
    let mut stage = Stage::new(&["alice"]);
    stage.spec.limits.respawns_max = 1;
    stage.brain("alice", |_, _| async { panic!("the model panics, as the test wants") });
    stage.create(vec![NewTask { max_attempts: Some(9), ..new_task("a") }]).await;
    let outcome = stage.run_once().await;
    assert_eq!(outcome.tally.pending, 1);
    let trouble = outcome.trouble.unwrap();
    assert!(trouble.contains("alice: it panicked"), "{trouble}");
    assert!(outcome.summary.contains(&trouble));
}

#[tokio::test(start_paused = true)]
async fn a_model_that_never_answers_loses_its_claim() {
    let mut stage = Stage::new(&["alice"]);
    stage.spec.limits.stall_timeout = Duration::from_secs(60);
    stage.brain("alice", |request, count| async move {
        if count == 0 {
            std::future::pending::<()>().await;
        }
        diligent(&request)
    });
    stage.tasks(&["a"]).await;
    let begun = tokio::time::Instant::now();
    let team = stage.launch(once()).await;
    stage.until("it is said", |_| team.live().teammates().get("alice").is_some_and(|row| row.phase == "stalled")).await;
    assert!(begun.elapsed() > Duration::from_secs(30), "half its bound");
    assert_eq!(stage.ended(team).await.tally.completed, 1);
    assert!(begun.elapsed() >= Duration::from_secs(60) && begun.elapsed() < Duration::from_secs(70));
    assert_eq!((stage.task(1).await.failures, respawned(&stage, "alice")), (1, 1));
    let hung = |fact: &Fact| matches!(fact, Fact::TeammateRespawned { reason, .. } if reason.contains("hung"));
    assert_eq!(stage.count(hung), 1);
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_for_a_limit_is_not_stalled_and_says_so() {
    let mut stage = Stage::new(&["alice"]);
    stage.spec.limits.stall_timeout = Duration::from_secs(60);
    stage.brain("alice", |request, count| async move {
        if count == 0 {
            let retry_after = Some(Duration::from_secs(300));
            return Err(ModelError::Temporary { message: "limited".to_owned(), retry_after });
        }
        diligent(&request)
    });
    stage.tasks(&["a"]).await;
    let team = stage.launch(once()).await;
    tokio::time::sleep(Duration::from_secs(200)).await;
    let live = team.live().teammates();
    let waits = live["alice"].waiting_for.clone().unwrap().to_file_text();
    assert!(waits.starts_with("its model, limited until ") && waits.ends_with("retry 1 of 5): limited"), "{waits}");
    assert_eq!(stage.ended(team).await.tally.completed, 1);
    let sent = stage.sent_by("alice");
    let waited = (sent[1].at - sent[0].at).as_secs_f64();
    assert!((300.0..305.01).contains(&waited), "never sooner than asked, a little later: {waited}");
    assert_eq!((stage.task(1).await.failures, respawned(&stage, "alice")), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_long_tool_is_not_a_stall() {
    let mut stage = Stage::new(&["alice"]);
    stage.spec.limits.stall_timeout = Duration::from_secs(60);
    stage.brain("alice", |request, count| async move {
        if count == 0 { call(&[("nap", json!({"ms": 3_000_000})), complete(1)]) } else { diligent(&request) }
    });
    stage.tasks(&["a"]).await;
    assert_eq!(stage.run_once().await.tally.completed, 1);
    assert_eq!(respawned(&stage, "alice"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_teammate_spawned_at_run_time_works_and_reads_mail() {
    let mut stage = Stage::new(&["alice"]);
    stage.diligent(&["alice"]);
    stage.brain("lead", |request, count| async move {
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
    stage.spec.goal = Some("review".to_owned());
    let outcome = stage.run_once().await;
    assert_eq!((outcome.tally.completed, outcome.tally.blocked), (1, 0), "{}", stage.story());
    assert_eq!(stage.task(1).await.owner.as_deref(), Some("dora"));
    let dora = stage.transcript("dora").await.join("\n");
    assert!(dora.contains("from lead: welcome"), "{dora}");
    assert!(stage.sent_by("dora")[0].request.system.contains("Review."));
    let lead = stage.transcript("lead").await.join("\n");
    for answer in ["`dora` is started", "`dora` is here already", "differ only in case", "`human` is reserved"] {
        assert!(lead.contains(answer), "{answer}: {lead}");
    }
    stage.check_laws().await;
}

#[tokio::test(start_paused = true)]
async fn a_stopped_teammate_can_be_spawned_again() {
    let mut stage = Stage::new(&["alice"]);
    stage.diligent(&["alice"]);
    let team = stage.launch(on_and_on()).await;
    team.command(Command::StopTeammate { name: name("alice"), now: false }).await;
    stage.until("stopped", |stage| stage.count(|fact| matches!(fact, Fact::TeammateStopped { .. })) == 1).await;
    stage.tasks(&["a"]).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(stage.task(1).await.status, TaskStatus::Pending, "nobody is there");
    let (reply, answered) = tokio::sync::oneshot::channel();
    team.command(Command::Spawn { spec: stage.spec.members[0].clone(), reply }).await;
    answered.await.unwrap().unwrap();
    stage.until_status(1, TaskStatus::Completed).await;
    team.command(Command::Stop).await;
    stage.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_is_spawned_again_is_still_what_its_config_says() {
    let mut stage = Stage::new(&["alice"]);
    stage.diligent(&["alice"]);
    stage.spec.members[0].plan_first = true;
    let team = stage.launch(on_and_on()).await;
    team.command(Command::StopTeammate { name: name("alice"), now: false }).await;
    stage.until("stopped", |stage| stage.count(|fact| matches!(fact, Fact::TeammateStopped { .. })) == 1).await;
    // As the lead's tool has it.
    let mut spec = MemberSpec::new("alice", "reviewer", stage.spec.lead.model.clone()).unwrap();
    spec.prompt = "Review.".to_owned();
    let (reply, answered) = tokio::sync::oneshot::channel();
    team.command(Command::Spawn { spec, reply }).await;
    answered.await.unwrap().unwrap();
    stage.tasks(&["a"]).await;
    stage.until("asked", |stage| !stage.sent_by("alice").is_empty()).await;
    let request = stage.sent_by("alice")[0].request.clone();
    assert_eq!(&*request.model, stage.spec.members[0].model.model.as_str());
    for told in ["You hand in a plan first.", "role: reviewer", "Review."] {
        assert!(request.system.contains(told), "{told}: {}", request.system);
    }
    team.command(Command::StopNow).await;
    stage.ended(team).await;
}
