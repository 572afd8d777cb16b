//! Sends the person's messages.

use crate::api::next::{Launch, OrderForm};
use schemars::JsonSchema;
use serde::Serialize;

use super::lead_status::{Delivery, LeadStatus};
use super::members;
use super::refusal::{ApiResult, Refusal};
use super::stop::NextStart;
use super::workspace::Workspace;
use crate::domain::team::name::{ALL, HUMAN, LEAD, Name};
use crate::domain::team::records::MemberStatus;
use crate::domain::team::team_spec::TeamSpec;
use crate::domain::text::one_line;
use crate::ports::StoreError;
pub use crate::service::messages::SentMessage;
use crate::stores::workspace::OpenMode;

/// The messages that were sent, and when they are read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Sent {
    /// The recipient, as it was given: a member, `lead` or `all`.
    pub to: String,
    /// A message for each recipient.
    pub messages: Vec<SentMessage>,
    /// The members without an inbox, which a message to all does not reach. The next launch starts those of the config.
    #[schemars(with = "Vec<String>")]
    pub left_out: Vec<Name>,
    /// The recipient, if its provider has no model: it reads the mail and cannot answer.
    #[schemars(with = "Option<String>")]
    pub without_model: Option<Name>,
    /// The time at which the message is read.
    pub reading: Reading,
}

/// The time at which the recipient of a message reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    /// The person sent it to their own inbox.
    OwnInbox,
    /// The recipient is an agent of another program, and reads its mail when it asks for it.
    OnRequest,
    /// The recipient has stopped, and reads it after its next start.
    AfterStart(NextStart),
    /// The team decides.
    ByTeam(Delivery),
}

/// Sends the person's text to a member, to `lead`, or to `all`, even if the team does not run, and records it as the answer to open
/// questions. A message is in the inbox when this returns. After a crash, some recipients of `all` can have it and others not.
///
/// # Errors
/// The text is empty or too long, there is no such recipient, or its inbox is full. Recipients before it have got the message.
pub async fn send(workspace: &Workspace, to: &str, text: &str) -> ApiResult<Sent> {
    if text.trim().is_empty() {
        return Err(Refusal::invalid("cannot send an empty message"));
    }
    let stores = workspace.stores(OpenMode::Write).await?;
    let team = members::open_inboxes(workspace, &stores).await?;
    let mut is_outside = false;
    let to_all = to.eq_ignore_ascii_case(ALL);
    let members = match &team {
        Some(team) => {
            let mut roster = stores.roster.read().await?;
            is_outside = roster.iter().any(|row| row.is_outside() && row.name.eq_ignore_ascii_case(to));
            // An agent of another program that has ended reads no broadcast.
            roster.retain(|row| !row.is_outside() || row.status != MemberStatus::Shutdown);
            members::names_of_team(team, &roster)
        }
        None if to_all => {
            return Err(Refusal::invalid("cannot send to `all`: the config does not have exactly one team")
                .next("send to each teammate by name"));
        }
        None => Vec::new(),
    };
    if to_all && members.is_empty() {
        return Err(Refusal::invalid("cannot send to `all`: the team has no teammates")
            .next(OrderForm::Send { to: Some(LEAD.to_owned()) }));
    }
    let messages = workspace.outbox(&stores).send_from_person(to, &members, text).await;
    let messages = messages.map_err(|error| send_error(error, team.as_ref()))?;
    let is_left_out = |name: &Name| to_all && !messages.iter().any(|message| name.is_same(&message.to));
    let left_out = members.into_iter().filter(is_left_out).collect();
    let without_model = reader_without_model(to, team.as_ref());
    Ok(Sent { to: to.to_owned(), messages, left_out, without_model, reading: reading(workspace, to, is_outside).await })
}

async fn reading(workspace: &Workspace, to: &str, is_outside: bool) -> Reading {
    if to.eq_ignore_ascii_case(HUMAN) {
        return Reading::OwnInbox;
    }
    if is_outside {
        return Reading::OnRequest;
    }
    let status = LeadStatus::with_state(workspace).await.unwrap_or_default();
    if status.has_stopped(to) {
        return Reading::AfterStart(NextStart::of(workspace, to));
    }
    Reading::ByTeam(status.delivery())
}

/// The recipient, if its provider has no model.
fn reader_without_model(to: &str, team: Option<&TeamSpec>) -> Option<Name> {
    let team = team?;
    let member = team.members.iter().chain([&team.lead]).find(|member| member.name.is_same(to))?;
    if member.has_model() { None } else { Some(member.name.clone()) }
}

fn send_error(error: StoreError, team: Option<&TeamSpec>) -> Refusal {
    let StoreError::UnknownRecipient { name, recipients } = &error else { return error.into() };
    let recipient = one_line(name);
    // Without a running team, the members of the config have inboxes.
    if team.is_some_and(|team| team.members.iter().any(|member| member.name.is_same(name))) {
        let message =
            format!("cannot send to `{recipient}`: it is not in the running team, and starts at the next launch");
        return Refusal { message, ..error.into() }
            .steps([OrderForm::Stop { now: false }.into(), Launch::Up { team: None }.into()]);
    }
    let message = format!("cannot send to `{recipient}`: recipients are {}, {ALL}", recipients.join(", "));
    Refusal { message, ..error.into() }
}
