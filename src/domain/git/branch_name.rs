//! The name of a branch.

use std::fmt;

use serde::Serialize;

/// The first part of the full name of each branch.
const BRANCHES: &str = "refs/heads/";

/// A branch of a repository. Git gets its full name, because the short one can also be that of a tag, of a remote or of an option.
/// [`fmt::Display`] writes the short name, for texts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct BranchName(String);

impl BranchName {
    /// Returns the branch with this short name, such as `main`.
    pub fn new(short: impl Into<String>) -> Self {
        Self(short.into())
    }

    /// Returns the branch with this full name, such as `refs/heads/main`. `None` if it is the name of another ref.
    pub fn of_ref(name: &str) -> Option<Self> {
        name.strip_prefix(BRANCHES).map(Self::new)
    }

    /// Returns the full name, such as `refs/heads/main`.
    pub fn full(&self) -> String {
        format!("{BRANCHES}{}", self.0)
    }

    /// Returns the short name, such as `main`: for texts, and for options of git that take nothing but the name of a branch.
    pub fn short(&self) -> &str {
        &self.0
    }
}

impl From<&str> for BranchName {
    fn from(short: &str) -> Self {
        Self::new(short)
    }
}

impl PartialEq<&str> for BranchName {
    fn eq(&self, short: &&str) -> bool {
        self.0 == *short
    }
}

impl fmt::Display for BranchName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_first_prefix_is_removed() {
        let branch = BranchName::of_ref("refs/heads/refs/heads/main").unwrap();
        assert_eq!((branch.short(), branch.full().as_str()), ("refs/heads/main", "refs/heads/refs/heads/main"));
        assert_eq!(BranchName::of_ref("refs/tags/main"), None);
    }
}
