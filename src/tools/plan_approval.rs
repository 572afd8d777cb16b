//! `plan_approval`: a teammate hands in a plan; the lead answers, or the person.

use serde_json::Value;

use super::answers;
use super::arguments::{Arguments, Kind, Parameter, optional, required};
use super::checked::{Checked, text_of};
use super::mail::{answer, ask, message};
use super::{ToolContext, ToolError, ToolOutput};
use crate::domain::message::MessageType;
use crate::domain::name::{HUMAN, LEAD};
use crate::domain::request::{About, Request, RequestKind};

const NAME: &str = "plan_approval";

/// The teammate's.
pub(super) struct SubmitPlan;

#[async_trait::async_trait]
impl Checked for SubmitPlan {
    const NAME: &'static str = NAME;
    const DESCRIPTION: &'static str = "Hands in a plan to the lead, or the person, before work that is large, risky or hard to undo, or when the task asks for it. The answer comes as mail with the same request_id; do not begin what needs the approval before it came. Small tasks need no plan.";
    const PARAMETERS: &'static [Parameter] = &[required("plan", Kind::Text, "The plan: steps, risks, how to undo")];

    fn about(&self, input: &Value) -> String {
        text_of(input, "plan")
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let plan = arguments.text("plan");
        if plan.trim().is_empty() {
            return Err(ToolError::Mendable("argument `plan` is empty".to_owned()));
        }
        let mut request = message(context, MessageType::PlanApprovalRequest, plan);
        request.plan = Some(plan.to_owned());
        // A lead that goes by rule decides nothing: that is the person's then.
        let (to, whom) = if context.control.lead_thinks() { (LEAD, "the lead") } else { (HUMAN, "the person") };
        let about = held(context).await?;
        withdraw_former(about.as_ref(), context).await?;
        let id = ask(context, to, RequestKind::PlanApproval, request, about).await?;
        Ok(ToolOutput::text(format!(
            "handed in to {whom} as request {id}; end your turn now if you cannot go on without the answer, which will come as mail"
        )))
    }
}

/// The lead's.
pub(super) struct AnswerPlan;

#[async_trait::async_trait]
impl Checked for AnswerPlan {
    const NAME: &'static str = NAME;
    const DESCRIPTION: &'static str = "Answers a plan that a teammate handed in, once. The request_id stands in its mail. Say in `feedback` what to change when you reject it.";
    const PARAMETERS: &'static [Parameter] = &[
        required("request_id", Kind::Text, "Which plan, as its mail says"),
        required("approve", Kind::Boolean, "Whether it may be done so"),
        optional("feedback", Kind::Text, "What to change, or to mind"),
    ];

    fn about(&self, input: &Value) -> String {
        about_answer(input)
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        approve_or_reject(&arguments, RequestKind::PlanApproval, context).await
    }
}

/// Takes back what the caller handed in before for the same task: its former plans are not to be answered any more.
async fn withdraw_former(about: Option<&About>, context: &ToolContext) -> Result<(), ToolError> {
    let Some(about) = about else { return Ok(()) };
    let book = context.stores.requests.all().await?;
    let is_former = |request: &&Request| {
        context.name.is_same(&request.from) && request.about.as_ref().is_some_and(|former| former.task == about.task)
    };
    for former in book.open_plans().filter(is_former) {
        let now = context.clock.now();
        context
            .stores
            .requests
            .withdraw(&former.id, RequestKind::PlanApproval, "another plan was handed in", now)
            .await?;
    }
    Ok(())
}

/// The work the caller is at, as requests name it.
async fn held(context: &ToolContext) -> Result<Option<About>, ToolError> {
    let held = *context.holding.borrow();
    let Some((task, attempt)) = held else { return Ok(None) };
    let task = context.stores.board.get(task).await?;
    Ok(Some(About { attempt, ..About::of(&task, None) }))
}

/// Answers a plan or a review as the call says.
pub(super) async fn approve_or_reject(
    arguments: &Arguments,
    kind: RequestKind,
    context: &ToolContext,
) -> Result<ToolOutput, ToolError> {
    let (approve, feedback) = (arguments.flag("approve"), arguments.optional_text("feedback"));
    let (name, now) = (context.name.as_str(), context.clock.now());
    let compose = |request: &Request| answers::reply(request, name, approve, feedback, now);
    let request = answer(context, arguments.text("request_id"), kind, approve, compose).await?;
    Ok(ToolOutput::text(format!("{} is told: {}", request.from, if approve { "approved" } else { "rejected" })))
}

/// A line about the answer to a request.
pub(super) fn about_answer(input: &Value) -> String {
    format!("{}: {}", text_of(input, "request_id"), if input["approve"] == true { "yes" } else { "no" })
}
