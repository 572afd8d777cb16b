//! Workers and leads of a store with leases: no locks, no files, no processes of this machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use brigade::domain::task::claim_queue::TaskScope;
use brigade::domain::task::transition::{Actor, ActorKind, Change};
use brigade::domain::task::{NewTask, Task, TaskResult, TaskStatus};
use brigade::domain::team::name::LEAD;
use brigade::ports::{
    Claimant, Clock, CurrentLead, LeadershipCheck, ReclaimRequest, StoreChange, StoreError, StoreResult, Stores,
};
use brigade::service::workers;
use brigade::stores::workspace::{OpenMode, OpenOptions, OpenStores};

use crate::stores::database::{DATABASE, LEASE};
use crate::stores::support::options;
use crate::testkit::clock::ManualClock;

const TASKS: usize = 20;

async fn open(address: &Path, clock: &Arc<ManualClock>, mode: OpenMode) -> StoreResult<OpenStores> {
    let clock = Arc::clone(clock) as Arc<dyn Clock>;
    DATABASE.open(address, OpenOptions { clock, ..options(mode) }).await
}

async fn claim(stores: &Stores, name: &str) -> Option<Task> {
    let worker = stores.workers.worker_id().to_owned();
    let claimant =
        Claimant { name: name.to_owned(), capabilities: Vec::new(), worker, lease: None, scope: TaskScope::All };
    stores.board.claim_next(&claimant).await.unwrap()
}

async fn complete(stores: &Stores, task: &Task) -> StoreResult<Task> {
    let by = Actor::holder(task.owner.as_deref().unwrap(), task.attempt);
    stores.board.change(task.id, Change::Complete(TaskResult::new("done", "")), &by).await
}

/// Two processes share a database. Neither leads.
#[tokio::test]
async fn two_workers_without_lead_drain_board() {
    let address = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::default());
    let work = async || open(address.path(), &clock, OpenMode::Work { team: "t".into() }).await.unwrap();
    let (alices, bobs) = (work().await, work().await);
    let (alice, bob) = (&alices.stores, &bobs.stores);
    let mut hints = bob.changes.subscribe();
    // Each third task waits for the one before.
    let task = |index: usize| {
        let blocked_by_new = if index % 3 == 2 { vec![index - 1] } else { Vec::new() };
        NewTask { subject: format!("task {index}"), blocked_by_new, ..NewTask::default() }
    };
    alice.board.create(&Actor::new(LEAD, ActorKind::Lead), (0..TASKS).map(task).collect(), false).await.unwrap();
    assert_eq!(hints.recv().await.unwrap(), StoreChange::Board, "a change by one process is a hint for the other");
    for _ in 0..TASKS / 4 {
        for (stores, name) in [(alice, "alice"), (bob, "bob")] {
            let task = claim(stores, name).await.unwrap();
            complete(stores, &task).await.unwrap();
        }
    }
    // In the middle of a task, one of them renews its lease no more.
    let lost = claim(alice, "alice").await.unwrap();
    let mut reclaimed = Vec::new();
    for round in 0.. {
        assert!(round < 4 * TASKS, "the board is never drained");
        bob.workers.renew(BTreeMap::new()).await.unwrap();
        let claims = workers::claims_of_dead(&*bob.board, &*bob.workers).await.unwrap();
        let request = ReclaimRequest { claims, is_failure: true, ..ReclaimRequest::default() };
        reclaimed.extend(bob.board.reclaim(&request).await.unwrap());
        match claim(bob, "bob").await {
            Some(task) => drop(complete(bob, &task).await.unwrap()),
            None if is_drained(bob).await => break,
            None => clock.advance(LEASE / 2),
        }
    }
    assert_eq!(reclaimed.iter().map(|claim| claim.task.id).collect::<Vec<_>>(), [lost.id]);
    assert!(matches!(complete(alice, &lost).await, Err(StoreError::Refused(_))), "its attempt is over");
    let finished = bob.board.get(lost.id).await.unwrap();
    assert_eq!((finished.attempt, finished.owner.as_deref()), (2, Some("bob")));
}

async fn is_drained(stores: &Stores) -> bool {
    let view = stores.board.view().await.unwrap();
    view.tasks.values().all(|task| task.status == TaskStatus::Completed)
}

#[tokio::test]
async fn lead_with_expired_lease_is_replaced() {
    let address = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::default());
    let lead = async |team: &str| open(address.path(), &clock, OpenMode::Lead { team: team.into() }).await;
    let first = lead("first").await.unwrap();
    clock.advance(LEASE / 2);
    assert_eq!(first.stores.leadership.check().await.unwrap(), LeadershipCheck::Held);
    clock.advance(LEASE / 2);
    assert!(matches!(lead("second").await.err(), Some(StoreError::AlreadyLed(holder)) if holder.team == "first"));
    clock.advance(LEASE / 2);
    let second = lead("second").await.unwrap();
    let lost = first.stores.leadership.check().await.unwrap();
    assert!(matches!(lost, LeadershipCheck::Lost(holder) if holder.team == "second"));
    // The former lead releases nothing of the other.
    drop(first);
    let current = second.stores.leadership.current().await.unwrap();
    assert!(matches!(current, CurrentLead::Known(lead) if lead.team == "second"));
}
