//! Errors in the arguments, in the form of all other errors: one message and one hint. They are built from the kind and the context
//! of clap's error, not from its text.

use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

use super::arguments::task_id;
use super::commands::{positionals, visible_subcommands};
use super::complete::CursorPosition;
use super::error::CliError;
use crate::api::Question;
use crate::domain::text::suggestion::{did_you_mean, nearest};
use crate::front::text::commands::{Command as Typed, Commands, Hint, hint, line};

/// The most allowed values that an error lists. If there are more, the hint names the help.
const VALUES_SHOWN_MAX: usize = 12;

/// Words that newcomers try first, and the commands that do the same here.
const TIPS: [(&str, &[&str]); 6] = [
    ("start", &["up"]),
    ("status", &["team", "tasks"]),
    ("list", &["tasks"]),
    ("add", &["tasks add SUBJECT"]),
    ("approve", &["review approve", "plan approve"]),
    ("version", &["--version"]),
];

/// Returns true if clap's "error" is the help or the version.
pub fn is_help(error: &Error) -> bool {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    matches!(error.kind(), DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand)
}

/// Returns the error for `words`, the arguments after the program's name. Its message has commands as they are typed.
pub fn argument_error(error: &Error, words: &[&str], commands: &Commands) -> CliError {
    let typed = TypedCommand::of(words, commands);
    let argument =
        context_value(error, ContextKind::InvalidArg).map(|argument| without_brackets(&argument)).unwrap_or_default();
    match error.kind() {
        ErrorKind::InvalidSubcommand => typed.unknown_command(error),
        ErrorKind::UnknownArgument => typed.unknown_argument(&argument),
        ErrorKind::InvalidValue => typed.invalid_value(error, &argument, words),
        ErrorKind::ValueValidation => {
            let value = context_value(error, ContextKind::InvalidValue).unwrap_or_default();
            let reason = error.source().map(ToString::to_string).unwrap_or_default();
            let message = format!("cannot use `{value}` as `{}`: {reason}", option_of(&argument));
            CliError::usage(message).hint(typed.help())
        }
        ErrorKind::MissingRequiredArgument => {
            let missing = context_values(error, ContextKind::InvalidArg);
            let missing: Vec<String> =
                missing.iter().map(|argument| format!("`{}`", without_brackets(argument))).collect();
            let message = format!("{} needs {}", typed.name(), missing.join(" and "));
            CliError::usage(message).hint(completed_command(words, &context_values(error, ContextKind::InvalidArg)))
        }
        ErrorKind::ArgumentConflict => {
            let others = context_values(error, ContextKind::PriorArg);
            let others: Vec<String> =
                others.iter().map(|other| format!("`{}`", option_of(&without_brackets(other)))).collect();
            let argument = option_of(&argument);
            let is_repeated = others.is_empty() || others.iter().any(|other| *other == format!("`{argument}`"));
            let message = if is_repeated {
                format!("`{argument}` can be used only once")
            } else {
                format!("`{argument}` cannot be used with {}", others.join(" or "))
            };
            CliError::usage(message).hint(typed.help())
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let message = format!("{} needs a command", typed.name());
            CliError::usage(message).hint(hint![typed.help(), " lists the commands"])
        }
        _ => {
            let text = error.render().to_string();
            let first = text.lines().next().unwrap_or_default();
            CliError::usage(first.trim_start_matches("error: ")).hint(typed.help())
        }
    }
}

/// The typed command with its missing arguments.
fn completed_command(words: &[&str], missing: &[String]) -> Typed {
    let quoted = words.iter().map(|word| shlex::try_quote(word).unwrap_or_default().into_owned());
    let words: Vec<String> = quoted.chain(missing.iter().map(|argument| without_brackets(argument))).collect();
    line(words.join(" "))
}

/// The typed command: the longest path that clap knows.
struct TypedCommand<'a> {
    path: Vec<&'static str>,
    command: &'static Command,
    commands: &'a Commands,
}

impl<'a> TypedCommand<'a> {
    fn of(words: &[&str], commands: &'a Commands) -> Self {
        let CursorPosition { path, command, .. } = CursorPosition::after(words);
        Self { path, command, commands }
    }

    /// The command as it is typed, for a message.
    fn name(&self) -> String {
        self.commands.typed(self.with::<&str>([]))
    }

    /// The command with more words.
    fn with<T: Into<String>>(&self, more: impl IntoIterator<Item = T>) -> Typed {
        let path = self.path.iter().map(|word| (*word).to_owned());
        line(path.chain(more.into_iter().map(Into::into)).collect::<Vec<String>>().join(" "))
    }

    /// The command that shows its help.
    fn help(&self) -> Typed {
        self.with(["--help"])
    }

    /// The command with its positional arguments.
    fn usage(&self) -> Typed {
        self.with(positionals(self.command))
    }

    fn unknown_command(&self, error: &Error) -> CliError {
        let word = context_value(error, ContextKind::InvalidSubcommand).unwrap_or_default();
        let message = format!("unknown command {}", self.commands.typed(self.with([word.as_str()])));
        let tip = TIPS.iter().find(|(known, _)| self.path.is_empty() && *known == word);
        if self.path == ["tasks"]
            && let Ok(id) = task_id(&word)
        {
            return CliError::usage(message).hint(hint!["did you mean ", Question::Task { task: id }, "?"]);
        }
        let meant = nearest(&word, visible_subcommands(self.command).map(Command::get_name));
        CliError::usage(message).hint(match (tip, meant) {
            (Some((_, commands)), _) => {
                let mut hint = Hint::from("did you mean ");
                for (index, command) in commands.iter().enumerate() {
                    hint += if index == 0 { "" } else { " or " };
                    hint += line(*command);
                }
                hint![hint, "?"]
            }
            (None, Some(meant)) => hint!["did you mean ", self.with([meant]), "?"],
            (None, None) => hint![self.help(), " lists the commands"],
        })
    }

    fn unknown_argument(&self, argument: &str) -> CliError {
        if !argument.starts_with('-') {
            let message = format!("unexpected argument `{argument}` for {}", self.name());
            let takes_text = self.command.get_arguments().any(|option| {
                option.get_value_names().is_some_and(|names| names.iter().any(|name| name.as_str() == "TEXT"))
            });
            let quotes = if takes_text { "; quote a TEXT of several words" } else { "" };
            return CliError::usage(message).hint(hint![self.usage(), quotes]);
        }
        let message = format!("unknown option `{argument}` for {}", self.name());
        let options = self.command.get_arguments().filter(|option| !option.is_hide_set());
        // The dashes would make all of them similar.
        let typed = argument.trim_start_matches('-');
        CliError::usage(message).hint(match nearest(typed, options.filter_map(clap::Arg::get_long)) {
            Some(meant) => format!("did you mean `--{meant}`?").into(),
            None => hint![self.help(), " lists the options"],
        })
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

    fn invalid_value(&self, error: &Error, argument: &str, words: &[&str]) -> CliError {
        let value = context_value(error, ContextKind::InvalidValue).unwrap_or_default();
        let allowed = context_values(error, ContextKind::ValidValue);
        let list = match allowed.len() {
            0 => String::new(),
            1..=VALUES_SHOWN_MAX => format!(": allowed are {}", allowed.join(", ")),
            count => format!(": it is not one of the {count} allowed values"),
        };
        let message = match value.as_str() {
            "" => format!("`{argument}` needs a value{list}"),
            value => {
                let option = option_of(argument);
                let source = self.variable_of(&option, words).unwrap_or(option);
                format!("cannot use `{value}` as `{source}`{list}")
            }
        };
        let meant = did_you_mean(&value, allowed.iter().map(String::as_str));
        CliError::usage(message).hint(meant.map_or_else(|| hint![self.help(), " describes the values"], Hint::from))
    }
}

fn context_value(error: &Error, kind: ContextKind) -> Option<String> {
    context_values(error, kind).into_iter().next()
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
    use crate::front::cli::commands::root;
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
            ("start", "unknown command `brigade start`", Some("did you mean `brigade up`?")),
            ("status", "unknown command `brigade status`", Some("did you mean `brigade team` or `brigade tasks`?")),
            ("tasks sow", "unknown command `brigade tasks sow`", Some("did you mean `brigade tasks show`?")),
            ("tasks 12", "unknown command `brigade tasks 12`", Some("did you mean `brigade tasks show 12`?")),
            (
                "config list",
                "unknown command `brigade config list`",
                Some("`brigade config --help` lists the commands"),
            ),
            ("log --lsat 3", "unknown option `--lsat` for `brigade log`", Some("did you mean `--last`?")),
            (
                "review reject 3 --feedback not enough",
                "unexpected argument `enough` for `brigade review reject`",
                Some("`brigade review reject [ID]`; quote a TEXT of several words"),
            ),
            ("why 1 2", "unexpected argument `2` for `brigade why`", Some("`brigade why ID`")),
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

    #[test]
    fn tips_name_no_existing_command() {
        for (word, _) in TIPS {
            assert!(root().find_subcommand(word).is_none(), "{word} is a command");
        }
    }
}
