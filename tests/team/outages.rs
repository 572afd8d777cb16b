//! Models that are out of reach for a long time, and models whose settings are wrong.

use std::time::Duration;

use brigade::domain::log::event::EventKind;
use brigade::domain::task::{NewTask, TaskStatus};
use brigade::domain::team::name::LEAD;
use brigade::ports::ModelError;
use brigade::team::handle::{TeamCommand, TeamEnd, TeamOutcome};
use serde_json::json;
use tokio::time::Instant;

use super::harness::{ModelResult, TestTeam, call, diligent, has_new_task, new_task, say, start_continuous};

const MINUTE: Duration = Duration::from_secs(60);

fn unreachable() -> ModelResult {
    Err(ModelError::Temporary { message: "connection refused".to_owned(), retry_after: None })
}

fn wrong_key() -> ModelResult {
    Err(ModelError::WrongSetting("refused the key in API_KEY".to_owned()))
}

fn team_of_unreachable(members: &[&str]) -> TestTeam {
    let mut harness = TestTeam::new(members);
    for who in members {
        harness.set_model_fn(who, |_, _| async { unreachable() });
    }
    harness
}

fn for_archive(subject: &str) -> NewTask {
    NewTask { requires: vec!["archive".to_owned()], ..new_task(subject) }
}

async fn run_for(harness: &TestTeam, minutes: std::ops::Range<u32>) -> TeamOutcome {
    let begun = Instant::now();
    let outcome = harness.run_once().await;
    let took = begun.elapsed();
    assert!(minutes.start * MINUTE <= took && took < minutes.end * MINUTE, "{took:?}: {}", harness.event_lines());
    outcome
}

#[tokio::test(start_paused = true)]
async fn run_gives_up_on_model_out_of_reach() {
    let harness = team_of_unreachable(&["alice", "bob"]);
    harness.tasks(&["a"]).await;
    let outcome = run_for(&harness, 10..12).await;
    assert_eq!((outcome.end, outcome.task_counts.pending), (TeamEnd::ModelOutOfReach, 1));
    let error = outcome.error.unwrap();
    assert!(
        error.starts_with("No teammate can work (alice: model ") && error.contains(" gave no answer for 1"),
        "{error}"
    );
    let task = harness.task(1).await;
    assert_eq!((task.status, task.failures), (TaskStatus::Pending, 0));
    assert!(task.result.unwrap().summary.contains("its teammate's model failed: connection refused"));
    let stopped =
        |kind: &EventKind| matches!(kind, EventKind::TeamStopped { reason, .. } if reason.contains("out of reach"));
    assert_eq!(harness.count(stopped), 1);
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn outage_limit_is_configurable_and_zero_is_none() {
    let mut harness = team_of_unreachable(&["alice"]);
    harness.tasks(&["a"]).await;
    harness.spec.limits.model.outage_max = 2 * MINUTE;
    assert_eq!(run_for(&harness, 2..3).await.end, TeamEnd::ModelOutOfReach);
    harness.restart();
    harness.spec.limits.model.outage_max = Duration::ZERO;
    let begun = Instant::now();
    harness.set_model_fn("alice", move |request, _| async move {
        if begun.elapsed() < 120 * MINUTE { unreachable() } else { diligent(&request) }
    });
    let outcome = run_for(&harness, 120..140).await;
    assert_eq!((outcome.end, outcome.task_counts.completed), (TeamEnd::SessionOver, 1));
}

#[tokio::test(start_paused = true)]
async fn silent_retries_end_at_outage_limit() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.spec.limits.model.retries_max = 1000;
    harness.set_model_fn("alice", |_, _| async {
        tokio::time::sleep(5 * MINUTE).await;
        unreachable()
    });
    harness.tasks(&["a"]).await;
    assert_eq!(run_for(&harness, 10..16).await.end, TeamEnd::ModelOutOfReach);
    assert_eq!(harness.task(1).await.failures, 0);
}

#[tokio::test(start_paused = true)]
async fn outage_of_one_member_leaves_others_working() {
    let mut harness = team_of_unreachable(&["alice", "bob"]);
    harness.set_model_fn("bob", |request, _| async move {
        if has_new_task(&request) {
            tokio::time::sleep(8 * MINUTE).await;
        }
        diligent(&request)
    });
    harness.tasks(&["a", "b", "c", "d"]).await;
    let outcome = run_for(&harness, 30..50).await;
    assert_eq!((outcome.end, outcome.error, outcome.task_counts.completed), (TeamEnd::SessionOver, None, 4));
    // A task that only alice may do ends the run when bob has nothing left.
    harness.restart();
    harness.spec.members[0].capabilities = vec!["archive".to_owned()];
    harness.create(vec![for_archive("f"), new_task("e")]).await;
    let outcome = run_for(&harness, 10..12).await;
    assert_eq!((outcome.end, outcome.task_counts.completed), (TeamEnd::ModelOutOfReach, 5));
    let error = outcome.error.unwrap();
    assert!(error.starts_with("Tasks wait for teammates that cannot work (alice: model "), "{error}");
    harness.check_invariants().await;
}

#[tokio::test(start_paused = true)]
async fn answer_brings_member_back_during_run() {
    let mut harness = TestTeam::new(&["alice", "bob"]);
    let begun = Instant::now();
    harness.set_model_fn("alice", move |request, _| async move {
        if begun.elapsed() < 20 * MINUTE { unreachable() } else { diligent(&request) }
    });
    harness.set_model_fn("bob", |request, _| async move {
        if has_new_task(&request) {
            tokio::time::sleep(14 * MINUTE).await;
        }
        diligent(&request)
    });
    harness.spec.members[0].capabilities = vec!["archive".to_owned()];
    harness.create(vec![for_archive("a"), new_task("b"), new_task("c"), new_task("d")]).await;
    let outcome = run_for(&harness, 28..40).await;
    assert_eq!((outcome.end, outcome.error, outcome.task_counts.completed), (TeamEnd::SessionOver, None, 4));
}

#[tokio::test(start_paused = true)]
async fn team_kept_running_waits_for_model() {
    let mut harness = TestTeam::new(&["alice"]);
    let begun = Instant::now();
    harness.set_model_fn("alice", move |request, count| async move {
        match count {
            0 => Err(ModelError::NoServer("the server is not there yet".to_owned())),
            _ if begun.elapsed() < 120 * MINUTE => unreachable(),
            _ => diligent(&request),
        }
    });
    harness.tasks(&["a"]).await;
    let team = harness.launch(start_continuous()).await;
    tokio::time::sleep(60 * MINUTE).await;
    let waiting_for = team.live().teammates()["alice"].waiting_for.clone().unwrap().to_string();
    assert!(waiting_for.starts_with("its model, next request at "), "{waiting_for}");
    harness.wait_for_status(1, TaskStatus::Completed).await;
    team.command(TeamCommand::Stop).await;
    harness.ended(team).await;
}

#[tokio::test(start_paused = true)]
async fn wrong_model_setting_ends_run_at_once() {
    for is_server in [false, true] {
        let mut harness = TestTeam::new(&["alice", "bob"]);
        harness.set_model_fn("alice", move |_, _| async move {
            if is_server { Err(ModelError::NoServer("refused the key in API_KEY".to_owned())) } else { wrong_key() }
        });
        harness.spec.members[1].model = harness.spec.members[0].model.clone();
        harness.tasks(&["a", "b"]).await;
        let outcome = run_for(&harness, 0..1).await;
        assert_eq!((outcome.end, outcome.task_counts.pending), (TeamEnd::WrongModelSetting, 2));
        assert_eq!(
            harness.shared().await.note,
            "run_once ended: the settings, the key or the login of a model is wrong"
        );
        let error = outcome.error.unwrap();
        let is_told = error.starts_with("No teammate can work (alice, bob: model ");
        assert!(is_told && error.ends_with(": refused the key in API_KEY)."), "{error}");
        assert_eq!(harness.requests(), 2, "it is not retried");
        let task = harness.task(1).await;
        assert_eq!((task.status, task.failures), (TaskStatus::Pending, 0));
        assert!(task.result.unwrap().summary.ends_with("its teammate's model failed: refused the key in API_KEY"));
        harness.check_invariants().await;
    }
}

#[tokio::test(start_paused = true)]
async fn lead_without_model_ends_run() {
    for (is_outage, minutes, end) in
        [(true, 10..12, TeamEnd::ModelOutOfReach), (false, 0..1, TeamEnd::WrongModelSetting)]
    {
        let mut harness = TestTeam::new(&["alice"]);
        harness.diligent(&["alice"]);
        harness.spec.goal = Some("the moon".to_owned());
        harness.set_model_fn(LEAD, move |_, _| async move { if is_outage { unreachable() } else { wrong_key() } });
        let outcome = run_for(&harness, minutes).await;
        assert_eq!(outcome.end, end);
        assert!(outcome.error.unwrap().starts_with("The lead cannot work (lead: model "));
    }
}

#[tokio::test(start_paused = true)]
async fn plan_for_lead_without_model_ends_run() {
    for (is_outage, minutes) in [(true, 10..12), (false, 0..1)] {
        let mut harness = TestTeam::new(&["alice"]);
        harness.spec.members[0].plan_first = true;
        harness.set_model_fn("alice", |request, _| async move {
            if has_new_task(&request) {
                call(&[("plan_approval", json!({"plan": "1. this 2. that"}))])
            } else {
                say("I wait.")
            }
        });
        harness.set_model_fn(LEAD, move |_, _| async move { if is_outage { unreachable() } else { wrong_key() } });
        harness.tasks(&["a"]).await;
        let outcome = run_for(&harness, minutes).await;
        let end = if is_outage { TeamEnd::ModelOutOfReach } else { TeamEnd::WrongModelSetting };
        assert_eq!(outcome.end, end, "{}", harness.event_lines());
        let task = harness.task(1).await;
        assert_eq!((task.status, task.failures), (TaskStatus::Pending, 0));
        harness.check_invariants().await;
    }
}
