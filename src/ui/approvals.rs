//! Plans and work that teammates handed in to be approved, as people read them.

use std::fmt::Write as _;

use super::style::{BOLD, DIM, PLAIN, WARN, paint};
use super::table::{Cell, Column, Table};
use super::text::{ago, indented, one_line};
use crate::domain::name::HUMAN;
use crate::domain::request::{Request, RequestKind};
use crate::domain::time::UnixMs;

/// The lines of what was handed in begin behind so many spaces.
const INDENT: usize = 2;

/// What waits for an answer.
#[must_use]
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
            Cell::new(whom(request), if request.to == HUMAN { WARN } else { PLAIN }),
            Cell::new(&request.plan, PLAIN),
        ]);
    }
    table.render(columns)
}

/// One request, whole, and its answer where there is one.
#[must_use]
pub fn whole(request: &Request, now: UnixMs, columns: usize) -> String {
    let stands = match &request.answer {
        None => format!("waits for {}", whom(request)),
        Some(answer) => format!("{} {}", answer.in_short(), ago(answer.at, now)),
    };
    let about = format!("{} {}, {}, {stands}", request.kind.noun(), one_line(&request.id), ago(request.at, now));
    let mut out = format!("{} {}\n", paint(BOLD, &one_line(&request.from)), paint(DIM, &about));
    let text = if request.plan.is_empty() { "(its text is in the mail that brought it)" } else { &request.plan };
    out.push_str(&indented(text.trim_end(), columns, INDENT));
    if let Some(answer) = request.answer.as_ref().filter(|answer| !answer.text.is_empty()) {
        let _ = writeln!(out, "{}", paint(BOLD, &one_line(&answer.by)));
        out.push_str(&indented(answer.text.trim_end(), columns, INDENT));
    }
    out
}

/// What became of one request, in a line and the lines of its answer.
#[must_use]
pub fn in_short(request: &Request, now: UnixMs) -> String {
    let asked = format!("{} of {}", one_line(&request.id), one_line(&request.from));
    match &request.answer {
        None => format!("{asked}, asked {}: waits for {}", ago(request.at, now), whom(request)),
        Some(answer) if answer.text.trim().is_empty() => {
            format!("{asked}: {} {}", answer.in_short(), ago(answer.at, now))
        }
        Some(answer) => format!("{asked}: {} {}: {}", answer.in_short(), ago(answer.at, now), answer.text.trim()),
    }
}

/// `waits for your review 4910291a`: for where a task stands.
#[must_use]
pub fn waits_for(request: &Request) -> String {
    let whose = if request.to == HUMAN { "your".to_owned() } else { format!("{}'s", one_line(&request.to)) };
    let id = one_line(&request.id);
    match request.kind {
        RequestKind::Review => format!("waits for {whose} review {id}"),
        _ => format!("waits for {whose} answer to {} {id}", request.kind.noun()),
    }
}

/// How a person answers a request of this kind.
#[must_use]
pub fn how_to_answer(kind: RequestKind, id: &str) -> String {
    let noun = kind.noun();
    format!("brigade {noun} approve {id}, or brigade {noun} reject {id} --feedback TEXT")
}

fn whom(request: &Request) -> &str {
    if request.to == HUMAN { "you" } else { &request.to }
}
