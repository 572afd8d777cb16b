//! What waits for the person: mail that was not shown to them, questions they have not answered, plans and reviews that only they can.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::error::CliResult;
use crate::domain::name::HUMAN;
use crate::domain::questions::{Question, Questions};
use crate::domain::request::{Request, RequestKind};
use crate::domain::state::{Mode, SharedState};
use crate::domain::transcript::{Entry, Record};
use crate::ports::{Delivery, Stores};
use crate::sandbox::Sandbox;
use crate::sandbox::filter::own_program_path;
use crate::stores::git::{DriverOptions, GitRepository};
use crate::team::spec::{Isolation, TeamSpec};
use crate::ui::summary::ForYou;
use crate::ui::text::one_line;

/// Files that are named of those that are not committed; more are counted.
const NAMED_MAX: usize = 4;

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Waiting {
    /// Mail that was not shown yet and brings no plan or review.
    pub messages: usize,
    /// Whether any mail was not shown yet.
    pub has_new_mail: bool,
    /// Questions that were not answered, also those in that mail.
    pub questions: Vec<Question>,
    /// All plans and reviews that wait for an answer, oldest first.
    pub approvals: Vec<Request>,
}

impl Waiting {
    /// What waits now.
    ///
    /// # Errors
    /// The stores'.
    pub async fn of(stores: &Stores) -> CliResult<Self> {
        let records = stores.transcripts.load(HUMAN).await?;
        let mail = stores.mailbox.peek(HUMAN).await.unwrap_or_else(|error| {
            // What waits is a notice; who asks for the mail itself is answered with the error.
            tracing::warn!("your mail cannot be read: {error}");
            Vec::new()
        });
        let mut questions = Questions::of(&records);
        let new = new_mail(mail, &delivered(records));
        new.iter().for_each(|delivery| questions.hear(&delivery.message));
        let book = stores.requests.all().await?;
        // A plan or a review is counted as what it is while it waits, and is nothing to read once it is answered.
        let is_request = |delivery: &&Delivery| {
            let id = delivery.message.request_id.as_ref();
            id.is_some_and(|id| {
                book.requests.iter().any(|request| request.id == *id && request.kind != RequestKind::Shutdown)
            })
        };
        let messages = new.iter().filter(|delivery| !is_request(delivery)).count();
        let approvals = book.open_approvals().cloned().collect();
        Ok(Self { messages, has_new_mail: !new.is_empty(), questions: questions.waiting().to_vec(), approvals })
    }

    /// The plans and reviews that nobody but the person answers.
    pub fn approvals_for_you(&self) -> impl Iterator<Item = &Request> {
        self.approvals.iter().filter(|request| request.to == HUMAN)
    }

    /// What waits for the person at the beginning and the end of a run.
    #[must_use]
    pub fn for_you(&self) -> ForYou {
        let ids = |kind: RequestKind| {
            let of_kind = self.approvals_for_you().filter(|request| request.kind == kind);
            of_kind.map(|request| request.id.clone()).collect()
        };
        let (plans, reviews) = (ids(RequestKind::PlanApproval), ids(RequestKind::Review));
        ForYou { messages: self.messages, plans, reviews, checkout: None }
    }
}

/// What is said of a budget that ended this team and was neither raised nor counted anew since.
///
/// # Errors
/// The stores'.
pub async fn spent_budget(stores: &Stores, team: &TeamSpec, state: &SharedState) -> CliResult<Option<String>> {
    let is_its = state.desired == Mode::Pause && state.team().as_deref() == Some(team.name.as_str());
    if !is_its || !team.budget.is_said_to_be_spent(&state.note) {
        return Ok(None);
    }
    let book = stores.ledger.read().await?;
    let has_used = book.spent().keys().any(|account| account.team == team.name.as_str());
    Ok(has_used.then(|| one_line(&state.note)))
}

/// What was delivered, or shown to the person, by these records of a transcript.
#[must_use]
pub fn delivered(records: Vec<Record>) -> HashSet<String> {
    let keys = records.into_iter().filter_map(|record| match record.entry {
        Entry::Message(message) => Some(message.delivered),
        Entry::Compaction { .. } => None,
    });
    keys.flatten().collect()
}

/// Mail that is new to whom these keys were delivered.
#[must_use]
pub fn new_mail(mail: Vec<Delivery>, delivered: &HashSet<String>) -> Vec<Delivery> {
    mail.into_iter().filter(|delivery| !delivered.contains(&delivery.key)).collect()
}

/// A team whose tasks have worktrees, as far as its merges go.
#[derive(Debug, Clone)]
pub struct Isolated {
    workspace: PathBuf,
    into: Option<String>,
}

impl Isolated {
    /// Of this team in this workspace; `None` where its teammates work there together.
    #[must_use]
    pub fn of(team: &TeamSpec, workspace: &Path) -> Option<Self> {
        let isolated = Self { workspace: workspace.to_owned(), into: team.merge_into.clone() };
        (team.isolation == Isolation::Worktree).then_some(isolated)
    }

    /// Names the uncommitted files of the person's checkout, if any, and the consequence. Filters run in the sandbox
    /// of the launch.
    #[must_use]
    pub fn uncommitted(&self, sandbox: Sandbox) -> Option<String> {
        let drivers = DriverOptions { program: own_program_path(), sandbox: Some(sandbox) };
        let paths = GitRepository::uncommitted(&self.workspace, self.into.clone(), drivers).ok()?;
        let named: Vec<String> =
            paths.iter().take(NAMED_MAX).map(|path| one_line(&path.display().to_string())).collect();
        let more = paths.len().saturating_sub(NAMED_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        (!paths.is_empty()).then(|| {
            format!(
                "not committed in your checkout: {}{more}. Teammates do not see that, and it stays as it is: where a merge needs one of these files, the checkout is put on a branch of its own",
                named.join(", ")
            )
        })
    }

    /// What keeps the files of the workspace from being what was merged, where that can be told.
    #[must_use]
    pub fn behind(&self) -> Option<String> {
        GitRepository::behind(&self.workspace, self.into.clone()).ok().flatten()
    }
}
