//! Requests and their answers, by whoever may make or give them: a member's tool and a person's command go the same way.

use std::time::Duration;

use crate::domain::message::{Message, MessageType};
use crate::domain::request::{Answer, Request, RequestBook, RequestKind};
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

/// The message that answers a plan or a review.
#[must_use]
pub fn reply(request: &Request, from: &str, approve: bool, feedback: Option<&str>, now: UnixMs) -> Message {
    let word = if approve { "Approved." } else { "Rejected." };
    let feedback = feedback.map(str::to_owned);
    let task = request.about.as_ref().map(|about| about.task);
    let (kind, content) = match (request.kind, task) {
        (RequestKind::Review, Some(task)) if approve => {
            (MessageType::Message, format!("{word} Report task {task} completed again: that completes it."))
        }
        (RequestKind::Review, Some(task)) => {
            (MessageType::Message, format!("{word} Mend it and report task {task} completed again."))
        }
        _ => (MessageType::PlanApprovalResponse, feedback.clone().unwrap_or_else(|| word.to_owned())),
    };
    Message { feedback, ..Message::new(kind, from, content, now) }
}

/// Records a request and sends it as `message`, which gets its id. Returns the message's own id.
///
/// # Errors
/// The stores': too many wait, or whom it is for cannot be written to; it is withdrawn then.
pub async fn ask(stores: &Stores, request: Request, mut message: Message) -> StoreResult<String> {
    let (id, kind, to, now) = (request.id.clone(), request.kind, request.to.clone(), request.at);
    stores.requests.open(request).await?;
    message.request_id = Some(id.clone());
    match stores.mailbox.send(&to, message).await {
        Ok(sent) => Ok(sent),
        Err(error) => {
            // Nobody will ever answer it: it must not look as if somebody could.
            stores.requests.withdraw(&id, kind, "it could not be sent", now).await?;
            Err(error)
        }
    }
}

/// Has `to` answer what somebody else was asked to, under the same id. Returns the message's id; none where it does not wait any more.
///
/// # Errors
/// `to` cannot be written to; it is theirs to answer all the same.
pub async fn hand_on(
    stores: &Stores,
    id: &str,
    kind: RequestKind,
    to: &str,
    now: UnixMs,
) -> StoreResult<Option<String>> {
    let Some(request) = stores.requests.hand_on(id, kind, to).await? else { return Ok(None) };
    let (message_kind, plan) = match kind {
        RequestKind::PlanApproval => (MessageType::PlanApprovalRequest, Some(request.plan.clone())),
        _ => (MessageType::Message, None),
    };
    let message = Message::new(message_kind, &request.from, &request.plan, now);
    Ok(Some(stores.mailbox.send(to, Message { request_id: Some(request.id), plan, ..message }).await?))
}

/// How often, and how long apart, the book is read anew while an answer is on its way.
const RECORDED_LOOKS_MAX: u32 = 200;
const RECORDED_LOOK_WAIT: Duration = Duration::from_millis(10);

/// The requests, once those of `from` whose answers are on their way are answered: an answer is sent before it is recorded, so who has
/// read it may be here first. One whose sender died is waited for within a bound.
///
/// # Errors
/// The store's.
pub async fn recorded(stores: &Stores, from: &str) -> StoreResult<RequestBook> {
    let mut looks = 0;
    loop {
        let book = stores.requests.all().await?;
        let is_due = |asked: &Request| asked.from.eq_ignore_ascii_case(from) && asked.answering.is_some();
        looks += 1;
        if looks > RECORDED_LOOKS_MAX || !book.open_approvals().any(is_due) {
            return Ok(book);
        }
        tokio::time::sleep(RECORDED_LOOK_WAIT).await;
    }
}

/// Eight hexadecimal digits, as other programs of the field use.
#[must_use]
pub fn new_request_id() -> String {
    format!("{:08x}", fastrand::u32(..))
}

/// Answers a request, once: what `compose` makes of it goes to who asked. The answer counts once it is sent.
///
/// # Errors
/// The stores': no such request, answered or being answered already, for somebody else to answer; who asked cannot be written to.
pub async fn answer(
    stores: &Stores,
    by: Answerer<'_>,
    now: UnixMs,
    asked: Asked<'_>,
    approve: bool,
    compose: impl FnOnce(&Request) -> Message,
) -> StoreResult<Answered> {
    let Asked { id, kind } = asked;
    let id = id.trim();
    let request = stores.requests.reserve(id, kind, by.name, by.process, now).await?;
    let mut message = compose(&request);
    let text = message.feedback.clone().unwrap_or_else(|| message.content.clone());
    message.request_id = Some(id.to_owned());
    message.approve = Some(approve);
    // First sent, then recorded: a crash in between lets it be answered again, the other order would lose the answer.
    let sent = stores.mailbox.send(&request.from, message).await?;
    let answer = Answer { approve, text, by: by.name.to_owned(), at: now };
    Ok(Answered { request: stores.requests.answer(id, kind, answer).await?, message: sent })
}
