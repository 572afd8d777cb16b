//! `ask`: a sub-agent answers a question. The agent of the caller runs it, because a tool knows no model.

use super::prelude::*;

/// The longest question, in bytes.
const QUESTION_BYTES_MAX: usize = 16 * 1024;

/// Asks an agent that knows nothing of your work to look something up in the files. It changes nothing. You get only its
/// answer, so a long search does not fill your context.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Ask {
    /// With all that is needed to answer it
    question: String,
}

impl TypedTool for Ask {
    const NAME: &'static str = "ask";

    fn about(&self) -> String {
        self.question.clone()
    }

    async fn run(self, _: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Self { question } = self;
        check_not_empty("question", &question)?;
        check_size("question", &question, QUESTION_BYTES_MAX, "")?;
        Ok(ToolOutput { text: String::new(), effect: ToolEffect::Ask { question } })
    }
}
