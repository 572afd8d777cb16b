//! The repository port on real git: worktrees edited behind the team's back, branches made to conflict with every line counted
//! afterwards, and what a kill leaves at each step.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "the helpers of tests may panic as the tests do, and a skipped one says so"
)]

#[path = "repository/attacks.rs"]
mod attacks;
#[path = "repository/checkout.rs"]
mod checkout;
#[path = "repository/drivers.rs"]
mod drivers;
#[path = "repository/hidden.rs"]
mod hidden;
#[path = "repository/layouts.rs"]
mod layouts;
#[path = "repository/lines.rs"]
mod lines;
#[path = "repository/merges.rs"]
mod merges;
#[path = "repository/place.rs"]
mod place;
#[path = "repository/worktrees.rs"]
mod worktrees;
