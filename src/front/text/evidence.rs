//! The evidence of a completed task in a few words.

use crate::domain::task::TaskResult;
use crate::domain::task::evidence::{Caveat, joined};
use crate::domain::task::verify_run::VerifyRun;
use crate::domain::text::{first_line, one_line};

/// Returns the evidence of a result: of Brigade, or else of its author.
pub(super) fn evidence_text(result: &TaskResult) -> String {
    short_evidence(result).unwrap_or_else(|| first_line(&result.evidence))
}

/// Returns a note with the evidence of its result. The evidence of Brigade comes first, without the command, which can be longer than
/// the note. That of the author comes last.
pub(super) fn with_evidence(note: &str, result: &TaskResult) -> String {
    let verdict = result.verify.as_ref().map(exit_text);
    let caveat = result.caveat().map(|caveat| caveat.to_string());
    match [verdict, caveat].into_iter().flatten().reduce(|verdict, caveat| format!("{verdict}, {caveat}")) {
        Some(evidence) => joined([evidence, note.to_owned()]),
        None => joined([note.to_owned(), first_line(&result.evidence)]),
    }
}

/// Returns the evidence of a result that its author did not give: `exit 0: make test` or `unverified`. `None` if there is only the
/// author's word.
fn short_evidence(result: &TaskResult) -> Option<String> {
    match (&result.verify, result.caveat()) {
        (Some(run), None) => Some(format!("{}: {}", exit_text(run), one_line(&run.command))),
        (Some(run), Some(caveat)) => Some(format!("{}, {caveat}: {}", exit_text(run), one_line(&run.command))),
        (None, caveat) => caveat.map(|caveat| caveat.to_string()),
    }
}

fn exit_text(run: &VerifyRun) -> String {
    run.exit_status.map_or_else(|| "no exit status".to_owned(), |status| format!("exit {status}"))
}

/// Returns a sentence about the weakness of a result's evidence.
pub fn caveat_sentence(caveat: Caveat) -> &'static str {
    match caveat {
        Caveat::Unverified => "Unverified: the task has no verify command, and its agent ended without a report.",
        Caveat::NothingRan => "The verify command exited 0, but it ran no tests.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_evidence_names_command_or_caveat() {
        let verified = |output: &str| TaskResult {
            verify: Some(VerifyRun::new("make\ntest", Some(0), output)),
            ..TaskResult::new("Done.", "verify exited 0")
        };
        let unverified = TaskResult { unverified: true, ..TaskResult::new("Done.", "merged into main as 4f2a") };
        for (result, expected) in [
            (verified("ok"), Some("exit 0: make test")),
            (verified("Ran 0 tests in 0.000s"), Some("exit 0, no tests ran: make test")),
            (unverified, Some("unverified")),
            (TaskResult::new("Done.", "commit 4f2a"), None),
        ] {
            assert_eq!(short_evidence(&result).as_deref(), expected);
        }
        assert_eq!(with_evidence("Done.", &verified("ok")), "exit 0; Done.");
        assert_eq!(with_evidence("Done.", &verified("Ran 0 tests in 0.000s")), "exit 0, no tests ran; Done.");
        assert_eq!(with_evidence("Done.", &TaskResult::new("Done.", "commit 4f2a")), "Done.; commit 4f2a");
    }
}
