//! Adapters that all tools share: they parse the arguments before the call, and bound and escape the output after it.

use std::marker::PhantomData;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::arguments::ArgumentSchema;
use super::table::Audience;
use super::{Tool, ToolContext, ToolError, ToolOutput};
use crate::domain::text::tags::escape_tags;
use crate::domain::text::{bound, headline};
use crate::ports::ToolSpec;
use crate::process::command::CommandOutcome;
use crate::secrets::masked;

/// The longest summary of a call, in characters.
const ABOUT_CHARS_MAX: usize = 200;

/// A tool whose arguments are the fields of this struct. Models read the doc comments: that of the struct says what the tool does
/// and when to use it, those of the fields describe the arguments. [`typed`] makes a [`Tool`] of it.
pub trait TypedTool: DeserializeOwned + JsonSchema + Send {
    /// The name in a tool call.
    const NAME: &'static str;

    /// The description for the lead, if it is another one.
    const FOR_LEAD: &'static str = "";

    /// Describes the call in one line for people: the command, the path.
    fn about(&self) -> String {
        String::new()
    }

    /// Runs the tool. Dropping the future ends all that it started.
    fn run(self, context: &ToolContext) -> impl Future<Output = Result<ToolOutput, ToolError>> + Send;
}

/// Makes a [`Tool`] from a [`TypedTool`].
pub fn typed<T: TypedTool>() -> impl Tool {
    typed_for::<T>(Audience::All)
}

/// Makes a [`Tool`] with the description for this audience.
pub(super) fn typed_for<T: TypedTool>(audience: Audience) -> impl Tool {
    let schema = ArgumentSchema::of::<T>();
    let is_own = audience == Audience::Lead && !T::FOR_LEAD.is_empty();
    let description = if is_own { T::FOR_LEAD.to_owned() } else { schema.description() };
    let spec = ToolSpec { name: T::NAME.to_owned(), description, input_schema: schema.for_models(audience) };
    ToolAdapter { spec, schema, tool: PhantomData::<fn() -> T> }
}

struct ToolAdapter<T> {
    spec: ToolSpec,
    schema: ArgumentSchema,
    tool: PhantomData<fn() -> T>,
}

#[async_trait::async_trait]
impl<T: TypedTool> Tool for ToolAdapter<T> {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn about(&self, input: &Value) -> String {
        match self.schema.parse::<T>(input) {
            Ok(call) => call.about(),
            // People see what was wrong.
            Err(_) => input.to_string(),
        }
    }

    async fn run(&self, input: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        self.schema.parse::<T>(&input)?.run(context).await
    }
}

/// A tool with bounded and escaped output.
pub(super) struct SanitizedTool(pub Arc<dyn Tool>);

#[async_trait::async_trait]
impl Tool for SanitizedTool {
    fn spec(&self) -> ToolSpec {
        self.0.spec()
    }

    fn about(&self, input: &Value) -> String {
        headline(&self.0.about(input), ABOUT_CHARS_MAX)
    }

    async fn run(&self, input: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        sanitized_result(self.0.run(input, context).await, context)
    }
}

fn sanitized_result(result: Result<ToolOutput, ToolError>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
    let bytes_max = context.limits.output_bytes_max;
    match result {
        Ok(output) => Ok(ToolOutput { text: sanitized_text(&output.text, bytes_max), ..output }),
        Err(ToolError::Recoverable(text)) => Err(ToolError::Recoverable(sanitized_text(&text, bytes_max))),
        Err(ToolError::CommandFailed(outcome)) => {
            let output = sanitized_text(&outcome.output, bytes_max);
            let hints = outcome.hints.iter().map(|hint| sanitized_text(hint, bytes_max)).collect();
            Err(ToolError::CommandFailed(CommandOutcome { output, hints, ..outcome }))
        }
        Err(ToolError::ClaimLost(text)) => Err(ToolError::ClaimLost(sanitized_text(&text, bytes_max))),
        Err(ToolError::Fatal(text)) => Err(ToolError::Fatal(sanitized_text(&text, bytes_max))),
    }
}

/// Returns `text` within its bound, without secrets and with the harness's tags escaped, as in the output of tools.
pub(crate) fn sanitized_text(text: &str, bytes_max: usize) -> String {
    // Leaving out the middle cannot join two halves to a tag: a note replaces the middle.
    escape_tags(&bound(&masked(text.to_owned()), bytes_max)).into_owned()
}
