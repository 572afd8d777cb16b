//! What people see: tables, the timeline of a run, its closing, explanations. It is handed data and gives text back; it
//! prints nothing, reads no environment and knows nothing of stores.
//!
//! Colours are always in the text; who prints it takes them out where they are not wanted.

pub mod approvals;
pub mod cost;
pub mod replay;
pub mod stillness;
pub mod style;
pub mod summary;
pub mod table;
pub mod tasks;
pub mod team;
pub mod text;
pub mod timeline;
pub mod why;
