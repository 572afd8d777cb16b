//! The body of a request to the Messages API (<https://platform.claude.com/docs/en/api/messages>). Each body of a growing
//! conversation begins with the body before it. Prompt caching
//! (<https://platform.claude.com/docs/en/build-with-claude/prompt-caching>) compares beginnings, in the order tools, system,
//! messages, up to at most four marked blocks. Brigade marks the last tool (the same for all teammates), the system prompt, and the
//! ends of the last two user messages. The previous request ended at the first of these two messages, so its cache entry is found,
//! whatever the number of new blocks.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Value, json};

use crate::domain::transcript::{Block, Role};
use crate::ports::{ChatMessage, ModelRequest, RequestPurpose, ToolSpec};

/// The text of a message without other content: a message must not be empty.
const EMPTY_MESSAGE: &str = "(nothing)";
/// The key for arguments that are not valid JSON
/// (<https://platform.claude.com/docs/en/agents-and-tools/tool-use/fine-grained-tool-streaming>).
const INVALID_JSON: &str = "INVALID_JSON";
/// The number of user messages with a mark at their end.
const MARKED_MESSAGES: usize = 2;

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u32,
    stream: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<ToolPart<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    system: Vec<Part<'a>>,
    messages: Vec<MessagePart<'a>>,
}

#[derive(Serialize)]
struct ToolPart<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<Mark>,
}

#[derive(Serialize)]
struct MessagePart<'a> {
    role: Role,
    content: Vec<Part<'a>>,
}

/// A cache breakpoint.
#[derive(Serialize, Clone, Copy)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Mark {
    Ephemeral,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part<'a> {
    Text {
        text: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<Mark>,
    },
    ToolUse {
        id: &'a str,
        name: &'a str,
        input: Cow<'a, Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<Mark>,
    },
    ToolResult {
        tool_use_id: &'a str,
        content: &'a str,
        #[serde(skip_serializing_if = "is_false")]
        is_error: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<Mark>,
    },
    /// A block as it came. It has no mark, because thinking cannot have one.
    #[serde(untagged)]
    Other(&'a Value),
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// The JSON body of `request`.
#[must_use]
pub fn body(request: &ModelRequest) -> Vec<u8> {
    let no_tools = request.purpose == RequestPurpose::SummaryWithoutTools && !request.tools.is_empty();
    let system = Part::Text { text: &request.system, cache_control: Some(Mark::Ephemeral) };
    let body = Body {
        model: &request.model,
        max_tokens: request.output_tokens_max,
        stream: true,
        tools: tools(&request.tools),
        tool_choice: no_tools.then(|| json!({"type": "none"})),
        system: Vec::from_iter((!request.system.trim().is_empty()).then_some(system)),
        messages: messages(&request.messages),
    };
    // All keys are strings, so serialization cannot fail.
    serde_json::to_vec(&body).unwrap_or_default()
}

fn tools(specs: &[ToolSpec]) -> Vec<ToolPart<'_>> {
    let mark = |index: usize| if index + 1 == specs.len() { Some(Mark::Ephemeral) } else { None };
    specs
        .iter()
        .enumerate()
        .map(|(index, spec)| ToolPart {
            name: &spec.name,
            description: &spec.description,
            input_schema: &spec.input_schema,
            cache_control: mark(index),
        })
        .collect()
}

fn messages<'a>(messages: &'a [std::sync::Arc<ChatMessage>]) -> Vec<MessagePart<'a>> {
    let mut parts: Vec<MessagePart<'a>> =
        messages.iter().map(|message| MessagePart { role: message.role, content: content(message) }).collect();
    let of_user = parts.iter_mut().rev().filter(|message| message.role == Role::User);
    for message in of_user.take(MARKED_MESSAGES) {
        mark_end(&mut message.content);
    }
    parts
}

fn content(message: &ChatMessage) -> Vec<Part<'_>> {
    let mut content: Vec<Part<'_>> = message.content.iter().filter_map(part).collect();
    if content.is_empty() {
        content.push(Part::Text { text: EMPTY_MESSAGE, cache_control: None });
    }
    content
}

/// A block as it is sent. `None` for a block that the API refuses: empty text, or thinking without a signature.
fn part(block: &Block) -> Option<Part<'_>> {
    match block {
        Block::Text { text } => (!text.trim().is_empty()).then_some(Part::Text { text, cache_control: None }),
        Block::ToolUse { id, name, input } => {
            Some(Part::ToolUse { id, name, input: arguments(input), cache_control: None })
        }
        Block::ToolResult { tool_use_id, content, is_error } => {
            Some(Part::ToolResult { tool_use_id, content, is_error: *is_error, cache_control: None })
        }
        Block::Other(value) => {
            let text_of = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or("");
            let is_unsigned = text_of("type") == "thinking" && text_of("signature").is_empty();
            (!is_unsigned).then_some(Part::Other(value))
        }
    }
}

/// The arguments as an object, which the API requires.
fn arguments(input: &Value) -> Cow<'_, Value> {
    match input {
        Value::Object(_) => Cow::Borrowed(input),
        Value::Null => Cow::Owned(json!({})),
        Value::String(text) => Cow::Owned(json!({ INVALID_JSON: text })),
        other => Cow::Owned(json!({ INVALID_JSON: other.to_string() })),
    }
}

/// Marks the last block that can have a mark.
fn mark_end(content: &mut [Part<'_>]) {
    let markable = content.iter_mut().rev().find_map(|part| match part {
        Part::Text { cache_control, .. }
        | Part::ToolUse { cache_control, .. }
        | Part::ToolResult { cache_control, .. } => Some(cache_control),
        Part::Other(_) => None,
    });
    if let Some(cache_control) = markable {
        *cache_control = Some(Mark::Ephemeral);
    }
}
