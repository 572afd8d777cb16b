//! `brigade inbox`.

use std::collections::HashSet;
use std::fmt::Write as _;

use serde_json::value::RawValue;

use super::context::Context;
use super::error::{CliError, CliResult};
use super::output::Answer;
use crate::domain::message::Message;
use crate::domain::name::HUMAN;
use crate::domain::time::UnixMs;
use crate::domain::transcript::{Block, Entry, MessageRecord, Record, Role};
use crate::ports::{Delivery, Stores};
use crate::stores::open::Purpose;
use crate::ui::style::{BOLD, DIM, paint};
use crate::ui::text::{ago, harmless, one_line};

/// Show the mail that waits for somebody: a teammate, `lead`, or `human` for yours
///
/// Looking takes nothing away. `--take` empties your own inbox once it is shown.
#[derive(Debug, clap::Args)]
pub struct Inbox {
    /// Whose
    #[arg(default_value = HUMAN)]
    name: String,
    /// Empty the inbox of `human` once it is shown
    #[arg(long)]
    take: bool,
}

impl Inbox {
    /// Shows the inbox.
    ///
    /// # Errors
    /// Nobody of that name has one.
    pub async fn run(self, context: &Context) -> CliResult<Answer> {
        if self.take && self.name != HUMAN {
            let message = format!("the mail of {} is its own to take", one_line(&self.name));
            return Err(CliError::usage(message).hint("only that of `human` is yours"));
        }
        let stores = context.stores(Purpose::Act).await?;
        let team = context.open_inboxes(&stores).await?;
        let members = || team.iter().flat_map(|team| &team.members).map(|member| &member.name);
        let whose = members().find(|name| name.is_same(&self.name)).map_or(self.name.as_str(), |name| name.as_str());
        let deliveries = match self.take {
            true => stores.mailbox.take(HUMAN, &HashSet::new()).await?,
            false => stores.mailbox.peek(&self.name).await?,
        };
        // What was taken may still lie there though a transcript has it: only that says what was delivered, or shown.
        let shown = if deliveries.is_empty() { HashSet::new() } else { shown_before(&stores, whose).await? };
        if self.take {
            // A command ends before the store can be sure that nobody writes into what it takes; a later one lets go of it.
            stores.mailbox.settle(HUMAN, &shown).await?;
        }
        let new: Vec<Delivery> = deliveries.into_iter().filter(|delivery| !shown.contains(&delivery.key)).collect();
        let messages: Vec<&Message> = new.iter().map(|delivery| &delivery.message).collect();
        let now = context.now();
        let answer = context.output.answer(&as_json(&messages), || as_text(&messages, now))?;
        let name = one_line(&self.name);
        if messages.is_empty() {
            return Ok(answer.note(paint(DIM, &format!("no mail waits for {name}"))));
        }
        if self.take {
            // Printed first, to a reader that is there: mail that was taken and never shown would be lost.
            let unshown = |error| CliError::refused(format!("cannot write: {error}; the mail stays where it is"));
            context.output.print_whole(&answer.text).map_err(unshown)?;
            settle(&stores, &new, shown, now).await?;
            return Ok(Answer { text: String::new(), ..answer });
        }
        Ok(answer)
    }
}

/// What was delivered, or shown to the person, by the transcript of that name.
async fn shown_before(stores: &Stores, name: &str) -> CliResult<HashSet<String>> {
    let records = stores.transcripts.load(name).await?;
    let delivered = records.into_iter().filter_map(|record| match record.entry {
        Entry::Message(message) => Some(message.delivered),
        Entry::Compaction { .. } => None,
    });
    Ok(delivered.flatten().collect())
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

fn as_text(messages: &[&Message], now: UnixMs) -> String {
    let mut out = String::new();
    for message in messages {
        // Seconds of a few thousand years: a float holds their milliseconds.
        let at = UnixMs((message.timestamp * 1000.0) as i64);
        let kind = message.kind.as_str().replace('_', " ");
        let about = format!("{kind}, {}", ago(at, now));
        let from = if message.from.is_empty() { "?" } else { &message.from };
        let _ = writeln!(out, "{} {}", paint(BOLD, &one_line(from)), paint(DIM, &about));
        for line in harmless(message.plan.as_deref().unwrap_or(&message.content)).lines() {
            let _ = writeln!(out, "  {line}");
        }
    }
    out
}
