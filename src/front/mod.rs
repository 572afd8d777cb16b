//! The front ends: each parses what a person or a program sends, asks or orders through [`crate::api`], and renders the answer.
//!
//! | front end | module |
//! |---|---|
//! | the command line | [`cli`] |
//! | the interactive session of `brigade up` | `repl` |
//! | the full screen of `brigade watch` | `watch` |
//! | `brigade mcp`, for agents of other programs | `mcp` |
//!
//! `text` renders data as text for all of them.

pub mod cli;
mod mcp;
mod repl;
pub(crate) mod text;
mod watch;
