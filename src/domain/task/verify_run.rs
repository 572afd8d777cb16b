//! The run of a verify command. Some test runners exit 0 if they find no test, which shows nothing; their output says so.

use std::sync::LazyLock;

use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::domain::log::snapshot::is_default;
use crate::domain::text::tail;

/// A run of a verify command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VerifyRun {
    /// The command.
    pub command: String,
    /// Its exit status; `None` if a signal or a timeout ended it.
    #[serde(default, rename = "exitStatus")]
    pub exit_status: Option<i32>,
    /// The end of its output, at most [`OUTPUT_TAIL_BYTES_MAX`] bytes.
    #[serde(default, rename = "outputTail")]
    pub output_tail: String,
    /// True if it exited 0 and its output says that no test ran.
    #[serde(default, rename = "nothingRan", skip_serializing_if = "is_default")]
    pub nothing_ran: bool,
}

/// Maximum size of a verify command's output in a task's result, in bytes.
pub const OUTPUT_TAIL_BYTES_MAX: usize = 2000;

impl VerifyRun {
    /// Creates the record of a run of `command`. Keeps the end of `output`.
    pub fn new(command: &str, exit_status: Option<i32>, output: &str) -> Self {
        let output_tail = tail(output.trim_end(), OUTPUT_TAIL_BYTES_MAX).to_owned();
        let nothing_ran = exit_status == Some(0) && says_nothing_ran(output);
        Self { command: command.to_owned(), exit_status, output_tail, nothing_ran }
    }

    /// Returns its end in words: `exit status 1` or `no exit status`.
    pub fn exit_text(&self) -> String {
        self.exit_status.map_or_else(|| "no exit status".to_owned(), |status| format!("exit status {status}"))
    }
}

/// Lines of runners that found or ran no test.
static NONE_RAN: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let words = [
        "no tests (?:ran|found|were found|to run|executed|collected)",
        "no test (?:files found|modules found|is available|matches)",
        r"no examples found|\[no test files\]",
    ];
    lines("0", &format!("(?i:{})", words.join("|")))
});

/// Lines of runners that ran a test: the result of one test, of a package in Go, or a count of passed tests.
static SOME_RAN: LazyLock<Option<Regex>> =
    LazyLock::new(|| lines(r"[1-9]\d*", r"^ok(?:\t| [^|])| \.\.\. ok$|^--- PASS|[1-9]\d* passed"));

/// Returns the expression for lines that count this number of tests, and for `others`.
fn lines(number: &str, others: &str) -> Option<Regex> {
    let counts = [
        // unittest, cargo test, pytest, cargo nextest, XCTest
        format!("^(?:Ran|running|collected|Starting|Executed) {number} (?:test|item)"),
        // node --test
        format!(r"^[#ℹ] tests {number}\b"),
        // Maven
        format!(r"^(?:\[INFO\] )?Tests run: {number},"),
        // mocha, RSpec
        format!("^{number} (?:passing|example)"),
        // deno
        format!(r"^ok \| {number} passed"),
        // GoogleTest
        format!(r"^\[=+\] Running {number} tests? from"),
        // minitest
        format!(r"^{number} runs, \d+ assertions"),
        // TAP
        format!(r"^1\.\.{number}\b"),
    ];
    // The expressions are constant and covered by the tests below.
    Regex::new(&format!("{}|{others}", counts.join("|"))).ok()
}

/// Returns true if `output` says that no test ran, and no part of it says that one ran.
fn says_nothing_ran(output: &str) -> bool {
    let (Some(none_ran), Some(some_ran)) = (&*NONE_RAN, &*SOME_RAN) else { return false };
    let mut says_none = false;
    for line in output.lines().map(str::trim) {
        if none_ran.is_match(line) {
            says_none = true;
        } else if some_ran.is_match(line) {
            return false;
        }
    }
    says_none
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runners_that_ran_no_test_are_found() {
        for output in [
            "\n----------------------------------------------------------------------\nRan 0 tests in 0.000s\n\nOK",
            "============ test session starts ============\ncollected 0 items\n\n=== no tests ran in 0.01s ===",
            "running 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out",
            "running 0 tests\nrunning 0 tests\n",
            "No tests found, exiting with code 0\n",
            "No test files found, exiting with code 0",
            "?   \texample.com/a\t[no test files]\n?   \texample.com/b\t[no test files]",
            "testing: warning: no tests to run\nPASS\nok  \texample.com/a\t0.002s [no tests to run]",
            "  0 passing (1ms)",
            "# tests 0\n# pass 0\n# fail 0",
            "[INFO] Tests run: 0, Failures: 0, Errors: 0, Skipped: 0",
            "No examples found.\n\n0 examples, 0 failures",
            "No tests were found!!!",
            "ok | 0 passed | 0 failed (3ms)",
            "[==========] Running 0 tests from 0 test suites.\n[  PASSED  ] 0 tests.",
            "0 runs, 0 assertions, 0 failures, 0 errors, 0 skips",
            "TAP version 13\n1..0 # SKIP nothing to do",
            "Finished `test` profile in 0.1s\n\nrunning 0 tests\n\ntest result: ok. 0 passed; 0 failed",
        ] {
            assert!(says_nothing_ran(output), "{output}");
        }
    }

    #[test]
    fn one_run_test_is_enough() {
        for output in [
            "",
            "all good",
            "0 failed",
            "0 errors, 0 warnings",
            "17 modules are counted",
            "running 3 tests\ntest a ... ok\n\ntest result: ok. 3 passed; 0 failed\n\nrunning 0 tests\n\ntest result: ok. 0 passed; 0 failed",
            "running 0 tests\n\nrunning 1 test\ntest a ... ok",
            "Ran 12 tests in 0.3s\n\nOK",
            "collected 10 items\n\n=== 10 passed in 0.1s ===",
            "?   \texample.com/a\t[no test files]\nok  \texample.com/b\t0.002s",
            "?   \texample.com/a\t[no test files]\nok  \texample.com/b\t(cached)",
            "Ran 0 tests in 0.000s\n\nOK\n3 passed",
            "# tests 4\n# pass 4",
            "1 example, 0 failures",
            "100 examples, 0 failures",
            "ok | 2 passed | 0 failed (3ms)",
            "Tests:       5 passed, 5 total\nNo tests found related to files changed",
            "[INFO] Tests run: 5, Failures: 0\n[INFO] No tests to run.",
            "he was running 0 tests",
            "[==========] Running 2 tests from 1 test suite.",
            "10 runs, 12 assertions, 0 failures, 0 errors, 0 skips",
            "1..2\nok 1\nok 2",
        ] {
            assert!(!says_nothing_ran(output), "{output}");
        }
    }
}
