//! The limits of accounts: after a provider refuses a request because of a rate or a quota, no member of that account sends before the
//! time that the provider names.
//!
//! Each account that had a limit has a gate. At its end, the gate lets one request pass. Each accepted request lets two others pass, and a
//! refused one begins a new limit with a new gate. So a thousand waiting members start in the order in which they came, at the rate that the
//! provider accepts, and a process that waits together with others sends one request first. A file for each account tells other processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::domain::team::account::{Account, AccountId, AccountLimit};
use crate::domain::team::state_note::StateNote;
use crate::domain::text::units::exponential_backoff;
use crate::domain::time::UnixMs;
use crate::ports::{AccountStore, Clock};

/// The first wait after a refusal that names no time; each further one is twice as long.
pub const WAIT_FIRST: Duration = Duration::from_millis(500);
/// The longest wait after a refusal that names no time.
pub const WAIT_MAX: Duration = Duration::from_secs(60);
/// The shortest wait, even if the provider asks for none.
pub const WAIT_MIN: Duration = Duration::from_millis(250);
/// The first wait after a used up quota whose end the provider does not name, and the longest one. A person may pay meanwhile.
const QUOTA_WAIT_FIRST: Duration = Duration::from_secs(5 * 60);
const QUOTA_WAIT_MAX: Duration = Duration::from_secs(60 * 60);
/// The time for which an account without credit is not used. Then one request finds out.
const NO_CREDIT_TIME: Duration = Duration::from_secs(10 * 60);
/// The longest wait within a turn. A longer one is the end of a quota window: the task is released.
pub const WAIT_IN_TURN_MAX: Duration = Duration::from_secs(600);
/// The longest extension of a wait. Processes that wait for the same time send at different times.
const EXTENSION_MAX: Duration = Duration::from_secs(5);
/// The most limits in a row that are counted. More do not change the wait.
const LIMITS_IN_A_ROW_MAX: u32 = 32;
/// The requests that can pass a gate at once when the account has recovered, and needs no gate.
const RECOVERED_REQUESTS: usize = 64;

/// The accounts of all members of a team.
pub struct Accounts {
    states: DashMap<AccountId, AccountState>,
    /// `None` if other processes do not learn of the limits.
    store: Option<Arc<dyn AccountStore>>,
    clock: Arc<dyn Clock>,
    /// The last used up quota that the lead does not know.
    unreported_quota: Mutex<Option<StateNote>>,
    /// The time of the launch, or of the person's last retry. What was known before of missing credit does not count: the person may have paid.
    asked_again_at: Mutex<UnixMs>,
}

/// An account that has had a limit.
#[derive(Default)]
struct AccountState {
    limit: Option<AccountLimit>,
    /// `None` once the account has recovered.
    gate: Option<Arc<Semaphore>>,
    /// Limits since the last accepted request.
    limits_in_a_row: u32,
    /// The end of the quota window that the team was told of.
    told_quota: Option<UnixMs>,
    /// The last limit in the file. Held while the file is written, so that many refusals cause few writes.
    recorded: Arc<tokio::sync::Mutex<Option<AccountLimit>>>,
}

impl AccountState {
    /// Extends the limit. A refusal that came through the current gate, or the first one, begins a new gate.
    fn extend(&mut self, limit: AccountLimit, refused: Option<&Arc<Semaphore>>, now: UnixMs) -> AccountLimit {
        let is_of_gate = |gate: &Arc<Semaphore>| refused.is_some_and(|refused| Arc::ptr_eq(gate, refused));
        if self.gate.as_ref().is_none_or(is_of_gate) {
            self.limits_in_a_row = self.limits_in_a_row.saturating_add(1).min(LIMITS_IN_A_ROW_MAX);
            if let Some(gate) = self.gate.replace(Arc::new(Semaphore::new(1))) {
                // Those that wait before it go to the new one.
                gate.close();
            }
        }
        let limit = self.limit.filter(|before| before.holds(now)).map_or(limit, |before| before.followed_by(limit));
        self.limit = Some(limit);
        limit
    }
}

/// The refusal of a request because of a limit of its account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The wait that the provider asks for.
    pub wait: Option<Duration>,
    /// True if a quota is used up.
    pub is_quota: bool,
    /// True if the account has no credit.
    pub is_without_credit: bool,
}

impl Accounts {
    /// Creates a registry without limits. It reads and writes those of shared accounts in `store`.
    pub fn new(store: Option<Arc<dyn AccountStore>>, clock: Arc<dyn Clock>) -> Arc<Self> {
        let asked_again_at = Mutex::new(clock.now());
        Arc::new(Self { states: DashMap::new(), store, clock, unreported_quota: Mutex::default(), asked_again_at })
    }

    /// Lets accounts without credit be used again, because the person acted.
    pub fn retry(&self) {
        *self.asked_again_at.lock() = self.clock.now();
    }

    /// Returns true if a limit holds, and nothing has made it void.
    fn counts(&self, limit: AccountLimit) -> bool {
        limit.holds(self.clock.now()) && limit.no_credit_since.is_none_or(|since| since >= *self.asked_again_at.lock())
    }

    /// Returns the limit that holds now for an account, also if another process recorded it.
    pub async fn limit(&self, account: &Account) -> Option<AccountLimit> {
        let now = self.clock.now();
        if let Some(store) = self.store.as_ref().filter(|_| account.is_shared)
            && let Some(limit) = store.limit(&account.id, now).await.filter(|limit| self.counts(*limit))
        {
            let mut state = self.states.entry(account.id.clone()).or_default();
            if state.limit.is_none_or(|known| known.followed_by(limit) != known) {
                // Another process was refused, so this one sends one request at a time again.
                let gate = state.gate.clone();
                state.extend(limit, gate.as_ref(), now);
            }
        }
        self.known_limit(account)
    }

    /// Returns the limit that holds now for an account, as far as this process knows.
    pub fn known_limit(&self, account: &Account) -> Option<AccountLimit> {
        self.states.get(&account.id)?.limit.filter(|limit| self.counts(*limit))
    }

    /// Waits until a request of this account may be sent. `chance` is a random number from 0 to 1 that extends the wait. Callers first
    /// call [`Self::limit`], which reads the account's file.
    ///
    /// # Errors
    /// The limit, if a quota is used up, or the account has no credit.
    pub async fn admit(self: &Arc<Self>, account: &Account, chance: f64) -> Result<Admission, AccountLimit> {
        loop {
            let acceptable = |limit: Option<AccountLimit>| match limit {
                Some(limit) if limit.is_quota => Err(limit),
                limit => Ok(limit),
            };
            acceptable(self.known_limit(account))?;
            let mut admission = Admission {
                accounts: Arc::clone(self),
                account: account.id.clone(),
                gate: None,
                is_accepted: false.into(),
            };
            let Some(gate) = self.gate(&account.id) else { return Ok(admission) };
            // Its limit was extended, and there is a new gate.
            let Ok(permit) = gate.acquire().await else { continue };
            permit.forget();
            admission.gate = Some(Arc::clone(&gate));
            while let Some(limit) = acceptable(self.limit(account).await)? {
                let wait = limit.until.since(self.clock.now());
                tokio::time::sleep(extended_wait(wait, chance)).await;
            }
            if !gate.is_closed() {
                return Ok(admission);
            }
        }
    }

    fn gate(&self, account: &AccountId) -> Option<Arc<Semaphore>> {
        self.states.get(account)?.gate.clone()
    }

    /// Records that the provider refused a request, which came with this admission. Returns the limit that holds now. It is in the
    /// account's file then.
    pub async fn record_refusal(&self, account: &Account, refusal: Refusal, admission: &Admission) -> AccountLimit {
        let Refusal { wait, is_quota, is_without_credit } = refusal;
        if is_without_credit {
            let now = self.clock.now();
            let limit = AccountLimit { until: now.plus(NO_CREDIT_TIME), is_quota: true, no_credit_since: Some(now) };
            return self.record(account, limit, admission.gate.as_ref()).await;
        }
        let limits = 1 + self.states.get(&account.id).map_or(0, |state| state.limits_in_a_row);
        let (first, max) = if is_quota { (QUOTA_WAIT_FIRST, QUOTA_WAIT_MAX) } else { (WAIT_FIRST, WAIT_MAX) };
        let wait = wait.map_or_else(|| exponential_backoff(first, limits, max), |wait| wait.max(WAIT_MIN));
        let is_quota = is_quota || wait > WAIT_IN_TURN_MAX;
        let limit = AccountLimit { until: self.clock.now().plus(wait), is_quota, no_credit_since: None };
        self.record(account, limit, admission.gate.as_ref()).await
    }

    /// Records that a quota is used up until this time. Returns the limit that holds now, and true if the team was not told of it.
    pub async fn record_quota(&self, account: &Account, until: UnixMs) -> (AccountLimit, bool) {
        let limit = self.record(account, AccountLimit { until, is_quota: true, no_credit_since: None }, None).await;
        let now = self.clock.now();
        let told = match self.states.get_mut(&account.id) {
            Some(mut state) => state.told_quota.replace(limit.until),
            None => None,
        };
        let until = limit.until.to_clock_or_date(now);
        *self.unreported_quota.lock() = Some(StateNote::QuotaUsed { account: account.name.to_string(), until });
        (limit, told.is_none_or(|told| told <= now))
    }

    async fn record(&self, account: &Account, limit: AccountLimit, refused: Option<&Arc<Semaphore>>) -> AccountLimit {
        let now = self.clock.now();
        let (limit, recorded) = {
            let mut state = self.states.entry(account.id.clone()).or_default();
            (state.extend(limit.cut(now), refused, now), Arc::clone(&state.recorded))
        };
        let Some(store) = self.store.as_ref().filter(|_| account.is_shared) else { return limit };
        let mut recorded = recorded.lock().await;
        // A refusal that came meanwhile may have extended it.
        let latest = self.known_limit(account).unwrap_or(limit);
        if *recorded != Some(latest) {
            match store.record(&account.id, latest, now).await {
                Ok(()) => *recorded = Some(latest),
                Err(error) => tracing::warn!(%error, "other processes do not learn of the limit of {}", account.name),
            }
        }
        latest
    }

    /// Returns the note of a quota that was used up since the last call.
    pub fn take_used_quota(&self) -> Option<StateNote> {
        self.unreported_quota.lock().take()
    }
}

/// The permission to send one request. Dropping it lets another request pass the gate.
pub struct Admission {
    accounts: Arc<Accounts>,
    account: AccountId,
    /// The gate that it passed, if its account had one.
    gate: Option<Arc<Semaphore>>,
    is_accepted: AtomicBool,
}

impl Admission {
    /// Records that the provider accepted the request: a part of its answer has arrived. Two others may pass.
    pub fn accept(&self) {
        if self.is_accepted.swap(true, Ordering::Relaxed) {
            return;
        }
        let Some(gate) = &self.gate else { return };
        gate.add_permits(2);
        if let Some(mut state) = self.accounts.states.get_mut(&self.account)
            && state.gate.as_ref().is_some_and(|current| Arc::ptr_eq(current, gate))
        {
            state.limits_in_a_row = 0;
            if gate.available_permits() >= RECOVERED_REQUESTS {
                state.gate = None;
            }
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some(gate) = &self.gate
            && !self.is_accepted.load(Ordering::Relaxed)
        {
            // After a refusal, no request waits at this gate.
            gate.add_permits(1);
        }
    }
}

/// Returns a wait that a provider asks for, only ever made longer: a limit ends for all members at the same time. `chance` is a random
/// number from 0 to 1.
pub fn extended_wait(requested: Duration, chance: f64) -> Duration {
    requested + (requested / 10).min(EXTENSION_MAX).mul_f64(chance)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::time::Instant;

    use super::*;

    /// A clock that follows the runtime's, which tests pause.
    struct RuntimeClock(Instant);

    impl Clock for RuntimeClock {
        fn now(&self) -> UnixMs {
            UnixMs(1_000_000).plus(self.0.elapsed())
        }
    }

    fn accounts() -> (Arc<Accounts>, Account) {
        let account = Account { id: AccountId::of(&[b"a"]), name: "server".into(), is_shared: false };
        (Accounts::new(None, Arc::new(RuntimeClock(Instant::now()))), account)
    }

    fn refusal(seconds: u64) -> Refusal {
        Refusal { wait: Some(Duration::from_secs(seconds)), is_quota: false, is_without_credit: false }
    }

    async fn refuse(accounts: &Arc<Accounts>, account: &Account, refusal: Refusal) -> AccountLimit {
        let admission = accounts.admit(account, 0.0).await.unwrap_or_else(|limit| panic!("{limit:?}"));
        accounts.record_refusal(account, refusal, &admission).await
    }

    /// Each accepted request lets two others pass, so the waiting members start in about ten rounds, not at once.
    #[tokio::test(start_paused = true)]
    async fn thousand_waiting_members_do_not_start_at_once() {
        const ROUND: Duration = Duration::from_secs(1);
        let (accounts, account) = accounts();
        let begun = Instant::now();
        refuse(&accounts, &account, refusal(30)).await;
        let starts = Arc::new(Mutex::new(Vec::new()));
        let mut members = tokio::task::JoinSet::new();
        for number in 0..1_000 {
            let (accounts, account, starts) = (Arc::clone(&accounts), account.clone(), Arc::clone(&starts));
            members.spawn(async move {
                let admission = accounts.admit(&account, 0.0).await.unwrap_or_else(|limit| panic!("{limit:?}"));
                starts.lock().push((number, begun.elapsed()));
                tokio::time::sleep(ROUND).await;
                admission.accept();
            });
        }
        while members.join_next().await.transpose().unwrap().is_some() {}
        let starts = starts.lock();
        assert_eq!(starts.len(), 1_000);
        assert!(starts.is_sorted_by_key(|(number, _)| *number), "in the order in which they came");
        let mut most = 1;
        for round in 0..=9 {
            let at = Duration::from_secs(30) + ROUND * round;
            let count = starts.iter().filter(|(_, start)| *start >= at && *start < at + ROUND).count();
            assert!(count <= most && count > 0, "{count} of {most} in round {round}");
            most *= 2;
        }
        assert!(
            starts.iter().all(|(_, start)| *start >= Duration::from_secs(30)),
            "no request is sent before its time"
        );
    }

    /// A server that refuses again sees one request at each end of its limit.
    #[tokio::test(start_paused = true)]
    async fn refused_probe_makes_all_others_wait_again() {
        let (accounts, account) = accounts();
        let begun = Instant::now();
        refuse(&accounts, &account, refusal(10)).await;
        let (sent, mut members) = (Arc::new(AtomicUsize::new(0)), tokio::task::JoinSet::new());
        for _ in 0..50 {
            let (accounts, account, sent) = (Arc::clone(&accounts), account.clone(), Arc::clone(&sent));
            members.spawn(async move {
                loop {
                    let admission = accounts.admit(&account, 0.0).await.unwrap_or_else(|limit| panic!("{limit:?}"));
                    sent.fetch_add(1, Ordering::Relaxed);
                    if begun.elapsed() > Duration::from_secs(35) {
                        return admission.accept();
                    }
                    accounts.record_refusal(&account, refusal(10), &admission).await;
                }
            });
        }
        tokio::time::sleep(Duration::from_secs(35)).await;
        assert_eq!(sent.load(Ordering::Relaxed), 3, "one at 10 s, at 20 s and at 30 s");
        while members.join_next().await.transpose().unwrap().is_some() {}
        assert_eq!(sent.load(Ordering::Relaxed), 53);
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_probe_lets_next_member_pass() {
        let (accounts, account) = accounts();
        refuse(&accounts, &account, refusal(10)).await;
        let waits = tokio::time::timeout(Duration::from_secs(5), accounts.admit(&account, 0.0)).await;
        assert!(waits.is_err(), "its turn ended while it waited");
        let failed = accounts.admit(&account, 0.0).await.ok();
        assert!(failed.is_some_and(|probe| !probe.is_accepted.load(Ordering::Relaxed)), "its request failed");
        let next = tokio::time::timeout(Duration::from_secs(1), accounts.admit(&account, 0.0)).await;
        assert!(next.is_ok_and(|next| next.is_ok()));
    }

    #[tokio::test(start_paused = true)]
    async fn used_up_quota_refuses_those_that_wait() {
        let (accounts, account) = accounts();
        refuse(&accounts, &account, refusal(10)).await;
        let waiting = (Arc::clone(&accounts), account.clone());
        let waiting = tokio::spawn(async move { waiting.0.admit(&waiting.1, 0.0).await.err() });
        let probe = accounts.admit(&account, 0.0).await.unwrap_or_else(|limit| panic!("{limit:?}"));
        let quota = Refusal { wait: None, is_quota: true, is_without_credit: false };
        let limit = accounts.record_refusal(&account, quota, &probe).await;
        assert!(limit.is_quota && limit.until > accounts.clock.now().plus(Duration::from_secs(60)));
        assert_eq!(waiting.await.unwrap(), Some(limit));
        assert_eq!(accounts.admit(&account, 0.0).await.err(), Some(limit));
        let (_, is_first) = accounts.record_quota(&account, limit.until).await;
        let (_, is_second) = accounts.record_quota(&account, limit.until).await;
        assert!(is_first && !is_second && accounts.take_used_quota().is_some());
    }

    /// No member sends for some minutes. Then one finds out, or at once after the person acted.
    #[tokio::test(start_paused = true)]
    async fn account_without_credit_is_probed_by_one_member() {
        let (accounts, account) = accounts();
        let no_credit = Refusal { wait: None, is_quota: false, is_without_credit: true };
        let limit = refuse(&accounts, &account, no_credit).await;
        assert!(limit.no_credit_since.is_some() && !limit.is_window());
        assert_eq!(accounts.admit(&account, 0.0).await.err(), Some(limit));
        tokio::time::sleep(NO_CREDIT_TIME).await;
        let probe = accounts.admit(&account, 0.0).await.unwrap_or_else(|limit| panic!("{limit:?}"));
        let second = tokio::time::timeout(Duration::from_secs(60), accounts.admit(&account, 0.0)).await;
        assert!(second.is_err(), "it waits for the answer of the first");
        accounts.record_refusal(&account, no_credit, &probe).await;
        assert!(accounts.admit(&account, 0.0).await.is_err());
        drop(probe);
        tokio::time::sleep(Duration::from_secs(1)).await;
        accounts.retry();
        assert!(accounts.admit(&account, 0.0).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn limits_are_cut_and_grow_without_a_named_time() {
        let (accounts, account) = accounts();
        let now = accounts.clock.now();
        let mut last = Duration::ZERO;
        for _ in 0..4 {
            let before = accounts.limit(&account).await.map_or_else(|| accounts.clock.now(), |limit| limit.until);
            let limit = refuse(&accounts, &account, Refusal { wait: None, ..refusal(0) }).await;
            let wait = limit.until.since(before);
            assert!(wait > last && wait <= WAIT_MAX, "{wait:?} after {last:?}");
            last = wait;
        }
        let (limit, _) = accounts.record_quota(&account, UnixMs(i64::MAX)).await;
        assert!(
            limit.until <= accounts.clock.now().plus(crate::domain::team::account::LIMIT_TIME_MAX) && limit.until > now
        );
    }
}
