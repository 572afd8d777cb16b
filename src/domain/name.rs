//! The names of teams and members: what is allowed, and what is taken.

use std::fmt;

/// The lead's inbox and the name it acts under.
pub const LEAD: &str = "lead";
/// The person's inbox and the name a person acts under.
pub const HUMAN: &str = "human";
/// The name Brigade itself acts under: recovery, budgets, endings.
pub const SYSTEM: &str = "system";
/// Everyone, as an address.
pub const ALL: &str = "all";

/// Names no teammate may have.
pub const RESERVED: [&str; 4] = [LEAD, HUMAN, ALL, SYSTEM];

/// The longest name, in bytes. Names become file names and columns of tables.
pub const NAME_BYTES_MAX: usize = 32;

/// A valid name: `[A-Za-z0-9][A-Za-z0-9_-]{0,31}`. Two names that differ only in case are the same member.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(transparent)]
pub struct Name(String);

/// Why a text is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a valid name: names start with a letter or digit and have at most 32 letters, digits, `_` or `-`", .0.escape_debug())]
pub struct InvalidName(pub String);

impl Name {
    /// Takes `text` as a name.
    ///
    /// # Errors
    /// [`InvalidName`] when it has other characters, none at all, or too many.
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        let shape = text.starts_with(|first: char| first.is_ascii_alphanumeric())
            && text.len() <= NAME_BYTES_MAX
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
        if shape { Ok(Self(text.to_owned())) } else { Err(InvalidName(text.to_owned())) }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this name is one of [`RESERVED`], in any case.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        RESERVED.iter().any(|reserved| reserved.eq_ignore_ascii_case(&self.0))
    }

    /// Whether both name the same member.
    #[must_use]
    pub fn is_same(&self, other: &str) -> bool {
        self.0.eq_ignore_ascii_case(other)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_words_of_bounded_length() {
        for good in ["a", "alice", "A-1_b", "7", &"x".repeat(32)] {
            assert!(Name::new(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "_a", "a b", "a/b", "..", "é", "a\n", &"x".repeat(33), "a.jsonl"] {
            assert!(Name::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn reserved_names_are_reserved_in_any_case() {
        assert!(Name::new("Lead").unwrap().is_reserved());
        assert!(!Name::new("leader").unwrap().is_reserved());
    }
}
