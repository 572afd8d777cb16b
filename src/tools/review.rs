//! `review`: answers a review of a teammate's work.

use schemars::JsonSchema;
use serde::Deserialize;

use super::adapter::TypedTool;
use super::plan_approval::{answer_approval, answer_summary};
use super::{ToolContext, ToolError, ToolOutput};
use crate::domain::approval::RequestKind;

/// Answers a review request, once: you approve or reject a teammate's work. Take the `request_id` from the mail. Look at
/// the work itself first: the diff, the files, a test. If you reject it, give the necessary changes in `feedback`.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Review {
    /// The id in the mail
    request_id: String,
    /// True if the work needs no change
    approve: bool,
    /// The necessary changes, or notes
    feedback: Option<String>,
}

#[async_trait::async_trait]
impl TypedTool for Review {
    const NAME: &'static str = "review";

    fn about(&self) -> String {
        answer_summary(&self.request_id, self.approve)
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        answer_approval(RequestKind::Review, &self.request_id, self.approve, self.feedback.as_deref(), context).await
    }
}
