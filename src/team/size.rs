//! How large a context is, in tokens: what its provider last reported, and an estimate of what came since.
//!
//! Counting costs time and memory, so it is done only where the size in bytes, which no count of tokens exceeds, does not
//! decide; and once for each message.

use std::sync::Arc;

use crate::domain::context::block_bytes;
use crate::domain::transcript::{Block, Usage};
use crate::ports::{ChatMessage, CountTokens};

/// Tokens that stand around a message and its blocks, at the most.
const AROUND_MESSAGE: u64 = 16;
/// Bytes of text that make about one token.
pub const BYTES_PER_TOKEN: u64 = 4;
/// Messages of fewer tokens say nothing of how the provider's counts differ from ours.
const COMPARED_MIN: u64 = 500;
/// How far the provider's counts are believed to differ from ours.
const RATIO_BOUNDS: (f64, f64) = (0.5, 3.0);
/// By how much our counts may be too small before the provider has reported any: other models cut text finer.
const RATIO_UNKNOWN: f64 = 1.25;

/// See the module.
#[derive(Debug, Default)]
pub struct ContextSize {
    /// The tokens up to `from`, as the provider counted them, answer included.
    reported: Option<u64>,
    /// The first message that is not in what was reported.
    from: usize,
    /// The messages from there on.
    since: Vec<Weight>,
    /// How many tokens the provider counts for one of ours, once that is known.
    ratio: Option<f64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Weight {
    bytes: u64,
    /// Once counted.
    tokens: Option<u64>,
}

impl ContextSize {
    /// The message at this place was begun, or grew by these blocks.
    pub fn grew(&mut self, place: usize, blocks: &[Block]) {
        let Some(place) = place.checked_sub(self.from) else { return };
        if self.since.len() <= place {
            self.since.resize(place + 1, Weight::default());
        }
        let weight = &mut self.since[place];
        weight.bytes += blocks.iter().map(block_bytes).sum::<usize>() as u64;
        weight.tokens = None;
    }

    /// The provider has counted: a request and its answer, which ends the first `messages` messages.
    pub fn reported(&mut self, usage: Usage, messages: usize) {
        let read = usage.total().saturating_sub(usage.output_tokens);
        // What is compared is the request; the answer to it was not counted.
        let request = messages.saturating_sub(1).saturating_sub(self.from);
        let counted: Option<u64> = self.since.iter().take(request).map(|weight| weight.tokens).sum();
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

    /// The context begins anew, with nothing.
    pub fn restart(&mut self) {
        *self = Self { ratio: self.ratio, ..Self::default() };
    }

    /// No more tokens than this can be in the context. `frame_bytes`: what stands around the messages, system prompt and tools.
    #[must_use]
    pub fn at_most(&self, frame_bytes: u64) -> u64 {
        let since: u64 = self.since.iter().map(|weight| weight.bytes + AROUND_MESSAGE).sum();
        self.reported.unwrap_or(frame_bytes).saturating_add(since)
    }

    /// About how many tokens are in the context, without counting.
    #[must_use]
    pub fn roughly(&self, frame_bytes: u64) -> u64 {
        let since: u64 = self.since.iter().map(|weight| weight.bytes).sum();
        match self.reported {
            Some(reported) => reported.saturating_add(since / BYTES_PER_TOKEN),
            None => (frame_bytes + since) / BYTES_PER_TOKEN,
        }
    }

    /// The messages that are not counted yet, with their places.
    #[must_use]
    pub fn uncounted(&self, messages: &[Arc<ChatMessage>]) -> Vec<(usize, Arc<ChatMessage>)> {
        let weights = self.since.iter().enumerate().filter(|(_, weight)| weight.tokens.is_none());
        weights.filter_map(|(place, _)| Some((place, Arc::clone(messages.get(self.from + place)?)))).collect()
    }

    /// Takes in what was counted.
    pub fn counted(&mut self, counts: Vec<(usize, u64)>) {
        for (place, tokens) in counts {
            if let Some(weight) = self.since.get_mut(place) {
                weight.tokens = Some(tokens);
            }
        }
    }

    /// Whether the frame has to be counted for an estimate: the provider has not reported yet.
    #[must_use]
    pub fn needs_frame(&self) -> bool {
        self.reported.is_none()
    }

    /// About how many tokens are in the context, rather more than fewer. `frame` as it was counted.
    #[must_use]
    #[expect(clippy::cast_precision_loss, clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "a count")]
    pub fn estimate(&self, frame: u64) -> u64 {
        let since: u64 = self.since.iter().map(|weight| weight.tokens.unwrap_or(weight.bytes) + AROUND_MESSAGE).sum();
        let own = if self.reported.is_some() { since } else { since + frame };
        let own = (own as f64 * self.ratio.unwrap_or(RATIO_UNKNOWN)).ceil() as u64;
        self.reported.unwrap_or(0).saturating_add(own)
    }
}

/// Counts what a message says.
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

    /// A tenth of a text's bytes: so much fewer than the bytes that one is told from the other.
    fn tenth(text: &str) -> u64 {
        text.len() as u64 / 10
    }

    fn count_all(size: &mut ContextSize, messages: &[Arc<ChatMessage>]) -> usize {
        let counts: Vec<_> = size
            .uncounted(messages)
            .into_iter()
            .map(|(place, message)| (place, count_message(tenth, &message)))
            .collect();
        let counted = counts.len();
        size.counted(counts);
        counted
    }

    #[test]
    fn each_message_is_counted_once_and_again_only_when_it_grew() {
        let mut messages = vec![message(10_000), message(20_000)];
        let mut size = ContextSize::default();
        for (place, message) in messages.iter().enumerate() {
            size.grew(place, &message.content);
        }
        assert_eq!(size.at_most(500), 30_500 + 2 * AROUND_MESSAGE);
        assert_eq!(count_all(&mut size, &messages), 2);
        assert_eq!(size.estimate(100), ((3_100 + 2 * AROUND_MESSAGE) as f64 * RATIO_UNKNOWN).ceil() as u64);
        assert_eq!(count_all(&mut size, &messages), 0);
        let more = [Block::text("y".repeat(1_000))];
        Arc::make_mut(&mut messages[1]).content.extend(more.clone());
        size.grew(1, &more);
        assert_eq!(count_all(&mut size, &messages), 1);
    }

    #[test]
    fn what_the_provider_reports_takes_the_place_of_the_estimate_and_corrects_the_next() {
        let mut messages = vec![message(10_000), message(100)];
        let mut size = ContextSize::default();
        size.grew(0, &messages[0].content);
        size.grew(1, &messages[1].content);
        size.reported(Usage { input_tokens: 3_000, output_tokens: 50, ..Usage::default() }, 2);
        assert_eq!((size.at_most(9_999), size.estimate(9_999)), (3_050, 3_050));
        messages.extend([message(10_000), message(30)]);
        size.grew(2, &messages[2].content);
        count_all(&mut size, &messages);
        size.grew(3, &messages[3].content);
        // Twice as many tokens as counted.
        size.reported(Usage { input_tokens: 50, cache_read_tokens: 5_000, output_tokens: 10, ..Usage::default() }, 4);
        messages.push(message(5_000));
        size.grew(4, &messages[4].content);
        count_all(&mut size, &messages);
        assert_eq!(size.estimate(0), 5_060 + 2 * (500 + AROUND_MESSAGE));
    }
}
