//! Stores with random faults and delays from a seed. They record the accepted changes: the holders of tasks, the sent
//! mail.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use brigade::domain::approval::{ApprovalAnswer, Approvals, Request, RequestKind};
use brigade::domain::message::Message;
use brigade::domain::name::Name;
use brigade::domain::records::{RosterMember, WorkerTeammate};
use brigade::domain::state::{SharedState, StateUpdate};
use brigade::domain::task::{NewTask, Task, TaskId, TaskStatus};
use brigade::domain::time::UnixMs;
use brigade::domain::transcript::Record;
use brigade::domain::transition::{Actor, Change};
use brigade::ports::{
    Board, BoardView, Claimant, Delivery, Mailbox, QuarantinedTranscript, ReclaimRequest, Reclaimed, Requests, Roster,
    StateStore, StoreError, StoreResult, Stores, Transcripts, WorkerSurvey, Workers,
};

use super::harness::lock;

/// The source of all random choices, and the switch of the faults.
pub struct FaultInjector {
    rng: Mutex<fastrand::Rng>,
    is_calm: AtomicBool,
    pub accepted: Mutex<Accepted>,
}

#[derive(Default)]
pub struct Accepted {
    holders: HashMap<TaskId, (String, u32)>,
    /// Mail by recipient, in order: the sender and the id.
    pub mail: BTreeMap<String, Vec<(String, String)>>,
    pub violations: Vec<String>,
}

impl Accepted {
    fn claimed(&mut self, task: &Task) {
        let owner = task.owner.clone().unwrap_or_default();
        if let Some(before) = self.holders.insert(task.id, (owner.clone(), task.attempt)) {
            self.violations.push(format!("{owner} claimed #{} while {before:?} had it", task.id));
        }
    }

    fn changed(&mut self, task: &Task) {
        if task.status != TaskStatus::InProgress {
            self.holders.remove(&task.id);
        }
    }
}

impl FaultInjector {
    /// Without faults, until [`FaultInjector::start`].
    pub fn new(seed: u64) -> Arc<Self> {
        let rng = Mutex::new(fastrand::Rng::with_seed(seed));
        Arc::new(Self { rng, is_calm: AtomicBool::new(true), accepted: Mutex::default() })
    }

    pub fn start(&self) {
        self.is_calm.store(false, Ordering::Relaxed);
    }

    pub fn calm(&self) {
        self.is_calm.store(true, Ordering::Relaxed);
    }

    pub fn is_calm(&self) -> bool {
        self.is_calm.load(Ordering::Relaxed)
    }

    /// A random number below `end`.
    pub fn below(&self, end: u64) -> u64 {
        lock(&self.rng).u64(..end.max(1))
    }

    /// Returns true with this probability.
    pub fn chance(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Waits at times.
    async fn delay_at_random(&self) {
        if self.is_calm() || !self.chance(15) {
            return;
        }
        let wait = if self.chance(5) { self.below(30_000) } else { self.below(2000) };
        tokio::time::sleep(Duration::from_millis(wait)).await;
    }

    /// Fails at times, before anything is done.
    async fn fail(&self) -> StoreResult<()> {
        self.delay_at_random().await;
        if self.is_calm() || !self.chance(3) {
            return Ok(());
        }
        let kinds = [ErrorKind::StorageFull, ErrorKind::ReadOnlyFilesystem, ErrorKind::Other, ErrorKind::NotFound];
        let kind = kinds[usize::try_from(self.below(4)).unwrap()];
        Err(StoreError::Io { action: "reach".into(), place: "the faulty store".to_owned(), source: kind.into() })
    }

    /// Wraps these stores, except for the event log: it keeps unwritten events in memory.
    pub fn wrap(self: &Arc<Self>, stores: &mut Stores) {
        stores.board = Arc::new(FaultyStore(Arc::clone(self), Arc::clone(&stores.board)));
        stores.mailbox = Arc::new(FaultyStore(Arc::clone(self), Arc::clone(&stores.mailbox)));
        stores.transcripts = Arc::new(FaultyStore(Arc::clone(self), Arc::clone(&stores.transcripts)));
        stores.requests = Arc::new(FaultyStore(Arc::clone(self), Arc::clone(&stores.requests)));
        stores.state = Arc::new(FaultyStore(Arc::clone(self), Arc::clone(&stores.state)));
        stores.roster = Arc::new(FaultyStore(Arc::clone(self), Arc::clone(&stores.roster)));
        self.wrap_workers(stores);
    }

    /// Wraps the workers store of a new process.
    pub fn wrap_workers(self: &Arc<Self>, stores: &mut Stores) {
        stores.workers = Arc::new(FaultyStore(Arc::clone(self), Arc::clone(&stores.workers)));
    }
}

/// A store with faults. Its effect is recorded before anything else can happen.
struct FaultyStore<T: ?Sized>(Arc<FaultInjector>, Arc<T>);

impl<T: ?Sized> FaultyStore<T> {
    fn account(&self, note: impl FnOnce(&mut Accepted)) {
        note(&mut lock(&self.0.accepted));
    }
}

#[async_trait]
impl Board for FaultyStore<dyn Board> {
    async fn create(&self, by: &Actor, tasks: Vec<NewTask>, skip: bool) -> StoreResult<Vec<Task>> {
        self.0.fail().await?;
        let created = self.1.create(by, tasks, skip).await;
        self.0.delay_at_random().await;
        created
    }
    async fn view(&self) -> StoreResult<Arc<BoardView>> {
        self.0.fail().await?;
        self.1.view().await
    }
    async fn get(&self, id: TaskId) -> StoreResult<Task> {
        self.0.fail().await?;
        self.1.get(id).await
    }
    async fn claim_next(&self, claimant: &Claimant) -> StoreResult<Option<Task>> {
        self.0.fail().await?;
        let claimed = self.1.claim_next(claimant).await;
        if let Ok(Some(task)) = &claimed {
            self.account(|accepted| accepted.claimed(task));
        }
        self.0.delay_at_random().await;
        claimed
    }
    async fn claim(&self, id: TaskId, claimant: &Claimant) -> StoreResult<Task> {
        self.0.fail().await?;
        let claimed = self.1.claim(id, claimant).await;
        if let Ok(task) = &claimed {
            self.account(|accepted| accepted.claimed(task));
        }
        self.0.delay_at_random().await;
        claimed
    }
    async fn change(&self, id: TaskId, change: Change, by: &Actor) -> StoreResult<Task> {
        self.0.fail().await?;
        let changed = self.1.change(id, change, by).await;
        if let Ok(task) = &changed {
            self.account(|accepted| accepted.changed(task));
        }
        self.0.delay_at_random().await;
        changed
    }
    async fn delete(&self, id: TaskId, by: &Actor) -> StoreResult<Task> {
        self.0.fail().await?;
        let deleted = self.1.delete(id, by).await;
        if deleted.is_ok() {
            self.account(|accepted| drop(accepted.holders.remove(&id)));
        }
        self.0.delay_at_random().await;
        deleted
    }
    async fn deleted(&self, ids: &[TaskId]) -> StoreResult<BTreeSet<TaskId>> {
        self.0.fail().await?;
        self.1.deleted(ids).await
    }
    async fn set_aside(&self) -> StoreResult<BTreeMap<TaskId, String>> {
        self.0.fail().await?;
        self.1.set_aside().await
    }
    async fn reclaim(&self, lost: &ReclaimRequest) -> StoreResult<Vec<Reclaimed>> {
        self.0.fail().await?;
        let reclaimed = self.1.reclaim(lost).await?;
        self.account(|accepted| reclaimed.iter().for_each(|claim| accepted.changed(&claim.task)));
        self.0.delay_at_random().await;
        Ok(reclaimed)
    }
}

#[async_trait]
impl Mailbox for FaultyStore<dyn Mailbox> {
    async fn send(&self, to: &str, message: Message) -> StoreResult<String> {
        self.0.fail().await?;
        let from = message.from.clone();
        let id = self.1.send(to, message).await?;
        self.account(|accepted| accepted.mail.entry(to.to_ascii_lowercase()).or_default().push((from, id.clone())));
        self.0.delay_at_random().await;
        Ok(id)
    }
    async fn open_inboxes(&self, names: &[Name]) -> StoreResult<()> {
        self.0.fail().await?;
        self.1.open_inboxes(names).await
    }
    async fn take(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<Vec<Delivery>> {
        self.0.fail().await?;
        let taken = self.1.take(name, delivered).await;
        self.0.delay_at_random().await;
        taken
    }
    async fn settle(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<()> {
        self.0.fail().await?;
        self.1.settle(name, delivered).await
    }
    async fn peek(&self, name: &str) -> StoreResult<Vec<Delivery>> {
        self.0.fail().await?;
        self.1.peek(name).await
    }
    async fn recipients_with_mail(&self) -> StoreResult<Vec<String>> {
        self.0.fail().await?;
        self.1.recipients_with_mail().await
    }
}

#[async_trait]
impl Transcripts for FaultyStore<dyn Transcripts> {
    async fn load(&self, name: &str) -> StoreResult<Vec<Record>> {
        self.0.fail().await?;
        self.1.load(name).await
    }
    fn take_quarantined(&self) -> Vec<QuarantinedTranscript> {
        self.1.take_quarantined()
    }
    async fn append(&self, name: &str, records: &[Record], sync: bool) -> StoreResult<()> {
        self.0.fail().await?;
        let appended = self.1.append(name, records, sync).await;
        self.0.delay_at_random().await;
        appended
    }
}

#[async_trait]
impl Requests for FaultyStore<dyn Requests> {
    async fn record(&self, request: Request) -> StoreResult<()> {
        self.0.fail().await?;
        self.1.record(request).await
    }
    async fn reserve(&self, id: &str, kind: RequestKind, by: &str, process: &str, now: UnixMs) -> StoreResult<Request> {
        self.0.fail().await?;
        self.1.reserve(id, kind, by, process, now).await
    }
    async fn answer(&self, id: &str, kind: RequestKind, answer: ApprovalAnswer) -> StoreResult<Request> {
        self.0.fail().await?;
        self.1.answer(id, kind, answer).await
    }
    async fn reassign(&self, id: &str, kind: RequestKind, to: &str) -> StoreResult<Option<Request>> {
        self.0.fail().await?;
        self.1.reassign(id, kind, to).await
    }
    async fn rebind_review(&self, id: &str, from: &str, attempt: u32, at: UnixMs) -> StoreResult<()> {
        self.0.fail().await?;
        self.1.rebind_review(id, from, attempt, at).await
    }
    async fn withdraw(&self, id: &str, kind: RequestKind, reason: &str, at: UnixMs) -> StoreResult<()> {
        self.0.fail().await?;
        self.1.withdraw(id, kind, reason, at).await
    }
    async fn all(&self) -> StoreResult<Approvals> {
        self.0.fail().await?;
        self.1.all().await
    }
}

#[async_trait]
impl StateStore for FaultyStore<dyn StateStore> {
    async fn read(&self) -> StoreResult<Option<SharedState>> {
        self.0.fail().await?;
        self.1.read().await
    }
    async fn update(&self, update: StateUpdate) -> StoreResult<SharedState> {
        self.0.fail().await?;
        let updated = self.1.update(update).await;
        self.0.delay_at_random().await;
        updated
    }
}

#[async_trait]
impl Roster for FaultyStore<dyn Roster> {
    async fn report(&self, team: &str, members: &[RosterMember]) -> StoreResult<()> {
        self.0.fail().await?;
        self.1.report(team, members).await
    }
    async fn read(&self) -> StoreResult<Vec<RosterMember>> {
        self.0.fail().await?;
        self.1.read().await
    }
}

#[async_trait]
impl Workers for FaultyStore<dyn Workers> {
    fn worker_id(&self) -> &str {
        self.1.worker_id()
    }
    async fn renew(&self, teammates: BTreeMap<String, WorkerTeammate>) -> StoreResult<()> {
        self.0.fail().await?;
        self.1.renew(teammates).await
    }
    async fn survey(&self, claimants: &BTreeSet<String>) -> StoreResult<WorkerSurvey> {
        self.0.fail().await?;
        self.1.survey(claimants).await
    }
    async fn remove(&self, worker: &str) -> StoreResult<()> {
        self.0.fail().await?;
        self.1.remove(worker).await
    }
}
