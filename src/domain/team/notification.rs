//! Notifications for a person who does not watch the team.

use serde::Serialize;

use super::name::HUMAN;
use crate::domain::log::event::EventKind;
use crate::domain::task::TaskId;
use crate::domain::text::words::words;
use crate::domain::text::{one_line, shorten};

/// The longest text of a notification, in characters.
const TEXT_CHARS_MAX: usize = 1000;

words! {
    /// The reason of a notification.
    pub enum NotificationKind {
        /// A message, a question, a plan or a review waits for the person.
        WaitsForYou = "waits_for_you",
        /// 80 % of a budget is used.
        BudgetLow = "budget_low",
        /// The budget does not cover the next request.
        BudgetSpent = "budget_spent",
        /// A task failed and is not tried again.
        TaskFailed = "task_failed",
        /// A session ended.
        SessionEnded = "session_ended",
    }
}

/// A notification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Notification {
    /// The reason.
    pub kind: NotificationKind,
    /// The task, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
    /// One line for the person, of limited length.
    pub text: String,
}

impl Notification {
    /// Returns the notification about an event; `None` for an event that a person need not know at once.
    pub fn of(event: &EventKind) -> Option<Self> {
        let (kind, task, text) = match event {
            EventKind::MessageSent { from, to, about, .. } if to == HUMAN => {
                (NotificationKind::WaitsForYou, None, format!("{from}: {about}"))
            }
            EventKind::BudgetLow { limit, spent } => {
                (NotificationKind::BudgetLow, None, format!("{spent} of the budget of {limit} are used"))
            }
            EventKind::BudgetSpent { limit, spent, teammate } => {
                let of = teammate.as_ref().map(|name| format!(" of {name}")).unwrap_or_default();
                let text = format!("{spent} of {limit} are used; the next request does not fit the budget{of}");
                (NotificationKind::BudgetSpent, None, text)
            }
            EventKind::TaskFailed { task, reason, .. } => {
                (NotificationKind::TaskFailed, Some(*task), format!("{task} failed: {reason}"))
            }
            EventKind::SessionFinished { session, summary, outcome, .. } => {
                let result = outcome.as_ref().unwrap_or(summary);
                (NotificationKind::SessionEnded, None, format!("session {session} is over: {result}"))
            }
            _ => return None,
        };
        Some(Self { kind, task, text: shorten(&one_line(&text), TEXT_CHARS_MAX) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notification_is_one_bounded_line() {
        let sent = |to: &str, about: &str| EventKind::MessageSent {
            from: "ada".into(),
            to: to.into(),
            message: "m".into(),
            about: about.into(),
            task: None,
        };
        assert_eq!(Notification::of(&sent("lead", "hello")), None);
        let shown = Notification::of(&sent(HUMAN, "Which\n\x1b[31mcolour?")).unwrap();
        assert_eq!((shown.kind, shown.text.as_str()), (NotificationKind::WaitsForYou, "ada: Which \\u{1b}[31mcolour?"));
        let long = Notification::of(&sent(HUMAN, &"x".repeat(5000))).unwrap();
        assert_eq!(long.text.chars().count(), TEXT_CHARS_MAX);
    }
}
