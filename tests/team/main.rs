//! The whole team over memory stores, with models made by closures and paused time.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "what fails in a test is to stop it, and to say how it is run again"
)]

mod budget;
mod chaos;
mod claims;
mod compactions;
mod drain;
mod lead;
mod lives;
mod mail;
mod models;
mod resume;
mod reviews;
mod room;
mod shutdown;
mod stage;
mod steering;
mod storm;
mod streams;
