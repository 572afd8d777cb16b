//! The view of a team's usage: tokens and cost for each member and model, and the rest of the budget.

use std::fmt::Write as _;

use serde::Serialize;

use super::style::{BAD, BOLD, DIM, PLAIN, paint};
use super::table::{Cell, Table};
use super::text::{count, one_line, wrap};
use crate::domain::budget::{Budget, Prices, Spend, TokensAndUsd, UsageKey};

/// The usage of a team.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CostView {
    pub team: String,
    pub accounts: Vec<AccountView>,
    /// All tokens.
    pub tokens: u64,
    /// The cost of all usage with a known price, in US dollars.
    pub usd: f64,
    pub budget: Budget,
    /// Requests in progress.
    pub open_requests: usize,
    /// Models without a price in the config.
    pub unpriced: Vec<String>,
}

/// The usage of one model by one member.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AccountView {
    pub teammate: String,
    pub model: String,
    #[serde(flatten)]
    pub spend: Spend,
    /// The cost in US dollars; `None` if the price is not known.
    pub usd: Option<f64>,
}

impl CostView {
    /// Returns the usage of `team`. `spent` are the totals of the ledger, for all teams.
    pub fn of<'a>(
        team: &str,
        spent: impl Iterator<Item = (&'a UsageKey, &'a Spend)>,
        open_requests: usize,
        budget: Budget,
        prices: &Prices,
    ) -> Self {
        let mut total = TokensAndUsd::default();
        let mut unpriced = Vec::new();
        let mut accounts = Vec::new();
        for (account, spend) in spent.filter(|(account, _)| account.team == team) {
            let usd = prices.get(&account.model).map(|price| price.of(spend.usage));
            if usd.is_none() && !unpriced.contains(&account.model) {
                unpriced.push(account.model.clone());
            }
            total += TokensAndUsd { tokens: spend.usage.total(), usd: usd.unwrap_or(0.0) };
            accounts.push(AccountView {
                teammate: account.teammate.clone(),
                model: account.model.clone(),
                spend: *spend,
                usd,
            });
        }
        Self { team: team.to_owned(), accounts, tokens: total.tokens, usd: total.usd, budget, open_requests, unpriced }
    }

    fn unconfirmed(&self) -> u64 {
        self.accounts.iter().map(|account| account.spend.unconfirmed).sum()
    }
}

pub fn render(view: &CostView, columns: usize) -> String {
    let mut out = format!("{} has used {}\n", paint(BOLD, &one_line(&view.team)), total(view));
    let tokens = view.budget.tokens.map(|tokens| (share_of_tokens(view), format!("{} tokens", grouped(tokens))));
    let usd = view.budget.usd.map(|usd| (share(view.usd, view.budget.usd), format!("${usd:.2}")));
    for (share, limit) in tokens.into_iter().chain(usd) {
        let style = if share >= 1.0 { BAD } else { PLAIN };
        let _ = writeln!(out, "{}", paint(style, &format!("{:.1} % of the budget of {limit}", share * 100.0)));
    }
    if !view.accounts.is_empty() {
        out.push('\n');
        out.push_str(&table(view).render(columns));
    }
    let mut notes = Vec::new();
    if view.unconfirmed() > 0 {
        let requests = count(usize::try_from(view.unconfirmed()).unwrap_or(usize::MAX), "request");
        notes.push(format!(
            "{requests} without reported usage: estimated. Those that a kill or an error cut off count as the amount reserved for \
             them, because the provider may have billed it."
        ));
    }
    if view.open_requests > 0 {
        notes.push(format!("{} in progress, not counted yet.", count(view.open_requests, "request")));
    }
    if view.usd > 0.0 && !view.unpriced.is_empty() {
        notes.push(format!("No price in the config for: {}.", view.unpriced.join(", ")));
    }
    for note in notes {
        let _ = writeln!(out, "{}", paint(DIM, &wrap(&one_line(&note), columns, 0)));
    }
    out
}

fn total(view: &CostView) -> String {
    let usd = if view.usd > 0.0 { format!(", {}", dollars(view.usd)) } else { String::new() };
    format!("{} tokens{usd}", grouped(view.tokens))
}

#[expect(clippy::cast_precision_loss, reason = "a share for people")]
fn share_of_tokens(view: &CostView) -> f64 {
    share(view.tokens as f64, view.budget.tokens.map(|tokens| tokens as f64))
}

fn share(used: f64, limit: Option<f64>) -> f64 {
    limit.map_or(0.0, |limit| if limit > 0.0 { used / limit } else { 1.0 })
}

fn table(view: &CostView) -> Table {
    let mut table = Table::new(&["NAME", "MODEL", "REQUESTS", "INPUT", "CACHE READ", "CACHE WRITE", "OUTPUT", "COST"])
        .numbers(&["REQUESTS", "INPUT", "CACHE READ", "CACHE WRITE", "OUTPUT", "COST"])
        .flexible(&["MODEL"]);
    let number = |number: u64| if number == 0 { Cell::from("") } else { Cell::from(grouped(number)) };
    for account in &view.accounts {
        let usage = account.spend.usage;
        table.row(vec![
            Cell::new(&account.teammate, BOLD),
            Cell::new(&account.model, DIM),
            number(account.spend.requests),
            number(usage.input_tokens),
            number(usage.cache_read_tokens),
            number(usage.cache_write_tokens),
            number(usage.output_tokens),
            account.usd.map_or_else(|| Cell::from(""), |usd| Cell::from(dollars(usd))),
        ]);
    }
    table
}

/// Returns an amount in dollars, below $10 with four decimals.
pub fn dollars(usd: f64) -> String {
    if usd < 10.0 { format!("${usd:.4}") } else { format!("${usd:.2}") }
}

/// Returns a number with commas between groups of three digits.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::budget::Price;
    use crate::domain::transcript::Usage;

    #[test]
    fn number_is_grouped_by_thousands() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn cost_view_lists_members_models_and_budget_left() {
        let usage =
            Usage { input_tokens: 120_000, output_tokens: 9_500, cache_read_tokens: 2_400_000, cache_write_tokens: 0 };
        let account = |teammate: &str, model: &str| UsageKey {
            team: "port".into(),
            teammate: teammate.into(),
            model: model.into(),
        };
        let spent = [
            (account("alice", "big"), Spend { requests: 31, unconfirmed: 0, usage }),
            (
                account("lead", "small"),
                Spend { requests: 4, unconfirmed: 1, usage: Usage { input_tokens: 7, ..Usage::default() } },
            ),
            (account("other", "big"), Spend::default()),
        ];
        let prices =
            Prices::from([("big".into(), Price { input: 3.0, output: 15.0, cache_read: 0.3, cache_write: 0.0 })]);
        let budget = Budget { tokens: Some(2_000_000), usd: Some(20.0) };
        let of_port = spent[..2].iter().map(|(account, spend)| (account, spend));
        let view = CostView::of("port", of_port, 1, budget, &prices);
        insta::assert_snapshot!(anstream::adapter::strip_str(&render(&view, 100)).to_string());
        let empty = CostView::of("port", std::iter::empty(), 0, Budget::default(), &prices);
        assert_eq!(anstream::adapter::strip_str(&render(&empty, 100)).to_string(), "port has used 0 tokens\n");
    }
}
