//! The size of a context in tokens: the provider's last count, and an estimate for later messages.
//!
//! Counting costs time and memory. A size in bytes is never below the number of tokens. So tokens are counted only if the bytes do
//! not decide, and once for each message.

use std::sync::Arc;

use crate::domain::prompt::block_bytes;
use crate::domain::transcript::{Block, Usage};
use crate::ports::{ChatMessage, CountTokens};

/// The most tokens around a message and its blocks.
const AROUND_MESSAGE: u64 = 16;
/// Typical bytes of text in a token.
pub const BYTES_PER_TOKEN: u64 = 4;
/// Tokens below which a message is too short to compare the provider's counts with ours.
const COMPARED_MIN: u64 = 500;
/// The accepted range of the ratio of the provider's counts to ours.
const RATIO_BOUNDS: (f64, f64) = (0.5, 3.0);
/// The assumed ratio before the first report: other models split text into more tokens.
const RATIO_UNKNOWN: f64 = 1.25;

/// The size of one context.
#[derive(Debug, Default)]
pub struct ContextSize {
    /// The provider's count of the messages before `from`, answer included.
    reported: Option<u64>,
    /// The first message after the reported ones.
    from: usize,
    /// The messages from `from` on.
    since: Vec<MessageTokens>,
    /// The ratio of the provider's counts to ours, once known.
    ratio: Option<f64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct MessageTokens {
    bytes: u64,
    /// `None` until counted.
    tokens: Option<u64>,
}

impl ContextSize {
    /// Records that the message at this index was added, or grew by these blocks.
    pub fn record_growth(&mut self, index: usize, blocks: &[Block]) {
        let Some(index) = index.checked_sub(self.from) else { return };
        if self.since.len() <= index {
            self.since.resize(index + 1, MessageTokens::default());
        }
        let message = &mut self.since[index];
        message.bytes += blocks.iter().map(block_bytes).sum::<usize>() as u64;
        message.tokens = None;
    }

    /// Records the provider's count of a request and its answer, which is the last of the first `messages` messages.
    pub fn record_usage(&mut self, usage: Usage, messages: usize) {
        let read = usage.total().saturating_sub(usage.output_tokens);
        // Only the request is compared, because we did not count its answer.
        let request = messages.saturating_sub(1).saturating_sub(self.from);
        let counted: Option<u64> = self.since.iter().take(request).map(|message| message.tokens).sum();
        if let (Some(before), Some(counted)) = (self.reported, counted)
            && counted >= COMPARED_MIN
        {
            #[expect(clippy::cast_precision_loss, reason = "contexts have far fewer than 2^53 tokens")]
            let ratio = read.saturating_sub(before) as f64 / counted as f64;
            self.ratio = Some(ratio.clamp(RATIO_BOUNDS.0, RATIO_BOUNDS.1));
        }
        self.reported = Some(usage.total());
        self.from = messages;
        self.since.clear();
    }

    /// Resets the size for an empty context.
    pub fn restart(&mut self) {
        *self = Self { ratio: self.ratio, ..Self::default() };
    }

    /// Returns an upper bound of the context's tokens. `frame_bytes` is the size of system prompt, tools, identity block and
    /// summary.
    #[must_use]
    pub fn upper_bound(&self, frame_bytes: u64) -> u64 {
        let since: u64 = self.since.iter().map(|message| message.bytes + AROUND_MESSAGE).sum();
        self.reported.unwrap_or(frame_bytes).saturating_add(since)
    }

    /// Estimates the context's tokens from bytes, without counting.
    #[must_use]
    pub fn estimate_from_bytes(&self, frame_bytes: u64) -> u64 {
        let since: u64 = self.since.iter().map(|message| message.bytes).sum();
        match self.reported {
            Some(reported) => reported.saturating_add(since / BYTES_PER_TOKEN),
            None => (frame_bytes + since) / BYTES_PER_TOKEN,
        }
    }

    /// Returns the uncounted messages with their indices.
    #[must_use]
    pub fn uncounted(&self, messages: &[Arc<ChatMessage>]) -> Vec<(usize, Arc<ChatMessage>)> {
        let uncounted = self.since.iter().enumerate().filter(|(_, message)| message.tokens.is_none());
        uncounted.filter_map(|(index, _)| Some((index, Arc::clone(messages.get(self.from + index)?)))).collect()
    }

    /// Stores counted tokens by index.
    pub fn store_counts(&mut self, counts: Vec<(usize, u64)>) {
        for (index, tokens) in counts {
            if let Some(message) = self.since.get_mut(index) {
                message.tokens = Some(tokens);
            }
        }
    }

    /// Returns true if an estimate needs the tokens of system prompt and tools, because the provider has not reported yet.
    #[must_use]
    pub fn needs_fixed_prompt(&self) -> bool {
        self.reported.is_none()
    }

    /// Estimates the context's tokens, rather too high than too low. `frame` is the counted size of everything but the messages.
    #[must_use]
    #[expect(clippy::cast_precision_loss, clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "a count")]
    pub fn estimate(&self, frame: u64) -> u64 {
        let since: u64 =
            self.since.iter().map(|message| message.tokens.unwrap_or(message.bytes) + AROUND_MESSAGE).sum();
        let own = if self.reported.is_some() { since } else { since + frame };
        let own = (own as f64 * self.ratio.unwrap_or(RATIO_UNKNOWN)).ceil() as u64;
        self.reported.unwrap_or(0).saturating_add(own)
    }
}

/// Counts the tokens of a message.
#[must_use]
pub fn count_message(count: CountTokens, message: &ChatMessage) -> u64 {
    let of_block = |block: &Block| match block {
        Block::Text { text } => count(text),
        Block::ToolUse { name, input, .. } => count(name) + count(&input.to_string()),
        Block::ToolResult { content, .. } => count(content),
        Block::Other(value) => count(&value.to_string()),
    };
    message.content.iter().map(of_block).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::transcript::Role;

    fn message(bytes: usize) -> Arc<ChatMessage> {
        Arc::new(ChatMessage { role: Role::User, content: vec![Block::text("x".repeat(bytes))] })
    }

    /// A tenth of a text's bytes, which is clearly different from the number of bytes.
    fn tenth(text: &str) -> u64 {
        text.len() as u64 / 10
    }

    fn count_all(size: &mut ContextSize, messages: &[Arc<ChatMessage>]) -> usize {
        let counts: Vec<_> = size
            .uncounted(messages)
            .into_iter()
            .map(|(index, message)| (index, count_message(tenth, &message)))
            .collect();
        let counted = counts.len();
        size.store_counts(counts);
        counted
    }

    #[test]
    fn message_tokens_are_recounted_only_after_growth() {
        let mut messages = vec![message(10_000), message(20_000)];
        let mut size = ContextSize::default();
        for (index, message) in messages.iter().enumerate() {
            size.record_growth(index, &message.content);
        }
        assert_eq!(size.upper_bound(500), 30_500 + 2 * AROUND_MESSAGE);
        assert_eq!(count_all(&mut size, &messages), 2);
        assert_eq!(size.estimate(100), ((3_100 + 2 * AROUND_MESSAGE) as f64 * RATIO_UNKNOWN).ceil() as u64);
        assert_eq!(count_all(&mut size, &messages), 0);
        let more = [Block::text("y".repeat(1_000))];
        Arc::make_mut(&mut messages[1]).content.extend(more.clone());
        size.record_growth(1, &more);
        assert_eq!(count_all(&mut size, &messages), 1);
    }

    #[test]
    fn reported_usage_corrects_token_estimate() {
        let mut messages = vec![message(10_000), message(100)];
        let mut size = ContextSize::default();
        size.record_growth(0, &messages[0].content);
        size.record_growth(1, &messages[1].content);
        size.record_usage(Usage { input_tokens: 3_000, output_tokens: 50, ..Usage::default() }, 2);
        assert_eq!((size.upper_bound(9_999), size.estimate(9_999)), (3_050, 3_050));
        messages.extend([message(10_000), message(30)]);
        size.record_growth(2, &messages[2].content);
        count_all(&mut size, &messages);
        size.record_growth(3, &messages[3].content);
        // Twice as many tokens as counted.
        size.record_usage(
            Usage { input_tokens: 50, cache_read_tokens: 5_000, output_tokens: 10, ..Usage::default() },
            4,
        );
        messages.push(message(5_000));
        size.record_growth(4, &messages[4].content);
        count_all(&mut size, &messages);
        assert_eq!(size.estimate(0), 5_060 + 2 * (500 + AROUND_MESSAGE));
    }
}
