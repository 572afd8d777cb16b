//! The body of a request for chat completions (<https://platform.openai.com/docs/api-reference/chat/create>). In a growing
//! conversation, each body repeats the messages of the previous one and appends to them, so that the provider's cache applies.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::{json_calls, reasoning};
use crate::domain::agent::transcript::{Block, Extra, Role};
use crate::domain::team::model_spec::{InstructionRole, ReasoningBack, ToolCalls};
use crate::ports::{ChatMessage, ModelRequest, RequestPurpose, ToolSpec};
use crate::providers::arguments::text_to_send;
use crate::providers::compat::{AnswerLimit, Compat, session_key};

/// The signature of a call that another model made (<https://ai.google.dev/gemini-api/docs/thought-signatures>).
const NO_SIGNATURE: &str = "skip_thought_signature_validator";

/// The answer between a tool's result and the next message, for servers that require one.
const BETWEEN: &str = "I have read the results.";

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
    #[serde(flatten)]
    limit: AnswerLimit,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_cache_key: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_format: Option<Value>,
    messages: Vec<Message<'a>>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
#[serde(tag = "type", content = "function", rename_all = "snake_case")]
enum Tool<'a> {
    Function {
        name: &'a str,
        description: &'a str,
        parameters: &'a Value,
        #[serde(skip_serializing_if = "Option::is_none")]
        strict: Option<bool>,
    },
}

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "snake_case")]
enum Message<'a> {
    System {
        content: Cow<'a, str>,
    },
    Developer {
        content: Cow<'a, str>,
    },
    User {
        content: String,
    },
    Assistant {
        content: Option<Content<'a>>,
        /// The fields with reasoning.
        #[serde(flatten)]
        reasoning: Extra,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall<'a>>,
    },
    Tool {
        tool_call_id: Cow<'a, str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<&'a str>,
        content: &'a str,
    },
}

#[derive(Serialize)]
struct ToolCall<'a> {
    id: Cow<'a, str>,
    #[serde(rename = "type")]
    kind: &'static str,
    function: Function<'a>,
    /// The provider's own fields.
    #[serde(flatten)]
    extra: Cow<'a, Extra>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Text(String),
    Parts(Vec<Cow<'a, Value>>),
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    arguments: Cow<'a, str>,
}

/// The JSON body of `request`.
pub fn body(request: &ModelRequest, compat: &Compat) -> Vec<u8> {
    let is_json = compat.tool_calls == ToolCalls::Json;
    let tools = if is_json { &[] } else { &*request.tools };
    let no_tools = request.purpose == RequestPurpose::SummaryWithoutTools && !tools.is_empty();
    let body = Body {
        model: &request.model,
        stream: true,
        stream_options: compat.stream_options.then_some(StreamOptions { include_usage: true }),
        limit: AnswerLimit::of(compat.max_tokens_field, request.output_tokens_max),
        prompt_cache_key: compat.cache.then(|| session_key(request)),
        tools: tools.iter().map(|spec| tool(spec, compat.strict)).collect(),
        tool_choice: no_tools.then_some("none"),
        response_format: is_json.then(|| json_calls::response_format(request, compat.strict)),
        messages: messages(request, compat),
    };
    // All keys are strings, so serialization cannot fail.
    serde_json::to_vec(&body).unwrap_or_default()
}

fn tool(ToolSpec { name, description, input_schema }: &ToolSpec, strict: Option<bool>) -> Tool<'_> {
    Tool::Function { name, description, parameters: input_schema, strict }
}

fn messages<'a>(request: &'a ModelRequest, compat: &Compat) -> Vec<Message<'a>> {
    let mut sent = Vec::from_iter(system_message(request, compat));
    let names = if compat.tool_result_name { tool_names(request) } else { HashMap::new() };
    for message in request.messages.iter() {
        match (compat.tool_calls, message.role) {
            (ToolCalls::Json, _) => sent.push(json_message(message)),
            (ToolCalls::Native, Role::User) => add_user_messages(message, compat, &names, &mut sent),
            (ToolCalls::Native, Role::Assistant) => sent.extend(assistant_message(message, compat)),
        }
    }
    sent
}

fn system_message<'a>(request: &'a ModelRequest, compat: &Compat) -> Option<Message<'a>> {
    let content = match compat.tool_calls {
        ToolCalls::Native => Cow::Borrowed(&*request.system),
        ToolCalls::Json => Cow::Owned(format!("{}{}", request.system, json_calls::instructions(&request.tools))),
    };
    let message = match compat.instruction_role {
        InstructionRole::System => |content| Message::System { content },
        InstructionRole::Developer => |content| Message::Developer { content },
    };
    (!content.trim().is_empty()).then(|| message(content))
}

/// Returns a message with calls and results as text. None is left out, so that the roles alternate.
fn json_message(message: &ChatMessage) -> Message<'_> {
    match message.role {
        Role::User => Message::User { content: json_calls::user_text(message) },
        Role::Assistant => Message::Assistant {
            content: Some(Content::Text(json_calls::answer_text(message))),
            reasoning: Extra::new(),
            tool_calls: Vec::new(),
        },
    }
}

/// Returns the tools of all calls, by the ids of the calls.
fn tool_names(request: &ModelRequest) -> HashMap<&str, &str> {
    let blocks = request.messages.iter().flat_map(|message| &message.content);
    let calls = blocks.filter_map(|block| match block {
        Block::ToolUse { id, name, .. } => Some((id.as_str(), name.as_str())),
        _ => None,
    });
    calls.collect()
}

/// Adds the results of tools, each as its own message, then the texts as one.
fn add_user_messages<'a>(
    message: &'a ChatMessage,
    compat: &Compat,
    names: &HashMap<&'a str, &'a str>,
    sent: &mut Vec<Message<'a>>,
) {
    sent.extend(message.content.iter().filter_map(|block| match block {
        Block::ToolResult { tool_use_id, content, .. } => {
            let name = names.get(tool_use_id.as_str()).copied();
            Some(Message::Tool { tool_call_id: compat.id_form.of(tool_use_id), name, content })
        }
        _ => None,
    }));
    let text = joined_text(message);
    if text.trim().is_empty() {
        return;
    }
    if compat.assistant_after_tool && matches!(sent.last(), Some(Message::Tool { .. })) {
        let content = Some(Content::Text(BETWEEN.to_owned()));
        sent.push(Message::Assistant { content, reasoning: Extra::new(), tool_calls: Vec::new() });
    }
    sent.push(Message::User { content: text });
}

fn assistant_message<'a>(message: &'a ChatMessage, compat: &Compat) -> Option<Message<'a>> {
    let mut tool_calls = Vec::new();
    for block in &message.content {
        let Block::ToolUse { id, name, input, arguments, extra } = block else { continue };
        let function = Function { name, arguments: text_to_send(input, arguments.as_deref()) };
        let mut call = ToolCall { id: compat.id_form.of(id), kind: "function", function, extra: Cow::Borrowed(extra) };
        // A call of another model has no signature. Of parallel calls, only the first one needs one.
        if compat.needs_signature && message.origin.is_none() && tool_calls.is_empty() {
            call.extra
                .to_mut()
                .insert("extra_content".to_owned(), json!({"google": {"thought_signature": NO_SIGNATURE}}));
        }
        tool_calls.push(call);
    }
    let text = joined_text(message);
    if text.trim().is_empty() && tool_calls.is_empty() {
        return None;
    }
    let back = compat.reasoning_back;
    let reasoning = reasoning::fields_of(&message.content, back, !tool_calls.is_empty());
    let parts = reasoning::parts_of(&message.content).filter(|_| back != ReasoningBack::None);
    let mut parts: Vec<Cow<'_, Value>> = parts.map(Cow::Borrowed).collect();
    if parts.is_empty() {
        let content = (!compat.content_null || !text.trim().is_empty()).then_some(Content::Text(text));
        return Some(Message::Assistant { content, reasoning, tool_calls });
    }
    if !text.trim().is_empty() {
        parts.push(Cow::Owned(json!({"type": "text", "text": text})));
    }
    Some(Message::Assistant { content: Some(Content::Parts(parts)), reasoning, tool_calls })
}

pub(super) fn joined_text(message: &ChatMessage) -> String {
    let texts: Vec<&str> = message.content.iter().filter_map(Block::as_text).collect();
    texts.join("\n\n")
}
