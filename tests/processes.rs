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

#[path = "processes/approvals.rs"]
mod approvals;
#[path = "processes/audit.rs"]
mod audit;
#[path = "processes/budgets.rs"]
mod budgets;
#[path = "processes/claimers.rs"]
mod claimers;
#[path = "processes/clicks.rs"]
mod clicks;
#[path = "processes/disks.rs"]
mod disks;
#[path = "processes/environments.rs"]
mod environments;
#[path = "processes/escapes.rs"]
mod escapes;
#[path = "processes/goals.rs"]
mod goals;
#[path = "processes/hostile.rs"]
mod hostile;
#[path = "processes/inboxes.rs"]
mod inboxes;
#[path = "processes/isolated.rs"]
mod isolated;
#[path = "processes/kills.rs"]
mod kills;
#[path = "processes/leads.rs"]
mod leads;
#[path = "processes/limits.rs"]
mod limits;
#[path = "processes/locked.rs"]
mod locked;
#[path = "processes/pipes.rs"]
mod pipes;
#[path = "processes/programs.rs"]
mod programs;
#[path = "processes/removed.rs"]
mod removed;
#[path = "processes/resumes.rs"]
mod resumes;
#[path = "processes/runbooks.rs"]
mod runbooks;
#[path = "processes/sandbox.rs"]
mod sandbox;
#[path = "processes/secrets.rs"]
mod secrets;
mod testkit;
#[path = "processes/texts.rs"]
mod texts;
#[path = "processes/trust.rs"]
mod trust;
#[path = "processes/tutorial.rs"]
mod tutorial;
#[path = "processes/typed.rs"]
mod typed;
