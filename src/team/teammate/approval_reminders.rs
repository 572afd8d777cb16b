//! Reminds a teammate of the approvals that wait for its answer.

use std::collections::HashSet;
use std::sync::Arc;

use crate::agents::{AgentError, AgentHost};
use crate::domain::team::approval::RequestKind;
use crate::domain::team::name::HUMAN;
use crate::service::request_mail;

/// The ids of approvals that it was reminded to answer.
#[derive(Default)]
pub(super) struct ApprovalReminders {
    reminded: HashSet<String>,
}

impl ApprovalReminders {
    /// Reminds it once of each approval that it has not answered. After that, the person has to answer. Returns true if it was
    /// reminded now.
    pub async fn remind(&mut self, host: &mut AgentHost) -> Result<bool, AgentError> {
        let services = Arc::clone(&host.services);
        let name = host.spec.name.clone();
        let Ok(requests) = services.stores.requests.all().await else { return Ok(false) };
        let mut is_reminded_now = false;
        for approval in requests.open_approvals().filter(|approval| name.is_same(&approval.to)) {
            let (id, from, noun) = (&approval.id, &approval.from, approval.kind.noun());
            if self.reminded.insert(id.clone()) {
                let tool = if approval.kind == RequestKind::Review { "review" } else { "plan_approval" };
                let text = format!(
                    "{from} waits for your answer to {noun} {id}: look at it, then call {tool} with request_id {id} and approve. If you reject it, add feedback."
                );
                host.append_message(text).await?;
                is_reminded_now = true;
                continue;
            }
            services.events.warn(name.as_str(), format!("has not answered {noun} {id}; a person has to answer it now"));
            let about = format!("{noun} {id} is yours to answer");
            if let Err(error) = request_mail::reassign(&services.outbox(), id, approval.kind, HUMAN, about).await {
                services.events.warn(HUMAN, format!("cannot be asked for an answer: {error}"));
            }
        }
        Ok(is_reminded_now)
    }
}
