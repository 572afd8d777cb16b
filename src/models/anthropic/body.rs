//! The body of a request to the Messages API (<https://platform.claude.com/docs/en/api/messages>), so written that a
//! growing conversation repeats its former body as its beginning.
//!
//! Prompt caching (<https://platform.claude.com/docs/en/build-with-claude/prompt-caching>) goes by equal beginnings, in the
//! order tools, system, messages, up to at most four marked blocks. Ours: the last tool (the same for all teammates), the
//! system prompt, and the ends of the last two messages of the user's side. The earlier of these is where the request
//! before ended, so its entry is found however many blocks came since.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Value, json};

use crate::domain::transcript::{Block, Role};
use crate::ports::{ChatMessage, ModelRequest, Purpose, ToolSpec};

/// Stands in a message of which nothing else can be sent: none may be empty.
const NOTHING: &str = "(nothing)";
/// Arguments that were no JSON are told to the model under this key
/// (<https://platform.claude.com/docs/en/agents-and-tools/tool-use/fine-grained-tool-streaming>).
const INVALID_JSON: &str = "INVALID_JSON";
/// Messages whose end is marked.
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

/// A breakpoint of the cache.
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
    /// As it came; thinking takes no mark.
    #[serde(untagged)]
    Other(&'a Value),
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// The body of this request, as it goes over the wire.
#[must_use]
pub fn body(request: &ModelRequest) -> Vec<u8> {
    let no_tools = request.purpose == Purpose::SummaryWithoutTools && !request.tools.is_empty();
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
    // Nothing in it has keys that are not strings, so writing it cannot fail.
    serde_json::to_vec(&body).unwrap_or_default()
}

fn tools(specs: &[ToolSpec]) -> Vec<ToolPart<'_>> {
    let mark = |place: usize| (place + 1 == specs.len()).then_some(Mark::Ephemeral);
    specs
        .iter()
        .enumerate()
        .map(|(place, spec)| ToolPart {
            name: &spec.name,
            description: &spec.description,
            input_schema: &spec.input_schema,
            cache_control: mark(place),
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
        content.push(Part::Text { text: NOTHING, cache_control: None });
    }
    content
}

/// A block as it is sent; `None` for one the API refuses: empty text, and thinking that was cut before it was signed.
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

/// Arguments as the API takes them: an object.
fn arguments(input: &Value) -> Cow<'_, Value> {
    match input {
        Value::Object(_) => Cow::Borrowed(input),
        Value::Null => Cow::Owned(json!({})),
        Value::String(text) => Cow::Owned(json!({ INVALID_JSON: text })),
        other => Cow::Owned(json!({ INVALID_JSON: other.to_string() })),
    }
}

/// Marks the last block that takes a mark.
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
