//! Keys of providers: they go into headers and nowhere else.
//!
//! A [`Secret`] cannot be printed, compared or written: it has none of the traits for that.

use reqwest::header::HeaderValue;

/// What stands where a secret stood.
const MASK: &str = "[key]";
/// Shorter ones are placeholders (`none`, `x`), and would be found in any text.
const MASKED_BYTES_MIN: usize = 6;

/// A key. See the module.
pub struct Secret(String);

impl Secret {
    /// The secret in a variable's value; `None` when there is none in it.
    #[must_use]
    pub fn new(value: &str) -> Option<Self> {
        let value = value.trim();
        (!value.is_empty()).then(|| Self(value.to_owned()))
    }

    /// A header with it behind `prefix`, marked so that nothing prints it.
    ///
    /// # Errors
    /// It has characters that no header can carry; the text does not quote it.
    pub fn header(&self, prefix: &str) -> Result<HeaderValue, String> {
        let mut value = HeaderValue::try_from(format!("{prefix}{}", self.0))
            .map_err(|_| "has characters that no HTTP header can carry".to_owned())?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// `text` without it.
    #[must_use]
    pub fn scrub(&self, text: String) -> String {
        if self.is_masked() && text.contains(&self.0) { text.replace(&self.0, MASK) } else { text }
    }

    fn is_masked(&self) -> bool {
        self.0.len() >= MASKED_BYTES_MIN
    }

    /// How many bytes at the end of `text` could be the beginning of it.
    fn begun_in(&self, text: &str) -> usize {
        if !self.is_masked() {
            return 0;
        }
        let longest = text.len().min(self.0.len() - 1);
        (1..=longest).rev().find(|bytes| text.as_bytes().ends_with(&self.0.as_bytes()[..*bytes])).unwrap_or(0)
    }
}

/// Text that comes in pieces: it goes on without keys, in however many pieces those came. What could be the beginning of one is held
/// back until that is decided.
#[derive(Debug, Default)]
pub struct Pieces {
    held: String,
}

impl Pieces {
    /// What can go on, now that `piece` came.
    pub fn take(&mut self, secrets: &[Secret], piece: &str) -> String {
        self.held.push_str(piece);
        self.held = scrub(secrets, std::mem::take(&mut self.held));
        let begun = secrets.iter().map(|secret| secret.begun_in(&self.held)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - begun);
        std::mem::replace(&mut self.held, rest)
    }

    /// What was held back: nothing follows that could make a key of it.
    pub fn rest(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// `text` without any of these.
#[must_use]
pub fn scrub(secrets: &[Secret], text: String) -> String {
    secrets.iter().fold(text, |text, secret| secret.scrub(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_in_its_header_and_in_no_text() {
        let secret = Secret::new(" sk-12345\n").unwrap();
        let header = secret.header("Bearer ").unwrap();
        assert_eq!(header.as_bytes(), b"Bearer sk-12345");
        assert_eq!(format!("{header:?}"), "Sensitive");
        assert_eq!(secret.scrub("the key sk-12345 is not valid".to_owned()), "the key [key] is not valid");
        assert!(Secret::new(" \n").is_none());
        let refused = Secret::new("sk\n12345").unwrap().header("").unwrap_err();
        assert!(!refused.contains("12345"), "{refused}");
    }

    /// What comes out of these pieces, joined, and how many bytes were held back behind each.
    fn passed(secrets: &[&str], pieces: &[&str]) -> (String, Vec<usize>) {
        let secrets: Vec<Secret> = secrets.iter().filter_map(|secret| Secret::new(secret)).collect();
        let (mut out, mut held, mut through) = (String::new(), Vec::new(), Pieces::default());
        for piece in pieces {
            out += &through.take(&secrets, piece);
            held.push(through.held.len());
        }
        (out + &through.rest(), held)
    }

    #[test]
    fn a_secret_in_pieces_does_not_pass_and_nothing_else_is_lost_or_late() {
        assert_eq!(passed(&["sk-12345"], &["the key sk-1", "23", "45 is bad"]).0, "the key [key] is bad");
        assert_eq!(passed(&["sk-12345"], &["the", " key", " is", "n't"]), ("the key isn't".into(), vec![0, 0, 1, 0]));
        assert_eq!(passed(&["sk-12345"], &["tests", "k-123x"]), ("testsk-123x".into(), vec![1, 0]));
        assert_eq!(passed(&["sk-12345"], &["sk-1234"]), ("sk-1234".into(), vec![7]));
        assert_eq!(passed(&["short"], &["sho", "rt"]), ("short".into(), vec![0, 0]), "a placeholder is no key");
        assert_eq!(passed(&["ababac"], &["abab", "abac!"]).0, "ab[key]!");
        assert_eq!(passed(&["sk-12345", "tok-999999"], &["tok-9", "99999 sk-", "12345"]).0, "[key] [key]");
        assert_eq!(passed(&["schlüssel"], &["ein schl", "üsse", "l"]).0, "ein [key]");
    }

    #[test]
    fn cut_anywhere_a_text_comes_out_as_it_does_whole() {
        let text = "keys: sk-12345sk-12345, sk-123 and sk-sk-12345.";
        let whole = scrub(&[Secret::new("sk-12345").unwrap()], text.to_owned());
        for first in 0..text.len() {
            for second in first..text.len() {
                let pieces = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(passed(&["sk-12345"], &pieces).0, whole, "{pieces:?}");
            }
        }
    }
}
