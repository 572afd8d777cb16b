//! `review`: answers a review of a teammate's work.

use super::plan_approval::{answer_approval, answer_summary};
use super::prelude::*;
use crate::domain::team::approval::RequestKind;

/// Answers a review request from your mail. Look at the work itself first: the diff, the files, a test.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Review {
    request_id: String,
    approve: bool,
    /// The necessary changes
    feedback: Option<String>,
}

impl TypedTool for Review {
    const NAME: &'static str = "review";

    fn about(&self) -> String {
        answer_summary(&self.request_id, self.approve)
    }

    async fn run(self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        answer_approval(RequestKind::Review, &self.request_id, self.approve, self.feedback.as_deref(), context).await
    }
}
