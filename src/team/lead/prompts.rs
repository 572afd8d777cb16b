//! The prompts to the lead's model: goals and requests for a report.

use crate::domain::transcript::PromptKind;
use crate::team::running_member::RunningMember;
use crate::team::teammate::{Prompt, TeammateCommand};

/// The goal that the lead has not got yet, and its last prompt.
#[derive(Default)]
pub(super) struct LeadPrompts {
    goal: Option<String>,
    /// The lead works until it reports that this prompt is answered.
    last: Option<Prompt>,
}

impl LeadPrompts {
    /// Creates the prompts of a lead that gets this goal as soon as its model can be reached.
    pub fn new(goal: Option<String>) -> Self {
        Self { goal, last: None }
    }

    /// Returns true if the lead was not given the goal yet.
    pub fn has_unplanned_goal(&self) -> bool {
        self.goal.is_some()
    }

    /// Returns the last prompt, unless the lead has answered it.
    pub fn unanswered(&self, lead: &RunningMember) -> Option<&Prompt> {
        self.last.as_ref().filter(|prompt| lead.status.borrow().prompts_answered < prompt.number)
    }

    /// Sends a prompt.
    pub fn send(&mut self, lead: &RunningMember, kind: PromptKind, text: String) {
        let number = self.last.as_ref().map_or(1, |prompt| prompt.number + 1);
        let prompt = self.last.insert(Prompt { number, kind, text });
        lead.send(TeammateCommand::Prompt(prompt.clone()));
    }

    /// Repeats the unanswered prompt to a restarted lead.
    pub fn resend(&self, lead: &RunningMember) {
        if let Some(prompt) = self.unanswered(lead) {
            lead.send(TeammateCommand::Prompt(prompt.clone()));
        }
    }

    /// Gives the goal to the lead once, as soon as its model can be reached.
    pub fn send_goal(&mut self, lead: &RunningMember) {
        if lead.is_usable()
            && let Some(goal) = self.goal.take()
        {
            self.send(lead, PromptKind::Goal, goal_prompt(&goal));
        }
    }
}

/// Returns the prompt that gives the lead its goal.
#[must_use]
pub fn goal_prompt(goal: &str) -> String {
    format!("<goal>{goal}</goal>")
}
