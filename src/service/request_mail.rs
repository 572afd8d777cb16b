//! Sends approval requests and their answers.

use std::time::Duration;

use super::messages::{ABOUT_CHARS_MAX, Outbox};
use crate::domain::log::event::EventKind;
use crate::domain::log::request_log::RequestSnapshot;
use crate::domain::task::Task;
use crate::domain::team::approval::{ApprovalAnswer, Approvals, Request, RequestKind, ReviewSubject};
use crate::domain::team::message::{Message, MessageType};
use crate::domain::team::name::Name;
use crate::domain::text::headline;
use crate::domain::time::UnixMs;
use crate::ports::{CurrentLead, StoreError, StoreResult, Stores};

/// The sender of an answer.
#[derive(Debug, Clone, Copy)]
pub struct Responder<'a> {
    /// The responder's name.
    pub name: &'a str,
    /// The responder's process; a person can have several.
    pub process: &'a str,
}

/// The answer to a request.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// True to approve it.
    pub approve: bool,
    /// The necessary changes, or notes.
    pub feedback: Option<&'a str>,
    /// True if a permission also holds for the same calls in the rest of the run.
    pub for_run: bool,
    /// The digest of the call that the person saw, if it was shown.
    pub digest: Option<&'a str>,
}

/// An answer that was sent and recorded.
#[derive(Debug)]
pub struct RecordedAnswer {
    /// The request, with its answer.
    pub request: Request,
    /// The id of the message with the answer; `None` if the author has no inbox.
    pub message: Option<String>,
}

/// Returns the message that answers a request.
fn answer_message(outbox: &Outbox<'_>, request: &Request, from: &str, answer: Answer<'_>) -> Message {
    let Answer { approve, feedback, .. } = answer;
    let word = if approve { "Approved." } else { "Rejected." };
    let task = request.task();
    let (kind, content) = match (request.kind, task) {
        (RequestKind::Shutdown, _) => {
            let word = if approve { "Shutting down." } else { "Not now." };
            (MessageType::ShutdownResponse, feedback.unwrap_or(word).to_owned())
        }
        (RequestKind::Review, Some(task)) if approve => {
            (MessageType::Message, format!("{word} Report task {task} as completed again to complete it."))
        }
        (RequestKind::Review, Some(task)) => {
            (MessageType::Message, format!("{word} Make the changes and report task {task} as completed again."))
        }
        _ => (MessageType::PlanApprovalResponse, feedback.unwrap_or(word).to_owned()),
    };
    let feedback = if request.kind == RequestKind::Shutdown { None } else { feedback.map(str::to_owned) };
    Message {
        request_id: Some(request.id.clone()),
        approve: Some(approve),
        feedback,
        ..Message::new(kind, from, content, outbox.now)
    }
}

/// Returns the message with a request.
fn request_message(outbox: &Outbox<'_>, request: &Request) -> Message {
    let line = request.line();
    let (kind, content, plan) = match request.kind {
        RequestKind::Shutdown => (MessageType::ShutdownRequest, "Please shut down gracefully.", None),
        RequestKind::PlanApproval => (MessageType::PlanApprovalRequest, request.plan.as_str(), Some(&request.plan)),
        RequestKind::Review => (MessageType::Message, request.plan.as_str(), None),
        RequestKind::Permission => (MessageType::Message, line.as_str(), None),
    };
    let request_id = Some(request.id.clone());
    Message { request_id, plan: plan.cloned(), ..Message::new(kind, &request.from, content, outbox.now) }
}

/// Withdraws the open requests that a new one replaces: those of the same kind, author and task. A review also replaces those of other
/// authors.
async fn withdraw_replaced(outbox: &Outbox<'_>, new: &Request) -> StoreResult<()> {
    let Some(about) = &new.about else { return Ok(()) };
    let reason = if new.kind == RequestKind::PlanApproval { "a new plan" } else { "a new request" };
    let is_replaced = |earlier: &&Request| {
        let is_author_replaced = new.kind == RequestKind::Review || earlier.from.eq_ignore_ascii_case(&new.from);
        is_author_replaced && earlier.about.as_ref().is_some_and(|earlier| earlier.task == about.task)
    };
    let requests = &outbox.stores.requests;
    for earlier in requests.all().await?.open(new.kind).filter(is_replaced) {
        requests.withdraw(&earlier.id, new.kind, &format!("replaced by {reason}"), outbox.now).await?;
    }
    Ok(())
}

/// Withdraws the requests that this one replaces, then records and sends it. Returns its id.
///
/// # Errors
/// Too many requests wait, or the message cannot be sent. A request that cannot be sent is withdrawn.
pub async fn send_request(outbox: &Outbox<'_>, request: Request) -> StoreResult<String> {
    let (id, kind, to) = (request.id.clone(), request.kind, request.to.clone());
    let message = request_message(outbox, &request);
    let task = request.task();
    let of_task = task.map(|task| format!(" of task {task}")).unwrap_or_default();
    let about = match kind {
        RequestKind::Shutdown => headline(&message.content, ABOUT_CHARS_MAX),
        RequestKind::PlanApproval => format!("submits {} {id}{of_task}: {}", kind.noun(), request.line()),
        RequestKind::Review => format!("asks for review {id}{of_task}"),
        RequestKind::Permission => format!("asks for permission {id}{of_task}: {}", request.line()),
    };
    withdraw_replaced(outbox, &request).await?;
    let requests = &outbox.stores.requests;
    requests.record(request.clone()).await?;
    if let Some(record) = &outbox.events {
        record(EventKind::RequestMade(RequestSnapshot::of(&request)));
    }
    if let Err(error) = outbox.send_about(&to, message, about, task).await {
        // The recipient did not get it, so it must not stay open.
        requests.withdraw(&id, kind, "it could not be sent", outbox.now).await?;
        return Err(error);
    }
    Ok(id)
}

/// Reassigns an open request to `to`, under the same id, and sends it. `about` gives the reason in its event. Does nothing if the
/// request is closed.
///
/// # Errors
/// The message cannot be sent. The request is reassigned anyway.
pub async fn reassign(outbox: &Outbox<'_>, id: &str, kind: RequestKind, to: &str, about: String) -> StoreResult<()> {
    if let Some(request) = outbox.stores.requests.reassign(id, kind, to).await? {
        outbox.send_about(to, request_message(outbox, &request), about, request.task()).await?;
    }
    Ok(())
}

/// The most reads while an answer is sent but not recorded.
const READS_MAX: u32 = 200;
/// The time between two reads.
const READ_INTERVAL: Duration = Duration::from_millis(10);

/// Reads all requests. If an answer to `from` is being sent, first waits until it is recorded.
///
/// An answer is sent before it is recorded, so `from` can call this in between. If the responder died, this returns after two
/// seconds.
///
/// # Errors
/// The requests cannot be read.
pub async fn load_approvals(stores: &Stores, from: &str) -> StoreResult<Approvals> {
    let mut reads = 0;
    loop {
        let approvals = stores.requests.all().await?;
        let is_being_sent = |request: &Request| request.from.eq_ignore_ascii_case(from) && request.answering.is_some();
        reads += 1;
        if reads > READS_MAX || !approvals.open_approvals().any(is_being_sent) {
            return Ok(approvals);
        }
        tokio::time::sleep(READ_INTERVAL).await;
    }
}

/// Binds the reviews of the previous attempt to the current one, if `task` continues that attempt. This includes answered reviews.
///
/// # Errors
/// The requests cannot be read or written.
pub async fn continue_reviews(stores: &Stores, holder: &str, task: &Task) -> StoreResult<()> {
    let work = ReviewSubject::of(task, None);
    for review in stores.requests.all().await?.continued_reviews(holder, task) {
        stores.requests.rebind_review(&review.id, holder, &work, review.at).await?;
    }
    Ok(())
}

/// The reason why the permission requests of a killed team are withdrawn.
pub const TURN_INTERRUPTED: &str = "its turn was interrupted";

/// Withdraws the open permission requests of `from`, or of all members, for which no call waits any more.
///
/// # Errors
/// The requests cannot be read or written.
pub async fn withdraw_permissions(stores: &Stores, from: Option<&Name>, reason: &str, now: UnixMs) -> StoreResult<()> {
    let is_withdrawn = |request: &&Request| from.is_none_or(|name| name.is_same(&request.from));
    for request in stores.requests.all().await?.open(RequestKind::Permission).filter(is_withdrawn) {
        stores.requests.withdraw(&request.id, RequestKind::Permission, reason, now).await?;
    }
    Ok(())
}

/// Reads all requests for a person. A call waits for its permission only while its team runs. So the open permission requests of a
/// killed team count as withdrawn at `now`. The next launch records their withdrawal.
///
/// # Errors
/// The requests or the leadership cannot be read.
pub async fn current_approvals(stores: &Stores, now: UnixMs) -> StoreResult<Approvals> {
    let mut approvals = stores.requests.all().await?;
    let open: Vec<String> = approvals.open(RequestKind::Permission).map(|request| request.id.clone()).collect();
    if !open.is_empty() && matches!(stores.leadership.current().await?, CurrentLead::None(Some(_))) {
        open.iter().for_each(|id| approvals.withdraw(id, RequestKind::Permission, TURN_INTERRUPTED, now));
    }
    Ok(approvals)
}

/// Returns a random id of eight hexadecimal digits.
pub fn new_request_id() -> String {
    format!("{:08x}", fastrand::u32(..))
}

/// Answers a request, once: sends its author the answer, then records it.
///
/// # Errors
/// There is no such request, another member must answer it, it has an answer, the person did not see the whole call, or the message
/// cannot be sent.
pub async fn send_answer(
    outbox: &Outbox<'_>,
    by: Responder<'_>,
    id: &str,
    kind: RequestKind,
    answer: Answer<'_>,
) -> StoreResult<RecordedAnswer> {
    let id = id.trim();
    let requests = &outbox.stores.requests;
    let digest = match requests.all().await?.requests.iter().find(|request| request.kind == kind && request.id == id) {
        Some(request) if answer.approve && request.answer.is_none() => request.approved_digest(answer.digest)?,
        _ => None,
    };
    let request = requests.reserve(id, kind, by.name, by.process, outbox.now).await?;
    let message = answer_message(outbox, &request, by.name, answer);
    // The content of an answer to a plan or a review tells an agent what to do next.
    let text = match kind {
        RequestKind::Shutdown => message.content.clone(),
        _ => message.feedback.clone().unwrap_or_default(),
    };
    // First send, then record: after a crash in between it can be answered again. The other order would lose the answer.
    let sent = match kind {
        // The call that waits for it reads the answer itself.
        RequestKind::Permission => None,
        RequestKind::Shutdown => Some(outbox.send(&request.from, message).await?),
        // Its event is that of the answer.
        RequestKind::PlanApproval | RequestKind::Review => match outbox.deliver(&request.from, message).await {
            Ok(sent) => Some(sent),
            // A program without an inbox claimed the task by command. It reads the answer when it completes the task.
            Err(StoreError::UnknownRecipient { .. }) => None,
            Err(error) => return Err(error),
        },
    };
    let Answer { approve, for_run, .. } = answer;
    let answer = ApprovalAnswer { approve, text, by: by.name.to_owned(), at: outbox.now, for_run, digest };
    let request = requests.answer(id, kind, answer).await?;
    if let (Some(record), Some(answer)) = (&outbox.events, &request.answer)
        && kind != RequestKind::Shutdown
    {
        record(RequestSnapshot::of(&request).closed_by(answer));
    }
    Ok(RecordedAnswer { request, message: sent })
}
