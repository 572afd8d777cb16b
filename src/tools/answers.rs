//! Answers to requests, by whoever may give them: a member's tool and a person's command go the same way.

use crate::domain::message::{Message, MessageType};
use crate::domain::request::{Answer, Request, RequestKind};
use crate::domain::time::UnixMs;
use crate::ports::{StoreResult, Stores};

/// Who answers.
#[derive(Debug, Clone, Copy)]
pub struct Answerer<'a> {
    /// In whose name.
    pub name: &'a str,
    /// Which process of theirs; a person may have several.
    pub process: &'a str,
}

/// What is answered.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The request's id.
    pub id: &'a str,
    /// What it asks for.
    pub kind: RequestKind,
}

/// An answer that was given.
#[derive(Debug)]
pub struct Answered {
    /// The request, with it.
    pub request: Request,
    /// The id of the message that carries it.
    pub message: String,
}

/// The message that answers a plan.
#[must_use]
pub fn of_plan(from: &str, approve: bool, feedback: Option<&str>, now: UnixMs) -> Message {
    let content = feedback.unwrap_or(if approve { "Approved." } else { "Rejected." });
    let feedback = feedback.map(str::to_owned);
    Message { feedback, ..Message::new(MessageType::PlanApprovalResponse, from, content, now) }
}

/// Answers a request, once: `message` goes to who asked. The answer counts once it is sent.
///
/// # Errors
/// The stores': no such request, answered or being answered already, for somebody else to answer; who asked cannot be written to.
pub async fn answer(
    stores: &Stores,
    by: Answerer<'_>,
    now: UnixMs,
    asked: Asked<'_>,
    approve: bool,
    mut message: Message,
) -> StoreResult<Answered> {
    let Asked { id, kind } = asked;
    let id = id.trim();
    let request = stores.requests.reserve(id, kind, by.name, by.process, now).await?;
    let text = message.content.clone();
    message.request_id = Some(id.to_owned());
    message.approve = Some(approve);
    // First sent, then recorded: a crash in between lets it be answered again, the other order would lose the answer.
    let sent = stores.mailbox.send(&request.from, message).await?;
    let answer = Answer { approve, text, by: by.name.to_owned(), at: now };
    Ok(Answered { request: stores.requests.answer(id, kind, answer).await?, message: sent })
}
