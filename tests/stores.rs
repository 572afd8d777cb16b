//! The stores against what the contracts say: outside writers without locks, crashes at every call, many at once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "the helpers of tests may panic as the tests do")]

#[path = "stores/crash.rs"]
mod crash;
#[path = "stores/events.rs"]
mod events;
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
#[path = "stores/transcripts.rs"]
mod transcripts;
#[path = "stores/workers.rs"]
mod workers;
#[path = "stores/worktree.rs"]
mod worktree;
