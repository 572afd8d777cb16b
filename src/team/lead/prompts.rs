//! The prompts to the lead's model: requests for a report, and the instructions of a cleanup session. The person's goals and
//! messages reach it as mail.

use crate::domain::agent::transcript::PromptKind;
use crate::team::running_member::RunningMember;
use crate::team::teammate::{Prompt, TeammateCommand};

/// The last prompt of the lead.
#[derive(Default)]
pub(super) struct LeadPrompts {
    /// The lead works until it reports that this prompt is answered.
    last: Option<Prompt>,
}

impl LeadPrompts {
    /// Returns the last prompt, unless the lead has answered it.
    pub fn unanswered(&self, lead: &RunningMember) -> Option<&Prompt> {
        self.last.as_ref().filter(|prompt| lead.status.borrow().prompts_answered < prompt.number)
    }

    /// Sends a prompt.
    pub fn send(&mut self, lead: &RunningMember, kind: PromptKind, text: String) {
        let number = self.last.as_ref().map_or(1, |prompt| prompt.number + 1);
        let prompt = self.last.insert(Prompt { number, kind, text });
        lead.commands.send(TeammateCommand::Prompt(prompt.clone()));
    }

    /// Repeats the unanswered prompt to a restarted lead.
    pub fn resend(&self, lead: &RunningMember) {
        if let Some(prompt) = self.unanswered(lead) {
            lead.commands.send(TeammateCommand::Prompt(prompt.clone()));
        }
    }
}
