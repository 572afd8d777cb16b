//! The messages, plans and reviews that wait for the person.

use serde::Serialize;

use super::next::{Next, OrderForm};
use super::refusal::ApiResult;
use super::request::steps;
use super::workspace::Workspace;
use crate::domain::team::approval::RequestKind;
use crate::domain::team::name::{HUMAN, LEAD};
pub use crate::service::pending::PendingForPerson;
use crate::stores::workspace::OpenMode;

/// Reads everything that waits for the person now.
///
/// # Errors
/// The workspace does not exist, or a store cannot be read.
pub async fn waiting(workspace: &Workspace) -> ApiResult<PendingForPerson> {
    Ok(PendingForPerson::of(&workspace.stores(OpenMode::ReadOnly).await?).await?)
}

/// Returns true if there may be mail for the person. No mail is read for that.
///
/// # Errors
/// The workspace does not exist, or the mailbox cannot be read.
pub async fn has_mail(workspace: &Workspace) -> ApiResult<bool> {
    let names = workspace.stores(OpenMode::ReadOnly).await?.mailbox.recipients_with_mail().await?;
    Ok(names.iter().any(|name| name == HUMAN))
}

/// The things that wait for the person, as numbers and ids.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct PendingView {
    /// Unread messages.
    pub messages: usize,
    /// The sender of the messages, if all have the same one.
    #[serde(skip)]
    pub sender: Option<String>,
    /// The ids of plans that only the person can answer.
    pub plans: Vec<String>,
    /// The ids of reviews that only the person can answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reviews: Vec<String>,
    /// The ids of permission requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub permissions: Vec<String>,
    /// True if a question of the lead waits for the person's answer.
    #[serde(skip)]
    pub lead_asks: bool,
    /// The steps that read the messages, and that show and answer the first request of each kind.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<Next>,
}

impl PendingView {
    /// Summarises what waits for the person.
    pub fn of(pending: &PendingForPerson) -> Self {
        let of_kind = |kind: RequestKind| pending.approvals_for_person().filter(move |request| request.kind == kind);
        let ids = |kind: RequestKind| of_kind(kind).map(|request| request.id.clone()).collect();
        let take_mail = (!pending.mail.is_empty()).then(|| OrderForm::TakeMail.into());
        let kinds = [RequestKind::PlanApproval, RequestKind::Review, RequestKind::Permission];
        let answers = kinds.into_iter().filter_map(|kind| of_kind(kind).next()).flat_map(|first| steps(first, None));
        let first = pending.mail.first().map(|message| &message.from);
        let sender = first.filter(|from| pending.mail.iter().all(|message| message.from == **from)).cloned();
        Self {
            messages: pending.mail.len(),
            sender,
            plans: ids(RequestKind::PlanApproval),
            reviews: ids(RequestKind::Review),
            permissions: ids(RequestKind::Permission),
            lead_asks: pending.questions.iter().any(|question| question.from == LEAD),
            next: take_mail.into_iter().chain(answers).collect(),
        }
    }

    /// Returns true if neither a message nor a request waits.
    pub fn is_nothing(&self) -> bool {
        let has_requests = [&self.plans, &self.reviews, &self.permissions].iter().any(|ids| !ids.is_empty());
        self.messages == 0 && !has_requests
    }
}
