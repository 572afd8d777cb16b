//! The view of a team's usage: tokens and cost for each member and model, and the rest of the budget.

use std::fmt::Write as _;

use super::lines::wrap;
use super::style::{BAD, BOLD, DIM, PLAIN, paint};
use super::table::{Cell, Table};
use crate::api::cost::CostView;
use crate::domain::team::budget::Budget;
use crate::domain::text::one_line;
use crate::domain::text::units::count;

/// Returns the usage as text, at most `columns` wide.
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
    use crate::api::cost::{Budgets, TaskTokensView};
    use crate::domain::agent::transcript::Usage;
    use crate::domain::task::TaskId;
    use crate::domain::team::budget::{LedgerEntry, LedgerTotals, Price, Prices, Spend, UsageKey};

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
}
