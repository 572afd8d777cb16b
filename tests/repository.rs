//! The repository port on real git: worktrees that others edit, conflicting branches with every line counted, and the
//! state after a kill at each step.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "test helpers may panic, and a skipped test prints a notice"
)]

#[path = "repository/attacks.rs"]
mod attacks;
#[path = "repository/checkout.rs"]
mod checkout;
#[path = "repository/drivers.rs"]
mod drivers;
#[path = "repository/harness.rs"]
mod harness;
#[path = "repository/hidden.rs"]
mod hidden;
#[path = "repository/layouts.rs"]
mod layouts;
#[path = "repository/lines.rs"]
mod lines;
#[path = "repository/merges.rs"]
mod merges;
#[path = "repository/reviews.rs"]
mod reviews;
mod testkit;
#[path = "repository/worktrees.rs"]
mod worktrees;
