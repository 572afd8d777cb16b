//! The repository port on real git: worktrees that others edit, conflicting branches with every line counted, and the
//! state after a kill at each step.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "test helpers may panic, and a skipped test prints a notice"
)]

mod adoption;
mod attacks;
mod dead_locks;
mod drivers;
mod failed_attempts;
mod harness;
mod hidden;
mod ignored;
mod killed_steps;
mod layouts;
mod lfs;
mod lines;
mod links;
mod merges;
mod ref_names;
mod reviews;
mod setup;
mod sources;
mod take_over;
mod taken;
mod team_branch;
mod teammate;
mod teammate_git;
#[path = "../testkit/mod.rs"]
mod testkit;
mod worktrees;
