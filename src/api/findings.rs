//! The problems of a workspace's board and of the usage reports of its models, as a check finds them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::refusal::ApiResult;
use super::task::abandoned_tasks;
use super::workspace::Workspace;
use crate::domain::task::TaskId;
use crate::domain::task::dependencies::{find_cycles, unfinished_blockers};
use crate::ports::{BoardView, InvalidEntry, QuarantinedTask};
use crate::stores::workspace::OpenMode;

/// A problem of the board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BoardFinding {
    /// A file that is not a valid task.
    Invalid(InvalidEntry),
    /// The invalid file of a task that was set aside.
    Quarantined {
        /// The task.
        task: TaskId,
        /// The place of its file.
        file: QuarantinedTask,
    },
    /// Tasks in progress whose worker has died.
    Abandoned(Vec<TaskId>),
    /// Tasks that wait for each other, in this order.
    Cycle(Vec<TaskId>),
    /// Tasks that other programs set to in progress without a claim.
    Foreign(Vec<TaskId>),
}

/// Returns the board and its problems.
///
/// # Errors
/// The workspace does not exist, or its board cannot be read.
pub async fn board(workspace: &Workspace) -> ApiResult<(Arc<BoardView>, Vec<BoardFinding>)> {
    let board = workspace.board(OpenMode::ReadOnly).await?;
    let view = board.view().await?;
    let mut findings: Vec<BoardFinding> = view.invalid.iter().cloned().map(BoardFinding::Invalid).collect();
    for (task, file) in board.quarantined_tasks().await? {
        if !view.tasks.contains_key(&task) {
            findings.push(BoardFinding::Quarantined { task, file });
        }
    }
    let abandoned: Vec<TaskId> = abandoned_tasks(workspace, &view).await.iter().map(|task| task.id).collect();
    let blockers_of = |id: TaskId| {
        let task = view.tasks.get(&id).into_iter();
        task.flat_map(|task| unfinished_blockers(task, view.as_ref())).map(|blocker| blocker.id).collect()
    };
    let cycles = find_cycles(view.tasks.keys().copied(), blockers_of, |_| true);
    let foreign: Vec<TaskId> = view.tasks.values().filter(|task| task.is_foreign()).map(|task| task.id).collect();
    findings.extend((!abandoned.is_empty()).then_some(BoardFinding::Abandoned(abandoned)));
    findings.extend(cycles.into_iter().map(BoardFinding::Cycle));
    findings.extend((!foreign.is_empty()).then_some(BoardFinding::Foreign(foreign)));
    Ok((view, findings))
}

/// Returns the models of the ledger whose servers never reported a usable usage, with the number of their requests.
///
/// # Errors
/// The workspace does not exist, or its ledger cannot be read.
pub async fn models_without_usage(workspace: &Workspace) -> ApiResult<BTreeMap<String, u64>> {
    let totals = workspace.stores(OpenMode::ReadOnly).await?.ledger.read().await?;
    let mut requests: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for (account, spend) in totals.spent() {
        let (all, unconfirmed) = requests.entry(account.model.clone()).or_default();
        *all += spend.requests;
        *unconfirmed += spend.unconfirmed;
    }
    requests.retain(|_, (all, unconfirmed)| *all > 0 && all == unconfirmed);
    Ok(requests.into_iter().map(|(model, (all, _))| (model, all)).collect())
}
