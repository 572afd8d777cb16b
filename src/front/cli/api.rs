//! `brigade api`.

use super::context::Context;
use super::error::CliResult;
use super::output::CommandAnswer;
use crate::api::schema::schema;

/// Show what programs can ask and order
#[derive(Debug, clap::Args)]
pub struct Api {
    #[command(subcommand)]
    command: ApiCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ApiCommand {
    /// Print the JSON Schema of orders, answers and events
    Schema,
}

impl Api {
    /// Prints the schema, also without `--json`, because a program reads it.
    ///
    /// # Errors
    /// None.
    pub fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let ApiCommand::Schema = self.command;
        let schema = schema();
        context.output.answer(&schema, || format!("{:#}\n", schema.as_value()))
    }
}
