//! `brigade tasks claim`.

use std::time::Duration;

use super::show::document;
use crate::api::task::TaskContext;
use crate::cli::arguments::{acting_name, lease, task_id};
use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::cli::output::CommandAnswer;
use crate::domain::task::transition::{Actor, Change};
use crate::domain::task::{Task, TaskId, TaskStatus, trimmed_words};
use crate::domain::team::name::{LEAD, Name};
use crate::service::claims::claim_with_lease;
use crate::stores::workspace::OpenMode;
use crate::ui::tasks;
use crate::ui::text::{duration, one_line};

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
        let name = acting_name(&self.name)?;
        if name.is_same(LEAD) {
            return Err(CliError::usage("cannot claim as `lead`: the lead works on no tasks")
                .hint("`brigade tasks claim --as YOUR-NAME`"));
        }
        let stores = context.workspace.stores(OpenMode::Write).await?;
        let board = &stores.board;
        let capabilities = capabilities(&name, trimmed_words(&self.can), context);
        let Some(task) = claim_with_lease(&stores, self.id, &name, capabilities, self.lease).await? else {
            let nothing = context.output.answer(&(), String::new)?;
            let view = board.view().await?;
            let is_any_pending = view.tasks.values().any(|task| task.status == TaskStatus::Pending);
            let why = if is_any_pending { "; `brigade tasks` shows why each task waits" } else { "" };
            return Ok(nothing.note(format!("no task is claimable for {name}{why}")));
        };
        let view = board.view().await?;
        let task_context = TaskContext::of(&view, context.workspace.now());
        let answer = context
            .output
            .answer(&document(&task), || tasks::card(&task, &[], &task_context, context.output.columns))?;
        // Without the attempt number the claim is useless.
        if let Err(error) = context.print_required(&answer.text) {
            let release = Change::Release { reason: String::new(), is_failure: false };
            let outcome = board.change(task.id, release, &Actor::holder(name.as_str(), task.attempt)).await;
            let then = match outcome {
                Ok(_) => "the task was released".to_owned(),
                Err(error) => format!("the task stays claimed (attempt {}): {error}", task.attempt),
            };
            return Err(CliError::refused(format!("cannot write the output: {error}; {then}")));
        }
        Ok(CommandAnswer { text: String::new(), ..answer }.note(claim_note(&task, &name, self.lease)))
    }
}

fn claim_note(task: &Task, name: &Name, lease: Duration) -> String {
    let (id, attempt) = (task.id.0, task.attempt);
    format!(
        "claimed {} {} for {}; then: `brigade tasks complete {id} --as {name} --attempt {attempt}` (or fail, release, renew)",
        task.id,
        one_line(&task.subject),
        duration(lease)
    )
}

/// The capabilities from `--can`, else from the config.
fn capabilities(name: &Name, given: Vec<String>, context: &Context) -> Vec<String> {
    if !given.is_empty() {
        return given;
    }
    let config = context.workspace.location.config_if_valid();
    let teams = config.iter().flat_map(|config| {
        config.team_names().into_iter().filter_map(|team| context.workspace.location.team_if_valid(Some(&team)))
    });
    let mut members = teams.flat_map(|team| team.members);
    members.find(|member| member.name == *name).map(|member| member.capabilities()).unwrap_or_default()
}
