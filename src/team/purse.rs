//! What a team has used and may use: every request to a model is paid for here, before it is sent.
//!
//! A request reserves the most it can use. What does not fit beside the reservations of others waits until they are over; what
//! does not fit beside what was used for certain is refused, and the budget is spent. The ledger has it all, for the next process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};

use super::size::BYTES_PER_TOKEN;
use super::spec::TeamSpec;
use crate::domain::spend::{Account, Amount, Book, Bound, Budget, LedgerEntry, LedgerLine, Prices};
use crate::domain::transcript::Usage;
use crate::ports::{Clock, Ledger, StoreError, StoreResult};

/// Lines that wait to be written while the disk takes none; of more, the oldest are left out.
const LINES_WAITING_MAX: usize = 65_536;
/// Most lines of one append.
const LINES_PER_APPEND_MAX: usize = 256;
/// How long the end of a team waits for its last lines to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The budget does not allow a request.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("the budget of {limit} is spent: {spent} were used, and the next request could use {most} more")]
pub struct BudgetSpent {
    /// The bound, with its unit.
    pub limit: String,
    /// What was used.
    pub spent: String,
    /// What the request could use.
    pub most: String,
}

impl BudgetSpent {
    fn new(bound: Bound, spent: Amount, most: Amount) -> Self {
        let limit = bound.to_string();
        match bound {
            Bound::Tokens(_) => Self { limit, spent: spent.tokens.to_string(), most: most.tokens.to_string() },
            Bound::Usd(_) => Self { limit, spent: format!("${:.4}", spent.usd), most: format!("${:.4}", most.usd) },
        }
    }
}

/// Why a request may not be sent.
#[derive(Debug, thiserror::Error)]
pub enum NotPaid {
    /// The budget is spent.
    #[error(transparent)]
    Spent(#[from] BudgetSpent),
    /// It cannot be recorded, and what is not recorded is not sent.
    #[error("cannot record the request in the ledger: {0}")]
    Unrecorded(#[from] StoreError),
}

/// See the module.
pub struct Purse {
    team: String,
    budget: Budget,
    prices: Prices,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Told when a reservation ends.
    settled: Notify,
    lines: mpsc::UnboundedSender<Job>,
}

struct State {
    total: Amount,
    by_teammate: HashMap<String, Amount>,
    reserved: HashMap<u64, Amount>,
    last_request: u64,
    spent: Option<BudgetSpent>,
}

enum Job {
    Line(LedgerLine),
    /// Answer once all before this is written.
    Flush(oneshot::Sender<()>),
}

/// What may be sent.
enum Decision {
    Yes(u64),
    /// Others' requests may leave enough.
    Later,
    Never(BudgetSpent),
}

impl Purse {
    /// The purse of a team, with what the ledger says it has used. Requests an earlier process did not see the end of count as
    /// the most they can have used.
    ///
    /// # Errors
    /// The ledger's.
    pub async fn open(spec: &TeamSpec, ledger: Arc<dyn Ledger>, clock: Arc<dyn Clock>) -> StoreResult<Arc<Self>> {
        let (budget, prices) = (spec.budget, spec.prices.clone());
        Self::with(spec.name.as_str(), budget, prices, ledger, clock).await
    }

    async fn with(
        team: &str,
        budget: Budget,
        prices: Prices,
        ledger: Arc<dyn Ledger>,
        clock: Arc<dyn Clock>,
    ) -> StoreResult<Arc<Self>> {
        let mut book = ledger.read().await?;
        let cut_off = close(&mut book, clock.as_ref());
        ledger.append(cut_off).await?;
        let mut state = State {
            total: Amount::default(),
            by_teammate: HashMap::new(),
            reserved: HashMap::new(),
            last_request: book.last_request(),
            spent: None,
        };
        for (account, spend) in book.spent().iter().filter(|(account, _)| account.team == team) {
            state.add(&account.teammate, amount(&prices, &account.model, spend.usage));
        }
        let (lines, waiting) = mpsc::unbounded_channel();
        tokio::spawn(write(ledger, waiting));
        let (team, state, settled) = (team.to_owned(), Mutex::new(state), Notify::new());
        Ok(Arc::new(Self { team, budget, prices, clock, state, settled, lines }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pays for a request that can use at most `most`. Waits while others' requests may leave enough. With a budget it is recorded
    /// by `ledger` before this returns.
    ///
    /// # Errors
    /// [`NotPaid`]: it must not be sent.
    pub async fn reserve(
        self: &Arc<Self>,
        ledger: &dyn Ledger,
        teammate: &str,
        model: &str,
        most: Usage,
    ) -> Result<Reservation, NotPaid> {
        let most = self.prices.get(model).map_or(most, |price| price.dearest(most));
        let price = amount(&self.prices, model, most);
        let request = loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            match self.decide(price) {
                Decision::Yes(request) => break request,
                Decision::Later => settled.await,
                Decision::Never(spent) => return Err(spent.into()),
            }
        };
        let account = Account { team: self.team.clone(), teammate: teammate.to_owned(), model: model.to_owned() };
        let sent = LedgerEntry::Sent { request, account: account.clone(), usage: most };
        let reservation = Reservation { purse: Arc::clone(self), account, request, most, heard: Mutex::default() };
        if self.budget.is_set()
            && let Err(error) = ledger.append(vec![LedgerLine::new(self.clock.now(), sent)]).await
        {
            reservation.declined();
            return Err(error.into());
        }
        Ok(reservation)
    }

    fn decide(&self, price: Amount) -> Decision {
        let mut state = self.state();
        if let Some(bound) = self.budget.exceeded_by(state.total + price) {
            let spent = BudgetSpent::new(bound, state.total, price);
            state.spent.get_or_insert_with(|| spent.clone());
            return Decision::Never(spent);
        }
        let reserved = state.reserved.values().fold(Amount::default(), |sum, reserved| sum + *reserved);
        if self.budget.exceeded_by(state.total + reserved + price).is_some() {
            return Decision::Later;
        }
        // Past the last number that a spoiled line may name it begins anew.
        state.last_request = state.last_request.wrapping_add(1);
        let request = state.last_request;
        state.reserved.insert(request, price);
        Decision::Yes(request)
    }

    fn settle(&self, account: Account, request: u64, usage: Usage, confirmed: bool) {
        {
            let mut state = self.state();
            state.reserved.remove(&request);
            state.add(&account.teammate, amount(&self.prices, &account.model, usage));
        }
        self.settled.notify_waiters();
        if usage.total() == 0 && !self.budget.is_set() {
            return;
        }
        let entry = LedgerEntry::Ended { request, account, usage, confirmed };
        // A writer that is gone went with the runtime.
        let _ = self.lines.send(Job::Line(LedgerLine::new(self.clock.now(), entry)));
    }

    /// Whether there is a budget, for which requests have to be counted.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.budget.is_set()
    }

    /// What this teammate has used, in earlier runs too.
    #[must_use]
    pub fn used_by(&self, teammate: &str) -> Amount {
        self.state().by_teammate.get(teammate).copied().unwrap_or_default()
    }

    /// The refusal that says that the budget is spent, once there was one.
    #[must_use]
    pub fn spent(&self) -> Option<BudgetSpent> {
        self.state().spent.clone()
    }

    /// Waits until all that was used is written.
    pub async fn flush(&self) {
        let (done, written) = oneshot::channel();
        if self.lines.send(Job::Flush(done)).is_ok() {
            let _ = tokio::time::timeout(FLUSH_TIMEOUT, written).await;
        }
    }
}

impl State {
    fn add(&mut self, teammate: &str, amount: Amount) {
        self.total += amount;
        match self.by_teammate.get_mut(teammate) {
            Some(used) => *used += amount,
            None => {
                self.by_teammate.insert(teammate.to_owned(), amount);
            }
        }
    }
}

/// Room in the budget for one request. Dropped, the request is over: what it used for certain is used, or the most it can have used
/// where nobody knows, and the rest is free again.
pub struct Reservation {
    purse: Arc<Purse>,
    account: Account,
    request: u64,
    most: Usage,
    heard: Mutex<Heard>,
}

/// What was heard of a request.
#[derive(Default)]
struct Heard {
    /// What it used up to now, as the provider said.
    usage: Option<Usage>,
    /// The bytes of the answer that came.
    bytes: u64,
    is_answered: bool,
    is_declined: bool,
    is_misreported: bool,
}

impl Reservation {
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The provider says that so much was used up to now.
    pub fn used(&self, usage: Usage) {
        self.heard().usage = Some(usage);
    }

    /// So much of the answer came.
    pub fn wrote(&self, bytes: usize) {
        self.heard().bytes += bytes as u64;
    }

    /// The answer is whole and has so many bytes; `usage` as its provider says, or `None` where it does not.
    pub fn answered(&self, usage: Option<Usage>, bytes: usize) {
        let mut heard = self.heard();
        (heard.usage, heard.is_answered) = (usage, true);
        heard.bytes = heard.bytes.max(bytes as u64);
    }

    /// Its provider says that it used what it cannot have used: nothing that it says of this request counts.
    pub fn misreported(&self) {
        self.heard().is_misreported = true;
    }

    /// Whether [`Self::misreported`] was said.
    #[must_use]
    pub fn is_misreported(&self) -> bool {
        self.heard().is_misreported
    }

    /// It was not sent, or its provider would not begin: nothing was used.
    pub fn declined(&self) {
        self.heard().is_declined = true;
    }
}

impl Heard {
    /// What counts as used, and whether its provider said so. Of an answer that did not come nobody knows how much was written, heard
    /// or not: calls and thoughts come without a word.
    fn outcome(&self, most: Usage) -> (Usage, bool) {
        let heard = self.bytes / BYTES_PER_TOKEN;
        let at_least = |usage: Usage| Usage { output_tokens: usage.output_tokens.max(heard), ..usage };
        match (self.usage, self.is_answered) {
            _ if self.is_misreported => (at_least(most), false),
            (Some(usage), true) => (usage, true),
            (None, true) => (Usage { output_tokens: heard, ..most }, false),
            (None, false) if self.is_declined && self.bytes == 0 => (Usage::default(), true),
            (Some(usage), false) if usage.total() > most.total() => (at_least(usage), false),
            (_, false) => (at_least(most), false),
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let (usage, confirmed) = self.heard().outcome(self.most);
        self.purse.settle(self.account.clone(), self.request, usage, confirmed);
    }
}

fn amount(prices: &Prices, model: &str, usage: Usage) -> Amount {
    let usd = prices.get(model).map_or(0.0, |price| price.of(usage));
    Amount { tokens: usage.total(), usd }
}

/// Closes requests of a process that is gone; the lines that say so.
fn close(book: &mut Book, clock: &dyn Clock) -> Vec<LedgerLine> {
    let ended = book.close_open().into_iter().map(|(request, account, usage)| LedgerEntry::Ended {
        request,
        account,
        usage,
        confirmed: false,
    });
    ended.map(|entry| LedgerLine::new(clock.now(), entry)).collect()
}

/// Writes lines as they come, many at once; those the disk does not take are tried again with the next.
async fn write(ledger: Arc<dyn Ledger>, mut jobs: mpsc::UnboundedReceiver<Job>) {
    let (mut batch, mut lines) = (Vec::new(), Vec::new());
    let mut is_failing = false;
    while jobs.recv_many(&mut batch, LINES_PER_APPEND_MAX).await > 0 {
        let mut waiting = Vec::new();
        for job in batch.drain(..) {
            match job {
                Job::Line(line) => lines.push(line),
                Job::Flush(done) => waiting.push(done),
            }
        }
        match ledger.append(lines.clone()).await {
            Ok(()) => {
                lines.clear();
                is_failing = false;
            }
            Err(error) if !std::mem::replace(&mut is_failing, true) => {
                tracing::warn!(%error, "the ledger cannot be written; its lines wait in memory");
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
    use crate::domain::spend::Price;
    use crate::domain::time::UnixMs;
    use crate::stores::memory::ledger::MemoryLedger;

    struct Still;

    impl Clock for Still {
        fn now(&self) -> UnixMs {
            UnixMs(1)
        }
    }

    async fn purse(tokens: u64, ledger: &Arc<dyn Ledger>) -> Arc<Purse> {
        let budget = Budget { tokens: Some(tokens), usd: None };
        Purse::with("t", budget, Prices::new(), Arc::clone(ledger), Arc::new(Still)).await.unwrap()
    }

    fn usage(input_tokens: u64, output_tokens: u64) -> Usage {
        Usage { input_tokens, output_tokens, ..Usage::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_fit_beside_others_waits_and_what_never_fits_is_refused() {
        let ledger: Arc<dyn Ledger> = Arc::new(MemoryLedger::default());
        let purse = purse(100, &ledger).await;
        let reserve = |most| purse.reserve(ledger.as_ref(), "alice", "m", most);
        let first = reserve(usage(10, 50)).await.unwrap();
        let second = reserve(usage(10, 50));
        tokio::pin!(second);
        tokio::select! {
            biased;
            _ = &mut second => panic!("it fits beside the first"),
            () = tokio::time::sleep(Duration::from_secs(9)) => {}
        }
        first.answered(Some(usage(10, 5)), 20);
        drop(first);
        second.await.unwrap().answered(None, 20);
        assert_eq!(purse.used_by("alice").tokens, 30);
        assert!(purse.spent().is_none());
        let Err(NotPaid::Spent(spent)) = reserve(usage(10, 61)).await else { panic!("71 of 70 left") };
        assert_eq!(
            spent.to_string(),
            "the budget of 100 tokens is spent: 30 were used, and the next request could use 71 more"
        );
        assert_eq!(purse.spent(), Some(spent));
    }

    #[tokio::test]
    async fn what_was_cut_off_counts_as_the_most_unless_it_was_never_begun() {
        let ledger: Arc<dyn Ledger> = Arc::new(MemoryLedger::default());
        let purse = purse(1000, &ledger).await;
        let reserve = |who| purse.reserve(ledger.as_ref(), who, "m", usage(10, 50));
        reserve("declined").await.unwrap().declined();
        reserve("begun").await.unwrap().used(usage(10, 1));
        reserve("misjudged").await.unwrap().used(usage(70, 1));
        drop(reserve("silent").await.unwrap());
        let used = ["declined", "begun", "misjudged", "silent"].map(|who| purse.used_by(who).tokens);
        assert_eq!(used, [0, 60, 71, 60]);
    }

    #[tokio::test]
    async fn a_reservation_is_of_the_dearest_way_to_read() {
        let ledger: Arc<dyn Ledger> = Arc::new(MemoryLedger::default());
        let price = Price { input: 3.0, output: 15.0, cache_read: 0.3, cache_write: 3.75 };
        let (budget, prices) = (Budget { tokens: None, usd: Some(0.375) }, Prices::from([("m".to_owned(), price)]));
        let purse = Purse::with("t", budget, prices, Arc::clone(&ledger), Arc::new(Still)).await.unwrap();
        let written = Usage { cache_write_tokens: 100_000, ..Usage::default() };
        let paid = purse.reserve(ledger.as_ref(), "alice", "m", usage(100_000, 0)).await.unwrap();
        paid.answered(Some(written), 0);
        drop(paid);
        assert!((purse.used_by("alice").usd - 0.375).abs() < 1e-9);
        assert!(purse.reserve(ledger.as_ref(), "alice", "m", usage(1, 0)).await.is_err());
    }

    #[tokio::test]
    async fn what_was_heard_of_an_answer_that_was_cut_counts_whatever_was_said_of_it() {
        let ledger: Arc<dyn Ledger> = Arc::new(MemoryLedger::default());
        let purse = purse(1_000_000, &ledger).await;
        for is_declined in [true, false] {
            let before = purse.used_by("alice").tokens;
            let paid = purse.reserve(ledger.as_ref(), "alice", "m", usage(10, 50)).await.unwrap();
            paid.used(usage(1, 0));
            paid.wrote(100_000);
            if is_declined {
                paid.declined();
            }
            drop(paid);
            assert_eq!(purse.used_by("alice").tokens - before, 10 + 100_000 / BYTES_PER_TOKEN);
        }
    }

    #[tokio::test]
    async fn the_next_process_goes_on_with_what_was_used_and_with_the_most_of_what_it_saw_no_end_of() {
        let ledger: Arc<dyn Ledger> = Arc::new(MemoryLedger::default());
        let first = purse(1000, &ledger).await;
        let paid = first.reserve(ledger.as_ref(), "alice", "m", usage(10, 50)).await.unwrap();
        paid.answered(Some(usage(10, 5)), 20);
        drop(paid);
        first.flush().await;
        // The process dies while this one is under way.
        std::mem::forget(first.reserve(ledger.as_ref(), "bob", "m", usage(10, 50)).await.unwrap());
        let second = purse(1000, &ledger).await;
        assert_eq!((second.used_by("alice").tokens, second.used_by("bob").tokens), (15, 60));
        let third = purse(1000, &ledger).await;
        assert_eq!(third.used_by("bob").tokens, 60, "it is counted once");
    }
}
