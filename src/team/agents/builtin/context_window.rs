//! Sizes of requests: the model's context window, the limit for compaction, and the most a request can use.

use std::sync::Arc;

use tokio::runtime::{Handle, RuntimeFlavor};

use super::Turn;
use crate::domain::transcript::Usage;
use crate::ports::ToolSpec;
use crate::team::agents::token_estimate::count_message;

/// The context window if config, provider and model give none. A model with a smaller one reports it in an error.
const WINDOW_UNKNOWN_TOKENS: u64 = 128_000;
/// An answer may take at most one part in this many of the window.
const ANSWER_SHARE: u64 = 4;

/// The parts of every request that are not messages.
#[derive(Debug, Default)]
pub struct FixedPrompt {
    bytes: u64,
    /// `None` until counted.
    tokens: Option<u64>,
}

impl FixedPrompt {
    /// Measures system prompt and tools.
    #[must_use]
    pub fn of(system: &str, tools: &[ToolSpec]) -> Self {
        Self {
            bytes: (system.len() + tools.iter().map(|tool| text_of(tool).len()).sum::<usize>()) as u64,
            tokens: None,
        }
    }
}

fn text_of(tool: &ToolSpec) -> String {
    format!("{} {} {}", tool.name, tool.description, tool.input_schema)
}

impl Turn<'_> {
    /// Returns the model's context window in tokens: from the model's own error, the config or the provider, in this order.
    fn window_tokens(&self) -> u64 {
        let configured =
            || self.host.spec.model.context_window_tokens.or_else(|| self.agent.model.context_window_tokens());
        self.agent.reported_window.or_else(configured).unwrap_or(WINDOW_UNKNOWN_TOKENS)
    }

    /// Returns the limit of an answer in tokens.
    pub(super) fn output_tokens_max(&self) -> u32 {
        let share = u32::try_from(self.window_tokens() / ANSWER_SHARE).unwrap_or(u32::MAX);
        self.host.services.spec.limits.output_tokens_max.min(share).max(1)
    }

    /// Returns the size of the context, in tokens, at which it is compacted.
    fn compact_at_tokens(&self) -> u64 {
        let limits = &self.host.services.spec.limits;
        let room = self.window_tokens().saturating_sub(u64::from(self.output_tokens_max()));
        limits.compact_at_tokens.min(room / 100 * u64::from(limits.compact_at_percent))
    }

    /// Returns true if the context must be compacted. A short context is never compacted: that would not make it smaller.
    pub(super) async fn is_context_large(&mut self) -> bool {
        let at = self.compact_at_tokens();
        if self.host.conversation.is_short() {
            return false;
        }
        let identity_block = self.identity_block().await;
        self.host.conversation.size().upper_bound(self.frame_bytes(&identity_block)) >= at
            && self.count_context(&identity_block).await >= at
    }

    /// Returns the most that a request with this context and `more_bytes` after it can use.
    pub(super) async fn max_usage(&mut self, identity_block: &str, more_bytes: usize) -> Usage {
        let input_tokens = if self.host.services.budget.has_limit() {
            self.count_context(identity_block).await + more_bytes as u64
        } else {
            // No budget limits it, so a rough value is enough.
            self.host.conversation.size().estimate_from_bytes(self.frame_bytes(identity_block))
        };
        Usage { input_tokens, output_tokens: u64::from(self.output_tokens_max()), ..Usage::default() }
    }

    fn frame_bytes(&self, identity_block: &str) -> u64 {
        self.agent.fixed_prompt.bytes
            + (identity_block.len() + self.host.conversation.summary().map_or(0, str::len)) as u64
    }

    /// Estimates the context's size in tokens. Counts the uncounted messages, on a blocking thread if the runtime has several
    /// threads.
    async fn count_context(&mut self, identity_block: &str) -> u64 {
        let uncounted = self.host.conversation.uncounted();
        let needs_frame = self.host.conversation.size().needs_fixed_prompt();
        let frame =
            (needs_frame && self.agent.fixed_prompt.tokens.is_none()).then(|| Arc::clone(&self.agent.system_prompt));
        let (count, tools) = (self.host.services.count_tokens, Arc::clone(&self.agent.tool_specs));
        let around = needs_frame.then(|| format!("{identity_block}{}", self.host.conversation.summary().unwrap_or("")));
        let count_all = move || {
            let messages: Vec<(usize, u64)> =
                uncounted.iter().map(|(index, message)| (*index, count_message(count, message))).collect();
            let frame =
                frame.map(|system| count(&system) + tools.iter().map(|tool| count(&text_of(tool))).sum::<u64>());
            (messages, frame, around.map_or(0, |text| count(&text)))
        };
        let is_single_threaded = Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread;
        // Counting fails only at the runtime's end; uncounted messages then count by their bytes.
        let (messages, frame, around) = if is_single_threaded {
            count_all()
        } else {
            tokio::task::spawn_blocking(count_all).await.unwrap_or_default()
        };
        self.host.conversation.store_counts(messages);
        self.agent.fixed_prompt.tokens = frame.or(self.agent.fixed_prompt.tokens);
        self.host
            .conversation
            .size()
            .estimate(self.agent.fixed_prompt.tokens.unwrap_or(self.agent.fixed_prompt.bytes) + around)
    }
}
