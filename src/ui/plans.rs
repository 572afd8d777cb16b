//! Plans that teammates handed in, as people read them.

use std::fmt::Write as _;

use super::style::{BOLD, DIM, PLAIN, WARN, paint};
use super::table::{Cell, Column, Table};
use super::text::{ago, indented, one_line};
use crate::domain::name::HUMAN;
use crate::domain::request::Request;
use crate::domain::time::UnixMs;

/// A plan's lines begin behind so many spaces.
const INDENT: usize = 2;

/// The plans that wait for an answer.
#[must_use]
pub fn list(plans: &[&Request], now: UnixMs, columns: usize) -> String {
    if plans.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        Column::new("ID"),
        Column::new("FROM"),
        Column::new("SINCE"),
        Column::new("WAITS FOR"),
        Column::flexible("PLAN"),
    ]);
    for plan in plans {
        table.row(vec![
            Cell::new(&plan.id, BOLD),
            Cell::new(&plan.from, PLAIN),
            Cell::new(&ago(plan.at, now), DIM),
            Cell::new(whom(plan), if plan.to == HUMAN { WARN } else { PLAIN }),
            Cell::new(&plan.plan, PLAIN),
        ]);
    }
    table.render(columns)
}

/// One plan, whole, and its answer where there is one.
#[must_use]
pub fn whole(plan: &Request, now: UnixMs, columns: usize) -> String {
    let stands = match &plan.answer {
        None => format!("waits for {}", whom(plan)),
        Some(answer) => format!("{} {}", answer.in_short(), ago(answer.at, now)),
    };
    let about = format!("plan {}, {}, {stands}", one_line(&plan.id), ago(plan.at, now));
    let mut out = format!("{} {}\n", paint(BOLD, &one_line(&plan.from)), paint(DIM, &about));
    let text = if plan.plan.is_empty() { "(its text is in the mail that brought it)" } else { &plan.plan };
    out.push_str(&indented(text.trim_end(), columns, INDENT));
    if let Some(answer) = plan.answer.as_ref().filter(|answer| !answer.text.is_empty()) {
        let _ = writeln!(out, "{}", paint(BOLD, &one_line(&answer.by)));
        out.push_str(&indented(answer.text.trim_end(), columns, INDENT));
    }
    out
}

/// How a person answers a plan.
#[must_use]
pub fn how_to_answer(id: &str) -> String {
    format!("brigade plan approve {id}, or brigade plan reject {id} --feedback TEXT")
}

fn whom(plan: &Request) -> &str {
    if plan.to == HUMAN { "you" } else { &plan.to }
}
