//! `brigade tasks`: shows the board and changes it, by the same rules as for teammates.

use super::context::Context;
use super::error::{CliError, CliResult};
use super::output::CommandAnswer;
use crate::front::text::commands::line;

pub(super) mod add;
pub(super) mod change;
pub(super) mod claim;
mod complete;
pub(in crate::front) mod diff;
mod import;
pub(in crate::front) mod list;
pub(super) mod rm;
pub(in crate::front) mod show;
mod update;

/// Show and change the task board
///
/// Without a subcommand it lists the tasks. It works with and without a running team.
#[derive(Debug, clap::Args)]
pub struct Tasks {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    list: list::List,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    #[command(alias = "ls")]
    List(list::List),
    #[command(alias = "get", alias = "view")]
    Show(show::Show),
    Diff(diff::Diff),
    #[command(alias = "new", alias = "create")]
    Add(add::Add),
    #[command(alias = "edit", alias = "set")]
    Update(update::Update),
    Import(import::Import),
    #[command(alias = "delete", alias = "remove", alias = "del")]
    Rm(rm::Rm),
    #[command(alias = "start", alias = "take")]
    Claim(claim::Claim),
    #[command(alias = "done", alias = "finish", alias = "close")]
    Complete(complete::Complete),
    Fail(change::Fail),
    Release(change::Release),
    Renew(change::Renew),
    Retry(change::Retry),
    Reopen(change::Reopen),
}

impl Tasks {
    /// Runs the subcommand; without one, lists the tasks.
    ///
    /// # Errors
    /// The board refuses the change, or cannot be read.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        if self.command.is_some() && self.list.has_filter() {
            return Err(CliError::usage("cannot use `--status`, `--owner` or `--ready` before a subcommand")
                .hint(line("tasks list --help")));
        }
        match self.command.unwrap_or(Command::List(self.list)) {
            Command::List(command) => command.run(context).await,
            Command::Show(command) => command.run(context).await,
            Command::Diff(command) => command.run(context).await,
            Command::Add(command) => command.run(context).await,
            Command::Update(command) => command.run(context).await,
            Command::Import(command) => command.run(context).await,
            Command::Rm(command) => command.run(context).await,
            Command::Claim(command) => command.run(context).await,
            Command::Complete(command) => command.run(context).await,
            Command::Fail(command) => command.run(context).await,
            Command::Release(command) => command.run(context).await,
            Command::Renew(command) => command.run(context).await,
            Command::Retry(command) => command.run(context).await,
            Command::Reopen(command) => command.run(context).await,
        }
    }
}
