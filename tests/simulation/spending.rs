//! The usage that the provider counted, compared with the ledger: the budget is kept, and the ledger never records
//! less.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use brigade::domain::agent::transcript::Usage;
use brigade::domain::team::budget::{Budget, Price, Prices, TokensAndUsd};
use brigade::stores::fs::FileSystem;
use serde_json::Value;

use super::host::WORKSPACE;
use super::plan::Setup;
use super::world::MEMBERS;
use crate::testkit::simulated::SimulatedDisk;

/// The price of every model.
const PRICE: Price = Price { input: 3.0, output: 15.0, cache_read: 0.3, cache_write: 3.75 };
/// A budget that no run reaches.
const PLENTY: Budget = Budget { tokens: Some(1 << 40), usd: Some(1e6) };
/// The largest ledger that is read, in bytes.
const BYTES_MAX: u64 = 1 << 24;
/// Sums of dollars differ by less.
const USD_ROUNDED: f64 = 1e-6;

/// The provider's count and the ledger's.
#[derive(Default)]
pub struct SpendingChecks {
    /// The budget of the team that the person set last.
    budget: Budget,
    /// The budget of the first member that the person set last, in tokens.
    member_tokens: Option<u64>,
    /// The cap of each task that the person set last, in tokens.
    task_tokens: Option<u64>,
    /// The usage since the last reset.
    counted: TokensAndUsd,
    ledger: ReadLedger,
    cuts: u64,
}

/// The part of the ledger that has been read.
#[derive(Default)]
struct ReadLedger {
    offset: u64,
    ended: TokensAndUsd,
    open: BTreeMap<u64, LedgerUsage>,
    resets: u64,
    /// The tokens of each task.
    by_task: BTreeMap<u64, u64>,
    of_member: u64,
}

/// The usage of a request as the ledger has it.
#[derive(Default)]
struct LedgerUsage {
    amount: TokensAndUsd,
    is_of_member: bool,
}

impl SpendingChecks {
    pub fn new(setup: &Setup) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
        let budget = setup.budget.map_or_else(Budget::default, |allowance| Budget {
            tokens: allowance.tokens,
            usd: allowance.cents.map(|cents| cents as f64 / 100.0),
        });
        let (member_tokens, task_tokens) =
            setup.budget.map_or((None, None), |allowance| (allowance.member_tokens, allowance.task_tokens));
        Self { budget, member_tokens, task_tokens, ..Self::default() }
    }

    pub fn budget(&self) -> Budget {
        self.budget
    }

    /// The budget of the first member.
    pub fn member_budget(&self) -> Budget {
        Budget { tokens: self.member_tokens, usd: None }
    }

    /// The cap of each task, as the setting `task_tokens_max`.
    pub fn task_tokens_max(&self) -> u64 {
        self.task_tokens.unwrap_or_default()
    }

    /// The prices in the team's config.
    pub fn prices(models: &[&str]) -> Prices {
        models.iter().map(|model| ((*model).to_owned(), PRICE)).collect()
    }

    /// The person raises all budgets by half.
    pub fn raise(&mut self) {
        for tokens in [&mut self.budget.tokens, &mut self.member_tokens, &mut self.task_tokens] {
            *tokens = tokens.map(|tokens| tokens * 3 / 2);
        }
        self.budget.usd = self.budget.usd.map(|usd| usd * 1.5);
    }

    /// The person removes all limits.
    pub fn allow_all(&mut self) {
        self.budget.tokens = self.budget.tokens.and(PLENTY.tokens);
        (self.member_tokens, self.task_tokens) = (None, None);
        self.budget.usd = self.budget.usd.and(PLENTY.usd);
    }

    /// The number of power cuts.
    pub fn cuts(&self) -> u64 {
        self.cuts
    }

    /// The provider counts this usage, for a request sent after this many power cuts. Returns the violation, if any.
    pub fn bill(&mut self, usage: Usage, cuts: u64) -> Option<String> {
        if cuts != self.cuts {
            return None;
        }
        self.counted += TokensAndUsd { tokens: usage.total(), usd: PRICE.of(usage) };
        let TokensAndUsd { tokens, usd } = self.counted;
        let is_over = self.budget.tokens.is_some_and(|bound| tokens > bound)
            || self.budget.usd.is_some_and(|bound| usd > bound + USD_ROUNDED);
        is_over.then(|| format!("budget not exceeded: {tokens} tokens, ${usd:.4} of {:?}", self.budget))
    }

    /// Reads the new part of the ledger. Returns the violation, if any.
    pub fn check(&mut self, disk: &SimulatedDisk) -> Option<String> {
        let resets = self.ledger.resets;
        self.ledger.read_new_lines(disk);
        if self.ledger.resets != resets {
            // No lead runs during a reset, so no usage was counted after it.
            self.counted = TokensAndUsd::default();
        }
        let of_member = (MEMBERS[0].to_owned(), self.ledger.of_member(), self.member_tokens);
        let of_tasks = self.ledger.by_task.iter().map(|(task, tokens)| (format!("#{task}"), *tokens, self.task_tokens));
        for (who, tokens, bound) in of_tasks.chain([of_member]) {
            if bound.is_some_and(|bound| tokens > bound) {
                return Some(format!("budget not exceeded, the ledger says {tokens} tokens of {bound:?} for {who}"));
            }
        }
        let (recorded, counted) = (self.ledger.all(), self.counted);
        let is_less = recorded.tokens < counted.tokens || recorded.usd + USD_ROUNDED < counted.usd;
        is_less.then(|| {
            format!(
                "budget not exceeded, the ledger says {} tokens, ${:.4}; used were {}, ${:.4}",
                recorded.tokens, recorded.usd, counted.tokens, counted.usd
            )
        })
    }

    /// A power cut may undo the last lines of the ledger; their usage is forgotten.
    pub fn power_was_cut(&mut self, disk: &SimulatedDisk) {
        self.cuts += 1;
        self.ledger = ReadLedger::default();
        self.ledger.read_new_lines(disk);
        let recorded = self.ledger.all();
        self.counted.tokens = self.counted.tokens.min(recorded.tokens);
        self.counted.usd = self.counted.usd.min(recorded.usd);
    }
}

impl ReadLedger {
    fn all(&self) -> TokensAndUsd {
        self.open.values().fold(self.ended, |sum, open| sum + open.amount)
    }

    fn of_member(&self) -> u64 {
        let open = self.open.values().filter(|open| open.is_of_member);
        self.of_member + open.map(|open| open.amount.tokens).sum::<u64>()
    }

    fn read_new_lines(&mut self, disk: &SimulatedDisk) {
        let path: PathBuf = Path::new(WORKSPACE).join(".team/ledger.jsonl");
        let Ok((bytes, _)) = disk.read(&path, self.offset, BYTES_MAX) else { return };
        let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else { return };
        self.offset += end as u64 + 1;
        for line in bytes[..=end].split(|byte| *byte == b'\n') {
            // A torn line has no content.
            if let Ok(line) = serde_json::from_slice::<Value>(line) {
                self.read_line(&line);
            }
        }
    }

    fn read_line(&mut self, line: &Value) {
        let request = line["request"].as_u64().unwrap_or_default();
        let (task, is_of_member) = (line["task"].as_u64(), line["teammate"] == MEMBERS[0]);
        match line["state"].as_str() {
            Some("sent") => {
                let usage = LedgerUsage { amount: amount_of(&line["usage"]), is_of_member };
                self.open.insert(request, usage);
            }
            Some("ended") => {
                self.open.remove(&request);
                let amount = amount_of(&line["usage"]);
                self.ended += amount;
                if let Some(task) = task {
                    *self.by_task.entry(task).or_default() += amount.tokens;
                }
                if is_of_member {
                    self.of_member += amount.tokens;
                }
            }
            Some("reset") => {
                (self.ended, self.resets) = (TokensAndUsd::default(), self.resets + 1);
                self.open.clear();
                self.by_task.clear();
                self.of_member = 0;
            }
            _ => {}
        }
    }
}

fn amount_of(usage: &Value) -> TokensAndUsd {
    let tokens = |kind: &str| usage[kind].as_u64().unwrap_or(0);
    let usage = Usage {
        input_tokens: tokens("input_tokens"),
        output_tokens: tokens("output_tokens"),
        cache_read_tokens: tokens("cache_read_tokens"),
        cache_write_tokens: tokens("cache_write_tokens"),
        ..Usage::default()
    };
    TokensAndUsd { tokens: usage.total(), usd: PRICE.of(usage) }
}
