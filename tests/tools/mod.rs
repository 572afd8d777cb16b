//! The tools as a turn calls them: real files, real commands, the stores in memory.
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is a test")]

mod board;
mod denied_commands;
mod files;
mod harness;
mod mail;
mod reviews;
mod table;
mod walks;
