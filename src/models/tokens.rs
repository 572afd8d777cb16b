//! How many tokens a text has, by an estimate that needs no network: OpenAI's `cl100k_base` encoding, whatever the model is.
//!
//! Other models cut text otherwise (<https://platform.claude.com/docs/en/build-with-claude/token-counting> counts Anthropic's
//! own); what a provider reports corrects the estimate. The encoding is loaded at the first call, which takes some tenths of a
//! second and about 24 MB.

use tiktoken_rs::cl100k_base_singleton;

/// Longer texts are counted in parts: the encoder's regular expressions give up on very long runs of white space.
const PART_BYTES_MAX: usize = 16 * 1024;

/// About how many tokens `text` has. Blocks: for a while at the first call, then for about a millisecond per 10 KB.
#[must_use]
pub fn count(text: &str) -> u64 {
    let encoding = cl100k_base_singleton();
    let mut tokens = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let end = (0..=rest.len().min(PART_BYTES_MAX)).rev().find(|at| rest.is_char_boundary(*at));
        let (part, behind) = rest.split_at(end.unwrap_or(rest.len()));
        tokens += encoding.encode_ordinary(part).len() as u64;
        rest = behind;
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_any_kind_and_length_are_counted() {
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
