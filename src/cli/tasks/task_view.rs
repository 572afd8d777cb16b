//! The data for rendering tasks: live workers, open approvals and possible claimants.

use std::collections::HashSet;
use std::sync::Arc;

use crate::cli::context::{Context, candidates};
use crate::cli::error::CliResult;
use crate::domain::approval::{Approvals, Request};
use crate::domain::time::UnixMs;
use crate::ports::BoardView;
use crate::stores::workspace::OpenMode;
use crate::ui::tasks::TaskViewContext;
use crate::ui::why::ClaimCandidate;

/// The data of a [`TaskViewContext`], loaded from the workspace.
pub(super) struct TaskViewSources {
    /// All plans and reviews.
    pub approvals: Approvals,
    view: Arc<BoardView>,
    live_workers: Option<HashSet<String>>,
    open_approvals: Vec<Request>,
    candidates: Vec<ClaimCandidate>,
    now: UnixMs,
}

impl TaskViewSources {
    /// Loads the data for views of this board.
    ///
    /// # Errors
    /// The stores of the workspace cannot be read.
    pub async fn load(context: &Context, view: Arc<BoardView>) -> CliResult<Self> {
        let approvals = context.stores(OpenMode::ReadOnly).await?.requests.all().await?;
        Ok(Self {
            live_workers: context.live_workers(&view).await,
            open_approvals: approvals.open_approvals().cloned().collect(),
            candidates: context.team_if_valid(None).as_ref().map(candidates).unwrap_or_default(),
            now: context.now(),
            approvals,
            view,
        })
    }

    /// Returns the context for rendering tasks.
    pub fn context(&self) -> TaskViewContext<'_> {
        TaskViewContext {
            view: &self.view,
            live_workers: self.live_workers.as_ref(),
            approvals: &self.open_approvals,
            candidates: &self.candidates,
            now: self.now,
        }
    }
}
