//! Where things are kept. Locks and blocking I/O live here and nowhere else.

pub mod file;
pub mod fs;
pub mod git;
pub mod memory;
pub mod open;
pub mod requests;
pub mod rules;
