//! `brigade clean`.

use super::context::Context;
use super::error::CliResult;
use super::order;
use super::outcome;
use super::output::CommandAnswer;
use crate::api::Order;
use crate::api::clean::{self, Selection};

/// List old run-time files, or remove them with --yes
///
/// These are records of dead workers, rotated logs, and invalid files that were set aside. With --yes it also ends commands that
/// dead workers left running. The list names worktrees and branches of deleted tasks, branches with the work of failed attempts,
/// worktrees of completed tasks that are kept, and refs with commits of a team that you took over in another form.
/// Tasks, unread mail, the current log and transcripts stay.
#[derive(Debug, clap::Args)]
pub struct Clean {
    /// Remove the files
    #[arg(long, short)]
    yes: bool,
    /// Also remove the transcripts and the mail in delivery: teammates forget everything
    #[arg(long)]
    all: bool,
    /// Also remove the task board with all its tasks
    #[arg(long)]
    board: bool,
    /// Also remove the branches that keep the work of failed attempts
    #[arg(long)]
    attempts: bool,
    /// Also remove the refs that keep a team's commits which you took over in another form, such as a squash
    #[arg(long)]
    taken: bool,
    /// Also remove the worktrees that are kept for files which git ignores, with these files
    #[arg(long)]
    worktrees: bool,
}

impl Clean {
    /// Lists or removes the files.
    ///
    /// # Errors
    /// A team runs, or a file cannot be removed.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let selection = Selection {
            all: self.all,
            board: self.board,
            attempts: self.attempts,
            taken: self.taken,
            worktrees: self.worktrees,
        };
        if self.yes {
            return order::give(context, Order::Clean { selection }).await;
        }
        outcome::cleaned(context, &clean::find(&context.workspace, selection).await?)
    }
}
