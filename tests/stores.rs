//! The contracts of the stores: outside writers without locks, crashes at every call, concurrent processes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers may panic")]

#[path = "stores/crash.rs"]
mod crash;
#[path = "stores/database.rs"]
mod database;
#[path = "stores/events.rs"]
mod events;
#[path = "stores/leases.rs"]
mod leases;
#[path = "stores/ledger.rs"]
mod ledger;
#[path = "stores/mailbox.rs"]
mod mailbox;
#[path = "stores/opening.rs"]
mod opening;
#[path = "stores/roster.rs"]
mod roster;
#[path = "stores/state.rs"]
mod state;
#[path = "stores/support.rs"]
mod support;
mod testkit;
#[path = "stores/transcripts.rs"]
mod transcripts;
#[path = "stores/workers.rs"]
mod workers;
#[path = "stores/worktree.rs"]
mod worktree;
