//! `brigade inbox`.

use serde_json::value::RawValue;
use std::collections::HashSet;

use super::asks::question_to_you;
use super::context::Context;
use super::error::{CliError, CliResult};
use super::output::Answer;
use super::waiting::{Waiting, delivered, new_mail};
use crate::domain::message::{Message, MessageType};
use crate::domain::name::HUMAN;
use crate::domain::questions::Questions;
use crate::domain::request::{RequestBook, RequestKind};
use crate::domain::time::UnixMs;
use crate::domain::transcript::{Block, Entry, MessageRecord, Record, Role};
use crate::ports::{Delivery, Stores};
use crate::stores::open::Purpose;
use crate::ui::approvals;
use crate::ui::style::{BOLD, DIM, paint};
use crate::ui::text::{ago, indented, one_line};

/// Mail that was read before is shown up to this many messages.
const READ_MAX: usize = 20;
/// A message's lines begin behind so many spaces.
const INDENT: usize = 2;

/// Show the mail that waits for somebody: a teammate, `lead`, or `human` for yours
///
/// Looking takes nothing away. `--take` empties your own inbox once it is shown; `--read` shows again what was taken.
#[derive(Debug, clap::Args)]
pub struct Inbox {
    /// Whose
    #[arg(default_value = HUMAN)]
    name: String,
    /// Empty the inbox of `human` once it is shown
    #[arg(long)]
    take: bool,
    /// Show the last mail that was read, instead
    #[arg(long, conflicts_with = "take")]
    read: bool,
}

impl Inbox {
    /// Shows the inbox.
    ///
    /// # Errors
    /// Nobody of that name has one.
    pub async fn run(self, context: &Context) -> CliResult<Answer> {
        if (self.take || self.read) && self.name != HUMAN {
            let message = format!("the mail of {} is its own to take", one_line(&self.name));
            return Err(CliError::usage(message).hint("only that of `human` is yours"));
        }
        let stores = context.stores(Purpose::Act).await?;
        let team = context.open_inboxes(&stores).await?;
        if self.read {
            return read_before(context, stores.transcripts.load(HUMAN).await?);
        }
        let members = || team.iter().flat_map(|team| &team.members).map(|member| &member.name);
        let whose = members().find(|name| name.is_same(&self.name)).map_or(self.name.as_str(), |name| name.as_str());
        let deliveries = match self.take {
            true => stores.mailbox.take(HUMAN, &HashSet::new()).await?,
            false => stores.mailbox.peek(&self.name).await?,
        };
        // What was taken may still lie there though a transcript has it: only that says what was delivered, or shown.
        let shown = match deliveries.is_empty() {
            true => HashSet::new(),
            false => delivered(stores.transcripts.load(whose).await?),
        };
        if self.take {
            // A command ends before the store can be sure that nobody writes into what it takes; a later one lets go of it.
            stores.mailbox.settle(HUMAN, &shown).await?;
        }
        let new = new_mail(deliveries, &shown);
        let messages: Vec<&Message> = new.iter().map(|delivery| &delivery.message).collect();
        let book = stores.requests.all().await?;
        let answer = shown_as(context, &messages, (whose == HUMAN).then_some(&book))?;
        if messages.is_empty() {
            let name = if whose == HUMAN { "you".to_owned() } else { one_line(&self.name) };
            let answer = answer.note(paint(DIM, &format!("no mail waits for {name}")));
            if whose != HUMAN {
                return Ok(answer);
            }
            let answer = answer.note(paint(DIM, "brigade inbox --read shows what you have read"));
            let asked = Waiting::of(&stores).await?.questions;
            return Ok(asked
                .iter()
                .fold(answer, |answer, question| answer.note(context.hint(&question_to_you(question)))));
        }
        if self.take {
            // Printed first, to a reader that is there: mail that was taken and never shown would be lost.
            let unshown = |error| CliError::refused(format!("cannot write: {error}; the mail stays where it is"));
            context.print_whole(&answer.text).map_err(unshown)?;
            settle(&stores, &new, shown, context.now()).await?;
            return Ok(Answer { text: String::new(), ..answer });
        }
        let is_yours = whose == HUMAN;
        Ok(if is_yours { answer.note(paint(DIM, "it waits until brigade inbox --take")) } else { answer })
    }
}

/// The last mail that the person was shown.
fn read_before(context: &Context, records: Vec<Record>) -> CliResult<Answer> {
    let told = records.into_iter().filter_map(|record| match record.entry {
        Entry::Message(message) if message.role == Role::User => Some(message.content),
        _ => None,
    });
    let text_of = |block: Block| match block {
        Block::Text { text } => Message::parse(text.as_bytes()).ok(),
        _ => None,
    };
    let messages: Vec<Message> = told.flatten().filter_map(text_of).collect();
    let last: Vec<&Message> = messages.iter().skip(messages.len().saturating_sub(READ_MAX)).collect();
    let answer = shown_as(context, &last, None)?;
    Ok(if last.is_empty() { answer.note(paint(DIM, "no mail was read")) } else { answer })
}

/// Messages as an answer; to the person, who has a book of requests, also how what is asked is answered, or was.
fn shown_as(context: &Context, messages: &[&Message], book: Option<&RequestBook>) -> CliResult<Answer> {
    let columns = context.output.columns;
    let text = || {
        let shown = |message: &&Message| {
            let how = book.and_then(|book| answered(message, book, context.now()).or_else(|| how_to_answer(message)));
            let how = how.map(|how| format!("  {}\n", paint(DIM, &context.hint(&how))));
            as_text(message, context.now(), columns) + &how.unwrap_or_default()
        };
        messages.iter().map(shown).collect()
    };
    context.output.answer(&as_json(messages), text)
}

/// How the request of a message was answered, where it was.
fn answered(message: &Message, book: &RequestBook, now: UnixMs) -> Option<String> {
    let id = message.request_id.as_ref()?;
    let answer = book.requests.iter().find(|request| request.id == *id)?.answer.as_ref()?;
    Some(format!("{} {}", answer.in_short(), ago(answer.at, now)))
}

/// How a person answers what asks for that.
fn how_to_answer(message: &Message) -> Option<String> {
    match (message.kind, &message.request_id) {
        (MessageType::PlanApprovalRequest, Some(id)) => {
            Some(approvals::how_to_answer(RequestKind::PlanApproval, &one_line(id)))
        }
        (MessageType::Message, Some(id)) if message.approve.is_none() => {
            Some(approvals::how_to_answer(RequestKind::Review, &one_line(id)))
        }
        _ if Questions::asks(message) => Some(format!("brigade send {} TEXT answers", one_line(&message.from))),
        _ => None,
    }
}

/// Notes in the transcript of `human` what was shown; what held it can go then.
async fn settle(stores: &Stores, new: &[Delivery], shown: HashSet<String>, now: UnixMs) -> CliResult<()> {
    let content = new.iter().map(|delivery| Block::text(delivery.message.to_line())).collect();
    let delivered: Vec<String> = new.iter().map(|delivery| delivery.key.clone()).collect();
    let all = shown.into_iter().chain(delivered.iter().cloned()).collect();
    let record = MessageRecord { delivered, ..MessageRecord::new(Role::User, content) };
    stores.transcripts.append(HUMAN, &[Record { at: now, entry: Entry::Message(record) }], true).await?;
    stores.mailbox.settle(HUMAN, &all).await?;
    Ok(())
}

/// The messages as they stand in the file.
fn as_json(messages: &[&Message]) -> Vec<Box<RawValue>> {
    messages.iter().filter_map(|message| RawValue::from_string(message.to_line()).ok()).collect()
}

fn as_text(message: &Message, now: UnixMs, columns: usize) -> String {
    // Seconds of a few thousand years: a float holds their milliseconds.
    let at = UnixMs((message.timestamp * 1000.0) as i64);
    let kind = match (message.kind, &message.request_id) {
        (MessageType::Message, Some(id)) if message.approve.is_none() => format!("asks for review {}, ", one_line(id)),
        (MessageType::Message, _) => String::new(),
        (MessageType::PlanApprovalRequest, Some(id)) => format!("hands in plan {}, ", one_line(id)),
        (kind, _) => format!("{}, ", kind.as_str().replace('_', " ")),
    };
    let from = if message.from.is_empty() { "?" } else { &message.from };
    let about = format!("{kind}{}", ago(at, now));
    let heading = format!("{} {}\n", paint(BOLD, &one_line(from)), paint(DIM, &about));
    let text = message.plan.as_deref().unwrap_or(&message.content);
    heading + &indented(text.trim_end(), columns, INDENT)
}
