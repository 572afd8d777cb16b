//! Actions of the person, the second worker and other programs, and faults of all processes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use brigade::domain::task::claim_queue::TaskScope;
use brigade::domain::task::transition::{Actor, ActorKind, Change, TaskEdit};
use brigade::domain::task::{NewTask, TaskId, TaskResult};
use brigade::domain::team::budget::{LedgerEntry, LedgerRecord};
use brigade::domain::team::message::{Message, MessageType};
use brigade::domain::team::name::{HUMAN, LEAD};
use brigade::domain::team::state::Mode;
use brigade::domain::text::json_document::Document;
use brigade::ports::{Claimant, Clock, StoreResult};
use brigade::service::messages::Outbox;
use brigade::service::request_mail::{self, Answer, Responder};
use brigade::stores::file::workers::ProcessId;
use brigade::stores::file::workers::leader_lock::acquire_leader_lock;
use brigade::stores::fs::FileSystem;
use brigade::stores::workspace::OpenMode;
use brigade::team::handle::TeamCommand;
use fastrand::Rng;

use super::files::{Files, ProcessFiles};
use super::host::{WORKSPACE, lock};
use super::plan::{Action, ActionFault, ProcessRole};
use super::world::{MEMBERS, TEAM, World};

/// The longest lease of a person's claim.
const LEASE: Duration = Duration::from_secs(60);
/// The time that a program takes to write a file in place.
const TORN_TIME: Duration = Duration::from_millis(300);

impl World {
    /// Performs an action. A failed or refused action counts as not requested.
    pub async fn perform(&self, action: &Action) {
        let outcome = match action {
            Action::AddTasks { seed } => self.add_tasks(&mut Rng::with_seed(*seed)).await,
            Action::ChangeTask { seed } => self.change_task(&mut Rng::with_seed(*seed)).await,
            Action::ClaimTask { seed } => self.claim_task(&mut Rng::with_seed(*seed)).await,
            Action::SendMail { seed } => self.send_mail(&mut Rng::with_seed(*seed)).await,
            Action::AnswerRequests { seed } => self.answer_requests(&mut Rng::with_seed(*seed)).await,
            Action::RaiseBudget { stops } => self.raise_budget(*stops).await,
            Action::ResetLedger { stops } => self.reset_ledger(*stops).await,
            Action::WorkerClaims { seed } => self.worker_claims(&mut Rng::with_seed(*seed)).await,
            Action::WorkerFinishes { seed } => self.worker_finishes(&mut Rng::with_seed(*seed)).await,
            other => {
                self.apply_event(other).await;
                Ok(())
            }
        };
        if let Err(error) = outcome {
            self.host.note(|| format!("{action:?} fails: {error}"));
        }
    }

    async fn apply_event(&self, action: &Action) {
        match action {
            Action::Click { seed } => {
                let modes = [Mode::Continuous, Mode::Continuous, Mode::Pause, Mode::RunOnce, Mode::RunCleanup];
                let mut rng = Rng::with_seed(*seed);
                self.click(modes[rng.usize(..modes.len())], rng.bool());
            }
            Action::ForeignMail { seed } => self.foreign_mail(&mut Rng::with_seed(*seed)),
            Action::TornTask { seed } => self.rewrite_task_slowly(&mut Rng::with_seed(*seed)).await,
            Action::Kill { who } => self.files_of(*who).into_iter().for_each(|files| files.kill()),
            Action::StopLead { now } => {
                self.stop_lead(if *now { TeamCommand::Abort } else { TeamCommand::Stop }).await;
            }
            Action::SecondLead => self.second_lead(),
            Action::PowerCut { seed } => self.host.cut_power(*seed),
            Action::JumpClock { ms } => self.host.jump_clock(*ms),
            Action::LoseHints { ms } => {
                self.host.note_fault();
                self.host.drop_hints(Duration::from_millis(*ms));
            }
            Action::LoseWatches => self.files_of(ProcessRole::Lead).into_iter().for_each(|files| files.lose_watches()),
            Action::SlowStores { ms } => self.host.slow_stores_for(*ms, Duration::from_secs(20)),
            Action::InjectFault { who, after, fault } => self.inject_fault(*who, *after, fault),
            _ => {}
        }
    }

    fn inject_fault(&self, who: ProcessRole, after: u32, fault: &ActionFault) {
        let files = match who {
            ProcessRole::Lead => self.files_of(ProcessRole::Lead),
            ProcessRole::Worker => self.worker().ok().map(|process| Arc::clone(&process.files)),
            ProcessRole::Person => self.person().ok().map(|process| Arc::clone(&process.files)),
        };
        if let Some(files) = files {
            files.inject_fault(after, fault.clone());
        }
    }

    fn some_task(&self, rng: &mut Rng) -> TaskId {
        let ids: Vec<u64> = self.tasks().into_keys().collect();
        TaskId(if ids.is_empty() { 1 } else { ids[rng.usize(..ids.len())] })
    }
}

/// The person.
impl World {
    async fn add_tasks(&self, rng: &mut Rng) -> StoreResult<()> {
        let by = Actor::new(HUMAN, ActorKind::Person);
        let one = |rng: &mut Rng| NewTask {
            subject: "do it".to_owned(),
            priority: rng.i64(0..3),
            blocked_by: if rng.u8(..100) < 40 && !self.tasks().is_empty() {
                vec![self.some_task(rng)]
            } else {
                Vec::new()
            },
            max_attempts: Some(rng.u32(2..9)),
            ..NewTask::default()
        };
        let tasks = (0..rng.usize(1..=2)).map(|_| one(rng)).collect();
        self.person()?.stores.board.create(&by, tasks, false).await.map(drop)
    }

    async fn change_task(&self, rng: &mut Rng) -> StoreResult<()> {
        let by = Actor::new(HUMAN, ActorKind::Person).forcing(rng.u8(..10) < 7);
        let (person, id) = (self.person()?, self.some_task(rng));
        let reason = "a person wants it so".to_owned();
        let change = match rng.u8(..9) {
            0..=1 => Change::Release { reason, is_failure: rng.bool() },
            2 => Change::Retry,
            3 => Change::Reopen,
            4 => Change::Fail { reason, is_final: rng.bool() },
            5..=6 => Change::Complete(TaskResult::default()),
            7 => {
                let add_blocked_by = vec![self.some_task(rng)];
                Change::Edit(TaskEdit { add_blocked_by, priority: Some(rng.i64(0..3)), ..TaskEdit::default() })
            }
            _ => return person.stores.board.delete(id, &by).await.map(drop),
        };
        // Sometimes a command is given twice.
        if rng.u8(..4) == 0 {
            let _ = person.stores.board.change(id, change.clone(), &by).await;
        }
        person.stores.board.change(id, change, &by).await.map(drop)
    }

    /// Claims a task as a person, and then completes it, releases it or leaves it.
    async fn claim_task(&self, rng: &mut Rng) -> StoreResult<()> {
        let (name, worker) = ("ann".to_owned(), "lease:ann".to_owned());
        let claimant = Claimant { name, capabilities: Vec::new(), worker, lease: Some(LEASE), scope: TaskScope::All };
        let person = self.person()?;
        let task = person.stores.board.claim(self.some_task(rng), &claimant).await?;
        if rng.bool() {
            let by = Actor::holder("ann", task.attempt);
            person.stores.board.change(task.id, Change::Complete(TaskResult::default()), &by).await?;
        }
        Ok(())
    }

    async fn send_mail(&self, rng: &mut Rng) -> StoreResult<()> {
        let to = if rng.u8(..4) == 0 { LEAD } else { MEMBERS[rng.usize(..self.models.members.len())] };
        let kind = if rng.u8(..10) == 0 { MessageType::ShutdownRequest } else { MessageType::Message };
        for number in 0..rng.usize(1..4) {
            let message = Message::new(kind, HUMAN, format!("{number} of them"), self.host.now());
            self.person()?.stores.mailbox.send(to, message).await?;
        }
        Ok(())
    }

    /// Answers every waiting plan and review at random, whichever reviewer was asked.
    async fn answer_requests(&self, rng: &mut Rng) -> StoreResult<()> {
        self.answer_all(|| rng.u8(..4) > 0).await
    }

    pub async fn approve_all(&self) {
        if let Err(error) = self.answer_all(|| true).await {
            self.host.note(|| format!("nothing is approved: {error}"));
        }
    }

    async fn answer_all(&self, mut approves: impl FnMut() -> bool) -> StoreResult<()> {
        let person = self.person()?;
        for request in person.stores.requests.all().await?.open_approvals() {
            let process = self.next_process();
            let by = Responder { name: HUMAN, process: &process };
            let outbox = Outbox { stores: &person.stores, now: self.host.now(), events: None };
            let answer = Answer { approve: approves(), feedback: Some("go on"), for_run: false, digest: None };
            // It may have an answer already.
            let _ = request_mail::send_answer(&outbox, by, &request.id, request.kind, answer).await;
        }
        Ok(())
    }

    async fn stop_for_budget_change(&self, stops: bool) {
        if stops {
            self.stop_lead(TeamCommand::Stop).await;
            self.click(Mode::Continuous, false);
        }
    }

    async fn raise_budget(&self, stops: bool) -> StoreResult<()> {
        lock(&self.host.invariants).spending.raise();
        self.stop_for_budget_change(stops).await;
        Ok(())
    }

    /// Resets the ledger as the command does: in a separate process, while no lead runs.
    async fn reset_ledger(&self, stops: bool) -> StoreResult<()> {
        self.stop_for_budget_change(stops).await;
        let process = self.open("person", OpenMode::Write)?;
        let port: Arc<dyn FileSystem> = Arc::new(Files(Arc::clone(&process.files)));
        let no_process = ProcessId { pid: u32::MAX, started_ms: 0 };
        let held = acquire_leader_lock(port, Path::new(WORKSPACE), &no_process, "brigade-cost")?;
        let line = LedgerRecord::new(self.host.now(), LedgerEntry::Reset { team: TEAM.to_owned() });
        let reset = process.stores.ledger.append(vec![line]).await;
        drop(held);
        process.files.kill();
        reset
    }
}

/// A second process that works on tasks.
impl World {
    async fn worker_claims(&self, rng: &mut Rng) -> StoreResult<()> {
        let worker = self.worker()?;
        let claimant = Claimant {
            name: "eve".to_owned(),
            capabilities: vec!["coder".to_owned()],
            worker: worker.stores.workers.worker_id().to_owned(),
            lease: None,
            scope: TaskScope::All,
        };
        let board = &worker.stores.board;
        let task = if rng.bool() {
            board.claim_next(&claimant).await?
        } else {
            Some(board.claim(self.some_task(rng), &claimant).await?)
        };
        lock(&self.claims).extend(task.map(|task| (task.id, task.attempt)));
        Ok(())
    }

    async fn worker_finishes(&self, rng: &mut Rng) -> StoreResult<()> {
        let worker = self.worker()?;
        let Some((id, attempt)) = lock(&self.claims).pop() else { return Ok(()) };
        let change = match rng.u8(..3) {
            0 => Change::Release { reason: String::new(), is_failure: false },
            _ => Change::Complete(TaskResult::default()),
        };
        worker.stores.board.change(id, change, &Actor::holder("eve", attempt)).await.map(drop)
    }
}

/// Other programs, which take no locks and sync nothing.
impl World {
    fn foreign_files(&self) -> Files {
        let files = ProcessFiles::new("foreign".to_owned(), &self.host);
        self.host.add_process(&files);
        Files(files)
    }

    /// Writes the desired state into the state file, in place or by a rename.
    pub fn click(&self, mode: Mode, in_place: bool) {
        let path = PathBuf::from(WORKSPACE).join("agent_state.json");
        let (files, Ok(bytes)) = (self.foreign_files(), self.host.read(&path)) else { return };
        let Ok(mut document) = Document::parse(&bytes) else { return };
        let number = self.clicks.fetch_add(1, Ordering::Relaxed) + 1;
        document.put("desired_state", &mode);
        document.put("setBy", &HUMAN);
        document.put("note", &"clicked");
        document.put("timestamp", &self.host.now().to_iso());
        document.put("click", &number);
        let text = document.to_pretty();
        let written = if in_place {
            files.write(&path, text.as_bytes())
        } else {
            let temporary = path.with_extension("theirs");
            files.write(&temporary, text.as_bytes()).and_then(|()| files.rename(&temporary, &path))
        };
        // A failed write leaves no desired state, or an invalid file.
        lock(&self.host.invariants).clicked(written.is_ok().then_some((number, mode)));
    }

    fn foreign_mail(&self, rng: &mut Rng) {
        let to = MEMBERS[rng.usize(..self.models.members.len())];
        let mut message = Message::new(MessageType::Message, "ford", "from elsewhere", self.host.now());
        let id = format!("f-{:016x}", rng.u64(..));
        message.id = Some(id.clone());
        let path = Path::new(WORKSPACE).join(".team/inbox").join(format!("{to}.jsonl"));
        let files = self.foreign_files();
        for _ in 0..rng.usize(1..=2) {
            // A torn line of another writer is ended first.
            if files.append(&path, format!("\n{}\n", message.to_line()).as_bytes()).is_ok() {
                lock(&self.host.invariants).sent(to, "ford", &id, true);
            }
        }
    }

    /// Writes a task's file in place, unchanged and slowly.
    async fn rewrite_task_slowly(&self, rng: &mut Rng) {
        let id = self.some_task(rng);
        let path = Path::new(WORKSPACE).join(".tasks").join(id.file_name());
        let (files, Ok(bytes)) = (self.foreign_files(), self.host.read(&path)) else { return };
        lock(&self.host.invariants).written_in_place(id.0);
        if files.write(&path, &bytes[..bytes.len() / 2]).is_err() {
            return lock(&self.host.invariants).left_invalid(id.0);
        }
        let is_whole = async {
            tokio::time::sleep(TORN_TIME).await;
            files.write(&path, &bytes).is_ok()
        };
        let torn_file = TornFileRecord { world: self, id };
        if is_whole.await {
            std::mem::forget(torn_file);
        }
    }
}

/// Records that a file was left half written, for any reason.
struct TornFileRecord<'a> {
    world: &'a World,
    id: TaskId,
}

impl Drop for TornFileRecord<'_> {
    fn drop(&mut self) {
        lock(&self.world.host.invariants).left_invalid(self.id.0);
    }
}
