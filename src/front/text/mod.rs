//! Text for people: tables, the timeline of a run, its summary, explanations. Functions take data and return text; they
//! print nothing, read no environment and use no stores.
//!
//! The text always has colours. The caller removes them for outputs without colours.

pub mod commands;
pub mod cost;
pub mod diff;
pub mod evidence;
pub mod lead_status;
pub mod lines;
pub mod live;
pub mod markdown;
pub mod pending;
pub mod replay;
pub mod requests;
pub mod style;
pub mod summary;
pub mod table;
pub mod tasks;
pub mod team;
pub mod timeline;
pub mod transcript;
pub mod why;
