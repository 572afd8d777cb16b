//! One workspace of the torture program (`benches/torture/main.rs`): a team whose lead, commands and gits are killed at random, and the
//! account of what was lost. The seed is another one each time; what fails names it.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a program that cannot go on says so by a panic, and what it finds is printed"
)]

#[path = "../benches/torture/attacks.rs"]
mod attacks;
#[path = "../benches/torture/checks.rs"]
mod checks;
#[path = "../benches/torture/counts.rs"]
mod counts;
#[path = "../benches/torture/people.rs"]
mod people;
#[path = "../benches/torture/place.rs"]
mod place;
#[path = "../benches/torture/world.rs"]
mod world;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use counts::Counts;

/// Attacks: some ten seconds of them.
const ROUNDS: usize = 8;

#[test]
fn a_workspace_under_torture_loses_and_doubles_nothing() {
    let counts = Arc::new(Counts::default());
    world::live(fastrand::u64(..1 << 40), ROUNDS, &counts, &AtomicBool::new(false));
    assert!(counts.of("kills") > 0 && counts.of("tasks") > 0);
    assert_eq!(counts.all_wrong(), 0, "{}", counts.table());
}
