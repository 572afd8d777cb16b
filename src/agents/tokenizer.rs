//! The tokenizers of OpenAI's models, for exact reservations.
//!
//! A vocabulary has some megabytes, so a thread loads it when it is first needed. Until then, and for texts beyond the limits, callers count
//! bytes. A tokenizer can be slow on long texts, so a request has a limit of text, and texts are cut into pieces.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tiktoken_rs::CoreBPE;
use tiktoken_rs::tokenizer::{Tokenizer as Encoding, get_tokenizer};

use crate::domain::team::team_spec::ModelSpec;
use crate::domain::text::head;

/// The most text that one count reads, in bytes.
const COUNTED_BYTES_MAX: usize = 256 * 1024;
/// The longest piece of a text, in bytes. A longer one would reach the limits of the tokenizer's regular expressions.
const PIECE_BYTES_MAX: usize = 16 * 1024;
/// The most tokens that a cut between two pieces hides: letters at the cut can form one token in the whole text, but never more tokens than
/// before by more than this.
const TOKENS_PER_CUT: u64 = 8;
/// The providers whose own addresses have OpenAI's models under these prefixes. At another address, a name says nothing about the model.
const OPENAI_NAMES: [(&str, &str); 3] = [("openai", ""), ("openrouter", "openai/"), ("groq", "openai/")];

/// A vocabulary, and a thread that loads it.
struct Vocabulary {
    load: fn() -> Option<CoreBPE>,
    loaded: OnceLock<Option<CoreBPE>>,
    is_loading: AtomicBool,
}

static O200K: Vocabulary = Vocabulary::new(|| tiktoken_rs::o200k_base().ok());
static CL100K: Vocabulary = Vocabulary::new(|| tiktoken_rs::cl100k_base().ok());

impl Vocabulary {
    const fn new(load: fn() -> Option<CoreBPE>) -> Self {
        Self { load, loaded: OnceLock::new(), is_loading: AtomicBool::new(false) }
    }

    /// Returns the vocabulary if it is loaded. The first call begins to load it.
    fn get(&'static self) -> Option<&'static CoreBPE> {
        if let Some(loaded) = self.loaded.get() {
            return loaded.as_ref();
        }
        if !self.is_loading.swap(true, Ordering::Relaxed) {
            let thread = std::thread::Builder::new().name("tokenizer".to_owned());
            if let Err(error) = thread.spawn(|| self.loaded.get_or_init(self.load)) {
                tracing::debug!(%error, "cannot load a tokenizer; bytes are counted");
            }
        }
        None
    }
}

/// Returns the vocabulary of a model, if it is a known one of OpenAI.
fn vocabulary_of(spec: &ModelSpec) -> Option<&'static Vocabulary> {
    let names = OPENAI_NAMES.iter().filter(|(provider, _)| *provider == spec.provider && spec.base_url.is_none());
    let name = names.filter_map(|(_, prefix)| spec.model.strip_prefix(prefix)).next()?;
    match get_tokenizer(name)? {
        Encoding::O200kBase | Encoding::O200kHarmony => Some(&O200K),
        Encoding::Cl100kBase => Some(&CL100K),
        _ => None,
    }
}

/// Counts the tokens of texts, within a limit of work.
pub struct TokenCounter {
    vocabulary: &'static CoreBPE,
    bytes_left: Cell<usize>,
}

impl TokenCounter {
    /// Starts to count the texts of one request by the model's own tokenizer. Returns `None` if that is not known, and until its vocabulary
    /// is loaded, which the first call begins.
    pub fn of(spec: &ModelSpec) -> Option<Self> {
        let vocabulary = vocabulary_of(spec)?.get()?;
        Some(Self { vocabulary, bytes_left: Cell::new(COUNTED_BYTES_MAX) })
    }

    /// Returns the most tokens that a text can have; exactly its number, except for texts that are cut. Returns `None` for a text beyond the
    /// limit of work.
    pub fn count(&self, text: &str) -> Option<u64> {
        self.bytes_left.set(self.bytes_left.get().checked_sub(text.len())?);
        let (mut rest, mut tokens) = (text, 0);
        while rest.len() > PIECE_BYTES_MAX {
            let (piece, after) = rest.split_at(cut_at(rest));
            tokens += self.vocabulary.count_ordinary(piece) as u64 + TOKENS_PER_CUT;
            rest = after;
        }
        Some(tokens + self.vocabulary.count_ordinary(rest) as u64)
    }
}

/// Returns the place of the next cut: after the last line of the piece, or at its end.
fn cut_at(text: &str) -> usize {
    let piece = head(text, PIECE_BYTES_MAX);
    piece.rfind('\n').map_or(piece.len(), |line_end| line_end + 1)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::domain::agent::prompt_cut::fewest_tokens;

    fn spec(provider: &str, model: &str) -> ModelSpec {
        ModelSpec::new(provider, model)
    }

    fn counter(model: &str) -> TokenCounter {
        let begun = Instant::now();
        loop {
            match TokenCounter::of(&spec("openai", model)) {
                Some(counter) => return counter,
                None => assert!(begun.elapsed() < Duration::from_secs(60), "it is loaded"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn own_tokenizer_is_that_of_openai_models() {
        for (provider, model) in [
            ("openai", "gpt-5.2"),
            ("openai", "gpt-4o"),
            ("openai", "gpt-4"),
            ("groq", "openai/gpt-oss-120b"),
            ("openrouter", "openai/gpt-5"),
        ] {
            assert!(vocabulary_of(&spec(provider, model)).is_some(), "{model}");
        }
        for (provider, model) in
            [("anthropic", "claude-opus-5"), ("ollama", "gpt-5"), ("openai", "gpt-9-x"), ("openrouter", "gpt-5")]
        {
            assert!(vocabulary_of(&spec(provider, model)).is_none(), "{model}");
        }
        let gateway = ModelSpec { base_url: Some("http://127.0.0.1:4000".to_owned()), ..spec("openai", "gpt-5") };
        assert!(vocabulary_of(&gateway).is_none(), "its names are aliases");
    }

    /// The numbers are those of OpenAI's own tokenizer (tiktoken).
    #[test]
    fn tokens_are_counted_exactly() {
        let o200k = counter("gpt-5");
        let cl100k = counter("gpt-4");
        for (text, tokens, older) in
            [("", 0, 0), ("hello world", 2, 2), ("antidisestablishmentarianism", 6, 6), ("お誕生日おめでとう", 8, 9)]
        {
            assert_eq!((o200k.count(text), cl100k.count(text)), (Some(tokens), Some(older)), "{text}");
        }
    }

    #[test]
    fn long_texts_are_bounded_and_counted_high() {
        let line = "let answer = compute(40, 2);\n";
        let lines = line.repeat(3_000);
        let one = counter("gpt-5").count(line).unwrap();
        let all = counter("gpt-5").count(&lines).unwrap();
        assert!(all >= 3_000 * one && all <= 3_000 * one + 10 * TOKENS_PER_CUT, "{all} of {one} each");
        let size = COUNTED_BYTES_MAX - 1;
        let begun = Instant::now();
        for unit in ["a", " ", "A1", "!", "\n", "é", "漢", "<|endoftext|>", "' ", "aB3/+="] {
            let text = unit.repeat(size / unit.len());
            assert!(counter("gpt-5").count(&text).is_some_and(|tokens| tokens > 0), "{unit}");
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
        let spaces = format!("{}x", " ".repeat(PIECE_BYTES_MAX * 3));
        assert!(counter("gpt-5").count(&spaces).is_some());
        let counter = counter("gpt-5");
        assert_eq!(counter.count(&"a".repeat(COUNTED_BYTES_MAX + 1)), None);
        assert!(counter.count(&" a".repeat(COUNTED_BYTES_MAX / 4)).is_some());
        assert_eq!(counter.count(&" a".repeat(COUNTED_BYTES_MAX / 2)), None, "the limit holds for all texts together");
    }

    /// Servers that report fewer tokens than the words of a prompt have cut it.
    #[test]
    fn texts_have_their_fewest_tokens() {
        let rust = include_str!("tokenizer.rs");
        let prompt = include_str!("../../prompts/teammate.md");
        let schema = include_str!("../../schema/brigade.schema.json");
        let units = [
            "7, 8, 9, 10\n",
            "don't, it's: a.b_c/d ",
            "über größere Wörter ",
            "漢字かな交じり文を読む。",
            "dGhlIHF1aWNrIGJyb3duIGZveA==\n",
        ];
        let units = units.map(|unit| unit.repeat(200));
        let fillers = [" ", "-", "x", "0", "A"].map(|unit| unit.repeat(8_000));
        for model in ["gpt-5", "gpt-4"] {
            for text in
                [rust, prompt, &schema[..100_000.min(schema.len())]].into_iter().chain(units.iter().map(|unit| &**unit))
            {
                let tokens = counter(model).count(text).unwrap();
                assert!(fewest_tokens(text) <= tokens, "{} of {tokens} in {model}: {text:.60}", fewest_tokens(text));
            }
            // Cuts are found with a margin of this factor.
            for text in &fillers {
                let tokens = counter(model).count(text).unwrap();
                assert!(fewest_tokens(text) <= 2 * tokens, "{} of {tokens} in {model}: {text:.9}", fewest_tokens(text));
            }
        }
    }
}
