//! The whole team over memory stores, with models made by closures and paused time.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "what fails in a test is to stop it")]

mod claims;
mod drain;
mod lead;
mod lives;
mod mail;
mod models;
mod shutdown;
mod stage;
mod steering;
mod streams;
