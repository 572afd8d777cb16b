//! `brigade completions`.

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::Cli;
use super::context::Context;
use super::error::CliResult;
use super::output::CommandAnswer;

/// The script for bash. It completes file names if `brigade complete` prints `:files`.
const BASH: &str = r#"_brigade() {
    local value about
    COMPREPLY=()
    while IFS=$'\t' read -r value about; do
        if [[ $value == :files ]]; then
            compopt -o default 2>/dev/null
        else
            COMPREPLY+=("$value")
        fi
    done < <(brigade complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _brigade brigade
"#;

/// The script for zsh. It can be sourced, or stored as `_brigade` in a folder of `fpath`.
const ZSH: &str = r#"#compdef brigade
_brigade() {
    local value about
    local -a candidates
    while IFS=$'\t' read -r value about; do
        if [[ $value == :files ]]; then
            _files
        else
            candidates+=("${value//:/\\:}${about:+:$about}")
        fi
    done < <(brigade complete -- "${(@Q)words[2,CURRENT]}" 2>/dev/null)
    (( $#candidates )) && _describe -V brigade candidates
}
if [[ $funcstack[1] == _brigade ]]; then
    _brigade "$@"
else
    compdef _brigade brigade
fi
"#;

const FISH: &str = r#"function __brigade_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l candidates (brigade complete -- $words[2..-1] 2>/dev/null)
    if test "$candidates" = :files
        __fish_complete_path (commandline -ct)
    else
        printf '%s\n' $candidates
    end
end
complete -c brigade -f -k -a '(__brigade_complete)'
"#;

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
