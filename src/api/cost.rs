//! The usage of a team: tokens and cost for each member and model, and its budgets.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::lead_status::LeadStatus;
use super::refusal::ApiResult;
use super::team::choice_refusal;
use super::workspace::Workspace;
use crate::domain::log::snapshot::is_default;
use crate::domain::task::TaskId;
use crate::domain::team::budget::{Budget, LedgerEntry, LedgerRecord, LedgerTotals, Prices, Spend, TokensAndUsd};
use crate::domain::team::state::{Mode, SharedState};
use crate::domain::team::state_note::StateNote;
use crate::domain::team::team_spec::{MemberSpec, TeamSpec};
use crate::ports::Stores;
use crate::stores::workspace::OpenMode;

/// The note of the budget that ended this team; `None` if there is none, or if it was raised or reset since.
///
/// # Errors
/// The ledger cannot be read.
pub async fn spent_budget(stores: &Stores, team: &TeamSpec, state: &SharedState) -> ApiResult<Option<String>> {
    let is_pause_of_team = state.desired == Mode::Pause && state.team().as_deref() == Some(team.name.as_str());
    let (limit, is_too_small) = match state.reason() {
        StateNote::BudgetSpent { limit, .. } => (limit, false),
        StateNote::BudgetTooSmall { limit, .. } => (limit, true),
        _ => return Ok(None),
    };
    if !is_pause_of_team || !team.has_budget_limit(&limit) {
        return Ok(None);
    }
    if is_too_small {
        return Ok(Some(state.note.clone()));
    }
    let totals = stores.ledger.read().await?;
    let has_used = totals.spent().keys().any(|account| account.team == team.name.as_str());
    Ok(has_used.then(|| state.note.clone()))
}

/// The name of the lead during a reset. No team can start meanwhile.
const RESETTER: &str = "brigade-cost";

/// Returns the usage of this team, else of the running one, else of the last one, over all launches in the workspace.
///
/// # Errors
/// The team does not exist, or the workspace cannot be read.
pub async fn cost(workspace: &Workspace, team: Option<&str>) -> ApiResult<CostView> {
    let lead_status = LeadStatus::with_state(workspace).await?;
    let (team, spec) = chosen_team(workspace, &lead_status, team)?;
    let mut totals = workspace.stores(OpenMode::ReadOnly).await?.ledger.read().await?;
    if lead_status.lead.is_none() {
        // A kill cut them off. The next launch records the same.
        totals.settle_open_requests();
    }
    if spec.is_none() && !totals.spent().keys().any(|account| account.team == team) {
        workspace.location.config()?.select(Some(&team))?;
    }
    let (budgets, prices) = spec.as_ref().map(|spec| (Budgets::of(spec), spec.prices.clone())).unwrap_or_default();
    let mut view = CostView::of(&team, &totals, budgets, &prices);
    if let Some(spec) = &spec {
        view.mark_fallbacks(spec);
    }
    Ok(view)
}

/// Resets the counters of a team, chosen as by [`cost`]. They are reset when this returns; after a crash before that, they are as before.
///
/// # Errors
/// A team runs, or the team does not exist.
pub async fn reset(workspace: &Workspace, team: Option<&str>) -> ApiResult<()> {
    let lead_status = LeadStatus::with_state(workspace).await?;
    let (team, _) = chosen_team(workspace, &lead_status, team)?;
    lead_status.refuse_if_running("reset the counters")?;
    let led = workspace.open(OpenMode::Lead { team: RESETTER.to_owned() }).await?;
    let line = LedgerRecord::new(workspace.now(), LedgerEntry::Reset { team });
    led.stores.ledger.append(vec![line]).await?;
    Ok(())
}

/// The name of the team, and its config if that is valid.
fn chosen_team(
    workspace: &Workspace,
    lead_status: &LeadStatus,
    named: Option<&str>,
) -> ApiResult<(String, Option<TeamSpec>)> {
    let name = lead_status.team_name(named.map(str::to_owned).as_ref());
    let spec = workspace.location.team_if_valid(name.as_deref());
    match spec.as_ref().map(|spec| spec.name.to_string()).or(name) {
        Some(team) => Ok((team, spec)),
        None => Err(choice_refusal(workspace)),
    }
}

/// The usage of a team.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CostView {
    /// The name of the team.
    pub team: String,
    /// The usage by member and model.
    pub accounts: Vec<AccountView>,
    /// All tokens.
    pub tokens: u64,
    /// The cost of all usage with a bill or a known price, in US dollars.
    pub usd: f64,
    /// The budget of the team.
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
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct AccountView {
    /// The name of the member.
    pub teammate: String,
    /// The model.
    pub model: String,
    /// Its requests and tokens.
    #[serde(flatten)]
    pub spend: Spend,
    /// The cost in US dollars; `None` if neither a bill nor the price is known.
    pub usd: Option<f64>,
    /// True if the model answered in place of the member's own one.
    #[serde(skip_serializing_if = "is_default")]
    pub is_fallback: bool,
}

/// The budget of a member, and its usage.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct MemberBudgetView {
    /// The name of the member.
    pub teammate: String,
    /// The tokens it has used.
    pub tokens: u64,
    /// The cost of its usage, in US dollars.
    pub usd: f64,
    /// The most that it may use.
    pub budget: Budget,
}

/// The tokens of all attempts of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TaskTokensView {
    /// The number of the task.
    pub task: TaskId,
    /// The tokens it has used.
    pub tokens: u64,
}

/// The budgets of a team and of its members.
#[derive(Debug, Clone, Default)]
pub struct Budgets {
    /// The budget of the team.
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

    /// The requests whose usage no answer reported.
    pub fn unconfirmed(&self) -> u64 {
        self.accounts.iter().map(|account| account.spend.unconfirmed).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::agent::transcript::Usage;
    use crate::domain::team::budget::UsageKey;

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
