//! The evidence of an attempt whose agent ended its work without a report, and of completed tasks.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

/// The actions of an agent in one attempt, as the harness saw them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AttemptActivity {
    /// True after a tool call.
    pub has_called_tool: bool,
    /// True after it changed a file or ran a command that does not only read.
    pub has_worked: bool,
}

/// The evidence that can complete a task without a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// A reviewer approved the work of this attempt. The completion gate decides.
    Approved,
    /// The task has a verify command, and the agent called a tool. The command decides.
    Verify,
    /// The task has no verify command, and the agent changed a file or ran a command that does not only read.
    Work,
    /// There is none.
    None,
}

impl Evidence {
    /// Returns the evidence of an attempt with this activity.
    pub fn of(has_verify: bool, activity: AttemptActivity) -> Self {
        match (has_verify, activity) {
            (true, AttemptActivity { has_called_tool: true, .. }) => Self::Verify,
            (false, AttemptActivity { has_worked: true, .. }) => Self::Work,
            _ => Self::None,
        }
    }
}

/// Joins the parts of an evidence, or of a note, that are not empty.
pub fn joined(parts: impl IntoIterator<Item = String>) -> String {
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

/// A weakness in the evidence of a completed task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Caveat {
    /// The task has no verify command, and its agent ended without a report.
    Unverified,
    /// The verify command exited 0, but ran no test.
    NothingRan,
}

impl Caveat {
    /// Returns the caveat of a result with these properties.
    pub fn of(unverified: bool, nothing_ran: bool) -> Option<Self> {
        match (unverified, nothing_ran) {
            (true, _) => Some(Self::Unverified),
            (false, true) => Some(Self::NothingRan),
            (false, false) => None,
        }
    }
}

impl fmt::Display for Caveat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Unverified => "unverified",
            Self::NothingRan => "no tests ran",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_depends_on_verify_and_activity() {
        let activity = |has_called_tool, has_worked| AttemptActivity { has_called_tool, has_worked };
        for (has_verify, has_called_tool, has_worked, expected) in [
            (true, false, false, Evidence::None),
            (true, true, false, Evidence::Verify),
            (true, true, true, Evidence::Verify),
            (false, false, false, Evidence::None),
            (false, true, false, Evidence::None),
            (false, true, true, Evidence::Work),
        ] {
            assert_eq!(Evidence::of(has_verify, activity(has_called_tool, has_worked)), expected);
        }
    }
}
