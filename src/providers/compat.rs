//! The differences of servers from their API, in one row of values for each service.

use serde::Serialize;

use crate::domain::team::digest::sha256;
use crate::domain::team::model_spec::{
    ApiKind, CompatSpec, IdForm, InstructionRole, MaxTokensField, ReasoningBack, SessionHeader, ThinkingForm, ToolCalls,
};
use crate::ports::ModelRequest;

/// The length of a session's key in characters. OpenAI allows 64.
const SESSION_KEY_CHARS: usize = 32;

/// The differences of a service from its API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compat {
    /// The field with the limit of the answer.
    pub max_tokens_field: MaxTokensField,
    /// True if the service reports usage only when it is asked to.
    pub stream_options: bool,
    /// True if it returns encrypted reasoning when it is asked to.
    pub include: bool,
    /// True if it takes the key of a session in chat completions too, so that it finds the cache of the session.
    pub cache: bool,
    /// The header with the key of a session.
    pub session_header: SessionHeader,
    /// The form of the ids of calls that it accepts.
    pub id_form: IdForm,
    /// The field in which reasoning goes back.
    pub reasoning_back: ReasoningBack,
    /// True if it requires a signature in the first call of an answer.
    pub needs_signature: bool,
    /// The role of the system prompt.
    pub instruction_role: InstructionRole,
    /// The value of `strict` of each tool, if it is sent.
    pub strict: Option<bool>,
    /// True if the result of a tool has the tool's name.
    pub tool_result_name: bool,
    /// True if an answer must stand between a tool's result and the next message.
    pub assistant_after_tool: bool,
    /// True if the content of an answer without text is null.
    pub content_null: bool,
    /// The form in which it gets the effort.
    pub thinking: ThinkingForm,
    /// The form in which its model calls tools, which is a setting of the member.
    pub tool_calls: ToolCalls,
}

impl Compat {
    /// The differences of a server that nothing is known about.
    pub const DEFAULT: Self = Self {
        max_tokens_field: MaxTokensField::MaxTokens,
        stream_options: true,
        include: true,
        cache: false,
        session_header: SessionHeader::None,
        id_form: IdForm::Any,
        reasoning_back: ReasoningBack::SameField,
        needs_signature: false,
        instruction_role: InstructionRole::System,
        strict: None,
        tool_result_name: false,
        assistant_after_tool: false,
        content_null: false,
        thinking: ThinkingForm::ReasoningEffort,
        tool_calls: ToolCalls::Native,
    };

    /// Returns these differences for an API, with the configured ones in their place. Fields that the API does not have are false.
    #[must_use]
    pub fn with(self, spec: &CompatSpec, api: ApiKind) -> Self {
        let (limit, thinking) = match api {
            ApiKind::Messages => (MaxTokensField::MaxTokens, ThinkingForm::OutputConfig),
            ApiKind::Chat => (self.max_tokens_field, self.thinking),
            ApiKind::Responses => (MaxTokensField::MaxOutputTokens, ThinkingForm::Reasoning),
        };
        Self {
            max_tokens_field: spec.max_tokens_field.unwrap_or(limit),
            stream_options: spec.stream_options.unwrap_or(self.stream_options) && api == ApiKind::Chat,
            include: spec.include.unwrap_or(self.include) && api == ApiKind::Responses,
            cache: spec.cache.unwrap_or(self.cache || api == ApiKind::Responses) && api != ApiKind::Messages,
            session_header: spec.session_header.unwrap_or(self.session_header),
            id_form: spec.id_form.unwrap_or(self.id_form),
            reasoning_back: spec.reasoning_back.unwrap_or(self.reasoning_back),
            needs_signature: self.needs_signature,
            instruction_role: spec.instruction_role.unwrap_or(self.instruction_role),
            strict: spec.strict.or(self.strict),
            tool_result_name: spec.tool_result_name.unwrap_or(self.tool_result_name),
            assistant_after_tool: spec.assistant_after_tool.unwrap_or(self.assistant_after_tool),
            content_null: spec.content_null.unwrap_or(self.content_null),
            thinking: spec.thinking.unwrap_or(thinking),
            tool_calls: self.tool_calls,
        }
    }
}

/// The limit of an answer in tokens, as a field of a request.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerLimit {
    MaxTokens(u32),
    MaxCompletionTokens(u32),
    MaxOutputTokens(u32),
}

impl AnswerLimit {
    /// Returns the limit under the name of this field.
    pub fn of(field: MaxTokensField, tokens: u32) -> Self {
        match field {
            MaxTokensField::MaxTokens => Self::MaxTokens(tokens),
            MaxTokensField::MaxCompletionTokens => Self::MaxCompletionTokens(tokens),
            MaxTokensField::MaxOutputTokens => Self::MaxOutputTokens(tokens),
        }
    }
}

/// Returns the key of all requests with the same beginning: one for each member, and one for its sub-agents.
pub fn session_key(request: &ModelRequest) -> String {
    let mut key = sha256(&[request.teammate.as_bytes(), request.system.as_bytes()]);
    key.truncate(SESSION_KEY_CHARS);
    key
}
