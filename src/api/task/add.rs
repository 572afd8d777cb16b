//! New tasks: one, or those of a plan.

use std::path::Path;

use super::change::check_owner;
use crate::api::lead_status::{LeadStatus, Pause};
use crate::api::members::candidates;
use crate::api::why::{NoClaimant, no_claimant};
use crate::api::workspace::Workspace;
use crate::api::{ApiResult, Refusal};
use crate::domain::task::transition::{Actor, ActorKind};
use crate::domain::task::{NewTask, Task, TaskStatus};
use crate::domain::team::name::HUMAN;
use crate::embed::read_plan;
use crate::platform::reading::AllowedKinds;
use crate::service::ServiceError;
use crate::service::plan_import::{self, Import};
use crate::service::task_creation::add_task;
use crate::stores::workspace::OpenMode;

/// Adds a task. Returns it with its number. It is on the board when this returns.
///
/// # Errors
/// The board refuses the task, or it cannot be reserved for its owner.
pub async fn add(workspace: &Workspace, task: NewTask, by: &Actor) -> ApiResult<Task> {
    check_owner(workspace, task.owner.as_deref()).await?;
    let board = workspace.board(OpenMode::Write).await?;
    add_task(board.as_ref(), by, task).await.map_err(|error| match error {
        ServiceError::Store(error) => error.into(),
        error => Refusal::refused(format!("cannot add the task: {error}")),
    })
}

/// Adds the tasks of a plan file for the person, and updates those that were not started and not changed on the board. After a crash
/// the board has some of them, and another import adds the others.
///
/// # Errors
/// The file is no plan, or the board refuses a task.
pub async fn import(workspace: &Workspace, file: &Path) -> ApiResult<Import> {
    let tasks = read_plan(file, &workspace.folder()?, AllowedKinds::FilesAndPipes)?;
    let board = workspace.board(OpenMode::Write).await?;
    let by = Actor::new(HUMAN, ActorKind::Person);
    Ok(plan_import::import(board.as_ref(), &by, tasks).await?)
}

/// The reasons why new tasks do not start.
#[derive(Debug, Clone, Default)]
pub struct StartObstacles<'a> {
    /// The tasks that no member of the team can claim.
    pub unclaimable: Vec<(&'a Task, NoClaimant)>,
    /// The pause of the team, or of its next launch.
    pub pause: Option<Pause>,
}

/// Returns the reasons why these tasks do not start. Facts that cannot be read count as none.
pub async fn start_obstacles<'a>(
    workspace: &Workspace,
    tasks: impl IntoIterator<Item = &'a Task>,
) -> StartObstacles<'a> {
    let lead_status = LeadStatus::with_state(workspace).await.unwrap_or_default();
    let candidates = lead_status.spec(&workspace.location).as_ref().map(candidates).unwrap_or_default();
    let open = tasks.into_iter().filter(|task| task.status == TaskStatus::Pending);
    let unclaimable = open.filter_map(|task| Some((task, no_claimant(task, &candidates)?))).collect();
    StartObstacles { unclaimable, pause: lead_status.pause() }
}
