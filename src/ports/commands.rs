//! The record of running commands.

use async_trait::async_trait;

use super::StoreResult;
use crate::domain::records::RunningCommand;

/// The record of running commands. A process that reclaims a task ends the task's commands first.
#[async_trait]
pub trait CommandRegistry: Send + Sync {
    /// Records that this command runs for the caller. The command starts after the record is written.
    async fn started(&self, command: RunningCommand) -> StoreResult<()>;

    /// Records that the command has ended, with all that it started.
    async fn ended(&self, command: RunningCommand);
}
