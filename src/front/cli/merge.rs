//! `brigade merge`.

use super::consent::TrustFlag;
use super::context::Context;
use super::error::CliResult;
use super::order;
use super::output::CommandAnswer;
use crate::api::Order;

/// Take over the work of a team: merge its branch into yours
///
/// It updates your branch and files as `git merge` does, in your name. It overwrites no change of yours. If git cannot merge, nothing is
/// changed. If it is killed, run it again. It runs no hooks: use `git merge BRANCH` for that. With `commit.gpgSign`,
/// it signs the merge as your git does.
#[derive(Debug, clap::Args)]
pub struct Merge {
    /// The team [default: the running team, or the last one]
    team: Option<String>,
    /// Merge nothing: your branch has the work already, in another form. The team branch starts from your commit, and a ref keeps its own
    #[arg(long)]
    taken: bool,
    #[command(flatten)]
    trust: TrustFlag,
}

impl Merge {
    /// Merges the team branch.
    ///
    /// # Errors
    /// The team has no branch, or git cannot merge it.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let team = self.team;
        let order = if self.taken { Order::SetAside { team } } else { Order::Merge { team } };
        order::give_with(context, order, self.trust).await
    }
}
