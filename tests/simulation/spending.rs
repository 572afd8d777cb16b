//! What the provider of a run counted, and what the ledger says of it: the budget is kept, and the ledger never says less.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use brigade::domain::spend::{Amount, Budget, Price, Prices};
use brigade::domain::transcript::Usage;
use brigade::stores::fs::FileSystem;
use brigade::stores::fs::simulated::SimulatedDisk;
use serde_json::Value;

use super::nature::WORKSPACE;
use super::plan::Setup;

/// What a model's tokens cost, whichever it is.
const PRICE: Price = Price { input: 3.0, output: 15.0, cache_read: 0.3, cache_write: 3.75 };
/// A budget nobody reaches.
const PLENTY: Budget = Budget { tokens: Some(1 << 40), usd: Some(1e6) };
/// The largest ledger that is read, in bytes.
const BYTES_MAX: u64 = 1 << 24;
/// Sums of dollars differ by less.
const USD_ROUNDED: f64 = 1e-6;

/// See the module.
#[derive(Default)]
pub struct Spending {
    /// What the team may use, as the person last said.
    budget: Budget,
    /// What was asked and answered since it was last counted anew.
    counted: Amount,
    said: Said,
    cuts: u64,
}

/// What the ledger says, as far as it was read.
#[derive(Default)]
struct Said {
    offset: u64,
    ended: Amount,
    open: BTreeMap<u64, Amount>,
    resets: u64,
}

impl Spending {
    pub fn new(setup: &Setup) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
        let budget = setup.budget.map_or_else(Budget::default, |allowance| Budget {
            tokens: allowance.tokens,
            usd: allowance.cents.map(|cents| cents as f64 / 100.0),
        });
        Self { budget, ..Self::default() }
    }

    pub fn budget(&self) -> Budget {
        self.budget
    }

    /// The prices as the team's config says them.
    pub fn prices(models: &[&str]) -> Prices {
        models.iter().map(|model| ((*model).to_owned(), PRICE)).collect()
    }

    /// The person allows half as much again.
    pub fn raise(&mut self) {
        self.budget.tokens = self.budget.tokens.map(|tokens| tokens * 3 / 2);
        self.budget.usd = self.budget.usd.map(|usd| usd * 1.5);
    }

    /// The person allows whatever is needed.
    pub fn allow_all(&mut self) {
        self.budget.tokens = self.budget.tokens.and(PLENTY.tokens);
        self.budget.usd = self.budget.usd.and(PLENTY.usd);
    }

    /// How often the power was cut.
    pub fn cuts(&self) -> u64 {
        self.cuts
    }

    /// The provider has worked so much for the team, by a request that was sent after so many power cuts. Says what is wrong with that.
    pub fn bill(&mut self, usage: Usage, cuts: u64) -> Option<String> {
        if cuts != self.cuts {
            return None;
        }
        self.counted += Amount { tokens: usage.total(), usd: PRICE.of(usage) };
        let Amount { tokens, usd } = self.counted;
        let is_over = self.budget.tokens.is_some_and(|bound| tokens > bound)
            || self.budget.usd.is_some_and(|bound| usd > bound + USD_ROUNDED);
        is_over.then(|| format!("a budget stops before it is spent: {tokens} tokens, ${usd:.4} of {:?}", self.budget))
    }

    /// Reads on in the ledger. Says what is wrong with it.
    pub fn check(&mut self, disk: &SimulatedDisk) -> Option<String> {
        let resets = self.said.resets;
        self.said.read_on(disk);
        if self.said.resets != resets {
            // Nobody leads meanwhile, so nothing was used since.
            self.counted = Amount::default();
        }
        let (said, counted) = (self.said.all(), self.counted);
        let is_less = said.tokens < counted.tokens || said.usd + USD_ROUNDED < counted.usd;
        is_less.then(|| {
            format!(
                "a budget stops before it is spent, the ledger says {} tokens, ${:.4}; used were {}, ${:.4}",
                said.tokens, said.usd, counted.tokens, counted.usd
            )
        })
    }

    /// A power cut may take the last lines of the ledger, and what they tell of is forgotten.
    pub fn power_was_cut(&mut self, disk: &SimulatedDisk) {
        self.cuts += 1;
        self.said = Said::default();
        self.said.read_on(disk);
        let said = self.said.all();
        self.counted.tokens = self.counted.tokens.min(said.tokens);
        self.counted.usd = self.counted.usd.min(said.usd);
    }
}

impl Said {
    fn all(&self) -> Amount {
        self.open.values().fold(self.ended, |sum, open| sum + *open)
    }

    fn read_on(&mut self, disk: &SimulatedDisk) {
        let path: PathBuf = Path::new(WORKSPACE).join(".team/ledger.jsonl");
        let Ok((bytes, _)) = disk.read(&path, self.offset, BYTES_MAX) else { return };
        let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else { return };
        self.offset += end as u64 + 1;
        for line in bytes[..=end].split(|byte| *byte == b'\n') {
            // A torn line says nothing.
            if let Ok(line) = serde_json::from_slice::<Value>(line) {
                self.take(&line);
            }
        }
    }

    fn take(&mut self, line: &Value) {
        let request = line["request"].as_u64().unwrap_or_default();
        match line["state"].as_str() {
            Some("sent") => {
                self.open.insert(request, amount_of(&line["usage"]));
            }
            Some("ended") => {
                self.open.remove(&request);
                self.ended += amount_of(&line["usage"]);
            }
            Some("reset") => {
                (self.ended, self.resets) = (Amount::default(), self.resets + 1);
                self.open.clear();
            }
            _ => {}
        }
    }
}

fn amount_of(usage: &Value) -> Amount {
    let tokens = |kind: &str| usage[kind].as_u64().unwrap_or(0);
    let usage = Usage {
        input_tokens: tokens("input_tokens"),
        output_tokens: tokens("output_tokens"),
        cache_read_tokens: tokens("cache_read_tokens"),
        cache_write_tokens: tokens("cache_write_tokens"),
    };
    Amount { tokens: usage.total(), usd: PRICE.of(usage) }
}
