//! `shutdown_request` and `shutdown_response`: the lead asks a teammate to stop, the teammate answers, the lead reads the answer.

use super::plan_approval::{answer_request, answer_summary};
use super::prelude::*;
use crate::domain::team::approval::{Request, RequestKind};
use crate::domain::team::name::Name;
use crate::service::request_mail;

const RESPONSE: &str = "shutdown_response";

/// Asks a teammate to stop for the rest of the run. The answer comes as mail. Idle teammates cost nothing.
#[derive(Deserialize, JsonSchema)]
pub(super) struct ShutdownRequest {
    teammate: String,
}

impl TypedTool for ShutdownRequest {
    const NAME: &'static str = "shutdown_request";

    fn about(&self) -> String {
        self.teammate.clone()
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let name = self.teammate.trim().trim_start_matches('@');
        let mut members = context.team_control.members();
        let outside = context.outside_agents().await?;
        members.extend(outside.iter().filter_map(|agent| Name::new(&agent.name).ok()));
        let Some(teammate) = members.iter().find(|member| member.is_same(name) && !member.is_reserved()) else {
            let names: Vec<&str> = members.iter().filter(|member| !member.is_reserved()).map(AsRef::as_ref).collect();
            return Err(ToolError::Recoverable(format!(
                "there is no teammate `{name}`; the teammates are: {}",
                names.join(", ")
            )));
        };
        let approvals = context.stores.requests.all().await?;
        if let Some(Request { id, .. }) =
            approvals.open(RequestKind::Shutdown).find(|open| open.to == teammate.as_str())
        {
            return Err(ToolError::Recoverable(format!(
                "{teammate} was already asked to stop; request {id} waits for its answer"
            )));
        }
        let from = context.caller.name.as_str();
        let outbox = context.outbox();
        let id = request_mail::new_request_id();
        let request = Request::new(&id, RequestKind::Shutdown, from, teammate.as_str(), outbox.now);
        request_mail::send_request(&outbox, request).await?;
        Ok(ToolOutput::text(format!("sent request {id} to {teammate}; the answer will come as mail")))
    }
}

/// Answers the lead's request to stop. Before you approve, report your task or give it back. Refuse only if stopping would
/// lose work.
#[derive(Deserialize, JsonSchema)]
pub(super) struct AnswerShutdown {
    request_id: String,
    approve: bool,
    reason: Option<String>,
}

impl TypedTool for AnswerShutdown {
    const NAME: &'static str = RESPONSE;

    fn about(&self) -> String {
        answer_summary(&self.request_id, self.approve)
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Self { request_id, approve, reason } = self;
        let author = answer_request(RequestKind::Shutdown, &request_id, approve, reason.as_deref(), context).await?;
        Ok(if approve {
            ToolOutput { text: format!("answer sent to {author}; you stop now"), effect: ToolEffect::Stop }
        } else {
            ToolOutput::text(format!("answer sent to {author}; you continue"))
        })
    }
}

/// Shows the answer to your shutdown request, which also comes as mail.
#[derive(Deserialize, JsonSchema)]
pub(super) struct ShutdownStatus {
    request_id: String,
}

impl TypedTool for ShutdownStatus {
    const NAME: &'static str = RESPONSE;

    fn about(&self) -> String {
        self.request_id.clone()
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let id = self.request_id.trim();
        let approvals = context.stores.requests.all().await?;
        let request =
            approvals.requests.iter().find(|request| request.id == id && request.kind == RequestKind::Shutdown);
        let request = request.ok_or_else(|| ToolError::Recoverable(format!("there is no shutdown request `{id}`")))?;
        let status = match &request.answer {
            None => "has not answered yet".to_owned(),
            Some(answer) => format!("{}: {}", if answer.approve { "approved" } else { "rejected" }, answer.text),
        };
        Ok(ToolOutput::text(format!("{} {status}", request.to)))
    }
}
