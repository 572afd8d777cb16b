//! `brigade send`.

use super::arguments::text_or_stdin;
use super::context::Context;
use super::error::CliResult;
use super::order;
use super::output::CommandAnswer;
use super::stop::next_start;
use crate::api::Order;
use crate::api::Question;
use crate::api::send::{Reading, Sent};
use crate::domain::team::name::ALL;
use crate::front::text::commands::hint;
use crate::front::text::lead_status::delivery;
use crate::front::text::lines::{count, join_up_to, one_line};

/// The most names in a note.
const NAMES_MAX: usize = 10;

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

/// Sent messages as the answer.
pub(super) fn answer(context: &Context, sent: Sent) -> CliResult<CommandAnswer> {
    let Sent { to, messages, left_out, without_model, reading } = sent;
    let answer = context.output.answer(&messages, || {
        let is_to_all = to.eq_ignore_ascii_case(ALL);
        let whom = if is_to_all { format!("all {}", count(messages.len(), "member")) } else { one_line(&to) };
        format!("sent to {whom}\n")
    })?;
    let answer = answer.notes((!left_out.is_empty()).then(|| {
        let names = join_up_to(left_out.iter(), NAMES_MAX);
        format!("not sent to {names}: not in the running team; the next launch starts the members of the config")
    }));
    let answer = answer.notes(
        without_model.map(|who| format!("{who} has no model (provider runbook): it reads the mail and cannot answer")),
    );
    Ok(answer.notes(match reading {
        Reading::OwnInbox => Some(hint!["it is in your own inbox: ", Question::Inbox]),
        Reading::OnRequest => {
            let whom = one_line(&to);
            Some(format!("{whom} is an agent of another program, and reads its mail when it asks for it").into())
        }
        Reading::AfterStart(start) => {
            Some(format!("{} is stopped, and reads it later: {}", one_line(&to), next_start(start)).into())
        }
        Reading::ByTeam(time) => delivery(time, "message"),
    }))
}
