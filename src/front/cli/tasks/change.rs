//! `brigade tasks fail`, `release`, `renew`, `retry`, `reopen`: each makes one change by the board's rules.

use std::time::Duration;

use crate::api::Order;
use crate::api::order::TaskChange;
use crate::api::task::ActingAs;
use crate::domain::task::TaskId;
use crate::front::cli::arguments::{ActorFlags, lease, number, task_id, text};
use crate::front::cli::context::Context;
use crate::front::cli::error::CliResult;
use crate::front::cli::order;
use crate::front::cli::output::CommandAnswer;

/// Report that an attempt failed
///
/// The task is retried after a back-off until its attempts are used up.
#[derive(Debug, clap::Args)]
pub struct Fail {
    /// The task number
    #[arg(value_parser = task_id)]
    id: TaskId,
    /// The reason
    #[arg(long, short, value_name = "TEXT", value_parser = text)]
    reason: String,
    /// Do not retry the task
    #[arg(long = "final")]
    is_final: bool,
    #[command(flatten)]
    by: ActorFlags,
}

impl Fail {
    pub(super) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let change = TaskChange::Fail { reason: self.reason, is_final: self.is_final };
        order::give(context, Order::ChangeTasks { ids: vec![self.id], change, by: self.by.into() }).await
    }
}

/// Release claimed tasks, so that others can claim them
#[derive(Debug, clap::Args)]
pub struct Release {
    /// The task numbers
    #[arg(required = true, value_parser = task_id)]
    ids: Vec<TaskId>,
    /// The reason, for the next claimant
    #[arg(long, short, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    by: ActorFlags,
}

impl Release {
    pub(super) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let change = TaskChange::Release { reason: self.reason };
        order::give(context, Order::ChangeTasks { ids: self.ids, change, by: self.by.into() }).await
    }
}

/// Extend the lease of a claim
#[derive(Debug, clap::Args)]
pub struct Renew {
    /// The task number
    #[arg(value_parser = task_id)]
    id: TaskId,
    /// Length of the lease from now: a time such as 90s, 15m or 2h30m, from 1s to 7d
    #[arg(long, value_name = "TIME", value_parser = lease, default_value = "15m")]
    lease: Duration,
    /// The holder of the task
    #[arg(long = "as", value_name = "NAME")]
    name: Option<String>,
    /// The attempt that `tasks claim` printed, such as 1; an older one is refused
    #[arg(long, value_name = "N", requires = "name", value_parser = number::<u32>(0..=u32::MAX.into()))]
    attempt: Option<u32>,
}

impl Renew {
    pub(super) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let by = ActingAs { name: self.name, attempt: self.attempt, force: false };
        let change = TaskChange::Renew { lease_s: self.lease.as_secs() };
        order::give(context, Order::ChangeTasks { ids: vec![self.id], change, by }).await
    }
}

/// Retry failed tasks and reset their failures
#[derive(Debug, clap::Args)]
pub struct Retry {
    /// The task numbers
    #[arg(required = true, value_parser = task_id)]
    ids: Vec<TaskId>,
}

impl Retry {
    pub(super) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let by = ActingAs::default();
        order::give(context, Order::ChangeTasks { ids: self.ids, change: TaskChange::Retry, by }).await
    }
}

/// Reopen completed tasks
#[derive(Debug, clap::Args)]
pub struct Reopen {
    /// The task numbers
    #[arg(required = true, value_parser = task_id)]
    ids: Vec<TaskId>,
}

impl Reopen {
    pub(super) async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let by = ActingAs::default();
        order::give(context, Order::ChangeTasks { ids: self.ids, change: TaskChange::Reopen, by }).await
    }
}
