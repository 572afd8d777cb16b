//! The reason why a member waits.
//!
//! Files store it as text, which is a format. [`WaitingFor::to_file_text`] is its only writer, [`WaitingFor::from_file_text`] its
//! only reader. `Display` renders it for people.

use std::fmt;

use serde::{Deserialize, Serialize};

const MAIL_OR_TASK: &str = "mail or a claimable task";
const PERSON: &str = "a person: ";
const MODEL: &str = "its model: ";

/// The reason why a member waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub enum WaitingFor {
    /// It is idle and waits for mail or a claimable task.
    MailOrTask,
    /// It waits for the person's answer to this question.
    Person(String),
    /// Its model failed for this reason and is not called again.
    Model(String),
    /// Any other reason, in words.
    Other(String),
}

impl WaitingFor {
    /// Returns the text for files.
    pub fn to_file_text(&self) -> String {
        match self {
            Self::MailOrTask => MAIL_OR_TASK.to_owned(),
            Self::Person(question) => format!("{PERSON}{question}"),
            Self::Model(reason) => format!("{MODEL}{reason}"),
            Self::Other(text) => text.clone(),
        }
    }

    /// Parses the text of a file.
    pub fn from_file_text(text: &str) -> Self {
        if text == MAIL_OR_TASK {
            Self::MailOrTask
        } else if let Some(question) = text.strip_prefix(PERSON) {
            Self::Person(question.to_owned())
        } else if let Some(reason) = text.strip_prefix(MODEL) {
            Self::Model(reason.to_owned())
        } else {
            Self::Other(text.to_owned())
        }
    }
}

impl From<WaitingFor> for String {
    fn from(waiting_for: WaitingFor) -> Self {
        waiting_for.to_file_text()
    }
}

impl From<String> for WaitingFor {
    fn from(text: String) -> Self {
        Self::from_file_text(&text)
    }
}

impl fmt::Display for WaitingFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_file_text())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_waiting_for() -> impl Strategy<Value = WaitingFor> {
        prop_oneof![
            Just(WaitingFor::MailOrTask),
            ".*".prop_map(WaitingFor::Person),
            ".*".prop_map(WaitingFor::Model),
            ".*".prop_map(|text| WaitingFor::from_file_text(&text)),
        ]
    }

    proptest! {
        #[test]
        fn waiting_for_text_round_trips(waiting_for in any_waiting_for()) {
            prop_assert_eq!(WaitingFor::from_file_text(&waiting_for.to_file_text()), waiting_for);
        }
    }

    #[test]
    fn waiting_for_text_matches_file_format() {
        for (waiting_for, text) in [
            (WaitingFor::MailOrTask, "mail or a claimable task"),
            (WaitingFor::Person("which port?".into()), "a person: which port?"),
            (WaitingFor::Model("no credit".into()), "its model: no credit"),
            (WaitingFor::Other("the board".into()), "the board"),
        ] {
            assert_eq!(serde_json::to_value(&waiting_for).unwrap(), text);
        }
    }
}
