//! `brigade completions`.

use clap::CommandFactory;
use clap_complete::Shell;

use super::context::Context;
use super::error::CliResult;
use super::output::Answer;
use super::{Cli, exit::Exit};

/// Print a shell's completions
///
/// For bash: brigade completions bash > ~/.local/share/bash-completion/completions/brigade
#[derive(Debug, clap::Args)]
pub struct Completions {
    /// The shell
    pub shell: Shell,
}

impl Completions {
    /// Prints the script, as it is: a shell reads it, with `--json` too.
    ///
    /// # Errors
    /// None.
    pub fn run(self, _: &Context) -> CliResult<Answer> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "brigade", &mut script);
        Ok(Answer { text: String::from_utf8_lossy(&script).into_owned(), notes: Vec::new(), exit: Exit::Done })
    }
}
