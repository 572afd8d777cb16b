//! `brigade inbox`.

use serde_json::value::RawValue;
use std::collections::HashSet;

use super::context::Context;
use super::error::{CliError, CliResult};
use super::output::CommandAnswer;
use super::reminders::Reminder;
use crate::api::lead_status::LeadStatus;
use crate::api::members::names_of_team;
use crate::domain::agent::prompt::delivered_keys;
use crate::domain::agent::transcript::{Block, MessageRecord, Record, Role, TranscriptEntry};
use crate::domain::team::approval::{Approvals, Request, RequestKind};
use crate::domain::team::message::{Message, MessageType};
use crate::domain::team::name::{HUMAN, Name};
use crate::domain::team::pending_questions::{Question, Questions};
use crate::domain::time::UnixMs;
use crate::ports::{Delivery, StoreError, Stores};
use crate::service::approvals::current_approvals;
use crate::service::pending::{PendingForPerson, new_mail};
use crate::stores::workspace::OpenMode;
use crate::ui::command_form::shell_word;
use crate::ui::style::{BOLD, DIM, paint};
use crate::ui::text::{ago, indented, one_line};
use crate::ui::{approvals, markdown};

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
    /// Show the last messages that you have read, not the unread ones
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
        let stores = context.workspace.stores(if self.take { OpenMode::Write } else { OpenMode::ReadOnly }).await?;
        if self.read {
            let approvals = current_approvals(&stores, context.workspace.now()).await?;
            return last_read_mail(context, stores.transcripts.load(HUMAN).await?, &approvals);
        }
        let members = members(context, &stores).await?;
        let member = members.iter().find(|name| name.is_same(&self.name));
        let owner = member.map_or(self.name.as_str(), Name::as_str);
        let mail = if self.take {
            UnreadMail::take(&stores, HUMAN).await?
        } else {
            UnreadMail::of(&stores, owner, peek(&stores, owner, &members).await?).await?
        };
        let messages = mail.messages();
        let is_yours = owner == HUMAN;
        let approvals = current_approvals(&stores, context.workspace.now()).await?;
        let answer = render_messages(context, &messages, is_yours.then_some(&approvals))?;
        if messages.is_empty() {
            if !is_yours {
                return Ok(answer.note(paint(DIM, &format!("no mail waits for {}", one_line(&self.name)))));
            }
            let questions = PendingForPerson::of(&stores).await?.questions;
            return Ok(without_new_mail(context, &questions, answer));
        }
        if self.take {
            // Mail is marked as read only after it was printed.
            let print_error = |error| CliError::refused(format!("cannot print the mail: {error}; it stays unread"));
            context.print_required(&answer.text).map_err(print_error)?;
            mail.settle(&stores, HUMAN, context.workspace.now()).await?;
            return Ok(CommandAnswer { text: String::new(), ..answer });
        }
        Ok(if is_yours { answer.note(paint(DIM, "`brigade inbox --take` marks it as read")) } else { answer })
    }
}

/// Adds the questions that the person has read but not answered, or else that no mail waits.
fn without_new_mail(context: &Context, questions: &[Question], mut answer: CommandAnswer) -> CommandAnswer {
    if questions.is_empty() {
        answer = answer.note(paint(DIM, "no mail waits for you"));
    }
    for question in questions {
        let Reminder { line, text } = Reminder::of_question(question);
        answer = answer.note(context.hint(&line));
        if let Some(text) = text {
            let body = markdown::body(&text, context.output.columns, INDENT, context.output.renders_markdown());
            answer = answer.note(body.trim_end());
        }
    }
    answer.note(paint(DIM, "`brigade inbox --read` shows the mail you have read"))
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
        let read_keys =
            if deliveries.is_empty() { HashSet::new() } else { delivered_keys(&stores.transcripts.load(owner).await?) };
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
    let team = LeadStatus::of(&context.workspace).await?.spec(&context.workspace.location);
    Ok(match team {
        Some(team) => names_of_team(&team, &stores.roster.read().await?),
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
    let as_in_file = |message: &&Message| RawValue::from_string(message.to_line()).ok();
    let data: Vec<Box<RawValue>> = messages.iter().filter_map(as_in_file).collect();
    let text = || messages.iter().map(|message| as_text(context, message, approvals)).collect();
    context.output.answer(&data, text)
}

fn as_text(context: &Context, message: &Message, approvals: Option<&Approvals>) -> String {
    let (columns, renders_markdown) = (context.output.columns, context.output.renders_markdown());
    let id = message.request_id.as_ref();
    let stored = approvals.zip(id).and_then(|(approvals, id)| approvals.requests.iter().find(|one| one.id == *id));
    // The message makes the request, or else answers it. If the request is not stored, the message itself shows its kind.
    let kind = match (stored, message.kind) {
        _ if id.is_none() || message.approve.is_some() => None,
        (Some(request), _) => Some(request.kind),
        (None, MessageType::PlanApprovalRequest) => Some(RequestKind::PlanApproval),
        (None, MessageType::Message) => Some(RequestKind::Review),
        _ => None,
    };
    let mut out = heading(message, kind, context.workspace.now());
    let dim = |text: &str| paint(DIM, &indented(&context.hint(text), columns, INDENT));
    match stored.filter(|request| kind.is_some() && request.report.is_some()) {
        // The message text is for a reviewing agent, so the person sees the report instead.
        Some(review) => {
            out += &format!("  {}\n", approvals::title(review));
            out += &approvals::details(review, columns, renders_markdown);
            out += &dim(&format!("`brigade review show {}` shows the diff", shell_word(&review.id)));
        }
        // The text of a call has its own format.
        None if kind == Some(RequestKind::Permission) => {
            let line = stored.map_or_else(|| one_line(&message.content), Request::line);
            out += &indented(&context.hint(&line), columns, INDENT);
        }
        None => {
            let text = message.plan.as_deref().unwrap_or(&message.content);
            out += &markdown::body(text, columns, INDENT, renders_markdown);
        }
    }
    let answer = stored.and_then(|request| request.answer.as_ref());
    let hint = match (answer, kind.zip(id)) {
        _ if approvals.is_none() => None,
        (Some(answer), _) => Some(format!("{} {}", answer.summary(), ago(answer.at, context.workspace.now()))),
        (None, Some((kind, id))) if kind != RequestKind::Shutdown => {
            let unknown = Request::new(id, kind, &message.from, HUMAN, context.workspace.now());
            Some(approvals::how_to_answer(stored.unwrap_or(&unknown)))
        }
        _ if Questions::is_question_to_person(message) => {
            Some(format!("`brigade send {} TEXT` answers", shell_word(&message.from)))
        }
        _ => None,
    };
    out + &hint.map(|hint| dim(&hint)).unwrap_or_default()
}

/// The sender, the kind and the age of a message.
fn heading(message: &Message, request: Option<RequestKind>, now: UnixMs) -> String {
    // The timestamp is in seconds. An `f64` is exact enough for milliseconds.
    let at = UnixMs((message.timestamp * 1000.0) as i64);
    let id = one_line(message.request_id.as_deref().unwrap_or_default());
    let kind = match (request, message.kind) {
        (Some(RequestKind::Review), _) => format!("asks for review {id}, "),
        (Some(RequestKind::Permission), _) => format!("asks for permission {id}, "),
        (Some(RequestKind::PlanApproval), _) => format!("submits plan {id}, "),
        (_, MessageType::Message) => String::new(),
        (_, kind) => format!("{}, ", kind.as_str().replace('_', " ")),
    };
    let from = if message.from.is_empty() { "?" } else { &message.from };
    format!("{} {}\n", paint(BOLD, &one_line(from)), paint(DIM, &format!("{kind}{}", ago(at, now))))
}
