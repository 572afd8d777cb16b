//! Pure decisions and formats: tasks, messages, phases, prompts, states.
//!
//! No files, environment, clock or runtime. A test checks this.

#![warn(missing_docs)]

pub mod agent;
pub mod git;
pub mod log;
pub mod task;
pub mod team;
pub mod text;
pub mod time;
