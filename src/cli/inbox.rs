//! `brigade inbox`.

use serde_json::value::RawValue;
use std::collections::HashSet;

use super::context::{Context, member_names};
use super::error::{CliError, CliResult};
use super::output::CommandAnswer;
use super::reminders::Reminder;
use crate::domain::approval::{Approvals, Request, RequestKind};
use crate::domain::message::{Message, MessageType};
use crate::domain::name::{HUMAN, Name};
use crate::domain::pending_questions::Questions;
use crate::domain::prompt::delivered_keys;
use crate::domain::time::UnixMs;
use crate::domain::transcript::{Block, MessageRecord, Record, Role, TranscriptEntry};
use crate::ports::{Delivery, StoreError, Stores};
use crate::service::pending::{PendingForUser, new_mail};
use crate::stores::workspace::OpenMode;
use crate::ui::command_form::shell_word;
use crate::ui::style::{BOLD, DIM, paint};
use crate::ui::text::{ago, indented, one_line};
use crate::ui::{approvals, markdown, review};

/// The most messages that `--read` shows.
const READ_MESSAGES_MAX: usize = 20;
/// Spaces before each line of a message.
const INDENT: usize = 2;

/// Show unread mail: yours, a teammate's or the lead's
///
/// Showing mail does not mark it as read. `--take` does that for your own mail; `--read` shows it again.
#[derive(Debug, clap::Args)]
pub struct Inbox {
    /// The owner of the mail: a teammate, `lead`, or `human` for you
    #[arg(default_value = HUMAN)]
    name: String,
    /// Mark your mail as read after showing it
    #[arg(long)]
    take: bool,
    /// Show the last messages that you have read instead
    #[arg(long, conflicts_with = "take")]
    read: bool,
}

impl Inbox {
    /// Shows the inbox.
    ///
    /// # Errors
    /// There is no inbox of that name, or the mail cannot be printed and stays unread.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        if (self.take || self.read) && self.name != HUMAN {
            let message = format!("cannot take the mail of {}: only its owner reads it", one_line(&self.name));
            return Err(CliError::usage(message).hint("`brigade inbox --take` and `--read` are for your own mail"));
        }
        // Only `--take` writes.
        let stores = context.stores(if self.take { OpenMode::Write } else { OpenMode::ReadOnly }).await?;
        if self.read {
            return last_read_mail(context, stores.transcripts.load(HUMAN).await?, &stores.requests.all().await?);
        }
        let members = members(context, &stores).await?;
        let member = members.iter().find(|name| name.is_same(&self.name));
        let owner = member.map_or(self.name.as_str(), Name::as_str);
        let mail = match self.take {
            true => UnreadMail::take(&stores, HUMAN).await?,
            false => UnreadMail::of(&stores, owner, peek(&stores, owner, &members).await?).await?,
        };
        let messages = mail.messages();
        let approvals = stores.requests.all().await?;
        let answer = render_messages(context, &messages, (owner == HUMAN).then_some(&approvals))?;
        if messages.is_empty() {
            let name = if owner == HUMAN { "you".to_owned() } else { one_line(&self.name) };
            let answer = answer.note(paint(DIM, &format!("no mail waits for {name}")));
            if owner != HUMAN {
                return Ok(answer);
            }
            let mut answer = answer.note(paint(DIM, "`brigade inbox --read` shows the mail you have read"));
            for question in &PendingForUser::of(&stores).await?.questions {
                let reminder = Reminder::of_question(question);
                answer = answer.note(context.hint(&reminder.line));
                if let Some(text) = &reminder.text {
                    let body = markdown::body(text, context.output.columns, INDENT, context.output.renders_markdown());
                    answer = answer.note(body.trim_end());
                }
            }
            return Ok(answer);
        }
        if self.take {
            // Mail is marked as read only after it was printed.
            let print_error = |error| CliError::refused(format!("cannot print the mail: {error}; it stays unread"));
            context.print_required(&answer.text).map_err(print_error)?;
            mail.settle(&stores, HUMAN, context.now()).await?;
            return Ok(CommandAnswer { text: String::new(), ..answer });
        }
        let is_yours = owner == HUMAN;
        Ok(if is_yours { answer.note(paint(DIM, "`brigade inbox --take` marks it as read")) } else { answer })
    }
}

/// The mail that its owner has not read.
#[derive(Debug)]
pub(super) struct UnreadMail {
    /// The messages, in order.
    pub new: Vec<Delivery>,
    /// The keys of the messages that the owner has read.
    read_keys: HashSet<String>,
}

impl UnreadMail {
    /// Takes the mail of `owner`, a person or an agent of another program. Until it is settled, it can be taken again.
    pub(super) async fn take(stores: &Stores, owner: &str) -> CliResult<Self> {
        let mail = Self::of(stores, owner, stores.mailbox.take(owner, &HashSet::new()).await?).await?;
        // The store keeps taken mail until no other process can write to it. This removes the mail of earlier commands.
        stores.mailbox.settle(owner, &mail.read_keys).await?;
        Ok(mail)
    }

    /// A taken message may still be in the inbox. The transcript says which messages were delivered or shown.
    async fn of(stores: &Stores, owner: &str, deliveries: Vec<Delivery>) -> CliResult<Self> {
        let read_keys = match deliveries.is_empty() {
            true => HashSet::new(),
            false => delivered_keys(&stores.transcripts.load(owner).await?),
        };
        Ok(Self { new: new_mail(deliveries, &read_keys), read_keys })
    }

    /// The messages, in order.
    pub(super) fn messages(&self) -> Vec<&Message> {
        self.new.iter().map(|delivery| &delivery.message).collect()
    }

    /// Records the messages in the transcript of `owner`, then lets the mailbox delete them.
    pub(super) async fn settle(self, stores: &Stores, owner: &str, now: UnixMs) -> CliResult<()> {
        let content = self.new.iter().map(|delivery| Block::text(delivery.message.to_line())).collect();
        let delivered: Vec<String> = self.new.iter().map(|delivery| delivery.key.clone()).collect();
        let all = self.read_keys.into_iter().chain(delivered.iter().cloned()).collect();
        let record = MessageRecord { delivered, ..MessageRecord::new(Role::User, content) };
        stores.transcripts.append(owner, &[Record { at: now, entry: TranscriptEntry::Message(record) }], true).await?;
        stores.mailbox.settle(owner, &all).await?;
        Ok(())
    }
}

/// The names of the running team's members, or of those of the config's only team.
async fn members(context: &Context, stores: &Stores) -> CliResult<Vec<Name>> {
    let team = context.team_of(&context.running_team().await?);
    Ok(match team {
        Some(team) => member_names(&team, &stores.roster.read().await?),
        None => Vec::new(),
    })
}

/// The mail of `owner`. The first launch or message opens the inboxes of members; until then they have no mail.
async fn peek(stores: &Stores, owner: &str, members: &[Name]) -> CliResult<Vec<Delivery>> {
    match stores.mailbox.peek(owner).await {
        Err(StoreError::UnknownRecipient { .. }) if members.iter().any(|name| name.is_same(owner)) => Ok(Vec::new()),
        Err(StoreError::UnknownRecipient { name, mut recipients }) => {
            let others = members.iter().map(ToString::to_string).filter(|name| !recipients.contains(name));
            let others: Vec<String> = others.collect();
            recipients.extend(others);
            Err(StoreError::UnknownRecipient { name, recipients }.into())
        }
        mail => Ok(mail?),
    }
}

/// The last mail that the person has read.
fn last_read_mail(context: &Context, records: Vec<Record>, approvals: &Approvals) -> CliResult<CommandAnswer> {
    let contents = records.into_iter().filter_map(|record| match record.entry {
        TranscriptEntry::Message(message) if message.role == Role::User => Some(message.content),
        _ => None,
    });
    let text_of = |block: Block| match block {
        Block::Text { text } => Message::parse(text.as_bytes()).ok(),
        _ => None,
    };
    let messages: Vec<Message> = contents.flatten().filter_map(text_of).collect();
    let last: Vec<&Message> = messages.iter().skip(messages.len().saturating_sub(READ_MESSAGES_MAX)).collect();
    let answer = render_messages(context, &last, Some(approvals))?;
    Ok(if last.is_empty() { answer.note(paint(DIM, "no mail was read")) } else { answer })
}

/// The messages as an answer. With `approvals`, which is set for the person's mail, each request shows its answer or the command
/// that answers it.
pub(super) fn render_messages(
    context: &Context,
    messages: &[&Message],
    approvals: Option<&Approvals>,
) -> CliResult<CommandAnswer> {
    let text = || {
        let render = |message: &&Message| {
            let kind = request_kind(message, approvals);
            let hint = approvals.and_then(|approvals| {
                answer_text(message, approvals, context.now()).or_else(|| answer_hint(message, kind))
            });
            let hint = hint.map(|hint| paint(DIM, &indented(&context.hint(&hint), context.output.columns, INDENT)));
            let review = approvals.and_then(|approvals| review_of(message, approvals));
            as_text(context, message, kind, review) + &hint.unwrap_or_default()
        };
        messages.iter().map(render).collect()
    };
    context.output.answer(&as_json(messages), text)
}

/// The review that a message asks for. The message text is for a reviewing agent, so the person sees the report instead.
fn review_of<'a>(message: &Message, approvals: &'a Approvals) -> Option<&'a Request> {
    let id = message.request_id.as_ref().filter(|_| message.approve.is_none())?;
    approvals.requests.iter().find(|request| request.id == *id && request.report.is_some())
}

/// The answer to the request of a message, if there is one.
fn answer_text(message: &Message, approvals: &Approvals, now: UnixMs) -> Option<String> {
    let id = message.request_id.as_ref()?;
    let answer = approvals.requests.iter().find(|request| request.id == *id)?.answer.as_ref()?;
    Some(format!("{} {}", answer.summary(), ago(answer.at, now)))
}

/// The kind of the request that a message makes. If the request is not stored, the message itself shows it.
fn request_kind(message: &Message, approvals: Option<&Approvals>) -> Option<RequestKind> {
    let id = message.request_id.as_ref().filter(|_| message.approve.is_none())?;
    let stored = approvals.and_then(|approvals| approvals.requests.iter().find(|request| request.id == *id));
    match (stored, message.kind) {
        (Some(request), _) => Some(request.kind),
        (None, MessageType::PlanApprovalRequest) => Some(RequestKind::PlanApproval),
        (None, MessageType::Message) => Some(RequestKind::Review),
        _ => None,
    }
}

/// The command that answers a message, if it asks for an answer.
fn answer_hint(message: &Message, kind: Option<RequestKind>) -> Option<String> {
    match (kind.filter(|kind| *kind != RequestKind::Shutdown), &message.request_id) {
        (Some(kind), Some(id)) => Some(approvals::how_to_answer(kind, &one_line(id))),
        _ if Questions::is_question_to_person(message) => {
            Some(format!("`brigade send {} TEXT` answers", shell_word(&message.from)))
        }
        _ => None,
    }
}

/// The messages as they are in the file.
fn as_json(messages: &[&Message]) -> Vec<Box<RawValue>> {
    messages.iter().filter_map(|message| RawValue::from_string(message.to_line()).ok()).collect()
}

fn as_text(
    context: &Context,
    message: &Message,
    kind_of_request: Option<RequestKind>,
    review: Option<&Request>,
) -> String {
    // The timestamp is in seconds. An `f64` is exact enough for milliseconds.
    let at = UnixMs((message.timestamp * 1000.0) as i64);
    let id = one_line(message.request_id.as_deref().unwrap_or_default());
    let kind = match (kind_of_request, message.kind) {
        (Some(RequestKind::Review), _) => format!("asks for review {id}, "),
        (Some(RequestKind::Permission), _) => format!("asks for permission {id}, "),
        (Some(RequestKind::PlanApproval), _) => format!("submits plan {id}, "),
        (_, MessageType::Message) => String::new(),
        (_, kind) => format!("{}, ", kind.as_str().replace('_', " ")),
    };
    let from = if message.from.is_empty() { "?" } else { &message.from };
    let about = format!("{kind}{}", ago(at, context.now()));
    let heading = format!("{} {}\n", paint(BOLD, &one_line(from)), paint(DIM, &about));
    let text = message.plan.as_deref().unwrap_or(&message.content);
    let Some(request) = review else {
        // The text of a call has its own format: a line that was added begins with `+`.
        let renders_markdown = context.output.renders_markdown() && kind_of_request != Some(RequestKind::Permission);
        return heading + &markdown::body(text, context.output.columns, INDENT, renders_markdown);
    };
    let (columns, renders_markdown) = (context.output.columns, context.output.renders_markdown());
    let title = format!("  {}\n", review::title(request));
    let details = review::details(request, columns, renders_markdown);
    let show = format!(
        "  {}\n",
        paint(DIM, &context.hint(&format!("`brigade review show {}` shows the diff", shell_word(&request.id))))
    );
    format!("{heading}{title}{details}{show}")
}
