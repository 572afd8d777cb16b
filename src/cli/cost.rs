//! `brigade cost`.

use super::context::Context;
use super::error::CliResult;
use super::output::CommandAnswer;
use crate::api::cost::{Budgets, CostView};
use crate::api::lead_status::LeadStatus;
use crate::domain::team::budget::{LedgerEntry, LedgerRecord};
use crate::stores::workspace::OpenMode;
use crate::ui::cost::render;
use crate::ui::text::one_line;

/// The name of the lead during a reset. No team can start meanwhile.
const RESETTER: &str = "brigade-cost";

/// Show the tokens and dollars that a team has used
///
/// It counts all requests of all launches in this workspace. The budget is compared with this count. The prices are in the
/// config, under `prices`.
#[derive(Debug, clap::Args)]
pub struct Cost {
    /// The team [default: the running team, or the last one]
    team: Option<String>,
    /// Reset the counters; the team must be stopped
    #[arg(long)]
    reset: bool,
}

impl Cost {
    /// Shows the usage, or resets it.
    ///
    /// # Errors
    /// The team does not exist, or it runs and `--reset` is given.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let lead_status = LeadStatus::with_state(&context.workspace).await?;
        let name = lead_status.team_name(self.team.as_ref());
        let spec = context.workspace.location.team_if_valid(name.as_deref());
        let Some(team) = spec.as_ref().map(|spec| spec.name.to_string()).or(name) else {
            return Err(super::team::team_choice_error(context));
        };
        if self.reset {
            reset(context, &lead_status, &team).await?;
        }
        let mut totals = context.workspace.stores(OpenMode::ReadOnly).await?.ledger.read().await?;
        if lead_status.lead.is_none() {
            // A kill cut them off. The next launch records the same.
            totals.settle_open_requests();
        }
        if spec.is_none() && !totals.spent().keys().any(|account| account.team == team) {
            context.workspace.location.config()?.select(Some(&team))?;
        }
        let (budgets, prices) = spec.as_ref().map(|spec| (Budgets::of(spec), spec.prices.clone())).unwrap_or_default();
        let mut view = CostView::of(&team, &totals, budgets, &prices);
        if let Some(spec) = &spec {
            view.mark_fallbacks(spec);
        }
        context.output.answer(&view, || {
            let reset =
                if self.reset { format!("the counters of {} are reset\n", one_line(&team)) } else { String::new() };
            reset + &render(&view, context.output.columns)
        })
    }
}

async fn reset(context: &Context, lead_status: &LeadStatus, team: &str) -> CliResult<()> {
    lead_status.refuse_if_running("reset the counters")?;
    let led = context.workspace.open(OpenMode::Lead { team: RESETTER.to_owned() }).await?;
    let line = LedgerRecord::new(context.workspace.now(), LedgerEntry::Reset { team: team.to_owned() });
    led.stores.ledger.append(vec![line]).await?;
    Ok(())
}
