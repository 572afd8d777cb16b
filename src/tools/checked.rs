//! What all tools have in common: arguments are checked before they run, and what they say is bounded and harmless.

use std::sync::Arc;

use serde_json::Value;

use super::arguments::{Arguments, Parameter, schema};
use super::output::bounded;
use super::{Tool, ToolContext, ToolError, ToolOutput};
use crate::domain::tags::defuse;
use crate::ports::ToolSpec;

/// The longest line about a call, in characters.
const ABOUT_CHARS_MAX: usize = 200;

/// A tool whose arguments are described by a list of parameters.
#[async_trait::async_trait]
pub(super) trait Checked: Send + Sync {
    /// Its name.
    const NAME: &'static str;
    /// When and how a model should use it.
    const DESCRIPTION: &'static str;
    /// Its arguments.
    const PARAMETERS: &'static [Parameter];

    /// One line for people about a call.
    fn about(&self, input: &Value) -> String;

    /// Does it. Output need not be bounded or defused here.
    async fn run(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, ToolError>;
}

/// Makes a [`Tool`] of a [`Checked`] one.
pub(super) struct Safe<T>(pub T);

#[async_trait::async_trait]
impl<T: Checked> Tool for Safe<T> {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: T::NAME.to_owned(),
            description: T::DESCRIPTION.to_owned(),
            input_schema: schema(T::PARAMETERS),
        }
    }

    fn about(&self, input: &Value) -> String {
        one_line(&self.0.about(input))
    }

    async fn run(&self, input: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let arguments = Arguments::read(T::PARAMETERS, &input)?;
        safe_result(self.0.run(arguments, context).await, context)
    }
}

/// A tool of another program, as safe as our own: what it says is bounded and harmless.
pub(super) struct Guarded(pub Arc<dyn Tool>);

#[async_trait::async_trait]
impl Tool for Guarded {
    fn spec(&self) -> ToolSpec {
        self.0.spec()
    }

    fn about(&self, input: &Value) -> String {
        one_line(&self.0.about(input))
    }

    async fn run(&self, input: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        safe_result(self.0.run(input, context).await, context)
    }
}

/// The first line of what a call is about, bounded.
fn one_line(about: &str) -> String {
    let mut line = about.lines().next().unwrap_or_default().to_owned();
    if let Some((at, _)) = line.char_indices().nth(ABOUT_CHARS_MAX) {
        line.truncate(at);
        line.push('…');
    } else if about.lines().nth(1).is_some() {
        line.push('…');
    }
    line
}

fn safe_result(result: Result<ToolOutput, ToolError>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
    let bytes_max = context.limits.output_bytes_max;
    match result {
        Ok(output) => Ok(ToolOutput { text: safe(&output.text, bytes_max), ..output }),
        Err(ToolError::Mendable(text)) => Err(ToolError::Mendable(safe(&text, bytes_max))),
        Err(ToolError::ClaimLost(text)) => Err(ToolError::ClaimLost(safe(&text, bytes_max))),
        Err(ToolError::Fatal(text)) => Err(ToolError::Fatal(safe(&text, bytes_max))),
    }
}

/// `text` within its bound, and without what could pass for the harness.
fn safe(text: &str, bytes_max: usize) -> String {
    // A tag cannot be made by leaving out a middle: the note about it stands in between.
    defuse(&bounded(text, bytes_max)).into_owned()
}

/// A text argument for a line about a call; empty when it is none.
pub(super) fn text_of(input: &Value, name: &str) -> String {
    match &input[name] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
