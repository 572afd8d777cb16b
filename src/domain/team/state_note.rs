//! Notes of the desired state that Brigade acts on.
//!
//! The state file holds them as the text of `note`, which is a format: [`StateNote::to_file_text`] and [`StateNote::from_file_text`] are
//! its only writer and reader.

const ONE_SESSION: &str = "set for the one session of this launch";
const BUDGET: &str = "the budget of ";
const SPENT: &str = " is spent";
const TOO_SMALL: &str = " is too small";
const QUOTA: &str = "the quota of ";
const USED: &str = " is used up until ";
const FILE_MISSING: &str = "agent_state.json was missing";
const FILE_INVALID: &str = "agent_state.json was invalid";

/// The reason for a desired state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateNote {
    /// A launch set it for its one session. If that launch was interrupted, the next one may replace the state.
    OneSession,
    /// The team stopped because a budget was spent.
    BudgetSpent {
        /// The limit with its unit, as [`super::budget::BudgetLimit`] displays it.
        limit: String,
        /// The rest of the sentence, for people.
        details: String,
    },
    /// The team stopped because its first request could use more than a budget.
    BudgetTooSmall {
        /// As in [`Self::BudgetSpent`].
        limit: String,
        /// The rest of the sentence, for people.
        details: String,
    },
    /// The team paused because the quota of a provider is used up.
    QuotaUsed {
        /// The account: the provider and its server.
        account: String,
        /// The time at which the quota resets, for people.
        until: String,
    },
    /// The state file was missing while a team ran.
    FileMissing,
    /// The state file was invalid. The text names the error and the copy that was kept, for people.
    FileInvalid(String),
    /// Any other text. Nothing depends on it.
    Other(String),
}

impl StateNote {
    /// The text that the state file holds.
    pub fn to_file_text(&self) -> String {
        match self {
            Self::OneSession => ONE_SESSION.to_owned(),
            Self::BudgetSpent { limit, details } => format!("{BUDGET}{limit}{SPENT}{details}"),
            Self::BudgetTooSmall { limit, details } => format!("{BUDGET}{limit}{TOO_SMALL}{details}"),
            Self::QuotaUsed { account, until } => format!("{QUOTA}{account}{USED}{until}"),
            Self::FileMissing => FILE_MISSING.to_owned(),
            Self::FileInvalid(details) => format!("{FILE_INVALID}{details}"),
            Self::Other(text) => text.clone(),
        }
    }

    /// The note that this text of the state file stands for.
    pub fn from_file_text(text: &str) -> Self {
        match text {
            ONE_SESSION => return Self::OneSession,
            FILE_MISSING => return Self::FileMissing,
            _ => {}
        }
        if let Some(details) = text.strip_prefix(FILE_INVALID) {
            return Self::FileInvalid(details.to_owned());
        }
        if let Some((account, until)) = text.strip_prefix(QUOTA).and_then(|rest| rest.split_once(USED)) {
            return Self::QuotaUsed { account: account.to_owned(), until: until.to_owned() };
        }
        let budget = |words| text.strip_prefix(BUDGET).and_then(|rest| rest.split_once(words));
        match (budget(SPENT), budget(TOO_SMALL)) {
            // The details may contain the words of the other note.
            (Some((limit, details)), other) if other.is_none_or(|(longer, _)| limit.len() < longer.len()) => {
                Self::BudgetSpent { limit: limit.to_owned(), details: details.to_owned() }
            }
            (_, Some((limit, details))) => {
                Self::BudgetTooSmall { limit: limit.to_owned(), details: details.to_owned() }
            }
            _ => Self::Other(text.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn state_note_survives_file(details in ".*", other in ".*") {
            let limit = || "100 tokens".to_owned();
            let small = StateNote::BudgetTooSmall { limit: limit(), details: format!("{details} is spent") };
            let spent = StateNote::BudgetSpent { limit: limit(), details: format!("{details} is too small") };
            let quota = StateNote::QuotaUsed { account: "claude-code".to_owned(), until: other.clone() };
            let invalid = StateNote::FileInvalid(other.clone());
            let any = StateNote::from_file_text(&other);
            for note in [StateNote::OneSession, StateNote::FileMissing, invalid, small, spent, quota, any] {
                prop_assert_eq!(StateNote::from_file_text(&note.to_file_text()), note);
            }
        }
    }

    #[test]
    fn state_note_file_text_is_stable() {
        let spent = StateNote::BudgetSpent { limit: "$0.50".to_owned(), details: ": $0.4000 were used".to_owned() };
        assert_eq!(spent.to_file_text(), "the budget of $0.50 is spent: $0.4000 were used");
        let small = StateNote::BudgetTooSmall { limit: "9 tokens".to_owned(), details: String::new() };
        assert_eq!(small.to_file_text(), "the budget of 9 tokens is too small");
        let quota = StateNote::QuotaUsed { account: "claude-code".to_owned(), until: "14:30:00 UTC".to_owned() };
        assert_eq!(quota.to_file_text(), "the quota of claude-code is used up until 14:30:00 UTC");
        assert_eq!(StateNote::OneSession.to_file_text(), "set for the one session of this launch");
    }
}
