//! The providers that speak HTTP, against a local server with scripted behaviour.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure must stop the test")]

mod answers;
mod budgets;
mod chat;
mod cuts;
mod encodings;
mod failures;
mod first_use;
mod outages;
mod recordings;
mod responses;
mod settings;
mod team;
