//! `brigade tasks claim`.

use crate::api::OrderForm;
use crate::api::Question;
use crate::front::text::commands::{Hint, hint};
use std::time::Duration;

use crate::api::Order;
use crate::api::task::{self, ClaimOutcome, TaskContext, document};
use crate::domain::task::transition::{Actor, Change};
use crate::domain::task::{Task, TaskId};
use crate::domain::team::name::Name;
use crate::front::cli::arguments::{lease, task_id};
use crate::front::cli::context::Context;
use crate::front::cli::error::{CliError, CliResult};
use crate::front::cli::order;
use crate::front::cli::output::CommandAnswer;
use crate::front::text::lines::{duration, one_line};
use crate::front::text::tasks;

/// Claim a task, by the same rules as a teammate
///
/// Without a number it claims the best task: highest priority, then lowest number. It prints the attempt number. Pass the number
/// to complete, fail, release and renew: a lost claim is then refused. Renew the lease in time, or the claim is released. If no
/// task is claimable, the exit code is 0 and --json prints `null`.
#[derive(Debug, clap::Args)]
pub struct Claim {
    /// The task number [default: the best claimable task]
    #[arg(value_parser = task_id)]
    id: Option<TaskId>,
    /// Claim it under this name
    #[arg(long = "as", value_name = "NAME")]
    name: String,
    /// Length of the lease: a time such as 90s, 15m or 2h30m, from 1s to 7d
    #[arg(long, value_name = "TIME", value_parser = lease, default_value = "15m")]
    lease: Duration,
    /// The capabilities of NAME, such as coder,rust [default: those in the config]
    #[arg(long, value_name = "WORDS", value_delimiter = ',')]
    can: Vec<String>,
}

impl Claim {
    pub(super) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let Self { id, name, lease, can: capabilities } = self;
        order::give(context, Order::ClaimTask { id, name, lease_s: lease.as_secs(), capabilities }).await
    }
}

/// The end of a claim as the answer.
pub(in crate::front::cli) async fn answer(context: &Context, claim: ClaimOutcome) -> CliResult<CommandAnswer> {
    let workspace = &context.workspace;
    let (task, name, lease) = match claim {
        ClaimOutcome::Claimed { task, name, lease_s } => (task, name, Duration::from_secs(lease_s)),
        ClaimOutcome::Nothing { name, is_any_pending } => {
            let nothing = context.output.answer(&(), String::new)?;
            let mut note = Hint::from(format!("no task is claimable for {name}"));
            if is_any_pending {
                note += hint!["; ", Question::Tasks, " shows why each task waits"];
            }
            return Ok(nothing.note(note));
        }
    };
    let view = task::board(workspace).await?;
    let task_context = TaskContext::of(&view, workspace.now());
    let answer =
        context.output.answer(&document(&task), || tasks::card(&task, &[], &task_context, context.output.columns))?;
    // Without the attempt number the claim is useless.
    if let Err(error) = context.print_required(&answer.text) {
        let release = Change::Release { reason: String::new(), is_failure: false };
        let by = Actor::holder(name.as_str(), task.attempt);
        let then = match task::change(workspace, task.id, release, &by).await {
            Ok(_) => "the task was released".to_owned(),
            Err(error) => format!("the task stays claimed (attempt {}): {error}", task.attempt),
        };
        return Err(CliError::refused(format!("cannot write the output: {error}; {then}")));
    }
    Ok(CommandAnswer { text: String::new(), ..answer }.note(claim_note(&task, &name, lease)))
}

fn claim_note(task: &Task, name: &Name, lease: Duration) -> Hint {
    let claimed = format!("claimed {} {} for {}; then: ", task.id, one_line(&task.subject), duration(lease));
    let complete = OrderForm::Complete { task: task.id, by: name.to_string(), attempt: task.attempt };
    hint![claimed, complete, " (or fail, release, renew)"]
}
