//! The reason why a member waits.
//!
//! Files store it as text, which is a format. [`WaitingFor::to_file_text`] is its only writer, [`WaitingFor::from_file_text`] its
//! only reader. `Display` renders it for people.

use std::fmt;

use schemars::JsonSchema;
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Serialize, Serializer};

use super::approval::RequestKind;
use super::name::{HUMAN, LEAD};

const MAIL_OR_TASK: &str = "mail or a claimable task";
const PERSON: &str = "a person: ";
const MODEL: &str = "its model: ";
/// The responders who have another name in the text.
const RESPONDERS: [(&str, &str); 2] = [(HUMAN, "a person"), (LEAD, "the lead")];

/// The thing that a member, a team or a task waits for, in one word for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitKind {
    /// Mail or a claimable task.
    MailOrTask,
    /// The answer to a question.
    Question,
    /// The person's answer to a permission request.
    Permission,
    /// The answer to a plan.
    PlanApproval,
    /// The answer to a review.
    Review,
    /// The answer to a request to stop.
    Shutdown,
    /// Its model, which failed, is silent, or is limited.
    Model,
    /// The account of its model, whose limit is reached.
    Account,
    /// Other requests, which use the budget.
    OtherRequests,
    /// A larger budget.
    Budget,
    /// Its workspace, which failed.
    Workspace,
    /// Its agent, which failed.
    Agent,
    /// The answer of a sub-agent.
    SubAgent,
    /// The set-up of its worktree.
    SetUp,
    /// The end of its turn, to stop then.
    TurnEnd,
    /// The end of the teammates' work.
    Teammates,
    /// A claimable task, because the goal is not met.
    Task,
    /// The check of the goal.
    GoalCheck,
    /// The next launch.
    Launch,
    /// Nothing: it failed too often.
    Nothing,
    /// Any other reason, such as a lock or a full disk.
    Other,
}

/// The kind of a wait, and the thing that is waited for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Wait {
    /// The kind.
    pub kind: WaitKind,
    /// The id of the request, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// The fields with which views show a wait.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it describes the JSON of a wait")]
pub struct WaitFields {
    /// The text for people.
    waiting_for: Option<String>,
    /// The kind, and the id of the request.
    wait: Option<Wait>,
}

/// The begin of the text of each kind that has a detail after it.
#[rustfmt::skip]
const DETAIL_PREFIXES: [(WaitKind, &str); 14] = [
    (WaitKind::Account, "its model, limited until "),
    (WaitKind::Model, "its model, "),
    (WaitKind::Budget, "a larger budget: "),
    (WaitKind::OtherRequests, "other requests to end, which may leave enough of the budget"),
    (WaitKind::Workspace, "its workspace: "),
    (WaitKind::Agent, "its agent: "),
    (WaitKind::SubAgent, "the answer of a sub-agent: "),
    (WaitKind::SetUp, "the set-up of its worktree"),
    (WaitKind::TurnEnd, "the end of its turn, to stop then"),
    (WaitKind::Teammates, "mail, or the end of the teammates' work"),
    (WaitKind::Task, "a claimable task"),
    (WaitKind::GoalCheck, "the check of the goal "),
    (WaitKind::Launch, "the next launch"),
    (WaitKind::Nothing, "nothing: "),
];
/// The text of a member that waits for the answer to a question to another member.
const QUESTION_TO_MEMBER: &str = "the answer to its question";

/// The reason why a member waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub enum WaitingFor {
    /// It is idle and waits for mail or a claimable task.
    MailOrTask,
    /// It waits for the person's answer to this question.
    Person(String),
    /// It waits for another member's answer to its question.
    Member,
    /// It waits for the person's answer to the permission request with this id.
    Permission(String),
    /// It waits for this responder's answer to its request.
    Answer {
        /// Name of the responder.
        to: String,
        /// The kind of the request.
        kind: RequestKind,
        /// The id of the request.
        id: String,
    },
    /// Its model failed for this reason and is not called again.
    Model(String),
    /// It waits for something of this kind, with details for people. Create it with [`WaitingFor::detail`].
    Detail(WaitKind, String),
    /// Any other reason, in words.
    Other(String),
}

impl WaitingFor {
    /// Returns the wait for something of this kind. `detail` continues the text of the kind.
    pub fn detail(kind: WaitKind, detail: impl Into<String>) -> Self {
        Self::Detail(kind, detail.into())
    }

    /// Returns the kind, and the id of the request.
    pub fn wait(&self) -> Wait {
        let of = |kind| Wait { kind, id: None };
        match self {
            Self::MailOrTask => of(WaitKind::MailOrTask),
            Self::Person(_) | Self::Member => of(WaitKind::Question),
            Self::Permission(id) => Wait { kind: WaitKind::Permission, id: Some(id.clone()) },
            Self::Answer { kind, id, .. } => {
                let kind = match kind {
                    RequestKind::PlanApproval => WaitKind::PlanApproval,
                    RequestKind::Review => WaitKind::Review,
                    RequestKind::Permission => WaitKind::Permission,
                    RequestKind::Shutdown => WaitKind::Shutdown,
                };
                Wait { kind, id: Some(id.clone()) }
            }
            Self::Model(_) => of(WaitKind::Model),
            Self::Detail(kind, _) => of(*kind),
            Self::Other(_) => of(WaitKind::Other),
        }
    }

    /// Returns the text for files.
    pub fn to_file_text(&self) -> String {
        match self {
            Self::MailOrTask => MAIL_OR_TASK.to_owned(),
            Self::Person(question) => format!("{PERSON}{question}"),
            Self::Member => QUESTION_TO_MEMBER.to_owned(),
            Self::Permission(id) => format!("{PERSON}{} {id}", RequestKind::Permission.noun()),
            Self::Answer { to, kind, id } => {
                let shown = RESPONDERS.iter().find(|(name, _)| name == to).map_or(to.as_str(), |(_, shown)| shown);
                format!("{shown} ({} {id})", kind.noun())
            }
            Self::Model(reason) => format!("{MODEL}{reason}"),
            Self::Detail(kind, detail) => {
                let prefix = DETAIL_PREFIXES.iter().find(|(known, _)| known == kind).map_or("", |(_, prefix)| prefix);
                format!("{prefix}{detail}")
            }
            Self::Other(text) => text.clone(),
        }
    }

    /// Parses the text of a file.
    pub fn from_file_text(text: &str) -> Self {
        if text == MAIL_OR_TASK {
            return Self::MailOrTask;
        }
        if text == QUESTION_TO_MEMBER {
            return Self::Member;
        }
        if let Some(question) = text.strip_prefix(PERSON) {
            // A question has a question mark, an id has none.
            return match question.split_once(' ') {
                Some((noun, id)) if noun == RequestKind::Permission.noun() && is_request_id(id) => {
                    Self::Permission(id.to_owned())
                }
                _ => Self::Person(question.to_owned()),
            };
        }
        if let Some(reason) = text.strip_prefix(MODEL) {
            return Self::Model(reason.to_owned());
        }
        // The text of one kind can begin with that of a later one.
        for (kind, prefix) in DETAIL_PREFIXES {
            if let Some(detail) = text.strip_prefix(prefix) {
                return Self::detail(kind, detail);
            }
        }
        answer_of(text).unwrap_or_else(|| Self::Other(text.to_owned()))
    }
}

/// Returns true for an id of a request. Other programs can choose ids too.
fn is_request_id(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Parses a text such as `bob (review 76a98d4b)`.
fn answer_of(text: &str) -> Option<WaitingFor> {
    let (shown, request) = text.strip_suffix(')')?.split_once(" (")?;
    let (noun, id) = request.split_once(' ')?;
    let kinds = [RequestKind::PlanApproval, RequestKind::Review, RequestKind::Permission, RequestKind::Shutdown];
    let kind = kinds.into_iter().find(|kind| kind.noun() == noun)?;
    let to = RESPONDERS.iter().find(|(_, known)| *known == shown).map_or(shown, |(name, _)| name);
    is_request_id(id).then(|| WaitingFor::Answer { to: to.to_owned(), kind, id: id.to_owned() })
}

/// Serializes a field `waiting_for` with the text, and a field `wait` with its kind and id. For views of programs.
///
/// # Errors
/// The serializer fails.
pub fn with_kind<S: Serializer>(waiting_for: &Option<WaitingFor>, serializer: S) -> Result<S::Ok, S::Error> {
    serialize_fields("waiting_for", waiting_for.as_ref(), serializer)
}

/// As [`with_kind`], with the text in a field `waits_for`.
///
/// # Errors
/// The serializer fails.
pub fn waits_for_with_kind<S: Serializer>(waits_for: &Option<WaitingFor>, serializer: S) -> Result<S::Ok, S::Error> {
    serialize_fields("waits_for", waits_for.as_ref(), serializer)
}

fn serialize_fields<S: Serializer>(
    name: &'static str,
    waiting_for: Option<&WaitingFor>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut fields = serializer.serialize_map(None)?;
    fields.serialize_entry(name, &waiting_for)?;
    if let Some(waiting_for) = waiting_for {
        fields.serialize_entry("wait", &waiting_for.wait())?;
    }
    fields.end()
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
        let kinds = DETAIL_PREFIXES.map(|(kind, _)| kind);
        let request = || prop_oneof![Just(RequestKind::PlanApproval), Just(RequestKind::Review)];
        prop_oneof![
            Just(WaitingFor::MailOrTask),
            Just(WaitingFor::Member),
            ".*\\?".prop_map(WaitingFor::Person),
            "[0-9a-f]{8}".prop_map(WaitingFor::Permission),
            ("human|lead|bob", request(), "[0-9a-f]{8}").prop_map(|(to, kind, id)| WaitingFor::Answer { to, kind, id }),
            ".*".prop_map(WaitingFor::Model),
            (proptest::sample::select(kinds.to_vec()), "[A-Z].*")
                .prop_map(|(kind, text)| WaitingFor::detail(kind, text)),
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
            (WaitingFor::Permission("4910291a".into()), "a person: permission 4910291a"),
            (WaitingFor::detail(WaitKind::SetUp, ""), "the set-up of its worktree"),
            (WaitingFor::Other("the board".into()), "the board"),
        ] {
            assert_eq!(serde_json::to_value(&waiting_for).unwrap(), text);
        }
        let plan = WaitingFor::from_file_text("the lead (plan 25cc9d8b)");
        assert_eq!(plan.wait(), Wait { kind: WaitKind::PlanApproval, id: Some("25cc9d8b".into()) });
        for text in ["its limit (of plan x)", "bob (review a b)", "(plan x)"] {
            assert_eq!(WaitingFor::from_file_text(text), WaitingFor::Other(text.into()));
        }
    }
}
