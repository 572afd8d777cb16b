//! The last words of an agent whose attempt failed without a report, for the reason of the failure.

use crate::domain::team::name::HUMAN;
use crate::domain::text::{one_line, shorten_middle};

/// The longest quoted text, in characters.
const QUOTE_CHARS_MAX: usize = 300;

/// A question of an agent that got no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnansweredQuestion {
    /// The recipient of the message; `None` if it is in the agent's last text, which no one receives.
    pub to: Option<String>,
    /// The text with the question.
    pub text: String,
}

impl UnansweredQuestion {
    /// Returns the reason of a failure of this agent.
    pub fn reason(&self, agent: &str) -> String {
        let to = self.to.as_deref().filter(|to| !to.eq_ignore_ascii_case(HUMAN));
        let to = to.map(|to| format!(" {}", one_line(to))).unwrap_or_default();
        format!("{agent} asked{to} and got no answer: {}", quoted(&self.text))
    }

    /// Returns true if the person has the question as a message.
    pub fn is_with_person(&self) -> bool {
        self.to.as_deref().is_some_and(|to| to.eq_ignore_ascii_case(HUMAN))
    }
}

/// Adds the last words of an agent to a reason, if there are any.
pub fn with_last_words(reason: &str, words: &str) -> String {
    if words.trim().is_empty() {
        return reason.to_owned();
    }
    format!("{reason}; its last words: {}", quoted(words))
}

/// Returns a text in quotes, in one line of limited length.
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", shorten_middle(&one_line(text), QUOTE_CHARS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_is_the_reason() {
        let reason = |to: Option<&str>, text: &str| {
            UnansweredQuestion { to: to.map(str::to_owned), text: text.to_owned() }.reason("alice")
        };
        assert_eq!(reason(None, "Which\n\u{1b}[31mone?"), "alice asked and got no answer: \"Which \\u{1b}[31mone?\"");
        assert_eq!(reason(Some("Human"), "Which?"), "alice asked and got no answer: \"Which?\"");
        assert_eq!(reason(Some("bob"), "Which?"), "alice asked bob and got no answer: \"Which?\"");
        let long = reason(None, &format!("{} Which?", "x".repeat(5000)));
        assert!(long.ends_with("x Which?\"") && long.chars().count() < QUOTE_CHARS_MAX + 40, "{long}");
    }

    #[test]
    fn reason_without_words_stays() {
        assert_eq!(with_last_words("it stopped", " \n"), "it stopped");
        assert_eq!(with_last_words("it stopped", "I see.\n"), "it stopped; its last words: \"I see.\"");
    }
}
