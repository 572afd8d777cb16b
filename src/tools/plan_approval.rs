//! `plan_approval`: a teammate submits a plan, and the lead or the person answers.

use serde_json::Value;

use super::adapter::{TypedTool, text_argument};
use super::arguments::{Arguments, Parameter, ParameterType, optional, required};
use super::messaging::{message, send_answer, send_request};
use super::{ToolContext, ToolError, ToolOutput};
use crate::domain::approval::{Request, RequestKind, ReviewSubject};
use crate::domain::message::MessageType;
use crate::domain::name::{HUMAN, LEAD};
use crate::service::approvals;

const NAME: &str = "plan_approval";

pub(super) struct SubmitPlan;

#[async_trait::async_trait]
impl TypedTool for SubmitPlan {
    const NAME: &'static str = NAME;
    const DESCRIPTION: &'static str = "Submits a plan to the lead or the person. Use it before work that is large, risky or hard to undo, or if the task asks for it. The answer comes as mail with the same request_id; do not start the planned work before. Small tasks need no plan.";
    const PARAMETERS: &'static [Parameter] =
        &[required("plan", ParameterType::Text, "The plan: steps, risks, how to undo")];

    fn about(&self, input: &Value) -> String {
        text_argument(input, "plan")
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let plan = arguments.text("plan");
        if plan.trim().is_empty() {
            return Err(ToolError::Recoverable("argument `plan` is empty".to_owned()));
        }
        let mut request = message(context, MessageType::PlanApprovalRequest, plan);
        request.plan = Some(plan.to_owned());
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

pub(super) struct AnswerPlan;

#[async_trait::async_trait]
impl TypedTool for AnswerPlan {
    const NAME: &'static str = NAME;
    const DESCRIPTION: &'static str = "Answers a teammate's plan, once. Take the `request_id` from the mail. If you reject it, give the necessary changes in `feedback`.";
    const PARAMETERS: &'static [Parameter] = &[
        required("request_id", ParameterType::Text, "The id in the mail"),
        required("approve", ParameterType::Boolean, "True to accept the plan"),
        optional("feedback", ParameterType::Text, "The necessary changes, or notes"),
    ];

    fn about(&self, input: &Value) -> String {
        answer_summary(input)
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        answer_approval(&arguments, RequestKind::PlanApproval, context).await
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
    let claim = *context.claim.borrow();
    let Some(claim) = claim else { return Ok(None) };
    let task = context.stores.board.get(claim.task).await?;
    Ok(Some(ReviewSubject { attempt: claim.attempt, ..ReviewSubject::of(&task, None) }))
}

/// Answers a plan or a review with the arguments of the call.
pub(super) async fn answer_approval(
    arguments: &Arguments,
    kind: RequestKind,
    context: &ToolContext,
) -> Result<ToolOutput, ToolError> {
    let (approve, feedback) = (arguments.flag("approve"), arguments.optional_text("feedback"));
    let (name, now) = (context.caller.name.as_str(), context.clock.now());
    let compose = |request: &Request| approvals::answer_message(request, name, approve, feedback, now);
    let request = send_answer(context, arguments.text("request_id"), kind, approve, compose).await?;
    Ok(ToolOutput::text(format!("answer sent to {}: {}", request.from, if approve { "approved" } else { "rejected" })))
}

/// The summary of a call that answers a request.
pub(super) fn answer_summary(input: &Value) -> String {
    format!("{}: {}", text_argument(input, "request_id"), if input["approve"] == true { "yes" } else { "no" })
}
