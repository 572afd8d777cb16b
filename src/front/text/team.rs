//! The view of a team: its state and its members.

use std::fmt::Write as _;

use super::cost::grouped;
use super::lead_status;
use super::lines::{ago, wrap};
use super::live::{self, status_style};
use super::style::{BAD, BOLD, DIM, GOOD, PLAIN, WARN, paint};
use super::table::{Cell, Table};
use crate::api::team::{MemberView, TeamProcess, TeamState, TeamView, VisibleStatus};
use crate::domain::team::state::SetBy;
use crate::domain::text::one_line;
use crate::domain::time::UnixMs;

/// Returns `state pause`, or `desired state run_once, current state pause` if they differ. `None` before the first request.
pub fn modes(state: &TeamState) -> Option<String> {
    let desired = state.desired?;
    let current = state.current.unwrap_or(desired);
    Some(if desired == current {
        format!("state {current}")
    } else {
        format!("desired state {desired}, current state {current}")
    })
}

/// Returns the modes and the reason, in one line.
fn state_text(state: &TeamState) -> Option<String> {
    let note = if state.note.is_empty() { String::new() } else { format!(": {}", one_line(&state.note)) };
    Some(format!("{}{note}", modes(state)?))
}

/// Returns whether the team runs, and in which process. For a process in trouble a second line has the remedy.
pub fn process(process: &TeamProcess) -> String {
    match (process.pid, process.health) {
        (Some(pid), Some(health)) => {
            let message = format!("{} (pid {pid})", lead_status::message(health));
            format!("{}\n{}", paint(BAD, &message), paint(DIM, &lead_status::hint(health, pid).to_string()))
        }
        (Some(pid), None) if process.running => paint(GOOD, &format!("is running (pid {pid})")),
        _ if process.running => paint(GOOD, "is running"),
        _ => paint(DIM, "is not running"),
    }
}

fn tokens_text(member: &MemberView) -> String {
    match member.budget.tokens {
        Some(limit) => format!("{} of {}", grouped(member.tokens), grouped(limit)),
        None if member.tokens == 0 => String::new(),
        None => grouped(member.tokens),
    }
}

fn cost_text(member: &MemberView) -> String {
    match member.budget.usd {
        Some(limit) => format!("${:.2} of ${limit:.2}", member.cost_usd),
        None if member.cost_usd > 0.0 => format!("${:.2}", member.cost_usd),
        None => String::new(),
    }
}

/// The team as text, at most `columns` wide.
pub fn render(view: &TeamView, now: UnixMs, columns: usize) -> String {
    let mut out = format!("{} {}\n", paint(BOLD, &one_line(&view.team)), process(&view.process));
    if let Some(state) = state_text(&view.state) {
        let _ = writeln!(out, "{}", paint(DIM, &super::lines::cut(&state, columns)));
    }
    if let Some(reason) = &view.waiting_for {
        out.push_str(&paint(WARN, &wrap(&format!("waits for {}", one_line(&reason.to_string())), columns, 0)));
        out.push('\n');
    }
    if let Some(counts) = view.task_counts {
        let _ = writeln!(out, "{}", live::progress(counts, view.answers_needed, view.process.running, columns));
    }
    out.push('\n');
    out + &members(view, now).render_table_or_list(columns)
}

/// Returns the author of a state, as people call it; `None` if it is not known.
pub fn setter(set_by: &SetBy) -> Option<String> {
    match set_by {
        SetBy::Brigade => Some("Brigade".to_owned()),
        SetBy::Other(word) if word.is_empty() => None,
        SetBy::Person | SetBy::Other(_) => Some(one_line(set_by.as_word())),
    }
}

/// The members as a table, the lead first.
pub fn members(view: &TeamView, now: UnixMs) -> Table {
    let mut table = Table::new(&["NAME", "ROLE", "STATUS", "SINCE", "TASK", "TOKENS", "COST", "WAITS FOR"])
        .numbers(&["TOKENS", "COST"])
        .flexible(&["NAME", "ROLE", "TASK", "WAITS FOR"])
        .optional(&["ROLE", "SINCE", "TOKENS", "COST"]);
    for member in view.rows() {
        let subject = member.subject.as_deref().unwrap_or_default();
        let task = member.task.map(|task| format!("{task} {subject}")).unwrap_or_default();
        table.row(vec![
            Cell::new(&member.name, BOLD),
            Cell::new(&member.role, PLAIN),
            status_cell(member),
            Cell::new(&member.since.map(|since| ago(since, now)).unwrap_or_default(), DIM),
            Cell::new(&task, PLAIN),
            Cell::new(&tokens_text(member), PLAIN),
            Cell::new(&cost_text(member), PLAIN),
            Cell::new(&member.waiting_for.as_ref().map(ToString::to_string).unwrap_or_default(), DIM),
        ]);
    }
    table
}

/// The status of a member, with the model that answers in place of its own one.
fn status_cell(member: &MemberView) -> Cell {
    let status = VisibleStatus::of(member);
    match &member.fallback {
        Some(model) => Cell::new(&format!("{}, fallback {model}", status.word()), WARN),
        None => Cell::new(status.word(), status_style(status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::log::event::TaskCounts;
    use crate::domain::task::TaskId;
    use crate::domain::team::phase::ReportedPhase;
    use crate::domain::team::state::Mode;
    use crate::domain::team::waiting_for::WaitingFor;

    #[test]
    fn team_view_shows_status_of_each_member() {
        let alice = MemberView {
            name: "alice".into(),
            role: "coder".into(),
            phase: ReportedPhase::Work,
            task: Some(TaskId(3)),
            attempt: Some(2),
            subject: Some("Count lines per module".into()),
            since: Some(UnixMs(1_000)),
            tokens: 18_234,
            cost_usd: 0.0712,
            ..MemberView::default()
        };
        let bob = MemberView {
            name: "bob".into(),
            role: "tester".into(),
            phase: ReportedPhase::Idle,
            waiting_for: Some(WaitingFor::MailOrTask),
            fallback: Some("m-2".into()),
            ..MemberView::default()
        };
        let view = TeamView {
            team: "my-team".into(),
            state: TeamState {
                desired: Some(Mode::RunOnce),
                current: Some(Mode::RunOnce),
                set_by: SetBy::Person,
                note: String::new(),
            },
            task_counts: Some(TaskCounts { completed: 7, in_progress: 1, pending: 2, ..TaskCounts::default() }),
            answers_needed: 1,
            waiting_for: None,
            process: TeamProcess { running: true, pid: Some(4021), health: None },
            lead: None,
            members: vec![alice, bob],
            next: Vec::new(),
        };
        insta::assert_snapshot!(anstream::adapter::strip_str(&render(&view, UnixMs(13_000), 100)).to_string());
        let narrow = anstream::adapter::strip_str(&render(&view, UnixMs(13_000), 40)).to_string();
        assert!(narrow.replace("\n  ", " ").contains("waits for mail or a claimable task\n"), "{narrow}");
        assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
    }
}
