//! The body of a request to the Messages API (<https://platform.claude.com/docs/en/api/messages>). In a growing conversation, each
//! body repeats the content of the previous one and appends to it. Prompt caching
//! (<https://platform.claude.com/docs/en/build-with-claude/prompt-caching>) compares beginnings, in the order tools, system,
//! messages, up to at most four blocks with `cache_control`. Brigade sets it on the last tool (the same for all teammates), on the
//! system prompt, and at the ends of the last two user messages. The previous request ended at the first of these two messages, so
//! its cache entry is found, whatever the number of new blocks.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Value, json};

use crate::domain::agent::transcript::{Block, Role};
use crate::ports::{ChatMessage, ModelRequest, RequestPurpose, ToolSpec};

/// The key for arguments that are not valid JSON
/// (<https://platform.claude.com/docs/en/agents-and-tools/tool-use/fine-grained-tool-streaming>).
const INVALID_JSON: &str = "INVALID_JSON";
/// The longest name of a tool or id of a call, in bytes.
const WORD_BYTES_MAX: usize = 128;
/// The number of user messages that end with a cache breakpoint.
const CACHED_USER_MESSAGES: usize = 2;

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u32,
    stream: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<ToolDefinition<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    system: Vec<ContentBlock<'a>>,
    messages: Vec<Message<'a>>,
}

#[derive(Serialize)]
struct ToolDefinition<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<CacheControl>,
}

#[derive(Serialize)]
struct Message<'a> {
    role: Role,
    content: Vec<ContentBlock<'a>>,
}

/// A cache breakpoint.
#[derive(Serialize, Clone, Copy)]
#[serde(tag = "type", rename_all = "snake_case")]
enum CacheControl {
    Ephemeral,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ContentBlock<'a> {
    Text {
        text: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<CacheControl>,
    },
    ToolUse {
        id: Cow<'a, str>,
        name: Cow<'a, str>,
        input: Cow<'a, Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<CacheControl>,
    },
    ToolResult {
        tool_use_id: Cow<'a, str>,
        content: &'a str,
        #[serde(skip_serializing_if = "is_false")]
        is_error: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<CacheControl>,
    },
    /// A block as it came. It has no breakpoint, because thinking cannot have one.
    #[serde(untagged)]
    Other(&'a Value),
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// The JSON body of `request`.
pub fn body(request: &ModelRequest) -> Vec<u8> {
    let no_tools = request.purpose == RequestPurpose::SummaryWithoutTools && !request.tools.is_empty();
    let system = ContentBlock::Text { text: &request.system, cache_control: Some(CacheControl::Ephemeral) };
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

fn tools(specs: &[ToolSpec]) -> Vec<ToolDefinition<'_>> {
    let cache_control = |index: usize| if index + 1 == specs.len() { Some(CacheControl::Ephemeral) } else { None };
    specs
        .iter()
        .enumerate()
        .map(|(index, spec)| ToolDefinition {
            name: &spec.name,
            description: &spec.description,
            input_schema: &spec.input_schema,
            cache_control: cache_control(index),
        })
        .collect()
}

/// The messages as they are sent. The API refuses a message without content, so it is left out, and its neighbours of one role become
/// one message.
fn messages<'a>(messages: &'a [std::sync::Arc<ChatMessage>]) -> Vec<Message<'a>> {
    let to_message =
        |message: &'a std::sync::Arc<ChatMessage>| Message { role: message.role, content: content(message) };
    let mut filled: Vec<Message<'a>> =
        messages.iter().map(to_message).filter(|message| !message.content.is_empty()).collect();
    let of_user = filled.iter_mut().rev().filter(|message| message.role == Role::User);
    for message in of_user.take(CACHED_USER_MESSAGES) {
        set_cache_control(&mut message.content);
    }
    let mut sent: Vec<Message<'a>> = Vec::with_capacity(filled.len());
    for message in filled {
        match sent.last_mut() {
            Some(last) if last.role == message.role => last.content.extend(message.content),
            _ => sent.push(message),
        }
    }
    sent
}

fn content(message: &ChatMessage) -> Vec<ContentBlock<'_>> {
    message.content.iter().filter_map(content_block).collect()
}

/// A block as it is sent. `None` for a block that the API refuses: empty text, or thinking without a signature.
fn content_block(block: &Block) -> Option<ContentBlock<'_>> {
    match block {
        Block::Text { text } => (!text.trim().is_empty()).then_some(ContentBlock::Text { text, cache_control: None }),
        Block::ToolUse { id, name, input, .. } => {
            let (id, name) = (valid_word(id), valid_word(name));
            Some(ContentBlock::ToolUse { id, name, input: arguments(input), cache_control: None })
        }
        Block::ToolResult { tool_use_id, content, is_error } => {
            let tool_use_id = valid_word(tool_use_id);
            Some(ContentBlock::ToolResult { tool_use_id, content, is_error: *is_error, cache_control: None })
        }
        Block::Other(value) => {
            let text_of = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or("");
            let is_unsigned = text_of("type") == "thinking" && text_of("signature").is_empty();
            (!is_unsigned).then_some(ContentBlock::Other(value))
        }
    }
}

/// The name of a tool or the id of a call in the characters that the API accepts. A model can invent others, and the API would refuse
/// every request with them.
fn valid_word(word: &str) -> Cow<'_, str> {
    let is_valid = |character: char| character.is_ascii_alphanumeric() || "_-".contains(character);
    if !word.is_empty() && word.len() <= WORD_BYTES_MAX && word.chars().all(is_valid) {
        return Cow::Borrowed(word);
    }
    let valid = word.chars().take(WORD_BYTES_MAX).map(|character| if is_valid(character) { character } else { '_' });
    Cow::Owned(if word.is_empty() { "_".to_owned() } else { valid.collect() })
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

/// Sets a cache breakpoint on the last block that can have one.
fn set_cache_control(content: &mut [ContentBlock<'_>]) {
    let last = content.iter_mut().rev().find_map(|block| match block {
        ContentBlock::Text { cache_control, .. }
        | ContentBlock::ToolUse { cache_control, .. }
        | ContentBlock::ToolResult { cache_control, .. } => Some(cache_control),
        ContentBlock::Other(_) => None,
    });
    if let Some(cache_control) = last {
        *cache_control = Some(CacheControl::Ephemeral);
    }
}
