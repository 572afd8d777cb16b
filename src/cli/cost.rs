//! `brigade cost`.

use std::sync::Arc;

use super::context::Context;
use super::error::{CliError, CliResult};
use super::exit::Exit;
use super::output::Answer;
use super::running::Running;
use crate::domain::spend::{LedgerEntry, LedgerLine};
use crate::domain::state::SharedState;
use crate::stores::file::workers::Incarnation;
use crate::stores::file::workers::lead::occupy;
use crate::stores::fs::RealFileSystem;
use crate::stores::open::Purpose;
use crate::ui::cost::{CostView, render};
use crate::ui::text::one_line;

/// The name under which a workspace is held while its ledger is changed, so that no team starts meanwhile.
const RESETTER: &str = "brigade-cost";

/// Show what a team has used: tokens, and what they cost
///
/// It counts every request of every launch in this workspace, and is what the budget is held against. What tokens cost is
/// known from `prices` in the config.
#[derive(Debug, clap::Args)]
pub struct Cost {
    /// The team [default: the one that runs, or ran last]
    team: Option<String>,
    /// Begin to count anew, from nought; the team must not run
    #[arg(long)]
    reset: bool,
}

impl Cost {
    /// Shows what was used, or has it counted anew.
    ///
    /// # Errors
    /// There is no such team, or it runs.
    pub async fn run(self, context: &Context) -> CliResult<Answer> {
        let running = context.running().await?;
        let said = running.state.as_ref().and_then(SharedState::team).filter(|_| self.team.is_none());
        let name = self.team.clone().or_else(|| running.team.clone()).or(said);
        let spec = context.team_if_valid(name.as_deref());
        let Some(team) = spec.as_ref().map(|spec| spec.name.to_string()).or(name) else {
            return Err(super::team::which_team(context));
        };
        if self.reset {
            reset(context, &running, &team).await?;
        }
        let book = context.stores(Purpose::Look).await?.ledger.read().await?;
        if spec.is_none() && !book.spent().keys().any(|account| account.team == team) {
            context.config()?.select(Some(&team))?;
        }
        let (budget, prices) = spec.map(|spec| (spec.budget, spec.prices)).unwrap_or_default();
        let view = CostView::of(&team, book.spent().iter(), book.open_requests(&team), budget, &prices);
        context.output.answer(&view, || render(&view, context.output.columns))
    }
}

async fn reset(context: &Context, running: &Running, team: &str) -> CliResult<()> {
    if let Some(lead) = &running.lead {
        let message = format!("team {} (pid {}) runs in this workspace", one_line(&lead.team), lead.pid);
        return Err(CliError { exit: Exit::Occupied, ..CliError::refused(message) }.hint("brigade stop"));
    }
    let held = occupy(Arc::new(RealFileSystem::default()), &context.workspace()?, &Incarnation::own(), RESETTER)?;
    let stores = context.stores(Purpose::Act).await?;
    let line = LedgerLine::new(context.now(), LedgerEntry::Reset { team: team.to_owned() });
    stores.ledger.append(vec![line]).await?;
    drop(held);
    Ok(())
}
