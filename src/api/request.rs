//! The requests that wait for approval: plans, reviews and permissions. An approval is an answer to a request.

use crate::api::next::Digest;
use crate::api::next::{Launch, Next, OrderForm};
use crate::api::question::Question;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::lead_status::{Delivery, LeadStatus};
use super::refusal::{ApiResult, Refusal};
use super::workspace::Workspace;
use crate::domain::team::approval::{Approvals, Request, RequestError, RequestKind};
use crate::domain::team::name::HUMAN;
use crate::domain::text::one_line;
use crate::domain::text::suggestion::did_you_mean;
use crate::ports::StoreError;
use crate::service::request_mail::{Answer, Responder, current_approvals, send_answer};
use crate::stores::workspace::OpenMode;

/// A request for front ends. It has the whole call of a permission, and its digest.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct RequestView<'a> {
    /// The request, with its answer.
    #[serde(flatten)]
    pub request: &'a Request,
    /// The digest of the call of a permission. An approval of a call that does not fit on one line names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The steps that show and answer it; none if it needs no answer any more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<Next>,
}

impl<'a> RequestView<'a> {
    /// Returns the view of a request.
    pub fn of(request: &'a Request) -> Self {
        let digest = (request.kind == RequestKind::Permission).then(|| request.digest());
        let is_open = request.is_open_approval();
        let next = if is_open { steps(request, digest.as_deref()).into() } else { Vec::new() };
        Self { request, digest, next }
    }
}

/// Returns the steps that show, approve and reject a request. The approval of a cut call needs its digest: `digest`, if it was shown.
pub fn steps(request: &Request, digest: Option<&str>) -> [Next; 3] {
    let (kind, id) = (request.kind, &request.id);
    let is_cut = request.approved_digest(None).is_err();
    let digest = match digest {
        _ if !is_cut => Digest::NotNeeded,
        Some(digest) => Digest::Shown(digest.to_owned()),
        None => Digest::Open,
    };
    [
        Question::Request { kind, id: Some(id.clone()) }.into(),
        OrderForm::Approve { kind, id: id.clone(), digest }.into(),
        OrderForm::Reject { kind, id: id.clone(), with_feedback: true }.into(),
    ]
}

/// Returns all requests, also answered ones. The open permissions of a team that was killed count as withdrawn.
///
/// # Errors
/// The workspace cannot be read.
pub async fn approvals(workspace: &Workspace) -> ApiResult<Approvals> {
    Ok(current_approvals(&workspace.stores(OpenMode::ReadOnly).await?, workspace.now()).await?)
}

/// Returns the request of this kind with this id, or without an id the only one that waits.
///
/// # Errors
/// There is no such request, or several wait and none is named.
pub fn find<'a>(approvals: &'a Approvals, kind: RequestKind, id: Option<&str>) -> ApiResult<&'a Request> {
    let noun = kind.noun();
    let open: Vec<&Request> = approvals.open(kind).collect();
    let Some(id) = id.map(|id| id.trim().trim_start_matches('#')) else {
        return match open.as_slice() {
            [] => Err(Refusal::refused(format!("no {noun} waits for an answer"))),
            [request] => Ok(request),
            several => {
                let name = |request: &&Request| format!("{} (from {})", request.id, one_line(&request.from));
                let names = several.iter().map(name).collect::<Vec<_>>().join(", ");
                let first = Some(several[0].id.clone());
                Err(Refusal::invalid(format!("cannot choose a {noun}: {} wait: {names}", several.len()))
                    .next(Question::Request { kind, id: first }))
            }
        };
    };
    let is_it = |request: &&Request| request.kind == kind && request.id == id;
    if let Some(request) = approvals.requests.iter().find(is_it) {
        return Ok(request);
    }
    let next = did_you_mean(id, open.iter().map(|request| request.id.as_str()))
        .map_or_else(|| Next::from(Question::Requests { kind }), Next::from);
    Err(Refusal::refused(format!("there is no {noun} `{}`", one_line(id))).next(next))
}

/// The person's answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Decision {
    /// True to approve it.
    pub approve: bool,
    /// The necessary changes, or notes.
    pub feedback: Option<String>,
    /// True if the answer to a permission also holds for the same calls in the rest of the run.
    pub for_run: bool,
    /// The digest of the call that the person saw, if it was shown.
    pub digest: Option<String>,
}

/// An answer that was recorded.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct GivenAnswer {
    /// The kind of the request.
    #[serde(skip)]
    pub kind: RequestKind,
    /// The id of the request.
    pub id: String,
    /// Its author.
    pub from: String,
    /// True if it was approved.
    pub approve: bool,
    /// The id of the message with the answer; `None` for a permission, and if the author has no inbox.
    pub message: Option<String>,
    /// The time at which the author reads that message.
    #[serde(skip)]
    pub delivery: Delivery,
}

/// Answers a request as the person, once. Without an id it is the only one that waits. For the approval of a call without a digest,
/// `show` shows the whole call and returns its digest if the person agrees; `None` if it shows nothing.
///
/// The answer is sent before it is recorded: after a crash in between, the request can be answered again.
///
/// # Errors
/// As [`find`]. Or the request has an answer, no team waits for the permission, the person did not see the whole call, or `show` fails.
pub async fn answer<E: From<Refusal>>(
    workspace: &Workspace,
    kind: RequestKind,
    id: Option<&str>,
    decision: Decision,
    show: impl FnOnce(&Request) -> Result<Option<String>, E>,
) -> Result<GivenAnswer, E> {
    if kind == RequestKind::Permission && LeadStatus::of(workspace).await?.lead.is_none() {
        let refusal = Refusal::refused("cannot answer: no team runs, and a call waits only while its team runs");
        let again = "the agent asks again if it still needs the call";
        return Err(refusal.steps([Launch::Run { team: None }.into(), again.into()]).into());
    }
    let stores = workspace.stores(OpenMode::Write).await?;
    let approvals = current_approvals(&stores, workspace.now()).await.map_err(Refusal::from)?;
    let request = find(&approvals, kind, id)?;
    let Decision { approve, feedback, for_run, mut digest } = decision;
    if approve && digest.is_none() {
        digest = show(request)?;
    }
    // Two terminals of the same person are two responders.
    let process = format!("{HUMAN} {}", std::process::id());
    let by = Responder { name: HUMAN, process: &process };
    let feedback = feedback.as_deref().map(str::trim).filter(|feedback| !feedback.is_empty());
    let answer = Answer { approve, feedback, for_run, digest: digest.as_deref() };
    let sent = send_answer(&workspace.outbox(&stores), by, &request.id, kind, answer).await;
    let sent = sent.map_err(|error| refusal(error, kind, &request.id))?;
    let delivery = match sent.message {
        Some(_) => LeadStatus::with_state(workspace).await.unwrap_or_default().delivery(),
        None => Delivery::Now,
    };
    Ok(GivenAnswer { kind, id: request.id.clone(), from: sent.request.from, approve, message: sent.message, delivery })
}

fn refusal(error: StoreError, kind: RequestKind, id: &str) -> Refusal {
    let next = match &error {
        StoreError::Request(RequestError::NotSeen { .. }) => vec![
            Question::Request { kind, id: Some(id.to_owned()) }.into(),
            OrderForm::Approve { kind, id: id.to_owned(), digest: Digest::Open }.into(),
        ],
        StoreError::Request(RequestError::AlreadyAnswered { .. }) => vec![OrderForm::Send { to: None }.into()],
        StoreError::Request(RequestError::BeingAnswered { .. }) => {
            vec![Question::Request { kind, id: None }.into()]
        }
        _ => return error.into(),
    };
    Refusal::from(error).steps(next)
}
