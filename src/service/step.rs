//! The steps of a member's work: a tool call, a merge, the run of a verify command. Records when each starts and ends.

use tokio::time::Instant;
use tracing::Instrument;

use super::RecordEvent;
use crate::domain::log::event::EventKind;
use crate::domain::task::TaskId;
use crate::process::CommandError;
use crate::process::command::{CommandContext, CommandOutcome};

/// A step of a member's work. The event log records each as a tool call.
pub struct Step<'a> {
    /// The member.
    pub teammate: &'a str,
    /// Its task.
    pub task: Option<TaskId>,
    /// The name: a tool, `merge` or `verify`.
    pub name: &'a str,
    /// The id of the call.
    pub call: String,
    /// The command, the path or the branches, in one line for people.
    pub about: String,
}

impl<'a> Step<'a> {
    /// Creates a step that the harness performs without a tool call of a model.
    pub fn new(teammate: &'a str, task: Option<TaskId>, name: &'a str, about: String) -> Self {
        Self { teammate, task, name, call: format!("{name}-{}", fastrand::u64(..)), about }
    }

    /// Does the work, and records its start and its end. `failure` returns the reason if the outcome counts as failed.
    pub async fn run<T>(
        self,
        events: &RecordEvent,
        work: impl Future<Output = T>,
        failure: impl FnOnce(&T) -> Option<String>,
    ) -> T {
        let Step { teammate, task, name, call, about } = self;
        let (teammate, tool) = (teammate.to_owned(), name.to_owned());
        events(EventKind::ToolStarted {
            teammate: teammate.clone(),
            task,
            tool: tool.clone(),
            call: call.clone(),
            about,
        });
        let span = tracing::info_span!("tool", tool, call);
        let started = Instant::now();
        let outcome = work.instrument(span).await;
        let reason = failure(&outcome);
        let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (ok, not_made) = (reason.is_none(), false);
        events(EventKind::ToolFinished { teammate, task, tool, call, ok, not_made, ms, reason });
        outcome
    }
}

/// Awaits `work`, which runs the `command`, as a step with this name. The step fails if the command does not exit with 0.
pub(super) async fn run_command(
    name: &str,
    command: &str,
    context: &CommandContext,
    events: &RecordEvent,
    work: impl Future<Output = Result<CommandOutcome, CommandError>>,
) -> Result<CommandOutcome, CommandError> {
    let task = context.claim.borrow().map(|claim| claim.task);
    let failure = |result: &Result<CommandOutcome, CommandError>| match result {
        Ok(outcome) if outcome.is_success() => None,
        Ok(outcome) => Some(outcome.headline()),
        Err(error) => Some(error.headline()),
    };
    Step::new(&context.teammate, task, name, command.to_owned()).run(events, work, failure).await
}
