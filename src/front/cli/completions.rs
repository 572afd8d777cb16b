//! `brigade completions`.

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::Cli;
use super::context::Context;
use super::error::CliResult;
use super::output::CommandAnswer;

/// The script for bash. It completes file names if `brigade complete` prints `:files`.
const BASH: &str = include_str!("completions/brigade.bash");
/// The script for zsh. It can be sourced, or stored as `_brigade` in a folder of `fpath`.
const ZSH: &str = include_str!("completions/brigade.zsh");
/// The script for fish.
const FISH: &str = include_str!("completions/brigade.fish");

/// Print a shell's completions
///
/// The completions of bash, zsh and fish also offer task numbers and the names of teams and teammates.
///
/// bash: `brigade completions bash > ~/.local/share/bash-completion/completions/brigade`
///
/// zsh: `brigade completions zsh > "${fpath[1]}/_brigade"`
///
/// fish: `brigade completions fish > ~/.config/fish/completions/brigade.fish`
#[derive(Debug, clap::Args)]
pub struct Completions {
    /// The shell
    pub shell: Shell,
}

impl Completions {
    /// Prints the script unchanged, also with `--json`, because a shell reads it.
    ///
    /// # Errors
    /// None.
    pub fn run(self, _: &Context) -> CliResult<CommandAnswer> {
        let text = match self.shell {
            Shell::Bash => BASH.to_owned(),
            Shell::Zsh => ZSH.to_owned(),
            Shell::Fish => FISH.to_owned(),
            shell => {
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut Cli::command(), "brigade", &mut script);
                String::from_utf8_lossy(&script).into_owned()
            }
        };
        Ok(CommandAnswer::text(text))
    }
}
