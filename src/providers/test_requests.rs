//! Requests for the tests of all APIs.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::domain::agent::transcript::{Block, Role};
use crate::ports::{ChatMessage, ModelRequest, RequestPurpose, ToolSpec};

/// A request with these messages and two tools.
pub fn request(messages: &[ChatMessage]) -> ModelRequest {
    let tool = |name: &str| ToolSpec {
        name: name.to_owned(),
        description: "does it".to_owned(),
        input_schema: json!({"type": "object", "properties": {"z": {}, "a": {}}}),
    };
    ModelRequest {
        teammate: "bob".into(),
        model: "m".into(),
        system: "You are 'bob'".into(),
        messages: messages.iter().cloned().map(Arc::new).collect(),
        tools: [tool("bash"), tool("idle")].into(),
        output_tokens_max: 99,
        purpose: RequestPurpose::Turn,
        silence_timeout: Duration::MAX,
        answer_timeout: Duration::MAX,
    }
}

pub fn user(content: Vec<Block>) -> ChatMessage {
    ChatMessage::new(Role::User, content)
}

pub fn assistant(content: Vec<Block>) -> ChatMessage {
    ChatMessage::new(Role::Assistant, content)
}
