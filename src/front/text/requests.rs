//! Views of the requests that wait for approval: plans, reviews and permissions.

use super::commands::{Commands, Hint, hint};
use super::lines::{ago, chunks, indented};
use super::markdown;
use super::style::{BAD, BOLD, DIM, GOOD, PLAIN, WARN, paint};
use super::table::{Cell, Table};
use crate::api::Question;
use crate::api::request::steps;
use crate::domain::task::verify_run::VerifyRun;
use crate::domain::team::approval::{Request, RequestKind, WorkReport};
use crate::domain::team::name::HUMAN;
use crate::domain::team::request_text::{RequestLine, whole};
use crate::domain::text::one_line;
use crate::domain::time::UnixMs;

/// Spaces before the details of a request.
const INDENT: usize = 2;

/// Returns the table of requests that wait for an answer. Each row is followed by the text of its request, which no terminal cuts.
pub fn list(requests: &[&Request], now: UnixMs, columns: usize, commands: &Commands) -> String {
    if requests.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["ID", "FROM", "SINCE", "WAITS FOR"]);
    for request in requests {
        table.row(vec![
            Cell::new(&request.id, BOLD),
            Cell::new(&request.from, PLAIN),
            Cell::new(&ago(request.at, now), DIM),
            Cell::new(responder(request), if request.to == HUMAN { WARN } else { PLAIN }),
        ]);
    }
    let table = table.render(columns);
    let mut rows = table.split_inclusive('\n');
    let mut out = rows.next().unwrap_or_default().to_owned();
    for (row, request) in rows.zip(requests) {
        out.push_str(row);
        out.push_str(&indented(&commands.text(&title(request)), columns, INDENT));
    }
    out
}

/// Returns one request in full, with its answer.
pub fn card(request: &Request, now: UnixMs, columns: usize, renders_markdown: bool) -> String {
    let subject = request.report.as_ref().map(|_| format!(": {}", title(request))).unwrap_or_default();
    let attempt = request.about.as_ref().map(|about| format!(", attempt {}", about.attempt)).unwrap_or_default();
    let (sent, state) = (ago(request.at, now), state(request, now));
    let about = format!("by {}{attempt}, {sent}, {state}", one_line(&request.from));
    let heading = format!("{} {}{subject}", request.kind.noun(), one_line(&request.id));
    let mut out = format!("{}\n{}", paint(BOLD, &heading), indented(&about, columns, INDENT));
    out.push_str(&details(request, columns, renders_markdown));
    if let Some(answer) = request.answer.as_ref().filter(|answer| !answer.text.trim().is_empty()) {
        out.push_str(&paint(BOLD, &format!("{} answered:", one_line(&answer.by))));
        out.push('\n');
        out.push_str(&markdown::body(&answer.text, columns, INDENT, renders_markdown));
    }
    out
}

/// Returns `waits for you`, or the answer.
fn state(request: &Request, now: UnixMs) -> String {
    match &request.answer {
        None => format!("waits for {}", responder(request)),
        Some(answer) => format!("{} {}", answer.summary(), ago(answer.at, now)),
    }
}

/// Returns the status of one request in one line, followed by the lines of its answer.
pub fn summary(request: &Request, now: UnixMs) -> String {
    let head = format!("{} by {}", one_line(&request.id), one_line(&request.from));
    match request.answer.as_ref().map(|answer| answer.text.trim()) {
        None => format!("{head}, sent {}: {}", ago(request.at, now), state(request, now)),
        Some("") => format!("{head}: {}", state(request, now)),
        Some(text) => format!("{head}: {}: {text}", state(request, now)),
    }
}

/// `#1 Change the data`, or the text of a request without a report on one line.
pub fn title(request: &Request) -> Hint {
    match (&request.about, &request.report) {
        (Some(about), Some(report)) => format!("{} {}", about.task, one_line(&report.subject)).into(),
        (_, _) => line(request),
    }
}

/// The plan or the call on one line. A cut text ends with the command that shows all of it.
pub fn line(request: &Request) -> Hint {
    let RequestLine { text, hidden } = RequestLine::of(&request.plan);
    let Some(hidden) = hidden else { return text.into() };
    let show = Question::Request { kind: request.kind, id: Some(request.id.clone()) };
    hint![format!("{text} … {hidden}: "), show]
}

/// The plan, the call, or the report of the work. A review of an older version has only the text for its reviewer.
pub fn details(request: &Request, columns: usize, renders_markdown: bool) -> String {
    match &request.report {
        Some(report) => report_lines(report, columns, renders_markdown),
        None if request.plan.is_empty() => indented("(the text is in the message that sent it)", columns, INDENT),
        None if request.kind == RequestKind::Permission => call_lines(request, columns),
        None => markdown::body(&request.plan, columns, INDENT, renders_markdown),
    }
}

/// The whole call, with all its spaces, and its digest.
fn call_lines(request: &Request, columns: usize) -> String {
    let margin = " ".repeat(INDENT);
    let mut out = String::new();
    for line in whole(&request.plan).split('\n') {
        for part in chunks(line, columns.saturating_sub(INDENT).max(2)) {
            out.push_str(&format!("{margin}{part}\n"));
        }
    }
    out + &paint(BOLD, &format!("digest {}", request.digest())) + "\n"
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

/// Returns `waits for your review 4910291a`, a note for the task.
pub fn waits_for(request: &Request) -> String {
    let whose = if request.to == HUMAN { "your".to_owned() } else { format!("{}'s", one_line(&request.to)) };
    let id = one_line(&request.id);
    match request.kind {
        RequestKind::Review => format!("waits for {whose} review {id}"),
        _ => format!("waits for {whose} answer to {} {id}", request.kind.noun()),
    }
}

/// Returns the commands that answer a request.
pub fn how_to_answer(request: &Request) -> Hint {
    let [show, approve, reject] = steps(request, None);
    let is_cut = request.approved_digest(None).is_err();
    let show = if is_cut { hint![show, " shows the rest and the digest; then "] } else { Hint::default() };
    let is_permission = request.kind == RequestKind::Permission;
    let for_run = if is_permission { ", with `--for-run` for the rest of the run" } else { "" };
    hint![show, approve, for_run, ", or ", reject]
}

pub(super) fn responder(request: &Request) -> &str {
    if request.to == HUMAN { "you" } else { &request.to }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::task::TaskId;
    use crate::domain::team::approval::ReviewSubject;

    #[test]
    fn review_card_speaks_to_the_person() {
        let about = ReviewSubject { task: TaskId(1), attempt: 2, claimed_at: UnixMs(0), failures: 0, commit: None };
        let report = WorkReport {
            subject: "Change the data\u{1b}[2J".into(),
            summary: "Changed it.\n- twice".into(),
            is_implicit: false,
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
}
