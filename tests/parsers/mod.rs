//! No input makes a parser panic or loop, and rewriting a file keeps the fields it does not know. Each target of
//! `tests/parsers/targets.rs` is tried with difficult inputs and with samples that a seed changes at random.
//!
//! `BRIGADE_FUZZ_COUNT=1000000 BRIGADE_FUZZ_TARGET=plan cargo test --test engine parsers::` runs longer. A failure prints the
//! command that repeats it. `fuzz/` has the same targets for libFuzzer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure must stop the test")]

mod mutations;
mod targets;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::testkit::seeds::number;
use targets::{TARGETS, Target};

/// Changed samples of each target in a normal run.
const COUNT: u64 = 400;

/// Runs a target with these bytes. A failure prints them.
fn try_target(target: &Target, bytes: &[u8], how: &str) {
    if catch_unwind(AssertUnwindSafe(|| (target.run)(bytes))).is_err() {
        let shown = bytes[..bytes.len().min(2000)].escape_ascii();
        panic!("{} fails with {} bytes; {how}\n{shown}", target.name, bytes.len());
    }
}

#[test]
fn parsers_survive_hard_inputs() {
    for target in wanted() {
        for (place, bytes) in mutations::difficult_inputs(target.samples).iter().enumerate() {
            try_target(target, bytes, &format!("it is number {place} of what is hard"));
        }
    }
}

fn wanted() -> impl Iterator<Item = &'static Target> {
    let name = std::env::var("BRIGADE_FUZZ_TARGET").ok();
    TARGETS.iter().filter(move |target| name.as_ref().is_none_or(|name| *name == target.name))
}

#[test]
fn parsers_survive_changed_samples() {
    let first = number("BRIGADE_FUZZ_SEED").unwrap_or_else(|| fastrand::u64(..1 << 40));
    for target in wanted() {
        for seed in first..first + number("BRIGADE_FUZZ_COUNT").unwrap_or(COUNT) {
            let bytes = mutations::mutated(target.samples, &mut fastrand::Rng::with_seed(seed));
            let name = target.name;
            let again = format!(
                "again: BRIGADE_FUZZ_TARGET={name} BRIGADE_FUZZ_SEED={seed} BRIGADE_FUZZ_COUNT=1 cargo test --test engine parsers_survive"
            );
            try_target(target, &bytes, &again);
        }
    }
}

#[test]
fn fuzz_samples_parse() {
    // A target whose samples are not parsed would test nothing.
    let parsed = |name: &str| {
        let target = TARGETS.iter().find(|target| target.name == name).unwrap();
        target.samples.to_vec()
    };
    for line in parsed("ledger").concat().split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        serde_json::from_slice::<brigade::domain::team::budget::LedgerRecord>(line).unwrap();
    }
    for book in parsed("requests") {
        serde_json::from_slice::<brigade::domain::team::approval::Approvals>(book).unwrap();
    }
    for text in parsed("plan") {
        assert!(brigade::domain::task::plan::parse("plan.md", std::str::from_utf8(text).unwrap()).is_ok());
    }
    for line in parsed("events").concat().split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        serde_json::from_slice::<brigade::domain::log::event::Event>(line).unwrap();
    }
}

#[test]
fn libfuzzer_manifest_lists_every_target() {
    let manifest = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/Cargo.toml")).unwrap();
    let named = manifest.lines().filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    let named: BTreeSet<&str> = named.filter(|name| *name != "brigade-fuzz").collect();
    assert_eq!(named, TARGETS.iter().map(|target| target.name).collect::<BTreeSet<_>>());
}
