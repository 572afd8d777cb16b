//! The use and cost of model requests, a team's budget, and the ledger's records, from which both are known after any crash.
//!
//! A record is written before a request, with the most that it can use, and another one after its end. A request without a
//! recorded end counts as the most that it could use. So a crash cannot make a team exceed its budget.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::domain::agent::transcript::Usage;
use crate::domain::log::snapshot::is_default;
use crate::domain::task::TaskId;
use crate::domain::time::UnixMs;

/// The most bytes of text in a token, on average over a request or an answer. A server that counts fewer tokens is wrong. Tokenizers of
/// today have about 4 bytes of prose in a token, and fewer of code and other languages.
pub const TEXT_BYTES_PER_TOKEN_MAX: u64 = 20;

/// More tokens than any team uses, to catch typing errors.
pub const TOKENS_MAX: u64 = 1_000_000_000_000;

/// The reason why reported usage cannot be true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageFault {
    /// More tokens than the request and its answer can have.
    AboveRequest,
    /// Fewer tokens than the text of the request or of the answer has.
    BelowText,
}

impl std::fmt::Display for UsageFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::AboveRequest => "more tokens than the request can use",
            Self::BelowText => "a usage lower than expected",
        })
    }
}

/// Returns true if a server that reports `tokens` for this number of bytes of text is wrong.
pub fn is_below_text(tokens: u64, text_bytes: u64) -> bool {
    tokens < text_bytes / TEXT_BYTES_PER_TOKEN_MAX
}

/// The tokens that one request of an external agent can add to its context: tool results and instructions. Brigade does not see its
/// requests, so this is an estimate.
pub const EXTERNAL_INPUT_TOKENS_MAX: u64 = 50_000;
/// The longest answer of an external agent in tokens.
pub const EXTERNAL_OUTPUT_TOKENS_MAX: u64 = 32_000;
/// The most tokens that one request of an external agent can use: twice the largest context window of today.
pub const EXTERNAL_REQUEST_TOKENS_MAX: u64 = 2_000_000;
/// The most tokens that an external agent can report for the requests of one prompt without events, such as those of its sub-agents.
pub const EXTERNAL_PROMPT_TOKENS_MAX: u64 = 100_000_000;

/// The prices of a model, in US dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Price {
    /// Input tokens.
    pub input: f64,
    /// Output tokens.
    pub output: f64,
    /// Input tokens read from the provider's cache.
    pub cache_read: f64,
    /// Input tokens written to the provider's cache.
    pub cache_write: f64,
}

impl Price {
    /// Returns the cost of this usage, in US dollars.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "token counts stay below 2^53")]
    pub fn of(self, usage: Usage) -> f64 {
        let parts = [
            (usage.input_tokens, self.input),
            (usage.output_tokens, self.output),
            (usage.cache_read_tokens, self.cache_read),
            (usage.cache_write_tokens, self.cache_write),
        ];
        parts.iter().map(|(tokens, usd)| *tokens as f64 * usd / 1e6).sum()
    }

    /// Returns the usage with all its input counted at the most expensive rate: uncached, read from the cache or written to it.
    #[must_use]
    pub fn worst_case(self, usage: Usage) -> Usage {
        let input_tokens = usage.total_input();
        let output = Usage { output_tokens: usage.output_tokens, ..Usage::default() };
        if self.cache_write > self.input.max(self.cache_read) {
            Usage { cache_write_tokens: input_tokens, ..output }
        } else if self.cache_read > self.input {
            Usage { cache_read_tokens: input_tokens, ..output }
        } else {
            Usage { input_tokens, ..output }
        }
    }
}

/// Prices by model, under the config's names.
pub type Prices = BTreeMap<String, Price>;

/// The most that a team, or one of its members, may use in total. `None` means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, JsonSchema)]
pub struct Budget {
    /// Tokens of all kinds, each counted as one.
    pub tokens: Option<u64>,
    /// US dollars: the provider's bills, and the config's prices for usage without a bill.
    pub usd: Option<f64>,
}

impl Budget {
    /// Returns true if there is a limit.
    pub fn is_set(&self) -> bool {
        self.tokens.is_some() || self.usd.is_some()
    }

    /// Returns the limit that `amount` exceeds. Tokens are checked first.
    pub fn exceeded_by(&self, amount: TokensAndUsd) -> Option<BudgetLimit> {
        let tokens = self.tokens.filter(|tokens| amount.tokens > *tokens).map(BudgetLimit::Tokens);
        tokens.or_else(|| self.usd.filter(|usd| amount.usd > *usd).map(BudgetLimit::Usd))
    }

    /// Returns its limits.
    pub fn limits(&self) -> impl Iterator<Item = BudgetLimit> {
        self.tokens.map(BudgetLimit::Tokens).into_iter().chain(self.usd.map(BudgetLimit::Usd))
    }
}

/// A limit of a budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BudgetLimit {
    /// Number of tokens.
    Tokens(u64),
    /// US dollars.
    Usd(f64),
}

impl std::fmt::Display for BudgetLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tokens(tokens) => write!(f, "{tokens} tokens"),
            Self::Usd(usd) => write!(f, "${usd:.2}"),
        }
    }
}

/// The part of the usage for which a budget holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BudgetScope {
    /// All usage of the team.
    Team,
    /// The usage of this member.
    Member(String),
    /// The usage of all attempts of this task.
    Task(TaskId),
}

/// The task of a request, with its cap at this time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskCap {
    /// The task.
    pub task: TaskId,
    /// The most tokens of all its attempts. `None` means no limit.
    pub tokens_max: Option<u64>,
}

/// The cap that the attempts of a task reached. The task is not claimable until its cap is higher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CapReached {
    /// The cap.
    pub tokens_max: u64,
    /// The tokens of the attempts, and those that the refused request could use.
    pub tokens_needed: u64,
}

impl CapReached {
    /// Returns the cap that hints name: twice the tokens that the next request needs.
    pub fn suggested_tokens_max(self) -> u64 {
        self.tokens_needed.max(self.tokens_max).saturating_mul(2)
    }
}

/// A number of tokens and their cost.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TokensAndUsd {
    /// Number of tokens.
    pub tokens: u64,
    /// US dollars.
    pub usd: f64,
}

impl TokensAndUsd {
    /// Returns the cost in US dollars as reports have it, in millionths. The budget counts unrounded.
    pub fn reported_usd(&self) -> f64 {
        const MICROS_PER_DOLLAR: f64 = 1e6;
        (self.usd * MICROS_PER_DOLLAR).round() / MICROS_PER_DOLLAR
    }
}

impl std::ops::AddAssign for TokensAndUsd {
    fn add_assign(&mut self, other: Self) {
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.usd += other.usd;
    }
}

impl std::ops::Add for TokensAndUsd {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

/// The number of tasks whose usage a folded ledger keeps apart: those with the highest numbers. The caps of older tasks start again.
const TASKS_KEPT_MAX: usize = 10_000;

/// The team, member, model and task that usage is counted for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UsageKey {
    /// Name of the team.
    pub team: String,
    /// Name of its member.
    pub teammate: String,
    /// The model, under the config's name.
    pub model: String,
    /// The task that the member held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
}

/// The usage of one [`UsageKey`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub struct Spend {
    /// Number of requests.
    pub requests: u64,
    /// Number of requests without a reported usage. They count as the most that they could use.
    pub unconfirmed: u64,
    /// Total usage of the requests.
    #[serde(flatten)]
    pub usage: Usage,
    /// The part of the usage that the provider billed. The bill beats the price in the config.
    #[serde(skip_serializing_if = "is_default")]
    pub billed: Usage,
}

impl Spend {
    /// Returns the usage of one request.
    pub fn of_request(usage: Usage, confirmed: bool) -> Self {
        let billed = if usage.cost_ticks.is_some() { usage } else { Usage::default() };
        Self { requests: 1, unconfirmed: u64::from(!confirmed), usage, billed }
    }

    /// Returns the cost in US dollars: the bills, and the rest at this price. `None` if neither is known.
    pub fn usd(&self, price: Option<&Price>) -> Option<f64> {
        let rest = price.map(|price| price.of(self.usage.minus(self.billed)));
        [self.billed.billed_usd(), rest].into_iter().flatten().reduce(|bill, rest| bill + rest)
    }

    /// Returns true if a part of its usage has neither a bill nor this price.
    pub fn is_unpriced(&self, price: Option<&Price>) -> bool {
        price.is_none() && (self.billed.cost_ticks.is_none() || self.usage.total() > self.billed.total())
    }

    /// Adds the usage of other requests.
    pub fn add(&mut self, other: Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.unconfirmed = self.unconfirmed.saturating_add(other.unconfirmed);
        self.usage = self.usage.plus(other.usage);
        self.billed = self.billed.plus(other.billed);
    }
}

/// The content of a ledger record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum LedgerEntry {
    /// A request is about to be sent.
    Sent {
        /// Its number in the ledger.
        request: u64,
        /// The team, member and model.
        #[serde(flatten)]
        account: UsageKey,
        /// The most that it can use.
        usage: Usage,
    },
    /// A request has ended.
    Ended {
        /// Its number in the ledger.
        request: u64,
        /// The team, member and model.
        #[serde(flatten)]
        account: UsageKey,
        /// Its usage.
        usage: Usage,
        /// True if the provider reported the usage. False if it is the most that the request could use.
        confirmed: bool,
    },
    /// A sum that replaces the records of many ended requests.
    Sum {
        /// The team, member and model.
        #[serde(flatten)]
        account: UsageKey,
        /// Number of requests.
        requests: u64,
        /// Number of requests without a reported usage.
        unconfirmed: u64,
        /// Their total usage.
        usage: Usage,
        /// The part of it that the provider billed.
        #[serde(default, skip_serializing_if = "is_default")]
        billed: Usage,
    },
    /// A used up quota, in ledgers of earlier versions. The limits of accounts have their own files, so this has no effect.
    QuotaUsed {
        /// The account; see [`super::team_spec::ModelSpec::account`].
        provider: String,
        /// The end of the quota window.
        until: UnixMs,
    },
    /// The earlier usage of this team no longer counts.
    Reset {
        /// Name of the team.
        team: String,
    },
}

/// A line of the ledger file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerRecord {
    /// Format version.
    pub v: u32,
    /// Time of the record.
    pub at: UnixMs,
    /// Its content.
    #[serde(flatten)]
    pub entry: LedgerEntry,
}

impl LedgerRecord {
    /// Creates a record of the current format version.
    pub fn new(at: UnixMs, entry: LedgerEntry) -> Self {
        Self { v: 1, at, entry }
    }

    /// Returns the line without a newline.
    pub fn to_line(&self) -> String {
        // All map keys are strings, so serializing cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The sum of all records of a ledger.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LedgerTotals {
    spent: BTreeMap<UsageKey, Spend>,
    /// Requests without a recorded end, with the most that each can use.
    open: BTreeMap<u64, (UsageKey, Usage)>,
    last_request: u64,
}

impl LedgerTotals {
    /// Adds a record.
    pub fn apply(&mut self, entry: &LedgerEntry) {
        match entry {
            LedgerEntry::Sent { request, account, usage } => {
                self.last_request = self.last_request.max(*request);
                self.open.insert(*request, (account.clone(), *usage));
            }
            LedgerEntry::Ended { request, account, usage, confirmed } => {
                self.last_request = self.last_request.max(*request);
                self.open.remove(request);
                self.add(account, Spend::of_request(*usage, *confirmed));
            }
            LedgerEntry::Sum { account, requests, unconfirmed, usage, billed } => {
                let (requests, unconfirmed) = (*requests, *unconfirmed);
                self.add(account, Spend { requests, unconfirmed, usage: *usage, billed: *billed });
            }
            LedgerEntry::QuotaUsed { .. } => {}
            LedgerEntry::Reset { team } => {
                self.spent.retain(|account, _| account.team != *team);
                self.open.retain(|_, (account, _)| account.team != *team);
            }
        }
    }

    fn add(&mut self, account: &UsageKey, spend: Spend) {
        self.spent.entry(account.clone()).or_default().add(spend);
    }

    /// Counts all open requests as the most that they could use, and returns them. Called when the process that sent them has
    /// ended.
    pub fn settle_open_requests(&mut self) -> Vec<(u64, UsageKey, Usage)> {
        let open = std::mem::take(&mut self.open);
        for (account, usage) in open.values() {
            self.add(account, Spend::of_request(*usage, false));
        }
        open.into_iter().map(|(request, (account, usage))| (request, account, usage)).collect()
    }

    /// Returns the number of the last request.
    pub fn last_request(&self) -> u64 {
        self.last_request
    }

    /// Returns the recorded usage, without open requests.
    pub fn spent(&self) -> &BTreeMap<UsageKey, Spend> {
        &self.spent
    }

    /// Returns the recorded usage of this team, without open requests.
    pub fn usage_of(&self, team: &str) -> Usage {
        let of_team = self.spent.iter().filter(|(account, _)| account.team == team);
        of_team.fold(Usage::default(), |sum, (_, spend)| sum.plus(spend.usage))
    }

    /// Returns the number of this team's requests without a recorded end.
    pub fn open_requests(&self, team: &str) -> usize {
        self.open.values().filter(|(account, _)| account.team == team).count()
    }

    /// Returns the usage of each task, over all teams.
    pub fn tokens_by_task(&self) -> BTreeMap<TaskId, u64> {
        let mut tokens = BTreeMap::new();
        for (account, spend) in &self.spent {
            if let Some(task) = account.task {
                let sum: &mut u64 = tokens.entry(task).or_default();
                *sum = sum.saturating_add(spend.usage.total());
            }
        }
        tokens
    }

    /// Returns the recorded usage with a bounded number of tasks. That of older tasks is counted for none.
    fn bounded_spent(&self, tasks_max: usize) -> BTreeMap<UsageKey, Spend> {
        let tasks: BTreeSet<TaskId> = self.spent.keys().filter_map(|account| account.task).collect();
        let first_kept = tasks.iter().rev().nth(tasks_max.saturating_sub(1)).copied();
        let mut bounded: BTreeMap<UsageKey, Spend> = BTreeMap::new();
        for (account, spend) in &self.spent {
            let task = account.task.filter(|task| first_kept.is_none_or(|first| *task >= first));
            bounded.entry(UsageKey { task, ..account.clone() }).or_default().add(*spend);
        }
        bounded
    }

    /// Returns the shortest list of records with the same totals. Only the newest tasks keep totals of their own.
    pub fn entries(&self) -> Vec<LedgerEntry> {
        let spent = self.bounded_spent(TASKS_KEPT_MAX);
        let sums = spent.into_iter().map(|(account, spend)| LedgerEntry::Sum {
            account,
            requests: spend.requests,
            unconfirmed: spend.unconfirmed,
            usage: spend.usage,
            billed: spend.billed,
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

    fn usage_key(teammate: &str) -> UsageKey {
        UsageKey { team: "t".into(), teammate: teammate.into(), model: "m".into(), task: None }
    }

    fn usage(input_tokens: u64) -> Usage {
        Usage { input_tokens, ..Usage::default() }
    }

    fn totals(entries: &[LedgerEntry]) -> LedgerTotals {
        let mut totals = LedgerTotals::default();
        entries.iter().for_each(|entry| totals.apply(entry));
        totals
    }

    #[test]
    fn unfinished_request_counts_as_maximum_usage() {
        let mut totals = totals(&[
            LedgerEntry::Sent { request: 1, account: usage_key("a"), usage: usage(900) },
            LedgerEntry::Sent { request: 2, account: usage_key("a"), usage: usage(900) },
            LedgerEntry::Ended { request: 1, account: usage_key("a"), usage: usage(10), confirmed: true },
        ]);
        assert_eq!((totals.spent()[&usage_key("a")].usage.input_tokens, totals.open_requests("t")), (10, 1));
        totals.settle_open_requests();
        let spend = totals.spent()[&usage_key("a")];
        assert_eq!((spend.usage.input_tokens, spend.requests, spend.unconfirmed), (910, 2, 1));
    }

    #[test]
    fn ledger_line_round_trips() {
        let entries = [
            LedgerEntry::Sent { request: 7, account: usage_key("a"), usage: usage(3) },
            LedgerEntry::Ended { request: 7, account: usage_key("a"), usage: usage(2), confirmed: false },
            LedgerEntry::Reset { team: "t".into() },
        ];
        for entry in entries {
            let line = LedgerRecord::new(UnixMs(5), entry);
            assert_eq!(serde_json::from_str::<LedgerRecord>(&line.to_line()).unwrap(), line);
        }
        let line =
            LedgerRecord::new(UnixMs(5), LedgerEntry::Sent { request: 7, account: usage_key("a"), usage: usage(3) });
        assert_eq!(
            line.to_line(),
            r#"{"v":1,"at":5,"state":"sent","request":7,"team":"t","teammate":"a","model":"m","usage":{"input_tokens":3,"output_tokens":0}}"#
        );
        let account = UsageKey { task: Some(TaskId(4)), ..usage_key("a") };
        let line = LedgerRecord::new(UnixMs(5), LedgerEntry::Sent { request: 7, account, usage: usage(3) }).to_line();
        assert!(line.contains(r#""model":"m","task":4,"usage""#), "{line}");
        assert_eq!(serde_json::from_str::<LedgerRecord>(&line).unwrap().to_line(), line);
    }

    #[test]
    fn folded_ledger_keeps_newest_tasks_apart() {
        let account = |task| UsageKey { task: Some(TaskId(task)), ..usage_key("a") };
        let ended = |request, tokens| LedgerEntry::Ended {
            request,
            account: account(request),
            usage: usage(tokens),
            confirmed: true,
        };
        let totals = totals(&[ended(1, 10), ended(2, 20), ended(3, 30), ended(4, 40)]);
        assert_eq!(totals.tokens_by_task(), BTreeMap::from([1, 2, 3, 4].map(|task| (TaskId(task), task * 10))));
        let bounded = totals.bounded_spent(2);
        let tokens: Vec<_> = bounded.iter().map(|(key, spend)| (key.task, spend.usage.total())).collect();
        assert_eq!(tokens, [(None, 30), (Some(TaskId(3)), 30), (Some(TaskId(4)), 40)]);
    }

    #[test]
    fn price_is_per_million_tokens() {
        let price = Price { input: 3.0, output: 15.0, cache_read: 0.3, cache_write: 3.75 };
        let used =
            Usage { input_tokens: 1_000_000, output_tokens: 100_000, cache_read_tokens: 10_000, ..Usage::default() };
        assert!((price.of(used) - 4.503).abs() < 1e-9);
        let budget = Budget { tokens: Some(10), usd: Some(1.0) };
        assert_eq!(budget.exceeded_by(TokensAndUsd { tokens: 11, usd: 2.0 }), Some(BudgetLimit::Tokens(10)));
        assert_eq!(budget.exceeded_by(TokensAndUsd { tokens: 10, usd: 1.5 }), Some(BudgetLimit::Usd(1.0)));
        assert_eq!(budget.exceeded_by(TokensAndUsd { tokens: 10, usd: 1.0 }), None);
    }

    /// The bill of a request counts instead of its price, and is never added to it.
    #[test]
    fn bill_beats_price() {
        let price = Price { input: 10.0, ..Price::default() };
        let billed = Usage { cost_ticks: Some(5_000_000_000), ..usage(1_000_000) };
        let ended = |request, usage| LedgerEntry::Ended { request, account: usage_key("a"), usage, confirmed: true };
        let spend = |entries: &[LedgerEntry]| totals(entries).spent()[&usage_key("a")];
        let only_billed = spend(&[ended(1, billed)]);
        assert_eq!((only_billed.usd(Some(&price)), only_billed.usd(None)), (Some(0.5), Some(0.5)));
        assert!(!only_billed.is_unpriced(None));
        let both = spend(&[ended(1, billed), ended(2, usage(1_000_000))]);
        assert_eq!((both.usd(Some(&price)), both.usd(None)), (Some(10.5), Some(0.5)));
        assert!(both.is_unpriced(None) && !both.is_unpriced(Some(&price)));
        let priced = spend(&[ended(2, usage(1_000_000))]);
        assert_eq!((priced.usd(Some(&price)), priced.usd(None)), (Some(10.0), None));
        let free = spend(&[ended(1, Usage { cost_ticks: Some(0), ..usage(1_000_000) })]);
        assert_eq!((free.usd(Some(&price)), free.usage.total()), (Some(0.0), 1_000_000));
    }

    proptest! {
        /// Folding the first records of a ledger into sums keeps its totals.
        #[test]
        fn folded_ledger_keeps_totals(steps in proptest::collection::vec((0u8..4, 0u64..6, 0u64..1000), 0..60), at in 0usize..60) {
            let entries: Vec<LedgerEntry> = steps.iter().map(|(kind, request, tokens)| {
                let task = (tokens % 3 > 0).then_some(TaskId(tokens % 3));
                let account = UsageKey { task, ..usage_key(if request % 2 == 0 { "a" } else { "b" }) };
                let cost_ticks = (tokens % 3 == 0).then_some(tokens * 7);
                let usage = Usage { cost_ticks, ..usage(*tokens) };
                match kind {
                    0 => LedgerEntry::Sent { request: *request, account, usage },
                    1 => LedgerEntry::Ended { request: *request, account, usage, confirmed: tokens % 2 == 0 },
                    2 => LedgerEntry::Sum { account, requests: 2, unconfirmed: 1, usage, billed: Usage::default() },
                    _ => LedgerEntry::Reset { team: if *tokens < 900 { "other".into() } else { "t".into() } },
                }
            }).collect();
            let at = at.min(entries.len());
            let folded = [totals(&entries[..at]).entries(), entries[at..].to_vec()].concat();
            let (folded, whole) = (totals(&folded), totals(&entries));
            prop_assert_eq!(folded.spent(), whole.spent());
            prop_assert_eq!(folded.open, whole.open);
        }
    }
}
