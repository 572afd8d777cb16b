//! Whatever the bytes are: no parser panics, none takes for ever, and what is written again keeps what it did not understand. Each
//! target of `tests/parsers/targets.rs` is tried with what is hard and with samples changed at random by a seed.
//!
//! `BRIGADE_FUZZ_COUNT=1000000 BRIGADE_FUZZ_TARGET=plan cargo test --test parsers` goes on for longer; what fails prints the command
//! that repeats it. `fuzz/` has the same targets for libFuzzer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "what fails in a test is to stop it")]

#[path = "parsers/mutations.rs"]
mod mutations;
#[path = "parsers/targets.rs"]
mod targets;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use targets::{TARGETS, Target};

/// Changed samples of each target in an ordinary run.
const COUNT: u64 = 400;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

/// Tries a target with these bytes; what fails is told with what made it fail.
fn attempt(target: &Target, bytes: &[u8], how: &str) {
    if catch_unwind(AssertUnwindSafe(|| (target.run)(bytes))).is_err() {
        let shown = bytes[..bytes.len().min(2000)].escape_ascii();
        panic!("{} fails with {} bytes; {how}\n{shown}", target.name, bytes.len());
    }
}

#[test]
fn parsers_stand_what_is_hard() {
    for target in wanted() {
        for (place, bytes) in mutations::hard(target.samples).iter().enumerate() {
            attempt(target, bytes, &format!("it is number {place} of what is hard"));
        }
    }
}

fn wanted() -> impl Iterator<Item = &'static Target> {
    let name = std::env::var("BRIGADE_FUZZ_TARGET").ok();
    TARGETS.iter().filter(move |target| name.as_ref().is_none_or(|name| *name == target.name))
}

#[test]
fn parsers_stand_samples_that_were_changed() {
    let first = number("BRIGADE_FUZZ_SEED").unwrap_or_else(|| fastrand::u64(..1 << 40));
    for target in wanted() {
        for seed in first..first + number("BRIGADE_FUZZ_COUNT").unwrap_or(COUNT) {
            let bytes = mutations::mutated(target.samples, &mut fastrand::Rng::with_seed(seed));
            let name = target.name;
            let again = format!(
                "again: BRIGADE_FUZZ_TARGET={name} BRIGADE_FUZZ_SEED={seed} BRIGADE_FUZZ_COUNT=1 cargo test --test parsers changed"
            );
            attempt(target, &bytes, &again);
        }
    }
}

#[test]
fn samples_are_what_they_are_samples_of() {
    // A target whose samples were not parsed would try nothing.
    let parsed = |name: &str| {
        let target = TARGETS.iter().find(|target| target.name == name).unwrap();
        target.samples.to_vec()
    };
    for line in parsed("ledger").concat().split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        serde_json::from_slice::<brigade::domain::spend::LedgerLine>(line).unwrap();
    }
    for book in parsed("requests") {
        serde_json::from_slice::<brigade::domain::request::RequestBook>(book).unwrap();
    }
    for text in parsed("plan") {
        assert!(brigade::domain::plan::parse("plan.md", std::str::from_utf8(text).unwrap()).is_ok());
    }
    for line in parsed("events").concat().split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        serde_json::from_slice::<brigade::domain::event::Event>(line).unwrap();
    }
}

#[test]
fn libfuzzer_has_every_target() {
    let manifest = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/Cargo.toml")).unwrap();
    let named = manifest.lines().filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    let named: BTreeSet<&str> = named.filter(|name| *name != "brigade-fuzz").collect();
    assert_eq!(named, TARGETS.iter().map(|target| target.name).collect::<BTreeSet<_>>());
}
