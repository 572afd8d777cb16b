//! The body of a request for chat completions (<https://platform.openai.com/docs/api-reference/chat/create>). In a growing
//! conversation, each body repeats the messages of the previous one and appends to them, so that the provider's cache applies.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Serialize;
use serde_json::{Value, json};

use crate::domain::transcript::{Block, Role};
use crate::ports::{ChatMessage, ModelRequest, RequestPurpose, ToolSpec};

/// The differences of a service from the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compat {
    /// The field with the limit of the answer.
    pub max_tokens_field: MaxTokensField,
    /// True if the service reports usage only when it is asked to.
    pub stream_options: bool,
    /// The form of the ids of calls that it accepts.
    pub id_form: IdForm,
}

/// The form of the ids of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdForm {
    /// Any text.
    Any,
    /// Nine letters or digits.
    NineAlphanumeric,
}

impl IdForm {
    /// Returns the id in this form. The same id always has the same result, so that a result finds its call.
    fn of(self, id: &str) -> Cow<'_, str> {
        const LENGTH: usize = 9;
        const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
        let is_valid = id.len() == LENGTH && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if self == Self::Any || is_valid {
            return Cow::Borrowed(id);
        }
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        let mut rest = hasher.finish();
        let digits = (0..LENGTH).map(|_| {
            let digit = DIGITS[(rest % 36) as usize];
            rest /= 36;
            char::from(digit)
        });
        Cow::Owned(digits.collect())
    }
}

/// The field with the limit of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxTokensField {
    /// `max_tokens`, which most servers know.
    MaxTokens,
    /// `max_completion_tokens`, its successor.
    MaxCompletionTokens,
}

impl MaxTokensField {
    /// Returns its name in a body.
    pub fn name(self) -> &'static str {
        match self {
            Self::MaxTokens => "max_tokens",
            Self::MaxCompletionTokens => "max_completion_tokens",
        }
    }

    /// Returns the field with the same meaning.
    pub fn other(self) -> Self {
        match self {
            Self::MaxTokens => Self::MaxCompletionTokens,
            Self::MaxCompletionTokens => Self::MaxTokens,
        }
    }
}

impl Compat {
    /// The differences of a server that nothing is known about.
    pub const DEFAULT: Self =
        Self { max_tokens_field: MaxTokensField::MaxTokens, stream_options: true, id_form: IdForm::Any };
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<&'static str>,
    messages: Vec<Message<'a>>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
#[serde(tag = "type", content = "function", rename_all = "snake_case")]
enum Tool<'a> {
    Function { name: &'a str, description: &'a str, parameters: &'a Value },
}

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "snake_case")]
enum Message<'a> {
    System {
        content: &'a str,
    },
    User {
        content: String,
    },
    Assistant {
        content: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall<'a>>,
    },
    Tool {
        tool_call_id: Cow<'a, str>,
        content: &'a str,
    },
}

#[derive(Serialize)]
struct ToolCall<'a> {
    id: Cow<'a, str>,
    #[serde(rename = "type")]
    kind: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    arguments: String,
}

/// The JSON body of `request`.
pub fn body(request: &ModelRequest, compat: Compat) -> Vec<u8> {
    let limit = |field: MaxTokensField| (compat.max_tokens_field == field).then_some(request.output_tokens_max);
    let no_tools = request.purpose == RequestPurpose::SummaryWithoutTools && !request.tools.is_empty();
    let body = Body {
        model: &request.model,
        stream: true,
        stream_options: compat.stream_options.then_some(StreamOptions { include_usage: true }),
        max_tokens: limit(MaxTokensField::MaxTokens),
        max_completion_tokens: limit(MaxTokensField::MaxCompletionTokens),
        tools: request.tools.iter().map(tool).collect(),
        tool_choice: no_tools.then_some("none"),
        messages: messages(request, compat.id_form),
    };
    // All keys are strings, so serialization cannot fail.
    serde_json::to_vec(&body).unwrap_or_default()
}

fn tool(ToolSpec { name, description, input_schema }: &ToolSpec) -> Tool<'_> {
    Tool::Function { name, description, parameters: input_schema }
}

fn messages(request: &ModelRequest, ids: IdForm) -> Vec<Message<'_>> {
    let system = (!request.system.trim().is_empty()).then_some(Message::System { content: &request.system });
    let rest = request.messages.iter().flat_map(|message| match message.role {
        Role::User => user_messages(message, ids),
        Role::Assistant => assistant_message(message, ids).into_iter().collect(),
    });
    system.into_iter().chain(rest).collect()
}

/// The results of tools, each as its own message, then the texts as one.
fn user_messages(message: &ChatMessage, ids: IdForm) -> Vec<Message<'_>> {
    let results = message.content.iter().filter_map(|block| match block {
        Block::ToolResult { tool_use_id, content, .. } => {
            Some(Message::Tool { tool_call_id: ids.of(tool_use_id), content })
        }
        _ => None,
    });
    let text = joined_text(message);
    let text = (!text.trim().is_empty()).then_some(Message::User { content: text });
    results.chain(text).collect()
}

fn assistant_message(message: &ChatMessage, ids: IdForm) -> Option<Message<'_>> {
    let calls = message.content.iter().filter_map(|block| match block {
        Block::ToolUse { id, name, input, .. } => Some(ToolCall {
            id: ids.of(id),
            kind: "function",
            function: Function { name, arguments: arguments(input) },
        }),
        _ => None,
    });
    let (content, tool_calls) = (joined_text(message), calls.collect::<Vec<_>>());
    (!content.trim().is_empty() || !tool_calls.is_empty()).then_some(Message::Assistant { content, tool_calls })
}

fn joined_text(message: &ChatMessage) -> String {
    let texts: Vec<&str> = message.content.iter().filter_map(Block::as_text).collect();
    texts.join("\n\n")
}

/// The arguments of a call as the text of an object. Servers refuse every later request if the history has other arguments.
fn arguments(input: &Value) -> String {
    match input {
        Value::Object(_) => input.to_string(),
        Value::Null => "{}".to_owned(),
        Value::String(text) => json!({ "INVALID_JSON": text }).to_string(),
        other => json!({ "INVALID_JSON": other.to_string() }).to_string(),
    }
}
