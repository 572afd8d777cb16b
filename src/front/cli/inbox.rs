//! `brigade inbox`.

use serde_json::value::RawValue;

use super::context::Context;
use super::error::{CliError, CliResult};
use super::output::CommandAnswer;
use super::reminders::Reminder;
use crate::api::inbox::{self, MessageView, UnreadMail};
use crate::api::request::approvals;
use crate::api::{OrderForm, Question as ApiQuestion, pending};
use crate::domain::team::approval::{Approvals, Request, RequestKind};
use crate::domain::team::message::{Message, MessageType};
use crate::domain::team::name::HUMAN;
use crate::domain::team::pending_questions::Question;
use crate::domain::text::one_line;
use crate::domain::time::UnixMs;
use crate::front::text::commands::{Hint, hint, line};
use crate::front::text::lines::{ago, indented};
use crate::front::text::style::{BOLD, DIM, paint};
use crate::front::text::{markdown, requests};

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
    /// Selects the new mail of the person, which is read then.
    pub(in crate::front) fn taken() -> Self {
        Self { name: HUMAN.to_owned(), take: true, read: false }
    }

    /// Shows the inbox.
    ///
    /// # Errors
    /// There is no inbox of that name, or the mail cannot be printed and stays unread.
    pub async fn run(self, context: &Context) -> CliResult<CommandAnswer> {
        if (self.take || self.read) && self.name != HUMAN {
            let message = format!("cannot take the mail of {}: only its owner reads it", one_line(&self.name));
            return Err(
                CliError::usage(message).hint(hint![OrderForm::TakeMail, " and `--read` are for your own mail"])
            );
        }
        let workspace = &context.workspace;
        if self.read {
            let messages = inbox::last_read(workspace).await?;
            let answer =
                render_messages(context, &messages.iter().collect::<Vec<_>>(), Some(&approvals(workspace).await?))?;
            return Ok(if messages.is_empty() { answer.note(paint(DIM, "no mail was read")) } else { answer });
        }
        let mail = if self.take {
            UnreadMail::take(workspace, HUMAN).await?
        } else {
            UnreadMail::peek(workspace, &self.name).await?
        };
        let messages = mail.messages();
        let is_yours = mail.owner == HUMAN;
        let approvals = approvals(workspace).await?;
        let answer = render_messages(context, &messages, is_yours.then_some(&approvals))?;
        if messages.is_empty() {
            if !is_yours {
                return Ok(answer.note(paint(DIM, &format!("no mail waits for {}", one_line(&self.name)))));
            }
            return Ok(without_new_mail(context, &pending::waiting(workspace).await?.questions, answer));
        }
        if self.take {
            // Mail is marked as read only after it was printed.
            let print_error = |error| CliError::refused(format!("cannot print the mail: {error}; it stays unread"));
            context.print_required(&answer.text).map_err(print_error)?;
            mail.settle(workspace).await?;
            return Ok(CommandAnswer { text: String::new(), ..answer });
        }
        Ok(if is_yours { answer.note(hint![OrderForm::TakeMail, " marks it as read"].painted(DIM)) } else { answer })
    }
}

/// Adds the questions that the person has read but not answered, or else that no mail waits.
fn without_new_mail(context: &Context, questions: &[Question], mut answer: CommandAnswer) -> CommandAnswer {
    if questions.is_empty() {
        answer = answer.note(paint(DIM, "no mail waits for you"));
    }
    for question in questions {
        let Reminder { line, text } = Reminder::of_question(question);
        answer = answer.note(line);
        if let Some(text) = text {
            let body = markdown::body(&text, context.output.columns, INDENT, context.output.renders_markdown());
            answer = answer.note(body.trim_end());
        }
    }
    answer.note(hint![line("inbox --read"), " shows the mail you have read"].painted(DIM))
}

/// The messages as an answer. With `approvals`, which is set for the person's mail, each request shows its answer or the command
/// that answers it.
fn render_messages(
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
    let MessageView { request: stored, makes: kind, is_question, .. } = MessageView::of(message, approvals);
    let mut out = heading(message, kind, context.workspace.now());
    let dim = |hint: Hint| paint(DIM, &indented(&context.hint(hint), columns, INDENT));
    match stored.filter(|request| kind.is_some() && request.report.is_some()) {
        // The message text is for a reviewing agent, so the person sees the report instead.
        Some(review) => {
            out += &format!("  {}\n", requests::title(review));
            out += &requests::details(review, columns, renders_markdown);
            let show = ApiQuestion::Request { kind: RequestKind::Review, id: Some(review.id.clone()) };
            out += &dim(hint![show, " shows the diff"]);
        }
        // The text of a call has its own format.
        None if kind == Some(RequestKind::Permission) => {
            let line = stored.map_or_else(|| one_line(&message.content).into(), requests::line);
            out += &indented(&context.hint(line), columns, INDENT);
        }
        None => {
            let text = message.plan.as_deref().unwrap_or(&message.content);
            out += &markdown::body(text, columns, INDENT, renders_markdown);
        }
    }
    let answer = stored.and_then(|request| request.answer.as_ref());
    let hint = match (answer, kind.zip(message.request_id.as_ref())) {
        _ if approvals.is_none() => None,
        (Some(answer), _) => Some(format!("{} {}", answer.summary(), ago(answer.at, context.workspace.now())).into()),
        (None, Some((kind, id))) if kind != RequestKind::Shutdown => {
            let unknown = Request::new(id, kind, &message.from, HUMAN, context.workspace.now());
            Some(requests::how_to_answer(stored.unwrap_or(&unknown)))
        }
        _ if is_question => Some(hint![OrderForm::Send { to: Some(message.from.clone()) }, " answers"]),
        _ => None,
    };
    out + &hint.map(dim).unwrap_or_default()
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
