//! The list of commands, from clap's derive, which is the only list. The help, the slash commands of the interactive session,
//! completions, hints and the tables of `docs/commands.md` come from it.

use std::sync::LazyLock;

use clap::{Arg, Command, CommandFactory as _};

use super::Cli;

/// Subcommands that are named in a usage; for more, `…` follows.
const SUBCOMMANDS_SHOWN_MAX: usize = 4;

/// The root of the command tree, with global arguments added to each subcommand.
static ROOT: LazyLock<Command> = LazyLock::new(|| {
    let mut root = Cli::command();
    root.build();
    root
});

/// The root of the command tree.
pub fn root() -> &'static Command {
    &ROOT
}

/// The subcommands that help lists, without `help` itself.
pub fn visible_subcommands(command: &'static Command) -> impl Iterator<Item = &'static Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

/// The one-line description of a command.
pub fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

/// The words after the command's name: its subcommands or its positional arguments, without options.
pub fn arguments(command: &'static Command) -> String {
    let names: Vec<&str> = visible_subcommands(command).map(Command::get_name).collect();
    let mut words = Vec::new();
    if !names.is_empty() {
        let shown = names[..names.len().min(SUBCOMMANDS_SHOWN_MAX)].join("|");
        let more = if names.len() > SUBCOMMANDS_SHOWN_MAX { " …" } else { "" };
        words.push(if command.is_subcommand_required_set() { shown + more } else { format!("[{shown}{more}]") });
    }
    words.extend(positionals(command));
    words.join(" ")
}

/// The positional arguments as words of a usage: `ID`, or `[ID]` if it is optional.
pub fn positionals(command: &Command) -> impl Iterator<Item = String> {
    command.get_positionals().map(|positional| {
        let name = value_name(positional);
        if positional.is_required_set() { name } else { format!("[{name}]") }
    })
}

/// The word that stands for an argument's value in its help.
pub fn value_name(argument: &Arg) -> String {
    let named = argument.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
    named.unwrap_or_else(|| argument.get_id().as_str().to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(name: &str) -> &'static Command {
        root().find_subcommand(name).unwrap()
    }

    #[test]
    fn usage_comes_from_clap() {
        assert_eq!(arguments(command("why")), "ID");
        assert_eq!(arguments(command("inbox")), "[NAME]");
        assert_eq!(arguments(command("config")), "show|schema");
        assert_eq!(arguments(command("review")), "[list|show|approve|reject]");
    }

    #[test]
    fn every_command_has_a_description() {
        let mut left: Vec<&'static Command> = visible_subcommands(root()).collect();
        while let Some(command) = left.pop() {
            assert!(!about(command).is_empty(), "{}", command.get_name());
            left.extend(visible_subcommands(command));
        }
    }

    /// Values with a form or bounds are described in the help of their option.
    #[test]
    fn help_names_values_and_bounds() {
        const WITH_FORM: [&str; 6] = ["N", "TIME", "COUNT", "SECONDS", "MOMENT", "RUN"];
        let mut left = vec![root()];
        while let Some(command) = left.pop() {
            for argument in command.get_arguments().filter(|argument| argument.get_action().takes_values()) {
                let name = format!("{} {argument}", command.get_name());
                if !argument.get_possible_values().is_empty() {
                    assert!(!argument.is_hide_possible_values_set(), "{name} hides its values");
                } else if WITH_FORM.contains(&value_name(argument).as_str()) {
                    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
                    assert!(help.contains(|c: char| c.is_ascii_digit() || c == '`'), "{name}: {help}");
                }
            }
            left.extend(visible_subcommands(command));
        }
    }
}
