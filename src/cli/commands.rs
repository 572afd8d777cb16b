//! The list of commands, from clap's derive, which is the only list. The help, the slash commands of the interactive session,
//! completions, hints and the tables of `docs/commands.md` come from it.

use std::sync::LazyLock;

use clap::{Arg, Command, CommandFactory as _};

use super::Cli;
use super::exit::Exit;

/// Subcommands that are named in a usage; for more, `…` follows.
const SUBCOMMANDS_SHOWN_MAX: usize = 4;

/// The whole command tree.
static ROOT: LazyLock<Command> = LazyLock::new(|| {
    let mut root = Cli::command();
    root.build();
    root
});

/// The names of the commands that work on a workspace, so that hints add the flags that name it.
static WORKSPACE_COMMANDS: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| listed(root()).map(Command::get_name).filter(|name| *name != "completions").collect());

/// The names of the commands that an interactive session offers. A team runs in it already, and shells and MCP clients have their own terminal.
static REPL_COMMANDS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let others = ["init", "up", "run", "watch", "clean", "mcp", "completions"];
    listed(root()).map(Command::get_name).filter(|name| !others.contains(name)).collect()
});

/// The root of the command tree, with global arguments added to each subcommand.
pub fn root() -> &'static Command {
    &ROOT
}

/// The names of the commands that take `--workspace` and `--config` into account.
pub fn workspace_commands() -> &'static [&'static str] {
    &WORKSPACE_COMMANDS
}

/// The names of the commands that an interactive session offers as slash commands.
pub fn repl_commands() -> &'static [&'static str] {
    &REPL_COMMANDS
}

/// The subcommands that help lists, without `help` itself.
pub fn listed(command: &'static Command) -> impl Iterator<Item = &'static Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

/// The one-line description of a command.
pub fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

/// The words after the command's name: its subcommands or its positional arguments, without options.
pub fn arguments(command: &'static Command) -> String {
    let names: Vec<&str> = listed(command).map(Command::get_name).collect();
    let mut words = Vec::new();
    if !names.is_empty() {
        let shown = names[..names.len().min(SUBCOMMANDS_SHOWN_MAX)].join("|");
        let more = if names.len() > SUBCOMMANDS_SHOWN_MAX { " …" } else { "" };
        words.push(if command.is_subcommand_required_set() { shown + more } else { format!("[{shown}{more}]") });
    }
    for positional in command.get_positionals() {
        let name = value_name(positional);
        words.push(if positional.is_required_set() { name } else { format!("[{name}]") });
    }
    words.join(" ")
}

/// The word that stands for an argument's value in its help.
pub fn value_name(argument: &Arg) -> String {
    let named = argument.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
    named.unwrap_or_else(|| argument.get_id().as_str().to_uppercase())
}

/// The table of all commands and subcommands for `docs/commands.md`.
pub fn command_table() -> String {
    let mut table = "| command | does |\n|---|---|\n".to_owned();
    for (name, command) in all_commands() {
        table += &command_row(&name, command);
    }
    table
}

/// All commands and subcommands, with the words that call them.
fn all_commands() -> impl Iterator<Item = (String, &'static Command)> {
    listed(root()).flat_map(|command| {
        let name = command.get_name();
        let subcommands =
            listed(command).map(move |subcommand| (format!("{name} {}", subcommand.get_name()), subcommand));
        std::iter::once((name.to_owned(), command)).chain(subcommands)
    })
}

fn command_row(name: &str, command: &Command) -> String {
    let mut usage = name.to_owned();
    for positional in command.get_positionals() {
        let value = value_name(positional);
        usage += &if positional.is_required_set() { format!(" {value}") } else { format!(" [{value}]") };
    }
    format!("| `brigade {usage}` | {} |\n", about(command))
}

/// The table of the options of all commands and subcommands for `docs/commands.md`.
pub fn option_table() -> String {
    let mut table = "| option | does |\n|---|---|\n".to_owned();
    for argument in root().get_arguments().filter(|argument| argument.is_global_set()) {
        table += &option_row("", argument);
    }
    for (name, command) in all_commands() {
        table += &option_rows(&name, command);
    }
    table
}

fn option_rows(name: &str, command: &Command) -> String {
    let arguments = command.get_arguments().filter(|argument| !argument.is_global_set() && !argument.is_hide_set());
    arguments.map(|argument| option_row(&format!("{name} "), argument)).collect()
}

/// The row of an option; empty for a positional argument and for `--help`.
fn option_row(name: &str, argument: &Arg) -> String {
    let Some(long) = argument.get_long().filter(|long| *long != "help") else { return String::new() };
    let value = match argument.get_action().takes_values() {
        true => format!(" {}", value_name(argument)),
        false => String::new(),
    };
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    format!("| `{name}--{long}{value}` | {} |\n", help.replace('|', "\\|"))
}

/// The table of exit codes for `docs/commands.md`.
pub fn exit_code_table() -> String {
    let rows = Exit::ALL.map(|exit| format!("| {} | {} |\n", exit as u8, exit.meaning()));
    "| exit code | meaning |\n|---|---|\n".to_owned() + &rows.concat()
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
        let mut left: Vec<&'static Command> = listed(root()).collect();
        while let Some(command) = left.pop() {
            assert!(!about(command).is_empty(), "{}", command.get_name());
            left.extend(listed(command));
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
            left.extend(listed(command));
        }
    }

    #[test]
    fn readme_table_has_every_command() {
        let table = command_table();
        for command in listed(root()) {
            assert!(table.contains(&format!("| `brigade {}", command.get_name())), "{table}");
        }
        assert!(!table.contains("brigade complete `") && !table.contains("brigade help"), "{table}");
    }
}
