//! Errors in the arguments, in the form of all other errors: one message and one hint. They are built from the kind and the context
//! of clap's error, not from its text.

use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

use super::commands::{positionals, root, visible_subcommands};
use super::error::CliError;
use crate::domain::text::shell_word;
use crate::domain::text::suggestion::nearest;
use crate::front::text::commands::{Command as Typed, Commands, Hint, hint, line};

/// The most allowed values that an error lists. If there are more, the hint names the help.
const VALUES_SHOWN_MAX: usize = 12;

/// Returns true if clap's "error" is the help or the version.
pub fn is_help(error: &Error) -> bool {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    matches!(error.kind(), DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand)
}

/// Returns the error for `words`, the arguments after the program's name. Its message has commands as they are typed.
pub fn argument_error(error: &Error, words: &[&str], commands: &Commands) -> CliError {
    let typed = TypedCommand::of(words, commands);
    let all = |kind| context_values(error, kind);
    let first = |kind| all(kind).into_iter().next().unwrap_or_default();
    let (argument, value) = (without_brackets(&first(ContextKind::InvalidArg)), first(ContextKind::InvalidValue));
    let name = typed.name();
    let (message, hint) = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let word = first(ContextKind::InvalidSubcommand);
            let meant = nearest(&word, visible_subcommands(typed.command).map(Command::get_name));
            let meant = meant.map(|meant| hint!["did you mean ", typed.with([meant]), "?"]);
            let message = format!("unknown command {}", commands.typed(typed.with([word])));
            (message, meant.unwrap_or_else(|| hint![typed.with(["--help"]), " lists the commands"]))
        }
        ErrorKind::UnknownArgument if argument.starts_with('-') => {
            let list = hint![typed.with(["--help"]), " lists the options"];
            (format!("unknown option `{argument}` for {name}"), did_you_mean(&first(ContextKind::SuggestedArg), list))
        }
        ErrorKind::UnknownArgument => {
            let usage = hint![typed.with(positionals(typed.command)), "; quote a text of several words"];
            (format!("unexpected argument `{argument}` for {name}"), usage)
        }
        ErrorKind::InvalidValue => {
            let list = match &all(ContextKind::ValidValue)[..] {
                [] => String::new(),
                allowed if allowed.len() <= VALUES_SHOWN_MAX => format!(": allowed are {}", allowed.join(", ")),
                allowed => format!(": it is not one of the {} allowed values", allowed.len()),
            };
            let message = match value.as_str() {
                "" => format!("`{argument}` needs a value{list}"),
                value => {
                    let option = option_of(&argument);
                    let source = typed.variable_of(&option, words).unwrap_or(option);
                    format!("cannot use `{value}` as `{source}`{list}")
                }
            };
            let help = hint![typed.with(["--help"]), " describes the values"];
            (message, did_you_mean(&first(ContextKind::SuggestedValue), help))
        }
        ErrorKind::ValueValidation => {
            let reason = error.source().map(ToString::to_string).unwrap_or_default();
            (format!("cannot use `{value}` as `{}`: {reason}", option_of(&argument)), typed.with(["--help"]).into())
        }
        ErrorKind::MissingRequiredArgument => {
            let missing: Vec<String> =
                all(ContextKind::InvalidArg).iter().map(|argument| without_brackets(argument)).collect();
            let whole: Vec<String> = words.iter().map(|word| shell_word(word)).chain(missing.iter().cloned()).collect();
            (format!("{name} needs `{}`", missing.join("` and `")), line(whole.join(" ")).into())
        }
        ErrorKind::ArgumentConflict => {
            (conflict(&option_of(&argument), &all(ContextKind::PriorArg)), typed.with(["--help"]).into())
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            (format!("{name} needs a command"), hint![typed.with(["--help"]), " lists the commands"])
        }
        _ => {
            let text = error.render().to_string();
            let first = text.lines().next().unwrap_or_default();
            (first.trim_start_matches("error: ").to_owned(), typed.with(["--help"]).into())
        }
    };
    CliError::usage(message).hint(hint)
}

fn conflict(argument: &str, others: &[String]) -> String {
    let others: Vec<String> = others.iter().map(|other| option_of(&without_brackets(other))).collect();
    if others.is_empty() || others.iter().any(|other| other == argument) {
        return format!("`{argument}` can be used only once");
    }
    format!("`{argument}` cannot be used with `{}`", others.join("` or `"))
}

/// The hint with the word that clap suggests, or another one.
fn did_you_mean(meant: &str, otherwise: Hint) -> Hint {
    if meant.is_empty() { otherwise } else { format!("did you mean `{meant}`?").into() }
}

/// The typed command: the longest path that clap knows.
struct TypedCommand<'a> {
    path: Vec<&'static str>,
    command: &'static Command,
    commands: &'a Commands,
}

impl<'a> TypedCommand<'a> {
    fn of(words: &[&str], commands: &'a Commands) -> Self {
        let mut typed = Self { path: Vec::new(), command: root(), commands };
        for word in words.iter().take_while(|word| **word != "--") {
            if let Some(command) = typed.command.find_subcommand(word) {
                typed.path.push(command.get_name());
                typed.command = command;
            }
        }
        typed
    }

    /// The command as it is typed, for a message.
    fn name(&self) -> String {
        if self.path.is_empty() { "`brigade`".to_owned() } else { self.commands.typed(self.with::<&str>([])) }
    }

    /// Returns the variable that has the value of an option, if the option was not typed.
    fn variable_of(&self, option: &str, words: &[&str]) -> Option<String> {
        if words.iter().any(|word| word.starts_with(option)) {
            return None;
        }
        let long = option.strip_prefix("--")?;
        let argument = self.command.get_arguments().find(|argument| argument.get_long() == Some(long))?;
        Some(argument.get_env()?.to_string_lossy().into_owned())
    }

    /// The command with more words.
    fn with<T: Into<String>>(&self, more: impl IntoIterator<Item = T>) -> Typed {
        let path = self.path.iter().map(|word| (*word).to_owned());
        line(path.chain(more.into_iter().map(Into::into)).collect::<Vec<String>>().join(" "))
    }
}

fn context_values(error: &Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

/// `--as NAME` for `--as <NAME>`, `IDS` for `<IDS>...`.
fn without_brackets(argument: &str) -> String {
    argument.replace(['<', '>', '[', ']'], "").trim_end_matches('.').to_owned()
}

/// `--as` for `--as NAME`.
fn option_of(argument: &str) -> String {
    argument.split_whitespace().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::cli::Cli;
    use clap::Parser as _;

    fn explained(line: &str) -> (String, Option<String>) {
        let words: Vec<&str> = line.split(' ').collect();
        let error = Cli::try_parse_from(["brigade"].iter().chain(&words)).unwrap_err();
        assert!(!is_help(&error), "{line}: {error}");
        let error = argument_error(&error, &words, &Commands::default());
        (error.message, error.hint.map(|hint| hint.to_string()))
    }

    #[test]
    fn argument_error_has_one_message_and_one_hint() {
        for (line, message, hint) in [
            ("taks", "unknown command `brigade taks`", Some("did you mean `brigade tasks`?")),
            ("tasks sow", "unknown command `brigade tasks sow`", Some("did you mean `brigade tasks show`?")),
            (
                "config list",
                "unknown command `brigade config list`",
                Some("`brigade config --help` lists the commands"),
            ),
            ("log --lsat 3", "unknown option `--lsat` for `brigade log`", Some("did you mean `--last`?")),
            (
                "review reject 3 --feedback not enough",
                "unexpected argument `enough` for `brigade review reject`",
                Some("`brigade review reject [ID]`; quote a text of several words"),
            ),
            (
                "why 1 2",
                "unexpected argument `2` for `brigade why`",
                Some("`brigade why ID`; quote a text of several words"),
            ),
            (
                "tasks list --status fialed",
                "cannot use `fialed` as `--status`: allowed are pending, in_progress, completed, failed, blocked",
                Some("did you mean `failed`?"),
            ),
            ("tasks claim", "`brigade tasks claim` needs `--as NAME`", Some("`brigade tasks claim --as NAME`")),
            (
                "--workspace w send alice",
                "`brigade send` needs `TEXT`",
                Some("`brigade --workspace w send alice TEXT`"),
            ),
            (
                "log --until x",
                "unknown option `--until` for `brigade log`",
                Some("`brigade log --help` lists the options"),
            ),
            ("inbox --read --take", "`--read` cannot be used with `--take`", Some("`brigade inbox --help`")),
            ("tasks --status", "`--status STATUS` needs a value", Some("`brigade tasks --help` describes the values")),
        ] {
            let (shown, hinted) = explained(line);
            assert!(shown.starts_with(message), "{line}: {shown}");
            assert_eq!(hinted.as_deref(), hint, "{line}: {shown}");
        }
        assert!(explained("log --kind task_complete").0.contains("allowed values"));
        assert!(explained("log -n x").0.starts_with("cannot use `x` as `--last`: "));
    }

    #[test]
    fn global_options_go_before_subcommands() {
        for line in ["tasks --json show 1", "tasks --workspace /x show 1", "tasks --color never list"] {
            assert!(Cli::try_parse_from(["brigade"].into_iter().chain(line.split(' '))).is_ok(), "{line}");
        }
    }
}
