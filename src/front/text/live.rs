//! The live view of a running team: one line for each member, and one for the board.

use std::time::Duration;

use anstyle::Style;

use super::cost::grouped;
use super::lines::{cut, width};
use super::style::{BAD, BOLD, BUSY, DIM, GOOD, PLAIN, WARN, paint};
use super::table::{Cell, Table};
use crate::api::team::{MemberView, VisibleStatus};
use crate::domain::log::event::TaskCounts;
use crate::domain::text::units::duration;
use crate::domain::time::UnixMs;

/// The width of the bar, in columns, if the line has room for it.
const BAR_WIDTH_MAX: usize = 20;
/// The width below which the bar is left out.
const BAR_WIDTH_MIN: usize = 8;
/// The width of a terminal below which the tokens of single members are left out.
const TOKENS_COLUMNS_MIN: usize = 60;
/// Spaces between two parts of the board's line.
const GAP: usize = 2;

/// A running team at one moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LiveView {
    /// The lead, if it has a model, and the teammates.
    pub members: Vec<MemberView>,
    pub task_counts: TaskCounts,
    /// The number of questions, plans and reviews that wait for the person.
    pub answers_needed: usize,
    /// The desired state of the team, or `stopping`. An empty text is not shown.
    pub state: String,
    /// False if the team does not run. Its tasks in progress are those of other programs, or of a killed run.
    pub is_running: bool,
}

/// A text and its style.
type Part = (String, Style);

/// The lines of the live view: at most `lines_max`, which is at least 1, each at most `columns` wide.
///
/// Members without a line of their own are counted in one line.
pub fn lines(view: &LiveView, now: UnixMs, columns: usize, lines_max: usize) -> Vec<String> {
    let shown_max = lines_max.saturating_sub(1);
    let mut members: Vec<&MemberView> = view.members.iter().collect();
    let hidden = if members.len() > shown_max {
        members.sort_by_key(|member| VisibleStatus::of(member));
        members.split_off(shown_max.saturating_sub(1))
    } else {
        Vec::new()
    };
    let mut lines: Vec<String> =
        table(&members, now, columns >= TOKENS_COLUMNS_MIN).render_rows(columns).lines().map(str::to_owned).collect();
    if !hidden.is_empty() && shown_max > 0 {
        lines.push(paint(DIM, &cut(&hidden_summary(&hidden), columns)));
    }
    lines.push(board_line(view, columns));
    lines
}

/// Returns the style of a status.
pub(super) fn status_style(status: VisibleStatus) -> Style {
    match status {
        VisibleStatus::Dead | VisibleStatus::Stalled => BAD,
        VisibleStatus::Working => BUSY,
        VisibleStatus::Waiting | VisibleStatus::Stopping => WARN,
        VisibleStatus::Starting | VisibleStatus::Idle | VisibleStatus::Stopped => DIM,
    }
}

fn table(members: &[&MemberView], now: UnixMs, has_tokens: bool) -> Table {
    let mut table = Table::new(&["NAME", "STATUS", "TASK", "SINCE", "TOKENS"])
        .numbers(&["SINCE", "TOKENS"])
        .flexible(&["NAME", "TASK"])
        .optional(&["SINCE", "TOKENS"]);
    for member in members {
        let status = VisibleStatus::of(member);
        let task = member.task.map(|task| format!("{task} {}", member.subject.as_deref().unwrap_or_default()));
        let reason = if status == VisibleStatus::Waiting { member.waiting_for.as_ref() } else { None };
        let text = match (task, reason) {
            (Some(task), Some(reason)) => format!("{task}: waits for {reason}"),
            (None, Some(reason)) => format!("waits for {reason}"),
            (task, None) => task.unwrap_or_default(),
        };
        let since = member.since.map(|since| whole_seconds(now.since(since))).unwrap_or_default();
        let has_tokens = has_tokens && member.tokens > 0;
        let tokens = if has_tokens { format!("{} tokens", grouped(member.tokens)) } else { String::new() };
        table.row(vec![
            Cell::new(&member.name, BOLD),
            Cell::new(status.word(), status_style(status)),
            Cell::new(&text, PLAIN),
            Cell::new(&since, DIM),
            Cell::new(&tokens, DIM),
        ]);
    }
    table
}

/// A duration without milliseconds, so that a line changes once a second at most.
fn whole_seconds(time: Duration) -> String {
    if time < Duration::from_secs(1) { "0 s".to_owned() } else { duration(Duration::from_secs(time.as_secs())) }
}

/// The members without a line of their own: `and 12 more: 3 working, 9 idle`.
fn hidden_summary(hidden: &[&MemberView]) -> String {
    let mut counts: Vec<(VisibleStatus, usize)> = Vec::new();
    for status in hidden.iter().map(|member| VisibleStatus::of(member)) {
        match counts.iter_mut().find(|(counted, _)| *counted == status) {
            Some((_, count)) => *count += 1,
            None => counts.push((status, 1)),
        }
    }
    let counts: Vec<String> = counts.iter().map(|(status, count)| format!("{count} {}", status.word())).collect();
    format!("and {} more: {}", hidden.len(), counts.join(", "))
}

/// The line of the board: a bar, the counts, the usage of the team and its state. It is at most `columns` wide.
pub fn board_line(view: &LiveView, columns: usize) -> String {
    let counts = counts(view.task_counts, view.answers_needed, view.is_running, columns);
    let bar_width = columns.saturating_sub(width_of(&counts) + GAP).min(BAR_WIDTH_MAX);
    let mut parts = Vec::new();
    if bar_width >= BAR_WIDTH_MIN && view.task_counts.total() > 0 {
        parts.push(bar(view.task_counts, bar_width));
    }
    parts.push(counts);
    let tokens: u64 = view.members.iter().map(|member| member.tokens).sum();
    let cost: f64 = view.members.iter().map(|member| member.cost_usd).sum();
    if cost > 0.0 {
        parts.push(vec![(format!("${cost:.2}"), PLAIN)]);
    }
    if tokens > 0 {
        parts.push(vec![(format!("{} tokens", grouped(tokens)), DIM)]);
    }
    if !view.state.is_empty() {
        parts.push(vec![(view.state.clone(), DIM)]);
    }
    fit(&parts, columns)
}

/// The counts of a board in a line of at most `columns`, without a bar: `7/15 done, 2 running, 1 waiting for you`.
pub fn progress(task_counts: TaskCounts, answers_needed: usize, is_running: bool, columns: usize) -> String {
    fit(&[counts(task_counts, answers_needed, is_running, columns)], columns)
}

/// The counts of a board. Without room for all, first the blocked tasks are left out, then the running and the failed ones.
fn counts(counts: TaskCounts, answers_needed: usize, is_running: bool, columns: usize) -> Vec<Part> {
    let (done, total) = (counts.completed, counts.total());
    let first = match total {
        0 => ("no tasks".to_owned(), DIM),
        total => (format!("{done}/{total} done"), if done == total { GOOD } else { PLAIN }),
    };
    // With the priority of each count.
    let others = [
        (counts.in_progress, if is_running { "running" } else { "in progress" }, BUSY, 2),
        (counts.failed, "failed", BAD, 3),
        (answers_needed, "waiting for you", WARN, 4),
        (counts.blocked, "blocked", DIM, 1),
    ];
    let parts = |priority_min: u8| {
        let mut parts = vec![first.clone()];
        for (number, word, style, priority) in others {
            if number > 0 && priority >= priority_min {
                parts.push((", ".to_owned(), PLAIN));
                parts.push((format!("{number} {word}"), style));
            }
        }
        parts
    };
    (1..4).map(&parts).find(|parts| width_of(parts) <= columns).unwrap_or_else(|| parts(4))
}

/// A bar of the completed, failed, running and other tasks. Each state has its own character, for terminals without colours.
fn bar(counts: TaskCounts, bar_width: usize) -> Vec<Part> {
    let total = counts.total().max(1);
    let mut end = 0;
    let mut drawn = 0;
    let mut parts = Vec::new();
    for (number, character, style) in [
        (counts.completed, "█", GOOD),
        (counts.failed, "▚", BAD),
        (counts.in_progress, "▒", BUSY),
        (counts.pending + counts.blocked, "░", DIM),
    ] {
        end += number;
        let until = end * bar_width / total;
        parts.push((character.repeat(until - drawn), style));
        drawn = until;
    }
    parts
}

fn width_of(parts: &[Part]) -> usize {
    parts.iter().map(|(text, _)| width(text)).sum()
}

/// The parts that fit into a line of at most `columns`. Other parts are left out, except the first, which is cut.
fn fit(parts: &[Vec<Part>], columns: usize) -> String {
    let mut line = String::new();
    let mut used = 0;
    for part in parts {
        let needed = width_of(part);
        let gap = if line.is_empty() { 0 } else { GAP };
        if used + gap + needed <= columns {
            line.push_str(&" ".repeat(gap));
            line.extend(part.iter().map(|(text, style)| paint(*style, text)));
            used += gap + needed;
        } else if line.is_empty() {
            let text: String = part.iter().map(|(text, _)| text.as_str()).collect();
            return cut(&text, columns);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::task::TaskId;
    use crate::domain::team::phase::ReportedPhase;
    use crate::domain::team::waiting_for::WaitingFor;

    fn member(name: &str, phase: ReportedPhase, task: Option<u64>, waiting_for: Option<&str>) -> MemberView {
        MemberView {
            name: name.into(),
            phase,
            task: task.map(TaskId),
            subject: task.map(|task| format!("Count the lines of part {task}")),
            since: Some(UnixMs(1_000)),
            tokens: task.map_or(0, |task| task * 9_117),
            cost_usd: 0.07,
            waiting_for: waiting_for.map(WaitingFor::from_file_text),
            ..MemberView::default()
        }
    }

    fn view() -> LiveView {
        let idle = WaitingFor::MailOrTask.to_file_text();
        LiveView {
            members: vec![
                member("lead", ReportedPhase::Idle, None, Some(&idle)),
                member("alice", ReportedPhase::Work, Some(2), None),
                member("bob", ReportedPhase::Work, Some(3), Some("review 76a98d4b by you")),
                member("carol", ReportedPhase::Stalled, Some(4), None),
                member("dave", ReportedPhase::Idle, None, Some("a person: which port?")),
                member("erin", ReportedPhase::Dead, None, None),
                member("frank", ReportedPhase::Starting, None, None),
            ],
            task_counts: TaskCounts { completed: 7, failed: 1, blocked: 2, in_progress: 3, pending: 2 },
            answers_needed: 2,
            state: "run_once".to_owned(),
            is_running: true,
        }
    }

    fn plain(view: &LiveView, columns: usize, lines_max: usize) -> Vec<String> {
        let lines = lines(view, UnixMs(92_400), columns, lines_max);
        lines.iter().map(|line| anstream::adapter::strip_str(line).to_string()).collect()
    }

    #[test]
    fn live_view_shows_members_and_board() {
        let few = |columns, lines_max| plain(&view(), columns, lines_max).join("\n");
        insta::assert_snapshot!(format!("{}\n\n{}\n\n{}\n\n{}", few(140, 20), few(80, 20), few(40, 20), few(80, 5)));
    }

    #[test]
    fn board_without_tasks_has_no_bar() {
        assert_eq!(plain(&LiveView::default(), 80, 5), ["no tasks"]);
    }

    proptest! {
        #[test]
        fn live_view_fits_the_terminal(columns in 1_usize..160, lines_max in 1_usize..12, counts: [u8; 5]) {
            let [completed, failed, blocked, in_progress, pending] = counts.map(usize::from);
            let task_counts = TaskCounts { completed, failed, blocked, in_progress, pending };
            let lines = plain(&LiveView { task_counts, ..view() }, columns, lines_max);
            prop_assert!(lines.len() <= lines_max, "{lines:?}");
            prop_assert!(lines.iter().all(|line| width(line) <= columns), "{lines:?}");
        }

        #[test]
        fn bar_has_constant_width(counts: [u8; 5]) {
            let [completed, failed, blocked, in_progress, pending] = counts.map(usize::from);
            let task_counts = TaskCounts { completed, failed, blocked, in_progress, pending };
            let expected = if task_counts.total() == 0 { 0 } else { 17 };
            prop_assert_eq!(width_of(&bar(task_counts, 17)), expected);
        }
    }
}
