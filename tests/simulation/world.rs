//! One run: a team, a person, another worker and their faults, step by step from the plan; then the calm phase and the
//! end.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Waker};
use std::time::Duration;

use brigade::domain::team::budget::Budget;
use brigade::domain::team::name::{HUMAN, LEAD};
use brigade::domain::team::state::Mode;
use brigade::domain::team::team_spec::ModelSpec;
use brigade::domain::team::team_spec::{Limits, MemberSpec, ModelLimits, TeamSpec};
use brigade::ports::{Clock, Durability, ModelClient, StoreError, StoreResult, Stores, WaitLimit};
use brigade::sandbox::Sandbox;
use brigade::stores::file::open::open_as;
use brigade::stores::file::workers::ProcessId;
use brigade::stores::fs::FileSystem;
use brigade::stores::workspace::{OpenMode, OpenOptions, OpenStores};
use brigade::team::handle::{TeamCommand, TeamEnd, TeamHandle};
use brigade::team::{self, StartOptions, TeamDependencies};
use brigade::tools::Tool;
use brigade::tools::table::{ToolUser, tools_for};
use tempfile::TempDir;
use tokio::time::Instant;

use super::agents::{ScriptedModel, ScriptedModels};
use super::approvals::REVIEWER_ROLE;
use super::files::{Files, ProcessFiles};
use super::host::{SimulatedHost, WORKSPACE, lock};
use super::plan::{Action, Plan, ProcessRole, Reviewer};
use super::spending::SpendingChecks;
use super::store_observer;
use super::tools::{CheckedWriteTool, SlowTool, WRITE};

pub const MEMBERS: [&str; 3] = ["alice", "bob", "carol"];
pub const TEAM: &str = "crew";
/// Turns of one WORK phase.
pub const LIMITS_TURNS: u32 = 6;

/// Ids of simulated processes are above all ids of real ones.
const FIRST_PID: u32 = 4_300_000;
/// Time limit of every wait.
const LONG: Duration = Duration::from_secs(4 * 3600);
/// Time limit of an action; one that hangs in a slow store is cancelled, as a person would do.
const ACTION_TIME_MAX: Duration = Duration::from_secs(30);
/// The most polls of an action in the middle of a call; an action yields less often than this.
const POLLS_MAX: usize = 100;
/// The time without events after which the team counts as at rest: longer than any of its waits.
const QUIET: Duration = Duration::from_secs(130);

/// The longest answer, in tokens.
const OUTPUT_TOKENS_MAX: u32 = 400;

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunResult {
    pub violations: Vec<String>,
    pub log: Vec<String>,
    /// A digest of the final disk content.
    pub digest: u64,
}

/// A simulated process.
pub struct Process {
    pub files: Arc<ProcessFiles>,
    pub stores: Stores,
    _workspace: OpenStores,
}

/// The process of the lead.
struct Leader {
    process: Process,
    team: TeamHandle,
}

/// The processes and shared state of a run.
pub struct World {
    pub plan: Plan,
    pub host: Arc<SimulatedHost>,
    pub models: Arc<ScriptedModels>,
    leader: Mutex<Option<Leader>>,
    person: Mutex<Option<Arc<Process>>>,
    worker: Mutex<Option<Arc<Process>>>,
    /// The claims of the second worker.
    pub claims: Mutex<Vec<(brigade::domain::task::TaskId, u32)>>,
    next_pid: AtomicU64,
    pub clicks: AtomicU64,
    /// The folder in which tools write files.
    folder: TempDir,
}

/// Runs a plan, with the same result each time.
pub fn run(plan: &Plan) -> RunResult {
    fastrand::seed(plan.seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let Ok(runtime) = runtime else { panic!("no runtime") };
    runtime.block_on(async {
        let world = World::new(plan.clone());
        world.live().await;
        world.result()
    })
}

impl World {
    fn new(plan: Plan) -> Arc<Self> {
        let host = SimulatedHost::new(plan.setup);
        let models = ScriptedModels::new(&host, plan.seed, MEMBERS[..plan.setup.members].to_vec());
        let world = Arc::new(Self {
            plan,
            host,
            models,
            leader: Mutex::default(),
            person: Mutex::default(),
            worker: Mutex::default(),
            claims: Mutex::default(),
            next_pid: AtomicU64::new(0),
            clicks: AtomicU64::new(0),
            folder: tempfile::tempdir().expect("no folder for files"),
        });
        let weak: Weak<Self> = Arc::downgrade(&world);
        world.host.set_concurrent_action(Box::new(move |action| {
            if let Some(world) = weak.upgrade() {
                world.host.note(|| format!("meanwhile {action:?}"));
                // An action that cannot finish at once is left half done, as after a kill.
                let mut action = pin!(world.perform(action));
                let mut polls = 0..POLLS_MAX;
                while polls.next().is_some()
                    && action.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
                {}
            }
        }));
        world
    }

    async fn live(self: &Arc<Self>) {
        for seed in 0..self.plan.setup.tasks {
            self.perform(&Action::AddTasks { seed }).await;
        }
        for step in &self.plan.steps {
            self.ensure_lead().await;
            self.pass(Duration::from_millis(step.wait_ms)).await;
            self.host.note(|| format!("{:?}", step.action));
            // An action that does not end was killed, or its store is slow.
            let _ = tokio::time::timeout(ACTION_TIME_MAX, self.perform(&step.action)).await;
            self.reap().await;
            if self.has_failed() {
                return;
            }
        }
        self.pass(Duration::from_secs(3)).await;
        self.host.cancel_faults();
        self.end().await;
    }

    /// The calm phase: no faults any more; the team ends, or comes to rest.
    async fn end(self: &Arc<Self>) {
        self.host.note(|| "calm".to_owned());
        lock(&self.host.invariants).spending.allow_all();
        if self.plan.setup.budget.is_some() {
            // A new budget takes effect at the launch.
            self.stop_lead(TeamCommand::Stop).await;
        }
        lock(&self.worker).take().into_iter().for_each(|worker| worker.files.kill());
        if let Some(person) = lock(&self.person).take() {
            person.files.kill();
        }
        self.ensure_lead().await;
        self.pass(Duration::from_secs(4)).await;
        if self.is_led() {
            lock(&self.host.invariants).check_click(&self.host.disk(), Path::new(WORKSPACE));
        }
        if self.plan.setup.ends_at_rest {
            self.click(Mode::Continuous, false);
            self.wait_for_rest().await;
        }
        self.stop_lead(TeamCommand::Stop).await;
        let start = StartOptions { mode: Some(Mode::RunOnce), one_session: true, ..StartOptions::default() };
        if let Err(error) = self.launch(start).await {
            return lock(&self.host.invariants).violate(format!("progress: no launch in the calm: {error}"));
        }
        self.ended().await;
        self.check();
        let (disk, mut invariants) = (self.host.disk(), lock(&self.host.invariants));
        let inboxes = Path::new(WORKSPACE).join(".team/inbox");
        invariants.check_arrivals(&MEMBERS[..self.plan.setup.members], &disk, &inboxes, self.host.now());
        invariants.check_end(&disk, &Path::new(WORKSPACE).join(".tasks"));
    }

    /// Waits until nothing has happened for a while; after that, no request may be made.
    async fn wait_for_rest(self: &Arc<Self>) {
        let begun = Instant::now();
        let (mut last, mut since) = (self.activity(), Instant::now());
        while since.elapsed() < QUIET {
            if begun.elapsed() > LONG {
                return lock(&self.host.invariants).violate("progress: the team never rests");
            }
            self.approve_all().await;
            self.pass(Duration::from_secs(20)).await;
            if last != self.activity() {
                (last, since) = (self.activity(), Instant::now());
            }
        }
        let requests = self.models.requests.load(Ordering::Relaxed);
        self.pass(QUIET).await;
        if requests != self.models.requests.load(Ordering::Relaxed) {
            lock(&self.host.invariants)
                .violate("idle members make no requests: a model got a request without an event");
        }
    }

    /// Counters that change while a member works.
    fn activity(&self) -> (u64, u64) {
        let mut hasher = DefaultHasher::new();
        for (path, bytes) in self.host.disk().contents() {
            if path.starts_with(Path::new(WORKSPACE).join(".tasks")) {
                (path, bytes).hash(&mut hasher);
            }
        }
        (self.models.requests.load(Ordering::Relaxed), hasher.finish())
    }

    /// Lets time pass, and reaps each process that dies in the meantime.
    async fn pass(self: &Arc<Self>, time: Duration) {
        let until = Instant::now() + time;
        loop {
            let is_over = tokio::select! {
                biased;
                () = self.host.died.notified() => false,
                () = tokio::time::sleep_until(until.min(Instant::now() + Duration::from_secs(5))) => Instant::now() >= until,
            };
            self.reap().await;
            if is_over || self.has_failed() {
                return;
            }
        }
    }

    fn has_failed(&self) -> bool {
        !lock(&self.host.invariants).violations.is_empty()
    }

    fn check(&self) {
        lock(&self.host.invariants).check(&self.host.disk(), Path::new(WORKSPACE));
    }

    /// Ends the remains of dead processes, and checks the invariants.
    async fn reap(&self) {
        for slot in [&self.person, &self.worker] {
            let mut slot = lock(slot);
            if slot.as_ref().is_some_and(|process| process.files.is_dead()) {
                *slot = None;
            }
        }
        if lock(&self.worker).is_none() {
            lock(&self.claims).clear();
        }
        let dead = {
            let mut leader = lock(&self.leader);
            if leader.as_ref().is_some_and(|leader| leader.process.files.is_dead()) { leader.take() } else { None }
        };
        if let Some(mut leader) = dead {
            leader.team.abort();
            // The result does not matter.
            let _ = leader.team.wait().await;
        }
        self.end_finished_leader().await;
        self.check();
    }

    /// A team that ended by itself ends its process; one with a spent budget holds nothing.
    async fn end_finished_leader(&self) {
        let Some(mut leader) = lock(&self.leader).take() else { return };
        let Ok(ended) = tokio::time::timeout(Duration::ZERO, leader.team.wait()).await else {
            *lock(&self.leader) = Some(leader);
            return;
        };
        let end = ended.as_ref().map(|outcome| outcome.end);
        self.host.note(|| format!("{} ended by itself: {end:?}", leader.process.files.name));
        if matches!(end, Ok(TeamEnd::BudgetSpent)) && !self.host.had_fault_within(Duration::from_secs(60)) {
            let me = leader.process.stores.workers.worker_id().to_owned();
            lock(&self.host.invariants).check_released(&me);
        }
        leader.process.files.kill();
    }

    fn result(&self) -> RunResult {
        let mut hasher = DefaultHasher::new();
        for (path, bytes) in self.host.disk().contents() {
            // Records of workers contain this machine's uptime.
            if !path.starts_with(Path::new(WORKSPACE).join(".team/workers"))
                && !path.to_string_lossy().contains("/.tmp-")
            {
                (path, bytes).hash(&mut hasher);
            }
        }
        let violations = lock(&self.host.invariants).violations.clone();
        if !violations.is_empty() {
            self.note_files_left();
        }
        RunResult { violations, log: self.host.log(), digest: hasher.finish() }
    }

    /// Notes the files of the board, the inboxes and the transcripts.
    fn note_files_left(&self) {
        for (path, bytes) in self.host.disk().contents() {
            let relative_path = path.strip_prefix(WORKSPACE).unwrap_or(&path);
            if [".tasks", ".team/inbox", ".team/transcripts"].iter().any(|folder| relative_path.starts_with(folder)) {
                let text = String::from_utf8_lossy(&bytes).replace("\n  ", " ");
                self.host.note(|| format!("{}: {}", relative_path.display(), text.trim_end()));
            }
        }
    }
}

/// Processes.
impl World {
    /// A name for a process that opens no files.
    pub fn next_process(&self) -> String {
        format!("command{}", self.next_pid.fetch_add(1, Ordering::Relaxed))
    }

    pub fn open(&self, what: &str, mode: OpenMode) -> StoreResult<Process> {
        let number = self.next_pid.fetch_add(1, Ordering::Relaxed);
        let files = ProcessFiles::new(format!("{what}{number}"), &self.host);
        self.host.add_process(&files);
        let pid = FIRST_PID + u32::try_from(number).unwrap_or(0);
        let process = ProcessId { pid, started_ms: number + 1 };
        let durability = if self.plan.setup.is_durable { Durability::Power } else { Durability::Process };
        let clock = Arc::clone(&self.host) as Arc<dyn Clock>;
        let options = OpenOptions { mode, durability, clock, wait_limit: WaitLimit::default() };
        let port: Arc<dyn FileSystem> = Arc::new(Files(Arc::clone(&files)));
        let workspace = open_as(process, port, Path::new(WORKSPACE), &options)?;
        let stores = store_observer::observed(&files, &workspace.stores);
        Ok(Process { files, stores, _workspace: workspace })
    }

    /// The person's process, started if there is none.
    pub fn person(&self) -> StoreResult<Arc<Process>> {
        self.get_or_open(&self.person, "person")
    }

    /// The second worker's process, started if there is none.
    pub fn worker(&self) -> StoreResult<Arc<Process>> {
        self.get_or_open(&self.worker, "worker")
    }

    fn get_or_open(&self, slot: &Mutex<Option<Arc<Process>>>, what: &str) -> StoreResult<Arc<Process>> {
        let running = lock(slot).clone().filter(|process| !process.files.is_dead());
        if let Some(process) = running {
            return Ok(process);
        }
        let process = Arc::new(self.open(what, OpenMode::Write)?);
        *lock(slot) = Some(Arc::clone(&process));
        Ok(process)
    }

    /// The files of a running process.
    pub fn files_of(&self, who: ProcessRole) -> Option<Arc<ProcessFiles>> {
        match who {
            ProcessRole::Lead => lock(&self.leader).as_ref().map(|leader| Arc::clone(&leader.process.files)),
            ProcessRole::Worker => lock(&self.worker).as_ref().map(|process| Arc::clone(&process.files)),
            ProcessRole::Person => lock(&self.person).as_ref().map(|process| Arc::clone(&process.files)),
        }
    }

    pub fn is_led(&self) -> bool {
        lock(&self.leader).as_ref().is_some_and(|leader| !leader.process.files.is_dead())
    }

    /// Another process tries to lead; this must fail while a lead runs.
    pub fn second_lead(&self) {
        if self.is_led() {
            match self.open("second", OpenMode::Lead { team: TEAM.to_owned() }) {
                Err(StoreError::AlreadyLed { .. } | StoreError::Io { .. }) => {}
                Err(error) => lock(&self.host.invariants).violate(format!("one lead: {error}")),
                Ok(_) if !self.is_led() => {}
                Ok(_) => lock(&self.host.invariants).violate("one lead: two lead at once"),
            }
        }
    }

    /// Launches a team if none runs.
    async fn ensure_lead(self: &Arc<Self>) {
        if !self.is_led() {
            let start = StartOptions { mode_without_file: Some(Mode::Continuous), ..StartOptions::default() };
            if let Err(error) = self.launch(start).await {
                self.host.note(|| format!("not launched: {error}"));
            }
        }
    }

    async fn launch(self: &Arc<Self>, start: StartOptions) -> Result<(), String> {
        let process = self.open("lead", OpenMode::Lead { team: TEAM.to_owned() }).map_err(|error| error.to_string())?;
        self.host.send_hints_to(process.stores.changes.clone());
        let dependencies = self.dependencies(&process);
        let died = async {
            while !process.files.is_dead() {
                self.host.died.notified().await;
            }
        };
        let team = tokio::select! {
            biased;
            () = died => Err("it died".to_owned()),
            team = team::launch(self.spec(), start, dependencies) => team.map_err(|error| error.to_string()),
        }?;
        *lock(&self.leader) = Some(Leader { process, team });
        Ok(())
    }

    pub async fn stop_lead(&self, command: TeamCommand) {
        let sender = lock(&self.leader).as_ref().map(|leader| leader.team.commands());
        if let Some(sender) = sender {
            // An ended team needs no commands.
            let _ = sender.send(command).await;
            self.ended().await;
        }
    }

    /// Waits for the end of the team.
    async fn ended(&self) {
        let Some(Leader { process, mut team }) = lock(&self.leader).take() else { return };
        let died = async {
            while !process.files.is_dead() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let answering = async {
            loop {
                tokio::time::sleep(Duration::from_secs(30)).await;
                self.approve_all().await;
            }
        };
        tokio::select! {
            biased;
            _ = team.wait() => {}
            () = died => team.abort(),
            () = answering => {}
            () = tokio::time::sleep(LONG) => lock(&self.host.invariants).violate("progress: the team never ends"),
        }
        self.host.note(|| format!("{} ended", process.files.name));
        process.files.kill();
        // The recorder and the lock holders notice that they are alone.
        tokio::task::yield_now().await;
    }

    fn spec(&self) -> TeamSpec {
        let model = |who: &str| ModelSpec::new("mind", who);
        let (member_budget, task_tokens_max) = {
            let spending = &lock(&self.host.invariants).spending;
            (spending.member_budget(), spending.task_tokens_max())
        };
        let limits = Limits {
            free_bytes_min: 0,
            task_tokens_max,
            turns_max: LIMITS_TURNS,
            model: ModelLimits { output_tokens_max: OUTPUT_TOKENS_MAX, retries_max: 2, ..ModelLimits::default() },
            respawns_max: 50,
            stall_timeout: Duration::from_secs(120),
            stop_timeout: Duration::from_secs(10),
            ..Limits::default()
        };
        let setup = self.plan.setup;
        let lead = if setup.lead_has_model { model(LEAD) } else { ModelSpec::runbook() };
        let team = TeamSpec {
            limits,
            goal: setup.lead_has_model.then(|| "Make it good".to_owned()),
            review: setup.review.map(|reviewer| match reviewer {
                Reviewer::Role => REVIEWER_ROLE.to_owned(),
                Reviewer::Lead => LEAD.to_owned(),
                Reviewer::Human => HUMAN.to_owned(),
            }),
            budget: lock(&self.host.invariants).spending.budget(),
            prices: SpendingChecks::prices(&[MEMBERS.as_slice(), &[LEAD]].concat()),
            ..TeamSpec::new(TEAM, lead).unwrap()
        };
        let members = self.models.members.iter().enumerate().map(|(index, who)| {
            let role = if index + 1 == setup.members { REVIEWER_ROLE } else { "coder" };
            let is_first = index == 0;
            MemberSpec {
                plan_first: setup.plan_first && is_first,
                budget: if is_first { member_budget } else { Budget::default() },
                ..MemberSpec::new(who, role, model(who)).unwrap()
            }
        });
        TeamSpec { members: members.collect(), ..team }
    }

    fn dependencies(&self, process: &Process) -> TeamDependencies {
        let (models, files) = (Arc::clone(&self.models), Arc::clone(&process.files));
        let connect = move |_: &ModelSpec| -> Result<Arc<dyn ModelClient>, String> {
            Ok(Arc::new(ScriptedModel::new(&models, &files)))
        };
        let files = Arc::clone(&process.files);
        let tools = move |user: &ToolUser<'_>| {
            let watched = |inner: Arc<dyn Tool>| -> Arc<dyn Tool> {
                match inner.spec().name == WRITE {
                    true => Arc::new(CheckedWriteTool { inner, files: Arc::clone(&files) }),
                    false => inner,
                }
            };
            let mut tools: Vec<_> = tools_for(user).into_iter().map(watched).collect();
            tools.push(Arc::new(SlowTool { files: Arc::clone(&files) }) as Arc<dyn Tool>);
            tools
        };
        TeamDependencies {
            stores: process.stores.clone(),
            clock: Arc::clone(&self.host) as Arc<dyn Clock>,
            workspace: self.folder.path().to_owned(),
            control_files: Arc::<[PathBuf]>::default(),
            sandbox: Sandbox::without_guard(),
            accounts: None,
            connect: Arc::new(connect),
            tool_factory: Arc::new(tools),
            repository: None,
            webhook: Arc::new(brigade::providers::webhook::HttpWebhook),
        }
    }

    /// The tasks with owners and status, for actions that choose one.
    pub fn tasks(&self) -> BTreeMap<u64, brigade::domain::task::Task> {
        lock(&self.host.invariants).tasks()
    }
}
