//! `brigade config`.

use std::fmt::Write as _;

use serde_json::Value;

use super::context::Context;
use super::error::{CliError, CliResult};
use super::location;
use super::output::CommandAnswer;
use crate::config::{Resolved, ResolvedValue, Source, TeamFlags, schema};
use crate::front::text::style::{BOLD, DIM, PLAIN};
use crate::front::text::table::{Cell, Table};

/// Show the config and the source of each value
#[derive(Debug, clap::Args)]
pub struct ConfigCommand {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    /// Show each value of a team and its source
    ///
    /// The strongest source wins: flag, environment variable, brigade.toml, the user's config.toml, default. The user's
    /// config.toml gives defaults to the teams in brigade.toml and adds no teams. The variables are
    /// BRIGADE_GOAL, BRIGADE_PLAN, BRIGADE_DONE_WHEN, BRIGADE_PROVIDER, BRIGADE_MODEL, BRIGADE_BASE_URL (the lead's),
    /// BRIGADE_DURABILITY, and for each limit its key: BRIGADE_TURNS_MAX.
    Show {
        /// The team [default: all teams]
        team: Option<String>,
    },
    /// Print the JSON Schema of brigade.toml
    Schema,
}

impl ConfigCommand {
    /// Shows the config or its schema.
    ///
    /// # Errors
    /// The config does not exist or is invalid.
    pub fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        match self.command {
            Subcommand::Show { team } => show(context, team.as_deref()),
            Subcommand::Schema => {
                let text = schema::text();
                let schema: Value = serde_json::from_str(&text)
                    .map_err(|error| CliError::refused(format!("cannot print the schema: {error}")))?;
                context.output.answer(&schema, || text)
            }
        }
    }
}

fn show(context: &Context, team: Option<&str>) -> CliResult<CommandAnswer> {
    let config = context.workspace.location.config()?;
    let names = match team {
        Some(team) => vec![config.select(Some(team))?],
        None => config.team_names(),
    };
    if names.is_empty() {
        config.select(None)?;
    }
    let mut teams = Vec::with_capacity(names.len());
    for name in &names {
        teams.push(config.team(name, &TeamFlags::default())?);
    }
    let data: Vec<Value> = teams.iter().map(as_json).collect();
    context.output.answer(&data, || as_text(&teams, context))
}

fn as_json(team: &Resolved) -> Value {
    serde_json::json!({ "team": team.spec.name, "values": team.values })
}

fn as_text(teams: &[Resolved], context: &Context) -> String {
    let mut out = String::new();
    for (index, team) in teams.iter().enumerate() {
        let gap = if index > 0 { "\n" } else { "" };
        let _ = writeln!(out, "{gap}{}", crate::front::text::style::paint(BOLD, team.spec.name.as_str()));
        let mut table = Table::new(&["KEY", "VALUE", "SOURCE"]).flexible(&["VALUE"]);
        for value in &team.values {
            table.row(row(value, context));
        }
        out.push_str(&table.render(context.output.columns));
    }
    out
}

fn row(value: &ResolvedValue, context: &Context) -> Vec<Cell> {
    let text = match &value.value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let style = if value.source == Source::Default { DIM } else { PLAIN };
    vec![value.key.as_str().into(), Cell::new(&text, style), Cell::new(&source(&value.source, context), DIM)]
}

fn source(source: &Source, context: &Context) -> String {
    match source {
        Source::Default => "default".to_owned(),
        Source::Flag { flag } => (*flag).to_owned(),
        Source::Environment { variable } => variable.clone(),
        Source::File { path, line } => format!("{}:{line}", location::display(&context.workspace.location, path)),
        Source::Lead { source: lead } => format!("the lead's, {}", self::source(lead, context)),
    }
}
