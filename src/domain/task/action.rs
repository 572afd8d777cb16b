//! The names of changes.

/// The name of a change in rules and messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// See [`super::transition::Change::Complete`].
    Complete,
    /// See [`super::transition::Change::Fail`].
    Fail,
    /// See [`super::transition::Change::Release`].
    Release,
    /// See [`super::transition::Change::Renew`].
    Renew,
    /// See [`super::transition::Change::SetWorktree`].
    SetWorktree,
    /// See [`super::transition::Change::Retry`].
    Retry,
    /// See [`super::transition::Change::Reopen`].
    Reopen,
    /// See [`super::transition::Change::Edit`].
    Edit,
    /// A [`super::transition::Change::Edit`] that replaces the verify command, which decides about the holder's work.
    EditVerify,
    /// Removes the file. Its id is never used again.
    Delete,
}

impl Action {
    /// Returns the verb for people.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Fail => "fail",
            Self::Release => "release",
            Self::Renew => "renew",
            Self::SetWorktree => "set the worktree of",
            Self::Retry => "retry",
            Self::Reopen => "reopen",
            Self::Edit => "edit",
            Self::EditVerify => "change the verify command of",
            Self::Delete => "delete",
        }
    }

    /// Returns `completed` for `complete`.
    pub fn past_participle(self) -> &'static str {
        match self {
            Self::Complete => "completed",
            Self::Fail => "failed",
            Self::Release => "released",
            Self::Renew => "renewed",
            Self::Retry => "retried",
            Self::Reopen => "reopened",
            Self::Delete => "deleted",
            Self::Edit | Self::EditVerify | Self::SetWorktree => "changed",
        }
    }

    /// Returns true if it is for the holder of a task in progress.
    pub fn is_for_holder(self) -> bool {
        matches!(self, Self::Complete | Self::Fail | Self::Release | Self::Renew | Self::SetWorktree)
    }
}
