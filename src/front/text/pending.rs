//! Messages, plans, reviews and merged work that wait for the person.

use std::path::PathBuf;

use serde::{Serialize, Serializer};

use super::commands::{Commands, Hint, hint};
use crate::api::merge::TeamBranchStatus;
use crate::api::next::Digest;
use crate::api::pending::PendingView;
use crate::api::{OrderForm, Question};
use crate::domain::team::approval::RequestKind;
use crate::domain::text::units::{count, join_up_to};
use crate::domain::text::{one_line, shell_word};

/// The most ids, or uncommitted files, that a sentence names. More are counted.
const NAMED_MAX: usize = 5;
const FILES_NAMED_MAX: usize = 4;

/// The things that wait for the person, and the sentence about merged work.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct PendingNotes {
    /// The things that wait for an answer.
    #[serde(flatten)]
    pub waiting: PendingView,
    /// The commands that take the merged work over; `waiting.next` has them too.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_text")]
    pub team_branch: Option<Hint>,
}

impl PendingNotes {
    pub fn of(mut waiting: PendingView, team_branch: Option<&TeamBranchStatus>) -> Self {
        waiting.next.extend(team_branch.iter().flat_map(|status| status.next()));
        Self { waiting, team_branch: team_branch.and_then(self::team_branch) }
    }

    pub fn is_nothing(&self) -> bool {
        self.waiting.is_nothing() && self.team_branch.is_none()
    }

    /// Returns one sentence for each of them, with the commands to run.
    pub fn sentences(&self) -> Vec<Hint> {
        let waiting = &self.waiting;
        let mut sentences = Vec::new();
        if waiting.messages > 0 {
            let messages = count(waiting.messages, "unread message");
            let send = OrderForm::Send { to: waiting.sender.clone() };
            sentences.push(hint![messages, ": ", OrderForm::TakeMail, ", then ", send, " to answer."]);
        }
        for (kind, ids) in [
            (RequestKind::PlanApproval, &waiting.plans),
            (RequestKind::Review, &waiting.reviews),
            (RequestKind::Permission, &waiting.permissions),
        ] {
            let Some(id) = ids.first().cloned() else { continue };
            let noun = kind.noun();
            let verb = if ids.len() == 1 { "waits" } else { "wait" };
            let named = one_line(&join_up_to(ids.iter(), NAMED_MAX));
            let show = Question::Request { kind, id: Some(id.clone()) };
            let approve = OrderForm::Approve { kind, id: id.clone(), digest: Digest::NotNeeded };
            let reject = OrderForm::Reject { kind, id, with_feedback: false };
            let waits = format!("{} {verb} for your answer ({named}): ", count(ids.len(), noun));
            sentences.push(hint![waits, show, ", then ", approve, " or ", reject, "."]);
        }
        sentences.extend(self.team_branch.clone().map(|text| hint![text, "."]));
        sentences
    }
}

/// Writes the text of a hint, with its commands as in a shell in the workspace.
fn as_text<S: Serializer>(hint: &Option<Hint>, serializer: S) -> Result<S::Ok, S::Error> {
    hint.as_ref().map(|hint| Commands::default().text(hint)).serialize(serializer)
}

/// Names the uncommitted files of the person's checkout; `None` if there are none.
pub fn uncommitted(paths: &[PathBuf]) -> Option<String> {
    if paths.is_empty() {
        return None;
    }
    let names = paths.iter().map(|path| one_line(&path.display().to_string()));
    let names = join_up_to(names, FILES_NAMED_MAX);
    Some(format!("uncommitted in your checkout: {names}. Teammates do not see these changes"))
}

/// The commands that take the merged work over, and the problems with the branch; `None` if there is neither.
pub fn team_branch(status: &TeamBranchStatus) -> Option<Hint> {
    let TeamBranchStatus { branch, name_in_commands, commits_ahead, problems, .. } = status;
    let commits = count(*commits_ahead, "commit");
    let take_over = (*commits_ahead > 0).then(|| {
        let (branch, name) = (one_line(branch.short()), shell_word(name_in_commands));
        hint![format!("{commits} on {branch} to take over: `git merge {name}`, or "), OrderForm::Merge]
    });
    let problems = problems.iter().map(|problem| {
        hint!["Note: ", problem.reason.as_str(), ". ", Hint::of_steps(&problem.next).unwrap_or_default()]
    });
    take_over.into_iter().chain(problems).reduce(|all, problem| hint![all, ". ", problem])
}
