//! Messages, plans, reviews and merged work that wait for the person.

use std::path::PathBuf;

use serde::Serialize;

use super::command_form::shell_word;
use super::lines::{count, join_up_to, one_line};
use crate::api::merge::TeamBranchStatus;
use crate::api::pending::PendingView;

/// The most ids, or uncommitted files, that a sentence names. More are counted.
const NAMED_MAX: usize = 5;
const FILES_NAMED_MAX: usize = 4;

/// The things that wait for the person, and the sentence about merged work.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct PendingNotes {
    /// The things that wait for an answer.
    #[serde(flatten)]
    pub waiting: PendingView,
    /// The commands that take the merged work over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub team_branch: Option<String>,
}

impl PendingNotes {
    pub fn is_nothing(&self) -> bool {
        self.waiting.is_nothing() && self.team_branch.is_none()
    }

    /// Returns one sentence for each of them, with the commands to run.
    pub fn sentences(&self) -> Vec<String> {
        let waiting = &self.waiting;
        let mut sentences = Vec::new();
        if waiting.messages > 0 {
            let messages = count(waiting.messages, "unread message");
            let sender = waiting.sender.as_deref().map_or("NAME".into(), shell_word);
            sentences.push(format!("{messages}: `brigade inbox --take`, then `brigade send {sender} TEXT` to answer."));
        }
        for (noun, ids) in
            [("plan", &waiting.plans), ("review", &waiting.reviews), ("permission", &waiting.permissions)]
        {
            if ids.is_empty() {
                continue;
            }
            let verb = if ids.len() == 1 { "waits" } else { "wait" };
            let named = one_line(&join_up_to(ids.iter(), NAMED_MAX));
            let id = ids.first().map(|id| shell_word(id)).unwrap_or_default();
            let commands = format!(
                "`brigade {noun} show {id}`, then `brigade {noun} approve {id}` or `brigade {noun} reject {id}`"
            );
            sentences.push(format!("{} {verb} for your answer ({named}): {commands}.", count(ids.len(), noun)));
        }
        sentences.extend(self.team_branch.as_ref().map(|text| format!("{text}.")));
        sentences
    }
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
pub fn team_branch(status: &TeamBranchStatus) -> Option<String> {
    let TeamBranchStatus { branch, name_in_commands, commits_ahead, problems, .. } = status;
    let commits = count(*commits_ahead, "commit");
    let take_over = (*commits_ahead > 0).then(|| {
        format!(
            "{commits} on {} to take over: `git merge {}`, or `brigade merge`",
            one_line(branch.short()),
            shell_word(name_in_commands)
        )
    });
    let problems = problems.iter().map(|problem| format!("Note: {}. {}", problem.reason, problem.hint));
    take_over.into_iter().chain(problems).reduce(|all, problem| format!("{all}. {problem}"))
}
