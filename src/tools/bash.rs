//! `bash`: a command in the workspace.

use std::time::Duration;

use serde_json::Value;

use super::arguments::{Arguments, Kind, Parameter, optional, required};
use super::checked::{Checked, text_of};
use super::command::{self, CommandSetting};
use super::{ToolContext, ToolError, ToolOutput};

pub(super) struct Bash;

#[async_trait::async_trait]
impl Checked for Bash {
    const NAME: &'static str = "bash";
    const DESCRIPTION: &'static str = "Runs a shell command in the workspace's folder and gives back what it prints to stdout and stderr; of long output the middle is left out. A command that does not exit 0 is an error that ends with its exit status. Each call is a new shell without a terminal or input: nothing may ask or page, and what it starts ends with it. The board and the mail (.tasks, .team) are read-only here. To read, search and change files use read_file, grep, glob, edit_file and write_file.";
    const PARAMETERS: &'static [Parameter] = &[
        required("command", Kind::Text, "The command, in one shell: chain with `&&` after `cd`"),
        optional(
            "timeout",
            Kind::Integer,
            "Ends it after so many seconds; 120 if not given; more for long builds and tests",
        ),
    ];

    fn about(&self, input: &Value) -> String {
        headline(&text_of(input, "command"))
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let command = arguments.text("command");
        if command.trim().is_empty() {
            return Err(ToolError::Mendable("argument `command` is empty".to_owned()));
        }
        let time_max = time_max(arguments.integer("timeout"), context)?;
        let outcome = command::run(command, time_max, &CommandSetting::of(context)).await?;
        let output = outcome.output.trim_end();
        if outcome.is_success() {
            return Ok(ToolOutput::text(if output.is_empty() { "(no output)" } else { output }));
        }
        Err(ToolError::Mendable(outcome.report()))
    }
}

fn time_max(seconds: Option<i64>, context: &ToolContext) -> Result<Duration, ToolError> {
    let longest = context.limits.command_timeout_max;
    let Some(seconds) = seconds else { return Ok(context.limits.command_timeout) };
    match u64::try_from(seconds).map(Duration::from_secs) {
        Ok(time_max) if !time_max.is_zero() && time_max <= longest => Ok(time_max),
        _ => Err(ToolError::Mendable(format!(
            "argument `timeout` is in seconds, from 1 to {}; got {seconds}",
            longest.as_secs()
        ))),
    }
}
/// The longest headline, in characters.
const HEADLINE_CHARS_MAX: usize = 200;

/// What a script says it does in a comment on its first line, or the first line that does something.
fn headline(script: &str) -> String {
    let script = script.strip_prefix("set -e; ").unwrap_or(script);
    let says_nothing =
        |line: &str| line.is_empty() || line.starts_with('#') || line.starts_with("set -") || line.starts_with(". ");
    if let Some(comment) = script.trim_start().lines().next().and_then(|line| line.strip_prefix("# ")) {
        return comment.chars().take(HEADLINE_CHARS_MAX).collect();
    }
    let mut lines = script.lines().map(str::trim).filter(|line| !says_nothing(line));
    let first = lines.next().unwrap_or_else(|| script.trim());
    let cut: String = first.chars().take(HEADLINE_CHARS_MAX).collect();
    if lines.next().is_some() || cut.len() < first.len() { format!("{cut}…") } else { cut }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_headline_is_what_a_script_says_or_does_first() {
        assert_eq!(headline("set -e; # Count the lines\nwc -l"), "Count the lines");
        assert_eq!(headline("set -eu\n\nwc -l\nls"), "wc -l…");
        assert_eq!(headline("ls"), "ls");
    }
}
