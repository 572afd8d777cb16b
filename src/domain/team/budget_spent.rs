//! A refused request, and the budget that does not allow it.

use super::budget::{BudgetLimit, BudgetScope, CapReached, TokensAndUsd};
use super::state_note::StateNote;

/// Returns the name of a member's limit in the note of the desired state.
pub fn limit_of_member(limit: &str, member: &str) -> String {
    format!("{limit} of {member}")
}

/// A budget does not allow a request.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{}", self.sentence())]
pub struct BudgetSpent {
    /// The usage that the budget limits.
    pub scope: BudgetScope,
    /// The limit, with its unit.
    pub limit: String,
    /// The usage so far.
    pub spent: String,
    /// The most that the refused request could use.
    pub most: String,
    /// True if the first request is already too large for the budget.
    pub is_unused: bool,
    /// The limit as a cap, if it is one of tokens.
    pub cap: Option<CapReached>,
}

impl BudgetSpent {
    /// Returns the note of the desired state that this budget ends the team with.
    pub fn state_note(&self) -> StateNote {
        let limit = match &self.scope {
            BudgetScope::Team | BudgetScope::Task(_) => self.limit.clone(),
            BudgetScope::Member(name) => limit_of_member(&self.limit, name),
        };
        let Self { spent, most, .. } = self;
        if self.is_unused {
            return StateNote::BudgetTooSmall { limit, details: format!(": one request could use {most}") };
        }
        let details = format!(": {spent} were used, and the next request could use {most} more");
        StateNote::BudgetSpent { limit, details }
    }

    fn sentence(&self) -> String {
        let Self { limit, spent, most, .. } = self;
        match self.scope {
            BudgetScope::Team | BudgetScope::Member(_) => self.state_note().to_file_text(),
            BudgetScope::Task(_) => format!(
                "the task reached its cap of {limit}: its attempts used {spent}, and the next request could use {most} more"
            ),
        }
    }

    /// Creates the refusal of a request with this price, after this use.
    pub fn new(scope: BudgetScope, bound: BudgetLimit, used: TokensAndUsd, price: TokensAndUsd) -> Self {
        let is_unused = used == TokensAndUsd::default();
        let tokens_needed = (used + price).tokens;
        let (spent, most, cap) = match bound {
            BudgetLimit::Tokens(tokens_max) => {
                let cap = CapReached { tokens_max, tokens_needed };
                (used.tokens.to_string(), price.tokens.to_string(), Some(cap))
            }
            BudgetLimit::Usd(_) => (format!("${:.4}", used.usd), format!("${:.4}", price.usd), None),
        };
        Self { scope, limit: bound.to_string(), spent, most, is_unused, cap }
    }
}
