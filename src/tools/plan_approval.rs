//! `plan_approval`: a teammate submits a plan, and the lead or the person answers.

use super::prelude::*;
use crate::domain::team::approval::{Request, RequestKind, ReviewSubject};
use crate::domain::team::name::{HUMAN, LEAD};
use crate::service::request_mail::{self, Answer, Responder};

const NAME: &str = "plan_approval";

/// Submits your plan for the task. The answer comes as mail; do not start the work before.
#[derive(Deserialize, JsonSchema)]
pub(super) struct SubmitPlan {
    /// Steps, risks, how to undo
    plan: String,
}

impl TypedTool for SubmitPlan {
    const NAME: &'static str = NAME;

    fn about(&self) -> String {
        self.plan.clone()
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        check_not_empty("plan", &self.plan)?;
        // A `runbook` lead decides nothing, so the person answers.
        let (to, recipient) =
            if context.team_control.lead_has_model() { (LEAD, "the lead") } else { (HUMAN, "the person") };
        let about = held_subject(context).await?;
        let from = context.caller.name.as_str();
        let outbox = context.outbox();
        let request = Request::new(&request_mail::new_request_id(), RequestKind::PlanApproval, from, to, outbox.now);
        let id = request_mail::send_request(&outbox, Request { plan: self.plan, about, ..request }).await?;
        Ok(ToolOutput::text(format!(
            "submitted to {recipient} as request {id}; the answer will come as mail. End your turn now if you cannot continue without it"
        )))
    }
}

/// Answers a teammate's plan from your mail.
#[derive(Deserialize, JsonSchema)]
pub(super) struct AnswerPlan {
    request_id: String,
    approve: bool,
    /// The necessary changes
    feedback: Option<String>,
}

impl TypedTool for AnswerPlan {
    const NAME: &'static str = NAME;

    fn about(&self) -> String {
        answer_summary(&self.request_id, self.approve)
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        answer_approval(RequestKind::PlanApproval, &self.request_id, self.approve, self.feedback.as_deref(), context)
            .await
    }
}

/// The caller's task, as the subject of a request.
async fn held_subject(context: &ToolContext) -> Result<Option<ReviewSubject>, ToolError> {
    let claim = *context.caller.claim.borrow();
    let Some(claim) = claim else { return Ok(None) };
    let task = context.stores.board.get(claim.task).await?;
    Ok(Some(ReviewSubject { attempt: claim.attempt, ..ReviewSubject::of(&task, None) }))
}

/// Answers a plan or a review.
pub(super) async fn answer_approval(
    kind: RequestKind,
    id: &str,
    approve: bool,
    feedback: Option<&str>,
    context: &ToolContext,
) -> Result<ToolOutput, ToolError> {
    let author = answer_request(kind, id, approve, feedback, context).await?;
    Ok(ToolOutput::text(format!("answer sent to {author}: {}", if approve { "approved" } else { "rejected" })))
}

/// Answers a request of any kind. Returns the name of its author.
pub(super) async fn answer_request(
    kind: RequestKind,
    id: &str,
    approve: bool,
    feedback: Option<&str>,
    context: &ToolContext,
) -> Result<String, ToolError> {
    let name = context.caller.name.as_str();
    let by = Responder { name, process: name };
    let answer = Answer { approve, feedback, for_run: false, digest: None };
    Ok(request_mail::send_answer(&context.outbox(), by, id, kind, answer).await?.request.from)
}

/// The summary of a call that answers a request.
pub(super) fn answer_summary(id: &str, approve: bool) -> String {
    format!("{id}: {}", if approve { "yes" } else { "no" })
}
