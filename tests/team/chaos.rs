//! A whole team with injected faults: stores, models, tools and people make random choices from a seed. In the phase without faults
//! after it, the invariants are checked. A failure prints the command that repeats its seed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Once};
use std::time::Duration;

use brigade::domain::agent::transcript::{Block, TranscriptEntry};
use brigade::domain::log::event::EventKind;
use brigade::domain::log::replay::ReplayState;
use brigade::domain::task::claim_queue::{Candidate, TaskScope, find_claim_obstacle};
use brigade::domain::task::transition::{Actor, ActorKind, Change};
use brigade::domain::task::{NewTask, TaskId, TaskResult, TaskStatus};
use brigade::domain::team::approval::RequestKind;
use brigade::domain::team::message::{Message, MessageType};
use brigade::domain::team::name::{HUMAN, LEAD};
use brigade::domain::team::phase::ReportedPhase;
use brigade::domain::team::state::{DesiredStateChange, Mode, SetBy, StateUpdate};
use brigade::domain::team::waiting_for::WaitingFor;
use brigade::domain::time::UnixMs;
use brigade::ports::{Claimant, Clock, ModelError, ModelRequest, StoreChange, Stores};
use brigade::service::messages::Outbox;
use brigade::stores::memory::MemoryState;
use brigade::team::StartOptions;
use brigade::team::handle::{TeamCommand, TeamHandle};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::faults::FaultInjector;
use super::harness::{
    LONG, ModelResult, TestTeam, call, complete, diligent, lock, new_task, once, say, start_continuous,
};
use super::harness::{approve_plan, task_at_hand, text_of};
use crate::testkit::seeds::{run_seeds, seeds};

/// The first seed and the number of seeds: `BRIGADE_CHAOS_SEED=7 BRIGADE_CHAOS_COUNT=1 cargo test --test engine team::chaos`.
const SEED: &str = "BRIGADE_CHAOS_SEED";
const COUNT: &str = "BRIGADE_CHAOS_COUNT";
/// A quick run; `.ci/run` runs more seeds.
const COUNT_DEFAULT: u64 = 50;

/// The message of intended panics of models and tools, which are not printed.
const INTENDED_PANIC: &str = "as the test wants";
/// The team rests after this time without events, if no member waits for a fault to pass.
const QUIET: Duration = Duration::from_secs(120);
/// The same for a lead with a model, whose waits are not visible: longer than any of its waits.
const QUIET_LEAD: Duration = Duration::from_secs(700);
/// The interval between two checks for events.
const CHECK_INTERVAL: Duration = Duration::from_secs(20);
/// The subjects that a teammate waits for during a fault.
const FAULTY_SUBJECTS: [&str; 3] = ["its model", "its inbox", "the board"];
/// The longest lease of a person's claim.
const LEASE: Duration = Duration::from_secs(90);

const MEMBERS: [&str; 4] = ["alice", "bob", "carol", "dave"];

#[test]
fn chaos_run_keeps_invariants() {
    silence_expected_panics();
    run_seeds(seeds(SEED, COUNT, COUNT_DEFAULT), |seed| {
        run(seed);
        true
    });
}

/// Runs one seed, from the faults to rest.
fn run(seed: u64) {
    let outcome = std::panic::catch_unwind(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(async { ChaosTeam::new(seed).run_phases().await });
    });
    if let Err(panic) = outcome {
        eprintln!("seed {seed} failed; again: {SEED}={seed} {COUNT}=1 cargo test --test engine team::chaos");
        std::panic::resume_unwind(panic);
    }
}

fn silence_expected_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = info.payload().downcast_ref::<String>().map_or("", String::as_str);
            let text = info.payload().downcast_ref::<&str>().copied().unwrap_or(text);
            if !text.contains(INTENDED_PANIC) {
                before(info);
            }
        }));
    });
}

/// A team, its fault injector, and a person.
struct ChaosTeam {
    faults: Arc<FaultInjector>,
    harness: TestTeam,
    members: Vec<&'static str>,
    /// The stores without faults, for checks.
    inner: Stores,
    clock: Arc<dyn Clock>,
}

impl ChaosTeam {
    fn new(seed: u64) -> Self {
        let faults = FaultInjector::new(seed);
        let members = MEMBERS[..usize::try_from(2 + faults.below(3)).unwrap()].to_vec();
        let mut harness = TestTeam::new(&members);
        harness.spec.limits.stall_timeout = Duration::from_secs(60 + faults.below(300));
        harness.spec.limits.respawns_max = u32::try_from(2 + faults.below(20)).unwrap();
        harness.spec.limits.model.retries_max = 2;
        harness.spec.limits.turns_max = 8;
        harness.spec.limits.stop_timeout = Duration::from_secs(20);
        for who in &members {
            let faults = Arc::clone(&faults);
            harness.set_model_fn(who, move |request, _| respond(Arc::clone(&faults), request, false));
        }
        if faults.chance(50) {
            let leads = Arc::clone(&faults);
            harness.set_model_fn(LEAD, move |request, _| respond(Arc::clone(&leads), request, true));
            harness.spec.goal = faults.chance(50).then(|| "survive the faults".to_owned());
        }
        // The state file is not under test here, and reading it would take most of the time.
        let state = MemoryState::new(Arc::clone(&harness.clock), harness.stores.changes.clone());
        harness.stores.state = Arc::new(state);
        let inner = harness.stores.clone();
        faults.wrap(&mut harness.stores);
        Self { faults, members, inner, clock: Arc::clone(&harness.clock), harness }
    }

    /// Runs the phase with faults, the phase without faults and the checks.
    async fn run_phases(&mut self) {
        self.add_tasks(3).await;
        let is_once = self.faults.chance(25);
        let start = if is_once { once } else { start_continuous };
        let mut team = self.harness.launch(start()).await;
        self.faults.enable();
        for _ in 0..5 + self.faults.below(25) {
            let wait = if self.faults.chance(20) { 120_000 } else { 8000 };
            tokio::time::sleep(Duration::from_millis(self.faults.below(wait))).await;
            team = self.perform_random_action(team, start).await;
        }
        self.faults.disable();
        if is_once {
            // It may have been paused before its session began; otherwise it ends, or has ended, by itself.
            self.click(Mode::RunOnce).await;
        } else {
            self.rest(&team).await;
            let stop = if self.faults.chance(50) { TeamCommand::Stop } else { TeamCommand::Abort };
            team.command(stop).await;
        }
        let answering = async {
            loop {
                self.answer_plans().await;
                tokio::time::sleep(CHECK_INTERVAL).await;
            }
        };
        tokio::select! {
            _ = self.harness.ended(team) => {}
            () = answering => {}
        }
        self.check_accounts().await;
        self.harness.check_invariants().await;
    }

    async fn rest(&self, team: &TeamHandle) {
        while !self.faults.is_settled() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        // Members that lost their model to a fault get another try.
        self.click(Mode::Pause).await;
        let has_read_it = |harness: &TestTeam| {
            let last = harness.event_kinds().into_iter().rev().find_map(|event| match event {
                EventKind::ModeChanged { desired, .. } => Some(desired == Mode::Pause),
                EventKind::TeamStarted { .. } | EventKind::TeamStopped { .. } => Some(true),
                _ => None,
            });
            last.unwrap_or(true)
        };
        self.harness.wait_until("the lead has read the pause", has_read_it).await;
        self.click(Mode::Continuous).await;
        self.add_tasks(1).await;
        self.wait_for_rest(team).await;
        self.check_at_rest(team).await;
        self.check_idle_makes_no_requests().await;
    }

    /// Performs one action of a person, or one fault.
    async fn perform_random_action(&self, mut team: TeamHandle, start: fn() -> StartOptions) -> TeamHandle {
        // Changes of the board while no team runs are in no log until the next run.
        self.harness
            .changed_after_end
            .store(ReplayState::of(&self.harness.events()).stopped.is_some(), Ordering::Relaxed);
        match self.faults.below(20) {
            0..=4 => self.add_tasks(1 + self.faults.below(3)).await,
            5..=8 => self.change_some_task().await,
            9..=10 => self.claim_random_task().await,
            11..=13 => self.send_mail().await,
            14..=16 => {
                let modes = [Mode::Pause, Mode::Continuous, Mode::RunOnce, Mode::RunCleanup];
                self.click(modes[self.pick(modes.len())]).await;
            }
            17 => {
                let outbox = Outbox { stores: &self.harness.stores, now: self.clock.now(), events: None };
                let _ = outbox.send_stop_request(self.random_member(), self.faults.chance(50)).await;
            }
            18 => {
                let member = self.pick(self.members.len());
                let (reply, _) = tokio::sync::oneshot::channel();
                team.command(TeamCommand::Spawn { spec: Box::new(self.harness.spec.members[member].clone()), reply })
                    .await;
            }
            _ => {
                team.command(if self.faults.chance(50) { TeamCommand::Stop } else { TeamCommand::Abort }).await;
                self.harness.ended(team).await;
                self.faults.disable();
                // An ended process writes no more events; here its recorder must finish.
                tokio::time::sleep(Duration::from_secs(60)).await;
                team = self.launch_process(start()).await;
                self.faults.enable();
                self.harness.changed_after_end.store(false, Ordering::Relaxed);
            }
        }
        team
    }

    /// Launches another process on the same stores.
    async fn launch_process(&self, start: StartOptions) -> TeamHandle {
        let mut dependencies = self.harness.dependencies();
        dependencies.stores.workers = Arc::new(brigade::stores::memory::MemoryWorkers::default());
        self.faults.wrap_workers(&mut dependencies.stores);
        brigade::team::launch(self.harness.spec.clone(), start, dependencies).await.unwrap()
    }

    fn pick(&self, count: usize) -> usize {
        usize::try_from(self.faults.below(count as u64)).unwrap()
    }

    fn random_member(&self) -> &'static str {
        self.members[self.pick(self.members.len())]
    }

    fn random_task(&self) -> TaskId {
        TaskId(1 + self.faults.below(12))
    }

    async fn add_tasks(&self, count: u64) {
        let by = Actor::new(HUMAN, ActorKind::Person);
        for _ in 0..count {
            let task = NewTask {
                priority: i64::try_from(self.faults.below(5)).unwrap(),
                blocked_by: if self.faults.chance(30) { vec![self.random_task()] } else { Vec::new() },
                max_attempts: Some(u32::try_from(1 + self.faults.below(6)).unwrap()),
                owner: self.faults.chance(10).then(|| self.random_member().to_owned()),
                ..new_task("weather it")
            };
            // A task with an unknown blocker is refused, as it should be.
            let _ = self.inner.board.create(&by, vec![task], false).await;
        }
    }

    async fn change_some_task(&self) {
        let by = Actor::new(HUMAN, ActorKind::Person).forcing(self.faults.chance(70));
        let (board, id) = (&self.harness.stores.board, self.random_task());
        let reason = "a person wants it so".to_owned();
        let _ = match self.faults.below(8) {
            0..=2 => board.change(id, Change::Release { reason, is_failure: self.faults.chance(20) }, &by).await,
            3 => board.change(id, Change::Retry, &by).await,
            4 => board.change(id, Change::Reopen, &by).await,
            5 => board.change(id, Change::Fail { reason, is_final: self.faults.chance(30) }, &by).await,
            6 => board.change(id, Change::Complete(TaskResult::default()), &by).await,
            _ => board.delete(id, &by).await,
        };
    }

    /// Claims a task as a person, and then completes it, releases it or leaves it.
    async fn claim_random_task(&self) {
        let (name, worker) = ("ann".to_owned(), "lease:ann".to_owned());
        let claimant = Claimant { name, capabilities: Vec::new(), worker, lease: Some(LEASE), scope: TaskScope::All };
        let board = &self.harness.stores.board;
        if let Ok(task) = board.claim(self.random_task(), &claimant).await
            && self.faults.chance(50)
        {
            let by = Actor { kind: ActorKind::Person, ..Actor::holder("ann", task.attempt) };
            let _ = board.change(task.id, Change::Complete(TaskResult::default()), &by).await;
        }
    }

    async fn send_mail(&self) {
        let to = if self.faults.chance(25) { LEAD } else { self.random_member() };
        let kind = if self.faults.chance(10) { MessageType::ShutdownRequest } else { MessageType::Message };
        for number in 0..1 + self.faults.below(4) {
            let message = Message::new(kind, HUMAN, format!("{number} of them"), self.clock.now());
            let _ = self.harness.stores.mailbox.send(to, message).await;
        }
    }

    async fn click(&self, mode: Mode) {
        let desired = DesiredStateChange { mode, by: SetBy::Person, note: String::new(), only_if: None };
        self.inner.state.update(StateUpdate { report: None, desired: Some(desired) }).await.unwrap();
        let _ = self.inner.changes.send(StoreChange::State);
    }

    /// Waits until nothing has happened for a long while.
    async fn wait_for_rest(&self, team: &TeamHandle) {
        let begun = Instant::now();
        let (mut last, mut since) = (None, Instant::now());
        let quiet = if self.harness.spec.lead.has_model() { QUIET_LEAD } else { QUIET };
        while since.elapsed() < quiet {
            let live = team.live().teammates();
            let is_active = live.values().any(|report| {
                matches!(report.phase, ReportedPhase::Work | ReportedPhase::Stalled | ReportedPhase::Stopping)
                    || report
                        .waiting_for
                        .as_ref()
                        .map(WaitingFor::to_file_text)
                        .is_some_and(|what| FAULTY_SUBJECTS.iter().any(|away| what.starts_with(away)))
            });
            let now = (self.harness.requests(), self.inner.board.view().await.unwrap().revision);
            if last != Some(now) || is_active {
                (last, since) = (Some(now), Instant::now());
            }
            // Without an answer, a member waits forever.
            self.answer_plans().await;
            assert!(begun.elapsed() < LONG, "the team never rests\n{}", self.harness.event_lines());
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    async fn answer_plans(&self) {
        for plan in self.inner.requests.all().await.unwrap().open(RequestKind::PlanApproval) {
            approve_plan(&self.harness.stores, &plan.id, self.clock.now()).await;
        }
    }

    /// At rest no member holds a task, no task can be done by a member, and no mail waits.
    async fn check_at_rest(&self, team: &TeamHandle) {
        let view = self.inner.board.view().await.unwrap();
        let live = team.live().teammates();
        let is_there = |report: &brigade::domain::team::state::TeammateReport| {
            !report.is_gone() && !matches!(report.waiting_for, Some(WaitingFor::Model(_)))
        };
        let there: Vec<&String> = live.iter().filter(|(_, report)| is_there(report)).map(|(name, _)| name).collect();
        let coder = ["coder".to_owned()];
        for task in view.tasks.values() {
            assert_ne!(task.status, TaskStatus::InProgress, "{task:?} is held\n{}", self.harness.event_lines());
            for name in &there {
                let later = UnixMs(self.clock.now().0 + 86_400_000);
                let member = Candidate { name, capabilities: &coder, scope: TaskScope::All };
                let obstacle = find_claim_obstacle(task, &member, &*view, later);
                assert!(obstacle.is_some(), "{name} could do {task:?}\n{}", self.harness.event_lines());
            }
        }
        let waiting = self.inner.mailbox.recipients_with_mail().await.unwrap();
        let unread: Vec<_> = waiting.iter().filter(|to| there.contains(to)).collect();
        assert!(unread.is_empty(), "mail waits for {unread:?}\n{}", self.harness.event_lines());
    }

    async fn check_idle_makes_no_requests(&self) {
        let before = self.harness.requests();
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(self.harness.requests(), before, "idle members called a model\n{}", self.harness.event_lines());
    }

    /// No task had two owners. Every accepted message is in its transcript once and in order for each sender, or waits.
    async fn check_accounts(&self) {
        let (violations, mail) = {
            let accepted = lock(&self.faults.accepted);
            (accepted.violations.clone(), accepted.mail.clone())
        };
        assert_eq!(violations, Vec::<String>::new(), "{}", self.harness.event_lines());
        for (to, sent) in mail {
            let records = self.inner.transcripts.load(&to).await.unwrap();
            let delivered = records.iter().flat_map(|record| match &record.entry {
                TranscriptEntry::Message(message) => message.delivered.clone(),
                TranscriptEntry::Compaction { .. } | TranscriptEntry::Sent(_) => Vec::new(),
            });
            let mut arrived: Vec<String> = delivered.collect();
            let carried: std::collections::HashSet<String> = arrived.iter().cloned().collect();
            assert_eq!(carried.len(), arrived.len(), "{to} got a message twice");
            let waiting = self.inner.mailbox.take(&to, &carried).await.unwrap();
            arrived.extend(waiting.into_iter().map(|delivery| delivery.key));
            let mut by_sender: BTreeMap<&String, Vec<&String>> = BTreeMap::new();
            sent.iter().for_each(|(from, id)| by_sender.entry(from).or_default().push(id));
            for (from, ids) in by_sender {
                let found: Vec<&String> = arrived.iter().filter(|id| ids.contains(id)).collect();
                assert_eq!(found, ids, "mail of {from} to {to}\n{}", self.harness.event_lines());
            }
        }
    }
}

/// The behaviour of a model: random with faults, [`settle`] without.
async fn respond(faults: Arc<FaultInjector>, request: ModelRequest, is_lead: bool) -> ModelResult {
    if !faults.is_enabled() {
        return settle(&request);
    }
    match faults.below(100) {
        0..=3 => {
            let retry_after = faults.chance(30).then(|| Duration::from_secs(faults.below(500)));
            Err(ModelError::Temporary { message: "busy".to_owned(), retry_after })
        }
        4 => Err(ModelError::Final("no such model".to_owned())),
        5..=7 => Err(ModelError::ContextTooLong { message: "too long".to_owned(), window_tokens: None }),
        8..=9 => panic!("a model panics, {INTENDED_PANIC}"),
        10 => std::future::pending().await,
        11..=20 => {
            tokio::time::sleep(Duration::from_millis(faults.below(90_000))).await;
            answer(&faults, &request, is_lead)
        }
        _ => {
            tokio::time::sleep(Duration::from_millis(faults.below(1500))).await;
            answer(&faults, &request, is_lead)
        }
    }
}

/// Completes every task, and answers every question once.
fn settle(request: &ModelRequest) -> ModelResult {
    match task_at_hand(request) {
        Some(task) if is_reminded(request) => call(&[complete(task)]),
        _ => diligent(request),
    }
}

fn is_reminded(request: &ModelRequest) -> bool {
    let last = request.messages.last().map(|message| message.content.as_slice()).unwrap_or_default();
    last.iter().any(|block| matches!(block, Block::Text { text } if text.starts_with("You still hold")))
}

fn answer(faults: &FaultInjector, request: &ModelRequest, is_lead: bool) -> ModelResult {
    if request.tools.is_empty() {
        return say("A summary.");
    }
    let held = task_at_hand(request);
    let mut calls: Vec<(&str, Value)> = Vec::new();
    for _ in 0..faults.below(3) {
        calls.push(random_call(faults, request, is_lead));
    }
    if let Some(task) = held.filter(|_| faults.chance(50)) {
        let status = ["completed", "completed", "completed", "failed", "pending"];
        let status = status[usize::try_from(faults.below(5)).unwrap()];
        calls.push(("task_update", json!({"task_id": task, "status": status, "result": "so it came out"})));
    }
    if calls.is_empty() { say("Well.") } else { call(&calls) }
}

fn random_call(faults: &FaultInjector, request: &ModelRequest, is_lead: bool) -> (&'static str, Value) {
    let recipients = [MEMBERS.as_slice(), &[LEAD, HUMAN, "stranger"]].concat();
    let recipient = recipients[usize::try_from(faults.below(recipients.len() as u64)).unwrap()];
    let random_task = 1 + faults.below(12);
    let known: BTreeSet<&str> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
    let (tool, input) = match faults.below(if is_lead { 18 } else { 14 }) {
        0..=1 => ("nap", json!({"ms": faults.below(40_000)})),
        2 => ("fail", json!({})),
        3 => ("boom", json!({})),
        4..=5 => ("send_message", json!({"to": recipient, "content": "well?"})),
        6 => ("task_create", json!({"subject": "more", "description": "of it"})),
        7 => ("claim_task", json!({"task_id": random_task})),
        8 => ("task_update", json!({"task_id": random_task, "status": "completed", "result": "not mine"})),
        9 => ("task_update", json!({"task_id": random_task, "add_blocked_by": [1 + faults.below(12)]})),
        10 => ("read_inbox", json!({})),
        11 => ("idle", json!({})),
        12 => ("plan_approval", json!({"plan": "to weather it"})),
        13 => ("shutdown_response", json!({"request_id": request_id(request), "approve": faults.chance(50)})),
        14 => ("spawn_teammate", json!({"name": recipient, "role": "coder", "prompt": ""})),
        15 => ("shutdown_request", json!({"teammate": recipient})),
        16 => ("broadcast", json!({"content": "hear"})),
        _ => ("goal_done", json!({"summary": "weathered"})),
    };
    if known.contains(tool) { (tool, input) } else { ("task_list", json!({})) }
}

/// The last request id in the context.
fn request_id(request: &ModelRequest) -> String {
    let text = text_of(request);
    let found = text.rsplit_once("request_id").map(|(_, rest)| rest.trim_start_matches([':', ' ', '"', '=']));
    found.map(|rest| rest.chars().take_while(char::is_ascii_hexdigit).collect()).unwrap_or_default()
}
