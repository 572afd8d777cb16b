//! Orders of commands: each is carried out by the layer `api`, and its outcome is the answer of the command.

use super::consent::{self, TrustFlag};
use super::context::Context;
use super::error::{CliError, CliResult};
use super::output::CommandAnswer;
use super::{approvals, clean, cost, merge, send, state, stop, tasks};
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
    match order.carry_out(&context.workspace, &AtTerminal { context, trust }).await? {
        Outcome::Added(task) => tasks::add::answer(context, &task).await,
        Outcome::Changed { action, tasks } => tasks::change::answer(context, &tasks, action),
        Outcome::Claim(claim) => tasks::claim::answer(context, claim).await,
        Outcome::Deleted(deleted) => tasks::rm::answer(context, &deleted),
        Outcome::Sent(sent) => send::answer(context, sent),
        Outcome::Answered(given) => approvals::answer(context, &given),
        Outcome::ModeSet(state) => state::answer(context, *state, true).await,
        Outcome::TeamStopped(stopped) => stop::team_answer(context, stopped),
        Outcome::TeammateStopped { name, stop } => stop::teammate_answer(context, &name, stop),
        Outcome::Merged(merged) => merge::answer(context, &merged),
        Outcome::SetAside(set_aside) => merge::set_aside_answer(context, &set_aside),
        Outcome::Cleaned(cleanup) => clean::answer(context, &cleanup),
        Outcome::CostReset(view) => cost::answer(context, &view, true),
    }
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
        approvals::ask_about_cut_call(self.context, request)
    }
}
