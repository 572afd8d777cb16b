//! The tables of `docs/commands.md` and `docs/configuration.md`, generated from the commands and the settings.

use brigade::config::settings::{
    self, BUDGET_SETTINGS, COMPAT_SETTINGS, LEAD_SETTINGS, LIMIT_SETTINGS, MEMBER_BUDGET_SETTINGS, MEMBER_SETTINGS,
    MODEL_SETTINGS, NOTIFY_SETTINGS, OF_ADDRESS, OF_MODEL, PRICE_SETTINGS, Setting, TEAM_SETTINGS, TOP_SETTINGS,
    ValueKind,
};
use brigade::front::cli::commands::{about, positionals, root, value_name, visible_subcommands};
use brigade::front::cli::exit::Exit;
use clap::{Arg, Command};

/// The table of all commands and subcommands.
pub fn command_table() -> String {
    let row = |(name, command): (String, &Command)| {
        let words: Vec<String> = std::iter::once(name).chain(positionals(command)).collect();
        format!("| `brigade {}` | {} |\n", words.join(" "), about(command))
    };
    "| command | does |\n|---|---|\n".to_owned() + &all_commands().map(row).collect::<String>()
}

/// All commands and subcommands, with the words that call them.
fn all_commands() -> impl Iterator<Item = (String, &'static Command)> {
    visible_subcommands(root()).flat_map(|command| {
        let name = command.get_name();
        let subcommands = visible_subcommands(command)
            .map(move |subcommand| (format!("{name} {}", subcommand.get_name()), subcommand));
        std::iter::once((name.to_owned(), command)).chain(subcommands)
    })
}

/// The table of the options of all commands and subcommands.
pub fn option_table() -> String {
    let global = root().get_arguments().filter(|argument| argument.is_global_set());
    let rows = global.map(|argument| option_row("", argument)).chain(all_commands().flat_map(|(name, command)| {
        let own = command.get_arguments().filter(|argument| !argument.is_global_set() && !argument.is_hide_set());
        own.map(move |argument| option_row(&format!("{name} "), argument))
    }));
    "| option | does |\n|---|---|\n".to_owned() + &rows.collect::<String>()
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

/// The table of exit codes.
pub fn exit_code_table() -> String {
    let rows = Exit::ALL.map(|exit| format!("| {} | {} |\n", exit as u8, exit.meaning()));
    "| exit code | meaning |\n|---|---|\n".to_owned() + &rows.concat()
}

/// The headings and tables of all settings, in Markdown.
pub fn setting_tables() -> String {
    let tables = [
        ("The file", TOP_SETTINGS),
        ("`[teams.NAME]`", TEAM_SETTINGS),
        ("`[teams.NAME.lead]`", LEAD_SETTINGS),
        ("`[[teams.NAME.members]]`", MEMBER_SETTINGS),
        ("`[teams.NAME.budget]`", BUDGET_SETTINGS),
        ("`budget` of a member or the lead", MEMBER_BUDGET_SETTINGS),
        ("`[teams.NAME.notify]`", NOTIFY_SETTINGS),
        ("`[teams.NAME.limits]`, or `[limits]` for all teams", LIMIT_SETTINGS),
        ("`[prices.\"MODEL\"]`", PRICE_SETTINGS),
    ];
    // The settings of requests have a page of their own.
    let table = |(heading, settings): (&str, &[Setting])| {
        let rows = settings.iter().filter(|setting| !is_of_request(setting));
        format!("## {heading}\n\n{}\n", setting_table(rows))
    };
    tables.map(table).concat()
}

fn is_of_request(setting: &Setting) -> bool {
    let keys = OF_ADDRESS.iter().chain(&OF_MODEL).filter(|key| **key != "context_window_tokens");
    !LIMIT_SETTINGS.contains(setting) && keys.into_iter().any(|key| *key == setting.key)
}

/// The tables of the settings of requests, in Markdown.
pub fn model_setting_tables() -> String {
    let tables = [("`[models.NAME]`, and each lead and member", MODEL_SETTINGS), ("`compat`", COMPAT_SETTINGS)];
    tables.map(|(heading, settings)| format!("## {heading}\n\n{}\n", setting_table(settings.iter()))).concat()
}

fn setting_table<'a>(settings: impl Iterator<Item = &'a Setting>) -> String {
    let rows: String = settings.map(setting_row).collect();
    format!("| key | value | meaning |\n|---|---|---|\n{rows}")
}

fn setting_row(setting: &Setting) -> String {
    let default = settings::limit_default(setting).map(|default| format!(" Default: {default}.")).unwrap_or_default();
    let variable = setting.variable.map(|variable| format!(" `{variable}`")).unwrap_or_default();
    format!("| `{}` | {} | {}{default}{variable} |\n", setting.key, value(setting.kind), setting.description)
}

fn value(kind: ValueKind) -> String {
    match kind {
        ValueKind::Text => "text".to_owned(),
        ValueKind::Command => "command".to_owned(),
        ValueKind::Address => "address".to_owned(),
        ValueKind::Prompt => "text or file".to_owned(),
        ValueKind::Path => "file".to_owned(),
        ValueKind::Name => "name".to_owned(),
        ValueKind::Provider => words(settings::providers()),
        ValueKind::Choice(choices) => words(choices.iter().copied()),
        ValueKind::Words => "list of words".to_owned(),
        ValueKind::Texts => "table of texts".to_owned(),
        ValueKind::Json => "table of any values".to_owned(),
        ValueKind::Record(_) => "table".to_owned(),
        ValueKind::Flag => "`true` or `false`".to_owned(),
        ValueKind::Integer(min, max) => format!("{min} to {max}"),
        ValueKind::Decimal(max) => format!("0 to {max}"),
        ValueKind::Table(_) | ValueKind::Tables(_) | ValueKind::Named(_) => "table".to_owned(),
    }
}

fn words(words: impl Iterator<Item = &'static str>) -> String {
    words.map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}
