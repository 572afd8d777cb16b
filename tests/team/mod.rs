//! The whole team on memory stores, with models made of closures and paused time.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a failure must stop the test, and print how to repeat it"
)]

mod asks;
mod budget;
mod chaos;
mod claims;
mod compactions;
mod disk_space;
mod drain;
mod evidence;
mod faults;
mod first_requests;
mod forced_ends;
mod goals;
mod harness;
mod lead;
mod lifecycle;
mod mail;
mod models;
mod outages;
mod permissions;
mod prefixes;
mod resume;
mod retries;
mod reviews;
mod shutdown;
mod steering;
mod streams;
