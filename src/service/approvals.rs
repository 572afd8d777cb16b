//! Sends approval requests and their answers.

use std::time::Duration;

use crate::domain::approval::{ApprovalAnswer, Approvals, Request, RequestKind};
use crate::domain::message::{Message, MessageType};
use crate::domain::time::UnixMs;
use crate::ports::{StoreError, StoreResult, Stores};

/// The sender of an answer.
#[derive(Debug, Clone, Copy)]
pub struct Responder<'a> {
    /// The responder's name.
    pub name: &'a str,
    /// The responder's process; a person can have several.
    pub process: &'a str,
}

/// The request to answer.
#[derive(Debug, Clone, Copy)]
pub struct ApprovalRef<'a> {
    /// The request's id.
    pub id: &'a str,
    /// The kind of the request.
    pub kind: RequestKind,
}

/// An answer that was sent and recorded.
#[derive(Debug)]
pub struct RecordedAnswer {
    /// The request, with its answer.
    pub request: Request,
    /// The id of the message with the answer; `None` if the author has no inbox.
    pub message: Option<String>,
}

/// The message that answers a plan or a review. It has no request id yet.
#[must_use]
pub fn answer_message(request: &Request, from: &str, approve: bool, feedback: Option<&str>, now: UnixMs) -> Message {
    let word = if approve { "Approved." } else { "Rejected." };
    let feedback = feedback.map(str::to_owned);
    let task = request.about.as_ref().map(|about| about.task);
    let (kind, content) = match (request.kind, task) {
        (RequestKind::Review, Some(task)) if approve => {
            (MessageType::Message, format!("{word} Report task {task} as completed again to complete it."))
        }
        (RequestKind::Review, Some(task)) => {
            (MessageType::Message, format!("{word} Make the changes and report task {task} as completed again."))
        }
        _ => (MessageType::PlanApprovalResponse, feedback.clone().unwrap_or_else(|| word.to_owned())),
    };
    Message { feedback, ..Message::new(kind, from, content, now) }
}

/// Records a request and sends it as `message` with the request's id. Returns the message's id.
///
/// # Errors
/// Too many requests wait, or the message cannot be sent. Then the request is withdrawn.
pub async fn send_request(stores: &Stores, request: Request, mut message: Message) -> StoreResult<String> {
    let (id, kind, to, now) = (request.id.clone(), request.kind, request.to.clone(), request.at);
    stores.requests.record(request).await?;
    message.request_id = Some(id.clone());
    match stores.mailbox.send(&to, message).await {
        Ok(sent) => Ok(sent),
        Err(error) => {
            // The recipient did not get it, so it must not stay open.
            stores.requests.withdraw(&id, kind, "it could not be sent", now).await?;
            Err(error)
        }
    }
}

/// Reassigns an open request to `to`, under the same id, and sends it. Returns the message's id, or `None` if the request is closed.
///
/// # Errors
/// The message cannot be sent. The request is reassigned anyway.
pub async fn reassign(
    stores: &Stores,
    id: &str,
    kind: RequestKind,
    to: &str,
    now: UnixMs,
) -> StoreResult<Option<String>> {
    let Some(request) = stores.requests.reassign(id, kind, to).await? else { return Ok(None) };
    let (message_kind, plan) = match kind {
        RequestKind::PlanApproval => (MessageType::PlanApprovalRequest, Some(request.plan.clone())),
        _ => (MessageType::Message, None),
    };
    let message = Message::new(message_kind, &request.from, &request.plan, now);
    Ok(Some(stores.mailbox.send(to, Message { request_id: Some(request.id), plan, ..message }).await?))
}

/// The number of reads after which an answer that is sent but not recorded is no longer awaited.
const READS_MAX: u32 = 200;
/// The time between two reads.
const READ_INTERVAL: Duration = Duration::from_millis(10);

/// Reads all requests. First waits until the answers to requests of `from` that are being sent are also recorded.
///
/// An answer is sent before it is recorded, so its reader can call this too early. If the responder died, this returns after
/// two seconds.
///
/// # Errors
/// The requests cannot be read.
pub async fn load_approvals(stores: &Stores, from: &str) -> StoreResult<Approvals> {
    let mut reads = 0;
    loop {
        let approvals = stores.requests.all().await?;
        let is_in_flight = |request: &Request| request.from.eq_ignore_ascii_case(from) && request.answering.is_some();
        reads += 1;
        if reads > READS_MAX || !approvals.open_approvals().any(is_in_flight) {
            return Ok(approvals);
        }
        tokio::time::sleep(READ_INTERVAL).await;
    }
}

/// Returns a random id of eight hexadecimal digits.
#[must_use]
pub fn new_request_id() -> String {
    format!("{:08x}", fastrand::u32(..))
}

/// Answers a request, once: sends its author the message that `compose` makes, then records the answer.
///
/// # Errors
/// There is no such request, another member must answer it, it has an answer, or the message cannot be sent.
pub async fn send_answer(
    stores: &Stores,
    by: Responder<'_>,
    now: UnixMs,
    request_ref: ApprovalRef<'_>,
    approve: bool,
    compose: impl FnOnce(&Request) -> Message,
) -> StoreResult<RecordedAnswer> {
    let ApprovalRef { id, kind } = request_ref;
    let id = id.trim();
    let request = stores.requests.reserve(id, kind, by.name, by.process, now).await?;
    let mut message = compose(&request);
    // The content of an answer to a plan or a review tells an agent what to do next.
    let text = match kind {
        RequestKind::Shutdown => message.content.clone(),
        RequestKind::PlanApproval | RequestKind::Review => message.feedback.clone().unwrap_or_default(),
    };
    message.request_id = Some(id.to_owned());
    message.approve = Some(approve);
    // First send, then record: after a crash in between it can be answered again. The other order would lose the answer.
    let sent = match stores.mailbox.send(&request.from, message).await {
        Ok(sent) => Some(sent),
        // A program without an inbox claimed the task by command. It reads the answer when it completes the task.
        Err(StoreError::UnknownRecipient { .. }) => None,
        Err(error) => return Err(error),
    };
    let answer = ApprovalAnswer { approve, text, by: by.name.to_owned(), at: now };
    Ok(RecordedAnswer { request: stores.requests.answer(id, kind, answer).await?, message: sent })
}
