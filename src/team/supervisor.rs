//! Starts, watches and restarts the members of this process. `lead` decides when a member works or stops.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tracing::Instrument;

use super::handle::{LiveStatus, Reply};
use super::heartbeat::WorkerReporter;
use super::model_connection::{ModelConnector, account_of, check_model, model_chain};
use super::roster;
use super::running_member::{ExitReason, MemberCommands, RecordedStatus, RunningMember};
use super::teammate::reclaim_order::ReclaimOrder;
use super::teammate::{Teammate, TeammateCommand, TeammateStatus, WorkGates};
use super::write_retry::{StorageMonitor, WriteRetry};
use crate::agents::builtin::BuiltinAgent;
use crate::agents::external::programs;
use crate::agents::runbook::RunbookAgent;
use crate::agents::turn_control::TurnControl;
use crate::agents::{AgentBackend, AgentError, AgentHost, AgentServices, ExternalAgent};
use crate::domain::log::event::{EventKind, NewEvent};
use crate::domain::task::claim_queue::Candidate;
use crate::domain::team::account::Account;
use crate::domain::team::name::{LEAD, Name};
use crate::domain::team::phase::{ClaimRef, Phase};
use crate::domain::team::records::RosterMember;
use crate::domain::team::team_spec::{AgentKind, MEMBERS_MAX, MemberSpec};
use crate::ports::ToolSpec;
use crate::process::command::CommandRegistry;
use crate::run::progress::Progress;
use crate::service::attempt_log::AttemptLog;
use crate::service::attempt_quota::AttemptQuota;
use crate::tools::table::ToolUser;
use crate::tools::{Caller, TeamControl, Tool, ToolContext, WorkingDir};

/// Maximum number of commands queued for one member.
const MEMBER_COMMANDS_MAX: usize = 64;
/// The longest instructions of a spawned teammate, in bytes. The roster keeps them.
const SPAWN_PROMPT_BYTES_MAX: usize = 32 * 1024;
/// The wait before the first restart; each further wait is twice as long.
const RESPAWN_WAIT_FIRST: Duration = Duration::from_millis(250);

/// Creates a member's tools.
pub type ToolFactory = Arc<dyn Fn(&ToolUser<'_>) -> Vec<Arc<dyn Tool>> + Send + Sync>;

/// Builds the agent of a member.
type MakeBackend = Box<dyn FnOnce(&AgentHost) -> Box<dyn AgentBackend> + Send>;

/// The agent of a member before its host is ready.
struct PreparedAgent {
    make_backend: MakeBackend,
    accounts: Vec<Account>,
}

/// The end of a member.
pub struct MemberExit {
    pub name: Name,
    pub reason: ExitReason,
    /// True if a store failed, which is not the fault of its task.
    pub is_harness_failure: bool,
}

/// The members of this process.
pub struct Supervisor {
    /// All members by name; the lead only if it has a model.
    pub by_name: BTreeMap<Name, RunningMember>,
    pub(super) services: Arc<AgentServices>,
    join_set: JoinSet<Result<ExitReason, AgentError>>,
    pub(super) spawn_context: SpawnContext,
    work_gates: watch::Sender<WorkGates>,
    /// The tool descriptions for models; members with the same tools share one.
    tool_specs: Vec<Arc<[ToolSpec]>>,
}

/// Everything needed to start a member.
pub struct SpawnContext {
    pub connect: ModelConnector,
    pub tool_factory: ToolFactory,
    /// The team, as the lead's tools reach it.
    pub team_control: Arc<dyn TeamControl>,
    /// Records commands and heartbeats.
    pub worker: Arc<WorkerReporter>,
    /// The storage of the workspace.
    pub storage: Arc<StorageMonitor>,
    /// The order in which teammates claim after a restart.
    pub reclaim_order: Arc<ReclaimOrder>,
}

impl Supervisor {
    /// Creates a supervisor without members.
    pub fn new(services: Arc<AgentServices>, spawn_context: SpawnContext) -> Self {
        Self {
            by_name: BTreeMap::new(),
            services,
            join_set: JoinSet::new(),
            spawn_context,
            work_gates: watch::Sender::default(),
            tool_specs: Vec::new(),
        }
    }

    /// Sets the work gates of all members.
    pub fn set_work_gates(&self, work_gates: WorkGates) {
        self.work_gates.send_if_modified(|now| std::mem::replace(now, work_gates) != work_gates);
    }

    /// Returns the current work gates.
    pub fn work_gates(&self) -> WorkGates {
        *self.work_gates.borrow()
    }

    /// Starts a member, or restarts one that ended.
    ///
    /// # Errors
    /// The model's settings are wrong, or a member of that name is running.
    pub fn spawn(&mut self, spec: MemberSpec, respawns: u32) -> Result<(), String> {
        let name = spec.name.clone();
        let before = self.by_name.get(&name);
        if before.is_some_and(|member| member.exit.is_none()) {
            return Err(format!("`{name}` is running already"));
        }
        let is_spawned = before.map_or(spec.is_spawned, |member| member.is_spawned);
        let progress = before.map_or_else(Arc::default, |member| Arc::clone(&member.progress));
        let status = before.map_or_else(TeammateStatus::default, RunningMember::status_after_exit);
        let agent = self.prepare_agent(&spec)?;
        progress.set_claim(None);
        progress.record_activity();
        let (status_sender, status) = watch::channel(status);
        let (commands, received) = mpsc::channel(MEMBER_COMMANDS_MAX);
        let wait = if respawns == 0 { Duration::ZERO } else { RESPAWN_WAIT_FIRST.saturating_mul(1 << respawns.min(8)) };
        let abort_handle = self.start(&spec, agent, Arc::clone(&progress), received, status_sender, wait);
        let member = RunningMember {
            capabilities: spec.capabilities(),
            scope: self.services.spec.task_scope(&spec),
            spec,
            status,
            progress,
            exit: None,
            respawns,
            recorded: RecordedStatus::new(self.services.clock.now()),
            commands: MemberCommands::new(commands, abort_handle),
            has_stop_request: false,
            is_spawned,
        };
        if respawns == 0 {
            let spec = &member.spec;
            let since = member.recorded.since;
            let row = self.services.member_row(spec, Phase::START, since, None);
            let spawned = EventKind::TeammateSpawned { teammate: name.to_string(), role: spec.role.clone() };
            self.services.events.record(NewEvent::with_member(spawned, row));
        }
        self.by_name.insert(name, member);
        Ok(())
    }

    /// Returns what builds the member's agent once its host is ready.
    fn prepare_agent(&mut self, spec: &MemberSpec) -> Result<PreparedAgent, String> {
        let tools = (self.spawn_context.tool_factory)(&ToolUser { team: &self.services.spec, member: spec });
        let mut accounts = vec![account_of(&spec.model, None)];
        let make_backend: MakeBackend = match spec.model.agent {
            AgentKind::Builtin => {
                let model = model_chain(&spec.model, &self.spawn_context.connect)?;
                accounts = model.accounts();
                let tool_specs = self.specs_of(&tools);
                Box::new(move |host| Box::new(BuiltinAgent::new(model, tools, tool_specs, host)))
            }
            AgentKind::Runbook => Box::new(|_| Box::new(RunbookAgent::default())),
            AgentKind::Program => {
                let provider = &spec.model.provider;
                let program =
                    programs::program(provider).ok_or_else(|| format!("`{provider}` is no external agent"))?;
                Box::new(move |host| Box::new(ExternalAgent::new(program, tools, host)))
            }
        };
        Ok(PreparedAgent { make_backend, accounts })
    }

    fn start(
        &mut self,
        spec: &MemberSpec,
        agent: PreparedAgent,
        progress: Arc<Progress>,
        commands: mpsc::Receiver<TeammateCommand>,
        status: watch::Sender<TeammateStatus>,
        wait: Duration,
    ) -> AbortHandle {
        let turn_control = TurnControl::new(Arc::clone(&progress));
        let storage = Arc::clone(&self.spawn_context.storage);
        let retry = Arc::new(WriteRetry { storage, turn_control: Arc::clone(&turn_control) });
        let stores = self.services.stores.with_interceptor(&retry);
        let workers = Arc::clone(&stores.workers);
        let registry = self.spawn_context.worker.register(spec.name.as_str(), Arc::clone(&progress), workers);
        let services = Arc::new(AgentServices { stores, ..(*self.services).clone() });
        let context = self.tool_context(spec, &services, registry, progress.claim_receiver());
        let spec = spec.clone();
        let work_gates = self.work_gates.subscribe();
        let reclaim_order = Arc::clone(&self.spawn_context.reclaim_order);
        // It is inside the lead's span: the lead starts it.
        let span = tracing::info_span!("teammate", name = %spec.name);
        let run = async move {
            tokio::time::sleep(wait).await;
            let host = AgentHost::resume(spec, agent.accounts, services, context, turn_control).await?;
            let backend = (agent.make_backend)(&host);
            Teammate::new(host, backend, commands, status, work_gates, reclaim_order).run().await
        };
        self.join_set.spawn(run.instrument(span))
    }

    fn specs_of(&mut self, tools: &[Arc<dyn Tool>]) -> Arc<[ToolSpec]> {
        let specs: Vec<ToolSpec> = tools.iter().map(|tool| tool.spec()).collect();
        if let Some(existing) = self.tool_specs.iter().find(|existing| existing[..] == specs[..]) {
            return Arc::clone(existing);
        }
        let specs: Arc<[ToolSpec]> = specs.into();
        self.tool_specs.push(Arc::clone(&specs));
        specs
    }

    fn tool_context(
        &self,
        spec: &MemberSpec,
        services: &AgentServices,
        registry: Arc<dyn CommandRegistry>,
        claim: watch::Receiver<Option<ClaimRef>>,
    ) -> ToolContext {
        ToolContext {
            caller: Caller {
                name: spec.name.clone(),
                capabilities: spec.capabilities(),
                team: services.spec.name.clone(),
                is_lead: spec.name.as_str() == LEAD,
                claim,
                todos: Arc::default(),
                attempt_log: AttemptLog::default(),
                permissions: spec.permissions.clone(),
                attempt_quota: AttemptQuota::default(),
            },
            working_dir: WorkingDir::new(
                services.work_folder().to_owned(),
                Arc::clone(&services.workspace.control_files),
            ),
            stores: services.stores.clone(),
            work_inspector: services.isolation.as_ref().map(|isolation| isolation.repository.clone() as _),
            clock: Arc::clone(&services.clock),
            review: services.spec.review.as_deref().map(Arc::from),
            sandbox: services.workspace.sandbox.clone(),
            registry,
            limits: services.spec.limits.tools,
            team_control: Arc::clone(&self.spawn_context.team_control),
            events: services.events.facts(),
        }
    }

    /// Waits for the end of a member; waits forever if none is running. Cancel safe.
    pub async fn next_exit(&mut self) -> MemberExit {
        loop {
            let Some(ended) = self.join_set.join_next_with_id().await else { return std::future::pending().await };
            let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
            let mut members = self.by_name.values_mut();
            let Some(member) = members.find(|member| member.commands.abort_handle.id() == id) else { continue };
            let (reason, is_harness_failure) = match ended {
                Ok((_, Ok(reason))) => (reason, false),
                Ok((_, Err(error))) => (ExitReason::Failed(error.to_string()), matches!(error, AgentError::Store(_))),
                Err(error) => {
                    (ExitReason::Failed(join_error_text(&error, member.commands.was_stalled).to_owned()), false)
                }
            };
            member.progress.set_claim(None);
            member.set_exit(reason.clone());
            member.recorded.since = self.services.clock.now();
            return MemberExit { name: member.spec.name.clone(), reason, is_harness_failure };
        }
    }

    /// Aborts members without progress; [`Supervisor::next_exit`] then returns each.
    pub fn end_stalled(&mut self) {
        let stall_timeout = self.services.spec.limits.stall_timeout;
        let can_hang = |member: &&mut RunningMember| {
            member.exit.is_none() && (member.is_busy() || member.progress.claim().is_some())
        };
        for member in self.by_name.values_mut().filter(can_hang) {
            if member.progress.is_stalled(stall_timeout) {
                member.commands.abort_stalled();
            }
        }
    }

    /// Returns true if no member is running.
    pub fn all_exited(&self) -> bool {
        self.by_name.values().all(|member| member.exit.is_some())
    }

    /// Updates the recorded phases and their start times.
    pub fn refresh_status(&mut self) {
        self.by_name.values_mut().for_each(RunningMember::record_status);
    }

    /// Returns true if a phase changed since the last [`Self::write_roster`].
    pub fn is_roster_due(&self) -> bool {
        self.by_name.values().any(|member| member.recorded.is_roster_due)
    }

    /// Writes the members whose phase changed since the last call into the roster.
    pub async fn write_roster(&mut self) {
        let team = self.services.spec.name.as_str();
        let due = self.teammates().filter(|member| member.recorded.is_roster_due);
        let rows: Vec<RosterMember> = due.map(|member| member.roster_row(team)).collect();
        match self.services.stores.roster.report(team, &rows).await {
            Ok(()) => self.by_name.values_mut().for_each(|member| member.recorded.is_roster_due = false),
            // The lead tries again within a second.
            Err(error) => self.services.events.warn_once("roster", &error.to_string()),
        }
    }

    /// Writes the rows of the members again that another program has overwritten with an older copy of the roster.
    pub async fn restore_roster(&self) {
        if let Err(error) = self.services.stores.roster.read().await {
            self.services.events.warn_once("roster", &error.to_string());
        }
    }

    /// Starts a teammate while the team runs, and sends it its instructions, on which it starts to work. One that was started before
    /// keeps its configuration, but gets the new role and instructions. A later launch starts it again.
    ///
    /// # Errors
    /// The reason why it cannot be started.
    pub async fn spawn_at_run_time(&mut self, spec: MemberSpec, live: &LiveStatus) -> Result<(), String> {
        let name = spec.name.clone();
        let services = Arc::clone(&self.services);
        let spec = match self.by_name.get(&name).map(|member| member.spec.clone()) {
            Some(former) => MemberSpec { role: spec.role, prompt: spec.prompt, ..former },
            None => MemberSpec { is_spawned: true, ..spec },
        };
        let is_spawned = spec.is_spawned;
        self.check_spawn(&spec).await?;
        if let Err(error) = roster::register_spawned(&services, &spec, is_spawned).await {
            self.forget_spawned(&name).await;
            return Err(error.to_string());
        }
        self.spawn(spec.clone(), 0)?;
        if let Some(member) = self.by_name.get_mut(&name) {
            member.is_spawned = is_spawned;
            live.add_member(&spec);
        }
        Ok(())
    }

    /// Undoes the roster row of a teammate that could not be spawned.
    async fn forget_spawned(&mut self, name: &Name) {
        if let Some(member) = self.by_name.get_mut(name) {
            // The next write of the roster has its row as it was.
            member.recorded.is_roster_due = true;
            return;
        }
        let stores = &self.services.stores;
        let team = self.services.spec.name.as_str();
        if let Err(error) = stores.roster.remove(team, &[name.to_string()]).await {
            self.services.events.warn("roster", error.to_string());
        }
    }

    /// Checks that a teammate can be spawned.
    async fn check_spawn(&self, spec: &MemberSpec) -> Result<(), String> {
        let name = &spec.name;
        if name.is_reserved() {
            return Err(format!("the name `{name}` is reserved"));
        }
        if let Some(other) = self.by_name.keys().find(|other| *other != name && other.is_same(name.as_str())) {
            return Err(format!("`{name}` and `{other}` differ only in case"));
        }
        if self.by_name.get(name).is_some_and(|member| member.exit.is_none()) {
            return Err(format!("`{name}` is running already"));
        }
        if self.by_name.len() >= MEMBERS_MAX {
            return Err(format!("the team has {} members, which is the limit", self.by_name.len()));
        }
        if spec.prompt.len() > SPAWN_PROMPT_BYTES_MAX {
            return Err(format!("the prompt is longer than {SPAWN_PROMPT_BYTES_MAX} bytes"));
        }
        check_model(&spec.model, &self.spawn_context.connect)?;
        let roster = self.services.stores.roster.read().await.map_err(|error| error.to_string())?;
        let is_outside = |row: &RosterMember| row.is_outside() && name.is_same(&row.name);
        if !self.by_name.contains_key(name) && roster.iter().any(is_outside) {
            return Err(format!("`{name}` is an agent of another program; send it a message instead"));
        }
        Ok(())
    }

    /// Records that a member was shut down on request, so that no later launch starts it again.
    pub async fn record_dismissal(&mut self, name: &Name) {
        let Some(member) = self.by_name.get_mut(name).filter(|member| member.is_spawned) else { return };
        member.is_spawned = false;
        let team = self.services.spec.name.as_str();
        if let Err(error) = self.services.stores.roster.report(team, &[member.roster_row(team)]).await {
            self.services.events.warn("roster", error.to_string());
        }
    }

    /// Tells a member to compact its context.
    ///
    /// # Errors
    /// There is no such member, it has stopped, or it keeps no context.
    pub fn request_compaction(&self, name: &str, reply: Reply) -> Result<(), String> {
        let no_context = "uses the `runbook` provider and keeps no context, so there is nothing to compact";
        let Some(member) = self.by_name.values().find(|member| member.spec.name.is_same(name)) else {
            if LEAD.eq_ignore_ascii_case(name) {
                return Err(format!("the lead {no_context}"));
            }
            let names: Vec<&str> = self.by_name.keys().map(AsRef::as_ref).collect();
            return Err(format!("there is no member `{name}`; members: {}", names.join(", ")));
        };
        if member.exit.is_some() {
            return Err(format!("{} has stopped", member.spec.name));
        }
        if !member.spec.has_model() {
            return Err(format!("{} {no_context}", member.spec.name));
        }
        member.commands.send(TeammateCommand::Compact(reply));
        Ok(())
    }

    /// Replaces the reason why a member ended.
    pub fn set_exit(&mut self, name: &Name, reason: ExitReason) {
        if let Some(member) = self.by_name.get_mut(name) {
            member.set_exit(reason);
        }
    }

    /// Returns the teammates that can claim tasks, now or after a wait.
    pub fn candidates(&self) -> impl Iterator<Item = Candidate<'_>> + Clone {
        self.teammates().filter(|member| member.is_usable()).map(RunningMember::as_candidate)
    }

    /// Returns the reason of the first teammate whose budget is spent, if no other teammate is left to work.
    pub fn spent_budgets(&self) -> Option<String> {
        let is_left = |member: &RunningMember| member.is_usable() || member.unusable_reason().is_some();
        let mut left = self.teammates().filter(|member| is_left(member)).map(RunningMember::spent_budget);
        let first = left.next()??;
        left.all(|spent| spent.is_some()).then_some(first)
    }

    /// Returns all members but the lead.
    pub fn teammates(&self) -> impl Iterator<Item = &RunningMember> + Clone {
        self.by_name.values().filter(|member| member.spec.name.as_str() != LEAD)
    }

    /// Returns the lead, if it has a model.
    pub fn lead(&self) -> Option<&RunningMember> {
        self.by_name.values().find(|member| member.spec.name.as_str() == LEAD)
    }
}

fn join_error_text(error: &JoinError, is_stalled: bool) -> &'static str {
    if is_stalled {
        "it hung: no progress within the time limit"
    } else if error.is_panic() {
        "it panicked"
    } else {
        "it was aborted"
    }
}
