//! The budget: every request to a model is reserved here before it is sent.
//!
//! A request reserves the most that it can use, in each budget that holds for it: that of the team, that of its member and the cap of
//! its task. If others' reservations leave too little, it waits. If confirmed usage leaves too little, it is refused and that budget is
//! spent. The ledger records everything for the next process.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::domain::agent::transcript::Usage;
use crate::domain::task::TaskId;
use crate::domain::team::budget::{
    Budget, BudgetScope, LedgerEntry, LedgerRecord, LedgerTotals, Prices, Spend, TEXT_BYTES_PER_TOKEN_MAX, TaskCap,
    TokensAndUsd, UsageFault, UsageKey,
};
pub use crate::domain::team::budget_spent::BudgetSpent;
use crate::domain::team::team_spec::TeamSpec;
use crate::ports::{Clock, Ledger, StoreError, StoreResult};

/// Ledger lines kept in memory while the disk takes none; beyond that, the oldest are dropped.
const LINES_WAITING_MAX: usize = 65_536;
/// Lines of one append.
const LINES_PER_APPEND_MAX: usize = 256;
/// The time limit for writing the last lines when the team ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The reason why a request may not be sent.
#[derive(Debug, thiserror::Error)]
pub enum BudgetError {
    /// A budget is spent.
    #[error(transparent)]
    Spent(#[from] BudgetSpent),
    /// The request cannot be recorded, and unrecorded requests are not sent.
    #[error("cannot record the request in the ledger: {0}")]
    Unrecorded(#[from] StoreError),
}

/// Reserves and records the usage of one team. Usage survives a crash: it is read from the ledger.
pub struct BudgetGuard {
    team: String,
    budget: Budget,
    /// The budgets of members that have one.
    member_budgets: HashMap<String, Budget>,
    prices: Prices,
    clock: Arc<dyn Clock>,
    state: Mutex<BudgetState>,
    /// Notified when a reservation ends.
    settled: Notify,
    lines: mpsc::UnboundedSender<LedgerJob>,
}

/// The usage and the reservations of one team.
#[derive(Default)]
struct BudgetState {
    total: TokensAndUsd,
    by_teammate: HashMap<String, TokensAndUsd>,
    /// The tokens of each task, over all teams of the workspace.
    by_task: HashMap<TaskId, u64>,
    reserved: HashMap<u64, OpenRequest>,
    last_request: u64,
    /// The first refusal because of the team's budget.
    spent: Option<BudgetSpent>,
    /// True if the lead knows that little is left.
    is_low_reported: bool,
}

/// A request that has not ended, with the most that it can use.
struct OpenRequest {
    teammate: String,
    task: Option<TaskId>,
    most: TokensAndUsd,
}

impl OpenRequest {
    fn is_in(&self, scope: &BudgetScope) -> bool {
        match scope {
            BudgetScope::Team => true,
            BudgetScope::Member(name) => self.teammate == *name,
            BudgetScope::Task(task) => self.task == Some(*task),
        }
    }
}

/// A job of the ledger's writer.
enum LedgerJob {
    Line(Box<LedgerRecord>),
    /// Confirms when all lines before it are written.
    Flush(oneshot::Sender<()>),
}

/// The decision about a reservation.
enum ReserveDecision {
    /// Budget is reserved for the request with this number.
    Reserved(u64),
    /// Others' reservations may leave enough when they end.
    Wait,
    Refused(BudgetSpent),
}

impl BudgetGuard {
    /// Opens the budget of a team with the ledger's usage. A request whose end the ledger does not have counts as the most it
    /// could use.
    ///
    /// # Errors
    /// The ledger cannot be read or written.
    pub async fn open(spec: &TeamSpec, ledger: Arc<dyn Ledger>, clock: Arc<dyn Clock>) -> StoreResult<Arc<Self>> {
        let team = spec.name.to_string();
        let prices = spec.prices.clone();
        let mut totals = ledger.read().await?;
        ledger.append(close_open_requests(&mut totals, clock.as_ref())).await?;
        let mut state = BudgetState {
            last_request: totals.last_request(),
            by_task: totals.tokens_by_task().into_iter().collect(),
            ..BudgetState::default()
        };
        for (account, spend) in totals.spent().iter().filter(|(account, _)| account.team == team) {
            let usd = spend.usd(prices.get(&account.model)).unwrap_or_default();
            state.add(&account.teammate, TokensAndUsd { tokens: spend.usage.total(), usd });
        }
        let members = std::iter::once(&spec.lead).chain(&spec.members).filter(|member| member.budget.is_set());
        let member_budgets = members.map(|member| (member.name.to_string(), member.budget)).collect();
        let (lines, waiting) = mpsc::unbounded_channel();
        tokio::spawn(write_ledger(ledger, waiting));
        let budget = spec.budget;
        let state = Mutex::new(state);
        let settled = Notify::new();
        Ok(Arc::new(Self { team, budget, member_budgets, prices, clock, state, settled, lines }))
    }

    /// Reserves budget for a request that can use at most `most`, in the budgets of the team and the member and in the cap of the task
    /// that the member holds. Waits while others' reservations may leave enough. If a budget holds for the request, it is in `ledger` when
    /// this returns.
    ///
    /// # Errors
    /// [`BudgetError`]: the request must not be sent.
    pub async fn reserve(
        self: &Arc<Self>,
        ledger: &dyn Ledger,
        teammate: &str,
        task: Option<TaskCap>,
        model: &str,
        most: Usage,
    ) -> Result<Reservation, BudgetError> {
        let most = self.prices.get(model).map_or(most, |price| price.worst_case(most));
        let price = amount(&self.prices, model, most);
        let budgets = self.budgets_of(teammate, task);
        let account = self.account(teammate, task.map(|cap| cap.task), model);
        let request = loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            match self.decide(&account, &budgets, price) {
                ReserveDecision::Reserved(request) => break request,
                ReserveDecision::Wait => settled.await,
                ReserveDecision::Refused(spent) => return Err(spent.into()),
            }
        };
        let sent = LedgerEntry::Sent { request, account: account.clone(), usage: most };
        let reservation =
            Reservation { guard: Arc::clone(self), account, request, worst_case: most, observed: Mutex::default() };
        if budgets.is_empty() {
            self.write(sent);
        } else if let Err(error) = ledger.append(vec![LedgerRecord::new(self.clock.now(), sent)]).await {
            reservation.mark_declined();
            return Err(error.into());
        }
        Ok(reservation)
    }

    /// Returns the budgets that hold for a request. The narrowest comes first: a task or a member at its limit does not end the team.
    fn budgets_of(&self, teammate: &str, task: Option<TaskCap>) -> Vec<(BudgetScope, Budget)> {
        let of_task = task.map(|cap| (BudgetScope::Task(cap.task), Budget { tokens: cap.tokens_max, usd: None }));
        let of_member = self.member_budgets.get(teammate);
        let of_member = of_member.map(|budget| (BudgetScope::Member(teammate.to_owned()), *budget));
        let all = of_task.into_iter().chain(of_member).chain([(BudgetScope::Team, self.budget)]);
        all.filter(|(_, budget)| budget.is_set()).collect()
    }

    fn account(&self, teammate: &str, task: Option<TaskId>, model: &str) -> UsageKey {
        UsageKey { team: self.team.clone(), teammate: teammate.to_owned(), model: model.to_owned(), task }
    }

    fn write(&self, entry: LedgerEntry) {
        // The writer ends only with the runtime.
        let _ = self.lines.send(LedgerJob::Line(Box::new(LedgerRecord::new(self.clock.now(), entry))));
    }

    fn decide(&self, account: &UsageKey, budgets: &[(BudgetScope, Budget)], price: TokensAndUsd) -> ReserveDecision {
        let mut state = self.state.lock();
        for (scope, budget) in budgets {
            let used = state.used(scope);
            if let Some(bound) = budget.exceeded_by(used + price) {
                let spent = BudgetSpent::new(scope.clone(), bound, used, price);
                if *scope == BudgetScope::Team {
                    state.spent.get_or_insert_with(|| spent.clone());
                }
                return ReserveDecision::Refused(spent);
            }
        }
        let must_wait = |(scope, budget): &(BudgetScope, Budget)| {
            budget.exceeded_by(state.used(scope) + state.reserved(scope) + price).is_some()
        };
        if budgets.iter().any(must_wait) {
            return ReserveDecision::Wait;
        }
        let request = state.next_request();
        let open = OpenRequest { teammate: account.teammate.clone(), task: account.task, most: price };
        state.reserved.insert(request, open);
        ReserveDecision::Reserved(request)
    }

    fn settle(&self, account: UsageKey, request: u64, usage: Usage, confirmed: bool) {
        {
            let mut state = self.state.lock();
            state.reserved.remove(&request);
            state.add(&account.teammate, amount(&self.prices, &account.model, usage));
            if let Some(task) = account.task {
                let tokens = state.by_task.entry(task).or_default();
                *tokens = tokens.saturating_add(usage.total());
            }
        }
        self.settled.notify_waiters();
        self.write(LedgerEntry::Ended { request, account, usage, confirmed });
    }

    /// Counts usage for which no budget was reserved.
    pub fn record(&self, teammate: &str, task: Option<TaskId>, model: &str, usage: Usage) {
        let request = self.state.lock().next_request();
        self.settle(self.account(teammate, task, model), request, usage, true);
    }

    /// Returns the usage of this teammate, earlier runs included.
    pub fn used_by(&self, teammate: &str) -> TokensAndUsd {
        self.state.lock().by_teammate.get(teammate).copied().unwrap_or_default()
    }

    /// Returns true if a request has not ended.
    pub fn has_open_requests(&self) -> bool {
        !self.state.lock().reserved.is_empty()
    }

    /// Returns the first refusal because of the team's budget, if there was one.
    pub fn spent(&self) -> Option<BudgetSpent> {
        self.state.lock().spent.clone()
    }

    /// Returns the limit and the usage, once more than 80 % of the limit are used. Later calls return `None`.
    pub fn take_low(&self) -> Option<(String, String)> {
        let mut state = self.state.lock();
        if state.is_low_reported {
            return None;
        }
        let TokensAndUsd { tokens, usd } = state.total;
        let scaled = TokensAndUsd { tokens: tokens.saturating_add(tokens / 4), usd: usd * 1.25 };
        let bound = self.budget.exceeded_by(scaled)?;
        state.is_low_reported = true;
        let BudgetSpent { limit, spent, .. } =
            BudgetSpent::new(BudgetScope::Team, bound, state.total, TokensAndUsd::default());
        Some((limit, spent))
    }

    /// Waits until all usage is written, for a few seconds at most.
    pub async fn flush(&self) {
        let (done, written) = oneshot::channel();
        if self.lines.send(LedgerJob::Flush(done)).is_ok() {
            let _ = tokio::time::timeout(FLUSH_TIMEOUT, written).await;
        }
    }
}

impl BudgetState {
    fn add(&mut self, teammate: &str, amount: TokensAndUsd) {
        self.total += amount;
        *self.by_teammate.entry(teammate.to_owned()).or_default() += amount;
    }

    fn used(&self, scope: &BudgetScope) -> TokensAndUsd {
        match scope {
            BudgetScope::Team => self.total,
            BudgetScope::Member(name) => self.by_teammate.get(name).copied().unwrap_or_default(),
            BudgetScope::Task(task) => {
                TokensAndUsd { tokens: self.by_task.get(task).copied().unwrap_or_default(), usd: 0.0 }
            }
        }
    }

    /// Returns the most that the open requests in this scope can use.
    fn reserved(&self, scope: &BudgetScope) -> TokensAndUsd {
        let open = self.reserved.values().filter(|request| request.is_in(scope));
        open.fold(TokensAndUsd::default(), |sum, request| sum + request.most)
    }

    /// Returns the number of a new request. A damaged ledger line may hold the last number; the numbers then start again.
    fn next_request(&mut self) -> u64 {
        self.last_request = self.last_request.wrapping_add(1);
        self.last_request
    }
}

/// Reserved budget for one request. Dropping it ends the request and counts its usage, or the reserved maximum if the usage is
/// unknown. The rest of the reservation is free again.
pub struct Reservation {
    guard: Arc<BudgetGuard>,
    account: UsageKey,
    request: u64,
    worst_case: Usage,
    observed: Mutex<ObservedUsage>,
}

/// The usage of a request as far as it is known.
#[derive(Default)]
struct ObservedUsage {
    /// The usage so far, as reported by the provider.
    usage: Option<Usage>,
    /// Received bytes of the answer.
    bytes: u64,
    has_answer: bool,
    is_declined: bool,
    fault: Option<UsageFault>,
}

impl Reservation {
    /// Records the usage so far, as reported by the provider.
    pub fn record_usage(&self, usage: Usage) {
        self.observed.lock().usage = Some(usage);
    }

    /// Records received bytes of the answer.
    pub fn record_bytes(&self, bytes: usize) {
        self.observed.lock().bytes += bytes as u64;
    }

    /// Records a complete answer of that many bytes. `usage` is `None` if the provider did not report it.
    pub fn record_answer(&self, usage: Option<Usage>, bytes: usize) {
        let mut observed = self.observed.lock();
        observed.usage = usage;
        observed.has_answer = true;
        observed.bytes = observed.bytes.max(bytes as u64);
    }

    /// Records that the provider reported wrong usage. The request then counts as its maximum.
    pub fn mark_misreported(&self, fault: UsageFault) {
        self.observed.lock().fault = Some(fault);
    }

    /// Returns the fault of the reported usage, if one was found.
    pub fn usage_fault(&self) -> Option<UsageFault> {
        self.observed.lock().fault
    }

    /// Records that the request was not sent or the provider declined it, so nothing was used.
    pub fn mark_declined(&self) {
        self.observed.lock().is_declined = true;
    }
}

impl ObservedUsage {
    /// Returns the usage to count, and true if the provider confirmed it. Each received byte can be a token, up to the limit of the answer. For
    /// an incomplete answer the output is unknown, because tool calls and thoughts may not be streamed. A server that ignores the limit has
    /// sent at least the tokens that its bytes need.
    fn outcome(&self, most: Usage) -> (Usage, bool) {
        let needed = self.bytes / TEXT_BYTES_PER_TOKEN_MAX;
        // The bill of an incomplete answer is not complete either.
        let at_least =
            |usage: Usage| Usage { output_tokens: usage.output_tokens.max(needed), cost_ticks: None, ..usage };
        let received = Usage { output_tokens: self.bytes.min(most.output_tokens), ..most };
        match (self.usage, self.has_answer) {
            _ if self.fault.is_some() => (at_least(most), false),
            (Some(usage), true) => (usage, true),
            (None, true) => (at_least(received), false),
            (None, false) if self.is_declined && self.bytes == 0 => (Usage::default(), true),
            (Some(usage), false) if usage.total() > most.total() => (at_least(usage), false),
            (_, false) => (at_least(most), false),
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let (usage, confirmed) = self.observed.lock().outcome(self.worst_case);
        self.guard.settle(self.account.clone(), self.request, usage, confirmed);
    }
}

fn amount(prices: &Prices, model: &str, usage: Usage) -> TokensAndUsd {
    let usd = Spend::of_request(usage, true).usd(prices.get(model)).unwrap_or_default();
    TokensAndUsd { tokens: usage.total(), usd }
}

/// Ends the open requests of a process that is gone. Returns their ledger lines.
fn close_open_requests(totals: &mut LedgerTotals, clock: &dyn Clock) -> Vec<LedgerRecord> {
    let ended = totals.settle_open_requests().into_iter().map(|(request, account, usage)| LedgerEntry::Ended {
        request,
        account,
        usage,
        confirmed: false,
    });
    ended.map(|entry| LedgerRecord::new(clock.now(), entry)).collect()
}

/// Writes ledger lines in batches. Lines that the disk does not take are tried again with the next batch.
async fn write_ledger(ledger: Arc<dyn Ledger>, mut jobs: mpsc::UnboundedReceiver<LedgerJob>) {
    let (mut batch, mut lines) = (Vec::new(), Vec::new());
    let mut is_failing = false;
    while jobs.recv_many(&mut batch, LINES_PER_APPEND_MAX).await > 0 {
        let mut waiting = Vec::new();
        for job in batch.drain(..) {
            match job {
                LedgerJob::Line(line) => lines.push(*line),
                LedgerJob::Flush(done) => waiting.push(done),
            }
        }
        match ledger.append(lines.clone()).await {
            Ok(()) => {
                lines.clear();
                is_failing = false;
            }
            Err(error) if !is_failing => {
                tracing::warn!(%error, "cannot write the ledger; its lines stay in memory until the next try");
                is_failing = true;
            }
            Err(_) => {}
        }
        lines.drain(..lines.len().saturating_sub(LINES_WAITING_MAX));
        for done in waiting {
            let _ = done.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::team::budget::Price;
    use crate::domain::team::state_note::StateNote;
    use crate::domain::team::team_spec::ModelSpec;
    use crate::embed::SystemClock;
    use crate::stores::memory::MemoryLedger;

    async fn open(budget: Budget, prices: Prices, ledger: &Arc<dyn Ledger>) -> Arc<BudgetGuard> {
        let spec = TeamSpec { budget, prices, ..TeamSpec::new("t", ModelSpec::default()).unwrap() };
        BudgetGuard::open(&spec, Arc::clone(ledger), Arc::new(SystemClock)).await.unwrap()
    }

    async fn budget_guard(tokens: u64, ledger: &Arc<dyn Ledger>) -> Arc<BudgetGuard> {
        open(Budget { tokens: Some(tokens), usd: None }, Prices::new(), ledger).await
    }

    fn usage(input_tokens: u64, output_tokens: u64) -> Usage {
        Usage { input_tokens, output_tokens, ..Usage::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn reservation_waits_for_others_or_is_refused() {
        let ledger: Arc<dyn Ledger> = Arc::new(MemoryLedger::default());
        let budget_guard = budget_guard(100, &ledger).await;
        let reserve = |most| budget_guard.reserve(ledger.as_ref(), "alice", None, "m", most);
        let first = reserve(usage(10, 50)).await.unwrap();
        let second = reserve(usage(10, 50));
        tokio::pin!(second);
        tokio::select! {
            biased;
            _ = &mut second => panic!("it fits beside the first"),
            () = tokio::time::sleep(Duration::from_secs(9)) => {}
        }
        first.record_answer(Some(usage(10, 5)), 20);
        drop(first);
        second.await.unwrap().record_answer(None, 5);
        assert_eq!(budget_guard.used_by("alice").tokens, 30);
        assert!(budget_guard.spent().is_none());
        let Err(BudgetError::Spent(spent)) = reserve(usage(10, 61)).await else { panic!("71 of 70 left") };
        assert_eq!(
            spent.to_string(),
            "the budget of 100 tokens is spent: 30 were used, and the next request could use 71 more"
        );
        assert_eq!(budget_guard.spent(), Some(spent));
    }

    #[tokio::test]
    async fn budget_below_one_request_is_too_small() {
        let ledger: Arc<dyn Ledger> = Arc::new(MemoryLedger::default());
        let budget_guard = budget_guard(100, &ledger).await;
        let refused = budget_guard.reserve(ledger.as_ref(), "alice", None, "m", usage(10, 91)).await;
        let Err(BudgetError::Spent(spent)) = refused else { panic!("101 of 100") };
        assert_eq!(spent.to_string(), "the budget of 100 tokens is too small: one request could use 101");
        let note = StateNote::from_file_text(&spent.state_note().to_file_text());
        assert!(matches!(note, StateNote::BudgetTooSmall { .. }), "{note:?}");
    }

    /// Alice has 100 tokens and task 7 has 60, of the 1,000 of the team.
    async fn guard_with_caps(ledger: &Arc<dyn Ledger>) -> Arc<BudgetGuard> {
        let mut spec = TeamSpec::new("t", ModelSpec::default()).unwrap();
        spec.budget.tokens = Some(1_000);
        for name in ["alice", "bob"] {
            spec = spec.with_member(name, "coder", ModelSpec::default()).unwrap();
        }
        spec.members[0].budget.tokens = Some(100);
        BudgetGuard::open(&spec, Arc::clone(ledger), Arc::new(SystemClock)).await.unwrap()
    }

    const CAP: Option<TaskCap> = Some(TaskCap { task: TaskId(7), tokens_max: Some(60) });

    fn refused(outcome: Result<Reservation, BudgetError>) -> BudgetSpent {
        match outcome {
            Err(BudgetError::Spent(spent)) => spent,
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("it is not refused"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn narrowest_cap_refuses_and_others_go_on() {
        let ledger: Arc<dyn Ledger> = Arc::new(MemoryLedger::default());
        let guard = guard_with_caps(&ledger).await;
        let reserve = |who, task, most| guard.reserve(ledger.as_ref(), who, task, "m", usage(most, 0));
        let spend = async |who, task, tokens| {
            reserve(who, task, tokens).await.unwrap().record_answer(Some(usage(tokens, 0)), 0);
        };
        // Attempts of both members count for the task.
        spend("alice", CAP, 30).await;
        spend("bob", CAP, 20).await;
        let spent = refused(reserve("bob", CAP, 11).await);
        assert_eq!(
            spent.to_string(),
            "the task reached its cap of 60 tokens: its attempts used 50, and the next request could use 11 more"
        );
        assert_eq!((&spent.scope, spent.cap.unwrap().tokens_needed), (&BudgetScope::Task(TaskId(7)), 61));
        spend("alice", None, 70).await;
        let spent = refused(reserve("alice", None, 1).await);
        assert_eq!(
            spent.to_string(),
            "the budget of 100 tokens of alice is spent: 100 were used, and the next request could use 1 more"
        );
        assert_eq!(spent.scope, BudgetScope::Member("alice".to_owned()));
        spend("bob", None, 880).await;
        assert!(guard.spent().is_none(), "the team goes on");
        let spent = refused(reserve("bob", None, 1).await);
        assert_eq!((&spent.scope, guard.spent()), (&BudgetScope::Team, Some(spent.clone())));
        // Another process knows the same.
        guard.flush().await;
        let guard = guard_with_caps(&ledger).await;
        let reserve = |who, task| guard.reserve(ledger.as_ref(), who, task, "m", usage(11, 0));
        assert_eq!(refused(reserve("bob", CAP).await).scope, BudgetScope::Task(TaskId(7)));
        assert_eq!(refused(reserve("alice", None).await).scope, BudgetScope::Member("alice".to_owned()));
    }

    /// Open requests count: two that fit alone do not start together.
    #[tokio::test(start_paused = true)]
    async fn open_request_counts_in_each_cap() {
        for (who, task, most) in [("alice", None, 60), ("bob", CAP, 40)] {
            let ledger: Arc<dyn Ledger> = Arc::new(MemoryLedger::default());
            let guard = guard_with_caps(&ledger).await;
            let reserve = || guard.reserve(ledger.as_ref(), who, task, "m", usage(most, 0));
            let first = reserve().await.unwrap();
            let mut second = std::pin::pin!(reserve());
            tokio::select! {
                biased;
                _ = &mut second => panic!("{who}: it started beside the first"),
                () = tokio::time::sleep(Duration::from_secs(9)) => {}
            }
            drop(guard.reserve(ledger.as_ref(), "bob", None, "m", usage(60, 0)).await.unwrap());
            first.record_answer(Some(usage(1, 0)), 0);
            drop(first);
            drop(second.await.unwrap());
        }
    }

    #[tokio::test]
    async fn low_budget_is_returned_once() {
        let ledger: Arc<dyn Ledger> = Arc::new(MemoryLedger::default());
        let budget_guard = budget_guard(100, &ledger).await;
        for (used, low) in [(80, None), (1, Some(("100 tokens".to_owned(), "81".to_owned()))), (1, None)] {
            let reservation = budget_guard.reserve(ledger.as_ref(), "alice", None, "m", usage(used, 0)).await.unwrap();
            reservation.record_answer(Some(usage(used, 0)), 0);
            drop(reservation);
            assert_eq!(budget_guard.take_low(), low);
        }
    }

    #[tokio::test]
    async fn unconfirmed_request_counts_as_maximum_usage() {
        let ledger: Arc<dyn Ledger> = Arc::new(MemoryLedger::default());
        let budget_guard = budget_guard(1000, &ledger).await;
        let reserve = |who| budget_guard.reserve(ledger.as_ref(), who, None, "m", usage(10, 50));
        reserve("declined").await.unwrap().mark_declined();
        reserve("begun").await.unwrap().record_usage(usage(10, 1));
        reserve("misjudged").await.unwrap().record_usage(usage(70, 1));
        drop(reserve("silent").await.unwrap());
        let used = ["declined", "begun", "misjudged", "silent"].map(|who| budget_guard.used_by(who).tokens);
        assert_eq!(used, [0, 60, 71, 60]);
    }

    #[tokio::test]
    async fn reservation_uses_highest_input_price() {
        let ledger: Arc<dyn Ledger> = Arc::new(MemoryLedger::default());
        let price = Price { input: 3.0, output: 15.0, cache_read: 0.3, cache_write: 3.75 };
        let (budget, prices) = (Budget { tokens: None, usd: Some(0.375) }, Prices::from([("m".to_owned(), price)]));
        let budget_guard = open(budget, prices, &ledger).await;
        let written = Usage { cache_write_tokens: 100_000, ..Usage::default() };
        let paid = budget_guard.reserve(ledger.as_ref(), "alice", None, "m", usage(100_000, 0)).await.unwrap();
        paid.record_answer(Some(written), 0);
        drop(paid);
        assert!((budget_guard.used_by("alice").usd - 0.375).abs() < 1e-9);
        assert!(budget_guard.reserve(ledger.as_ref(), "alice", None, "m", usage(1, 0)).await.is_err());
    }

    /// The bill of an answer beats the price, also for the next process. That of a cut answer is not complete, so its price counts.
    #[tokio::test]
    async fn reported_bill_beats_price_in_budget() {
        let ledger: Arc<dyn Ledger> = Arc::new(MemoryLedger::default());
        let prices = Prices::from([("m".to_owned(), Price { input: 10.0, ..Price::default() })]);
        let budget = Budget { tokens: None, usd: Some(20.0) };
        let budget_guard = open(budget, prices.clone(), &ledger).await;
        let billed = Usage { cost_ticks: Some(5_000_000_000), ..usage(1_000_000, 0) };
        let paid = budget_guard.reserve(ledger.as_ref(), "alice", None, "m", usage(1_000_000, 0)).await.unwrap();
        paid.record_answer(Some(billed), 0);
        drop(paid);
        assert!((budget_guard.used_by("alice").usd - 0.5).abs() < 1e-9);
        let cut = budget_guard.reserve(ledger.as_ref(), "bob", None, "m", usage(100_000, 0)).await.unwrap();
        cut.record_usage(Usage { cost_ticks: Some(1), ..usage(200_000, 0) });
        drop(cut);
        assert!((budget_guard.used_by("bob").usd - 2.0).abs() < 1e-9);
        budget_guard.flush().await;
        let next = open(budget, prices, &ledger).await;
        assert!((next.used_by("alice").usd - 0.5).abs() < 1e-9 && (next.used_by("bob").usd - 2.0).abs() < 1e-9);
    }

    #[tokio::test]
    async fn received_bytes_of_cut_answer_are_charged() {
        let ledger: Arc<dyn Ledger> = Arc::new(MemoryLedger::default());
        let budget_guard = budget_guard(1_000_000, &ledger).await;
        for is_declined in [true, false] {
            let before = budget_guard.used_by("alice").tokens;
            let paid = budget_guard.reserve(ledger.as_ref(), "alice", None, "m", usage(10, 50)).await.unwrap();
            paid.record_usage(usage(1, 0));
            paid.record_bytes(100_000);
            if is_declined {
                paid.mark_declined();
            }
            drop(paid);
            assert_eq!(budget_guard.used_by("alice").tokens - before, 10 + 100_000 / TEXT_BYTES_PER_TOKEN_MAX);
        }
    }
}
