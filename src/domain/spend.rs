//! What model requests use and cost, what a team may use, and the ledger's lines, from which both are known after any death.
//!
//! A line is written before a request, with the most it can use, and another once its end is known. A request whose end
//! nobody recorded counts as the most it could have used: a budget that was kept is kept over every kill.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::time::UnixMs;
use super::transcript::Usage;

/// What a model's tokens cost, in US dollars per million.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Price {
    /// Tokens read.
    pub input: f64,
    /// Tokens written.
    pub output: f64,
    /// Tokens read from the provider's cache.
    pub cache_read: f64,
    /// Tokens written to the provider's cache.
    pub cache_write: f64,
}

impl Price {
    /// What this usage costs, in US dollars.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "nobody uses 2^53 tokens")]
    pub fn of(self, usage: Usage) -> f64 {
        let parts = [
            (usage.input_tokens, self.input),
            (usage.output_tokens, self.output),
            (usage.cache_read_tokens, self.cache_read),
            (usage.cache_write_tokens, self.cache_write),
        ];
        parts.iter().map(|(tokens, usd)| *tokens as f64 * usd / 1e6).sum()
    }

    /// The same usage, had all that was read been read in the way that costs most: anew, from the provider's cache, or into it.
    #[must_use]
    pub fn dearest(self, usage: Usage) -> Usage {
        let read = usage.input_tokens.saturating_add(usage.cache_read_tokens).saturating_add(usage.cache_write_tokens);
        let written = Usage { output_tokens: usage.output_tokens, ..Usage::default() };
        if self.cache_write > self.input.max(self.cache_read) {
            Usage { cache_write_tokens: read, ..written }
        } else if self.cache_read > self.input {
            Usage { cache_read_tokens: read, ..written }
        } else {
            Usage { input_tokens: read, ..written }
        }
    }
}

/// The prices of models, by the names the config gives them.
pub type Prices = BTreeMap<String, Price>;

/// What a team may use in all. What is `None` is not bounded.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Budget {
    /// Tokens: read, written, and from and to caches, one like the other.
    pub tokens: Option<u64>,
    /// US dollars, by the config's prices.
    pub usd: Option<f64>,
}

impl Budget {
    /// Whether anything is bounded.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.tokens.is_some() || self.usd.is_some()
    }

    /// What `amount` goes beyond, if it goes beyond anything.
    #[must_use]
    pub fn exceeded_by(&self, amount: Amount) -> Option<Bound> {
        let tokens = self.tokens.filter(|tokens| amount.tokens > *tokens).map(Bound::Tokens);
        tokens.or_else(|| self.usd.filter(|usd| amount.usd > *usd).map(Bound::Usd))
    }

    /// Whether a team that was ended with this note was ended because this very budget is spent, not a smaller one.
    #[must_use]
    pub fn is_said_to_be_spent(&self, note: &str) -> bool {
        let bounds = self.tokens.map(Bound::Tokens).into_iter().chain(self.usd.map(Bound::Usd));
        bounds.into_iter().any(|bound| note.starts_with(&format!("the budget of {bound} is spent")))
    }
}

/// One bound of a budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// Tokens.
    Tokens(u64),
    /// US dollars.
    Usd(f64),
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tokens(tokens) => write!(f, "{tokens} tokens"),
            Self::Usd(usd) => write!(f, "${usd:.2}"),
        }
    }
}

/// Tokens and what they cost.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Amount {
    /// Tokens.
    pub tokens: u64,
    /// US dollars.
    pub usd: f64,
}

impl std::ops::AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.usd += other.usd;
    }
}

impl std::ops::Add for Amount {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

/// Who used which model.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Account {
    /// The team.
    pub team: String,
    /// Its member.
    pub teammate: String,
    /// The model, as the config names it.
    pub model: String,
}

/// What was used from one account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Spend {
    /// Requests.
    pub requests: u64,
    /// How many of them were cut off, so that their usage is the most it can have been.
    pub unconfirmed: u64,
    /// What they used.
    #[serde(flatten)]
    pub usage: Usage,
}

impl Spend {
    fn add(&mut self, other: Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.unconfirmed = self.unconfirmed.saturating_add(other.unconfirmed);
        self.usage = self.usage.plus(other.usage);
    }
}

/// What a line of the ledger says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum LedgerEntry {
    /// A request is about to be sent.
    Sent {
        /// Its number in the ledger.
        request: u64,
        /// Whose.
        #[serde(flatten)]
        account: Account,
        /// The most it can use.
        usage: Usage,
    },
    /// It is over.
    Ended {
        /// Its number.
        request: u64,
        /// Whose.
        #[serde(flatten)]
        account: Account,
        /// What it used.
        usage: Usage,
        /// Whether that is what its provider said, and not the most it can have been.
        confirmed: bool,
    },
    /// Many requests that are over, in place of their lines.
    Sum {
        /// Whose.
        #[serde(flatten)]
        account: Account,
        /// How many.
        requests: u64,
        /// How many of them are not confirmed.
        unconfirmed: u64,
        /// What they used.
        usage: Usage,
    },
    /// What this team used before does not count any more.
    Reset {
        /// The team.
        team: String,
    },
}

/// A line of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerLine {
    /// Version of the form.
    pub v: u32,
    /// When.
    pub at: UnixMs,
    /// What.
    #[serde(flatten)]
    pub entry: LedgerEntry,
}

impl LedgerLine {
    /// A line of this version.
    #[must_use]
    pub fn new(at: UnixMs, entry: LedgerEntry) -> Self {
        Self { v: 1, at, entry }
    }

    /// The line, without a newline.
    #[must_use]
    pub fn to_line(&self) -> String {
        // Nothing in it has keys that are not strings, so writing it cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// What all lines of a ledger come to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Book {
    spent: BTreeMap<Account, Spend>,
    /// Requests whose end is not recorded, and the most they can use.
    open: BTreeMap<u64, (Account, Usage)>,
    last_request: u64,
}

impl Book {
    /// Takes a line in.
    pub fn take(&mut self, entry: &LedgerEntry) {
        match entry {
            LedgerEntry::Sent { request, account, usage } => {
                self.last_request = self.last_request.max(*request);
                self.open.insert(*request, (account.clone(), *usage));
            }
            LedgerEntry::Ended { request, account, usage, confirmed } => {
                self.last_request = self.last_request.max(*request);
                self.open.remove(request);
                self.add(account, Spend { requests: 1, unconfirmed: u64::from(!confirmed), usage: *usage });
            }
            LedgerEntry::Sum { account, requests, unconfirmed, usage } => {
                self.add(account, Spend { requests: *requests, unconfirmed: *unconfirmed, usage: *usage });
            }
            LedgerEntry::Reset { team } => {
                self.spent.retain(|account, _| account.team != *team);
                self.open.retain(|_, (account, _)| account.team != *team);
            }
        }
    }

    fn add(&mut self, account: &Account, spend: Spend) {
        match self.spent.get_mut(account) {
            Some(spent) => spent.add(spend),
            None => {
                self.spent.insert(account.clone(), spend);
            }
        }
    }

    /// The process that sent them is gone: open requests count as the most they can have used. Returns them.
    pub fn close_open(&mut self) -> Vec<(u64, Account, Usage)> {
        let open = std::mem::take(&mut self.open);
        for (account, usage) in open.values() {
            self.add(account, Spend { requests: 1, unconfirmed: 1, usage: *usage });
        }
        open.into_iter().map(|(request, (account, usage))| (request, account, usage)).collect()
    }

    /// The number of the last request.
    #[must_use]
    pub fn last_request(&self) -> u64 {
        self.last_request
    }

    /// What was used, by account, without open requests.
    #[must_use]
    pub fn spent(&self) -> &BTreeMap<Account, Spend> {
        &self.spent
    }

    /// How many requests of this team are there whose end is not recorded.
    #[must_use]
    pub fn open_requests(&self, team: &str) -> usize {
        self.open.values().filter(|(account, _)| account.team == team).count()
    }

    /// The fewest lines that come to the same.
    #[must_use]
    pub fn entries(&self) -> Vec<LedgerEntry> {
        let sums = self.spent.iter().map(|(account, spend)| LedgerEntry::Sum {
            account: account.clone(),
            requests: spend.requests,
            unconfirmed: spend.unconfirmed,
            usage: spend.usage,
        });
        let open = self.open.iter().map(|(request, (account, usage))| LedgerEntry::Sent {
            request: *request,
            account: account.clone(),
            usage: *usage,
        });
        sums.chain(open).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn account(teammate: &str) -> Account {
        Account { team: "t".into(), teammate: teammate.into(), model: "m".into() }
    }

    fn usage(input_tokens: u64) -> Usage {
        Usage { input_tokens, ..Usage::default() }
    }

    fn book(entries: &[LedgerEntry]) -> Book {
        let mut book = Book::default();
        entries.iter().for_each(|entry| book.take(entry));
        book
    }

    #[test]
    fn a_request_that_was_cut_off_counts_as_the_most_it_could_use() {
        let mut book = book(&[
            LedgerEntry::Sent { request: 1, account: account("a"), usage: usage(900) },
            LedgerEntry::Sent { request: 2, account: account("a"), usage: usage(900) },
            LedgerEntry::Ended { request: 1, account: account("a"), usage: usage(10), confirmed: true },
        ]);
        assert_eq!((book.spent()[&account("a")].usage.input_tokens, book.open_requests("t")), (10, 1));
        book.close_open();
        let spend = book.spent()[&account("a")];
        assert_eq!((spend.usage.input_tokens, spend.requests, spend.unconfirmed), (910, 2, 1));
    }

    #[test]
    fn lines_are_read_as_they_were_written() {
        let entries = [
            LedgerEntry::Sent { request: 7, account: account("a"), usage: usage(3) },
            LedgerEntry::Ended { request: 7, account: account("a"), usage: usage(2), confirmed: false },
            LedgerEntry::Reset { team: "t".into() },
        ];
        for entry in entries {
            let line = LedgerLine::new(UnixMs(5), entry);
            assert_eq!(serde_json::from_str::<LedgerLine>(&line.to_line()).unwrap(), line);
        }
        let line = LedgerLine::new(UnixMs(5), LedgerEntry::Sent { request: 7, account: account("a"), usage: usage(3) });
        assert_eq!(
            line.to_line(),
            r#"{"v":1,"at":5,"state":"sent","request":7,"team":"t","teammate":"a","model":"m","usage":{"input_tokens":3,"output_tokens":0}}"#
        );
    }

    #[test]
    fn prices_are_per_million_tokens() {
        let price = Price { input: 3.0, output: 15.0, cache_read: 0.3, cache_write: 3.75 };
        let used =
            Usage { input_tokens: 1_000_000, output_tokens: 100_000, cache_read_tokens: 10_000, cache_write_tokens: 0 };
        assert!((price.of(used) - 4.503).abs() < 1e-9);
        let budget = Budget { tokens: Some(10), usd: Some(1.0) };
        assert_eq!(budget.exceeded_by(Amount { tokens: 11, usd: 2.0 }), Some(Bound::Tokens(10)));
        assert_eq!(budget.exceeded_by(Amount { tokens: 10, usd: 1.5 }), Some(Bound::Usd(1.0)));
        assert_eq!(budget.exceeded_by(Amount { tokens: 10, usd: 1.0 }), None);
    }

    proptest! {
        /// Folding a ledger changes nothing of what it comes to, wherever it is folded.
        #[test]
        fn folding_changes_nothing(steps in proptest::collection::vec((0u8..4, 0u64..6, 0u64..1000), 0..60), at in 0usize..60) {
            let entries: Vec<LedgerEntry> = steps.iter().map(|(kind, request, tokens)| {
                let (account, usage) = (account(if request % 2 == 0 { "a" } else { "b" }), usage(*tokens));
                match kind {
                    0 => LedgerEntry::Sent { request: *request, account, usage },
                    1 => LedgerEntry::Ended { request: *request, account, usage, confirmed: tokens % 2 == 0 },
                    2 => LedgerEntry::Sum { account, requests: 2, unconfirmed: 1, usage },
                    _ => LedgerEntry::Reset { team: if *tokens < 900 { "other".into() } else { "t".into() } },
                }
            }).collect();
            let at = at.min(entries.len());
            let folded = [book(&entries[..at]).entries(), entries[at..].to_vec()].concat();
            let (folded, whole) = (book(&folded), book(&entries));
            prop_assert_eq!(folded.spent(), whole.spent());
            prop_assert_eq!(folded.open, whole.open);
        }
    }
}
