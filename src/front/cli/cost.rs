//! `brigade cost`.

use super::context::Context;
use super::error::CliResult;
use super::output::CommandAnswer;
use crate::api::cost;
use crate::front::text::cost::render;
use crate::front::text::lines::one_line;

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
        let team = self.team.as_deref();
        if self.reset {
            cost::reset(&context.workspace, team).await?;
        }
        let view = cost::cost(&context.workspace, team).await?;
        context.output.answer(&view, || {
            let reset = if self.reset {
                format!("the counters of {} are reset\n", one_line(&view.team))
            } else {
                String::new()
            };
            reset + &render(&view, context.output.columns)
        })
    }
}
