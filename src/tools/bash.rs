//! `bash`: runs a command in the workspace.

use std::time::Duration;

use super::command_hints;
use super::prelude::*;
use crate::domain::agent::reading_commands::only_reads;
use crate::domain::task::shell_blocks::script_headline;

/// Runs a shell command, without terminal or input. Background processes end with it. For files, prefer the other tools.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Bash {
    command: String,
    /// Seconds; default 120
    timeout: Option<i64>,
}

impl TypedTool for Bash {
    const NAME: &'static str = "bash";

    fn about(&self) -> String {
        script_headline(&self.command)
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        check_not_empty("command", &self.command)?;
        let timeout = timeout(self.timeout, context)?;
        let outcome = command_hints::run(&self.command, timeout.into(), context).await?;
        if !only_reads(&self.command) {
            context.record_work();
        }
        if !outcome.is_success() {
            return Err(ToolError::CommandFailed(outcome));
        }
        match outcome.output.trim_end() {
            "" => Ok(ToolOutput::text(outcome.report())),
            output => Ok(ToolOutput::text(outcome.with_hints(output))),
        }
    }
}

fn timeout(seconds: Option<i64>, context: &ToolContext) -> Result<Duration, ToolError> {
    let longest = context.limits.command_timeout_max;
    let Some(seconds) = seconds else { return Ok(context.limits.command_timeout) };
    match u64::try_from(seconds).map(Duration::from_secs) {
        Ok(timeout) if !timeout.is_zero() && timeout <= longest => Ok(timeout),
        _ => Err(ToolError::Recoverable(format!(
            "argument `timeout` is in seconds, from 1 to {}; got {seconds}",
            longest.as_secs()
        ))),
    }
}
