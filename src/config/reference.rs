//! Generates the tables of `docs/configuration.md` from the tables of settings.

use super::settings::{
    BUDGET_SETTINGS, LEAD_SETTINGS, LIMIT_SETTINGS, LIMITS, MEMBER_SETTINGS, NOTIFY_SETTINGS, PRICE_SETTINGS, Setting,
    TEAM_SETTINGS, TOP_SETTINGS, ValueKind,
};
use crate::domain::team_spec::Limits;

/// The headings and tables of all settings, in Markdown.
#[must_use]
pub fn settings() -> String {
    let tables = [
        ("The file", TOP_SETTINGS),
        ("`[teams.NAME]`", TEAM_SETTINGS),
        ("`[teams.NAME.lead]`", LEAD_SETTINGS),
        ("`[[teams.NAME.members]]`", MEMBER_SETTINGS),
        ("`[teams.NAME.budget]`", BUDGET_SETTINGS),
        ("`[teams.NAME.notify]`", NOTIFY_SETTINGS),
        ("`[teams.NAME.limits]`, or `[limits]` for all teams", LIMIT_SETTINGS),
        ("`[prices.\"MODEL\"]`", PRICE_SETTINGS),
    ];
    tables.map(|(heading, settings)| format!("## {heading}\n\n{}\n", table(settings))).concat()
}

fn table(settings: &[Setting]) -> String {
    let rows: String = settings.iter().map(row).collect();
    format!("| key | value | meaning |\n|---|---|---|\n{rows}")
}

fn row(setting: &Setting) -> String {
    let default = LIMITS.iter().find(|limit| limit.setting == *setting);
    let default = default.map(|limit| format!(" Default: {}.", (limit.get)(&Limits::default()))).unwrap_or_default();
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
        ValueKind::Provider => words(super::settings::providers()),
        ValueKind::Choice(choices) => words(choices.iter().copied()),
        ValueKind::Words => "list of words".to_owned(),
        ValueKind::Flag => "`true` or `false`".to_owned(),
        ValueKind::Integer(min, max) => format!("{min} to {max}"),
        ValueKind::Decimal(max) => format!("0 to {max}"),
        ValueKind::Table(_) | ValueKind::Tables(_) | ValueKind::Named(_) => "table".to_owned(),
    }
}

fn words(words: impl Iterator<Item = &'static str>) -> String {
    words.map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}
