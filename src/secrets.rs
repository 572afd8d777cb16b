//! The secrets that this process holds, such as keys of providers and credentials of boards. They are in request headers and in the
//! environment of the program that needs them, and nowhere else.
//!
//! A [`Secret`] is known from its creation to the end of the process, and is masked in each text that Brigade receives or writes:
//!
//! - Texts from outside, with [`masked`] or a [`StreamMasker`]: the lines of an agent's program, the output of commands and tools, answers
//!   of models. So memory, events and what is shown have no secret.
//! - Texts to the outside, with [`masked_in_place`]: all files of the stores, and traces.
//!
//! Only the secret itself is found, also as JSON writes it. A program that encodes it in another way can show it.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read as _};
use std::sync::OnceLock;

use memchr::memmem::Finder;
use parking_lot::RwLock;

/// The text that replaces a secret.
pub const MASK: &str = "[key]";
/// Shorter values are placeholders (`none`, `x`), which other texts contain too.
const MASKED_BYTES_MIN: usize = 8;
/// A shorter value is masked only if it has a letter, a digit and another character. Others are in texts too (`postgres1`, `00000000`).
const UNMISTAKABLE_BYTES_MIN: usize = 16;
/// The length of each half of a random secret, in hexadecimal digits.
const RANDOM_DIGITS: usize = 32;

/// The patterns of all secrets so far.
static PATTERNS: RwLock<Vec<Pattern>> = RwLock::new(Vec::new());

/// A secret value. It cannot be printed, compared or serialized: it has no trait for that.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Takes a value without the spaces around it; `None` if it is empty. From now on it is masked, unless it is a placeholder.
    pub fn new(value: &str) -> Option<Self> {
        let value = value.trim();
        if is_unmistakable(value) {
            add_pattern(value, 0);
            let json = serde_json::to_string(value).unwrap_or_default();
            add_pattern(json.get(1..json.len().saturating_sub(1)).unwrap_or(value), 0);
        }
        (!value.is_empty()).then(|| Self(value.to_owned()))
    }

    /// Creates a secret that no one can guess, also from others of this process. It has 32 hexadecimal digits that all of them share,
    /// so that one search finds them all, and as many of its own.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn random() -> io::Result<Self> {
        static SHARED: OnceLock<String> = OnceLock::new();
        let shared = match SHARED.get() {
            Some(shared) => shared,
            None => {
                let digits = random_digits()?;
                SHARED.get_or_init(|| digits)
            }
        };
        add_pattern(shared, RANDOM_DIGITS);
        Ok(Self(format!("{shared}{}", random_digits()?)))
    }

    /// Takes a random secret of another process.
    pub fn received(value: &str) -> Option<Self> {
        if let Some(shared) = value.get(..RANDOM_DIGITS) {
            add_pattern(shared, RANDOM_DIGITS);
        }
        Self::new(value)
    }

    /// The value, for the header or the environment that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// Returns true if a text that contains this value shows a secret, and not a common word or number.
fn is_unmistakable(value: &str) -> bool {
    let has = |is_wanted: fn(&u8) -> bool| value.bytes().any(|byte| is_wanted(&byte));
    let (letter, digit) = (has(u8::is_ascii_alphabetic), has(u8::is_ascii_digit));
    let other = has(|byte| !byte.is_ascii_alphanumeric());
    let is_long = value.len() >= UNMISTAKABLE_BYTES_MIN && (letter || other);
    is_long || (value.len() >= MASKED_BYTES_MIN && letter && digit && other)
}

fn random_digits() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:0width$x}", u128::from_ne_bytes(bytes), width = RANDOM_DIGITS))
}

/// Bytes that begin a secret, and the most hexadecimal digits that belong to it after them.
struct Pattern {
    start: Finder<'static>,
    digits_max: usize,
}

fn add_pattern(start: &str, digits_max: usize) {
    let is_known = |patterns: &[Pattern]| patterns.iter().any(|known| known.start.needle() == start.as_bytes());
    if is_known(&PATTERNS.read()) {
        return;
    }
    let mut patterns = PATTERNS.write();
    if !is_known(&patterns) {
        patterns.push(Pattern { start: Finder::new(start).into_owned(), digits_max });
    }
}

impl Pattern {
    /// The first occurrence in `text` that begins at `at` or later.
    fn find(&self, text: &[u8], at: usize) -> Option<Occurrence> {
        let from = at + self.start.find(text.get(at..)?)?;
        let to = from + self.start.needle().len();
        let digits = text[to..].iter().take(self.digits_max).take_while(|byte| byte.is_ascii_hexdigit()).count();
        let to = to + digits;
        Some(Occurrence { from, to, can_continue: to == text.len() && digits < self.digits_max })
    }

    /// The number of bytes at the end of `text` that can be the beginning of an occurrence.
    fn partial_len(&self, text: &[u8]) -> usize {
        let start = self.start.needle();
        let longest = text.len().min(start.len() - 1);
        (1..=longest).rev().find(|bytes| text.ends_with(&start[..*bytes])).unwrap_or(0)
    }
}

/// A secret in a text.
#[derive(Debug, Clone, Copy)]
struct Occurrence {
    from: usize,
    to: usize,
    /// True if it is at the end of the text, and more of it may follow.
    can_continue: bool,
}

/// Returns the secrets in `text`, in their order, the longest of those that begin at one place. Each pattern looks at each byte once.
fn secrets_in(patterns: &[Pattern], text: &[u8]) -> Vec<Occurrence> {
    let mut next: Vec<Option<Occurrence>> = patterns.iter().map(|pattern| pattern.find(text, 0)).collect();
    let mut secrets: Vec<Occurrence> = Vec::new();
    while let Some(found) = next.iter().flatten().min_by_key(|found| (found.from, std::cmp::Reverse(found.to))).copied()
    {
        for (pattern, next) in patterns.iter().zip(&mut next) {
            if next.is_some_and(|next| next.from < found.to) {
                *next = pattern.find(text, found.to);
            }
        }
        secrets.push(found);
    }
    secrets
}

/// Returns `text` with `[key]` in place of each secret.
pub fn masked(text: String) -> String {
    if secrets_in(&PATTERNS.read(), text.as_bytes()).is_empty() {
        return text;
    }
    let mut masker = StreamMasker::default();
    let masked = [masker.take(text.as_bytes()), masker.rest()].concat();
    String::from_utf8_lossy(&masked).into_owned()
}

/// Returns `text` with a mask of the same length in place of each secret, because files have positions.
pub fn masked_in_place(text: &[u8]) -> Cow<'_, [u8]> {
    let patterns = PATTERNS.read();
    let mut masked = Cow::Borrowed(text);
    for Occurrence { from, to, .. } in secrets_in(&patterns, text) {
        let secret = &mut masked.to_mut()[from..to];
        secret.fill(b'*');
        secret[..MASK.len()].copy_from_slice(MASK.as_bytes());
    }
    masked
}

/// Masks secrets in text that arrives in pieces, also one that spans several pieces. It holds back text that can be the beginning of
/// a secret.
#[derive(Debug, Default)]
pub struct StreamMasker {
    withheld: Vec<u8>,
}

impl StreamMasker {
    /// Adds `piece` and returns the bytes that can be passed on.
    pub fn take(&mut self, piece: &[u8]) -> Vec<u8> {
        let text = [std::mem::take(&mut self.withheld).as_slice(), piece].concat();
        let patterns = PATTERNS.read();
        let partial = patterns.iter().map(|pattern| pattern.partial_len(&text)).max().unwrap_or(0);
        // From here on, the next piece can make a secret longer, or complete one.
        let mut end = text.len() - partial;
        let (mut masked, mut at) = (Vec::with_capacity(text.len()), 0);
        for secret in secrets_in(&patterns, &text) {
            if secret.can_continue || secret.from >= end {
                end = end.min(secret.from);
                break;
            }
            masked.extend_from_slice(&text[at..secret.from]);
            masked.extend_from_slice(MASK.as_bytes());
            at = secret.to;
        }
        let end = end.max(at);
        masked.extend_from_slice(&text[at..end]);
        self.withheld = text[end..].to_vec();
        masked
    }

    /// Returns the bytes that were held back, at the end of the stream.
    pub fn rest(&mut self) -> Vec<u8> {
        let rest = std::mem::take(&mut self.withheld);
        let (mut masked, mut at) = (Vec::with_capacity(rest.len()), 0);
        for secret in secrets_in(&PATTERNS.read(), &rest) {
            masked.extend_from_slice(&rest[at..secret.from]);
            masked.extend_from_slice(MASK.as_bytes());
            at = secret.to;
        }
        masked.extend_from_slice(&rest[at..]);
        masked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The joined output for these pieces, and the number of bytes held back after each.
    fn masked_pieces(pieces: &[&str]) -> (String, Vec<usize>) {
        let (mut masker, mut out, mut withheld) = (StreamMasker::default(), Vec::new(), Vec::new());
        for piece in pieces {
            out.extend(masker.take(piece.as_bytes()));
            withheld.push(masker.withheld.len());
        }
        out.extend(masker.rest());
        (String::from_utf8(out).unwrap(), withheld)
    }

    #[test]
    fn secret_is_masked_in_texts_and_files() {
        assert!(Secret::new(" \n").is_none());
        assert_eq!(Secret::new(" sk-te%st-1\n").unwrap().expose(), "sk-te%st-1");
        assert_eq!(masked("the key sk-te%st-1 is not valid".to_owned()), "the key [key] is not valid");
        assert_eq!(&*masked_in_place(b"{sk-te%st-1,sk-te%st-1}"), b"{[key]*****,[key]*****}");
        Secret::new("quoted \"secret\\ 17");
        assert_eq!(&*masked_in_place(br#"{"a":"quoted \"secret\\ 17"}"#), br#"{"a":"[key]***************"}"#);
        for placeholder in
            ["none", "test-1", "not-needed", "placeholder", "postgres1", "00000000", "12345678901234567890"]
        {
            Secret::new(placeholder);
            assert_eq!(masked(placeholder.to_owned()), placeholder);
        }
    }

    #[test]
    fn secret_split_over_pieces_is_masked() {
        for secret in ["sk-test-2", "tok=test-3", "4-42x4-42y", "schlüssel-5"] {
            Secret::new(secret);
        }
        assert_eq!(masked_pieces(&["the key sk-t", "est", "-2 is bad"]).0, "the key [key] is bad");
        assert_eq!(masked_pieces(&["tests", "k-x"]), ("testsk-x".into(), vec![1, 0]));
        assert_eq!(masked_pieces(&["sk-test-"]), ("sk-test-".into(), vec![8]));
        assert_eq!(masked_pieces(&["4-42x", "4-42x4-42y!"]).0, "4-42x[key]!");
        assert_eq!(masked_pieces(&["tok=tes", "t-3 sk-test-", "2"]).0, "[key] [key]");
        assert_eq!(masked_pieces(&["ein schl", "üssel", "-5"]).0, "ein [key]");
    }

    #[test]
    fn masking_is_independent_of_pieces() {
        let random = Secret::random().unwrap();
        Secret::new("4-42x4-42y");
        let text =
            format!("keys: 4-42x4-42y4-42x4-42y, {0}{0}, {1} and 4-42x{0}", random.expose(), &random.expose()[..40]);
        let whole = masked(text.clone());
        assert_eq!(whole, "keys: [key][key], [key][key], [key] and 4-42x[key]");
        for first in 0..text.len() {
            for second in (first..text.len()).step_by(17) {
                let pieces = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(masked_pieces(&pieces).0, whole, "{pieces:?}");
            }
        }
    }

    /// One of two secrets can begin the other.
    #[test]
    fn longer_secret_leaves_no_rest() {
        Secret::new("begin-77");
        Secret::new("begin-77-and-more");
        for at in 0.."begin-77-and-more".len() {
            let (first, second) = "begin-77-and-more".split_at(at);
            assert_eq!(masked_pieces(&["a ", first, second, " b"]).0, "a [key] b", "{at}");
        }
        assert_eq!(masked_pieces(&["a begin-77", " b"]).0, "a [key] b");
    }

    #[test]
    fn random_secrets_are_found_by_their_shared_start() {
        let [first, second] = [(); 2].map(|()| Secret::random().unwrap());
        assert_ne!(first.expose(), second.expose());
        assert_eq!(first.expose().len(), 2 * RANDOM_DIGITS);
        assert_eq!(masked(format!("A={}\nB={}g", first.expose(), second.expose())), "A=[key]\nB=[key]g");
        let of_other_process = "0123456789abcdef0123456789abcdefffffffffffffffffffffffffffffffff";
        Secret::received(of_other_process);
        assert_eq!(masked(format!("x {of_other_process}")), "x [key]");
    }
}
