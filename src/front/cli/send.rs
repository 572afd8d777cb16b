//! `brigade send`.

use super::arguments::text_or_stdin;
use super::context::Context;
use super::error::CliResult;
use super::order;
use super::output::CommandAnswer;
use crate::api::Order;

/// Send a message to a teammate, to `lead`, or to `all`, even if the team does not run
#[derive(Debug, clap::Args)]
pub struct Send {
    /// The recipient: a member, `lead`, or `all`
    to: String,
    /// The text; `-` reads it from stdin
    #[arg(required = true, num_args = 1.., value_name = "TEXT")]
    text: Vec<String>,
}

impl Send {
    /// Sends the message.
    ///
    /// # Errors
    /// There is no such recipient, the inbox is full, or the text is empty or too long.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        let text = text_or_stdin(self.text.join(" "))?;
        order::give(context, Order::Send { to: self.to, text }).await
    }
}
