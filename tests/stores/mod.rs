//! The contracts of the stores: outside writers without locks, crashes at every call, concurrent processes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers may panic")]

mod board;
mod board_crash;
mod crash;
mod database;
mod events;
mod file_systems;
mod leases;
mod ledger;
mod mailbox;
mod opening;
mod roster;
mod samples;
mod state;
mod support;
mod transcripts;
mod workers;
mod worktree;
