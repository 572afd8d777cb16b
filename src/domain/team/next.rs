//! The next steps of a person, as data. A front end writes them as its reader types or clicks them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::question::Question;
use super::request_kind::RequestKind;
use super::state::Mode;
use crate::domain::task::TaskId;

/// A next step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Next {
    /// A question to ask.
    Question(Question),
    /// An order to give.
    Order(OrderForm),
    /// A program of Brigade to start.
    Launch(Launch),
    /// A step outside of Brigade, such as the repair of a file.
    Outside {
        /// The step, for a person.
        outside: String,
    },
}

/// An order as a form: arguments that only the person can choose, such as a text, are open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum OrderForm {
    /// Adds a task. Its subject is open.
    AddTask,
    /// Imports the tasks of a plan. Its file is open.
    ImportPlan,
    /// Claims a task.
    Claim {
        /// The task; `None` for the first that is claimable.
        task: Option<TaskId>,
        /// The name of the agent; `None` if it is open.
        by: Option<String>,
    },
    /// Releases tasks.
    Release {
        /// The tasks.
        tasks: Vec<TaskId>,
        /// True to override their holders.
        force: bool,
    },
    /// The refused order, given as the holder of its task.
    AsHolder {
        /// The name of the holder.
        by: String,
        /// The attempt of its claim.
        attempt: u32,
    },
    /// The refused order, given with force as a person.
    WithForce,
    /// Completes a claimed task.
    Complete {
        /// The task.
        task: TaskId,
        /// The name of its holder.
        by: String,
        /// The attempt of the claim.
        attempt: u32,
    },
    /// Ends an attempt as failed. Its reason is open.
    Fail {
        /// The task.
        task: TaskId,
    },
    /// Gives failed tasks new attempts.
    Retry {
        /// The tasks.
        tasks: Vec<TaskId>,
    },
    /// Has completed tasks done again.
    Reopen {
        /// The tasks.
        tasks: Vec<TaskId>,
    },
    /// Deletes tasks.
    Delete {
        /// The tasks.
        tasks: Vec<TaskId>,
    },
    /// Changes a task.
    Update {
        /// The task.
        task: TaskId,
        /// The change; `None` if it is open.
        change: Option<EditForm>,
    },
    /// Sends a message. Its text is open.
    Send {
        /// The recipient; `None` if it is open.
        to: Option<String>,
    },
    /// Marks the unread mail of the person as read.
    TakeMail,
    /// Approves a request.
    Approve {
        /// Its kind.
        #[schemars(with = "String")]
        kind: RequestKind,
        /// Its id.
        id: String,
        /// The digest of a call that does not fit on one line.
        digest: Digest,
    },
    /// Rejects a request.
    Reject {
        /// Its kind.
        #[schemars(with = "String")]
        kind: RequestKind,
        /// Its id.
        id: String,
        /// True if a feedback is expected, which is open.
        with_feedback: bool,
    },
    /// Sets the desired state of the team.
    SetMode {
        /// The state.
        #[schemars(with = "String")]
        mode: Mode,
    },
    /// Stops the team.
    Stop {
        /// True to end the running turns.
        now: bool,
    },
    /// Ends an interactive session, which stops its team.
    EndSession,
    /// Takes the work of the team branch over.
    Merge,
    /// Records that the person's branch has the work of a team already, in another form.
    MergeTaken {
        /// The team.
        team: String,
    },
    /// Resets the counters of usage.
    ResetCost,
}

/// The digest that an approval names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Digest {
    /// The approval needs none.
    NotNeeded,
    /// This one, which was shown.
    Shown(String),
    /// The person must read the whole call first, which names it.
    Open,
}

/// An edit of a task as a form: some values are open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EditForm {
    /// Another description, which is open.
    Description,
    /// Another verify command, which is open.
    Verify,
    /// Another cap of tokens.
    TokensMax(u64),
    /// Any teammate may claim it.
    AnyOwner,
    /// It requires no capability.
    NoRequirement,
    /// It does not wait for this task.
    NotAfter(TaskId),
}

/// A program of Brigade that a person starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "launch", rename_all = "snake_case")]
pub enum Launch {
    /// A team for one session.
    Run {
        /// The team; `None` for the only one.
        team: Option<String>,
    },
    /// A team that follows the desired state.
    Up {
        /// The team; `None` for the only one.
        team: Option<String>,
    },
    /// The first files of a team.
    Init,
    /// The board for an agent of another program. Its name is open.
    Mcp,
}

/// The steps outside of Brigade, for the display of an error.
pub fn outside_text(steps: &[Next]) -> String {
    let outside = |step: &Next| match step {
        Next::Outside { outside } => Some(outside.clone()),
        _ => None,
    };
    steps.iter().filter_map(outside).collect::<Vec<_>>().join("; ")
}

impl From<Question> for Next {
    fn from(question: Question) -> Self {
        Self::Question(question)
    }
}

impl From<OrderForm> for Next {
    fn from(order: OrderForm) -> Self {
        Self::Order(order)
    }
}

impl From<Launch> for Next {
    fn from(launch: Launch) -> Self {
        Self::Launch(launch)
    }
}

/// A step outside of Brigade.
impl From<String> for Next {
    fn from(outside: String) -> Self {
        Self::Outside { outside }
    }
}

/// A step outside of Brigade.
impl From<&str> for Next {
    fn from(outside: &str) -> Self {
        outside.to_owned().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_step_survives_json() {
        for (next, json) in [
            (Next::from(Question::Why { task: Some(TaskId(3)) }), r#"{"question":"why","task":3}"#),
            (Question::Team.into(), r#"{"question":"team"}"#),
            (OrderForm::Retry { tasks: vec![TaskId(3)] }.into(), r#"{"order":"retry","tasks":[3]}"#),
            (
                OrderForm::Update { task: TaskId(3), change: Some(EditForm::NotAfter(TaskId(4))) }.into(),
                r#"{"order":"update","task":3,"change":{"not_after":4}}"#,
            ),
            (Launch::Run { team: None }.into(), r#"{"launch":"run","team":null}"#),
            ("install git".into(), r#"{"outside":"install git"}"#),
        ] {
            assert_eq!(serde_json::to_string(&next).unwrap(), json);
            assert_eq!(serde_json::from_str::<Next>(json).unwrap(), next);
        }
    }
}
