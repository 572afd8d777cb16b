//! The whole team in a storm: stores, models, tools and people do by a seed whatever they may. Then it is calm, and what must
//! always hold is looked at. A seed that fails prints how it is run again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use brigade::domain::change::{Actor, ActorKind, Change};
use brigade::domain::graph;
use brigade::domain::message::{Message, MessageType};
use brigade::domain::name::{HUMAN, LEAD};
use brigade::domain::replay::Replay;
use brigade::domain::state::{Mode, SetDesired, StateUpdate};
use brigade::domain::task::{NewTask, TaskId, TaskResult, TaskStatus};
use brigade::domain::time::UnixMs;
use brigade::domain::transcript::{Block, Entry};
use brigade::domain::waiting_for::WaitingFor;
use brigade::ports::{Claimant, Clock, ModelError, ModelRequest, StoreChange, Stores};
use brigade::stores::memory::state::MemoryState;
use brigade::team::Start;
use brigade::team::handle::{Command, TeamHandle};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::stage::{Answer, LONG, Stage, call, complete, diligent, lock, name, new_task, on_and_on, once, say};
use super::stage::{approve_plan, task_at_hand, text_of};
use super::storm::Storm;

/// The first seed, and how many are run: `BRIGADE_CHAOS_SEED=7 BRIGADE_CHAOS_COUNT=1 cargo test --test team chaos`.
const SEED: &str = "BRIGADE_CHAOS_SEED";
const COUNT: &str = "BRIGADE_CHAOS_COUNT";
const COUNT_DEFAULT: u64 = 150;

/// What panics of models and tools say, so that they are not printed.
const WANTED: &str = "as the test wants";
/// The team rests once nothing has happened for so long, and nobody waits for something to pass by itself.
const QUIET: Duration = Duration::from_secs(120);
/// The same where the lead thinks, whose waiting does not show: longer than any wait of its own choice.
const QUIET_LEAD: Duration = Duration::from_secs(700);
/// How often it is looked whether something happened.
const LOOK: Duration = Duration::from_secs(20);
/// What a teammate waits for that is not there for a while.
const AWAY: [&str; 3] = ["its model", "its inbox", "the board"];
/// The longest a person's claim lives.
const LEASE: Duration = Duration::from_secs(90);

const MEMBERS: [&str; 4] = ["alice", "bob", "carol", "dave"];

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn whatever_happens_the_laws_hold() {
    silence_wanted_panics();
    let first = number(SEED, 1);
    let (next, end) = (AtomicU64::new(first), first + number(COUNT, COUNT_DEFAULT));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let seeds = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)));
                seeds.take_while(|seed| *seed < end).for_each(run);
            });
        }
    });
}

/// One seed, from storm to rest.
fn run(seed: u64) {
    let outcome = std::panic::catch_unwind(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(async { World::new(seed).live().await });
    });
    if let Err(panic) = outcome {
        eprintln!("seed {seed} failed; again: {SEED}={seed} {COUNT}=1 cargo test --test team chaos");
        std::panic::resume_unwind(panic);
    }
}

fn silence_wanted_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = info.payload().downcast_ref::<String>().map_or("", String::as_str);
            let text = info.payload().downcast_ref::<&str>().copied().unwrap_or(text);
            if !text.contains(WANTED) {
                before(info);
            }
        }));
    });
}

/// A team, a storm around it, and a person.
struct World {
    storm: Arc<Storm>,
    stage: Stage,
    members: Vec<&'static str>,
    /// The stores without the storm, for what is looked at.
    inner: Stores,
    clock: Arc<dyn Clock>,
}

impl World {
    fn new(seed: u64) -> Self {
        let storm = Storm::new(seed);
        let members = MEMBERS[..usize::try_from(2 + storm.below(3)).unwrap()].to_vec();
        let mut stage = Stage::new(&members);
        stage.spec.limits.stall_timeout = Duration::from_secs(60 + storm.below(300));
        stage.spec.limits.respawns_max = u32::try_from(2 + storm.below(20)).unwrap();
        stage.spec.limits.model_retries_max = 2;
        stage.spec.limits.turns_max = 8;
        stage.spec.limits.stop_timeout = Duration::from_secs(20);
        for who in &members {
            let storm = Arc::clone(&storm);
            stage.brain(who, move |request, _| think(Arc::clone(&storm), request, false));
        }
        if storm.chance(50) {
            let leads = Arc::clone(&storm);
            stage.brain(LEAD, move |request, _| think(Arc::clone(&leads), request, true));
            stage.spec.goal = storm.chance(50).then(|| "weather the storm".to_owned());
        }
        // Its file is not what is attacked here, and reading it would take most of the time.
        let state = MemoryState::new(Arc::clone(&stage.clock), stage.stores.changes.clone());
        stage.stores.state = Arc::new(state);
        let inner = stage.stores.clone();
        storm.over(&mut stage.stores);
        Self { storm, members, inner, clock: Arc::clone(&stage.clock), stage }
    }

    /// The storm, the calm, the laws.
    async fn live(&mut self) {
        self.add_tasks(3).await;
        let is_once = self.storm.chance(25);
        let start = if is_once { once } else { on_and_on };
        let mut team = self.stage.launch(start()).await;
        self.storm.rage();
        for _ in 0..5 + self.storm.below(25) {
            let wait = if self.storm.chance(20) { 120_000 } else { 8000 };
            tokio::time::sleep(Duration::from_millis(self.storm.below(wait))).await;
            team = self.act(team, start).await;
        }
        self.storm.calm();
        if is_once {
            // It may have been paused before its session began; else it ends, or ended, by itself.
            self.click(Mode::RunOnce).await;
        } else {
            self.rest(&team).await;
            let stop = if self.storm.chance(50) { Command::Stop } else { Command::StopNow };
            team.command(stop).await;
        }
        let answering = async {
            loop {
                self.answer_plans().await;
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            _ = self.stage.ended(team) => {}
            () = answering => {}
        }
        self.check_accounts().await;
        self.stage.check_laws().await;
    }

    async fn rest(&self, team: &TeamHandle) {
        // Whom the storm kept from its model has another chance.
        self.click(Mode::Pause).await;
        tokio::time::sleep(Duration::from_secs(20)).await;
        self.click(Mode::Continuous).await;
        self.add_tasks(1).await;
        self.until_rest(team).await;
        self.check_rest(team).await;
        self.check_idle_is_free().await;
    }

    /// One thing a person, or fate, does.
    async fn act(&self, mut team: TeamHandle, start: fn() -> Start) -> TeamHandle {
        // What a board says that is changed while no team runs is in no log until the next one does.
        self.stage.meddled.store(Replay::of(&self.stage.events()).stopped.is_some(), Ordering::Relaxed);
        match self.storm.below(20) {
            0..=4 => self.add_tasks(1 + self.storm.below(3)).await,
            5..=8 => self.change_some_task().await,
            9..=10 => self.claim_some_task().await,
            11..=13 => self.send_mail().await,
            14..=16 => {
                let modes = [Mode::Pause, Mode::Continuous, Mode::RunOnce, Mode::RunCleanup];
                self.click(modes[self.pick(modes.len())]).await;
            }
            17 => {
                let command = Command::StopTeammate { name: name(self.somebody()), now: self.storm.chance(50) };
                team.command(command).await;
            }
            18 => {
                let member = self.pick(self.members.len());
                let (reply, _) = tokio::sync::oneshot::channel();
                team.command(Command::Spawn { spec: self.stage.spec.members[member].clone(), reply }).await;
            }
            _ => {
                team.command(if self.storm.chance(50) { Command::Stop } else { Command::StopNow }).await;
                self.stage.ended(team).await;
                self.storm.calm();
                // A process that is gone writes no more facts; here its recorder has to finish.
                tokio::time::sleep(Duration::from_secs(60)).await;
                team = self.launch_anew(start()).await;
                self.storm.rage();
                self.stage.meddled.store(false, Ordering::Relaxed);
            }
        }
        team
    }

    /// Another process on the same stores.
    async fn launch_anew(&self, start: Start) -> TeamHandle {
        let mut surroundings = self.stage.surroundings();
        surroundings.stores.workers = Arc::new(brigade::stores::memory::workers::MemoryWorkers::default());
        self.storm.over_workers(&mut surroundings.stores);
        brigade::team::launch(self.stage.spec.clone(), start, surroundings).await.unwrap()
    }

    fn pick(&self, count: usize) -> usize {
        usize::try_from(self.storm.below(count as u64)).unwrap()
    }

    fn somebody(&self) -> &'static str {
        self.members[self.pick(self.members.len())]
    }

    fn some_task(&self) -> TaskId {
        TaskId(1 + self.storm.below(12))
    }

    async fn add_tasks(&self, count: u64) {
        let by = Actor::new(HUMAN, ActorKind::Person);
        for _ in 0..count {
            let task = NewTask {
                priority: i64::try_from(self.storm.below(5)).unwrap(),
                blocked_by: if self.storm.chance(30) { vec![self.some_task()] } else { Vec::new() },
                max_attempts: Some(u32::try_from(1 + self.storm.below(6)).unwrap()),
                owner: self.storm.chance(10).then(|| self.somebody().to_owned()),
                ..new_task("weather it")
            };
            // One that waits for a task there is not is refused, as it should be.
            let _ = self.inner.board.create(&by, vec![task], false).await;
        }
    }

    async fn change_some_task(&self) {
        let by = Actor::new(HUMAN, ActorKind::Person).forcing(self.storm.chance(70));
        let (board, id) = (&self.stage.stores.board, self.some_task());
        let reason = "a person wants it so".to_owned();
        let _ = match self.storm.below(8) {
            0..=2 => board.change(id, Change::Release { reason, counts: self.storm.chance(20) }, &by).await,
            3 => board.change(id, Change::Retry, &by).await,
            4 => board.change(id, Change::Reopen, &by).await,
            5 => board.change(id, Change::Fail { reason, is_final: self.storm.chance(30) }, &by).await,
            6 => board.change(id, Change::Complete(TaskResult::default()), &by).await,
            _ => board.delete(id, &by).await,
        };
    }

    /// A person claims, and perhaps completes, or forgets it.
    async fn claim_some_task(&self) {
        let (name, worker) = ("ann".to_owned(), "lease:ann".to_owned());
        let claimant = Claimant { name, capabilities: Vec::new(), worker, lease: Some(LEASE) };
        let board = &self.stage.stores.board;
        if let Ok(task) = board.claim(self.some_task(), &claimant).await
            && self.storm.chance(50)
        {
            let by = Actor { kind: ActorKind::Person, ..Actor::holder("ann", task.attempt) };
            let _ = board.change(task.id, Change::Complete(TaskResult::default()), &by).await;
        }
    }

    async fn send_mail(&self) {
        let to = if self.storm.chance(25) { LEAD } else { self.somebody() };
        let kind = if self.storm.chance(10) { MessageType::ShutdownRequest } else { MessageType::Message };
        for number in 0..1 + self.storm.below(4) {
            let message = Message::new(kind, HUMAN, format!("{number} of them"), self.clock.now());
            let _ = self.stage.stores.mailbox.send(to, message).await;
        }
    }

    async fn click(&self, mode: Mode) {
        let desired = SetDesired { mode, by: HUMAN.to_owned(), note: String::new(), only_if: None };
        self.inner.state.update(StateUpdate { report: None, desired: Some(desired) }).await.unwrap();
        let _ = self.inner.changes.send(StoreChange::State);
    }

    /// Waits until nothing has happened for a long while.
    async fn until_rest(&self, team: &TeamHandle) {
        let begun = Instant::now();
        let (mut last, mut since) = (None, Instant::now());
        let quiet = if self.stage.spec.lead.model.provider == "test" { QUIET_LEAD } else { QUIET };
        while since.elapsed() < quiet {
            let live = team.live().teammates();
            let is_away = live.values().any(|report| {
                matches!(report.phase.as_str(), "work" | "stalled" | "stopping")
                    || report
                        .waiting_for
                        .as_ref()
                        .map(WaitingFor::to_file_text)
                        .is_some_and(|what| AWAY.iter().any(|away| what.starts_with(away)))
            });
            let now = (self.stage.requests(), self.inner.board.view().await.unwrap().revision);
            if last != Some(now) || is_away {
                (last, since) = (Some(now), Instant::now());
            }
            // Who waits for an answer waits for as long as nobody gives one.
            self.answer_plans().await;
            assert!(begun.elapsed() < LONG, "the team never rests\n{}", self.stage.story());
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn answer_plans(&self) {
        for plan in self.inner.requests.all().await.unwrap().open_plans() {
            approve_plan(&self.stage.stores, &plan.id, self.clock.now()).await;
        }
    }

    /// At rest nobody holds anything, nothing is left that somebody there could do, and no mail waits for them.
    async fn check_rest(&self, team: &TeamHandle) {
        let view = self.inner.board.view().await.unwrap();
        let live = team.live().teammates();
        let is_there = |report: &brigade::domain::state::TeammateReport| {
            !report.is_gone() && !matches!(report.waiting_for, Some(WaitingFor::Model(_)))
        };
        let there: Vec<&String> = live.iter().filter(|(_, report)| is_there(report)).map(|(name, _)| name).collect();
        let coder = ["coder".to_owned()];
        for task in view.tasks.values() {
            assert_ne!(task.status, TaskStatus::InProgress, "{task:?} is held\n{}", self.stage.story());
            for name in &there {
                let later = UnixMs(self.clock.now().0 + 86_400_000);
                let obstacle = graph::obstacle(task, name, &coder, &*view, later);
                assert!(obstacle.is_some(), "{name} could do {task:?}\n{}", self.stage.story());
            }
        }
        let waiting = self.inner.mailbox.waiting().await.unwrap();
        let unread: Vec<_> = waiting.iter().filter(|to| there.contains(to)).collect();
        assert!(unread.is_empty(), "mail waits for {unread:?}\n{}", self.stage.story());
    }

    async fn check_idle_is_free(&self) {
        let before = self.stage.requests();
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(self.stage.requests(), before, "idle called a model\n{}", self.stage.story());
    }

    /// No task had two owners; every accepted message is in its transcript once and in order for each sender, or waits.
    async fn check_accounts(&self) {
        let (violations, mail) = {
            let accepted = lock(&self.storm.accepted);
            (accepted.violations.clone(), accepted.mail.clone())
        };
        assert_eq!(violations, Vec::<String>::new(), "{}", self.stage.story());
        for (to, sent) in mail {
            let records = self.inner.transcripts.load(&to).await.unwrap();
            let delivered = records.iter().flat_map(|record| match &record.entry {
                Entry::Message(message) => message.delivered.clone(),
                Entry::Compaction { .. } => Vec::new(),
            });
            let mut arrived: Vec<String> = delivered.collect();
            let carried: std::collections::HashSet<String> = arrived.iter().cloned().collect();
            assert_eq!(carried.len(), arrived.len(), "{to} has mail twice");
            let waiting = self.inner.mailbox.take(&to, &carried).await.unwrap();
            arrived.extend(waiting.into_iter().map(|delivery| delivery.key));
            let mut by_sender: BTreeMap<&String, Vec<&String>> = BTreeMap::new();
            sent.iter().for_each(|(from, id)| by_sender.entry(from).or_default().push(id));
            for (from, ids) in by_sender {
                let found: Vec<&String> = arrived.iter().filter(|id| ids.contains(id)).collect();
                assert_eq!(found, ids, "mail of {from} to {to}\n{}", self.stage.story());
            }
        }
    }
}

/// What a model in the storm does.
async fn think(storm: Arc<Storm>, request: ModelRequest, is_lead: bool) -> Answer {
    if storm.is_calm() {
        return settle(&request);
    }
    match storm.below(100) {
        0..=3 => {
            let retry_after = storm.chance(30).then(|| Duration::from_secs(storm.below(500)));
            Err(ModelError::Temporary { message: "busy".to_owned(), retry_after })
        }
        4 => Err(ModelError::Final("no such model".to_owned())),
        5..=7 => Err(ModelError::ContextTooLong { message: "too long".to_owned(), window_tokens: None }),
        8..=9 => panic!("a model panics, {WANTED}"),
        10 => std::future::pending().await,
        11..=20 => {
            tokio::time::sleep(Duration::from_millis(storm.below(90_000))).await;
            answer(&storm, &request, is_lead)
        }
        _ => {
            tokio::time::sleep(Duration::from_millis(storm.below(1500))).await;
            answer(&storm, &request, is_lead)
        }
    }
}

/// In the calm every task is completed, and every question answered once.
fn settle(request: &ModelRequest) -> Answer {
    match task_at_hand(request) {
        Some(task) if is_reminded(request) => call(&[complete(task)]),
        _ => diligent(request),
    }
}

fn is_reminded(request: &ModelRequest) -> bool {
    let last = request.messages.last().map(|message| message.content.as_slice()).unwrap_or_default();
    last.iter().any(|block| matches!(block, Block::Text { text } if text.starts_with("You still hold")))
}

fn answer(storm: &Storm, request: &ModelRequest, is_lead: bool) -> Answer {
    if request.tools.is_empty() {
        return say("A summary.");
    }
    let held = task_at_hand(request);
    let mut calls: Vec<(&str, Value)> = Vec::new();
    for _ in 0..storm.below(3) {
        calls.push(some_call(storm, request, is_lead));
    }
    if let Some(task) = held.filter(|_| storm.chance(50)) {
        let status = ["completed", "completed", "completed", "failed", "pending"];
        let status = status[usize::try_from(storm.below(5)).unwrap()];
        calls.push(("task_update", json!({"task_id": task, "status": status, "result": "so it came out"})));
    }
    if calls.is_empty() { say("Well.") } else { call(&calls) }
}

fn some_call(storm: &Storm, request: &ModelRequest, is_lead: bool) -> (&'static str, Value) {
    let somebody = [MEMBERS.as_slice(), &[LEAD, HUMAN, "nobody"]].concat();
    let somebody = somebody[usize::try_from(storm.below(somebody.len() as u64)).unwrap()];
    let some_task = 1 + storm.below(12);
    let known: BTreeSet<&str> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
    let (tool, input) = match storm.below(if is_lead { 18 } else { 14 }) {
        0..=1 => ("nap", json!({"ms": storm.below(40_000)})),
        2 => ("fail", json!({})),
        3 => ("boom", json!({})),
        4..=5 => ("send_message", json!({"to": somebody, "content": "well?"})),
        6 => ("task_create", json!({"subject": "more", "description": "of it"})),
        7 => ("claim_task", json!({"task_id": some_task})),
        8 => ("task_update", json!({"task_id": some_task, "status": "completed", "result": "not mine"})),
        9 => ("task_update", json!({"task_id": some_task, "add_blocked_by": [1 + storm.below(12)]})),
        10 => ("read_inbox", json!({})),
        11 => ("idle", json!({})),
        12 => ("plan_approval", json!({"plan": "to weather it"})),
        13 => ("shutdown_response", json!({"request_id": request_id(request), "approve": storm.chance(50)})),
        14 => ("spawn_teammate", json!({"name": somebody, "role": "coder", "prompt": ""})),
        15 => ("shutdown_request", json!({"teammate": somebody})),
        16 => ("broadcast", json!({"content": "hear"})),
        _ => ("goal_done", json!({"summary": "weathered"})),
    };
    if known.contains(tool) { (tool, input) } else { ("task_list", json!({})) }
}

/// The last request the context tells of.
fn request_id(request: &ModelRequest) -> String {
    let text = text_of(request);
    let found = text.rsplit_once("request_id").map(|(_, rest)| rest.trim_start_matches([':', ' ', '"', '=']));
    found.map(|rest| rest.chars().take_while(char::is_ascii_hexdigit).collect()).unwrap_or_default()
}
