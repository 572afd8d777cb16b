//! The view of a team's usage: tokens and cost for each member and model, and the rest of the budget.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::style::{BAD, BOLD, DIM, PLAIN, paint};
use super::table::{Cell, Table};
use super::text::{count, one_line, wrap};
use crate::domain::budget::{Budget, LedgerTotals, Prices, Spend, TokensAndUsd};
use crate::domain::snapshot::is_default;
use crate::domain::task::TaskId;
use crate::domain::team_spec::{MemberSpec, TeamSpec};

/// The usage of a team.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CostView {
    pub team: String,
    pub accounts: Vec<AccountView>,
    /// All tokens.
    pub tokens: u64,
    /// The cost of all usage with a bill or a known price, in US dollars.
    pub usd: f64,
    pub budget: Budget,
    /// The budgets of members.
    pub member_budgets: Vec<MemberBudgetView>,
    /// The tokens of each task, over all teams of the workspace.
    pub tasks: Vec<TaskTokensView>,
    /// Requests in progress.
    pub open_requests: usize,
    /// Models with usage that has neither a bill nor a price in the config.
    pub unpriced: Vec<String>,
}

/// The usage of one model by one member.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AccountView {
    pub teammate: String,
    pub model: String,
    #[serde(flatten)]
    pub spend: Spend,
    /// The cost in US dollars; `None` if neither a bill nor the price is known.
    pub usd: Option<f64>,
    /// True if the model answered in place of the member's own one.
    #[serde(skip_serializing_if = "is_default")]
    pub is_fallback: bool,
}

/// The budget of a member, and its usage.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemberBudgetView {
    pub teammate: String,
    pub tokens: u64,
    pub usd: f64,
    pub budget: Budget,
}

/// The tokens of all attempts of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TaskTokensView {
    pub task: TaskId,
    pub tokens: u64,
}

/// The budgets of a team and of its members.
#[derive(Debug, Clone, Default)]
pub struct Budgets {
    pub team: Budget,
    /// Those of the members that have one, by name.
    pub members: Vec<(String, Budget)>,
}

impl Budgets {
    /// Returns the budgets of a config.
    pub fn of(spec: &TeamSpec) -> Self {
        let members = std::iter::once(&spec.lead).chain(&spec.members).filter(|member| member.budget.is_set());
        Self { team: spec.budget, members: members.map(|member| (member.name.to_string(), member.budget)).collect() }
    }
}

impl CostView {
    /// Returns the usage of `team`. The ledger has that of all teams.
    pub fn of(team: &str, totals: &LedgerTotals, budgets: Budgets, prices: &Prices) -> Self {
        let mut total = TokensAndUsd::default();
        let mut unpriced = Vec::new();
        let mut accounts: BTreeMap<(&str, &str), AccountView> = BTreeMap::new();
        for (account, spend) in totals.spent().iter().filter(|(account, _)| account.team == team) {
            let price = prices.get(&account.model);
            let usd = spend.usd(price);
            if spend.is_unpriced(price) && !unpriced.contains(&account.model) {
                unpriced.push(account.model.clone());
            }
            total += TokensAndUsd { tokens: spend.usage.total(), usd: usd.unwrap_or(0.0) };
            let view = accounts.entry((&account.teammate, &account.model)).or_insert_with(|| AccountView {
                teammate: account.teammate.clone(),
                model: account.model.clone(),
                spend: Spend::default(),
                usd: None,
                is_fallback: false,
            });
            view.spend.add(*spend);
            view.usd = view.spend.usd(price);
        }
        let accounts: Vec<AccountView> = accounts.into_values().collect();
        let member_budgets = budgets.members.into_iter().map(|(teammate, budget)| {
            let own = accounts.iter().filter(|account| account.teammate == teammate);
            let used = own.fold(TokensAndUsd::default(), |sum, account| {
                sum + TokensAndUsd { tokens: account.spend.usage.total(), usd: account.usd.unwrap_or(0.0) }
            });
            MemberBudgetView { teammate, tokens: used.tokens, usd: used.usd, budget }
        });
        let tasks = totals.tokens_by_task().into_iter().map(|(task, tokens)| TaskTokensView { task, tokens });
        Self {
            team: team.to_owned(),
            member_budgets: member_budgets.collect(),
            tasks: tasks.collect(),
            accounts,
            tokens: total.tokens,
            usd: total.usd,
            budget: budgets.team,
            open_requests: totals.open_requests(team),
            unpriced,
        }
    }

    /// Marks the usage of models that this team has as fallbacks of the member.
    pub fn mark_fallbacks(&mut self, team: &TeamSpec) {
        for account in &mut self.accounts {
            let member =
                std::iter::once(&team.lead).chain(&team.members).find(|one| one.name.is_same(&account.teammate));
            let Some(MemberSpec { model, .. }) = member else { continue };
            account.is_fallback = model.usage_name() != account.model
                && model.fallback.iter().any(|fallback| fallback.usage_name() == account.model);
        }
    }

    fn unconfirmed(&self) -> u64 {
        self.accounts.iter().map(|account| account.spend.unconfirmed).sum()
    }
}

pub fn render(view: &CostView, columns: usize) -> String {
    let mut out = format!("{} has used {}\n", paint(BOLD, &one_line(&view.team)), total(view));
    write_shares(&mut out, view.budget, (view.tokens, view.usd), "");
    for member in &view.member_budgets {
        let whose = format!(" of {}", one_line(&member.teammate));
        write_shares(&mut out, member.budget, (member.tokens, member.usd), &whose);
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
    for account in view.accounts.iter().filter(|account| account.is_fallback) {
        let requests = count(usize::try_from(account.spend.requests).unwrap_or(usize::MAX), "request");
        let (teammate, model) = (&account.teammate, &account.model);
        notes.push(format!("{model} is a fallback of {teammate}: {requests} while its own model gave no answer."));
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

/// Writes a line for each limit of a budget, with the used share of it.
#[expect(clippy::cast_precision_loss, reason = "a share for people")]
fn write_shares(out: &mut String, budget: Budget, (tokens, usd): (u64, f64), whose: &str) {
    let of_tokens =
        budget.tokens.map(|limit| (share(tokens as f64, limit as f64), format!("{} tokens", grouped(limit))));
    let of_usd = budget.usd.map(|limit| (share(usd, limit), format!("${limit:.2}")));
    for (share, limit) in of_tokens.into_iter().chain(of_usd) {
        let style = if share >= 1.0 { BAD } else { PLAIN };
        let text = format!("{:.1} % of the budget of {limit}{whose}", share * 100.0);
        let _ = writeln!(out, "{}", paint(style, &text));
    }
}

fn share(used: f64, limit: f64) -> f64 {
    if limit > 0.0 { used / limit } else { 1.0 }
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
    use crate::domain::budget::{LedgerEntry, Price, UsageKey};
    use crate::domain::transcript::Usage;

    #[test]
    fn number_is_grouped_by_thousands() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn cost_view_lists_members_models_and_budget_left() {
        let usage =
            Usage { input_tokens: 120_000, output_tokens: 9_500, cache_read_tokens: 2_400_000, ..Usage::default() };
        let mut totals = LedgerTotals::default();
        let mut add = |teammate: &str, model: &str, task: Option<u64>, spend: Spend| {
            let account = UsageKey {
                team: if teammate == "other" { "other".into() } else { "port".into() },
                teammate: teammate.into(),
                model: model.into(),
                task: task.map(TaskId),
            };
            let Spend { requests, unconfirmed, usage, billed } = spend;
            totals.apply(&LedgerEntry::Sum { account, requests, unconfirmed, usage, billed });
        };
        // The tasks of a member are one line.
        add(
            "alice",
            "big",
            Some(3),
            Spend {
                requests: 11,
                unconfirmed: 0,
                billed: Usage::default(),
                usage: Usage { input_tokens: 20_000, ..usage },
            },
        );
        let rest = Usage { input_tokens: 100_000, ..Usage::default() };
        add("alice", "big", None, Spend { requests: 20, unconfirmed: 0, billed: Usage::default(), usage: rest });
        let of_lead = Usage { input_tokens: 7, ..Usage::default() };
        add("lead", "small", None, Spend { requests: 4, unconfirmed: 1, billed: Usage::default(), usage: of_lead });
        add("other", "big", None, Spend::default());
        let account = UsageKey { team: "port".into(), teammate: "alice".into(), model: "big".into(), task: None };
        totals.apply(&LedgerEntry::Sent { request: 9, account, usage });
        let prices =
            Prices::from([("big".into(), Price { input: 3.0, output: 15.0, cache_read: 0.3, cache_write: 0.0 })]);
        let team = Budget { tokens: Some(2_000_000), usd: Some(20.0) };
        let members = vec![("alice".to_owned(), Budget { tokens: Some(5_000_000), usd: Some(1.0) })];
        let view = CostView::of("port", &totals, Budgets { team, members }, &prices);
        assert_eq!(view.tasks, [TaskTokensView { task: TaskId(3), tokens: 2_429_500 }]);
        insta::assert_snapshot!(anstream::adapter::strip_str(&render(&view, 100)).to_string());
        let empty = CostView::of("port", &LedgerTotals::default(), Budgets::default(), &prices);
        assert_eq!(anstream::adapter::strip_str(&render(&empty, 100)).to_string(), "port has used 0 tokens\n");
    }

    #[test]
    fn bill_is_kept_beside_usage_without_price() {
        let mut totals = LedgerTotals::default();
        let billed = Usage { input_tokens: 10, cost_ticks: Some(5_000_000_000), ..Usage::default() };
        let unbilled = Usage { input_tokens: 10, ..Usage::default() };
        for (task, usage) in [(1, unbilled), (2, billed), (3, unbilled)] {
            let account = UsageKey {
                team: "port".into(),
                teammate: "alice".into(),
                model: "big".into(),
                task: Some(TaskId(task)),
            };
            let Spend { requests, unconfirmed, usage, billed } = Spend::of_request(usage, true);
            totals.apply(&LedgerEntry::Sum { account, requests, unconfirmed, usage, billed });
        }
        let view = CostView::of("port", &totals, Budgets::default(), &Prices::default());
        assert_eq!((view.usd, view.accounts[0].usd), (0.5, Some(0.5)));
        assert_eq!(view.unpriced, ["big"]);
    }
}
