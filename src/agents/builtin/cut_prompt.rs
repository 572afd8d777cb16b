//! Answers to a request that the server cut to its context window without an error. They are not used: the model has not read its
//! instructions.

use super::Turn;
use super::model_chain::ChainedModel;
use super::request_prefix::RequestSize;
use crate::domain::agent::prompt_cut::SMALL_WINDOW_TOKENS;
use crate::domain::team::team_spec::ModelSpec;
use crate::ports::{ModelError, ModelRequest, ModelResponse, StopReason, ToolSpec};

/// The bytes in a token of most texts, for people.
const BYTES_PER_TOKEN: u64 = 4;
/// The way to a larger context window of a server about which nothing is known.
const LARGER_WINDOW: &str = "start its server with a context window of 32768 tokens, or set `context_window_tokens` of the member to the real one, so that Brigade compacts in time";

impl Turn<'_> {
    /// Returns the error of an answer that reports a cut request, or a full context window. If an agent can work with the tokens that the model
    /// read, its context is compacted. Otherwise a person must give the model a larger window.
    pub(super) fn cut_error(
        &self,
        model: &ChainedModel,
        size: &RequestSize,
        request: &ModelRequest,
        response: &ModelResponse,
    ) -> Option<ModelError> {
        let usage = response.usage?;
        let tokens = usage.total_input();
        let is_empty = response.content.is_empty() && usage.output_tokens == 0;
        let has_no_room = is_empty && response.stop == StopReason::MaxTokens && request.can_have_used(usage);
        let reason = if has_no_room && tokens > 0 {
            format!("{tokens} prompt tokens fill its context window")
        } else if size.is_cut(usage) {
            let tool_bytes = |tool: &ToolSpec| (tool.description.len() + tool.input_schema.to_string().len()) as u64;
            let bytes = size.text_bytes + request.tools.iter().map(tool_bytes).sum::<u64>();
            let estimate = bytes / BYTES_PER_TOKEN;
            format!("its server read {tokens} of about {estimate} prompt tokens, so the context window is too small")
        } else {
            return None;
        };
        let ModelSpec { model: name, provider, .. } = &model.spec;
        let remedy = model.client.larger_window().unwrap_or(LARGER_WINDOW);
        let message = format!("cannot use the answer of {name} of {provider}: {reason}. hint: {remedy}");
        if tokens < SMALL_WINDOW_TOKENS {
            return Some(ModelError::WrongSetting(message));
        }
        self.host.services.events.warn(self.host.name(), message.clone());
        Some(ModelError::ContextTooLong { message, window_tokens: Some(tokens) })
    }
}
