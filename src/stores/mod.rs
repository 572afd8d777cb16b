//! Storage. Locks and blocking I/O are only used in these modules.

pub mod accounts;
pub mod board_engine;
pub mod file;
pub mod fs;
pub mod memory;
pub mod request_store;
pub mod trust;
pub mod workspace;
