//! libFuzzer on one target of `tests/parsers/targets.rs`: the one this program is called like.

#![no_main]

#[allow(dead_code, reason = "the samples are for tests; a corpus is begun with `tests/contracts`")]
#[path = "../../tests/parsers/targets.rs"]
mod targets;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let name = env!("CARGO_BIN_NAME");
    let target = targets::TARGETS.iter().find(|target| target.name == name).expect("a target of this name");
    (target.run)(bytes);
});
