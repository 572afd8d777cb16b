//! Servers that cut a request to their context window without an error. Only the tokens that they report for the prompt show it.
//!
//! A wrong alarm is worse than a late one. So a request is measured by the fewest tokens that any tokenizer has for its texts: it
//! splits at the ends of words, and few of its tokens are long.

use super::transcript::Block;

/// A smaller context window is a problem for an agent, in tokens. Brigade's instructions and tools take about a quarter of it.
pub const SMALL_WINDOW_TOKENS: u64 = 16_000;

/// The characters of a word for which a tokenizer has at least one token.
const WORD_PIECE_CHARS: usize = 16;
/// The smallest cut prompt, in tokens: half of the smallest window that servers have. A smaller number is a wrong report.
const CUT_TOKENS_MIN: u64 = 1_024;
/// Ollama cuts a request to half of its window and up to this many tokens: 2,050 of a window of 4,096
/// (<https://github.com/ollama/ollama/issues/17427>). Windows are multiples of 2,048.
const KEPT_TOKENS_MAX: u64 = 5;
/// The growth of a request after which a report must have grown: this many tokens, and this share of the request.
const GROWTH_TOKENS_MIN: u64 = 1_500;
const GROWTH_SHARE: u64 = 4;
/// The share of its growth by which the report of a longer request grows at least.
const GROWTH_REPORTED_SHARE: u64 = 4;
/// The share by which equal reports can differ.
const NOISE_SHARE: u64 = 16;

/// A request, and the prompt tokens that its server reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportedPrompt {
    /// The fewest tokens that its texts can have.
    pub fewest_tokens: u64,
    /// The reported tokens, those of caches included.
    pub reported_tokens: u64,
}

impl ReportedPrompt {
    /// Returns true if the server has not read the whole prompt. `base` is an earlier prompt that this one extends.
    pub fn is_cut(self, base: Option<Self>) -> bool {
        let Self { fewest_tokens: fewest, reported_tokens: reported } = self;
        if reported < CUT_TOKENS_MIN {
            return false;
        }
        let is_half_window = reported % CUT_TOKENS_MIN <= KEPT_TOKENS_MAX;
        // Some servers report only the tokens that are new. They have reported too few before.
        let is_server_credible = base.is_none_or(|base| base.reported_tokens >= base.fewest_tokens);
        if (is_half_window && reported < fewest) || (is_server_credible && reported < fewest / 2) {
            return true;
        }
        base.is_some_and(|base| {
            let growth = fewest.saturating_sub(base.fewest_tokens);
            growth >= GROWTH_TOKENS_MIN.max(base.fewest_tokens / GROWTH_SHARE) && self.is_flat(base)
        })
    }

    /// Returns the base of the prompts that extend this one: the first of those with about the same report.
    #[must_use]
    pub fn base_after(self, base: Option<Self>) -> Self {
        base.filter(|base| self.is_flat(*base)).unwrap_or(self)
    }

    /// Returns true if its report is about that of `base`, however long it is.
    fn is_flat(self, base: Self) -> bool {
        let growth = self.fewest_tokens.saturating_sub(base.fewest_tokens);
        let least = base.reported_tokens - base.reported_tokens / NOISE_SHARE;
        (least..=base.reported_tokens + growth / GROWTH_REPORTED_SHARE).contains(&self.reported_tokens)
    }
}

/// Returns the fewest tokens that a tokenizer has for a text: one for each word, and more for a long one. Spaces and punctuation count
/// nothing, because one token can have many of them.
pub fn fewest_tokens(text: &str) -> u64 {
    let words = text.split(|char: char| !char.is_alphanumeric() && char != '\'').filter(|word| !word.is_empty());
    words.map(|word| 1 + (word.chars().count() / WORD_PIECE_CHARS) as u64).sum()
}

/// Returns the fewest tokens of the texts in these blocks.
pub fn fewest_tokens_of<'a>(blocks: impl Iterator<Item = &'a Block>) -> u64 {
    let fewest = |block: &Block| match block {
        Block::Text { text } | Block::ToolResult { content: text, .. } => fewest_tokens(text),
        Block::ToolUse { name, input, .. } => fewest_tokens(name) + fewest_tokens(&input.to_string()),
        Block::Other(_) => 0,
    };
    blocks.map(fewest).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prompt(fewest_tokens: u64, reported_tokens: u64) -> ReportedPrompt {
        ReportedPrompt { fewest_tokens, reported_tokens }
    }

    /// A text of one of the kinds that compress well or badly, of about this many bytes.
    fn text(kind: usize, bytes: usize) -> String {
        const UNITS: [&str; 12] = [
            "The member reads the whole file and then writes a short answer to the lead. ",
            "    if (count > 0) { return Err(error.into()); }\n",
            "                                                                ",
            "----------------",
            "0123456789",
            "7, 8, 9, 10\n",
            "dGhlIHF1aWNrIGJyb3duIGZveCBqdW1wcyBvdmVyIHRoZSBsYXp5IGRvZyBhbmQgcnVucyBhd2F5IGF\n",
            "xxxxxxxx",
            "Rindfleischetikettierungsüberwachungsaufgabe ",
            "漢字かな交じり文を読む。",
            "don't, it's, we'll: a.b.c/d_e-f ",
            "{\"a\":[1,2,{\"b\":null}],\"c\":\"\\u00e9\"} ",
        ];
        let unit = UNITS[kind % UNITS.len()];
        unit.repeat(bytes / unit.len() + 1)
    }

    /// The tokens of a tokenizer with about this many bytes in a token. It splits at the ends of words, as all tokenizers do.
    fn honest_tokens(text: &str, bytes_per_token: usize) -> u64 {
        (text.len() as u64).div_ceil(bytes_per_token as u64).max(fewest_tokens(text))
    }

    #[test]
    fn words_and_long_words_have_tokens() {
        for (text, expected) in
            [("", 0), (" \n\t--- ===", 0), ("don't stop", 2), ("a.b_c(d)", 4), ("3.14", 2), ("größer", 1), ("漢字", 1)]
        {
            assert_eq!(fewest_tokens(text), expected, "{text}");
        }
        assert_eq!(fewest_tokens(&"x".repeat(64)), 5);
    }

    /// The numbers of Ollama, with words of prose for the prompts that were sent.
    #[test]
    fn recorded_cuts_are_found() {
        let words = |tokens: u64| tokens * 7 / 10;
        for (sent, window) in [(7_900, 4_096), (4_200, 4_096), (99_000, 32_768), (34_000, 32_768)] {
            for kept in 2..=4 {
                let cut = prompt(words(sent), window / 2 + kept);
                assert!(cut.is_cut(None), "{cut:?}");
                assert!(cut.is_cut(Some(prompt(words(window - 100), window - 100))), "{cut:?}");
            }
        }
        // Ollama leaves out old messages, so that the report varies below the window.
        let base = prompt(2_200, 3_974);
        for (sent, read) in [(3_900, 3_990), (4_600, 4_051), (9_000, 3_801)] {
            let cut = prompt(words(sent * 2), read);
            assert!(cut.is_cut(Some(base)), "{cut:?}");
        }
        // A server that cuts to another number, at the first request.
        assert!(prompt(5_000, 1_900).is_cut(None));
    }

    #[test]
    fn wrong_reports_are_no_cuts() {
        for reported in [0, 1, 7, 100, 1_000] {
            assert!(!prompt(50_000, reported).is_cut(None), "{reported}");
            assert!(!prompt(50_000, reported).is_cut(Some(prompt(1_000, reported))), "{reported}");
        }
        // A server that reports only new tokens: after one low report, others are expected.
        let base = prompt(3_000, 310).base_after(Some(prompt(2_800, 4_200)));
        assert_eq!(base, prompt(3_000, 310));
        assert!(!prompt(4_400, 1_300).is_cut(Some(base)));
        // Another server of the same name counts fewer tokens for the same text.
        assert!(!prompt(9_000, 11_000).is_cut(Some(prompt(7_000, 12_000))));
    }

    proptest! {
        /// An honest report is no cut: at no rate, for no text, at no step of a context that grows.
        #[test]
        fn honest_report_is_no_cut(
            parts in prop::collection::vec((0usize..12, 1usize..40_000), 1..12), bytes_per_token in 2usize..=8,
            start in 0u64..400, around in 0u64..3_000,
        ) {
            let mut base = None;
            let (mut fewest, mut reported) = (start, start + around);
            for (kind, bytes) in parts {
                let text = text(kind, bytes);
                fewest += fewest_tokens(&text);
                reported += honest_tokens(&text, bytes_per_token);
                let now = prompt(fewest, reported);
                prop_assert!(!now.is_cut(base), "{:?} after {:?}", now, base);
                base = Some(now.base_after(base));
            }
        }

        /// A server whose report stays at its window, while the request grows, is always found.
        #[test]
        fn flat_report_is_found(window in 1_100u64..100_000, steps in prop::collection::vec(100u64..3_000, 1..400)) {
            let (mut base, mut tokens, mut found) = (None, 1_000, false);
            for step in steps {
                tokens += step;
                let now = prompt(tokens * 6 / 10, tokens.min(window));
                found |= now.is_cut(base);
                prop_assert!(!found || tokens > window, "{:?} of {}", now, tokens);
                base = Some(now.base_after(base));
            }
            prop_assert!(found || tokens < window * 3 / 2 + 10_000, "{} of {}", window, tokens);
        }
    }
}
