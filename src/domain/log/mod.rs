//! The event log of a run, and what can be read from it.

pub mod event;
pub mod replay;
pub mod snapshot;
pub mod task_diff;
