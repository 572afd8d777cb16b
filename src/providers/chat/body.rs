//! The body of a request for chat completions (<https://platform.openai.com/docs/api-reference/chat/create>). In a growing
//! conversation, each body repeats the messages of the previous one and appends to them, so that the provider's cache applies.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Serialize;
use serde_json::{Value, json};

use super::reasoning;
use crate::domain::transcript::{Block, Extra, Role};
use crate::ports::{ChatMessage, ModelRequest, RequestPurpose, ToolSpec};
use crate::providers::arguments::text_to_send;

/// The signature of a call that another model made (<https://ai.google.dev/gemini-api/docs/thought-signatures>).
const NO_SIGNATURE: &str = "skip_thought_signature_validator";

/// The differences of a service from the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compat {
    /// The field with the limit of the answer.
    pub max_tokens_field: MaxTokensField,
    /// True if the service reports usage only when it is asked to.
    pub stream_options: bool,
    /// The form of the ids of calls that it accepts.
    pub id_form: IdForm,
    /// The field of reasoning that it requires beside calls, even if there is none.
    pub needs_reasoning: Option<&'static str>,
    /// True if it requires a signature in the first call of an answer.
    pub needs_signature: bool,
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
    pub const DEFAULT: Self = Self {
        max_tokens_field: MaxTokensField::MaxTokens,
        stream_options: true,
        id_form: IdForm::Any,
        needs_reasoning: None,
        needs_signature: false,
    };
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
        content: Content<'a>,
        /// The fields with reasoning.
        #[serde(flatten)]
        reasoning: Extra,
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
        messages: messages(request, compat),
    };
    // All keys are strings, so serialization cannot fail.
    serde_json::to_vec(&body).unwrap_or_default()
}

fn tool(ToolSpec { name, description, input_schema }: &ToolSpec) -> Tool<'_> {
    Tool::Function { name, description, parameters: input_schema }
}

fn messages(request: &ModelRequest, compat: Compat) -> Vec<Message<'_>> {
    let system = (!request.system.trim().is_empty()).then_some(Message::System { content: &request.system });
    let rest = request.messages.iter().flat_map(|message| match message.role {
        Role::User => user_messages(message, compat.id_form),
        Role::Assistant => assistant_message(message, compat).into_iter().collect(),
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

fn assistant_message(message: &ChatMessage, compat: Compat) -> Option<Message<'_>> {
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
    let mut reasoning = reasoning::fields_of(&message.content);
    if let Some(field) = compat.needs_reasoning.filter(|_| reasoning.is_empty() && !tool_calls.is_empty()) {
        reasoning.insert(field.to_owned(), Value::String(String::new()));
    }
    let mut parts: Vec<Cow<'_, Value>> = reasoning::parts_of(&message.content).map(Cow::Borrowed).collect();
    if parts.is_empty() {
        return Some(Message::Assistant { content: Content::Text(text), reasoning, tool_calls });
    }
    if !text.trim().is_empty() {
        parts.push(Cow::Owned(json!({"type": "text", "text": text})));
    }
    Some(Message::Assistant { content: Content::Parts(parts), reasoning, tool_calls })
}

fn joined_text(message: &ChatMessage) -> String {
    let texts: Vec<&str> = message.content.iter().filter_map(Block::as_text).collect();
    texts.join("\n\n")
}
