//! One run: a team, a person, another worker and whatever befalls them, step by step as the plan says; then calm, and the end.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Waker};
use std::time::Duration;

use brigade::domain::name::{HUMAN, LEAD};
use brigade::domain::state::Mode;
use brigade::models::runbook::Runbook;
use brigade::ports::{Clock, Durability, ModelClient, ModelSpec, StoreError, StoreResult, Stores};
use brigade::sandbox::Sandbox;
use brigade::stores::file::workers::Incarnation;
use brigade::stores::fs::FileSystem;
use brigade::stores::open::{OpenOptions, Purpose, Workspace, open_as};
use brigade::team::handle::{Command, End, TeamHandle};
use brigade::team::spec::{Limits, MemberSpec, TeamSpec};
use brigade::team::{self, Start, Surroundings};
use brigade::tools::Tool;
use brigade::tools::table::tools_of;
use tempfile::TempDir;
use tokio::time::Instant;

use super::accounts;
use super::approvals::REVIEWER_ROLE;
use super::files::{Files, ProcessFiles};
use super::minds::{Mind, Minds};
use super::nature::{Nature, WORKSPACE, lock};
use super::plan::{Deed, Plan, Reviewer, Who};
use super::spending::Spending;
use super::tools::{WRITE, Watched, Work};

pub const MEMBERS: [&str; 3] = ["alice", "bob", "carol"];
pub const TEAM: &str = "crew";
/// Turns of one WORK phase.
pub const LIMITS_TURNS: u32 = 6;

/// Numbers of simulated processes begin above all that a system gives.
const FIRST_PID: u32 = 4_300_000;
/// Longer than anything may take.
const LONG: Duration = Duration::from_secs(4 * 3600);
/// How long a deed may take; one that hangs in a dawdling store is given up, as a person would.
const DEED_TIME_MAX: Duration = Duration::from_secs(30);
/// How often what is done in the middle of a call is gone on with: more often than it gives way to others.
const POLLS_MAX: usize = 100;
/// How long nothing has to happen for the team to count as at rest: longer than any wait of its own choice.
const QUIET: Duration = Duration::from_secs(130);

/// The longest answer, in tokens.
const OUTPUT_TOKENS_MAX: u32 = 400;

/// How a run went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub violations: Vec<String>,
    pub story: Vec<String>,
    /// Tells what is on the disk in the end from anything else.
    pub digest: u64,
}

/// One process.
pub struct Process {
    pub files: Arc<ProcessFiles>,
    pub stores: Stores,
    _workspace: Workspace,
}

/// The process that leads.
struct Leader {
    process: Process,
    team: TeamHandle,
}

/// See the module.
pub struct World {
    pub plan: Plan,
    pub nature: Arc<Nature>,
    pub minds: Arc<Minds>,
    leader: Mutex<Option<Leader>>,
    person: Mutex<Option<Arc<Process>>>,
    worker: Mutex<Option<Arc<Process>>>,
    /// What the second worker holds.
    pub claims: Mutex<Vec<(brigade::domain::task::TaskId, u32)>>,
    next_pid: AtomicU64,
    pub clicks: AtomicU64,
    /// Where tools write files.
    folder: TempDir,
}

/// Runs a plan, the same way each time.
pub fn run(plan: &Plan) -> Outcome {
    fastrand::seed(plan.seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let Ok(runtime) = runtime else { panic!("no runtime") };
    runtime.block_on(async {
        let world = World::new(plan.clone());
        world.live().await;
        world.outcome()
    })
}

impl World {
    fn new(plan: Plan) -> Arc<Self> {
        let nature = Nature::new(plan.setup);
        let minds = Minds::new(&nature, plan.seed, MEMBERS[..plan.setup.members].to_vec());
        let world = Arc::new(Self {
            plan,
            nature,
            minds,
            leader: Mutex::default(),
            person: Mutex::default(),
            worker: Mutex::default(),
            claims: Mutex::default(),
            next_pid: AtomicU64::new(0),
            clicks: AtomicU64::new(0),
            folder: tempfile::tempdir().expect("no folder for files"),
        });
        let weak: Weak<Self> = Arc::downgrade(&world);
        world.nature.on_meanwhile(Box::new(move |deed| {
            if let Some(world) = weak.upgrade() {
                world.nature.note(|| format!("meanwhile {deed:?}"));
                // What cannot be done at once is left half done, as by somebody who is killed.
                let mut deed = pin!(world.perform(deed));
                let mut polls = 0..POLLS_MAX;
                while polls.next().is_some() && deed.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
                {
                }
            }
        }));
        world
    }

    async fn live(self: &Arc<Self>) {
        for dice in 0..self.plan.setup.tasks {
            self.perform(&Deed::AddTasks { dice }).await;
        }
        for step in &self.plan.steps {
            self.lead_again().await;
            self.pass(Duration::from_millis(step.wait_ms)).await;
            self.nature.note(|| format!("{:?}", step.deed));
            // Whoever does not come to an end was killed, or dawdles.
            let _ = tokio::time::timeout(DEED_TIME_MAX, self.perform(&step.deed)).await;
            self.reap().await;
            if self.has_failed() {
                return;
            }
        }
        self.pass(Duration::from_secs(3)).await;
        self.nature.calm();
        self.end().await;
    }

    /// All is well from now on: the team comes to its end, or to rest.
    async fn end(self: &Arc<Self>) {
        self.nature.note(|| "calm".to_owned());
        lock(&self.nature.laws).spending.allow_all();
        if self.plan.setup.budget.is_some() {
            // What it may use now it learns when it is launched.
            self.stop_lead(Command::Stop).await;
        }
        lock(&self.worker).take().into_iter().for_each(|worker| worker.files.kill());
        if let Some(person) = lock(&self.person).take() {
            person.files.kill();
        }
        self.lead_again().await;
        self.pass(Duration::from_secs(4)).await;
        if self.is_led() {
            lock(&self.nature.laws).check_click(&self.nature.disk(), Path::new(WORKSPACE));
        }
        if self.plan.setup.ends_at_rest {
            self.click(Mode::Continuous, false);
            self.rest().await;
        }
        self.stop_lead(Command::Stop).await;
        let start = Start { mode: Some(Mode::RunOnce), one_session: true, ..Start::default() };
        if let Err(error) = self.launch(start).await {
            return lock(&self.nature.laws).violate(format!("progress: no launch in the calm: {error}"));
        }
        self.ended().await;
        self.check();
        let (disk, mut laws) = (self.nature.disk(), lock(&self.nature.laws));
        let inboxes = Path::new(WORKSPACE).join(".team/inbox");
        laws.check_arrivals(&MEMBERS[..self.plan.setup.members], &disk, &inboxes, self.nature.now());
        laws.check_end(&disk, &Path::new(WORKSPACE).join(".tasks"));
    }

    /// Waits until nothing has happened for a while; then nothing may cost anything.
    async fn rest(self: &Arc<Self>) {
        let begun = Instant::now();
        let (mut last, mut since) = (self.busy(), Instant::now());
        while since.elapsed() < QUIET {
            if begun.elapsed() > LONG {
                return lock(&self.nature.laws).violate("progress: the team never rests");
            }
            self.approve_all().await;
            self.pass(Duration::from_secs(20)).await;
            if last != self.busy() {
                (last, since) = (self.busy(), Instant::now());
            }
        }
        let requests = self.minds.requests.load(Ordering::Relaxed);
        self.pass(QUIET).await;
        if requests != self.minds.requests.load(Ordering::Relaxed) {
            lock(&self.nature.laws).violate("idle is free: a model was asked though nothing happened");
        }
    }

    /// What moves while somebody works.
    fn busy(&self) -> (u64, u64) {
        let mut hasher = DefaultHasher::new();
        for (path, bytes) in self.nature.disk().contents() {
            if path.starts_with(Path::new(WORKSPACE).join(".tasks")) {
                (path, bytes).hash(&mut hasher);
            }
        }
        (self.minds.requests.load(Ordering::Relaxed), hasher.finish())
    }

    /// Lets time pass; whoever dies meanwhile is buried at once.
    async fn pass(self: &Arc<Self>, time: Duration) {
        let until = Instant::now() + time;
        loop {
            let is_over = tokio::select! {
                biased;
                () = self.nature.died.notified() => false,
                () = tokio::time::sleep_until(until.min(Instant::now() + Duration::from_secs(5))) => Instant::now() >= until,
            };
            self.reap().await;
            if is_over || self.has_failed() {
                return;
            }
        }
    }

    fn has_failed(&self) -> bool {
        !lock(&self.nature.laws).violations.is_empty()
    }

    fn check(&self) {
        lock(&self.nature.laws).check(&self.nature.disk(), Path::new(WORKSPACE));
    }

    /// Ends what is left of processes that died, and checks the laws.
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
            // It was ended; how does not matter.
            let _ = leader.team.wait().await;
        }
        self.bury_the_spent().await;
        self.check();
    }

    /// A team that ended by itself leaves its process; one whose budget is spent holds nothing.
    async fn bury_the_spent(&self) {
        let Some(mut leader) = lock(&self.leader).take() else { return };
        let Ok(ended) = tokio::time::timeout(Duration::ZERO, leader.team.wait()).await else {
            *lock(&self.leader) = Some(leader);
            return;
        };
        let end = ended.as_ref().map(|outcome| outcome.end);
        self.nature.note(|| format!("{} ended by itself: {end:?}", leader.process.files.name));
        if matches!(end, Ok(End::BudgetSpent)) && !self.nature.was_troubled(Duration::from_secs(60)) {
            let me = leader.process.stores.workers.me().to_owned();
            lock(&self.nature.laws).check_released(&me);
        }
        leader.process.files.kill();
    }

    fn outcome(&self) -> Outcome {
        let mut hasher = DefaultHasher::new();
        for (path, bytes) in self.nature.disk().contents() {
            // Records of workers say how long this machine is up.
            if !path.starts_with(Path::new(WORKSPACE).join(".team/workers"))
                && !path.to_string_lossy().contains("/.tmp-")
            {
                (path, bytes).hash(&mut hasher);
            }
        }
        let violations = lock(&self.nature.laws).violations.clone();
        if !violations.is_empty() {
            self.tell_remains();
        }
        Outcome { violations, story: self.nature.story(), digest: hasher.finish() }
    }

    /// What lies on the board, in the inboxes and in the transcripts.
    fn tell_remains(&self) {
        for (path, bytes) in self.nature.disk().contents() {
            let place = path.strip_prefix(WORKSPACE).unwrap_or(&path);
            if [".tasks", ".team/inbox", ".team/transcripts"].iter().any(|folder| place.starts_with(folder)) {
                let text = String::from_utf8_lossy(&bytes).replace("\n  ", " ");
                self.nature.note(|| format!("{}: {}", place.display(), text.trim_end()));
            }
        }
    }
}

/// Processes.
impl World {
    /// A name for one that opens nothing of its own.
    pub fn next_process(&self) -> String {
        format!("command{}", self.next_pid.fetch_add(1, Ordering::Relaxed))
    }

    pub fn open(&self, what: &str, purpose: Purpose) -> StoreResult<Process> {
        let number = self.next_pid.fetch_add(1, Ordering::Relaxed);
        let files = ProcessFiles::new(format!("{what}{number}"), &self.nature);
        self.nature.enlist(&files);
        let pid = FIRST_PID + u32::try_from(number).unwrap_or(0);
        let process = Incarnation { pid, started_ms: number + 1 };
        let durability = if self.plan.setup.is_durable { Durability::Power } else { Durability::Process };
        let clock = Arc::clone(&self.nature) as Arc<dyn Clock>;
        let options = OpenOptions { purpose, durability, clock };
        let port: Arc<dyn FileSystem> = Arc::new(Files(Arc::clone(&files)));
        let workspace = open_as(process, port, Path::new(WORKSPACE), &options)?;
        let stores = accounts::over(&files, &workspace.stores);
        Ok(Process { files, stores, _workspace: workspace })
    }

    /// The person's process, begun where there is none.
    pub fn person(&self) -> StoreResult<Arc<Process>> {
        self.in_slot(&self.person, "person", || Purpose::Act)
    }

    /// The second worker's process, begun where there is none.
    pub fn worker(&self) -> StoreResult<Arc<Process>> {
        self.in_slot(&self.worker, "worker", || Purpose::Act)
    }

    fn in_slot(
        &self,
        slot: &Mutex<Option<Arc<Process>>>,
        what: &str,
        purpose: impl FnOnce() -> Purpose,
    ) -> StoreResult<Arc<Process>> {
        let there = lock(slot).clone().filter(|process| !process.files.is_dead());
        if let Some(process) = there {
            return Ok(process);
        }
        let process = Arc::new(self.open(what, purpose())?);
        *lock(slot) = Some(Arc::clone(&process));
        Ok(process)
    }

    /// The files of a process that is there.
    pub fn files_of(&self, who: Who) -> Option<Arc<ProcessFiles>> {
        match who {
            Who::Lead => lock(&self.leader).as_ref().map(|leader| Arc::clone(&leader.process.files)),
            Who::Worker => lock(&self.worker).as_ref().map(|process| Arc::clone(&process.files)),
            Who::Person => lock(&self.person).as_ref().map(|process| Arc::clone(&process.files)),
        }
    }

    pub fn is_led(&self) -> bool {
        lock(&self.leader).as_ref().is_some_and(|leader| !leader.process.files.is_dead())
    }

    /// Another process tries to lead; it must not while one does.
    pub fn second_lead(&self) {
        if self.is_led() {
            match self.open("second", Purpose::Lead { team: TEAM.to_owned() }) {
                Err(StoreError::Occupied { .. } | StoreError::Io { .. }) => {}
                Err(error) => lock(&self.nature.laws).violate(format!("one lead: {error}")),
                Ok(_) if !self.is_led() => {}
                Ok(_) => lock(&self.nature.laws).violate("one lead: two lead at once"),
            }
        }
    }

    /// Launches a team where none is.
    async fn lead_again(self: &Arc<Self>) {
        if !self.is_led() {
            let start = Start { mode_without_file: Some(Mode::Continuous), ..Start::default() };
            if let Err(error) = self.launch(start).await {
                self.nature.note(|| format!("not launched: {error}"));
            }
        }
    }

    async fn launch(self: &Arc<Self>, start: Start) -> Result<(), String> {
        let process = self.open("lead", Purpose::Lead { team: TEAM.to_owned() }).map_err(|error| error.to_string())?;
        self.nature.hear_hints(process.stores.changes.clone());
        let surroundings = self.surroundings(&process);
        let died = async {
            while !process.files.is_dead() {
                self.nature.died.notified().await;
            }
        };
        let team = tokio::select! {
            biased;
            () = died => Err("it died".to_owned()),
            team = team::launch(self.spec(), start, surroundings) => team.map_err(|error| error.to_string()),
        }?;
        *lock(&self.leader) = Some(Leader { process, team });
        Ok(())
    }

    pub async fn stop_lead(&self, command: Command) {
        let sender = lock(&self.leader).as_ref().map(|leader| leader.team.commands());
        if let Some(sender) = sender {
            // A team that is gone needs no commands.
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
            () = tokio::time::sleep(LONG) => lock(&self.nature.laws).violate("progress: the team never ends"),
        }
        self.nature.note(|| format!("{} ended", process.files.name));
        process.files.kill();
        // The recorder and the keepers find that they are alone.
        tokio::task::yield_now().await;
    }

    fn spec(&self) -> TeamSpec {
        let model = |who: &str, provider: &str| ModelSpec {
            provider: provider.to_owned(),
            model: who.to_owned(),
            ..ModelSpec::default()
        };
        let limits = Limits {
            free_bytes_min: 0,
            turns_max: LIMITS_TURNS,
            output_tokens_max: OUTPUT_TOKENS_MAX,
            model_retries_max: 2,
            respawns_max: 50,
            stall_timeout: Duration::from_secs(120),
            stop_timeout: Duration::from_secs(10),
            ..Limits::default()
        };
        let setup = self.plan.setup;
        let lead = model(LEAD, if setup.lead_thinks { "mind" } else { "runbook" });
        let team = TeamSpec {
            limits,
            goal: setup.lead_thinks.then(|| "Make it good".to_owned()),
            review: setup.review.map(|reviewer| match reviewer {
                Reviewer::Role => REVIEWER_ROLE.to_owned(),
                Reviewer::Lead => LEAD.to_owned(),
                Reviewer::Human => HUMAN.to_owned(),
            }),
            budget: lock(&self.nature.laws).spending.budget(),
            prices: Spending::prices(&[MEMBERS.as_slice(), &[LEAD]].concat()),
            ..TeamSpec::new(TEAM, lead).unwrap()
        };
        let members = self.minds.members.iter().enumerate().map(|(place, who)| {
            let role = if place + 1 == setup.members { REVIEWER_ROLE } else { "coder" };
            MemberSpec {
                plan_first: setup.plan_first && place == 0,
                ..MemberSpec::new(who, role, model(who, "mind")).unwrap()
            }
        });
        TeamSpec { members: members.collect(), ..team }
    }

    fn surroundings(&self, process: &Process) -> Surroundings {
        let (minds, files) = (Arc::clone(&self.minds), Arc::clone(&process.files));
        let connect = move |spec: &ModelSpec| -> Result<Arc<dyn ModelClient>, String> {
            match spec.provider.as_str() {
                "runbook" => Ok(Arc::new(Runbook)),
                _ => Ok(Arc::new(Mind::new(&minds, &files))),
            }
        };
        let files = Arc::clone(&process.files);
        let tools = move |is_lead| {
            let watched = |inner: Arc<dyn Tool>| -> Arc<dyn Tool> {
                match inner.spec().name == WRITE {
                    true => Arc::new(Watched { inner, files: Arc::clone(&files) }),
                    false => inner,
                }
            };
            let mut tools: Vec<_> = tools_of(is_lead).into_iter().map(watched).collect();
            tools.push(Arc::new(Work { files: Arc::clone(&files) }) as Arc<dyn Tool>);
            tools
        };
        Surroundings {
            stores: process.stores.clone(),
            clock: Arc::clone(&self.nature) as Arc<dyn Clock>,
            workspace: self.folder.path().to_owned(),
            control_files: Arc::<[PathBuf]>::default(),
            sandbox: Sandbox::without_guard(),
            connect: Arc::new(connect),
            tools_of: Arc::new(tools),
            count_tokens: |text| text.len() as u64 / 4,
            repository: None,
        }
    }

    /// All that is told of who works on what, for deeds that pick.
    pub fn tasks(&self) -> BTreeMap<u64, brigade::domain::task::Task> {
        lock(&self.nature.laws).known()
    }
}
