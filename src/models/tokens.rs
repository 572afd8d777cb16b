//! Estimates the number of tokens of a text without a network, with OpenAI's encoding `cl100k_base` for every model.
//!
//! Other models split text differently (<https://platform.claude.com/docs/en/build-with-claude/token-counting> counts
//! Anthropic's tokens). The provider's reports correct the estimate. The first call loads the encoding, which takes some tenths
//! of a second and about 24 MB.

use tiktoken_rs::cl100k_base_singleton;

/// Longer texts are counted in parts, because the encoder's regular expressions fail on very long runs of white space.
const PART_BYTES_MAX: usize = 16 * 1024;

/// Estimates the tokens of `text`. Blocks for some tenths of a second at the first call, then for about a millisecond per 10 KB.
#[must_use]
pub fn count(text: &str) -> u64 {
    let encoding = cl100k_base_singleton();
    let mut tokens = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let end = (0..=rest.len().min(PART_BYTES_MAX)).rev().find(|at| rest.is_char_boundary(*at));
        let (part, remaining) = rest.split_at(end.unwrap_or(rest.len()));
        tokens += encoding.encode_ordinary(part).len() as u64;
        rest = remaining;
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_count_is_bounded_for_any_text() {
        assert_eq!((count(""), count("hello world")), (0, 2));
        let (short, long) = (count(&"some words ".repeat(100)), count(&"some words ".repeat(10_000)));
        assert!(short.abs_diff(200) < 10 && long.abs_diff(short * 100) < long / 50, "{short} {long}");
        for hostile in [" ", "\n", "a", "🌍", "\u{0}", "!?", "<|endoftext|>"] {
            let text = hostile.repeat(300_000 / hostile.len());
            let tokens = count(&text);
            assert!(tokens > 0 && tokens <= text.len() as u64, "{hostile:?}: {tokens}");
        }
    }
}
