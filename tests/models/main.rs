//! The providers that speak HTTP against a real server on this machine, which behaves as each test says.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "what fails in a test is to stop it")]

mod answers;
mod failures;
mod server;
mod team;
