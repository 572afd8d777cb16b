//! Adapters that all tools share: they check the arguments before the call, and bound and escape the output after it.

use std::sync::Arc;

use serde_json::Value;

use super::arguments::{Arguments, Parameter, schema};
use super::{Tool, ToolContext, ToolError, ToolOutput};
use crate::domain::output::bounded;
use crate::domain::tags::escape_tags;
use crate::ports::ToolSpec;

/// The longest summary of a call, in characters.
const ABOUT_CHARS_MAX: usize = 200;

/// A tool that describes its arguments by a list of parameters.
#[async_trait::async_trait]
pub(super) trait TypedTool: Send + Sync {
    const NAME: &'static str;
    const DESCRIPTION: &'static str;
    const PARAMETERS: &'static [Parameter];

    fn about(&self, input: &Value) -> String;

    /// Runs the tool. [`ToolAdapter`] bounds and escapes the output.
    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError>;
}

/// Makes a [`Tool`] from a [`TypedTool`].
pub(super) struct ToolAdapter<T>(pub T);

#[async_trait::async_trait]
impl<T: TypedTool> Tool for ToolAdapter<T> {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: T::NAME.to_owned(),
            description: T::DESCRIPTION.to_owned(),
            input_schema: schema(T::PARAMETERS),
        }
    }

    fn about(&self, input: &Value) -> String {
        first_line(&self.0.about(input))
    }

    async fn run(&self, input: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let arguments = Arguments::read(T::PARAMETERS, &input)?;
        sanitized_result(self.0.run(arguments, context).await, context)
    }
}

/// A tool of another program, with bounded and escaped output.
pub(super) struct SanitizedTool(pub Arc<dyn Tool>);

#[async_trait::async_trait]
impl Tool for SanitizedTool {
    fn spec(&self) -> ToolSpec {
        self.0.spec()
    }

    fn about(&self, input: &Value) -> String {
        first_line(&self.0.about(input))
    }

    async fn run(&self, input: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        sanitized_result(self.0.run(input, context).await, context)
    }
}

/// The first line of `about`, at most [`ABOUT_CHARS_MAX`] long.
fn first_line(about: &str) -> String {
    let mut line = about.lines().next().unwrap_or_default().to_owned();
    if let Some((at, _)) = line.char_indices().nth(ABOUT_CHARS_MAX) {
        line.truncate(at);
        line.push('…');
    } else if about.lines().nth(1).is_some() {
        line.push('…');
    }
    line
}

fn sanitized_result(result: Result<ToolOutput, ToolError>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
    let bytes_max = context.limits.output_bytes_max;
    match result {
        Ok(output) => Ok(ToolOutput { text: sanitized(&output.text, bytes_max), ..output }),
        Err(ToolError::Recoverable(text)) => Err(ToolError::Recoverable(sanitized(&text, bytes_max))),
        Err(ToolError::ClaimLost(text)) => Err(ToolError::ClaimLost(sanitized(&text, bytes_max))),
        Err(ToolError::Fatal(text)) => Err(ToolError::Fatal(sanitized(&text, bytes_max))),
    }
}

/// `text` within its bound, with the harness's tags escaped.
fn sanitized(text: &str, bytes_max: usize) -> String {
    // Leaving out the middle cannot join two halves to a tag: a note replaces the middle.
    escape_tags(&bounded(text, bytes_max)).into_owned()
}

/// A text argument for the summary of a call; empty if it is missing.
pub(super) fn text_argument(input: &Value, name: &str) -> String {
    match &input[name] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
