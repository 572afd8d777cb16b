//! `brigade tasks`: look at the board and work on it, by the rules every teammate goes by.

use super::context::Context;
use super::error::CliResult;
use super::output::Answer;

mod add;
mod claim;
mod finish;
mod import;
mod list;
mod rm;
mod several;
pub(super) mod show;
mod update;
mod verify;

/// Look at the task board and change it, whether a team runs or not
///
/// Without a subcommand it lists the tasks.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
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
    Complete(finish::Complete),
    Fail(finish::Fail),
    Release(finish::Release),
    Renew(finish::Renew),
    Retry(finish::Retry),
    Reopen(finish::Reopen),
}

impl Tasks {
    /// Does what the subcommand says.
    ///
    /// # Errors
    /// What the board refuses.
    pub async fn run(self, context: &Context) -> CliResult<Answer> {
        match self.command.unwrap_or(Command::List(self.list)) {
            Command::List(command) => command.run(context).await,
            Command::Show(command) => command.run(context).await,
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
