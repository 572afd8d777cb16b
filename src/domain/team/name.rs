//! Valid and reserved names of teams and members.

use std::fmt;

/// Name of the lead and its inbox.
pub const LEAD: &str = "lead";
/// Name of the person and the person's inbox.
pub const HUMAN: &str = "human";
/// Name under which Brigade itself acts: recovery, budgets, shutdown.
pub const SYSTEM: &str = "system";
/// The address of all members.
pub const ALL: &str = "all";

/// Names that no teammate may have.
pub const RESERVED: [&str; 4] = [LEAD, HUMAN, ALL, SYSTEM];

/// Maximum length of a name, in bytes. Names become file names and table columns.
pub const NAME_BYTES_MAX: usize = 32;

/// A valid name: `[A-Za-z0-9][A-Za-z0-9_-]{0,31}`. Names that differ only in case denote the same member.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(transparent)]
pub struct Name(String);

/// The error for a text that is not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a valid name: names start with a letter or digit and have at most 32 letters, digits, `_` or `-`", .0.escape_debug())]
pub struct InvalidName(pub String);

impl Name {
    /// Creates a name from `text`.
    ///
    /// # Errors
    /// [`InvalidName`] if `text` is empty, too long or has other characters.
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        let is_valid = text.starts_with(|first: char| first.is_ascii_alphanumeric())
            && text.len() <= NAME_BYTES_MAX
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
        if is_valid { Ok(Self(text.to_owned())) } else { Err(InvalidName(text.to_owned())) }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if this name is one of [`RESERVED`], in any case.
    pub fn is_reserved(&self) -> bool {
        RESERVED.iter().any(|reserved| reserved.eq_ignore_ascii_case(&self.0))
    }

    /// Returns true if both names denote the same member.
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
    fn member_name_is_bounded_and_plain() {
        for good in ["a", "alice", "A-1_b", "7", &"x".repeat(32)] {
            assert!(Name::new(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "_a", "a b", "a/b", "..", "é", "a\n", &"x".repeat(33), "a.jsonl"] {
            assert!(Name::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn reserved_name_is_case_insensitive() {
        assert!(Name::new("Lead").unwrap().is_reserved());
        assert!(!Name::new("leader").unwrap().is_reserved());
    }
}
