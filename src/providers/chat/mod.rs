//! Chat completions, the API of OpenAI that most other servers speak: <https://platform.openai.com/docs/api-reference/chat>.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::exchange::{Api, Assembler};
use crate::domain::model_spec::MaxTokensField;
use crate::domain::team_spec::ApiKind;
use crate::ports::ModelRequest;
use assembly::ChatAssembler;
pub use body::Compat;

// Public for fuzz targets only.
#[doc(hidden)]
pub mod assembly;
mod body;
mod reasoning;

/// The API with the differences of one service.
pub struct ChatApi {
    compat: Mutex<Compat>,
    /// True after the server refused the field with the limit of an answer.
    has_other_limit: AtomicBool,
}

/// Parts of refusals of a field that the server does not know, in lower case.
const UNKNOWN_FIELD: [&str; 8] = [
    "unsupported_parameter",
    "unsupported parameter",
    "extra_forbidden",
    "extra inputs",
    "unknown",
    "unrecognized",
    "not supported",
    "not permitted",
];

impl ChatApi {
    /// Creates the API of a service.
    pub const fn new(compat: Compat) -> Self {
        Self { compat: Mutex::new(compat), has_other_limit: AtomicBool::new(false) }
    }
}

impl Api for ChatApi {
    fn kind(&self) -> ApiKind {
        ApiKind::Chat
    }

    fn body(&self, request: &ModelRequest) -> Vec<u8> {
        let compat = *self.compat.lock();
        body::body(request, compat)
    }

    fn assembler(&self) -> Box<dyn Assembler> {
        Box::new(ChatAssembler::default())
    }

    /// Uses the other name of the field with the limit, once, or leaves the optional field out.
    fn adapt(&self, refusal: &str) -> Option<&'static str> {
        let refusal = refusal.to_lowercase();
        if !UNKNOWN_FIELD.iter().any(|text| refusal.contains(text)) {
            return None;
        }
        let mut compat = self.compat.lock();
        if refusal.contains("stream_options") && compat.stream_options {
            compat.stream_options = false;
            return Some("compat = { stream_options = false }");
        }
        if !refusal.contains(compat.max_tokens_field.as_str()) || self.has_other_limit.swap(true, Ordering::Relaxed) {
            return None;
        }
        compat.max_tokens_field = compat.max_tokens_field.other();
        Some(match compat.max_tokens_field {
            MaxTokensField::MaxTokens => "compat = { max_tokens_field = \"max_tokens\" }",
            MaxTokensField::MaxCompletionTokens => "compat = { max_tokens_field = \"max_completion_tokens\" }",
        })
    }
}

#[cfg(test)]
mod tests;
