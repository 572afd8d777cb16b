//! `review`: answers a review of a teammate's work.

use serde_json::Value;

use super::adapter::TypedTool;
use super::arguments::{Arguments, Parameter, ParameterType, optional, required};
use super::plan_approval::{answer_approval, answer_summary};
use super::{ToolContext, ToolError, ToolOutput};
use crate::domain::approval::RequestKind;

pub(super) struct Review;

#[async_trait::async_trait]
impl TypedTool for Review {
    const NAME: &'static str = "review";
    const DESCRIPTION: &'static str = "Answers a review request, once: you approve or reject a teammate's work. Take the `request_id` from the mail. Look at the work itself first: the diff, the files, a test. If you reject it, give the necessary changes in `feedback`.";
    const PARAMETERS: &'static [Parameter] = &[
        required("request_id", ParameterType::Text, "The id in the mail"),
        required("approve", ParameterType::Boolean, "True if the work needs no change"),
        optional("feedback", ParameterType::Text, "The necessary changes, or notes"),
    ];

    fn about(&self, input: &Value) -> String {
        answer_summary(input)
    }

    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        answer_approval(&arguments, RequestKind::Review, context).await
    }
}
