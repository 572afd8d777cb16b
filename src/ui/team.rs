//! The view of a team: its state and its members.

use std::fmt::Write as _;

use serde::Serialize;

use super::cost::grouped;
use super::lead_health::LeadHealth;
use super::live::{self, VisibleStatus};
use super::style::{BAD, BOLD, DIM, GOOD, PLAIN, WARN, paint};
use super::table::{Cell, Table};
use super::text::{ago, one_line, wrap};
use crate::domain::budget::Budget;
use crate::domain::event::TaskCounts;
use crate::domain::phase::ReportedPhase;
use crate::domain::state::{Mode, SetBy};
use crate::domain::task::TaskId;
use crate::domain::time::UnixMs;
use crate::domain::waiting_for::WaitingFor;

/// A team at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TeamView {
    pub team: String,
    #[serde(flatten)]
    pub state: TeamState,
    /// The counts of all tasks of the board, if they are known.
    #[serde(rename = "tally", skip_serializing_if = "Option::is_none")]
    pub task_counts: Option<TaskCounts>,
    /// The number of questions, plans and reviews that wait for the person.
    #[serde(rename = "for_you")]
    pub answers_needed: usize,
    /// The reason why the team has no session, if its goal is not met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<WaitingFor>,
    #[serde(flatten)]
    pub process: TeamProcess,
    /// The lead, if it has a model and has reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lead: Option<MemberView>,
    pub members: Vec<MemberView>,
}

/// The state of a team: what a person or Brigade asked for, and what the team reports.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct TeamState {
    /// `None` before the first request.
    #[serde(rename = "desired_state")]
    pub desired: Option<Mode>,
    #[serde(rename = "current_state")]
    pub current: Option<Mode>,
    /// The author of the desired state.
    #[serde(rename = "setBy")]
    pub set_by: SetBy,
    /// The reason for the desired state.
    pub note: String,
}

impl TeamState {
    /// Returns `state pause`, or `desired state run_once, current state pause` if they differ.
    pub fn modes(&self) -> Option<String> {
        let desired = self.desired?;
        let current = self.current.unwrap_or(desired);
        Some(if desired == current {
            format!("state {current}")
        } else {
            format!("desired state {desired}, current state {current}")
        })
    }

    /// Returns the modes and the reason, in one line.
    fn text(&self) -> Option<String> {
        let note = if self.note.is_empty() { String::new() } else { format!(": {}", one_line(&self.note)) };
        Some(format!("{}{note}", self.modes()?))
    }
}

/// The process of a team.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct TeamProcess {
    /// True if the team runs.
    pub running: bool,
    /// The id of the process, if it is known.
    pub pid: Option<u32>,
    /// The trouble of the process, if it has one.
    #[serde(flatten)]
    pub health: Option<LeadHealth>,
}

impl TeamProcess {
    /// Returns whether the team runs, and in which process. For a process in trouble a second line has the remedy.
    pub fn text(&self) -> String {
        match (self.pid, self.health) {
            (Some(pid), Some(health)) => {
                let remedy = health.hint(pid);
                format!("{}\n{}", paint(BAD, &format!("{} (pid {pid})", health.message())), paint(DIM, &remedy))
            }
            (Some(pid), None) if self.running => paint(GOOD, &format!("is running (pid {pid})")),
            _ if self.running => paint(GOOD, "is running"),
            _ => paint(DIM, "is not running"),
        }
    }
}

/// A member at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct MemberView {
    pub name: String,
    pub role: String,
    pub phase: ReportedPhase,
    /// The task it holds.
    pub task: Option<TaskId>,
    pub attempt: Option<u32>,
    /// The subject of that task.
    pub subject: Option<String>,
    /// The start of the phase.
    pub since: Option<UnixMs>,
    pub heartbeat: Option<UnixMs>,
    /// The tokens it has used.
    pub tokens: u64,
    pub cost_usd: f64,
    /// The most that it may use.
    #[serde(skip_serializing_if = "is_unlimited")]
    pub budget: Budget,
    pub waiting_for: Option<WaitingFor>,
    /// The model that answers in place of its own one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
}

fn is_unlimited(budget: &Budget) -> bool {
    !budget.is_set()
}

impl MemberView {
    fn tokens_text(&self) -> String {
        match self.budget.tokens {
            Some(limit) => format!("{} of {}", grouped(self.tokens), grouped(limit)),
            None if self.tokens == 0 => String::new(),
            None => grouped(self.tokens),
        }
    }

    fn cost_text(&self) -> String {
        match self.budget.usd {
            Some(limit) => format!("${:.2} of ${limit:.2}", self.cost_usd),
            None if self.cost_usd > 0.0 => format!("${:.2}", self.cost_usd),
            None => String::new(),
        }
    }
}

impl TeamView {
    /// The lead, if it has a model, and the members.
    pub fn rows(&self) -> impl Iterator<Item = &MemberView> {
        self.lead.iter().chain(&self.members)
    }
}

/// The team as text, at most `columns` wide.
pub fn render(view: &TeamView, now: UnixMs, columns: usize) -> String {
    let mut out = format!("{} {}\n", paint(BOLD, &one_line(&view.team)), view.process.text());
    if let Some(state) = view.state.text() {
        let _ = writeln!(out, "{}", paint(DIM, &super::text::cut(&state, columns)));
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
            Cell::new(&member.tokens_text(), PLAIN),
            Cell::new(&member.cost_text(), PLAIN),
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
        None => Cell::new(status.word(), status.style()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        };
        insta::assert_snapshot!(anstream::adapter::strip_str(&render(&view, UnixMs(13_000), 100)).to_string());
        let narrow = anstream::adapter::strip_str(&render(&view, UnixMs(13_000), 40)).to_string();
        assert!(narrow.replace("\n  ", " ").contains("waits for mail or a claimable task\n"), "{narrow}");
        assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
    }
}
