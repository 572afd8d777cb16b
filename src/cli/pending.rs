//! The things that wait for the person: new mail, open questions, and the plans and reviews that only the person can answer.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::error::CliResult;
use crate::domain::approval::{Request, RequestKind};
use crate::domain::message::Message;
use crate::domain::name::HUMAN;
use crate::domain::pending_questions::{Question, Questions};
use crate::domain::state::{Mode, SharedState};
use crate::domain::state_note::StateNote;
use crate::domain::transcript::{Record, TranscriptEntry};
use crate::ports::{Delivery, Stores};
use crate::sandbox::Sandbox;
use crate::sandbox::filter::own_program_path;
use crate::stores::git::{DriverOptions, GitRepository};
use crate::team::spec::{Isolation, TeamSpec};
use crate::ui::summary::PendingView;
use crate::ui::text::one_line;

/// Uncommitted files that are named. More are counted.
const NAMED_MAX: usize = 4;

/// The things that wait for the person at one moment.
#[derive(Debug, Clone, Default)]
pub struct PendingForUser {
    /// New mail, without messages that bring a plan or a review.
    pub mail: Vec<Message>,
    /// True if any mail is new.
    pub has_new_mail: bool,
    /// Open questions, also those in new mail.
    pub questions: Vec<Question>,
    /// All plans and reviews without an answer, oldest first.
    pub approvals: Vec<Request>,
}

impl PendingForUser {
    /// Reads what waits now.
    ///
    /// # Errors
    /// A store cannot be read. Mail that cannot be read is only a warning.
    pub async fn of(stores: &Stores) -> CliResult<Self> {
        let records = stores.transcripts.load(HUMAN).await?;
        let mail = stores.mailbox.peek(HUMAN).await.unwrap_or_else(|error| {
            // `brigade inbox` reports the error to a person who reads the mail.
            tracing::warn!("your mail cannot be read: {error}");
            Vec::new()
        });
        let mut questions = Questions::of(&records);
        let new = new_mail(mail, &delivered_keys(records));
        new.iter().for_each(|delivery| questions.record_shown(&delivery.message));
        let approvals = stores.requests.all().await?;
        // A plan or a review counts as an approval while it is open, and needs no reading after its answer.
        let is_request = |delivery: &&Delivery| {
            let id = delivery.message.request_id.as_ref();
            id.is_some_and(|id| {
                approvals.requests.iter().any(|request| request.id == *id && request.kind != RequestKind::Shutdown)
            })
        };
        let has_new_mail = !new.is_empty();
        let open_approvals = approvals.open_approvals().cloned().collect();
        let mail =
            new.iter().filter(|delivery| !is_request(delivery)).map(|delivery| delivery.message.clone()).collect();
        Ok(Self { mail, has_new_mail, questions: questions.waiting().to_vec(), approvals: open_approvals })
    }

    /// The plans and reviews that only the person can answer.
    pub fn approvals_for_you(&self) -> impl Iterator<Item = &Request> {
        self.approvals.iter().filter(|request| request.to == HUMAN)
    }

    /// The summary that a run prints when it begins and ends.
    #[must_use]
    pub fn for_you(&self) -> PendingView {
        let ids = |kind: RequestKind| {
            let of_kind = self.approvals_for_you().filter(|request| request.kind == kind);
            of_kind.map(|request| request.id.clone()).collect()
        };
        let (plans, reviews) = (ids(RequestKind::PlanApproval), ids(RequestKind::Review));
        PendingView { messages: self.mail.len(), plans, reviews, checkout: None }
    }
}

/// The note of the budget that ended this team; `None` if there is none, or if it was raised or reset since.
///
/// # Errors
/// The ledger cannot be read.
pub async fn spent_budget(stores: &Stores, team: &TeamSpec, state: &SharedState) -> CliResult<Option<String>> {
    let is_its = state.desired == Mode::Pause && state.team().as_deref() == Some(team.name.as_str());
    let StateNote::BudgetSpent { limit, .. } = state.reason() else { return Ok(None) };
    if !is_its || !team.budget.has_limit(&limit) {
        return Ok(None);
    }
    let totals = stores.ledger.read().await?;
    let has_used = totals.spent().keys().any(|account| account.team == team.name.as_str());
    Ok(has_used.then(|| one_line(&state.note)))
}

/// The keys of the messages that these records of a transcript delivered.
#[must_use]
pub fn delivered_keys(records: Vec<Record>) -> HashSet<String> {
    let keys = records.into_iter().filter_map(|record| match record.entry {
        TranscriptEntry::Message(message) => Some(message.delivered),
        TranscriptEntry::Compaction { .. } => None,
    });
    keys.flatten().collect()
}

/// The mail whose keys are not among the delivered ones.
#[must_use]
pub fn new_mail(mail: Vec<Delivery>, delivered: &HashSet<String>) -> Vec<Delivery> {
    mail.into_iter().filter(|delivery| !delivered.contains(&delivery.key)).collect()
}

/// The merges of a team with worktrees, as seen from the person's checkout.
#[derive(Debug, Clone)]
pub struct MergeStatus {
    workspace: PathBuf,
    into: Option<String>,
}

impl MergeStatus {
    /// The merges of this team; `None` if its teammates work in the workspace itself.
    #[must_use]
    pub fn of(team: &TeamSpec, workspace: &Path) -> Option<Self> {
        let isolated = Self { workspace: workspace.to_owned(), into: team.merge_into.clone() };
        (team.isolation == Isolation::Worktree).then_some(isolated)
    }

    /// Names the uncommitted files of the person's checkout and the consequence. Git filters run in the sandbox of the launch.
    #[must_use]
    pub fn uncommitted(&self, sandbox: Sandbox) -> Option<String> {
        let drivers = DriverOptions { program: own_program_path(), launch_sandbox: Some(sandbox) };
        let paths = GitRepository::uncommitted(&self.workspace, self.into.clone(), drivers).ok()?;
        let named: Vec<String> =
            paths.iter().take(NAMED_MAX).map(|path| one_line(&path.display().to_string())).collect();
        let more = paths.len().saturating_sub(NAMED_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        (!paths.is_empty()).then(|| {
            format!(
                "uncommitted in your checkout: {}{more}. Teammates do not see these changes. If a merge needs one of these files, your checkout is moved to a separate branch",
                named.join(", ")
            )
        })
    }

    /// The reason why the files of the workspace differ from the merged state, if git can tell.
    #[must_use]
    pub fn behind(&self) -> Option<String> {
        GitRepository::checkout_problem(&self.workspace, self.into.clone()).ok().flatten()
    }
}
