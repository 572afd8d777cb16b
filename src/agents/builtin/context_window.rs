//! Sizes of requests: the model's context window, the limit for compaction, and the limit of an answer.

use super::Turn;
use crate::agents::tokenizer::TokenCounter;
use crate::domain::team::model_spec::ToolCalls;

/// The context window if config, provider and model give none. A model with a smaller one reports it in an error.
const WINDOW_DEFAULT_TOKENS: u64 = 128_000;
/// The limit of an answer is at most the context window divided by this.
const ANSWER_DIVISOR: u64 = 4;

impl Turn<'_> {
    /// Returns the model's context window in tokens: from the model's own error, the config or the provider, in this order.
    fn window_tokens(&self) -> u64 {
        self.agent.model.window_tokens().unwrap_or(WINDOW_DEFAULT_TOKENS)
    }

    /// Returns the limit of an answer in tokens.
    pub(super) fn output_tokens_max(&self) -> u32 {
        let share = u32::try_from(self.window_tokens() / ANSWER_DIVISOR).unwrap_or(u32::MAX);
        let limit = self.agent.model.spec().output_tokens_max;
        limit.unwrap_or(self.host.services.spec.limits.model.output_tokens_max).min(share).max(1)
    }

    /// Returns the size of the context, in tokens, at which it is compacted.
    fn compact_at_tokens(&self) -> u64 {
        let limits = &self.host.services.spec.limits.model;
        let room = self.window_tokens().saturating_sub(u64::from(self.output_tokens_max()));
        limits.compact_at_tokens.min(room / 100 * u64::from(limits.compact_at_percent))
    }

    /// Returns true if the context must be compacted. A context of few messages is not, because that would not make it smaller.
    pub(super) fn must_compact(&self) -> bool {
        !self.host.conversation.is_short() && self.context_tokens() >= self.compact_at_tokens()
    }

    /// Estimates the context's size in tokens.
    fn context_tokens(&self) -> u64 {
        let conversation = &self.host.conversation;
        conversation.size().estimate(self.agent.prefix.bytes + conversation.start_bytes() as u64)
    }

    /// Returns true if a budget of the team or the member, or a cap of its task, holds for its requests.
    async fn has_budget(&self) -> bool {
        self.host.services.spec.budget.is_set()
            || self.host.spec.budget.is_set()
            || self.host.task_cap().await.is_ok_and(|task| task.is_some_and(|cap| cap.tokens_max.is_some()))
    }

    /// Starts to count the texts of a request by the model's own tokenizer, if a budget or a cap needs exact reservations.
    pub(super) async fn own_tokens(&self) -> Option<TokenCounter> {
        let spec = self.agent.model.spec();
        // In JSON, texts have more tokens than they have alone.
        if spec.tool_calls == ToolCalls::Native && self.has_budget().await { TokenCounter::of(spec) } else { None }
    }
}
