//! The view of a team: its state and its members.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::lead_health::LeadHealth;
use super::live::{self, VisibleStatus};
use super::style::{BAD, BOLD, DIM, GOOD, PLAIN, WARN, paint};
use super::table::{Cell, Table};
use super::text::{ago, one_line, wrap};
use crate::domain::event::TaskCounts;
use crate::domain::state::Mode;
use crate::domain::task::TaskId;
use crate::domain::time::UnixMs;
use crate::domain::waiting_for::WaitingFor;

/// A team at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TeamView {
    pub team: String,
    /// The state that a person or Brigade asked for. `None` before the first request.
    pub desired_state: Option<Mode>,
    pub current_state: Option<Mode>,
    /// The name of the one who set the desired state.
    #[serde(rename = "setBy")]
    pub set_by: String,
    /// The reason for the desired state.
    pub note: String,
    /// The counts of all tasks of the board, if they are known.
    #[serde(rename = "tally", skip_serializing_if = "Option::is_none")]
    pub task_counts: Option<TaskCounts>,
    /// The number of questions, plans and reviews that wait for the person.
    pub for_you: usize,
    /// The reason why the team has no session, if its goal is not met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<WaitingFor>,
    pub running: bool,
    /// The process that runs the team.
    pub pid: Option<u32>,
    /// The time since the process's last heartbeat, if that is too long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_ms: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
    /// The lead, if it has a model and has reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lead: Option<MemberView>,
    pub members: Vec<MemberView>,
}

/// A member at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct MemberView {
    pub name: String,
    pub role: String,
    /// `work`, `idle`, `stopping`, `stopped`, `stalled` or `dead`. Empty before the first report.
    pub phase: String,
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
    pub waiting_for: Option<WaitingFor>,
}

impl TeamView {
    /// The lead, if it has a model, and the members.
    pub fn rows(&self) -> impl Iterator<Item = &MemberView> {
        self.lead.iter().chain(&self.members)
    }

    fn health(&self) -> Option<LeadHealth> {
        let silence = self.silent_ms.map(|ms| LeadHealth::Silent(Duration::from_millis(ms)));
        if self.suspended { Some(LeadHealth::Suspended) } else { silence }
    }
}

/// The team as text, at most `columns` wide.
pub fn render(view: &TeamView, now: UnixMs, columns: usize) -> String {
    let mut out = format!("{} {}\n", paint(BOLD, &one_line(&view.team)), running(view));
    if let Some(desired) = view.desired_state {
        let states = states(desired, view.current_state.unwrap_or(desired));
        let by = if view.set_by.is_empty() { String::new() } else { format!(" (set by {})", setter(&view.set_by)) };
        let note = if view.note.is_empty() { String::new() } else { format!(": {}", one_line(&view.note)) };
        let line = super::text::cut(&format!("{states}{by}{note}"), columns);
        let _ = writeln!(out, "{}", paint(DIM, &line));
    }
    if let Some(reason) = &view.waiting_for {
        out.push_str(&paint(WARN, &wrap(&format!("waits for {}", one_line(&reason.to_string())), columns, 0)));
        out.push('\n');
    }
    if let Some(counts) = view.task_counts {
        let _ = writeln!(out, "{}", live::progress(counts, view.for_you, view.running, columns));
    }
    out.push('\n');
    out + &members(view, now).fit(columns)
}

/// Returns the one who set a state, as people call it. The state file calls Brigade itself `agent`.
pub fn setter(set_by: &str) -> String {
    if set_by == "agent" { "Brigade".to_owned() } else { one_line(set_by) }
}

/// Returns `state pause`, or `desired state run_once, current state pause` if they differ.
pub fn states(desired: Mode, current: Mode) -> String {
    if desired == current {
        return format!("state {current}");
    }
    format!("desired state {desired}, current state {current}")
}

/// Returns whether the team runs, and in which process. For an unhealthy process a second line has the remedy.
pub fn running(view: &TeamView) -> String {
    match (view.pid, view.health()) {
        (Some(pid), Some(health)) => {
            let remedy = health.hint(pid);
            format!("{}\n{}", paint(BAD, &format!("{} (pid {pid})", health.message())), paint(DIM, &remedy))
        }
        (Some(pid), None) if view.running => paint(GOOD, &format!("is running (pid {pid})")),
        _ if view.running => paint(GOOD, "is running"),
        _ => paint(DIM, "is not running"),
    }
}

/// The members as a table, the lead first.
pub fn members(view: &TeamView, now: UnixMs) -> Table {
    let mut table = Table::new(&["NAME", "ROLE", "STATUS", "SINCE", "TASK", "TOKENS", "COST", "WAITS FOR"])
        .numbers(&["TOKENS", "COST"])
        .flexible(&["NAME", "ROLE", "TASK", "WAITS FOR"])
        .optional(&["ROLE", "SINCE", "TOKENS", "COST"]);
    for member in view.rows() {
        let status = VisibleStatus::of(member);
        let subject = member.subject.as_deref().unwrap_or_default();
        let task = member.task.map(|task| format!("{task} {subject}")).unwrap_or_default();
        table.row(vec![
            Cell::new(&member.name, BOLD),
            Cell::new(&member.role, PLAIN),
            Cell::new(status.word(), status.style()),
            Cell::new(&member.since.map(|since| ago(since, now)).unwrap_or_default(), DIM),
            Cell::new(&task, PLAIN),
            Cell::new(&if member.tokens == 0 { String::new() } else { member.tokens.to_string() }, PLAIN),
            Cell::new(&if member.cost_usd > 0.0 { format!("${:.2}", member.cost_usd) } else { String::new() }, PLAIN),
            Cell::new(&member.waiting_for.as_ref().map(ToString::to_string).unwrap_or_default(), DIM),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn team_view_shows_status_of_each_member() {
        let alice = MemberView {
            name: "alice".into(),
            role: "coder".into(),
            phase: "work".into(),
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
            phase: "idle".into(),
            waiting_for: Some(WaitingFor::MailOrTask),
            ..MemberView::default()
        };
        let view = TeamView {
            team: "my-team".into(),
            desired_state: Some(Mode::RunOnce),
            current_state: Some(Mode::RunOnce),
            set_by: "human".into(),
            note: String::new(),
            task_counts: Some(TaskCounts { completed: 7, in_progress: 1, pending: 2, ..TaskCounts::default() }),
            for_you: 1,
            waiting_for: None,
            running: true,
            silent_ms: None,
            suspended: false,
            lead: None,
            pid: Some(4021),
            members: vec![alice, bob],
        };
        insta::assert_snapshot!(anstream::adapter::strip_str(&render(&view, UnixMs(13_000), 100)).to_string());
        let narrow = anstream::adapter::strip_str(&render(&view, UnixMs(13_000), 40)).to_string();
        assert!(narrow.replace("\n  ", " ").contains("waits for mail or a claimable task\n"), "{narrow}");
        assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
    }
}
