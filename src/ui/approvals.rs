//! Views of plans and reviews that wait for approval.

use std::fmt::Write as _;

use super::command_form::shell_word;
use super::markdown;
use super::style::{BOLD, DIM, PLAIN, WARN, paint};
use super::table::{Cell, Column, Table};
use super::text::{ago, one_line};
use crate::domain::approval::{Request, RequestKind};
use crate::domain::name::HUMAN;
use crate::domain::time::UnixMs;

const INDENT: usize = 2;

/// Returns the table of requests that wait for an answer.
pub fn list(requests: &[&Request], now: UnixMs, columns: usize) -> String {
    if requests.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        Column::new("ID"),
        Column::new("FROM"),
        Column::new("SINCE"),
        Column::new("WAITS FOR"),
        Column::flexible("WHAT"),
    ]);
    for request in requests {
        table.row(vec![
            Cell::new(&request.id, BOLD),
            Cell::new(&request.from, PLAIN),
            Cell::new(&ago(request.at, now), DIM),
            Cell::new(responder(request), if request.to == HUMAN { WARN } else { PLAIN }),
            Cell::new(&super::review::title(request), PLAIN),
        ]);
    }
    table.render(columns)
}

/// Returns one request in full, with its answer.
pub fn card(request: &Request, now: UnixMs, columns: usize, renders_markdown: bool) -> String {
    let status = match &request.answer {
        None => format!("waits for {}", responder(request)),
        Some(answer) => format!("{} {}", answer.summary(), ago(answer.at, now)),
    };
    let about = format!("{} {}, {}, {status}", request.kind.noun(), one_line(&request.id), ago(request.at, now));
    let mut out = format!("{} {}\n", paint(BOLD, &one_line(&request.from)), paint(DIM, &about));
    let text = if request.plan.is_empty() { "(the text is in the message that sent it)" } else { &request.plan };
    out.push_str(&markdown::body(text, columns, INDENT, renders_markdown));
    if let Some(answer) = request.answer.as_ref().filter(|answer| !answer.text.is_empty()) {
        let _ = writeln!(out, "{}", paint(BOLD, &one_line(&answer.by)));
        out.push_str(&markdown::body(&answer.text, columns, INDENT, renders_markdown));
    }
    out
}

/// Returns the status of one request in one line, followed by the lines of its answer.
pub fn summary(request: &Request, now: UnixMs) -> String {
    let head = format!("{} by {}", one_line(&request.id), one_line(&request.from));
    match &request.answer {
        None => format!("{head}, sent {}: waits for {}", ago(request.at, now), responder(request)),
        Some(answer) if answer.text.trim().is_empty() => {
            format!("{head}: {} {}", answer.summary(), ago(answer.at, now))
        }
        Some(answer) => format!("{head}: {} {}: {}", answer.summary(), ago(answer.at, now), answer.text.trim()),
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

/// Returns the commands that show, approve and reject a request of this kind.
pub fn commands(kind: RequestKind, id: &str) -> [String; 3] {
    let (noun, id) = (kind.noun(), shell_word(id));
    let reject = format!("`brigade {noun} reject {id} --feedback TEXT`");
    [format!("`brigade {noun} show {id}`"), format!("`brigade {noun} approve {id}`"), reject]
}

/// Returns the commands that answer a request of this kind.
pub fn how_to_answer(kind: RequestKind, id: &str) -> String {
    let [_, approve, reject] = commands(kind, id);
    let for_run = if kind == RequestKind::Permission { ", with `--for-run` for the rest of the run" } else { "" };
    format!("{approve}{for_run}, or {reject}")
}

pub(super) fn responder(request: &Request) -> &str {
    if request.to == HUMAN { "you" } else { &request.to }
}
