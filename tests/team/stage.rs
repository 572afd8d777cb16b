//! A stage for teams: memory stores, a clock that follows paused time, models made by closures, tools that can be watched.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use brigade::domain::change::{Actor, ActorKind, Change};
use brigade::domain::event::{Event, Fact};
use brigade::domain::message::{Message, MessageType};
use brigade::domain::name::{HUMAN, LEAD, Name};
use brigade::domain::record::MemberStatus;
use brigade::domain::replay::{Known, Replay};
use brigade::domain::request::{Request, RequestKind};
use brigade::domain::row::{MemberRow, TaskRow};
use brigade::domain::state::{Mode, SetDesired, SharedState, StateUpdate, TeammateReport};
use brigade::domain::task::{NewTask, Task, TaskId, TaskStatus};
use brigade::domain::time::UnixMs;
use brigade::domain::transcript::{Block, Entry, Record, Role, Usage};
use brigade::models::runbook::Runbook;
use brigade::ports::{
    Board, BoardView, Claimant, Clock, Listener, LostClaims, ModelClient, ModelError, ModelRequest, ModelResponse,
    ModelSpec, Reclaimed, StateStore, StopReason, StoreChange, StoreResult, Stores, ToolSpec,
};
use brigade::sandbox::Sandbox;
use brigade::stores::memory;
use brigade::stores::memory::events::MemoryEventLog;
use brigade::stores::memory::workers::MemoryWorkers;
use brigade::team::handle::{Outcome, TeamHandle};
use brigade::team::spec::{Limits, MemberSpec, TeamSpec};
use brigade::team::{self, Start, Surroundings};
use brigade::tools::answers::{self, Answerer, Asked};
use brigade::tools::table::tools_of;
use brigade::tools::{Tool, ToolContext, ToolError, ToolOutput};
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::time::Instant;

/// Longer than anything a team may take.
pub const LONG: Duration = Duration::from_secs(8 * 3600);

/// A short step of waiting, longer the longer one has waited.
async fn step(begun: Instant) {
    let is_new = begun.elapsed() < Duration::from_secs(2);
    tokio::time::sleep(Duration::from_millis(if is_new { 5 } else { 500 })).await;
}

/// A wall clock that goes with the runtime's time, paused or not, and can be set forward.
pub struct RuntimeClock {
    begun: Instant,
    set_forward: Mutex<Duration>,
}

impl RuntimeClock {
    fn new() -> Self {
        Self { begun: Instant::now(), set_forward: Mutex::default() }
    }

    pub fn set_forward(&self, by: Duration) {
        *self.set_forward.lock().unwrap() += by;
    }
}

impl Clock for RuntimeClock {
    fn now(&self) -> UnixMs {
        UnixMs(1_763_688_000_000).plus(self.begun.elapsed()).plus(*self.set_forward.lock().unwrap())
    }
}

pub type Answer = Result<ModelResponse, ModelError>;
type Answering = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// One request as it was sent.
#[derive(Clone)]
pub struct Sent {
    pub at: Instant,
    pub request: ModelRequest,
}

impl Sent {
    /// All texts and results of the context, one a line.
    pub fn text(&self) -> String {
        text_of(&self.request)
    }

    /// The last message.
    pub fn last(&self) -> Vec<Block> {
        self.request.messages.last().map(|message| message.content.clone()).unwrap_or_default()
    }
}

pub fn text_of(request: &ModelRequest) -> String {
    let blocks = request.messages.iter().flat_map(|message| &message.content);
    blocks.map(block_text).collect::<Vec<_>>().join("\n")
}

pub fn block_text(block: &Block) -> String {
    match block {
        Block::Text { text } => text.clone(),
        Block::ToolResult { content, .. } => format!("result: {content}"),
        Block::ToolUse { name, input, .. } => format!("call: {name} {input}"),
        Block::Other(value) => value.to_string(),
    }
}

/// A model made by a closure; it is handed the request and how many its member sent before.
struct Brain {
    think: Box<dyn Fn(ModelRequest, usize) -> Answering + Send + Sync>,
    sent: Arc<Mutex<HashMap<String, Vec<Sent>>>>,
}

#[async_trait]
impl ModelClient for Brain {
    async fn request(&self, request: ModelRequest, _: &dyn Listener) -> Answer {
        let count = {
            let mut sent = lock(&self.sent);
            let sent = sent.entry(request.teammate.to_string()).or_default();
            sent.push(Sent { at: Instant::now(), request: request.clone() });
            sent.len() - 1
        };
        (self.think)(request, count).await
    }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The model says something and ends its turn.
pub fn say(text: &str) -> Answer {
    answer(vec![Block::text(text)], StopReason::EndTurn)
}

/// The model asks for tools.
pub fn call(calls: &[(&str, Value)]) -> Answer {
    static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let number = || COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let block = |(tool, input): &(&str, Value)| Block::ToolUse {
        id: format!("c{}", number()),
        name: (*tool).to_owned(),
        input: input.clone(),
    };
    answer(calls.iter().map(block).collect(), StopReason::ToolUse)
}

pub fn answer(content: Vec<Block>, stop: StopReason) -> Answer {
    Ok(ModelResponse { content, stop, usage: Some(Usage { input_tokens: 10, output_tokens: 1, ..Usage::default() }) })
}

pub fn complete(task: u64) -> (&'static str, Value) {
    ("task_update", json!({"task_id": task, "status": "completed", "result": "done"}))
}

/// The number of the task the context was last given.
pub fn task_at_hand(request: &ModelRequest) -> Option<u64> {
    let text = text_of(request);
    let (_, rest) = text.rsplit_once("<auto-claimed>Task #")?;
    rest.split(':').next()?.parse().ok()
}

/// Whether the last thing told is a task that was claimed, be it with mail or results around it.
pub fn has_new_task(request: &ModelRequest) -> bool {
    let last = request.messages.last().map(|message| message.content.as_slice()).unwrap_or_default();
    last.iter().any(|block| matches!(block, Block::Text { text } if text.starts_with("<auto-claimed>")))
}

/// Completes the task at hand when it was just given, and ends otherwise.
pub fn diligent(request: &ModelRequest) -> Answer {
    match task_at_hand(request).filter(|_| has_new_task(request)) {
        Some(task) => call(&[complete(task)]),
        None => say("Done."),
    }
}

/// A tool whose use is noted, and that takes as long as it is told.
struct Nap {
    name: &'static str,
    noted: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl Tool for Nap {
    fn spec(&self) -> ToolSpec {
        let (name, description) = (self.name.to_owned(), String::new());
        ToolSpec { name, description, input_schema: json!({"type": "object"}) }
    }
    fn about(&self, input: &Value) -> String {
        input.to_string()
    }
    async fn run(&self, input: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let what = input["note"].as_str().unwrap_or(self.name).to_owned();
        lock(&self.noted).push(format!("{} begins {what}", context.name));
        tokio::time::sleep(Duration::from_millis(input["ms"].as_u64().unwrap_or(0))).await;
        lock(&self.noted).push(format!("{} ended {what}", context.name));
        match self.name {
            "fail" => Err(ToolError::Mendable(what)),
            "boom" => panic!("a tool panics, as the test wants"),
            _ => Ok(ToolOutput::text(what)),
        }
    }
}

/// A board that notes who looked for a task, and that no task is ever held twice.
pub struct WatchedBoard {
    inner: Arc<dyn Board>,
    pub looks: Mutex<Vec<String>>,
}

#[async_trait]
impl Board for WatchedBoard {
    async fn create(&self, by: &Actor, tasks: Vec<NewTask>, skip: bool) -> StoreResult<Vec<Task>> {
        self.inner.create(by, tasks, skip).await
    }
    async fn view(&self) -> StoreResult<Arc<BoardView>> {
        self.inner.view().await
    }
    async fn get(&self, id: TaskId) -> StoreResult<Task> {
        self.inner.get(id).await
    }
    async fn claim_next(&self, claimant: &Claimant) -> StoreResult<Option<Task>> {
        lock(&self.looks).push(claimant.name.clone());
        self.inner.claim_next(claimant).await
    }
    async fn claim(&self, id: TaskId, claimant: &Claimant) -> StoreResult<Task> {
        self.inner.claim(id, claimant).await
    }
    async fn change(&self, id: TaskId, change: Change, by: &Actor) -> StoreResult<Task> {
        self.inner.change(id, change, by).await
    }
    async fn delete(&self, id: TaskId, by: &Actor) -> StoreResult<Task> {
        self.inner.delete(id, by).await
    }
    async fn deleted(&self, ids: &[TaskId]) -> StoreResult<BTreeSet<TaskId>> {
        self.inner.deleted(ids).await
    }
    async fn reclaim(&self, lost: &LostClaims) -> StoreResult<Vec<Reclaimed>> {
        self.inner.reclaim(lost).await
    }
}

/// The shared state as bytes that anybody may put there.
pub struct OpenState {
    clock: Arc<dyn Clock>,
    changes: broadcast::Sender<StoreChange>,
    bytes: Mutex<Option<String>>,
}

impl OpenState {
    /// Somebody writes, or removes, the file.
    pub fn put(&self, text: Option<&str>) {
        *lock(&self.bytes) = text.map(str::to_owned);
        let _ = self.changes.send(StoreChange::State);
    }
}

#[async_trait]
impl StateStore for OpenState {
    async fn read(&self) -> StoreResult<Option<SharedState>> {
        Ok(lock(&self.bytes).as_ref().map(|text| SharedState::parse(text.as_bytes()).unwrap()))
    }
    async fn update(&self, update: StateUpdate) -> StoreResult<SharedState> {
        let now = self.clock.now();
        let before = self.read().await?.unwrap_or_else(|| SharedState::fresh(now));
        let next = before.merge(&update, now);
        *lock(&self.bytes) = Some(next.to_file());
        Ok(next)
    }
}

/// A team's world.
pub struct Stage {
    pub spec: TeamSpec,
    pub stores: Stores,
    pub board: Arc<WatchedBoard>,
    pub state: Arc<OpenState>,
    pub noted: Arc<Mutex<Vec<String>>>,
    pub sandbox: Sandbox,
    pub workspace: PathBuf,
    pub clock: Arc<dyn Clock>,
    pub wall: Arc<RuntimeClock>,
    /// Somebody changed the board after the team had ended.
    pub meddled: AtomicBool,
    log: Arc<MemoryEventLog>,
    models: HashMap<String, Arc<dyn ModelClient>>,
    sent: Arc<Mutex<HashMap<String, Vec<Sent>>>>,
}

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn member(who: &str, role: &str, provider: &str) -> MemberSpec {
    let model = ModelSpec { provider: provider.to_owned(), model: who.to_owned(), ..ModelSpec::default() };
    MemberSpec::new(who, role, model).unwrap()
}

impl Stage {
    /// A team of these coders; its lead does not think until it is given a brain.
    pub fn new(members: &[&str]) -> Self {
        let wall = Arc::new(RuntimeClock::new());
        let clock: Arc<dyn Clock> = wall.clone();
        let (changes, _) = broadcast::channel(1024);
        let log = Arc::new(MemoryEventLog::new(Arc::clone(&clock)));
        let mut stores = memory::stores(Arc::clone(&clock), changes.clone());
        let board = Arc::new(WatchedBoard { inner: Arc::clone(&stores.board), looks: Mutex::default() });
        let state = Arc::new(OpenState { clock: Arc::clone(&clock), changes, bytes: Mutex::default() });
        stores.board = board.clone();
        stores.state = state.clone();
        stores.events = log.clone();
        let limits = Limits { free_bytes_min: 0, ..Limits::default() };
        let lead = member(LEAD, "lead", "runbook");
        let members = members.iter().map(|who| member(who, "coder", "test")).collect();
        let spec = TeamSpec { members, limits, ..TeamSpec::new("crew", lead.model).unwrap() };
        let (noted, sent) = (Arc::default(), Arc::default());
        let models = HashMap::new();
        let workspace = std::env::temp_dir();
        Self {
            spec,
            stores,
            board,
            state,
            noted,
            sandbox: Sandbox::without_guard(),
            workspace,
            clock,
            wall,
            meddled: AtomicBool::new(false),
            log,
            models,
            sent,
        }
    }

    /// Gives a member a model. The lead's thinks from then on.
    pub fn brain<F>(&mut self, who: &str, think: impl Fn(ModelRequest, usize) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        let think = Box::new(move |request, count| -> Answering { Box::pin(think(request, count)) });
        self.models.insert(who.to_owned(), Arc::new(Brain { think, sent: Arc::clone(&self.sent) }));
        if who == LEAD {
            self.spec.lead.model.provider = "test".to_owned();
        }
    }

    /// Gives a member a model of the test's own.
    pub fn model(&mut self, who: &str, model: Arc<dyn ModelClient>) {
        self.models.insert(who.to_owned(), model);
    }

    /// Gives these members the brain that does each task at once.
    pub fn diligent(&mut self, members: &[&str]) {
        for who in members {
            self.brain(who, |request, _| async move { diligent(&request) });
        }
    }

    /// Another process on the same stores: whoever worked before is gone.
    pub fn restart(&mut self) {
        self.stores.workers = Arc::new(MemoryWorkers::default());
    }

    pub async fn launch(&self, start: Start) -> TeamHandle {
        team::launch(self.spec.clone(), start, self.surroundings()).await.unwrap()
    }

    pub fn surroundings(&self) -> Surroundings {
        let (models, noted) = (self.models.clone(), Arc::clone(&self.noted));
        let connect = move |spec: &ModelSpec| -> Result<Arc<dyn ModelClient>, String> {
            match spec.provider.as_str() {
                "runbook" => Ok(Arc::new(Runbook)),
                _ => models.get(&spec.model).cloned().ok_or_else(|| format!("no model {}", spec.model)),
            }
        };
        let tools = move |is_lead| {
            let mut tools = tools_of(is_lead);
            for name in ["nap", "fail", "boom"] {
                tools.push(Arc::new(Nap { name, noted: Arc::clone(&noted) }) as Arc<dyn Tool>);
            }
            tools
        };
        Surroundings {
            stores: self.stores.clone(),
            clock: Arc::clone(&self.clock),
            workspace: self.workspace.clone(),
            control_files: Arc::<[PathBuf]>::default(),
            sandbox: self.sandbox.clone(),
            connect: Arc::new(connect),
            tools_of: Arc::new(tools),
            count_tokens: |text| text.len() as u64 / 4,
            repository: None,
        }
    }

    /// One session to its end.
    pub async fn run_once(&self) -> Outcome {
        let team = self.launch(once()).await;
        self.ended(team).await
    }

    /// Waits for the end; one that does not come is told with what happened.
    pub async fn ended(&self, mut team: TeamHandle) -> Outcome {
        match tokio::time::timeout(LONG, team.wait()).await {
            Ok(outcome) => outcome.unwrap(),
            Err(_) => panic!("the team does not end:\n{}", self.story()),
        }
    }

    pub async fn create(&self, tasks: Vec<NewTask>) -> Vec<Task> {
        self.stores.board.create(&Actor::new(HUMAN, ActorKind::Person), tasks, false).await.unwrap()
    }

    /// Puts tasks of these subjects on the board.
    pub async fn tasks(&self, subjects: &[&str]) -> Vec<Task> {
        self.create(subjects.iter().map(|subject| new_task(subject)).collect()).await
    }

    pub async fn task(&self, id: u64) -> Task {
        self.stores.board.get(TaskId(id)).await.unwrap()
    }

    pub async fn mail(&self, from: &str, to: &str, content: &str) {
        let message = Message::new(MessageType::Message, from, content, self.clock.now());
        self.stores.mailbox.send(to, message).await.unwrap();
    }

    pub async fn mail_of(&self, kind: MessageType, from: &str, to: &str, request_id: Option<&str>) {
        let mut message = Message::new(kind, from, "x", self.clock.now());
        message.request_id = request_id.map(str::to_owned);
        self.stores.mailbox.send(to, message).await.unwrap();
    }

    /// As if the team had been there before.
    pub async fn open_inboxes(&self) {
        let names: Vec<Name> = self.spec.members.iter().map(|member| member.name.clone()).collect();
        self.stores.mailbox.open_inboxes(&names).await.unwrap();
    }

    /// Whether mail waits for anybody.
    pub async fn mailbox_waits(&self) -> bool {
        !self.stores.mailbox.waiting().await.unwrap().is_empty()
    }

    /// The person wants this.
    pub async fn click(&self, mode: Mode) {
        let desired = SetDesired { mode, by: HUMAN.to_owned(), note: String::new(), only_if: None };
        self.stores.state.update(StateUpdate { report: None, desired: Some(desired) }).await.unwrap();
        let _ = self.stores.changes.send(StoreChange::State);
    }

    pub async fn shared(&self) -> SharedState {
        self.stores.state.read().await.unwrap().unwrap()
    }

    pub fn events(&self) -> Vec<Event> {
        self.log.events()
    }

    pub fn facts(&self) -> Vec<Fact> {
        self.events().into_iter().map(|event| event.fact).collect()
    }

    pub fn count(&self, is_it: impl Fn(&Fact) -> bool) -> usize {
        self.facts().iter().filter(|fact| is_it(fact)).count()
    }

    /// The events as lines, for the message of a failing test.
    pub fn story(&self) -> String {
        let events = self.events();
        let skip = events.len().saturating_sub(200);
        events.iter().skip(skip).map(|event| event.to_line() + "\n").collect()
    }

    pub fn sent_by(&self, who: &str) -> Vec<Sent> {
        lock(&self.sent).get(who).cloned().unwrap_or_default()
    }

    pub fn requests(&self) -> usize {
        lock(&self.sent).values().map(Vec::len).sum()
    }

    pub fn notes(&self) -> Vec<String> {
        lock(&self.noted).clone()
    }

    /// Waits until something is so.
    pub async fn until(&self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < LONG, "never: {what}\n{}", self.story());
            step(begun).await;
        }
    }

    /// Waits until a task has this status.
    pub async fn until_status(&self, id: u64, status: TaskStatus) {
        let begun = Instant::now();
        while self.stores.board.get(TaskId(id)).await.ok().map(|task| task.status) != Some(status) {
            assert!(begun.elapsed() < LONG, "#{id} never becomes {status}\n{}", self.story());
            step(begun).await;
        }
    }

    /// Waits until everybody is idle, and on call.
    pub async fn until_quiet(&self) {
        self.until("all idle", |stage| {
            let mut phases = BTreeMap::new();
            for fact in stage.facts() {
                if let Fact::TeammatePhase { teammate, phase, .. } = fact {
                    phases.insert(teammate, phase);
                }
            }
            !phases.is_empty() && phases.values().all(|phase| phase != "work")
        })
        .await;
        tokio::time::sleep(Duration::from_secs(120)).await;
    }

    /// All that was told to, and said by, a member, from its transcript.
    pub async fn transcript(&self, who: &str) -> Vec<String> {
        let records: Vec<Record> = self.stores.transcripts.load(who).await.unwrap();
        let lines = records.iter().flat_map(|record| match &record.entry {
            Entry::Message(message) => {
                let who = if message.role == Role::User { "<" } else { ">" };
                message.content.iter().map(|block| format!("{who} {}", block_text(block))).collect()
            }
            Entry::Compaction { summary, .. } => vec![format!("= {summary}")],
        });
        lines.collect()
    }

    /// What no run may break: events without gaps; claims and ends of each attempt told once; transcripts whose calls all have
    /// a result right behind them.
    pub async fn check_laws(&self) {
        let events = self.events();
        for (expected, event) in (1..).zip(&events) {
            assert_eq!(event.seq, expected, "a gap in the log");
        }
        let mut told = std::collections::HashSet::new();
        for event in &events {
            let key = match &event.fact {
                Fact::TaskClaimed { task, attempt, .. } => ("claimed", *task, *attempt),
                Fact::TaskCompleted { task, attempt, .. } => ("completed", *task, *attempt),
                Fact::TaskFailed { task, attempt, .. } => ("failed", *task, *attempt),
                _ => continue,
            };
            assert!(told.insert(key), "told twice: {key:?}\n{}", self.story());
        }
        for who in self.spec.members.iter().map(|member| member.name.as_str()).chain([LEAD]) {
            self.check_transcript(who).await;
        }
        for sent in lock(&self.sent).values().flatten() {
            check_request(&sent.request);
        }
        self.check_replay(&events).await;
    }

    /// Once a run is over its log alone tells how board and team stand.
    async fn check_replay(&self, events: &[Event]) {
        let replay = Replay::of(events);
        if replay.stopped.is_none() || self.meddled.load(Ordering::Relaxed) {
            return;
        }
        let view = self.stores.board.view().await.unwrap();
        assert_eq!((replay.known, replay.team_is_known), (Known::Wholly, true));
        for (id, task) in &view.tasks {
            let (row, told) = (TaskRow::of(task), replay.tasks.get(id));
            assert!(told.is_some_and(|told| told.agrees_with(&row)), "{row:?} and {told:?}\n{}", self.story());
        }
        assert_eq!(replay.tasks.len(), view.tasks.len(), "{}", self.story());
        let state = self.stores.state.read().await.unwrap().unwrap();
        let reports: BTreeMap<String, TeammateReport> = state.document.get("teammates").unwrap().unwrap_or_default();
        for (name, report) in &reports {
            let told = &replay.members[name];
            let shown = |row: &MemberRow| (row.role.clone(), row.tokens, row.cost_usd, row.waiting_for.clone());
            assert_eq!(shown(told), shown(&MemberRow::of(name, report)), "{name}\n{}", self.story());
            let stands = (told.phase.as_str(), told.task, told.attempt);
            assert_eq!(stands, (report.phase.as_str(), report.task, report.attempt), "{name}\n{}", self.story());
        }
        let roster = self.stores.roster.read().await.unwrap();
        for member in roster.iter().filter(|member| replay.members.contains_key(&member.name)) {
            let stopped = member.status == MemberStatus::Shutdown;
            let is_gone = ["stopped", "dead"].contains(&replay.members[&member.name].phase.as_str());
            assert_eq!(stopped, is_gone, "{member:?}\n{}", self.story());
        }
    }

    async fn check_transcript(&self, who: &str) {
        let records = self.stores.transcripts.load(who).await.unwrap();
        let mut delivered = std::collections::HashSet::new();
        for record in &records {
            if let Entry::Message(message) = &record.entry {
                for key in &message.delivered {
                    assert!(delivered.insert(key.clone()), "{who} was delivered {key} twice");
                }
            }
        }
    }
}

/// A request a provider would take: sides alternate, and every call has its result in the next message.
fn check_request(request: &ModelRequest) {
    let mut open: Vec<String> = Vec::new();
    let mut last = None;
    for message in request.messages.iter() {
        assert_ne!(last, Some(message.role), "two messages of one side in a row");
        last = Some(message.role);
        let results: Vec<&String> = message
            .content
            .iter()
            .filter_map(|block| match block {
                Block::ToolResult { tool_use_id, .. } => Some(tool_use_id),
                _ => None,
            })
            .collect();
        assert_eq!(open.iter().collect::<Vec<_>>(), results, "calls and results differ:\n{}", text_of(request));
        open = message
            .content
            .iter()
            .filter_map(|block| match block {
                Block::ToolUse { id, .. } => Some(id.clone()),
                _ => None,
            })
            .collect();
    }
    assert_eq!(last, Some(Role::User), "a request ends with the user's side");
    let first = request.messages.first().map(|message| block_text(&message.content[0])).unwrap_or_default();
    assert!(first.starts_with("<identity>You are '"), "the first message is the identity: {first}");
    assert!(request.system.starts_with(&format!("You are '{}', role: ", request.teammate)), "{}", request.system);
}

pub fn new_task(subject: &str) -> NewTask {
    NewTask { subject: subject.to_owned(), ..NewTask::default() }
}

pub fn once() -> Start {
    Start { mode: Some(Mode::RunOnce), one_session: true, ..Start::default() }
}

pub fn on_and_on() -> Start {
    Start { mode: Some(Mode::Continuous), ..Start::default() }
}

/// The person approves a plan, unless somebody answered it just now.
pub async fn approve_plan(stores: &Stores, id: &str, now: UnixMs) {
    let by = Answerer { name: HUMAN, process: "test" };
    let compose = |request: &Request| answers::reply(request, HUMAN, true, Some("go on"), now);
    let _ = answers::answer(stores, by, now, Asked { id, kind: RequestKind::PlanApproval }, true, compose).await;
}
