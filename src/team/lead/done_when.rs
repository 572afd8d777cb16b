//! The check of the goal: the command `done_when`.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::agents::AgentServices;
use crate::agents::isolation::WorktreeService;
use crate::domain::log::event::GoalCheck;
use crate::domain::task::failure_summary;
use crate::domain::team::name::LEAD;
use crate::ports::{CommandPlace, Repository, SetupPlace};
use crate::process::CommandError;
use crate::process::command::{self, CommandContext, CommandOutcome};
use crate::service::step::Step;
use crate::service::{RecordEvent, setup};
use crate::team::heartbeat::WorkerReporter;

/// The time limit of `done_when`.
const DONE_WHEN_TIMEOUT: Duration = Duration::from_secs(1800);

/// The check of one session.
#[derive(Default)]
pub(super) struct DoneWhen {
    running: Option<JoinHandle<DoneWhenResult>>,
    /// The result, once [`Self::collect`] found it.
    pub result: Option<DoneWhenResult>,
}

/// The result of `done_when`.
#[derive(Debug, Clone)]
pub(super) struct DoneWhenResult {
    /// True if the command exited 0.
    pub is_met: bool,
    /// The command's exit and the end of its output.
    pub text: String,
}

impl DoneWhen {
    /// Starts the command. Notifies the lead at its end.
    pub fn start(&mut self, script: String, services: &AgentServices, worker: &Arc<WorkerReporter>) {
        let done = Arc::clone(&services.member_reported);
        let isolation = services.isolation.clone();
        let events = services.events.facts();
        self.running = Some(tokio::spawn(run(script, command_context(services, worker), isolation, events, done)));
    }

    /// Returns true while the command runs.
    pub fn is_running(&self) -> bool {
        self.running.as_ref().is_some_and(|check| !check.is_finished())
    }

    /// Waits for the result of a command that was started.
    pub async fn collect(&mut self) {
        if let Some(check) = self.running.take() {
            self.result = check.await.ok();
        }
    }
}

impl Drop for DoneWhen {
    fn drop(&mut self) {
        if let Some(check) = &self.running {
            check.abort();
        }
    }
}

impl DoneWhenResult {
    /// Returns the result for the event of the session's end.
    pub fn for_event(&self) -> GoalCheck {
        let text = if self.is_met {
            self.text.lines().next().unwrap_or("").to_owned()
        } else {
            failure_summary::summary_of(&self.text)
        };
        GoalCheck { met: self.is_met, evidence: text.trim_end_matches('.').to_owned() }
    }
}

/// Runs the command in the folder with the merged work.
async fn run(
    script: String,
    mut context: CommandContext,
    isolation: Option<WorktreeService>,
    events: RecordEvent,
    done: Arc<Notify>,
) -> DoneWhenResult {
    let obstacle = match isolation {
        Some(isolation) => prepare(&*isolation.repository, &mut context, &events).await,
        None => None,
    };
    let result = match obstacle {
        Some(reason) => DoneWhenResult { is_met: false, text: format!("`{script}` was not run: {reason}") },
        None => match run_command(&script, &context, &events).await {
            Ok(outcome) => {
                let text = format!("`{script}`: {}\n{}", outcome.ending_text(), outcome.output);
                DoneWhenResult { is_met: outcome.is_success(), text }
            }
            Err(error) => DoneWhenResult { is_met: false, text: format!("`{script}`: {error}") },
        },
    };
    // This task finishes just after the notification. The lead may notice only at its next tick.
    done.notify_one();
    result
}

/// Runs the command as a step of the lead. A goal that is not met is no failure of the step: the end of the session reports it.
async fn run_command(
    script: &str,
    context: &CommandContext,
    events: &RecordEvent,
) -> Result<CommandOutcome, CommandError> {
    let work = command::run(script, DONE_WHEN_TIMEOUT, context);
    Step::new(LEAD, None, "done_when", script.to_owned()).run(events, work, |_| None).await
}

/// Updates the team worktree and sets it up. Returns the reason if that fails.
async fn prepare(repository: &dyn Repository, context: &mut CommandContext, events: &RecordEvent) -> Option<String> {
    match repository.update_team_worktree().await {
        Ok(None) => {}
        Ok(Some(reason)) => return Some(reason),
        Err(error) => return Some(error.to_string()),
    }
    let set_up = setup::set_up(repository, &SetupPlace::Team, context, events).await;
    set_up.err().map(|error| error.headline())
}

/// The context of the commands that the config names for the team.
pub(in crate::team) fn command_context(services: &AgentServices, worker: &Arc<WorkerReporter>) -> CommandContext {
    // Without a claim none can be lost, so the channel may close.
    let (_, claim) = watch::channel(None);
    let isolation = services.isolation.as_ref();
    let rules = isolation.map(|isolation| isolation.boundaries(CommandPlace::Lead, &services.workspace.control_files));
    CommandContext {
        working_dir: services.work_folder().to_owned(),
        sandbox: services.workspace.sandbox.clone(),
        rules: rules.unwrap_or_default(),
        registry: worker.commands_of(LEAD, Arc::clone(&services.stores.workers)),
        output_bytes_max: services.spec.limits.tools.output_bytes_max,
        team: services.spec.name.to_string(),
        teammate: LEAD.to_owned(),
        claim,
        confined_only_reason: None,
        variables: Vec::new(),
    }
}
