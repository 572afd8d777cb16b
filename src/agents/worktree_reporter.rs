//! Keeps the files in `.agent/` of a task's worktree up to date while its teammate works on the task.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::host::AgentHost;
use crate::domain::git::worktree_state::{WorkActivity, WorkStep, WorktreeReport};
use crate::domain::team::phase::ClaimRef;
use crate::domain::time::UnixMs;
use crate::ports::{Clock, Repository, Worktree};
use crate::run::progress::{Activity, Progress};

/// The time between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// Reports the work on one attempt of a task.
pub(super) struct WorktreeReporter {
    repository: Arc<dyn Repository>,
    worktree: Worktree,
    provider: String,
    clock: Arc<dyn Clock>,
    started_at: UnixMs,
    progress: Arc<Progress>,
    todos: Arc<Mutex<String>>,
}

impl WorktreeReporter {
    pub fn new(host: &AgentHost, repository: Arc<dyn Repository>, worktree: Worktree) -> Self {
        let clock = Arc::clone(&host.services.clock);
        Self {
            repository,
            worktree,
            provider: host.spec.model.provider.clone(),
            started_at: clock.now(),
            clock,
            progress: Arc::clone(&host.progress),
            todos: Arc::clone(&host.context.caller.todos),
        }
    }

    /// Writes a report at each step and every few seconds, until the teammate gives up the worktree or the claim. The files then stay
    /// as they are, and so does the time of the last heartbeat.
    pub async fn run(self, mut steps: watch::Receiver<WorkStep>) {
        let claim = ClaimRef { task: self.worktree.assignment.task, attempt: self.worktree.assignment.attempt };
        loop {
            let step = *steps.borrow_and_update();
            if self.progress.claim() != Some(claim) {
                return;
            }
            let report = self.report(step);
            if let Err(error) = self.repository.report(&self.worktree, report).await {
                // The files inform other programs. The work does not depend on them.
                tracing::debug!(%error, "cannot report the state of a worktree");
            }
            tokio::select! {
                changed = steps.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(HEARTBEAT_INTERVAL) => {}
            }
        }
    }

    fn report(&self, step: WorkStep) -> WorktreeReport {
        let (activity, tool) = match self.progress.activity() {
            None => (WorkActivity::Idle, None),
            Some(Activity::AskingModel) => (WorkActivity::Thinking, None),
            Some(Activity::RunningTool(tool)) => (WorkActivity::ToolUse, Some(tool.to_string())),
            Some(Activity::CreatingWorktree | Activity::SettingUpWorktree) => (WorkActivity::ToolUse, None),
            Some(
                Activity::RetryingModel(_)
                | Activity::WaitingForBudget
                | Activity::WaitingForPermission(_)
                | Activity::WaitingToWrite(_),
            ) => (WorkActivity::Waiting, None),
        };
        let program = self.progress.program();
        let assignment = &self.worktree.assignment;
        let age = i64::try_from(self.progress.age().as_millis()).unwrap_or(i64::MAX);
        WorktreeReport {
            step,
            session: format!("{}/{}", assignment.worker, assignment.teammate),
            provider: self.provider.clone(),
            provider_session: program.session,
            provider_pid: program.pid,
            worker_pid: std::process::id(),
            started_at: self.started_at,
            activity,
            last_activity: UnixMs(self.clock.now().0.saturating_sub(age)),
            tool,
            tool_calls: self.progress.tool_calls(),
            todo_list: self.todos.lock().clone(),
        }
    }
}
