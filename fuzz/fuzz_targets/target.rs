//! Runs libFuzzer on one target of `tests/parsers/targets.rs`: the one with the name of this program.

#![no_main]

#[allow(dead_code, reason = "only the tests use the samples; start a corpus with `tests/contracts`")]
#[path = "../../tests/parsers/targets.rs"]
mod targets;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let name = env!("CARGO_BIN_NAME");
    let target = targets::TARGETS.iter().find(|target| target.name == name).expect("a target of this name");
    (target.run)(bytes);
});
