//! Keys of providers: they are sent in headers and appear nowhere else.
//!
//! A [`Secret`] cannot be printed, compared or serialized: it has no trait for that.

use reqwest::header::HeaderValue;

/// The text that replaces a secret.
const MASK: &str = "[key]";
/// Shorter values are placeholders (`none`, `x`) and would match in any text.
const MASKED_BYTES_MIN: usize = 6;

/// A key of a provider.
pub struct Secret(String);

impl Secret {
    /// The secret in a variable's value; `None` if the value is empty.
    pub fn new(value: &str) -> Option<Self> {
        let value = value.trim();
        (!value.is_empty()).then(|| Self(value.to_owned()))
    }

    /// A header with `prefix` and the secret, marked as sensitive, so that it is not printed.
    ///
    /// # Errors
    /// The secret has characters that a header cannot carry. The text does not quote it.
    pub fn header(&self, prefix: &str) -> Result<HeaderValue, String> {
        let mut value = HeaderValue::try_from(format!("{prefix}{}", self.0))
            .map_err(|_| "has characters that an HTTP header cannot carry".to_owned())?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// `text` with the secret masked.
    pub fn scrub(&self, text: String) -> String {
        if self.is_masked() && text.contains(&self.0) { text.replace(&self.0, MASK) } else { text }
    }

    fn is_masked(&self) -> bool {
        self.0.len() >= MASKED_BYTES_MIN
    }

    /// The number of bytes at the end of `text` that can be the beginning of the secret.
    fn partial_match_len(&self, text: &str) -> usize {
        if !self.is_masked() {
            return 0;
        }
        let longest = text.len().min(self.0.len() - 1);
        (1..=longest).rev().find(|bytes| text.as_bytes().ends_with(&self.0.as_bytes()[..*bytes])).unwrap_or(0)
    }
}

/// Masks keys in text that arrives in pieces, also a key that spans several pieces. It holds back text that can be the beginning of
/// a key.
#[derive(Debug, Default)]
pub struct StreamMasker {
    withheld: String,
}

impl StreamMasker {
    /// Adds `piece` and returns the text that can be masked on.
    pub fn take(&mut self, secrets: &[Secret], piece: &str) -> String {
        self.withheld.push_str(piece);
        self.withheld = scrub(secrets, std::mem::take(&mut self.withheld));
        let partial = secrets.iter().map(|secret| secret.partial_match_len(&self.withheld)).max().unwrap_or(0);
        let rest = self.withheld.split_off(self.withheld.len() - partial);
        std::mem::replace(&mut self.withheld, rest)
    }

    /// Returns the text that was held back, at the end of the stream.
    pub fn rest(&mut self) -> String {
        std::mem::take(&mut self.withheld)
    }
}

/// `text` with all `secrets` masked.
pub fn scrub(secrets: &[Secret], text: String) -> String {
    secrets.iter().fold(text, |text, secret| secret.scrub(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_appears_only_in_its_header() {
        let secret = Secret::new(" sk-12345\n").unwrap();
        let header = secret.header("Bearer ").unwrap();
        assert_eq!(header.as_bytes(), b"Bearer sk-12345");
        assert_eq!(format!("{header:?}"), "Sensitive");
        assert_eq!(secret.scrub("the key sk-12345 is not valid".to_owned()), "the key [key] is not valid");
        assert!(Secret::new(" \n").is_none());
        let refused = Secret::new("sk\n12345").unwrap().header("").unwrap_err();
        assert!(!refused.contains("12345"), "{refused}");
    }

    /// The joined output for these pieces, and the number of bytes held back after each.
    fn masked(secrets: &[&str], pieces: &[&str]) -> (String, Vec<usize>) {
        let secrets: Vec<Secret> = secrets.iter().filter_map(|secret| Secret::new(secret)).collect();
        let mut out = String::new();
        let mut withheld = Vec::new();
        let mut through = StreamMasker::default();
        for piece in pieces {
            out += &through.take(&secrets, piece);
            withheld.push(through.withheld.len());
        }
        (out + &through.rest(), withheld)
    }

    #[test]
    fn secret_split_over_chunks_is_masked() {
        assert_eq!(masked(&["sk-12345"], &["the key sk-1", "23", "45 is bad"]).0, "the key [key] is bad");
        assert_eq!(masked(&["sk-12345"], &["the", " key", " is", "n't"]), ("the key isn't".into(), vec![0, 0, 1, 0]));
        assert_eq!(masked(&["sk-12345"], &["tests", "k-123x"]), ("testsk-123x".into(), vec![1, 0]));
        assert_eq!(masked(&["sk-12345"], &["sk-1234"]), ("sk-1234".into(), vec![7]));
        assert_eq!(masked(&["short"], &["sho", "rt"]), ("short".into(), vec![0, 0]), "a placeholder is no key");
        assert_eq!(masked(&["ababac"], &["abab", "abac!"]).0, "ab[key]!");
        assert_eq!(masked(&["sk-12345", "tok-999999"], &["tok-9", "99999 sk-", "12345"]).0, "[key] [key]");
        assert_eq!(masked(&["schlüssel"], &["ein schl", "üsse", "l"]).0, "ein [key]");
    }

    #[test]
    fn secret_masking_is_independent_of_chunking() {
        let text = "keys: sk-12345sk-12345, sk-123 and sk-sk-12345.";
        let whole = scrub(&[Secret::new("sk-12345").unwrap()], text.to_owned());
        for first in 0..text.len() {
            for second in first..text.len() {
                let pieces = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(masked(&["sk-12345"], &pieces).0, whole, "{pieces:?}");
            }
        }
    }
}
