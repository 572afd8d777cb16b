//! The branch of a team with worktrees: its state, and how its work is taken over.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::lead_status::LeadStatus;
use super::next::Next;
use super::refusal::{ApiResult, Refusal};
use super::team::choice_refusal;
use super::workspace::Workspace;
use crate::domain::git::branch_name::BranchName;
use crate::domain::log::event::Notice;
use crate::domain::task::{Task, TaskId, TaskStatus};
use crate::domain::team::name::Name;
use crate::domain::team::team_spec::{Isolation, TeamSpec};
use crate::domain::text::one_line;
pub use crate::git::drivers::MissingDriver;
pub use crate::git::take_over::{TakeOver, TeamBranchStatus};
use crate::git::{DriverOptions, GitRepository};
use crate::ports::{BoardView, RecordedMerge};
use crate::sandbox::Sandbox;
use crate::stores::workspace::OpenMode;

/// The work of a team that was taken over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Merged {
    /// The team.
    #[schemars(with = "String")]
    pub team: Name,
    /// The team branch.
    #[schemars(with = "String")]
    pub branch: BranchName,
    /// The branches and commits.
    #[serde(flatten)]
    #[schemars(with = "serde_json::Value")]
    pub take_over: TakeOver,
    /// The state of the team branch afterwards, if it can be read.
    #[serde(skip)]
    pub status: Option<TeamBranchStatus>,
    /// The next steps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<Next>,
}

/// The work of a team that was recorded as taken over in another form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SetAside {
    /// The team.
    #[schemars(with = "String")]
    pub team: Name,
    /// The team branch.
    #[schemars(with = "String")]
    pub branch: BranchName,
    /// The changes, in one line each; none if the person's branch has all commits.
    pub changes: Vec<String>,
}

/// Returns the team of a merge: the named one, else the running one, else the last one.
///
/// # Errors
/// There is no such team, or several teams are possible.
pub async fn chosen_team(workspace: &Workspace, named: Option<&String>) -> ApiResult<TeamSpec> {
    let name = LeadStatus::with_state(workspace).await?.team_name(named);
    if let Some(spec) = workspace.location.team_if_valid(name.as_deref()) {
        return Ok(spec);
    }
    let config = workspace.location.config()?;
    config.select(name.as_deref())?;
    Err(choice_refusal(workspace))
}

/// The team branch of a team with worktrees, as seen from the person's checkout.
#[derive(Debug, Clone)]
pub struct TeamBranch {
    folder: PathBuf,
    team: TeamSpec,
}

impl TeamBranch {
    /// The branch of this team in the workspace `folder`; `None` if its teammates work in the workspace itself.
    pub fn of(team: &TeamSpec, folder: &Path) -> Option<Self> {
        let has_branch = team.isolation == Isolation::Worktree;
        has_branch.then(|| Self { folder: folder.to_owned(), team: team.clone() })
    }

    /// The branch of this team, for a request that needs it.
    ///
    /// # Errors
    /// The teammates work in the workspace itself, or there is no workspace.
    pub fn required(team: &TeamSpec, workspace: &Workspace) -> ApiResult<Self> {
        Self::of(team, &workspace.folder()?).ok_or_else(|| {
            let message =
                format!("cannot merge: team {} has no branch, because it works in the workspace itself", team.name);
            Refusal::refused(message).next("isolation = \"worktree\" gives a team its own branch")
        })
    }

    /// The uncommitted files of the person's checkout. Git filters run in the sandbox of the launch.
    ///
    /// # Errors
    /// The repository cannot be used.
    pub fn uncommitted(&self, sandbox: Sandbox) -> ApiResult<Vec<PathBuf>> {
        Ok(GitRepository::uncommitted(&self.folder, DriverOptions::of_launch(sandbox))?)
    }

    /// The drivers of tracked files whose programs are missing.
    ///
    /// # Errors
    /// The repository cannot be used.
    pub fn missing_drivers(&self) -> ApiResult<Vec<MissingDriver>> {
        Ok(GitRepository::missing_drivers(&self.folder)?)
    }

    /// The state of the branch. With a view of the board, the branch should have the merges that the board records.
    ///
    /// # Errors
    /// The repository cannot be used.
    pub fn status(&self, view: Option<&BoardView>) -> ApiResult<TeamBranchStatus> {
        let recorded = view.map(recorded_merges).unwrap_or_default();
        let (team, target) = (self.team.name.as_str(), self.team.merge_into.as_ref());
        Ok(GitRepository::team_branch_status(&self.folder, team, target, &recorded)?)
    }

    /// Checks that a launch can merge the person's branch. A branch that the person chose gets no such merge.
    ///
    /// # Errors
    /// A launch would stop, for this reason.
    pub fn check_launch(&self) -> ApiResult<()> {
        match self.team.merge_into {
            Some(_) => Ok(()),
            None => Ok(GitRepository::check_launch(&self.folder, self.team.name.as_str())?),
        }
    }

    /// Merges the branch into the person's branch, as `git merge` does. It overwrites no change of the person. If git cannot merge,
    /// nothing is changed. After a crash, a repetition completes the merge.
    ///
    /// # Errors
    /// Git cannot merge, or the workspace cannot be used.
    pub async fn take_over(&self, workspace: &Workspace) -> ApiResult<Merged> {
        let drivers = DriverOptions::of_launch(workspace.location.sandbox(Some(&self.team))?);
        // Without the board, only the text about a deleted branch is shorter.
        let board = workspace.board(OpenMode::ReadOnly).await?;
        let recorded = board.view().await.map(|view| recorded_merges(&view)).unwrap_or_default();
        let (team, branch) = (self.team.name.clone(), self.team.target_branch());
        let take_over = GitRepository::take_over(&self.folder, team.as_str(), &branch, &recorded, drivers)?;
        // The work is merged, so a board that cannot be read is no error here.
        let view = board.view().await.ok();
        let status = self.status(view.as_deref()).ok();
        let next = status.as_ref().map(TeamBranchStatus::next).unwrap_or_default();
        Ok(Merged { team, branch, take_over, status, next })
    }

    /// Records that the person's branch has the team's work in another form. The team branch starts from the person's commit, and a ref
    /// keeps its own.
    ///
    /// # Errors
    /// A team runs, the branch is one of the person, or the workspace cannot be used.
    pub async fn set_aside(&self, workspace: &Workspace) -> ApiResult<SetAside> {
        let drivers = DriverOptions::of_launch(workspace.location.sandbox(Some(&self.team))?);
        LeadStatus::of(workspace).await?.refuse_if_running("set the team branch aside")?;
        if self.team.merge_into.is_some() {
            let branch = self.team.target_branch();
            let message = format!("cannot set aside {}: it is a branch of yours", one_line(branch.short()));
            return Err(Refusal::refused(message).next("move it with `git branch -f`, or remove merge_into"));
        }
        let team = self.team.name.as_str();
        // No team can start meanwhile.
        let led = workspace.open(OpenMode::Lead { team: team.to_owned() }).await?;
        let view = led.stores.board.view().await?;
        let is_completed = |task: &&Arc<Task>| task.status == TaskStatus::Completed;
        let completed: Vec<TaskId> = view.tasks.values().filter(is_completed).map(|task| task.id).collect();
        let notices = GitRepository::record_taken(&self.folder, team, &completed, &recorded_merges(&view), drivers)?;
        let text = |notice| match notice {
            Notice::Info(text) | Notice::Warning { text, .. } => one_line(&text),
        };
        let changes = notices.into_iter().map(text).collect();
        Ok(SetAside { team: self.team.name.clone(), branch: self.team.target_branch(), changes })
    }
}

fn recorded_merges(view: &BoardView) -> Vec<RecordedMerge> {
    RecordedMerge::of_board(view.tasks.values().map(Arc::as_ref))
}
