//! The lead's planning of a goal, as the events of a run show it.

use crate::domain::log::event::{EventKind, GOAL_TOOL};
use crate::domain::team::name::LEAD;
use crate::domain::team::pending_questions::trailing_question;
use crate::domain::team::run_verdict::{GoalAnswer, UnplannedGoal};
use crate::domain::text::first_line;

/// The lead's planning of a goal.
#[derive(Debug, Clone, Default)]
pub(super) struct Planning {
    has_goal: bool,
    lead_text: Option<String>,
    /// The last failure of the lead's model, until it answers again.
    lead_failure: Option<String>,
    /// True if the lead's model answered in this run, also without words.
    has_answered: bool,
    /// True if a task was created or claimed in this run, or the lead reported that the goal is met.
    is_fruitful: bool,
}

impl Planning {
    pub(super) fn new(has_goal: bool) -> Self {
        Self { has_goal, ..Self::default() }
    }

    /// Records an event of the run.
    pub(super) fn observe(&mut self, kind: &EventKind) {
        match kind {
            EventKind::Said { teammate, text, .. } if teammate == LEAD && !text.trim().is_empty() => {
                self.lead_text = Some(text.clone());
                self.lead_failure = None;
            }
            EventKind::ModelRetried { teammate, reason, .. } if teammate == LEAD => {
                self.lead_failure = Some(format!("its model: {reason}"));
            }
            EventKind::Warning { about, text, .. } if about == LEAD => self.lead_failure = Some(text.clone()),
            EventKind::TurnFinished { teammate, .. } if teammate == LEAD => {
                self.lead_failure = None;
                self.has_answered = true;
            }
            EventKind::TaskCreated { .. } | EventKind::TaskClaimed { .. } => self.is_fruitful = true,
            EventKind::ToolFinished { tool, ok: true, .. } if tool == GOAL_TOOL => self.is_fruitful = true,
            _ => {}
        }
    }

    /// Returns the goal if it produced no tasks. `has_tasks` is true if the board has tasks, also from earlier runs. Then the lead may
    /// not have been asked in this run, because the goal was planned before.
    pub(super) fn unplanned(&self, has_tasks: bool) -> Option<UnplannedGoal> {
        let is_asked = self.has_answered || self.lead_text.is_some() || self.lead_failure.is_some();
        if !self.has_goal || has_tasks && (self.is_fruitful || !is_asked) {
            return None;
        }
        let why = match (&self.lead_failure, &self.lead_text) {
            (Some(failure), _) => format!(": {}", first_line(failure).trim_end_matches('.')),
            (None, Some(text)) => format!(". It said last: {}", first_line(text).trim_end_matches('.')),
            (None, None) => String::new(),
        };
        // A text that was cut ends with `…`.
        let end = if why.ends_with('…') { "" } else { "." };
        Some(UnplannedGoal {
            reason: format!("The lead created no tasks for the goal{why}{end}"),
            answer: match &self.lead_text {
                Some(text) if trailing_question(text).is_some() => GoalAnswer::Question,
                None if self.has_answered => GoalAnswer::Nothing,
                _ => GoalAnswer::Words,
            },
        })
    }
}
