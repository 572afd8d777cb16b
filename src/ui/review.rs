//! A review as the person reads it: the task, the report of its author, and the diff.

use std::fmt::Write as _;

use super::markdown;
use super::style::{BAD, BOLD, BUSY, DIM, GOOD, PLAIN, WARN, paint};
use super::text::{ago, indented, one_line, printable};
use crate::domain::approval::{Request, WorkReport};
use crate::domain::time::UnixMs;
use crate::domain::verify_run::VerifyRun;

/// Spaces before the details of a review.
const INDENT: usize = 2;

/// The task, the author, the state, the report and the answer.
pub fn card(request: &Request, now: UnixMs, columns: usize, renders_markdown: bool) -> String {
    let state = match &request.answer {
        None => format!("waits for {}", super::approvals::responder(request)),
        Some(answer) => format!("{} {}", answer.summary(), ago(answer.at, now)),
    };
    let attempt = request.about.as_ref().map_or_else(String::new, |about| format!(", attempt {}", about.attempt));
    let mut out = format!(
        "{}\n{}",
        paint(BOLD, &format!("review {}: {}", one_line(&request.id), title(request))),
        indented(
            &format!("by {}{attempt}, {}, {state}", one_line(&request.from), ago(request.at, now)),
            columns,
            INDENT
        )
    );
    out.push_str(&details(request, columns, renders_markdown));
    if let Some(answer) = request.answer.as_ref().filter(|answer| !answer.text.trim().is_empty()) {
        let _ = writeln!(out, "{}", paint(BOLD, &format!("{} answered:", one_line(&answer.by))));
        out.push_str(&markdown::body(&answer.text, columns, INDENT, renders_markdown));
    }
    out
}

/// `#1 Change the data`, or the first line of a request without a report.
pub fn title(request: &Request) -> String {
    match (&request.about, &request.report) {
        (Some(about), Some(report)) => format!("{} {}", about.task, one_line(&report.subject)),
        (_, _) => one_line(request.plan.lines().next().unwrap_or_default()),
    }
}

/// The report of the work. A review of an older version has only the text for its reviewer.
pub fn details(request: &Request, columns: usize, renders_markdown: bool) -> String {
    match &request.report {
        Some(report) => report_lines(report, columns, renders_markdown),
        None => indented(request.plan.trim_end(), columns, INDENT),
    }
}

fn report_lines(report: &WorkReport, columns: usize, renders_markdown: bool) -> String {
    let mut out = String::new();
    if let Some(run) = &report.verify {
        out.push_str(&paint(verify_style(run), indented(&verify_line(run), columns, INDENT).trim_end()));
        out.push('\n');
        if run.exit_status != Some(0) && !run.output_tail.trim().is_empty() {
            out.push_str(&paint(DIM, &indented(run.output_tail.trim_end(), columns, 2 * INDENT)));
        }
    }
    if report.summary.trim().is_empty() {
        out.push_str(&paint(DIM, &indented("no description of the result", columns, INDENT)));
    } else {
        out.push_str(&markdown::body(&report.summary, columns, INDENT, renders_markdown));
    }
    out
}

fn verify_style(run: &VerifyRun) -> anstyle::Style {
    match run.exit_status {
        Some(0) if run.nothing_ran => WARN,
        Some(0) => GOOD,
        _ => BAD,
    }
}

/// `verify passed: make test (exit 0)`.
pub(super) fn verify_line(run: &VerifyRun) -> String {
    let command = one_line(&run.command);
    match run.exit_status {
        Some(0) if run.nothing_ran => format!("verify passed: {command} (exit 0, no tests ran)"),
        Some(0) => format!("verify passed: {command} (exit 0)"),
        Some(status) => format!("verify failed: {command} (exit {status})"),
        None => format!("verify failed: {command} (stopped before it ended)"),
    }
}

/// A diff of git, coloured and without anything that a terminal obeys.
pub fn diff(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 4);
    let mut is_header = true;
    for line in text.split_terminator('\n') {
        if line.starts_with("diff --git ") {
            is_header = true;
        } else if line.starts_with("@@ ") {
            is_header = false;
        }
        let style = match line.as_bytes().first() {
            _ if is_header => BOLD,
            Some(b'@') => BUSY,
            Some(b'+') => GOOD,
            Some(b'-') => BAD,
            _ => PLAIN,
        };
        out.push_str(&paint(style, &printable(line)));
        out.push('\n');
    }
    out
}

/// The changed lines per file, as git summarises them.
pub fn diff_summary(text: &str) -> String {
    text.split_terminator('\n').map(|line| format!("{}{}\n", " ".repeat(INDENT), printable(line).trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::approval::{RequestKind, ReviewSubject};
    use crate::domain::name::HUMAN;
    use crate::domain::task::TaskId;

    #[test]
    fn review_card_speaks_to_the_person() {
        let about = ReviewSubject { task: TaskId(1), attempt: 2, claimed_at: UnixMs(0), failures: 0, commit: None };
        let report = WorkReport {
            subject: "Change the data\u{1b}[2J".into(),
            summary: "Changed it.\n- twice".into(),
            verify: Some(VerifyRun::new("make test", Some(0), "ok")),
        };
        let request = Request {
            about: Some(about),
            report: Some(report),
            ..Request::new("a0ae1d97", RequestKind::Review, "bob", HUMAN, UnixMs(1_000))
        };
        let shown = anstream::adapter::strip_str(&card(&request, UnixMs(13_000), 80, false)).to_string();
        assert_eq!(
            shown,
            "review a0ae1d97: #1 Change the data\\u{1b}[2J\n  by bob, attempt 2, 12 s ago, waits for you\n  \
             verify passed: make test (exit 0)\n  Changed it.\n  - twice\n"
        );
    }

    #[test]
    fn diff_is_coloured_and_escaped() {
        let text = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new \u{1b}]0;title\u{7}\n same\r\n";
        let shown = diff(text);
        assert!(shown.contains("\u{1b}[32m+new \\u{1b}]0;title\\u{7}"), "{shown:?}");
        assert!(shown.contains("\u{1b}[31m-old") && shown.contains("\u{1b}[1m--- a/x"), "{shown:?}");
        assert!(shown.contains(" same\\r\n"), "{shown:?}");
    }
}
