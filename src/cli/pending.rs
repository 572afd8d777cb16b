//! A summary of the things that wait for the person, and the state of the person's checkout.

use std::path::{Path, PathBuf};

use super::error::CliResult;
use crate::domain::approval::RequestKind;
use crate::domain::state::{Mode, SharedState};
use crate::domain::state_note::StateNote;
use crate::ports::Stores;
use crate::sandbox::Sandbox;
use crate::sandbox::filter::own_program_path;
use crate::service::pending::PendingForUser;
use crate::stores::git::{DriverOptions, GitRepository};
use crate::team::spec::{Isolation, TeamSpec};
use crate::ui::summary::PendingView;
use crate::ui::text::{listed, one_line};

/// Uncommitted files that are named. More are counted.
const NAMED_MAX: usize = 4;

/// The summary that a run prints when it begins and ends.
#[must_use]
pub fn pending_view(pending: &PendingForUser) -> PendingView {
    let ids = |kind: RequestKind| {
        let of_kind = pending.approvals_for_you().filter(|request| request.kind == kind);
        of_kind.map(|request| request.id.clone()).collect()
    };
    let (plans, reviews) = (ids(RequestKind::PlanApproval), ids(RequestKind::Review));
    PendingView { messages: pending.mail.len(), plans, reviews, checkout: None }
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
        let names = paths.iter().map(|path| one_line(&path.display().to_string()));
        (!paths.is_empty()).then(|| {
            format!(
                "uncommitted in your checkout: {}. Teammates do not see these changes. If a merge needs one of these files, your checkout is moved to a separate branch",
                listed(names, NAMED_MAX)
            )
        })
    }

    /// The reason why the files of the workspace differ from the merged state, if git can tell.
    #[must_use]
    pub fn behind(&self) -> Option<String> {
        GitRepository::checkout_problem(&self.workspace, self.into.clone()).ok().flatten()
    }
}
