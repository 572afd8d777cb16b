//! External agents: recorded conversations of the real programs, and the programs themselves.
//!
//! `cargo test --test program agents::` plays the recordings in `recordings/`, one set for each version. With `scripts/install-agents`,
//! `cargo test --test program agents:: -- --ignored` runs the installed programs against a model server on loopback.
//! `UPDATE_RECORDINGS=1` makes the recordings again.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test helpers may panic")]

mod endings;
mod kills;
mod limits;
mod mixed;
mod program;
mod real;
mod recorded;
mod scenarios;
mod scripts;
mod starts;
