//! `brigade send`.

use super::arguments::text_or_stdin;
use super::context::Context;
use super::error::{CliError, CliResult};
use super::output::CommandAnswer;
use super::stop::next_start;
use crate::api::lead_status::LeadStatus;
use crate::api::members;
use crate::api::stop::NextStart;
use crate::domain::team::name::{ALL, HUMAN, Name};
use crate::domain::team::records::MemberStatus;
use crate::domain::team::team_spec::TeamSpec;
use crate::ports::StoreError;
use crate::stores::workspace::OpenMode;
use crate::ui::lead_status::delivery;
use crate::ui::text::{count, join_up_to, one_line};

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
        if text.trim().is_empty() {
            return Err(CliError::usage("cannot send an empty message"));
        }
        let stores = context.workspace.stores(OpenMode::Write).await?;
        let team = members::open_inboxes(&context.workspace, &stores).await?;
        let mut is_outside = false;
        let to_all = self.to.eq_ignore_ascii_case(ALL);
        let members = match &team {
            Some(team) => {
                let mut roster = stores.roster.read().await?;
                is_outside = roster.iter().any(|row| row.is_outside() && row.name.eq_ignore_ascii_case(&self.to));
                // An agent of another program that has ended reads no broadcast.
                roster.retain(|row| !row.is_outside() || row.status != MemberStatus::Shutdown);
                members::names_of_team(team, &roster)
            }
            None if to_all => {
                return Err(CliError::usage("cannot send to `all`: the config does not have exactly one team")
                    .hint("send to each teammate by name"));
            }
            None => Vec::new(),
        };
        if to_all && members.is_empty() {
            return Err(CliError::usage("cannot send to `all`: the team has no teammates")
                .hint("to write to the lead: `brigade send lead TEXT`"));
        }
        let sent = context.workspace.outbox(&stores).send_from_person(&self.to, &members, &text).await;
        let sent = sent.map_err(|error| send_error(error, team.as_ref()))?;
        let number = sent.len();
        let answer = context.output.answer(&sent, || {
            let whom = if to_all { format!("all {}", count(number, "member")) } else { one_line(&self.to) };
            format!("sent to {whom}\n")
        })?;
        let is_left_out = |name: &&Name| to_all && !sent.iter().any(|message| name.is_same(&message.to));
        let left_out: Vec<&Name> = members.iter().filter(is_left_out).collect();
        let answer = answer.notes((!left_out.is_empty()).then(|| {
            let names = join_up_to(left_out.into_iter(), NAMES_MAX);
            format!("not sent to {names}: not in the running team; the next launch starts the members of the config")
        }));
        let answer = answer.notes(
            reader_without_model(&self.to, team.as_ref())
                .map(|who| format!("{who} has no model (provider runbook): it reads the mail and cannot answer")),
        );
        if self.to.eq_ignore_ascii_case(HUMAN) {
            return Ok(answer.note("it is in your own inbox: `brigade inbox`"));
        }
        if is_outside {
            let whom = one_line(&self.to);
            return Ok(
                answer.note(format!("{whom} is an agent of another program, and reads its mail when it asks for it"))
            );
        }
        let lead_status = LeadStatus::with_state(&context.workspace).await.unwrap_or_default();
        if lead_status.has_stopped(&self.to) {
            let start = next_start(NextStart::of(&context.workspace, &self.to));
            return Ok(answer.note(format!("{} is stopped, and reads it later: {start}", one_line(&self.to))));
        }
        Ok(answer.notes(delivery(lead_status.delivery(), "message")))
    }
}

/// The recipient, if its provider has no model.
fn reader_without_model(to: &str, team: Option<&TeamSpec>) -> Option<String> {
    let team = team?;
    let member = team.members.iter().chain([&team.lead]).find(|member| member.name.is_same(to))?;
    if member.has_model() { None } else { Some(member.name.to_string()) }
}

fn send_error(error: StoreError, team: Option<&TeamSpec>) -> CliError {
    let StoreError::UnknownRecipient { name, recipients } = &error else { return error.into() };
    let recipient = one_line(name);
    // Without a running team, the members of the config have inboxes.
    if team.is_some_and(|team| team.members.iter().any(|member| member.name.is_same(name))) {
        let message =
            format!("cannot send to `{recipient}`: it is not in the running team, and starts at the next launch");
        return CliError { message, ..error.into() }.hint("`brigade stop`, then `brigade up`");
    }
    let message = format!("cannot send to `{recipient}`: recipients are {}, {ALL}", recipients.join(", "));
    CliError { message, ..error.into() }
}
