//! Hints about changes in the stores.

/// A change that a store may report at once. Polling also finds changes that no store reported.
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
