//! The body of a request (<https://platform.openai.com/docs/api-reference/responses/create>). The server keeps nothing, so the body has
//! each item of earlier answers. In a growing conversation, each body repeats the items of the previous one and appends to them, so that
//! the provider's cache applies.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::domain::agent::transcript::{Block, Extra, Role};
use crate::domain::team::digest::sha256;
use crate::ports::{ChatMessage, ModelRequest, RequestPurpose, ToolSpec};
use crate::providers::arguments::text_to_send;
use crate::providers::compat::{AnswerLimit, Compat, session_key};

/// The longest id of a call, in bytes. A digest has as many.
const ID_BYTES_MAX: usize = 64;
/// The reasoning that only the server can read. Without it, a reasoning item cannot be sent back.
const INCLUDED: [&str; 1] = ["reasoning.encrypted_content"];

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    stream: bool,
    store: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    include: Option<[&'static str; 1]>,
    #[serde(flatten)]
    limit: AnswerLimit,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_cache_key: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<&'static str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    instructions: &'a str,
    input: Vec<Item<'a>>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Tool<'a> {
    Function { name: &'a str, description: &'a str, parameters: &'a Value, strict: bool },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Item<'a> {
    Message {
        role: Role,
        content: [Part<'a>; 1],
        /// The other fields of an answer's message, such as its phase.
        #[serde(flatten)]
        extra: Cow<'a, Extra>,
    },
    FunctionCall {
        call_id: Cow<'a, str>,
        name: &'a str,
        arguments: Cow<'a, str>,
        #[serde(flatten)]
        extra: &'a Extra,
    },
    FunctionCallOutput {
        call_id: Cow<'a, str>,
        output: &'a str,
    },
    /// An item as it came.
    #[serde(untagged)]
    Other(&'a Value),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part<'a> {
    InputText { text: &'a str },
    OutputText { text: &'a str },
}

/// The JSON body of `request`.
pub fn body(request: &ModelRequest, compat: &Compat) -> Vec<u8> {
    let no_tools = request.purpose == RequestPurpose::SummaryWithoutTools && !request.tools.is_empty();
    let body = Body {
        model: &request.model,
        stream: true,
        store: false,
        include: compat.include.then_some(INCLUDED),
        limit: AnswerLimit::of(compat.max_tokens_field, request.output_tokens_max),
        prompt_cache_key: compat.cache.then(|| session_key(request)),
        tools: request.tools.iter().map(tool).collect(),
        tool_choice: no_tools.then_some("none"),
        instructions: request.system.trim_end(),
        input: request.messages.iter().flat_map(|message| items(message)).collect(),
    };
    // All keys are strings, so serialization cannot fail.
    serde_json::to_vec(&body).unwrap_or_default()
}

/// The API makes schemas strict by default, which those of Brigade's tools are not.
fn tool(ToolSpec { name, description, input_schema }: &ToolSpec) -> Tool<'_> {
    Tool::Function { name, description, parameters: input_schema, strict: false }
}

fn items(message: &ChatMessage) -> Vec<Item<'_>> {
    let mut items = Vec::with_capacity(message.content.len());
    // The item of the next text, without its text.
    let mut head: Option<&Extra> = None;
    for block in &message.content {
        match block {
            Block::Text { text } if text.trim().is_empty() => {}
            Block::Text { text } => {
                let part = match message.role {
                    Role::User => Part::InputText { text },
                    Role::Assistant => Part::OutputText { text },
                };
                let extra = head.take().map_or_else(Cow::default, own_fields);
                items.push(Item::Message { role: message.role, content: [part], extra });
            }
            Block::ToolUse { id, name, input, arguments, extra } => {
                let arguments = text_to_send(input, arguments.as_deref());
                items.push(Item::FunctionCall { call_id: short_id(id), name, arguments, extra });
            }
            Block::ToolResult { tool_use_id, content, .. } => {
                items.push(Item::FunctionCallOutput { call_id: short_id(tool_use_id), output: content });
            }
            Block::Other(Value::Object(item)) if item.get("type").is_some_and(|kind| kind == "message") => {
                head = Some(item);
            }
            Block::Other(item) => items.push(Item::Other(item)),
        }
    }
    items
}

/// The id of a call in the length that the API accepts. Other servers put signatures into ids.
fn short_id(id: &str) -> Cow<'_, str> {
    if id.len() <= ID_BYTES_MAX { Cow::Borrowed(id) } else { Cow::Owned(sha256(&[id.as_bytes()])) }
}

/// The fields of a message's item other than those that each message has.
fn own_fields(item: &Extra) -> Cow<'_, Extra> {
    let own = item.iter().filter(|(key, _)| !matches!(key.as_str(), "type" | "role" | "content"));
    Cow::Owned(own.map(|(key, value)| (key.clone(), value.clone())).collect::<Map<_, _>>())
}
