//! Functions shared by the tools that send mail and requests.

use super::{ToolContext, ToolError};
use crate::domain::approval::{Request, RequestKind, ReviewSubject};
use crate::domain::event::EventKind;
use crate::domain::message::{Message, MessageType};
use crate::domain::name::{ALL, SYSTEM};
use crate::service::approvals::{self, ApprovalRef, Responder};

/// The longest part of a message in an event, in characters.
const ABOUT_CHARS_MAX: usize = 120;

/// A message from the caller.
pub(super) fn message(context: &ToolContext, kind: MessageType, content: &str) -> Message {
    Message::new(kind, context.caller.name.as_str(), content, context.clock.now())
}

/// Sends `message` to `to` and records the event.
pub(super) async fn send(context: &ToolContext, to: &str, message: Message) -> Result<(), ToolError> {
    let to = recipient(context, to)?;
    let (kind, about) = (message.kind, about(&message));
    let from = message.from.clone();
    let id = context.stores.mailbox.send(&to, message).await?;
    tracing::debug!(%from, %to, kind = kind.as_str(), "message sent");
    // After the team has stopped, the event is lost. The message is in the inbox.
    (context.events)(EventKind::MessageSent { from, to, message: id, about });
    Ok(())
}

/// The recipient's name as the team spells it. The mailbox refuses names without an inbox.
fn recipient(context: &ToolContext, to: &str) -> Result<String, ToolError> {
    let to = to.trim().trim_start_matches('@');
    if context.caller.name.is_same(to) {
        return Err(ToolError::Recoverable(
            "a member cannot send a message to itself; use `todo` for notes".to_owned(),
        ));
    }
    if to.eq_ignore_ascii_case(ALL) {
        let hint = if context.caller.is_lead { "use `broadcast`" } else { "send to each member by name, or to `lead`" };
        return Err(ToolError::Recoverable(format!("`{to}` has no inbox; {hint}")));
    }
    if to.eq_ignore_ascii_case(SYSTEM) {
        return Err(ToolError::Recoverable(format!("`{to}` has no inbox; send to `lead` or to `human`")));
    }
    let member = context.team_control.members().into_iter().find(|member| member.is_same(to));
    Ok(member.map_or_else(|| to.to_owned(), |member| member.to_string()))
}

fn about(message: &Message) -> String {
    let line = message.content.lines().next().unwrap_or_default();
    line.char_indices().nth(ABOUT_CHARS_MAX).map_or_else(|| line.to_owned(), |(at, _)| format!("{}…", &line[..at]))
}

fn of_task(about: Option<&ReviewSubject>) -> String {
    about.map(|about| format!(" of task {}", about.task)).unwrap_or_default()
}

/// Records and sends a request of the caller. Returns its id.
pub(super) async fn send_request(
    context: &ToolContext,
    to: &str,
    kind: RequestKind,
    message: Message,
    about: Option<ReviewSubject>,
) -> Result<String, ToolError> {
    let id = approvals::new_request_id();
    let (from, to) = (message.from.clone(), recipient(context, to)?);
    let plan = message.plan.clone().unwrap_or_default();
    let line = match kind {
        RequestKind::Shutdown => self::about(&message),
        _ => format!("submits {} {id}{}: {}", kind.noun(), of_task(about.as_ref()), self::about(&message)),
    };
    let request = Request { plan, about, ..Request::new(&id, kind, &from, &to, context.clock.now()) };
    let sent = approvals::send_request(&context.stores, request, message).await?;
    (context.events)(EventKind::MessageSent { from, to, message: sent, about: line });
    Ok(id)
}

/// Answers a request that waits for the caller. `compose` makes the message to its author.
pub(super) async fn send_answer(
    context: &ToolContext,
    id: &str,
    kind: RequestKind,
    approve: bool,
    compose: impl FnOnce(&Request) -> Message,
) -> Result<Request, ToolError> {
    let by = Responder { name: context.caller.name.as_str(), process: context.caller.name.as_str() };
    let (from, mut line) = (context.caller.name.to_string(), String::new());
    let compose = |request: &Request| {
        let message = compose(request);
        line = about(&message);
        message
    };
    let sent =
        approvals::send_answer(&context.stores, by, context.clock.now(), ApprovalRef { id, kind }, approve, compose)
            .await?;
    if let Some(message) = sent.message {
        let to = sent.request.from.clone();
        (context.events)(EventKind::MessageSent { from, to, message, about: line });
    }
    Ok(sent.request)
}
