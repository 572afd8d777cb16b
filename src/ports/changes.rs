//! Hints about changes.

/// A hint about a change. Polling finds changes without a hint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StoreChange {
    /// The board changed.
    Board,
    /// This member has mail.
    Mail(String),
    /// The shared state changed.
    State,
    /// Hints were lost: poll everything.
    Everything,
}
