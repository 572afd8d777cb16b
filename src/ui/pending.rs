//! Messages, plans, reviews and merged work that wait for the person.

use serde::Serialize;

use super::command_form::shell_word;
use super::text::{count, join_up_to, one_line};

/// Ids that a sentence names.
const NAMED_MAX: usize = 5;

/// The things that wait for the person.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct PendingView {
    /// Unread messages.
    pub messages: usize,
    /// The sender of the messages, if all have the same one.
    #[serde(skip)]
    pub sender: Option<String>,
    /// The ids of plans that only the person can answer.
    pub plans: Vec<String>,
    /// The ids of reviews that only the person can answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reviews: Vec<String>,
    /// The ids of permission requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub permissions: Vec<String>,
    /// True if a question of the lead waits for the person's answer.
    #[serde(skip)]
    pub lead_asks: bool,
    /// The commands that take the merged work over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub team_branch: Option<String>,
}

impl PendingView {
    pub fn is_nothing(&self) -> bool {
        let has_requests = [&self.plans, &self.reviews, &self.permissions].iter().any(|ids| !ids.is_empty());
        self.messages == 0 && !has_requests && self.team_branch.is_none()
    }

    /// Returns one sentence for each of them, with the commands to run.
    pub fn sentences(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        if self.messages > 0 {
            let messages = count(self.messages, "unread message");
            let sender = self.sender.as_deref().map_or("NAME".into(), shell_word);
            sentences.push(format!("{messages}: `brigade inbox --take`, then `brigade send {sender} TEXT` to answer."));
        }
        for (noun, ids) in [("plan", &self.plans), ("review", &self.reviews), ("permission", &self.permissions)] {
            if ids.is_empty() {
                continue;
            }
            let verb = if ids.len() == 1 { "waits" } else { "wait" };
            let named = one_line(&join_up_to(ids.iter(), NAMED_MAX));
            let id = ids.first().map(|id| shell_word(id)).unwrap_or_default();
            let commands = format!(
                "`brigade {noun} show {id}`, then `brigade {noun} approve {id}` or `brigade {noun} reject {id}`"
            );
            sentences.push(format!("{} {verb} for your answer ({named}): {commands}.", count(ids.len(), noun)));
        }
        sentences.extend(self.team_branch.as_ref().map(|text| format!("{text}.")));
        sentences
    }
}
