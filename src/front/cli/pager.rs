//! The pager for answers that are longer than the terminal.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::{self, Stdio};

use super::context::Context;
use super::output::{CommandAnswer, Output};
use super::signals::Signals;
use super::surface::Surface;
use crate::front::text::commands::{Command, Commands};
use crate::platform::terminal;
use crate::sandbox::environment::launch_environment;

/// The pager if `PAGER` is not set. With its options in `LESS` it ends at once if the text fits the terminal.
const PAGER_DEFAULT: &str = "less";

/// The most lines of a long answer that an interactive session prints.
const REPL_LINES_MAX: usize = 200;

/// Shows the text of a long answer in a pager, and waits until it is closed. Returns the rest of the answer, which is still to be printed.
///
/// An interactive session has no pager: it gets the first lines, and `command`, which shows all in another terminal.
pub fn page_answer(context: &Context, mut answer: CommandAnswer, command: impl Into<Command>) -> CommandAnswer {
    match context.surface() {
        _ if context.output.json => {}
        Surface::Streams if show_in_pager(&answer.text, &context.output) => answer.text = String::new(),
        Surface::Repl(_) => answer.text = first_lines(&answer.text, &Commands::default().typed(command)),
        _ => {}
    }
    answer
}

fn first_lines(text: &str, command: &str) -> String {
    let count = text.lines().count();
    if count <= REPL_LINES_MAX {
        return text.to_owned();
    }
    let start: String = text.split_inclusive('\n').take(REPL_LINES_MAX).collect();
    format!("{start}… {} more lines: in another terminal, {command}\n", count - REPL_LINES_MAX)
}

/// Shows the text in a pager, and waits until it is closed. Returns false if nothing was shown: stdout is no terminal or this process is
/// in the background, the text fits, or there is no pager.
fn show_in_pager(text: &str, output: &Output) -> bool {
    let rows = terminal_size::terminal_size().map(|(_, terminal_size::Height(rows))| usize::from(rows));
    let is_long = rows.is_some_and(|rows| text.lines().count() >= rows);
    if !io::stdout().is_terminal() || !terminal::is_in_foreground() || !is_long {
        return false;
    }
    let text = if output.has_colors() { text.to_owned() } else { anstream::adapter::strip_str(text).to_string() };
    // Ctrl-C is for the pager.
    let _signals = Signals::listen(true);
    run_pager(&text).unwrap_or(false)
}

/// Runs the pager with the text as its input, and without the variables that hold secrets. Returns false if there is no pager.
///
/// # Errors
/// The pager cannot be started.
fn run_pager(text: &str) -> io::Result<bool> {
    let pager = std::env::var("PAGER").unwrap_or_else(|_| PAGER_DEFAULT.to_owned());
    if pager.trim().is_empty() || pager == "cat" {
        return Ok(false);
    }
    let mut shell = process::Command::new("sh");
    shell.args(["-c", &pager]).env_clear().envs(launch_environment());
    if std::env::var_os("LESS").is_none() {
        shell.env("LESS", "FRX");
    }
    let mut pager = shell.stdin(Stdio::piped()).spawn()?;
    if let Some(mut input) = pager.stdin.take() {
        // An error means that the person closed the pager early.
        let _ = input.write_all(text.as_bytes());
    }
    // A shell ends with these codes if it cannot run the program.
    Ok(!matches!(pager.wait()?.code(), Some(126 | 127)))
}
