//! The progress of a run: the selection of its printed events, and the live view below the timeline.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::error::CliResult;
use super::footer;
use super::output::Output;
use crate::api::team::live_member;
use crate::domain::log::event::{Event, EventKind};
use crate::domain::task::dependencies::count_tasks;
use crate::domain::team::name::LEAD;
use crate::domain::time::UnixMs;
use crate::front::text::live::{LiveView, lines};
use crate::ports::Stores;
use crate::service::pending::PendingForPerson;
use crate::team::handle::LiveStatus;

/// The interval at which the number of things that wait for the person is read again without an event.
const ANSWERS_INTERVAL: Duration = Duration::from_secs(5);
/// The most lines of the live view.
const LINES_MAX: usize = 12;
/// The assumed height of a terminal with unknown size, in rows.
const ROWS_DEFAULT: usize = 24;

/// The parts of the progress that a run shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Progress {
    /// One line for each event
    Plain,
    /// The same, and the present state of the team below it; on a terminal only
    Live,
    /// Only warnings, what waits for you, and the result
    Quiet,
}

impl Progress {
    /// Returns true if an event of this kind is shown.
    pub fn shows(self, kind: &EventKind) -> bool {
        let is_warning = matches!(
            kind,
            EventKind::Warning { .. }
                | EventKind::InvalidTaskFileFound(_)
                | EventKind::BudgetLow { .. }
                | EventKind::BudgetSpent { .. }
        );
        self != Self::Quiet || is_warning
    }
}

/// The live view of a run.
#[derive(Debug, Default)]
pub struct LiveProgress {
    /// The desired state of the team, or `stopping`.
    state: String,
    /// The number of things that wait for the person.
    answers_needed: usize,
    /// The time when that number was read. `None` if it must be read again.
    answers_needed_read_at: Option<Instant>,
}

impl LiveProgress {
    /// Updates the state of the team from an event. Mail makes the next refresh read the things that wait for the person.
    pub fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::ModeChanged { desired, .. } => self.state = desired.to_string(),
            EventKind::SessionStarted { mode, .. } => self.state = mode.to_string(),
            EventKind::MessageSent { .. } | EventKind::MessageDelivered { .. } | EventKind::RequestAnswered { .. } => {
                self.answers_needed_read_at = None;
            }
            _ => {}
        }
    }

    /// Makes the next refresh show that the team stops.
    pub fn set_stopping(&mut self) {
        self.state = "stopping".to_owned();
    }

    /// Draws the present state of the team.
    ///
    /// # Errors
    /// The board, the mail or the approvals cannot be read.
    pub async fn refresh(&mut self, live: &LiveStatus, stores: &Stores, now: UnixMs, output: &Output) -> CliResult<()> {
        if self.answers_needed_read_at.is_none_or(|read| read.elapsed() >= ANSWERS_INTERVAL) {
            self.answers_needed = PendingForPerson::of(stores).await?.answers_needed();
            self.answers_needed_read_at = Some(Instant::now());
        }
        let board = stores.board.view().await?;
        let reports = live.teammates();
        let lead = live.lead().map(|report| live_member(LEAD, Some(&report), &board));
        let teammates = live.members().into_iter().map(|name| {
            let report = reports.get(name.as_str()).map(Arc::as_ref);
            live_member(name.as_str(), report, &board)
        });
        let view = LiveView {
            members: lead.into_iter().chain(teammates).collect(),
            task_counts: count_tasks(board.tasks.values().map(Arc::as_ref), &*board),
            answers_needed: self.answers_needed,
            state: self.state.clone(),
            is_running: true,
        };
        let rows = terminal_size::terminal_size().map_or(ROWS_DEFAULT, |(_, height)| usize::from(height.0));
        let lines_max = (rows / 2).clamp(1, LINES_MAX);
        footer::show(lines(&view, now, output.columns.saturating_sub(1), lines_max), output.has_colors());
        Ok(())
    }
}
