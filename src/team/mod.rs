//! The team: the lead, its teammates, their turns. The only place that acts on what the domain decides.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, mpsc, watch};

use crate::domain::change::{Actor, ActorKind};
use crate::domain::event::{Fact, HeldRow};
use crate::domain::name::{HUMAN, LEAD, Name};
use crate::domain::state::{Expected, Mode, SetDesired, SharedState, StateUpdate};
use crate::domain::task::{NewTask, TaskId, TaskStatus};
use crate::ports::{Assignment, Clock, CountTokens, LostClaims, Repository, RepositoryError, StoreError, Stores};
use crate::sandbox::{Confinement, Level, Sandbox};
use agent::Shared;
use conversation::Conversation;
use firsts::Firsts;
use handle::{Control, Live, TeamHandle};
use lead::{GateKeys, Lead, LeadParts};
use lodging::Isolation;
use members::{Connect, Gates, Making, Members, ToolsOf};
use patience::Room;
use purse::Purse;
use session::Session;
use spec::{MemberSpec, TeamSpec};
use words::Mouth;
use worker::WorkerReporter;

pub mod agent;
pub mod conversation;
mod driving;
mod errands;
mod firsts;
pub mod handle;
mod lead;
pub mod lodging;
pub mod members;
pub mod patience;
pub mod plan;
pub mod progress;
mod purse;
mod ready;
pub mod recorder;
pub mod reins;
mod retry;
mod session;
mod size;
pub mod spec;
pub mod teammate;
mod turn;
mod window;
pub mod words;
mod worker;

/// What a team needs of the world.
pub struct Surroundings {
    /// The stores of its workspace; it is alone with them.
    pub stores: Stores,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// The workspace's root, absolute.
    pub workspace: PathBuf,
    /// What no tool may write, relative to the workspace.
    pub control_files: Arc<[PathBuf]>,
    /// What confines commands.
    pub sandbox: Sandbox,
    /// Makes model clients.
    pub connect: Connect,
    /// Makes tools.
    pub tools_of: ToolsOf,
    /// Counts the tokens of a text, for models and budgets.
    pub count_tokens: CountTokens,
    /// The repository, where each task has a worktree of its own.
    pub repository: Option<Arc<dyn Repository>>,
}

/// How a team is to begin.
#[derive(Debug, Clone, Default)]
pub struct Start {
    /// Tasks to put on the board, unless they are there already.
    pub plan: Vec<NewTask>,
    /// A desired state to set, as the person's.
    pub mode: Option<Mode>,
    /// The desired state where there is no state file, or a launch for one session that was interrupted left its own there.
    pub mode_without_file: Option<Mode>,
    /// Whether the team ends with its first session.
    pub one_session: bool,
}

/// Why a team cannot be launched. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// A store refuses.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A member's model settings are wrong.
    #[error("member `{name}`: {reason}")]
    Model {
        /// Whose.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// The repository is not to be used.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// A goal, but nobody who could turn it into tasks.
    #[error(
        "the lead's provider `{0}` cannot turn a goal into tasks: give it a plan, or give the lead a model that thinks"
    )]
    GoalWithoutThought(String),
}

/// Launches a team: what an earlier process left is taken up, the plan imported, the members started.
///
/// # Errors
/// See [`LaunchError`].
pub async fn launch(spec: TeamSpec, start: Start, surroundings: Surroundings) -> Result<TeamHandle, LaunchError> {
    let Surroundings { stores, clock, workspace, control_files, sandbox, connect, tools_of, count_tokens, repository } =
        surroundings;
    let (lead_thinks, thinks) = check_models(&spec, &connect)?;
    let has_plan = !start.plan.is_empty();
    if spec.goal.is_some() && !lead_thinks && !has_plan && stores.board.view().await?.tasks.is_empty() {
        return Err(LaunchError::GoalWithoutThought(spec.lead.model.provider));
    }
    let taken_up = take_up(&stores).await?;
    open_inboxes(&spec, &stores).await?;
    let (notes, events, first) = recorder::start(stores.clone(), Arc::clone(&clock), stores.board.view().await?);
    let prefers = begin(&spec, &notes, taken_up, sandbox.confinement());
    let isolation = isolate(&spec, repository, &stores, &notes).await?;
    prepare(&stores, &notes, &start).await?;
    let (told, conversation) = lead_conversation(&spec, &stores, &clock, lead_thinks).await?;
    let session = Session::new(&spec, start.one_session, has_plan, conversation, told);
    let (reported, mouth) = (Arc::new(Notify::new()), Mouth::default());
    let purse = Purse::open(&spec, Arc::clone(&stores.ledger), Arc::clone(&clock)).await?;
    let shared = Arc::new(Shared {
        room: Arc::new(Room::new(workspace.clone(), spec.limits.free_bytes_min, notes.clone(), Arc::clone(&reported))),
        team: spec.name.clone(),
        stores: stores.clone(),
        clock: Arc::clone(&clock),
        launched_at: clock.now(),
        workspace,
        control_files,
        isolation,
        sandbox,
        limits: spec.limits.clone(),
        prompts: Arc::new(spec.prompts.clone()),
        review: spec.review.as_deref().map(Arc::from),
        firsts: Arc::new(firsts_of(&spec, &prefers)),
        purse,
        count_tokens,
        notes,
        mouth: mouth.clone(),
        reported: Arc::clone(&reported),
    });
    let live = Arc::new(Live::of(&spec, thinks));
    let (commands, heard) = mpsc::channel(handle::COMMANDS_WAITING_MAX);
    let worker = WorkerReporter::new(Arc::clone(&stores.workers), clock);
    let (teammates, lead) = (watch::Sender::default(), watch::Sender::default());
    let gates = Gates { teammates: teammates.subscribe(), lead: lead.subscribe() };
    let control = Control::new(Arc::clone(&live), commands.clone(), spec.lead.model.clone(), lead_thinks);
    let making = Making { connect, tools_of, control: Arc::new(control), worker: Arc::clone(&worker), gates };
    let members = Members::new(Arc::clone(&shared), making);
    worker.beat().await?;
    let lead = Lead::new(LeadParts {
        spec,
        shared,
        members,
        session,
        view: stores.board.view().await?,
        live: Arc::clone(&live),
        commands: heard,
        reported,
        gates: GateKeys { teammates, lead },
        worker,
        prefers,
    });
    Ok(TeamHandle {
        commands,
        events,
        from_the_first: Mutex::new(Some(first)),
        mouth,
        live,
        lead: tokio::spawn(lead.run()),
        lead_thinks,
    })
}

/// What the person should know of confinement below the strictest level.
fn confinement_warning(Confinement { level, reason }: &Confinement) -> Option<String> {
    match level {
        Level::Full => None,
        Level::MountsOnly => Some(format!("they can see and signal other processes of yours ({reason})")),
        Level::Off => Some(format!("not confined: they can write every file that you can write ({reason})")),
    }
}

/// Those of the team that held something when the process before ended.
fn firsts_of(spec: &TeamSpec, prefers: &HashMap<String, TaskId>) -> Firsts {
    let names = spec.members.iter().map(|member| &member.name);
    Firsts::of(names.filter(|name| prefers.contains_key(name.as_str())).cloned())
}

/// Says that the team starts and what it takes up, and returns which task each prefers because of that.
fn begin(
    spec: &TeamSpec,
    notes: &recorder::Notes,
    taken_up: BTreeMap<TaskId, String>,
    confinement: &Confinement,
) -> HashMap<String, TaskId> {
    let members = spec.members.iter().map(|member| member.name.to_string()).collect();
    notes.fact(Fact::TeamStarted { team: spec.name.to_string(), members });
    if let Some(text) = confinement_warning(confinement) {
        notes.fact(Fact::Warning { about: "commands".to_owned(), text });
    }
    let prefers = taken_up.iter().map(|(task, owner)| (owner.clone(), *task)).collect();
    let claims: Vec<HeldRow> = taken_up.into_iter().map(|(task, teammate)| HeldRow { task, teammate }).collect();
    if !claims.is_empty() {
        notes.fact(Fact::TakenUp { claims });
    }
    prefers
}

/// Takes up what is left of worktrees and merges, where each task has a worktree.
async fn isolate(
    spec: &TeamSpec,
    repository: Option<Arc<dyn Repository>>,
    stores: &Stores,
    notes: &recorder::Notes,
) -> Result<Option<Isolation>, LaunchError> {
    let Some(repository) = repository else { return Ok(None) };
    let view = stores.board.view().await?;
    let completed = view.tasks.values().filter(|task| task.status == TaskStatus::Completed && task.worktree.is_some());
    let completed = completed.map(|task| Assignment {
        team: spec.name.to_string(),
        task: task.id,
        subject: task.subject.clone(),
        attempt: task.attempt,
        teammate: task.owner.clone().unwrap_or_default(),
        worker: stores.workers.me().to_owned(),
    });
    for text in repository.take_up(completed.collect()).await? {
        notes.fact(Fact::of_worktrees("worktrees", text));
    }
    Ok(Some(Isolation { repository, queue: Arc::default(), refused: Arc::default() }))
}

/// Everybody can be written to from the beginning.
async fn open_inboxes(spec: &TeamSpec, stores: &Stores) -> Result<(), StoreError> {
    let names: Vec<Name> = spec.members.iter().map(|member| member.name.clone()).collect();
    stores.mailbox.open_inboxes(&names).await
}

/// Has board and state say what this launch is for.
async fn prepare(stores: &Stores, notes: &recorder::Notes, start: &Start) -> Result<(), LaunchError> {
    import(stores, notes, start).await?;
    Ok(set_mode(stores, start).await?)
}

/// Brings the board up to the plan, if there is one; says what that changed, and what it left as it was.
async fn import(stores: &Stores, notes: &recorder::Notes, start: &Start) -> Result<(), StoreError> {
    if start.plan.is_empty() {
        return Ok(());
    }
    let by = Actor::new(LEAD, ActorKind::Lead);
    let import = plan::import(stores.board.as_ref(), &by, start.plan.clone()).await?;
    for task in import.updated {
        notes.warn("plan", format!("{} {} was changed: its plan says something else now", task.id, task.subject));
    }
    for difference in import.differences {
        notes.warn("plan", format!("{}; {}", difference.text, difference.hint));
    }
    Ok(())
}

/// Checks that every member's model can be made, and says whether the lead's thinks, and that of each teammate.
fn check_models(spec: &TeamSpec, connect: &Connect) -> Result<(bool, Vec<bool>), LaunchError> {
    let thinks = |member: &MemberSpec| -> Result<bool, LaunchError> {
        let name = member.name.to_string();
        let model = connect(&member.model).map_err(|reason| LaunchError::Model { name, reason })?;
        Ok(model.thinks())
    };
    Ok((thinks(&spec.lead)?, spec.members.iter().map(thinks).collect::<Result<_, _>>()?))
}

/// Takes back what workers that are gone held: the whole team ended, so it counts against nobody. Says who held what, so that
/// each goes on with its own.
async fn take_up(stores: &Stores) -> Result<BTreeMap<TaskId, String>, StoreError> {
    let live_workers = Some(who_lives(stores).await?);
    let reason = "the team ended before it was done".to_owned();
    let lost = LostClaims { live_workers, reason, ..LostClaims::default() };
    let reclaimed = stores.board.reclaim(&lost).await?;
    Ok(reclaimed.into_iter().map(|claim| (claim.task.id, claim.owner)).collect())
}

/// The workers that live, those among them whose claims are all that is left to tell of them.
async fn who_lives(stores: &Stores) -> Result<HashSet<String>, StoreError> {
    let mut live = stores.workers.survey().await?.live;
    let view = stores.board.view().await?;
    let claims = view.tasks.values().filter_map(|task| task.claim.as_ref());
    let unknown: HashSet<&String> =
        claims.map(|claim| &claim.worker).filter(|worker| !live.contains(*worker)).collect();
    if !unknown.is_empty() {
        let unknown = unknown.into_iter().cloned().collect();
        live.extend(stores.workers.unrecorded(unknown).await?);
    }
    Ok(live)
}

/// The note of a desired state that is set for the one session of a launch.
const ONE_SESSION: &str = "set for the one session of this launch";

async fn set_mode(stores: &Stores, start: &Start) -> Result<(), StoreError> {
    let present = stores.state.read().await?;
    // A run that was interrupted left it; nobody asked for it of the team that is launched now.
    let is_left =
        |state: &SharedState| state.desired.is_one_shot() && state.set_by == HUMAN && state.note == ONE_SESSION;
    let launched = "set when the team was launched";
    let (mode, note, only_if) = match (start.mode, &present) {
        (Some(mode), _) if start.one_session => (Some(mode), ONE_SESSION, None),
        (Some(mode), _) => (Some(mode), launched, None),
        (None, None) => (start.mode_without_file, launched, Some(Expected::NoFile)),
        (None, Some(state)) if is_left(state) => {
            let left = Expected::Noted(state.desired, ONE_SESSION.to_owned());
            (start.mode_without_file, "an interrupted run is over", Some(left))
        }
        (None, Some(_)) => (None, "", None),
    };
    if let Some(mode) = mode {
        let desired = SetDesired { mode, by: HUMAN.to_owned(), note: note.to_owned(), only_if };
        stores.state.update(StateUpdate { report: None, desired: Some(desired) }).await?;
    }
    Ok(())
}

/// Whether the lead was told this goal before; and the conversation of a lead that does not think.
async fn lead_conversation(
    spec: &TeamSpec,
    stores: &Stores,
    clock: &Arc<dyn Clock>,
    lead_thinks: bool,
) -> Result<(bool, Option<Conversation>), StoreError> {
    let conversation = Conversation::resume(LEAD, Arc::clone(&stores.transcripts), Arc::clone(clock)).await?;
    let told = spec.goal.as_deref().is_some_and(|goal| conversation.was_told_goal(&session::goal_text(goal)));
    Ok((told, (!lead_thinks).then_some(conversation)))
}
