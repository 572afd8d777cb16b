//! The kinds of requests.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    /// Asks to approve a plan.
    #[default]
    PlanApproval,
    /// Asks to approve work before its task is completed.
    Review,
    /// Asks the person for permission to call a tool.
    Permission,
    /// Asks a teammate to stop.
    Shutdown,
}

impl RequestKind {
    /// Returns the subject of the request in one word. It is also the name of the command that shows and answers such requests.
    pub fn noun(self) -> &'static str {
        match self {
            Self::PlanApproval => "plan",
            Self::Review => "review",
            Self::Permission => "permission",
            Self::Shutdown => "shutdown",
        }
    }
}
