//! Brigade as real processes, attacked from outside. Each test attacks one promise. It starts the real program on real
//! files, and waits for conditions, never for a fixed time.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a failure must stop the test, and a skipped test prints a notice"
)]

mod approvals;
mod asks;
mod audit;
mod budgets;
#[cfg(target_os = "linux")]
mod chaos;
mod claimers;
mod clicks;
mod colleagues;
mod consent;
mod disks;
mod documents;
mod environments;
mod escapes;
mod evidence;
mod examples;
mod goals;
mod guard;
mod hostile;
mod inboxes;
#[cfg(target_os = "linux")]
mod installs;
mod isolated;
mod kills;
mod leads;
mod limits;
mod locked;
mod mcp;
mod notes;
mod notifications;
mod other_program;
mod permissions;
mod person_merges;
mod pipes;
mod programs;
mod recordings;
mod removed;
mod resumes;
mod runbooks;
mod sandbox;
mod secrets;
mod setups;
mod signing;
mod spawned;
mod starters;
mod texts;
mod trust;
mod typed;
