//! The team: the lead and its teammates. Only this module acts on the decisions of `domain`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{broadcast, mpsc};
use tracing::Instrument;

use crate::agents::conversation::Conversation;
use crate::agents::external::AGENTS_FOLDER;
use crate::agents::isolation::WorktreeService;
use crate::agents::{AgentServices, WorkspaceAccess};
use crate::domain::log::event::{ClaimSnapshot, Event, EventKind, Notice};
use crate::domain::log::snapshot::bounded_text;
use crate::domain::task::claim_queue::{Candidate, TaskScope};
use crate::domain::task::transition::{Actor, ActorKind, Change, TaskEdit};
use crate::domain::task::{NewTask, Task, TaskId, TaskStatus};
use crate::domain::team::name::{LEAD, Name};
use crate::domain::team::records::RosterMember;
use crate::domain::team::state::{DesiredStateChange, Mode, SetBy, SharedState, StatePrecondition, StateUpdate};
use crate::domain::team::state_note::StateNote;
use crate::domain::team::team_spec::{MemberSpec, TeamSpec};
use crate::domain::time::UnixMs;
use crate::ports::{
    AccountStore, Assignment, Clock, RecordedMerge, Repository, RepositoryError, StoreError, Stores, Webhook,
};
use crate::process::board_socket;
use crate::run::accounts::Accounts;
use crate::run::budget::BudgetGuard;
use crate::run::event_sink::EventSink;
use crate::run::recorder;
use crate::run::stream::OutputBroadcast;
use crate::sandbox::{Confinement, Level, Sandbox};
use crate::service::request_mail::{self, TURN_INTERRUPTED};
use crate::service::{claims, plan_import};
use handle::{LiveStatus, TeamCommand, TeamControlHandle, TeamHandle, TeamOutcome};
use heartbeat::WorkerReporter;
use lead::{Lead, command_context};
use model_connection::{ModelConnector, check_model};
use notifier::{NotificationTargets, Notifier};
pub use roster::restore_members;
use supervisor::{SpawnContext, Supervisor, ToolFactory};
use teammate::reclaim_order::ReclaimOrder;
use write_retry::StorageMonitor;

mod goal;
pub mod handle;
mod heartbeat;
mod lead;
pub mod model_connection;
mod notifier;
mod roster;
mod running_member;
pub mod supervisor;
pub mod teammate;
pub mod write_retry;

/// Tasks and members named in a text; more are counted.
const NAMED_MAX: usize = 5;

/// Everything that a team needs from outside.
pub struct TeamDependencies {
    /// The stores of its workspace, which no other team uses.
    pub stores: Stores,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// The workspace's root; absolute.
    pub workspace: PathBuf,
    /// Files that no tool may write, relative to the workspace.
    pub control_files: Arc<[PathBuf]>,
    /// Confines commands.
    pub sandbox: Sandbox,
    /// Creates model clients.
    pub connect: ModelConnector,
    /// The limits of accounts that other processes use too; `None` if they stay in this process.
    pub accounts: Option<Arc<dyn AccountStore>>,
    /// Creates tools.
    pub tool_factory: ToolFactory,
    /// The repository, if each task has a separate worktree.
    pub repository: Option<Arc<dyn Repository>>,
    /// Sends notifications to the address of the config.
    pub webhook: Arc<dyn Webhook>,
}

/// The options of a launch.
#[derive(Debug, Clone, Default)]
pub struct StartOptions {
    /// Tasks to add to the board, unless they are on it.
    pub plan: Vec<NewTask>,
    /// A goal that the person gives for this launch. It reaches the lead, whatever it got before.
    pub goal: Option<String>,
    /// A desired state to set in the person's name. With `one_session` it is the mode of the session, and it is set only over
    /// `pause`.
    pub mode: Option<Mode>,
    /// The desired state to set if there is no state file, or if an interrupted one-session run left its own in it. With a goal it
    /// also replaces the pause in which a finished session or a met goal ended.
    pub mode_without_file: Option<Mode>,
    /// True if the team ends with its first session, which begins whatever the desired state is, except `pause`.
    pub one_session: bool,
}

/// The reason why a team cannot be launched. No member was started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// A store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A member's model settings are invalid.
    #[error("cannot use the model of {name}: {reason}")]
    Model {
        /// The member.
        name: String,
        /// The error.
        reason: String,
    },
    /// The program of an external agent is missing or too old.
    #[error("{reason}")]
    Program {
        /// The error.
        reason: String,
        /// The command that installs it.
        hint: String,
    },
    /// The repository cannot be used.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// There is a goal for this launch, or there is a goal without a plan or a task, and the lead has no model.
    #[error("cannot plan the goal: the lead's provider `{0}` has no model")]
    GoalWithoutModel(String),
}

/// Launches a team: reclaims what an earlier process left, imports the plan and starts the members.
///
/// # Errors
/// [`LaunchError`]: the team cannot be launched.
pub async fn launch(spec: TeamSpec, start: StartOptions, deps: TeamDependencies) -> Result<TeamHandle, LaunchError> {
    let stores = deps.stores.clone();
    let clock = Arc::clone(&deps.clock);
    let (mut spec, warnings) = restore_members(spec, &stores, &deps.connect).await?;
    if !start.one_session {
        // A team that is kept running shows that a model is out of reach, and waits.
        spec.limits.model.outage_max = Duration::ZERO;
    }
    check_models(&spec, &deps.connect)?;
    if !spec.lead.has_model() {
        check_goal(&spec, &start, &stores).await?;
    }
    let reclaimed = take_over(&stores, &deps.workspace, clock.now()).await?;
    open_inboxes(&spec, &stores).await?;
    let (isolation, notices) = set_up_worktrees(&spec, deps.repository, &stores).await?;
    // A launch that is refused before this line begins no event log, and so pushes out no earlier one.
    let (recorder, events, first) = recorder::start(stores.clone(), Arc::clone(&clock)).await?;
    warnings.iter().for_each(|warning| recorder.warn("roster", warning.as_str()));
    roster::remove_stale_rows(&spec, &stores).await?;
    report_start(&spec, &recorder, &reclaimed, deps.sandbox.confinement());
    notices.into_iter().for_each(|notice| recorder.record(EventKind::of_notice("worktrees", notice)));
    import_plan(&stores, &recorder, &start).await?;
    lift_raised_caps(&spec, &stores, &recorder).await?;
    report_impossible_tasks(&spec, &stores, &recorder).await?;
    set_mode(&stores, &recorder, &start).await?;
    let runbook_lead = if spec.lead.has_model() {
        None
    } else {
        Some(Conversation::resume(LEAD, Arc::clone(&stores.transcripts), Arc::clone(&clock)).await?)
    };
    let budget = BudgetGuard::open(&spec, Arc::clone(&stores.ledger), Arc::clone(&clock)).await?;
    let live = Arc::new(LiveStatus::of(&spec));
    let (commands, received) = mpsc::channel(handle::LEAD_COMMANDS_MAX);
    let output_stream = OutputBroadcast::default();
    let control = TeamControlHandle { live: Arc::clone(&live), commands: commands.clone(), lead: spec.lead.clone() };
    let services = Arc::new(AgentServices {
        spec: Arc::new(spec),
        stores: stores.clone(),
        clock: Arc::clone(&clock),
        launched_at: clock.now(),
        workspace: WorkspaceAccess { root: deps.workspace, control_files: deps.control_files, sandbox: deps.sandbox },
        isolation,
        budget,
        accounts: Accounts::new(deps.accounts, Arc::clone(&clock)),
        events: recorder,
        output: output_stream.clone(),
        member_reported: Arc::default(),
    });
    let worker = WorkerReporter::new(Arc::clone(&stores.workers), clock);
    worker.write().await?;
    roster::send_missing_instructions(&services).await?;
    goal::send(&services, &start).await?;
    let notifier = start_notifier(&services, &worker, deps.webhook, &events);
    let span = tracing::info_span!("lead", team = %services.spec.name);
    let spawn = SpawnContext {
        connect: deps.connect,
        tool_factory: deps.tool_factory,
        team_control: Arc::new(control),
        worker,
        storage: Arc::new(StorageMonitor::new(&services)),
        reclaim_order: Arc::new(reclaim_order_of(&services.spec, &reclaimed)),
    };
    let members = Supervisor::new(services, spawn);
    let view = stores.board.view().await?;
    let only_session = if start.one_session { start.mode } else { None };
    let lead = Lead::new(members, view, Arc::clone(&live), only_session, runbook_lead);
    let first_events = Mutex::new(Some(first));
    let lead = tokio::spawn(run(lead, received, notifier).instrument(span));
    Ok(TeamHandle { commands, events, first_events, output_stream, live, lead })
}

/// Runs the team, and then ends the notifications.
async fn run(lead: Lead, commands: mpsc::Receiver<TeamCommand>, notifier: Option<Notifier>) -> TeamOutcome {
    let outcome = Box::pin(lead.run(commands)).await;
    if let Some(notifier) = notifier {
        notifier.finish().await;
    }
    outcome
}

/// Starts to send notifications, if the config names a target.
fn start_notifier(
    services: &AgentServices,
    worker: &Arc<WorkerReporter>,
    webhook: Arc<dyn Webhook>,
    events: &broadcast::Sender<Arc<Event>>,
) -> Option<Notifier> {
    let spec = services.spec.notify.clone();
    if !spec.is_set() {
        return None;
    }
    let command = command_context(services, worker);
    let sink = services.events.clone();
    let targets = NotificationTargets { spec, command, webhook, events: sink, is_failing: AtomicBool::new(false) };
    Some(Notifier::start(targets, events.subscribe()))
}

/// Checks that a lead without a model can start the work: it was given no goal, except with a plan or tasks.
async fn check_goal(spec: &TeamSpec, start: &StartOptions, stores: &Stores) -> Result<(), LaunchError> {
    let is_alone = spec.goal.is_some() && start.plan.is_empty() && stores.board.view().await?.tasks.is_empty();
    if start.goal.is_some() || is_alone {
        return Err(LaunchError::GoalWithoutModel(spec.lead.model.provider.clone()));
    }
    Ok(())
}

/// Returns a warning for people if commands are not fully confined.
fn confinement_warning(Confinement { level, reason }: &Confinement) -> Option<String> {
    match level {
        Level::Full => None,
        Level::MountsOnly => Some(format!("they can see and signal your other processes ({reason})")),
        Level::Off => Some(format!("not confined: they can write every file that you can write ({reason})")),
    }
}

/// Returns the order of claims: teammates that held a task when the process before ended go first.
fn reclaim_order_of(spec: &TeamSpec, reclaimed: &BTreeMap<TaskId, String>) -> ReclaimOrder {
    let names = |(task, owner): (&TaskId, &String)| {
        let member = spec.members.iter().find(|member| member.name.as_str() == owner)?;
        Some((member.name.clone(), *task))
    };
    ReclaimOrder::of(reclaimed.iter().filter_map(names).collect())
}

/// Reports the start and the reclaimed tasks.
fn report_start(spec: &TeamSpec, events: &EventSink, reclaimed: &BTreeMap<TaskId, String>, confinement: &Confinement) {
    let members = spec.members.iter().map(|member| member.name.to_string()).collect();
    events.record(EventKind::TeamStarted { team: spec.name.to_string(), members });
    if let Some(text) = confinement_warning(confinement) {
        events.warn("commands", text);
    }
    let claim = |(task, teammate): (&TaskId, &String)| ClaimSnapshot { task: *task, teammate: teammate.clone() };
    if !reclaimed.is_empty() {
        events.record(EventKind::RunResumed { claims: reclaimed.iter().map(claim).collect() });
    }
}

/// Prepares the repository for this launch, if the team uses worktrees.
async fn set_up_worktrees(
    spec: &TeamSpec,
    repository: Option<Arc<dyn Repository>>,
    stores: &Stores,
) -> Result<(Option<WorktreeService>, Vec<Notice>), LaunchError> {
    let Some(repository) = repository else { return Ok((None, Vec::new())) };
    let view = stores.board.view().await?;
    let completed = view.tasks.values().filter(|task| task.status == TaskStatus::Completed && task.worktree.is_some());
    let completed = completed.map(|task| Assignment {
        team: spec.name.to_string(),
        task: task.id,
        subject: task.subject.clone(),
        attempt: task.attempt,
        teammate: task.owner.clone().unwrap_or_default(),
        worker: stores.workers.worker_id().to_owned(),
        failed: None,
    });
    let launched = repository.prepare_launch(completed.collect()).await?;
    let recorded = RecordedMerge::of_board(view.tasks.values().map(Arc::as_ref));
    let lost = repository.lost_merges(recorded).await.unwrap_or_else(|error| Some(error.into()));
    let notices = launched.notices.into_iter().chain(lost).collect();
    let team_worktree = launched.team_worktree;
    let isolation = WorktreeService {
        repository,
        team_worktree,
        team_port_base: launched.team_port_base,
        merge_queue: Arc::default(),
        last_failed_task: Arc::default(),
        is_setup_failing: Arc::default(),
    };
    Ok((Some(isolation), notices))
}

/// Opens all inboxes at the start, so that every member can receive mail, and every agent of another program in the roster.
async fn open_inboxes(spec: &TeamSpec, stores: &Stores) -> Result<(), StoreError> {
    let names: Vec<Name> = spec.members.iter().map(|member| member.name.clone()).collect();
    stores.mailbox.open_inboxes(&names).await?;
    stores.mailbox.add_inboxes(&roster::outside_agents(stores).await?).await
}

/// Imports the plan, if there is one, and reports updates and differences.
async fn import_plan(stores: &Stores, events: &EventSink, start: &StartOptions) -> Result<(), StoreError> {
    if start.plan.is_empty() {
        return Ok(());
    }
    let by = Actor::new(LEAD, ActorKind::Lead);
    let import = plan_import::import(stores.board.as_ref(), &by, start.plan.clone()).await?;
    for task in import.updated {
        let text = format!("{} {} was updated, because its plan changed", task.id, task.subject);
        events.record_task_event(EventKind::of_notice("plan", Notice::warning(text)), &task);
    }
    for difference in import.differences {
        let warning = Notice::Warning { text: difference.text, next: difference.next };
        events.record(EventKind::of_notice("plan", warning));
    }
    Ok(())
}

/// Makes tasks claimable again that reached the cap of the team, if that is higher now.
async fn lift_raised_caps(spec: &TeamSpec, stores: &Stores, events: &EventSink) -> Result<(), StoreError> {
    let view = stores.board.view().await?;
    let is_raised = |task: &&Arc<Task>| {
        let reached = task.cap_in_force().filter(|_| task.status == TaskStatus::Pending && task.tokens_max.is_none());
        reached.is_some_and(|cap| spec.limits.tokens_max_of(task).is_none_or(|tokens_max| tokens_max > cap.tokens_max))
    };
    let by = Actor::new(LEAD, ActorKind::Lead);
    for task in view.tasks.values().filter(is_raised) {
        let edit = TaskEdit { tokens_max: Some(0), ..TaskEdit::default() };
        match stores.board.change(task.id, Change::Edit(edit), &by).await {
            Ok(task) => events.record_task(&task),
            // It was removed or changed meanwhile.
            Err(StoreError::NoTask(_) | StoreError::Refused(_) | StoreError::InvalidTask { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reports pending tasks that no member of the team or the roster may claim. All lack the capability, the task is reserved for another
/// name, or it has no script and the members have no model.
async fn report_impossible_tasks(spec: &TeamSpec, stores: &Stores, events: &EventSink) -> Result<(), StoreError> {
    let view = stores.board.view().await?;
    let claimant = |member: &MemberSpec| (member.name.to_string(), member.capabilities(), spec.task_scope(member));
    let members = spec.members.iter().map(claimant);
    let is_other = |row: &RosterMember| spec.members.iter().all(|member| !member.name.is_same(&row.name));
    let others = stores.roster.read().await.unwrap_or_default().into_iter().filter(is_other);
    let others = others.map(|member| (member.name, vec![member.role], TaskScope::All));
    let claimants: Vec<(String, Vec<String>, TaskScope)> = members.chain(others).collect();
    let candidates =
        || claimants.iter().map(|(name, capabilities, scope)| Candidate { name, capabilities, scope: *scope });
    let is_impossible =
        |task: &&Arc<Task>| task.status == TaskStatus::Pending && !candidates().any(|candidate| candidate.suits(task));
    let tasks: Vec<&Arc<Task>> = view.tasks.values().filter(is_impossible).collect();
    for task in tasks.iter().take(NAMED_MAX) {
        let reason = match &task.owner {
            _ if candidates().any(|candidate| candidate.is_eligible(task)) => {
                "it has no `sh` block, and a runbook runs nothing else".to_owned()
            }
            Some(owner) => format!("it is reserved for {owner}"),
            None => format!("it requires {}", task.requires.join(" or ")),
        };
        events.warn("board", format!("no member can do {} ({}): {reason}", task.id, bounded_text(&task.subject)));
    }
    if tasks.len() > NAMED_MAX {
        events.warn("board", format!("no member can do {} more tasks", tasks.len() - NAMED_MAX));
    }
    Ok(())
}

/// Checks that each member can be started with its model.
///
/// # Errors
/// [`LaunchError::Model`].
pub fn check_models(spec: &TeamSpec, connect: &ModelConnector) -> Result<(), LaunchError> {
    std::iter::once(&spec.lead).chain(&spec.members).try_for_each(|member| {
        let error = |reason| LaunchError::Model { name: member.name.to_string(), reason };
        check_model(&member.model, connect).map_err(error)
    })
}

/// Reclaims the tasks of dead workers, withdraws their permission requests, and removes their sockets. The whole team ended, so this is
/// no failed attempt. Returns the holders, so that each can continue with its task.
async fn take_over(stores: &Stores, workspace: &Path, now: UnixMs) -> Result<BTreeMap<TaskId, String>, StoreError> {
    board_socket::remove_stale_sockets(&workspace.join(AGENTS_FOLDER));
    request_mail::withdraw_permissions(stores, None, TURN_INTERRUPTED, now).await?;
    let reclaimed = claims::reclaim_of_ended_team(stores).await?;
    Ok(reclaimed.into_iter().map(|claim| (claim.task.id, claim.owner)).collect())
}

/// Sets the desired state of this launch. A change that a person makes at the same time stays.
async fn set_mode(stores: &Stores, events: &EventSink, start: &StartOptions) -> Result<(), StoreError> {
    let present = stores.state.read().await?;
    let Some(desired) = desired_at_launch(present.as_ref(), start) else { return Ok(()) };
    if let Some(warning) = present.as_ref().and_then(SharedState::unknown_desired_warning) {
        events.warn("agent_state.json", format!("{warning}; {} replaces it", desired.mode));
    }
    stores.state.update(StateUpdate { report: None, desired: Some(desired) }).await?;
    Ok(())
}

/// Returns the desired state that a launch sets, if it sets one. `present` is the state file, if there is one.
fn desired_at_launch(present: Option<&SharedState>, start: &StartOptions) -> Option<DesiredStateChange> {
    let launched = StateNote::Other("set when the team was launched".to_owned());
    let change = |mode, note: StateNote, only_if| DesiredStateChange {
        mode,
        by: SetBy::Person,
        note: note.to_file_text(),
        only_if,
    };
    if let Some(mode) = start.mode {
        return Some(if start.one_session {
            change(mode, StateNote::OneSession, Some(StatePrecondition::Paused))
        } else {
            change(mode, launched, None)
        });
    }
    let mode = start.mode_without_file?;
    let Some(state) = present else { return Some(change(mode, launched, Some(StatePrecondition::NoFile))) };
    let is_unchanged = Some(StatePrecondition::ModeWithNote(state.desired, state.note.clone()));
    if state.desired.is_one_shot() && state.set_by == SetBy::Person && state.reason() == StateNote::OneSession {
        // An interrupted run left this state. It was not meant for the team that is launched now.
        let note = StateNote::Other("an interrupted run is over".to_owned());
        return Some(change(mode, note, is_unchanged));
    }
    // The person gives a new goal, so the end of earlier work does not stop the team. A pause of a person, a budget or a quota does.
    let is_end_of_work = state.set_by == SetBy::Brigade
        && !matches!(
            state.reason(),
            StateNote::BudgetSpent { .. } | StateNote::BudgetTooSmall { .. } | StateNote::QuotaUsed { .. }
        );
    if start.goal.is_some() && state.desired == Mode::Pause && state.unknown_desired.is_none() && is_end_of_work {
        return Some(change(mode, StateNote::Other("a new goal was given".to_owned()), is_unchanged));
    }
    None
}
