//! `plan_approval`: a teammate submits a plan, and the lead or the person answers.

use schemars::JsonSchema;
use serde::Deserialize;

use super::adapter::TypedTool;
use super::arguments::check_not_empty;
use super::messaging::{message, send_answer, send_request};
use super::{ToolContext, ToolError, ToolOutput};
use crate::domain::approval::{Request, RequestKind, ReviewSubject};
use crate::domain::message::MessageType;
use crate::domain::name::{HUMAN, LEAD};
use crate::service::approvals;

const NAME: &str = "plan_approval";

/// Submits a plan to the lead or the person. Use it before work that is large, risky or hard to undo, or if the task asks
/// for it. The answer comes as mail with the same request_id; do not start the planned work before. Small tasks need no
/// plan.
#[derive(Deserialize, JsonSchema)]
pub(super) struct SubmitPlan {
    /// The plan: steps, risks, how to undo
    plan: String,
}

#[async_trait::async_trait]
impl TypedTool for SubmitPlan {
    const NAME: &'static str = NAME;

    fn about(&self) -> String {
        self.plan.clone()
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        check_not_empty("plan", &self.plan)?;
        let mut request = message(context, MessageType::PlanApprovalRequest, &self.plan);
        request.plan = Some(self.plan);
        // A `runbook` lead decides nothing, so the person answers.
        let (to, recipient) =
            if context.team_control.lead_is_llm() { (LEAD, "the lead") } else { (HUMAN, "the person") };
        let about = held_subject(context).await?;
        withdraw_earlier(about.as_ref(), context).await?;
        let id = send_request(context, to, RequestKind::PlanApproval, request, about).await?;
        Ok(ToolOutput::text(format!(
            "submitted to {recipient} as request {id}; the answer will come as mail. End your turn now if you cannot continue without it"
        )))
    }
}

/// Answers a teammate's plan, once. Take the `request_id` from the mail. If you reject it, give the necessary changes in
/// `feedback`.
#[derive(Deserialize, JsonSchema)]
pub(super) struct AnswerPlan {
    /// The id in the mail
    request_id: String,
    /// True to accept the plan
    approve: bool,
    /// The necessary changes, or notes
    feedback: Option<String>,
}

#[async_trait::async_trait]
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

/// Withdraws the caller's open plans for the same task. Only the new plan needs an answer.
async fn withdraw_earlier(about: Option<&ReviewSubject>, context: &ToolContext) -> Result<(), ToolError> {
    let Some(about) = about else { return Ok(()) };
    let pending = context.stores.requests.all().await?;
    let is_earlier = |request: &&Request| {
        context.caller.name.is_same(&request.from)
            && request.about.as_ref().is_some_and(|earlier| earlier.task == about.task)
    };
    for earlier in pending.open_plans().filter(is_earlier) {
        let now = context.clock.now();
        context.stores.requests.withdraw(&earlier.id, RequestKind::PlanApproval, "replaced by a new plan", now).await?;
    }
    Ok(())
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
    let (name, now) = (context.caller.name.as_str(), context.clock.now());
    let compose = |request: &Request| approvals::answer_message(request, name, approve, feedback, now);
    let request = send_answer(context, id, kind, approve, compose).await?;
    Ok(ToolOutput::text(format!("answer sent to {}: {}", request.from, if approve { "approved" } else { "rejected" })))
}

/// The summary of a call that answers a request.
pub(super) fn answer_summary(id: &str, approve: bool) -> String {
    format!("{id}: {}", if approve { "yes" } else { "no" })
}
