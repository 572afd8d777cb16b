//! Events about the start and the end of a step, such as a merge or the run of a verify command.

use std::time::Instant;

use super::{RecordEvent, ServiceError};
use crate::domain::event::EventKind;
use crate::domain::task::TaskId;

/// A step of a completion. The event log shows it like a tool call.
pub(super) struct Step<'a> {
    pub teammate: &'a str,
    pub task: Option<TaskId>,
    /// The name: `merge` or `verify`.
    pub name: &'static str,
    /// The command, or the branches.
    pub about: String,
}

/// Runs a step and records its start and its end. `failure` returns the reason why a finished step counts as failed.
pub(super) async fn run_step<T>(
    events: &RecordEvent,
    step: Step<'_>,
    work: impl Future<Output = Result<T, ServiceError>>,
    failure: impl FnOnce(&T) -> Option<String>,
) -> Result<T, ServiceError> {
    let Step { teammate, task, name, about } = step;
    let (teammate, tool) = (teammate.to_owned(), name.to_owned());
    let call = format!("{name}-{}", fastrand::u64(..));
    events(EventKind::ToolStarted { teammate: teammate.clone(), task, tool: tool.clone(), call: call.clone(), about });
    let started = Instant::now();
    let outcome = work.await;
    let reason = match &outcome {
        Ok(done) => failure(done),
        Err(error) => Some(crate::domain::failure_summary::headline(&error.to_string())),
    };
    let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    events(EventKind::ToolFinished { teammate, task, tool, call, ok: reason.is_none(), ms, reason });
    outcome
}
