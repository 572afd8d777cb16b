//! A summary of the things that wait for the person, and the state of the team branch.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::CliResult;
use crate::domain::git::branch_name::BranchName;
use crate::domain::team::approval::RequestKind;
use crate::domain::team::name::LEAD;
use crate::domain::team::state::{Mode, SharedState};
use crate::domain::team::state_note::StateNote;
use crate::domain::team::team_spec::{Isolation, TeamSpec};
use crate::git::drivers::MissingDriver;
use crate::git::take_over::TeamBranchStatus;
use crate::git::{DriverOptions, GitRepository};
use crate::ports::{BoardView, RecordedMerge, Stores};
use crate::sandbox::Sandbox;
use crate::sandbox::filter::own_program_path;
use crate::service::pending::PendingForPerson;
use crate::ui::command_form::shell_word;
use crate::ui::pending::PendingView;
use crate::ui::text::{count, join_up_to, one_line};

/// Uncommitted files that are named. More are counted.
const NAMED_MAX: usize = 4;

/// The summary that a run prints when it begins and ends.
pub fn pending_view(pending: &PendingForPerson) -> PendingView {
    let ids = |kind: RequestKind| {
        let of_kind = pending.approvals_for_person().filter(|request| request.kind == kind);
        of_kind.map(|request| request.id.clone()).collect()
    };
    let first = pending.mail.first().map(|message| &message.from);
    let sender = first.filter(|from| pending.mail.iter().all(|message| message.from == **from)).cloned();
    PendingView {
        messages: pending.mail.len(),
        sender,
        plans: ids(RequestKind::PlanApproval),
        reviews: ids(RequestKind::Review),
        permissions: ids(RequestKind::Permission),
        lead_asks: pending.questions.iter().any(|question| question.from == LEAD),
        team_branch: None,
    }
}

/// The note of the budget that ended this team; `None` if there is none, or if it was raised or reset since.
///
/// # Errors
/// The ledger cannot be read.
pub async fn spent_budget(stores: &Stores, team: &TeamSpec, state: &SharedState) -> CliResult<Option<String>> {
    let is_pause_of_team = state.desired == Mode::Pause && state.team().as_deref() == Some(team.name.as_str());
    let (limit, is_too_small) = match state.reason() {
        StateNote::BudgetSpent { limit, .. } => (limit, false),
        StateNote::BudgetTooSmall { limit, .. } => (limit, true),
        _ => return Ok(None),
    };
    if !is_pause_of_team || !team.has_budget_limit(&limit) {
        return Ok(None);
    }
    if is_too_small {
        return Ok(Some(one_line(&state.note)));
    }
    let totals = stores.ledger.read().await?;
    let has_used = totals.spent().keys().any(|account| account.team == team.name.as_str());
    Ok(has_used.then(|| one_line(&state.note)))
}

/// The team branch of a team with worktrees, as seen from the person's checkout.
#[derive(Debug, Clone)]
pub struct TeamBranch {
    workspace: PathBuf,
    team: String,
    merge_into: Option<BranchName>,
}

impl TeamBranch {
    /// The branch of this team; `None` if its teammates work in the workspace itself.
    pub fn of(team: &TeamSpec, workspace: &Path) -> Option<Self> {
        if team.isolation != Isolation::Worktree {
            return None;
        }
        let workspace = workspace.to_owned();
        Some(Self { workspace, team: team.name.to_string(), merge_into: team.merge_into.clone() })
    }

    /// Names the uncommitted files of the person's checkout. Git filters run in the sandbox of the launch.
    pub fn uncommitted(&self, sandbox: Sandbox) -> Option<String> {
        let drivers = DriverOptions { program: own_program_path(), launch_sandbox: Some(sandbox) };
        let paths = GitRepository::uncommitted(&self.workspace, drivers).ok()?;
        let names = paths.iter().map(|path| one_line(&path.display().to_string()));
        (!paths.is_empty()).then(|| {
            let names = join_up_to(names, NAMED_MAX);
            format!("uncommitted in your checkout: {names}. Teammates do not see these changes")
        })
    }

    /// The drivers of tracked files whose programs are missing.
    ///
    /// # Errors
    /// The repository cannot be used.
    pub fn missing_drivers(&self) -> CliResult<Vec<MissingDriver>> {
        Ok(GitRepository::missing_drivers(&self.workspace)?)
    }

    /// The state of the branch. With a view of the board, the branch should have the merges that the board records.
    ///
    /// # Errors
    /// The repository cannot be used.
    pub fn status(&self, view: Option<&BoardView>) -> CliResult<TeamBranchStatus> {
        let tasks = view.into_iter().flat_map(|view| view.tasks.values().map(Arc::as_ref));
        let recorded = RecordedMerge::of_board(tasks);
        Ok(GitRepository::team_branch_status(&self.workspace, &self.team, self.merge_into.as_ref(), &recorded)?)
    }

    /// Checks that a launch can merge the person's branch. A branch that the person chose gets no such merge.
    ///
    /// # Errors
    /// A launch would stop, for this reason.
    pub fn check_launch(&self) -> CliResult<()> {
        match self.merge_into {
            Some(_) => Ok(()),
            None => Ok(GitRepository::check_launch(&self.workspace, &self.team)?),
        }
    }

    /// The commands that take the merged work over, if the person's checkout lacks any, and the problems with the branch.
    pub fn sentence(&self, view: Option<&BoardView>) -> Option<String> {
        self.status(view).ok().and_then(|status| sentence(&status))
    }
}

/// The commands that take the merged work over, and the problems with the branch; `None` if there is neither.
pub fn sentence(status: &TeamBranchStatus) -> Option<String> {
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
