//! A test team: memory stores, a clock that follows paused time, models made of closures, tools that record their use.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use brigade::domain::agent::transcript::{Block, Record, Role, TranscriptEntry};
use brigade::domain::log::event::{Event, EventKind};
use brigade::domain::log::replay::ReplayState;
use brigade::domain::log::request_log::{AskKind, RequestLog, RequestSnapshot};
use brigade::domain::log::snapshot::{MemberSnapshot, TaskSnapshot};
use brigade::domain::task::claim_queue::TaskScope;
use brigade::domain::task::transition::{Actor, ActorKind, Change};
use brigade::domain::task::{NewTask, Task, TaskId, TaskStatus};
use brigade::domain::team::approval::RequestKind;
use brigade::domain::team::message::{Message, MessageType};
use brigade::domain::team::name::{HUMAN, LEAD, Name};
use brigade::domain::team::phase::ReportedPhase;
use brigade::domain::team::records::MemberStatus;
use brigade::domain::team::state::{DesiredStateChange, Mode, SetBy, SharedState, StateUpdate, TeammateReport};
use brigade::domain::team::team_spec::{Limits, MemberSpec, ModelSpec, TeamSpec};
use brigade::domain::time::UnixMs;
use brigade::ports::{
    ChatMessage, Claimant, Clock, Listener, ModelClient, ModelError, ModelRequest, ModelResponse, RequestPurpose,
    StateStore, StopReason, StoreChange, StoreResult, Stores, ToolSpec,
};
use brigade::sandbox::Sandbox;
use brigade::service::messages::Outbox;
use brigade::service::request_mail::{self, Answer, Responder};
use brigade::stores::memory;
use brigade::stores::memory::MemoryWorkers;
use brigade::stores::memory::events::MemoryEventLog;
use brigade::team::handle::{TeamHandle, TeamOutcome};
use brigade::team::{self, StartOptions, TeamDependencies};
use brigade::tools::table::{ToolUser, tools_for};
use brigade::tools::{Tool, ToolContext, ToolError, ToolOutput};
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::testkit::answers;
pub use crate::testkit::answers::complete;
use crate::testkit::clock::RuntimeClock;
use crate::testkit::interceptors::with_polls_noted;
pub use crate::testkit::lock;

/// Time limit of every wait.
pub const LONG: Duration = Duration::from_secs(8 * 3600);

/// Waits a short step, which grows with the total time waited.
async fn step(begun: Instant) {
    let is_new = begun.elapsed() < Duration::from_secs(2);
    tokio::time::sleep(Duration::from_millis(if is_new { 5 } else { 500 })).await;
}

pub type ModelResult = Result<ModelResponse, ModelError>;
type ModelFuture = Pin<Box<dyn Future<Output = ModelResult> + Send>>;

/// A request as it was sent.
#[derive(Clone)]
pub struct Sent {
    pub at: Instant,
    pub request: ModelRequest,
}

impl Sent {
    /// All texts and results of the context, one per line.
    pub fn text(&self) -> String {
        text_of(&self.request)
    }

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

/// A model made of a closure, which gets the request and the number of earlier requests of its member.
struct FnModel {
    respond: Box<dyn Fn(ModelRequest, usize) -> ModelFuture + Send + Sync>,
    sent: Arc<Mutex<HashMap<String, Vec<Sent>>>>,
}

#[async_trait]
impl ModelClient for FnModel {
    fn has_server(&self) -> bool {
        false
    }

    async fn request(&self, request: ModelRequest, _: &dyn Listener) -> ModelResult {
        let count = {
            let mut sent = lock(&self.sent);
            let sent = sent.entry(request.teammate.to_string()).or_default();
            sent.push(Sent { at: Instant::now(), request: request.clone() });
            sent.len() - 1
        };
        (self.respond)(request, count).await
    }
}

/// A text answer that ends the turn.
pub fn say(text: &str) -> ModelResult {
    Ok(answers::say(text))
}

/// An answer with tool calls.
pub fn call(calls: &[(&str, Value)]) -> ModelResult {
    Ok(answers::call(calls))
}

pub fn answer(content: Vec<Block>, stop: StopReason) -> ModelResult {
    Ok(answers::answer(content, stop))
}

/// The task that the context was last given.
pub fn task_at_hand(request: &ModelRequest) -> Option<u64> {
    let text = text_of(request);
    let (_, rest) = text.rsplit_once("<auto-claimed>Task #")?;
    rest.split(':').next()?.parse().ok()
}

/// Returns true if the last message assigns a claimed task, also next to mail or results.
pub fn has_new_task(request: &ModelRequest) -> bool {
    answers::new_task(request).is_some()
}

/// Completes the current task if it was just assigned, and ends the turn otherwise.
pub fn diligent(request: &ModelRequest) -> ModelResult {
    match task_at_hand(request).filter(|_| has_new_task(request)) {
        Some(task) => call(&[complete(task)]),
        None => say("Done."),
    }
}

/// A tool that records its use and takes the given time.
struct NotingTool {
    name: &'static str,
    noted: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl Tool for NotingTool {
    fn spec(&self) -> ToolSpec {
        let (name, description) = (self.name.to_owned(), String::new());
        ToolSpec { name, description, input_schema: json!({"type": "object"}) }
    }
    fn about(&self, input: &Value) -> String {
        input.to_string()
    }
    async fn run(&self, input: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let what = input["note"].as_str().unwrap_or(self.name).to_owned();
        lock(&self.noted).push(format!("{} begins {what}", context.caller.name));
        tokio::time::sleep(Duration::from_millis(input["ms"].as_u64().unwrap_or(0))).await;
        lock(&self.noted).push(format!("{} ended {what}", context.caller.name));
        match self.name {
            "fail" => Err(ToolError::Recoverable(what)),
            "boom" => panic!("a tool panics, as the test wants"),
            _ => Ok(ToolOutput::text(what)),
        }
    }
}

/// The shared state as bytes that any program may write.
pub struct OpenState {
    clock: Arc<dyn Clock>,
    changes: broadcast::Sender<StoreChange>,
    bytes: Mutex<Option<String>>,
    /// The current states that the team wrote, in order and without repetitions.
    pub current_states: Mutex<Vec<Mode>>,
}

impl OpenState {
    /// Another program writes or removes the file.
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
        let before = self.read().await?.unwrap_or_else(|| SharedState::paused(now));
        let next = before.merge(&update, now);
        *lock(&self.bytes) = Some(next.to_file());
        let mut current_states = lock(&self.current_states);
        current_states.push(next.current);
        current_states.dedup();
        Ok(next)
    }
}

/// The stores, models and settings of a team.
pub struct TestTeam {
    pub spec: TeamSpec,
    pub stores: Stores,
    /// The members that polled for a task.
    pub polls: Arc<Mutex<Vec<String>>>,
    pub state: Arc<OpenState>,
    pub noted: Arc<Mutex<Vec<String>>>,
    pub sandbox: Sandbox,
    pub workspace: PathBuf,
    pub clock: Arc<dyn Clock>,
    pub wall_clock: Arc<RuntimeClock>,
    /// True if the board changed after the team had ended.
    pub changed_after_end: AtomicBool,
    log: Arc<MemoryEventLog>,
    models: HashMap<String, Arc<dyn ModelClient>>,
    sent: Arc<Mutex<HashMap<String, Vec<Sent>>>>,
}

/// The spec of a member's model in the harness.
fn model_spec(who: &str) -> ModelSpec {
    ModelSpec::new("test", who)
}

impl TestTeam {
    /// A team of these coders; its lead is a runbook until it gets a model.
    pub fn new(members: &[&str]) -> Self {
        let wall_clock = Arc::new(RuntimeClock::new());
        let clock: Arc<dyn Clock> = wall_clock.clone();
        let (changes, _) = broadcast::channel(1024);
        let log = Arc::new(MemoryEventLog::new(Arc::clone(&clock)));
        let mut stores = memory::stores(Arc::clone(&clock), changes.clone());
        let polls: Arc<Mutex<Vec<String>>> = Arc::default();
        let polled = Arc::clone(&polls);
        stores = with_polls_noted(&stores, move |name| lock(&polled).push(name.to_owned()));
        let state = Arc::new(OpenState {
            clock: Arc::clone(&clock),
            changes,
            bytes: Mutex::default(),
            current_states: Mutex::default(),
        });
        stores.state = state.clone();
        stores.events = log.clone();
        let limits = Limits { free_bytes_min: 0, ..Limits::default() };
        let members = members.iter().map(|who| MemberSpec::new(who, "coder", model_spec(who)).unwrap()).collect();
        let spec = TeamSpec { members, limits, ..TeamSpec::new("crew", ModelSpec::runbook()).unwrap() };
        let (noted, sent) = (Arc::default(), Arc::default());
        let models = HashMap::new();
        let workspace = std::env::temp_dir();
        Self {
            spec,
            stores,
            polls,
            state,
            noted,
            sandbox: Sandbox::without_guard(),
            workspace,
            clock,
            wall_clock,
            changed_after_end: AtomicBool::new(false),
            log,
            models,
            sent,
        }
    }

    /// Sets the model of a member to a closure. The lead then is a model.
    pub fn set_model_fn<F>(&mut self, who: &str, respond: impl Fn(ModelRequest, usize) -> F + Send + Sync + 'static)
    where
        F: Future<Output = ModelResult> + Send + 'static,
    {
        let respond = Box::new(move |request, count| -> ModelFuture { Box::pin(respond(request, count)) });
        self.models.insert(who.to_owned(), Arc::new(FnModel { respond, sent: Arc::clone(&self.sent) }));
        if who == LEAD {
            self.spec.lead.model = model_spec(LEAD);
        }
    }

    /// Sets the model of a member.
    pub fn model(&mut self, who: &str, model: Arc<dyn ModelClient>) {
        self.models.insert(who.to_owned(), model);
    }

    /// Sets the model of these members to one that completes each task at once.
    pub fn diligent(&mut self, members: &[&str]) {
        for who in members {
            self.set_model_fn(who, |request, _| async move { diligent(&request) });
        }
    }

    /// Starts another process on the same stores; the earlier process is gone.
    pub fn restart(&mut self) {
        self.stores.workers = Arc::new(MemoryWorkers::default());
    }

    /// The person releases a task that a member holds, and another person claims it by command.
    pub async fn take_by_hand(&self, id: u64) {
        let person = Actor::new(HUMAN, ActorKind::Person).forcing(true);
        let release = Change::Release { reason: "I do it".to_owned(), is_failure: false };
        self.stores.board.change(TaskId(id), release, &person).await.unwrap();
        self.claim(id, "carl", "lease:carl", None).await;
    }

    /// Claims a task for a member of another worker, or for a command with a lease.
    pub async fn claim(&self, id: u64, name: &str, worker: &str, lease: Option<Duration>) -> Task {
        let (name, worker) = (name.to_owned(), worker.to_owned());
        let claimant = Claimant { name, capabilities: vec![], worker, lease, scope: TaskScope::All };
        self.stores.board.claim(TaskId(id), &claimant).await.unwrap()
    }

    pub async fn launch(&self, start: StartOptions) -> TeamHandle {
        team::launch(self.spec.clone(), start, self.dependencies()).await.unwrap()
    }

    pub fn dependencies(&self) -> TeamDependencies {
        let (models, noted) = (self.models.clone(), Arc::clone(&self.noted));
        let connect =
            move |spec: &ModelSpec| models.get(&spec.model).cloned().ok_or_else(|| format!("no model {}", spec.model));
        let tools = move |user: &ToolUser<'_>| {
            let mut tools = tools_for(user);
            for name in ["nap", "fail", "boom"] {
                tools.push(Arc::new(NotingTool { name, noted: Arc::clone(&noted) }) as Arc<dyn Tool>);
            }
            tools
        };
        TeamDependencies {
            stores: self.stores.clone(),
            clock: Arc::clone(&self.clock),
            workspace: self.workspace.clone(),
            control_files: Arc::<[PathBuf]>::default(),
            sandbox: self.sandbox.clone(),
            accounts: None,
            connect: Arc::new(connect),
            tool_factory: Arc::new(tools),
            repository: None,
            webhook: Arc::new(brigade::providers::webhook::HttpWebhook),
        }
    }

    /// Runs one session to its end.
    pub async fn run_once(&self) -> TeamOutcome {
        let team = self.launch(once()).await;
        self.ended(team).await
    }

    /// Waits for the end; a hang prints the events.
    pub async fn ended(&self, mut team: TeamHandle) -> TeamOutcome {
        match tokio::time::timeout(LONG, team.wait()).await {
            Ok(outcome) => outcome.unwrap(),
            Err(_) => panic!("the team does not end:\n{}", self.event_lines()),
        }
    }

    pub async fn create(&self, tasks: Vec<NewTask>) -> Vec<Task> {
        self.stores.board.create(&Actor::new(HUMAN, ActorKind::Person), tasks, false).await.unwrap()
    }

    /// Creates tasks with these subjects.
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

    /// The person asks a member to stop: after its turn, or at once.
    pub async fn ask_to_stop(&self, who: &str, is_immediate: bool) {
        let outbox = Outbox { stores: &self.stores, now: self.clock.now(), events: None };
        outbox.send_stop_request(who, is_immediate).await.unwrap();
    }

    pub async fn mail_of(&self, kind: MessageType, from: &str, to: &str, request_id: Option<&str>) {
        let mut message = Message::new(kind, from, "x", self.clock.now());
        message.request_id = request_id.map(str::to_owned);
        self.stores.mailbox.send(to, message).await.unwrap();
    }

    /// Opens the inboxes as an earlier run of the team does.
    pub async fn open_inboxes(&self) {
        let names: Vec<Name> = self.spec.members.iter().map(|member| member.name.clone()).collect();
        self.stores.mailbox.open_inboxes(&names).await.unwrap();
    }

    /// Returns true if any inbox has mail.
    pub async fn has_mail(&self) -> bool {
        !self.stores.mailbox.recipients_with_mail().await.unwrap().is_empty()
    }

    /// The person sets the desired state.
    pub async fn click(&self, mode: Mode) {
        let desired = DesiredStateChange { mode, by: SetBy::Person, note: String::new(), only_if: None };
        self.stores.state.update(StateUpdate { report: None, desired: Some(desired) }).await.unwrap();
        let _ = self.stores.changes.send(StoreChange::State);
    }

    pub async fn shared(&self) -> SharedState {
        self.stores.state.read().await.unwrap().unwrap()
    }

    pub fn events(&self) -> Vec<Event> {
        self.log.events()
    }

    pub fn event_kinds(&self) -> Vec<EventKind> {
        self.events().into_iter().map(|event| event.kind).collect()
    }

    pub fn count(&self, is_it: impl Fn(&EventKind) -> bool) -> usize {
        self.event_kinds().iter().filter(|event| is_it(event)).count()
    }

    /// The events as lines, for the message of a failing test.
    pub fn event_lines(&self) -> String {
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

    /// Waits until `is_so` returns true.
    pub async fn wait_until(&self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < LONG, "never: {what}\n{}", self.event_lines());
            step(begun).await;
        }
    }

    pub async fn wait_for_status(&self, id: u64, status: TaskStatus) {
        let begun = Instant::now();
        while self.stores.board.get(TaskId(id)).await.ok().map(|task| task.status) != Some(status) {
            assert!(begun.elapsed() < LONG, "#{id} never becomes {status}\n{}", self.event_lines());
            step(begun).await;
        }
    }

    /// Waits until all members are on call.
    pub async fn wait_for_all_on_call(&self) {
        self.wait_until("all members are idle", |harness| {
            let mut phases = BTreeMap::new();
            for event in harness.event_kinds() {
                if let EventKind::TeammatePhase { teammate, phase, .. } = event {
                    phases.insert(teammate, phase);
                }
            }
            !phases.is_empty() && phases.values().all(|phase| *phase != ReportedPhase::Work)
        })
        .await;
        tokio::time::sleep(Duration::from_secs(120)).await;
    }

    /// All texts to and from a member, from its transcript.
    pub async fn transcript(&self, who: &str) -> Vec<String> {
        let records: Vec<Record> = self.stores.transcripts.load(who).await.unwrap();
        let lines = records.iter().flat_map(|record| match &record.entry {
            TranscriptEntry::Message(message) => {
                let who = if message.role == Role::User { "<" } else { ">" };
                message.content.iter().map(|block| format!("{who} {}", block_text(block))).collect()
            }
            TranscriptEntry::Compaction { summary, .. } => vec![format!("= {summary}")],
            TranscriptEntry::Sent(_) => Vec::new(),
        });
        lines.collect()
    }

    /// Invariants of every run: events without gaps, one claim and one end of each attempt, and transcripts with all
    /// results right after their calls.
    pub async fn check_invariants(&self) {
        let events = self.events();
        for (expected, event) in (1..).zip(&events) {
            assert_eq!(event.seq, expected, "a gap in the log");
        }
        let mut told = std::collections::HashSet::new();
        for event in &events {
            let key = match &event.kind {
                EventKind::TaskClaimed { task, attempt, .. } => ("claimed", *task, *attempt),
                EventKind::TaskCompleted { task, attempt, .. } => ("completed", *task, *attempt),
                EventKind::TaskFailed { task, attempt, .. } => ("failed", *task, *attempt),
                _ => continue,
            };
            assert!(told.insert(key), "logged twice: {key:?}\n{}", self.event_lines());
        }
        check_requests_told_once(&events);
        for who in self.spec.members.iter().map(|member| member.name.as_str()).chain([LEAD]) {
            self.check_transcript(who).await;
        }
        let sent = lock(&self.sent).clone();
        for (who, sent) in sent {
            sent.iter().for_each(|sent| check_request(&sent.request));
            self.check_prefixes(&who, &sent).await;
        }
        self.check_replay(&events).await;
    }

    /// After a run its log alone shows the state of board and team.
    async fn check_replay(&self, events: &[Event]) {
        let replay = ReplayState::of(events);
        if replay.stopped.is_none() || self.changed_after_end.load(Ordering::Relaxed) {
            return;
        }
        let view = self.stores.board.view().await.unwrap();
        let state = (replay.has_whole_board, replay.tasks_to_follow, replay.lacks_rows);
        assert_eq!(state, (true, 0, false), "{}", self.event_lines());
        let rows: Vec<TaskSnapshot> = view.tasks.values().map(|task| TaskSnapshot::of(task)).collect();
        let told: Vec<TaskSnapshot> = replay.tasks.values().map(|row| TaskSnapshot::clone(row)).collect();
        assert_eq!(told, rows, "{}", self.event_lines());
        let stored = self.stores.requests.all().await.unwrap();
        let open = stored.requests.iter().filter(|request| request.answer.is_none()).map(RequestSnapshot::of);
        let open: BTreeMap<String, RequestSnapshot> = open.map(|one| (one.request.clone(), one)).collect();
        let mut log = RequestLog::default();
        events.iter().for_each(|event| log.apply(&event.kind));
        let mut told = log.open().clone();
        told.retain(|_, request| request.request_kind != AskKind::Question);
        assert_eq!(told, open, "{}", self.event_lines());
        let state = self.stores.state.read().await.unwrap().unwrap();
        let reports: BTreeMap<String, TeammateReport> = state.document.get("teammates").unwrap().unwrap_or_default();
        for (name, report) in &reports {
            assert_eq!(*replay.members[name], MemberSnapshot::of(name, report), "{}", self.event_lines());
        }
        let roster = self.stores.roster.read().await.unwrap();
        for member in roster.iter().filter(|member| replay.members.contains_key(&member.name)) {
            let stopped = member.status == MemberStatus::Shutdown;
            let phase = replay.members[&member.name].phase;
            let is_gone = matches!(phase, ReportedPhase::Stopped | ReportedPhase::Dead);
            assert_eq!(stopped, is_gone, "{member:?}\n{}", self.event_lines());
        }
    }

    /// Within a context, each request begins with the one before. A request for a summary adds only its instruction, and the next
    /// turn may leave that out again.
    pub async fn check_prefixes(&self, who: &str, sent: &[Sent]) {
        let records = self.stores.transcripts.load(who).await.unwrap();
        let is_compaction = |record: &&Record| matches!(record.entry, TranscriptEntry::Compaction { .. });
        let mut contexts_left = records.iter().filter(is_compaction).count();
        let has_new_role =
            self.count(|event| matches!(event, EventKind::ToolStarted { tool, .. } if tool == "spawn_teammate")) > 0;
        let mut before: Option<&ModelRequest> = None;
        // A sub-agent has its own context.
        let own = sent.iter().filter(|sent| sent.request.purpose != RequestPurpose::Question);
        for Sent { request, .. } in own {
            let is_repeated = before.is_none_or(|before| parts_of(request).starts_with(&parts_of(before)));
            if !is_repeated {
                let what = format!("{who}:\n{}\n-- then\n{}", text_of(before.unwrap()), text_of(request));
                let is_respawned = has_new_role && before.is_some_and(|before| before.system != request.system);
                assert!(
                    is_respawned || request.messages.len() == 1,
                    "a request does not begin with the last one: {what}"
                );
                assert!(is_respawned || contexts_left > 0, "more contexts than compactions: {what}");
                contexts_left -= usize::from(!is_respawned);
            }
            before = if request.is_for_summary() { before } else { Some(request) };
        }
    }

    async fn check_transcript(&self, who: &str) {
        let records = self.stores.transcripts.load(who).await.unwrap();
        let mut delivered = std::collections::HashSet::new();
        for record in &records {
            if let TranscriptEntry::Message(message) = &record.entry {
                for key in &message.delivered {
                    assert!(delivered.insert(key.clone()), "{who} was delivered {key} twice");
                }
            }
        }
    }
}

/// The parts of a request in the order in which providers compare them: tools, system prompt, blocks.
pub fn parts_of(request: &ModelRequest) -> Vec<String> {
    let tools = request.tools.iter().map(|tool| format!("{tool:?}"));
    let block = |message: &Arc<ChatMessage>| {
        let role = message.role;
        message
            .content
            .iter()
            .map(move |block| format!("{role:?} {}", serde_json::to_string(block).unwrap()))
            .collect::<Vec<_>>()
    };
    tools.chain([request.system.to_string()]).chain(request.messages.iter().flat_map(block)).collect()
}

/// Checks that a provider would accept the request: roles alternate, and every call has its result in the next message.
fn check_request(request: &ModelRequest) {
    let mut open: Vec<String> = Vec::new();
    let mut last = None;
    for message in request.messages.iter() {
        assert_ne!(last, Some(message.role), "two messages of one role in a row");
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
    assert_eq!(last, Some(Role::User), "the last message of a request is not the user's");
    let first = request.messages.first().map(|message| block_text(&message.content[0])).unwrap_or_default();
    assert!(first.starts_with("<identity>You are '"), "the first message is the identity: {first}");
    assert!(request.system.starts_with(&format!("You are '{}', role: ", request.teammate)), "{}", request.system);
}

pub fn new_task(subject: &str) -> NewTask {
    NewTask { subject: subject.to_owned(), ..NewTask::default() }
}

pub fn once() -> StartOptions {
    StartOptions { mode: Some(Mode::RunOnce), one_session: true, ..StartOptions::default() }
}

pub fn start_continuous() -> StartOptions {
    StartOptions { mode: Some(Mode::Continuous), ..StartOptions::default() }
}

/// Approves a plan as the person, unless it has an answer already.
pub async fn approve_plan(stores: &Stores, id: &str, now: UnixMs) {
    let by = Responder { name: HUMAN, process: "test" };
    let outbox = Outbox { stores, now, events: None };
    let answer = Answer { approve: true, feedback: Some("go on"), for_run: false, digest: None };
    let _ = request_mail::send_answer(&outbox, by, id, RequestKind::PlanApproval, answer).await;
}

/// Over all runs, a request is made once, and then answered or withdrawn at most once.
fn check_requests_told_once(events: &[Event]) {
    let (mut made, mut closed) = (std::collections::HashSet::new(), std::collections::HashSet::new());
    for event in events {
        match &event.kind {
            EventKind::RequestMade(request) => {
                assert!(made.insert(request.request.clone()), "made twice: {event:?}");
            }
            EventKind::RequestAnswered { request, .. } | EventKind::RequestWithdrawn { request, .. } => {
                assert!(made.contains(request), "closed before it was made: {event:?}");
                assert!(closed.insert(request.clone()), "closed twice: {event:?}");
            }
            _ => {}
        }
    }
}
