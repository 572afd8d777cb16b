//! Permission requests of members without a model, and of a team that was killed.

use brigade::domain::agent::permission::PermissionMode;
use brigade::domain::task::{NewTask, TaskStatus};
use brigade::domain::team::approval::{Request, RequestKind};
use brigade::domain::team::name::HUMAN;
use brigade::domain::team::team_spec::ModelSpec;
use brigade::team::handle::TeamCommand;

use super::harness::{TestTeam, new_task, once};

/// A team whose member needs permission to run the command of the only task.
async fn asking_team() -> TestTeam {
    let mut harness = TestTeam::new(&["alice"]);
    harness.spec.members[0].model = ModelSpec::runbook();
    harness.spec.members[0].permissions.mode = PermissionMode::Ask;
    let description = "```sh\nexit 1\n```".to_owned();
    harness.create(vec![NewTask { description, ..new_task("count") }]).await;
    harness
}

async fn permissions(harness: &TestTeam) -> Vec<Request> {
    let requests = harness.stores.requests.all().await.unwrap().requests;
    requests.into_iter().filter(|request| request.kind == RequestKind::Permission).collect()
}

#[tokio::test(start_paused = true)]
async fn stop_during_permission_wait_releases_task() {
    for is_stopped_at_once in [false, true] {
        let harness = asking_team().await;
        let team = harness.launch(once()).await;
        let is_waiting = || team.live().teammates().get("alice").is_some_and(|row| row.waiting_for.is_some());
        harness.wait_until("alice waits for permission", |_| is_waiting()).await;
        if is_stopped_at_once {
            harness.ask_to_stop("alice", true).await;
        } else {
            team.command(TeamCommand::Stop).await;
        }
        harness.wait_for_status(1, TaskStatus::Pending).await;
        team.command(TeamCommand::Stop).await;
        harness.ended(team).await;
        let task = harness.task(1).await;
        assert_eq!((task.status, task.failures), (TaskStatus::Pending, 0), "{}", harness.event_lines());
        assert!(permissions(&harness).await.iter().all(|request| request.answer.is_some()));
        harness.check_invariants().await;
    }
}

#[tokio::test(start_paused = true)]
async fn unanswered_permission_fails_one_attempt() {
    let harness = asking_team().await;
    harness.run_once().await;
    let task = harness.task(1).await;
    assert_eq!((task.status, task.failures), (TaskStatus::Failed, task.max_attempts), "{}", harness.event_lines());
    assert_eq!(permissions(&harness).await.len(), 3, "one request for each attempt");
    harness.check_invariants().await;
}

/// The member that asked is not in the team any more, so only the launch can withdraw its request.
#[tokio::test(start_paused = true)]
async fn launch_withdraws_permissions_of_killed_team() {
    let mut harness = TestTeam::new(&["alice"]);
    harness.diligent(&["alice"]);
    let request = Request::new("adf5f70f", RequestKind::Permission, "bob", HUMAN, harness.clock.now());
    harness.stores.requests.record(request).await.unwrap();
    let team = harness.launch(once()).await;
    assert!(permissions(&harness).await[0].answer.is_some(), "it still waits");
    harness.ended(team).await;
}
