//! `bash`: runs a command in the workspace.

use std::time::Duration;

use serde_json::Value;

use super::adapter::{TypedTool, text_argument};
use super::arguments::{Arguments, Parameter, ParameterType, optional, required};
use super::command_runner::{self, CommandContext};
use super::{ToolContext, ToolError, ToolOutput};

pub(super) struct Bash;

#[async_trait::async_trait]
impl TypedTool for Bash {
    const NAME: &'static str = "bash";
    const DESCRIPTION: &'static str = "Runs a shell command in the workspace's folder and returns its stdout and stderr; long output loses its middle. If it does not exit 0, the result is an error that ends with the exit status. Each call starts a new shell without terminal or input: do not start a prompt or a pager. Background processes end with the call. Commands cannot write .tasks and .team. For files use `read_file`, `grep`, `glob`, `edit_file` and `write_file`.";
    const PARAMETERS: &'static [Parameter] = &[
        required("command", ParameterType::Text, "The command; chain with `&&` after `cd`"),
        optional(
            "timeout",
            ParameterType::Integer,
            "Seconds until the command is ended; default 120; give more for long builds",
        ),
    ];

    fn about(&self, input: &Value) -> String {
        headline(&text_argument(input, "command"))
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let command = arguments.text("command");
        if command.trim().is_empty() {
            return Err(ToolError::Recoverable("argument `command` is empty".to_owned()));
        }
        let timeout = timeout(arguments.integer("timeout"), context)?;
        let outcome = command_runner::run(command, timeout, &CommandContext::of(context)).await?;
        let output = outcome.output.trim_end();
        if outcome.is_success() {
            return Ok(ToolOutput::text(if output.is_empty() { "(no output)" } else { output }));
        }
        Err(ToolError::Recoverable(outcome.report()))
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

/// The longest headline, in characters.
const HEADLINE_CHARS_MAX: usize = 200;

/// `script` without the shell options that its first line begins with, such as `set -e; `.
fn without_shell_options(script: &str) -> &str {
    match script.split_once("; ") {
        Some((options, rest)) if options.starts_with("set -") && !options.contains('\n') => rest,
        _ => script,
    }
}

/// The comment in the first line of a script, or its first command.
fn headline(script: &str) -> String {
    let script = without_shell_options(script);
    let is_setup =
        |line: &str| line.is_empty() || line.starts_with('#') || line.starts_with("set -") || line.starts_with(". ");
    if let Some(comment) = script.trim_start().lines().next().and_then(|line| line.strip_prefix("# ")) {
        return comment.chars().take(HEADLINE_CHARS_MAX).collect();
    }
    let mut lines = script.lines().map(str::trim).filter(|line| !is_setup(line));
    let first = lines.next().unwrap_or_else(|| script.trim());
    let cut: String = first.chars().take(HEADLINE_CHARS_MAX).collect();
    if lines.next().is_some() || cut.len() < first.len() { format!("{cut}…") } else { cut }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bash_headline_is_first_comment_or_command() {
        assert_eq!(headline("set -e; # Count the lines\nwc -l"), "Count the lines");
        assert_eq!(headline("set -eu\n\nwc -l\nls"), "wc -l…");
        assert_eq!(headline("ls"), "ls");
    }
}
