//! Stores with random faults and delays from a seed. They record the changes that they accept: claims and sent mail.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use brigade::domain::task::{Task, TaskId, TaskStatus};
use brigade::ports::{Call, Interceptor, Reclaimed, StoreError, StoreResult, Stores};

use super::harness::lock;

/// The source of all random choices, and the switch of the faults.
pub struct FaultInjector {
    rng: Mutex<fastrand::Rng>,
    is_enabled: AtomicBool,
    /// The calls that are being delayed.
    delayed: AtomicUsize,
    pub accepted: Mutex<AcceptedChanges>,
}

#[derive(Default)]
pub struct AcceptedChanges {
    /// The claims that are held: owner and attempt.
    holders: HashMap<TaskId, (String, u32)>,
    /// Mail by recipient, in order: the sender and the id.
    pub mail: BTreeMap<String, Vec<(String, String)>>,
    pub violations: Vec<String>,
}

impl AcceptedChanges {
    fn record(&mut self, call: Call<'_>, reply: &dyn Any) {
        match call {
            Call::ClaimNext(_) => {
                reply.downcast_ref::<Option<Task>>().unwrap().iter().for_each(|task| self.record_claim(task))
            }
            Call::Claim(_) => self.record_claim(reply.downcast_ref().unwrap()),
            Call::ChangeTask(..) => self.record_change(reply.downcast_ref().unwrap()),
            Call::DeleteTask(id) => drop(self.holders.remove(&id)),
            Call::Reclaim => {
                let reclaimed = reply.downcast_ref::<Vec<Reclaimed>>().unwrap();
                reclaimed.iter().for_each(|claim| self.record_change(&claim.task));
            }
            Call::SendMessage(to, message) => {
                let id = reply.downcast_ref::<String>().unwrap().clone();
                self.mail.entry(to.to_ascii_lowercase()).or_default().push((message.from.clone(), id));
            }
            // No other call changes a claim or sends mail.
            _ => {}
        }
    }

    fn record_claim(&mut self, task: &Task) {
        let owner = task.owner.clone().unwrap_or_default();
        if let Some(before) = self.holders.insert(task.id, (owner.clone(), task.attempt)) {
            self.violations.push(format!("{owner} claimed #{} while {before:?} had it", task.id));
        }
    }

    fn record_change(&mut self, task: &Task) {
        if task.status != TaskStatus::InProgress {
            self.holders.remove(&task.id);
        }
    }
}

/// Counts a delayed call as long as it exists.
struct Delayed<'a>(&'a AtomicUsize);

impl<'a> Delayed<'a> {
    fn of(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Delayed<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl FaultInjector {
    /// An injector that is disabled until [`FaultInjector::enable`].
    pub fn new(seed: u64) -> Arc<Self> {
        let rng = Mutex::new(fastrand::Rng::with_seed(seed));
        Arc::new(Self {
            rng,
            is_enabled: AtomicBool::new(false),
            delayed: AtomicUsize::new(0),
            accepted: Mutex::default(),
        })
    }

    pub fn enable(&self) {
        self.is_enabled.store(true, Ordering::Relaxed);
    }

    pub fn disable(&self) {
        self.is_enabled.store(false, Ordering::Relaxed);
    }

    pub fn is_enabled(&self) -> bool {
        self.is_enabled.load(Ordering::Relaxed)
    }

    /// Returns true if no call is delayed any more.
    pub fn is_settled(&self) -> bool {
        self.delayed.load(Ordering::Relaxed) == 0
    }

    /// A random number below `end`.
    pub fn below(&self, end: u64) -> u64 {
        lock(&self.rng).u64(..end.max(1))
    }

    /// Returns true with this probability.
    pub fn chance(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Waits for a random time, in some calls.
    async fn delay_at_random(&self) {
        if !self.is_enabled() || !self.chance(15) {
            return;
        }
        let wait = if self.chance(5) { self.below(30_000) } else { self.below(2000) };
        // A delayed call may be dropped.
        let _delayed = Delayed::of(&self.delayed);
        tokio::time::sleep(Duration::from_millis(wait)).await;
    }

    /// Delays or fails some calls, before they do anything.
    async fn fail_at_random(&self) -> StoreResult<()> {
        self.delay_at_random().await;
        if !self.is_enabled() || !self.chance(3) {
            return Ok(());
        }
        let kinds = [ErrorKind::StorageFull, ErrorKind::ReadOnlyFilesystem, ErrorKind::Other, ErrorKind::NotFound];
        let kind = kinds[usize::try_from(self.below(4)).unwrap()];
        Err(StoreError::Io { action: "reach".into(), place: "the faulty store".to_owned(), source: kind.into() })
    }

    /// Wraps these stores, except the ledger and the event log. The event log keeps unwritten events in memory.
    pub fn wrap(self: &Arc<Self>, stores: &mut Stores) {
        *stores = Stores { ledger: Arc::clone(&stores.ledger), ..stores.with_interceptor(self) };
    }

    /// Wraps the workers store of a new process.
    pub fn wrap_workers(self: &Arc<Self>, stores: &mut Stores) {
        stores.workers = stores.with_interceptor(self).workers;
    }
}

impl Interceptor for FaultInjector {
    async fn intercept<T, F>(&self, call: Call<'_>, perform: impl Fn() -> F + Send + Sync) -> StoreResult<T>
    where
        T: Any + Send + Sync,
        F: Future<Output = StoreResult<T>> + Send,
    {
        self.fail_at_random().await?;
        let outcome = perform().await;
        // The effect is recorded before anything else can happen.
        if let Ok(reply) = &outcome {
            lock(&self.accepted).record(call, reply);
        }
        if !call.is_read() {
            self.delay_at_random().await;
        }
        outcome
    }
}
