//! What the tools that send mail and requests have in common.

use super::answers::{self, Answerer, Asked};
use super::{ToolContext, ToolError};
use crate::domain::event::Fact;
use crate::domain::message::{Message, MessageType};
use crate::domain::name::{ALL, SYSTEM};
use crate::domain::request::{About, Request, RequestKind};

/// The longest part of a message that stands in an event, in characters.
const ABOUT_CHARS_MAX: usize = 120;

/// A message of the caller.
pub(super) fn message(context: &ToolContext, kind: MessageType, content: &str) -> Message {
    Message::new(kind, context.name.as_str(), content, context.clock.now())
}

/// Sends `message` to `to` and says so in the events.
pub(super) async fn send(context: &ToolContext, to: &str, message: Message) -> Result<(), ToolError> {
    let to = recipient(context, to)?;
    let (kind, about) = (message.kind, about(&message));
    let from = message.from.clone();
    let id = context.stores.mailbox.send(&to, message).await?;
    tracing::debug!(%from, %to, kind = kind.as_str(), "message sent");
    // Nobody listens once the team has stopped; the message is in the inbox all the same.
    (context.facts)(Fact::MessageSent { from, to, message: id, about });
    Ok(())
}

/// The name the team knows the recipient by; whether it has an inbox is the mailbox's to say.
fn recipient(context: &ToolContext, to: &str) -> Result<String, ToolError> {
    let to = to.trim().trim_start_matches('@');
    if context.name.is_same(to) {
        return Err(ToolError::Mendable("that would be a message to yourself; use todo for notes".to_owned()));
    }
    if to.eq_ignore_ascii_case(ALL) {
        let how = if context.is_lead { "use broadcast" } else { "send to each by name, or to `lead`" };
        return Err(ToolError::Mendable(format!("`{to}` is nobody's inbox; {how}")));
    }
    if to.eq_ignore_ascii_case(SYSTEM) {
        return Err(ToolError::Mendable(format!("`{to}` is nobody's inbox; the lead is `lead`, the person `human`")));
    }
    let known = context.control.members().into_iter().find(|member| member.is_same(to));
    Ok(known.map_or_else(|| to.to_owned(), |member| member.to_string()))
}

fn about(message: &Message) -> String {
    let line = message.content.lines().next().unwrap_or_default();
    line.char_indices().nth(ABOUT_CHARS_MAX).map_or_else(|| line.to_owned(), |(at, _)| format!("{}…", &line[..at]))
}

fn of_task(about: Option<&About>) -> String {
    about.map(|about| format!(" of task {}", about.task)).unwrap_or_default()
}

/// Records a request of the caller and sends it; returns its id.
pub(super) async fn ask(
    context: &ToolContext,
    to: &str,
    kind: RequestKind,
    message: Message,
    about: Option<About>,
) -> Result<String, ToolError> {
    let id = answers::new_request_id();
    let (from, to) = (message.from.clone(), recipient(context, to)?);
    let plan = message.plan.clone().unwrap_or_default();
    let line = match kind {
        RequestKind::Shutdown => self::about(&message),
        _ => format!("hands in {} {id}{}: {}", kind.noun(), of_task(about.as_ref()), self::about(&message)),
    };
    let request = Request { plan, about, ..Request::new(&id, kind, &from, &to, context.clock.now()) };
    let sent = answers::ask(&context.stores, request, message).await?;
    (context.facts)(Fact::MessageSent { from, to, message: sent, about: line });
    Ok(id)
}

/// Answers a request that waits for the caller: what `compose` makes of it goes to who asked.
pub(super) async fn answer(
    context: &ToolContext,
    id: &str,
    kind: RequestKind,
    approve: bool,
    compose: impl FnOnce(&Request) -> Message,
) -> Result<Request, ToolError> {
    let by = Answerer { name: context.name.as_str(), process: context.name.as_str() };
    let (from, mut line) = (context.name.to_string(), String::new());
    let compose = |request: &Request| {
        let message = compose(request);
        line = about(&message);
        message
    };
    let sent = answers::answer(&context.stores, by, context.clock.now(), Asked { id, kind }, approve, compose).await?;
    (context.facts)(Fact::MessageSent { from, to: sent.request.from.clone(), message: sent.message, about: line });
    Ok(sent.request)
}
