//! The size of a context in tokens: the provider's last count, and an estimate from bytes for later messages.
//!
//! The provider reports the true number with each answer. So only the messages since the last answer are estimated: by the tokens in a byte
//! that an earlier report had.

use crate::domain::agent::prompt::block_bytes;
use crate::domain::agent::transcript::{Block, Usage};

/// The assumed tokens in a byte before the first report. The value is high, because code has more tokens than prose.
const TOKENS_PER_BYTE_UNKNOWN: f64 = 1.0 / 3.0;
/// The accepted range of the tokens in a byte. A text never has more tokens than bytes.
const TOKENS_PER_BYTE_BOUNDS: (f64, f64) = (0.125, 1.0);
/// The most tokens around a message and its blocks.
const TOKENS_AROUND_MESSAGE: u64 = 16;
/// The fewest new bytes of a request from which the tokens in a byte are computed.
const COMPARED_BYTES_MIN: u64 = 2_000;

/// The size of one context.
#[derive(Debug, Default)]
pub struct ContextSize {
    /// The provider's count of the messages before `first_unreported`, answer included.
    reported_tokens: Option<u64>,
    /// The index of the first message that the provider has not counted.
    first_unreported: usize,
    /// The bytes of each message from `first_unreported` on.
    unreported_bytes: Vec<u64>,
    /// The tokens in a byte in the last report that could be compared.
    tokens_per_byte: Option<f64>,
}

impl ContextSize {
    /// Records that the message at this index was added, or grew by these blocks.
    pub fn record_growth(&mut self, index: usize, blocks: &[Block]) {
        let Some(index) = index.checked_sub(self.first_unreported) else { return };
        if self.unreported_bytes.len() <= index {
            self.unreported_bytes.resize(index + 1, 0);
        }
        self.unreported_bytes[index] += blocks.iter().map(block_bytes).sum::<usize>() as u64;
    }

    /// Records the provider's count of a request and its answer, which is the last of the first `messages` messages.
    #[expect(clippy::cast_precision_loss, reason = "contexts have far fewer than 2^53 bytes")]
    pub fn record_usage(&mut self, usage: Usage, messages: usize) {
        let request_tokens = usage.total().saturating_sub(usage.output_tokens);
        // Only the new part of the request is compared. The answer is not a part of it.
        let new_messages = messages.saturating_sub(1).saturating_sub(self.first_unreported);
        let new_bytes: u64 = self.unreported_bytes.iter().take(new_messages).sum();
        if let Some(tokens_before) = self.reported_tokens
            && new_bytes >= COMPARED_BYTES_MIN
        {
            let tokens_per_byte = request_tokens.saturating_sub(tokens_before) as f64 / new_bytes as f64;
            let (min, max) = TOKENS_PER_BYTE_BOUNDS;
            self.tokens_per_byte = Some(tokens_per_byte.clamp(min, max));
        }
        self.reported_tokens = Some(usage.total());
        self.first_unreported = messages;
        self.unreported_bytes.clear();
    }

    /// Resets the size for an empty context. The tokens in a byte stay.
    pub fn restart(&mut self) {
        *self = Self { tokens_per_byte: self.tokens_per_byte, ..Self::default() };
    }

    /// Estimates the context's tokens. `fixed_bytes` is the size of everything but the messages: system prompt, tools, identity block
    /// and summary.
    #[expect(clippy::cast_precision_loss, clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "a count")]
    pub fn estimate(&self, fixed_bytes: u64) -> u64 {
        let fixed_bytes = if self.reported_tokens.is_some() { 0 } else { fixed_bytes };
        let bytes = self.unreported_bytes.iter().sum::<u64>() + fixed_bytes;
        let ratio = self.tokens_per_byte.unwrap_or(TOKENS_PER_BYTE_UNKNOWN);
        let tokens = (bytes as f64 * ratio).ceil() as u64;
        self.reported_tokens.unwrap_or(0) + tokens + self.unreported_bytes.len() as u64 * TOKENS_AROUND_MESSAGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: usize) -> [Block; 1] {
        [Block::text("x".repeat(bytes))]
    }

    #[test]
    fn unreported_context_is_estimated_from_bytes() {
        let mut size = ContextSize::default();
        size.record_growth(0, &text(3_000));
        size.record_growth(1, &text(600));
        size.record_growth(1, &text(300));
        assert_eq!(size.estimate(2_100), (3_000 + 900 + 2_100) / 3 + 2 * TOKENS_AROUND_MESSAGE);
    }

    #[test]
    fn reported_usage_corrects_token_estimate() {
        let mut size = ContextSize::default();
        size.record_growth(0, &text(10_000));
        size.record_growth(1, &text(100));
        size.record_usage(Usage { input_tokens: 3_000, output_tokens: 50, ..Usage::default() }, 2);
        assert_eq!(size.estimate(9_999), 3_050, "the report has everything");
        size.record_growth(2, &text(10_000));
        size.record_growth(3, &text(30));
        // Half a token in a byte.
        let usage = Usage { input_tokens: 50, cache_read_tokens: 8_000, output_tokens: 10, ..Usage::default() };
        size.record_usage(usage, 4);
        size.record_growth(4, &text(5_000));
        assert_eq!(size.estimate(0), 8_060 + 2_500 + TOKENS_AROUND_MESSAGE);
    }
}
