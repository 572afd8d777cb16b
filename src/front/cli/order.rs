//! Orders of commands: each is carried out by the layer `api`, and its outcome is the answer of the command.

use super::consent::{self, TrustFlag};
use super::context::Context;
use super::error::{CliError, CliResult};
use super::outcome;
use super::output::CommandAnswer;
use crate::api::consent::Consent;
use crate::api::{Order, Outcome};
use crate::domain::task::Task;
use crate::domain::team::approval::Request;
use crate::domain::team::team_spec::TeamSpec;

/// Carries an order out, and returns its outcome as the answer. The person at the terminal is asked for the consent that it needs.
///
/// # Errors
/// The workspace refuses the order, or the person does not agree.
pub(in crate::front) async fn give(context: &Context, order: Order) -> CliResult<CommandAnswer> {
    give_with(context, order, TrustFlag::default()).await
}

/// Carries an order out, as [`give`], and returns its outcome as data.
///
/// # Errors
/// As [`give`].
pub(in crate::front) async fn carry_out(context: &Context, order: Order) -> CliResult<Outcome> {
    order.carry_out(&context.workspace, &AtTerminal { context, trust: TrustFlag::default() }).await
}

/// As [`give`], with the flag by which the person agrees without being asked.
pub(super) async fn give_with(context: &Context, order: Order, trust: TrustFlag) -> CliResult<CommandAnswer> {
    outcome::answer(context, order.carry_out(&context.workspace, &AtTerminal { context, trust }).await?).await
}

/// The person at the terminal of a command.
struct AtTerminal<'a> {
    context: &'a Context,
    trust: TrustFlag,
}

impl Consent for AtTerminal<'_> {
    type Error = CliError;

    fn verify(&self, task: &Task, command: &str) -> CliResult<()> {
        consent::confirm_verify(self.context, task, command)
    }

    fn merge(&self, team: &TeamSpec) -> CliResult<()> {
        consent::confirm_merge(self.context, team, self.trust)
    }

    fn call(&self, request: &Request) -> CliResult<Option<String>> {
        consent::confirm_call(self.context, request)
    }
}
