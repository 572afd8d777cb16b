//! One workspace of the chaos program (`benches/chaos/main.rs`): a team whose lead, commands and gits are killed at
//! random, and the final account. Each run uses a new seed; a failure prints it.

#[path = "../../benches/chaos/attacks.rs"]
mod attacks;
#[path = "../../benches/chaos/checks.rs"]
mod checks;
#[path = "../../benches/chaos/counts.rs"]
mod counts;
#[path = "../../benches/chaos/setup.rs"]
mod setup;
#[path = "../../benches/chaos/users.rs"]
mod users;
#[path = "../../benches/chaos/workspace.rs"]
mod workspace;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use counts::Counts;

/// Attacks, about ten seconds in total.
const ROUNDS: usize = 8;

#[test]
fn chaos_run_loses_and_repeats_nothing() {
    let counts = Arc::new(Counts::default());
    setup::run_workspace(fastrand::u64(..1 << 40), ROUNDS, &counts, &AtomicBool::new(false));
    assert!(counts.of("kills") > 0 && counts.of("tasks") > 0);
    assert_eq!(counts.all_wrong(), 0, "{}", counts.table());
}
