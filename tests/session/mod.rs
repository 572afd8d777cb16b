//! The program on a pseudo-terminal, as a person sees it: the interactive session, the live view of a run, and `brigade watch`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure must stop the test")]

mod interactive;
mod live;
mod permissions;
mod picture;
mod terminal;
mod watch;
