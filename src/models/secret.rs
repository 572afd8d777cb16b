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
        if self.0.len() >= MASKED_BYTES_MIN && text.contains(&self.0) { text.replace(&self.0, MASK) } else { text }
    }
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
}
