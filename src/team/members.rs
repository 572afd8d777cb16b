//! The members that live in this process: starting them, listening to them, starting them again after a panic or a hang.
//!
//! It owns their tasks and nothing of the session: `lead` decides when somebody is to work or to stop.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};

use super::agent::{Agent, AgentError, AgentParts, Shared};
use super::patience::Patience;
use super::progress::Progress;
use super::reins::Reins;
use super::spec::MemberSpec;
use super::teammate::{Control, Gate, Standing, Teammate};
use super::worker::WorkerReporter;
use crate::domain::event::Fact;
use crate::domain::name::{LEAD, Name};
use crate::domain::phase::{Held, Phase};
use crate::domain::task::TaskId;
use crate::domain::time::UnixMs;
use crate::ports::{ModelClient, ModelSpec, ToolSpec};
use crate::tools::{CommandRegistry, TeamControl, Tool, ToolContext, ToolLimits};

/// The tool of teams with reviews.
const REVIEW_TOOL: &str = "review";
/// Words to a teammate that may wait to be heard; a full queue means it will look anyway.
const CONTROLS_WAITING_MAX: usize = 64;
/// The first wait before a teammate is started again; each further one doubles.
const RESPAWN_WAIT_FIRST: Duration = Duration::from_millis(250);

/// Makes the client of a member's model.
pub type Connect = Arc<dyn Fn(&ModelSpec) -> Result<Arc<dyn ModelClient>, String> + Send + Sync>;
/// Makes the tools of a member; the flag says whether it is the lead.
pub type ToolsOf = Arc<dyn Fn(bool) -> Vec<Arc<dyn Tool>> + Send + Sync>;

/// One member that was started.
pub struct Member {
    /// Who it is.
    pub spec: MemberSpec,
    /// All it can do.
    pub can_do: Vec<String>,
    /// Whether its model thinks.
    pub thinks: bool,
    /// How it stands, as it last said.
    pub standing: watch::Receiver<Standing>,
    /// What the harness sees of its life.
    pub progress: Arc<Progress>,
    /// Since when it is in its phase.
    pub since: UnixMs,
    /// Why it is gone for good, once it is; empty when it stopped as asked.
    pub gone: Option<String>,
    /// How often it was started again.
    pub respawns: u32,
    control: mpsc::Sender<Control>,
    life: AbortHandle,
    /// What [`Members::note_phases`] last found: its phase, and why it is gone.
    noted: (Option<Phase>, Option<String>),
    /// The round in which that found something new about it, and the one in which its phase was another.
    stirred: u64,
    turned: u64,
    /// Its reports and looks when it was last told to look: it has not answered while they are the same.
    nudged_at: Option<(u64, u64)>,
    /// The claim it was last told is lost.
    told_lost: Option<Held>,
    /// Whether a person asked it to stop once its turn is over, and it has not read that yet.
    pub is_to_stop: bool,
    /// Whether it was told to stop: however it ends then, it is not started again.
    pub is_stopping: bool,
}

impl Member {
    /// Whether it waits for work and could be told of some.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.gone.is_none() && matches!(self.standing.borrow().phase, Phase::Idle { .. } | Phase::OnCall)
    }

    /// Whether it is in a WORK phase, or finishing one.
    #[must_use]
    pub fn works(&self) -> bool {
        let phase = self.standing.borrow().phase;
        self.gone.is_none() && matches!(phase, Phase::Work { .. } | Phase::Waiting { .. } | Phase::Stopping { .. })
    }

    /// Whether its life is over, or ends with nothing left to do.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.gone.is_some() || self.standing.borrow().phase == Phase::Stopped
    }

    /// Whether it holds a task and waits for the answer to a plan.
    #[must_use]
    pub fn awaits_answer(&self) -> bool {
        self.gone.is_none() && matches!(self.standing.borrow().phase, Phase::Waiting { .. })
    }

    /// Whether something may be new about it since that round. Who works gets on without a word.
    #[must_use]
    pub fn has_stirred_since(&self, round: u64) -> bool {
        self.stirred > round || matches!(self.noted.0, Some(Phase::Work { .. } | Phase::Stopping { .. }))
    }

    /// Takes in what became of it since the round before. Says whether it is in another phase.
    fn note(&mut self, round: u64, now: UnixMs) -> bool {
        let has_spoken = self.standing.has_changed().unwrap_or(self.gone.is_none());
        if !has_spoken && self.noted.0.is_some() && self.noted.1 == self.gone {
            return false;
        }
        let standing = self.standing.borrow_and_update().phase;
        let phase = if self.gone.is_some() { Phase::Stopped } else { standing };
        let is_other = self.noted.0.is_none_or(|before| before.word() != phase.word());
        (self.noted, self.stirred) = ((Some(phase), self.gone.clone()), round);
        if is_other {
            (self.since, self.turned) = (now, round);
        }
        is_other
    }

    /// Whether it can do tasks, now or after a while: there, and its model not beyond reach.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.gone.is_none() && self.standing.borrow().down.is_none()
    }

    /// Whether it waits for work and would begin it when told.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_idle() && {
            let standing = self.standing.borrow();
            standing.down.is_none() && !standing.is_away
        }
    }

    /// Why it is of no use, when it is not.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let reason = self.gone.clone().or_else(|| self.standing.borrow().down.clone());
        reason.filter(|reason| !reason.is_empty())
    }

    /// Whether it has begun to live; one that has not holds nothing and has heard nothing.
    fn has_begun(&self) -> bool {
        self.standing.borrow().reports > 0
    }

    /// Says something to it. A queue that is full holds a `Look` already; who wants a context compacted is told that nobody heard.
    pub fn tell(&self, control: Control) {
        if let Err(mpsc::error::TrySendError::Full(control)) = self.control.try_send(control)
            && !matches!(control, Control::Look | Control::Compact(_))
        {
            // The word must not be lost: stopping goes by the life itself then.
            self.life.abort();
        }
    }

    /// Tells it that it lost this claim, once.
    pub fn tell_lost(&mut self, held: Held) {
        if self.told_lost.replace(held) != Some(held) {
            self.tell(Control::ClaimLost(held));
        }
    }

    /// Tells it to stop; one that has not begun ends here.
    pub fn stop(&mut self, control: Control) {
        self.is_stopping = true;
        self.tell(control);
        if !self.has_begun() {
            self.life.abort();
        }
    }

    /// Ends its life, whatever it does.
    pub fn abort(&self) {
        self.life.abort();
    }

    /// Tells it to look, unless it was told already and has not answered.
    pub fn nudge(&mut self) -> bool {
        let answered = {
            let standing = self.standing.borrow();
            (standing.reports, standing.looks)
        };
        if self.nudged_at == Some(answered) {
            return false;
        }
        self.nudged_at = Some(answered);
        self.tell(Control::Look);
        true
    }

    /// Forgets that it was told: a poll tells everyone again.
    pub fn forget_nudge(&mut self) {
        self.nudged_at = None;
    }
}

/// A member whose life ended.
pub struct Ended {
    /// Whose.
    pub name: Name,
    /// Why; `None` when it stopped as it was asked.
    pub reason: Option<String>,
    /// What it held then.
    pub held: Option<Held>,
    /// Whether a store failed it: no fault of the task it held.
    pub by_harness: bool,
}

/// See the module.
pub struct Members {
    /// All members by name, the lead among them when its model thinks.
    pub by_name: BTreeMap<Name, Member>,
    shared: Arc<Shared>,
    lives: JoinSet<Result<(), AgentError>>,
    names: HashMap<Id, Name>,
    connect: Connect,
    tools_of: ToolsOf,
    /// What the lead's tools reach.
    pub control: Arc<dyn TeamControl>,
    worker: Arc<WorkerReporter>,
    gates: Gates,
    stalled: HashMap<Id, &'static str>,
    /// What models are told of tools; members with the same tools share it.
    tool_specs: Vec<Arc<[ToolSpec]>>,
    /// Counts up with each [`Self::note_phases`].
    round: u64,
}

/// What idle members may begin.
#[derive(Clone)]
pub struct Gates {
    /// For teammates.
    pub teammates: watch::Receiver<Gate>,
    /// For the lead.
    pub lead: watch::Receiver<Gate>,
}

/// What members are made with.
pub struct Making {
    /// Makes model clients.
    pub connect: Connect,
    /// Makes tools.
    pub tools_of: ToolsOf,
    /// What the lead's tools reach.
    pub control: Arc<dyn TeamControl>,
    /// Where commands and heartbeats are recorded.
    pub worker: Arc<WorkerReporter>,
    /// What they may begin.
    pub gates: Gates,
}

/// What ties a life to its member.
struct LifeEnds {
    heard: mpsc::Receiver<Control>,
    says: watch::Sender<Standing>,
    prefers: Option<TaskId>,
    respawns: u32,
}

impl Members {
    /// Nobody yet.
    #[must_use]
    pub fn new(shared: Arc<Shared>, making: Making) -> Self {
        let Making { connect, tools_of, control, worker, gates } = making;
        let lives = JoinSet::new();
        Self {
            by_name: BTreeMap::new(),
            shared,
            lives,
            names: HashMap::new(),
            connect,
            tools_of,
            control,
            worker,
            gates,
            stalled: HashMap::new(),
            tool_specs: Vec::new(),
            round: 0,
        }
    }

    /// Starts a member, or one that is gone again. `prefers` is the task it worked on before.
    ///
    /// # Errors
    /// Its model's settings are wrong, or one of that name lives.
    pub fn spawn(&mut self, spec: MemberSpec, prefers: Option<TaskId>, respawns: u32) -> Result<(), String> {
        let name = spec.name.clone();
        let before = self.by_name.get(&name);
        if before.is_some_and(|member| member.gone.is_none()) {
            return Err(format!("`{name}` is here already"));
        }
        let model = (self.connect)(&spec.model)?;
        let thinks = model.thinks();
        let progress = before.map_or_else(Arc::default, |member| Arc::clone(&member.progress));
        progress.hold(None);
        progress.touch();
        let prompts_answered = before.map_or(0, |member| member.standing.borrow().prompts_answered);
        let goals_done = before.map_or_else(Default::default, |member| member.standing.borrow().goals_done.clone());
        let (says, standing) = watch::channel(Standing { prompts_answered, goals_done, ..Standing::default() });
        let (control, heard) = mpsc::channel(CONTROLS_WAITING_MAX);
        let life = self.start(&spec, model, Arc::clone(&progress), LifeEnds { heard, says, prefers, respawns });
        self.names.insert(life.id(), name.clone());
        let member = Member {
            can_do: spec.can_do(),
            thinks,
            spec,
            standing,
            progress,
            since: self.shared.clock.now(),
            gone: None,
            respawns,
            control,
            life,
            noted: (None, None),
            stirred: 0,
            turned: 0,
            nudged_at: None,
            told_lost: None,
            is_to_stop: false,
            is_stopping: false,
        };
        if respawns == 0 {
            let role = member.spec.role.clone();
            self.shared.notes.fact(Fact::TeammateSpawned { teammate: name.to_string(), role });
        }
        self.by_name.insert(name, member);
        Ok(())
    }

    fn start(
        &mut self,
        spec: &MemberSpec,
        model: Arc<dyn ModelClient>,
        progress: Arc<Progress>,
        ends: LifeEnds,
    ) -> AbortHandle {
        let is_lead = spec.name.as_str() == LEAD;
        let gate = if is_lead { self.gates.lead.clone() } else { self.gates.teammates.clone() };
        let reins = Reins::new(Arc::clone(&progress));
        let patience = Patience::new(Arc::clone(&self.shared.room), Arc::clone(&reins), Arc::clone(&progress));
        let shared = Arc::new(Shared { stores: patience.stores(&self.shared.stores), ..(*self.shared).clone() });
        let commands = patience.commands(self.worker.enlist(spec.name.as_str(), Arc::clone(&progress)));
        let mut context = self.tool_context(spec, &shared, commands, reins.holding());
        context.goes_by_rule = !model.thinks();
        let mut tools = (self.tools_of)(is_lead);
        // What nobody is asked for need not be told of in every request.
        tools.retain(|tool| shared.review.is_some() || tool.spec().name != REVIEW_TOOL);
        let tool_specs = self.specs_of(&tools);
        let parts = AgentParts { spec: spec.clone(), model, tools, tool_specs, context, reins, progress };
        let LifeEnds { heard, says, prefers, respawns } = ends;
        let wait = if respawns == 0 { Duration::ZERO } else { RESPAWN_WAIT_FIRST.saturating_mul(1 << respawns.min(8)) };
        self.lives.spawn(async move {
            tokio::time::sleep(wait).await;
            let agent = Agent::resume(parts, shared).await?;
            Teammate::new(agent, heard, says, gate, prefers).live().await
        })
    }

    fn specs_of(&mut self, tools: &[Arc<dyn Tool>]) -> Arc<[ToolSpec]> {
        let specs: Vec<ToolSpec> = tools.iter().map(|tool| tool.spec()).collect();
        if let Some(known) = self.tool_specs.iter().find(|known| known[..] == specs[..]) {
            return Arc::clone(known);
        }
        let specs: Arc<[ToolSpec]> = specs.into();
        self.tool_specs.push(Arc::clone(&specs));
        specs
    }

    fn tool_context(
        &self,
        spec: &MemberSpec,
        shared: &Shared,
        commands: Arc<dyn CommandRegistry>,
        holding: watch::Receiver<Option<(TaskId, u32)>>,
    ) -> ToolContext {
        ToolContext {
            name: spec.name.clone(),
            role: spec.role.clone(),
            capabilities: spec.can_do(),
            team: shared.team.clone(),
            is_lead: spec.name.as_str() == LEAD,
            holding,
            stores: shared.stores.clone(),
            clock: Arc::clone(&shared.clock),
            workspace: shared.workspace.clone(),
            control_files: Arc::clone(&shared.control_files),
            boundaries: Arc::default(),
            goes_by_rule: false,
            lodging: None,
            read_only: None,
            review: shared.review.clone(),
            guard: Arc::clone(&shared.guard),
            commands,
            limits: ToolLimits {
                command_timeout: shared.limits.command_timeout,
                command_timeout_max: shared.limits.command_timeout_max,
                output_bytes_max: shared.limits.tool_output_bytes_max,
            },
            control: Arc::clone(&self.control),
            facts: shared.notes.facts(),
            todos: Arc::new(Mutex::new(String::new())),
        }
    }

    /// Waits until a life ends; never when there is none.
    pub async fn ended(&mut self) -> Ended {
        loop {
            match self.lives.join_next_with_id().await {
                Some(Ok((id, outcome))) => {
                    self.stalled.remove(&id);
                    let by_harness = matches!(outcome, Err(AgentError::Store(_)));
                    let reason = outcome.err().map(|error| error.to_string());
                    if let Some(ended) = self.bury(id, reason, by_harness) {
                        return ended;
                    }
                }
                Some(Err(error)) => {
                    let reason = self.stalled.remove(&error.id()).map_or_else(|| why(&error), str::to_owned);
                    if let Some(ended) = self.bury(error.id(), Some(reason), false) {
                        return ended;
                    }
                }
                None => std::future::pending().await,
            }
        }
    }

    fn bury(&mut self, id: Id, reason: Option<String>, by_harness: bool) -> Option<Ended> {
        let name = self.names.remove(&id)?;
        let member = self.by_name.get_mut(&name)?;
        let held = member.progress.held();
        member.progress.hold(None);
        member.gone = Some(reason.clone().unwrap_or_default());
        Some(Ended { name, reason, held, by_harness })
    }

    /// Ends the lives of those that hang; each then comes out of [`Members::ended`].
    pub fn end_stalled(&mut self) {
        let stall_timeout = self.shared.limits.stall_timeout;
        let could_hang =
            |member: &&Member| member.gone.is_none() && (member.works() || member.progress.held().is_some());
        for member in self.by_name.values().filter(could_hang) {
            if member.progress.is_stalled(stall_timeout) {
                self.stalled.insert(member.life.id(), "it hung: no progress within its bound");
                member.life.abort();
            }
        }
    }

    /// Whether nobody lives.
    #[must_use]
    pub fn are_gone(&self) -> bool {
        self.by_name.values().all(|member| member.gone.is_some())
    }

    /// Notes phases that changed: since when each member is in its phase. Returns whether any did.
    pub fn note_phases(&mut self) -> bool {
        let now = self.shared.clock.now();
        self.round += 1;
        let mut changed = false;
        for member in self.by_name.values_mut() {
            changed |= member.note(self.round, now);
        }
        changed
    }

    /// How often [`Self::note_phases`] looked.
    #[must_use]
    pub fn round(&self) -> u64 {
        self.round
    }

    /// The teammates that were found in another phase after that round.
    pub fn turned_since(&self, round: u64) -> impl Iterator<Item = &Member> {
        self.teammates().filter(move |member| member.turned > round)
    }

    /// The teammates: all members but the lead.
    pub fn teammates(&self) -> impl Iterator<Item = &Member> + Clone {
        self.by_name.values().filter(|member| member.spec.name.as_str() != LEAD)
    }

    /// The lead, when its model thinks.
    #[must_use]
    pub fn lead(&self) -> Option<&Member> {
        self.by_name.values().find(|member| member.spec.name.as_str() == LEAD)
    }
}

fn why(error: &JoinError) -> String {
    if error.is_panic() { "it panicked".to_owned() } else { "its task was ended".to_owned() }
}
