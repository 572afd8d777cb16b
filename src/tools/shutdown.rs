//! `shutdown_request` and `shutdown_response`: the lead asks a teammate to stop, the teammate answers, the lead may look.

use serde_json::Value;

use super::arguments::{Arguments, Kind, Parameter, optional, required};
use super::checked::{Checked, text_of};
use super::mail::{answer, ask, message};
use super::plan_approval::about_answer;
use super::{ToolContext, ToolEffect, ToolError, ToolOutput};
use crate::domain::message::MessageType;
use crate::domain::request::{Request, RequestKind};

const RESPONSE: &str = "shutdown_response";

/// The lead's request.
pub(super) struct ShutdownRequest;

#[async_trait::async_trait]
impl Checked for ShutdownRequest {
    const NAME: &'static str = "shutdown_request";
    const DESCRIPTION: &'static str = "Asks a teammate to stop for the rest of the run. It answers yes or no, by mail with the request_id this returns; shutdown_response shows the answer too. Idle teammates cost nothing: ask only when one is really not wanted any more.";
    const PARAMETERS: &'static [Parameter] = &[required("teammate", Kind::Text, "The teammate's name")];

    fn about(&self, input: &Value) -> String {
        text_of(input, "teammate")
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let wanted = arguments.text("teammate").trim().trim_start_matches('@');
        let members = context.control.members();
        let Some(teammate) = members.iter().find(|member| member.is_same(wanted) && !member.is_reserved()) else {
            let names: Vec<&str> = members.iter().filter(|name| !name.is_reserved()).map(AsRef::as_ref).collect();
            return Err(ToolError::Mendable(format!(
                "there is no teammate `{wanted}`; there are: {}",
                names.join(", ")
            )));
        };
        if let Some(open) = open_request(context, teammate.as_str()).await? {
            return Err(ToolError::Mendable(format!(
                "{teammate} was asked already; request {open} waits for its answer"
            )));
        }
        let request = message(context, MessageType::ShutdownRequest, "Please shut down gracefully.");
        let id = ask(context, teammate.as_str(), RequestKind::Shutdown, request, None).await?;
        Ok(ToolOutput::text(format!("{teammate} is asked to stop, as request {id}; the answer will come as mail")))
    }
}

async fn open_request(context: &ToolContext, teammate: &str) -> Result<Option<String>, ToolError> {
    let book = context.stores.requests.all().await?;
    let is_it =
        |request: &Request| request.kind == RequestKind::Shutdown && request.to == teammate && request.answer.is_none();
    Ok(book.requests.into_iter().find(is_it).map(|request| request.id))
}

/// The teammate's answer.
pub(super) struct AnswerShutdown;

#[async_trait::async_trait]
impl Checked for AnswerShutdown {
    const NAME: &'static str = RESPONSE;
    const DESCRIPTION: &'static str = "Answers the lead's request that you stop; the request_id stands in its mail. With `approve` true you stop after this turn: complete or release your task first. Say no, with a reason, only when stopping now would lose something.";
    const PARAMETERS: &'static [Parameter] = &[
        required("request_id", Kind::Text, "Which request, as its mail says"),
        required("approve", Kind::Boolean, "Whether you stop"),
        optional("reason", Kind::Text, "Why not, or what is left undone"),
    ];

    fn about(&self, input: &Value) -> String {
        about_answer(input)
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let approve = arguments.flag("approve");
        let reason = arguments.optional_text("reason");
        let words = reason.unwrap_or(if approve { "Shutting down." } else { "Not now." });
        let compose = |_: &Request| message(context, MessageType::ShutdownResponse, words);
        let request = answer(context, arguments.text("request_id"), RequestKind::Shutdown, approve, compose).await?;
        Ok(match approve {
            true => ToolOutput { text: format!("{} is told; you stop now", request.from), effect: ToolEffect::Stop },
            false => ToolOutput::text(format!("{} is told that you go on", request.from)),
        })
    }
}

/// The lead's look at an answer.
pub(super) struct ShutdownStatus;

#[async_trait::async_trait]
impl Checked for ShutdownStatus {
    const NAME: &'static str = RESPONSE;
    const DESCRIPTION: &'static str = "Shows how a shutdown_request of yours stands: waiting, approved or rejected. The answer comes as mail by itself; there is no need to ask again and again.";
    const PARAMETERS: &'static [Parameter] =
        &[required("request_id", Kind::Text, "The request, as shutdown_request returned it")];

    fn about(&self, input: &Value) -> String {
        text_of(input, "request_id")
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let id = arguments.text("request_id").trim();
        let book = context.stores.requests.all().await?;
        let request = book.requests.iter().find(|known| known.id == id && known.kind == RequestKind::Shutdown);
        let request = request.ok_or_else(|| ToolError::Mendable(format!("there is no shutdown request `{id}`")))?;
        let stands = match &request.answer {
            None => "has not answered yet".to_owned(),
            Some(answer) => format!("{}: {}", if answer.approve { "approved" } else { "rejected" }, answer.text),
        };
        Ok(ToolOutput::text(format!("{} {stands}", request.to)))
    }
}
