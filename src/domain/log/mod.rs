//! The event log of a run, and what can be read from it.

pub mod event;
pub mod event_id;
pub mod goal_check;
pub mod replay;
pub mod request_log;
pub mod snapshot;
pub mod task_diff;
