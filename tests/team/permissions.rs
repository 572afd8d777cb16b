//! Permission requests of members without a model, and of a team that was killed.

use brigade::domain::approval::{Request, RequestKind};
use brigade::domain::name::HUMAN;

use super::harness::{TestTeam, once};

async fn permissions(harness: &TestTeam) -> Vec<Request> {
    let requests = harness.stores.requests.all().await.unwrap().requests;
    requests.into_iter().filter(|request| request.kind == RequestKind::Permission).collect()
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
