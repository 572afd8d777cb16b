//! What the person, a second worker and other programs do, and what befalls everybody.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use brigade::domain::change::{Actor, ActorKind, Change, TaskEdit};
use brigade::domain::document::Document;
use brigade::domain::message::{Message, MessageType};
use brigade::domain::name::{HUMAN, LEAD};
use brigade::domain::request::Request;
use brigade::domain::spend::{LedgerEntry, LedgerLine};
use brigade::domain::state::Mode;
use brigade::domain::task::{NewTask, TaskId, TaskResult};
use brigade::ports::{Claimant, Clock, StoreResult};
use brigade::stores::file::workers::Incarnation;
use brigade::stores::file::workers::lead::occupy;
use brigade::stores::fs::FileSystem;
use brigade::stores::open::Purpose;
use brigade::team::handle::Command;
use brigade::tools::answers::{self, Answerer, Asked};
use fastrand::Rng;

use super::files::{Files, ProcessFiles};
use super::nature::{WORKSPACE, lock};
use super::plan::{Deed, Fate, Who};
use super::world::{MEMBERS, TEAM, World};

/// The longest a person's claim lives.
const LEASE: Duration = Duration::from_secs(60);
/// How long a program takes to write a file in place.
const TORN_TIME: Duration = Duration::from_millis(300);

impl World {
    /// Does it. What fails or is refused is as good as not asked for.
    pub async fn perform(&self, deed: &Deed) {
        let outcome = match deed {
            Deed::AddTasks { dice } => self.add_tasks(&mut Rng::with_seed(*dice)).await,
            Deed::ChangeTask { dice } => self.change_task(&mut Rng::with_seed(*dice)).await,
            Deed::ClaimTask { dice } => self.claim_task(&mut Rng::with_seed(*dice)).await,
            Deed::SendMail { dice } => self.send_mail(&mut Rng::with_seed(*dice)).await,
            Deed::AnswerRequests { dice } => self.answer_requests(&mut Rng::with_seed(*dice)).await,
            Deed::RaiseBudget { stops } => self.raise_budget(*stops).await,
            Deed::ResetLedger { stops } => self.reset_ledger(*stops).await,
            Deed::WorkerClaims { dice } => self.worker_claims(&mut Rng::with_seed(*dice)).await,
            Deed::WorkerFinishes { dice } => self.worker_finishes(&mut Rng::with_seed(*dice)).await,
            other => {
                self.happen(other).await;
                Ok(())
            }
        };
        if let Err(error) = outcome {
            self.nature.note(|| format!("{deed:?} fails: {error}"));
        }
    }

    async fn happen(&self, deed: &Deed) {
        match deed {
            Deed::Click { dice } => {
                let modes = [Mode::Continuous, Mode::Continuous, Mode::Pause, Mode::RunOnce, Mode::RunCleanup];
                let mut rng = Rng::with_seed(*dice);
                self.click(modes[rng.usize(..modes.len())], rng.bool());
            }
            Deed::ForeignMail { dice } => self.foreign_mail(&mut Rng::with_seed(*dice)),
            Deed::TornTask { dice } => self.tear_task(&mut Rng::with_seed(*dice)).await,
            Deed::Kill { who } => self.files_of(*who).into_iter().for_each(|files| files.kill()),
            Deed::StopLead { now } => {
                self.stop_lead(if *now { Command::StopNow } else { Command::Stop }).await;
            }
            Deed::SecondLead => self.second_lead(),
            Deed::PowerCut { dice } => self.nature.cut_power(*dice),
            Deed::JumpClock { ms } => self.nature.jump_clock(*ms),
            Deed::LoseHints { ms } => {
                self.nature.trouble();
                self.nature.lose_hints(Duration::from_millis(*ms));
            }
            Deed::LoseWatches => self.files_of(Who::Lead).into_iter().for_each(|files| files.lose_watches()),
            Deed::Dawdle { ms } => self.nature.dawdle(*ms, Duration::from_secs(20)),
            Deed::Befall { who, after, fate } => self.befall(*who, *after, fate),
            _ => {}
        }
    }

    fn befall(&self, who: Who, after: u32, fate: &Fate) {
        let files = match who {
            Who::Lead => self.files_of(Who::Lead),
            Who::Worker => self.worker().ok().map(|process| Arc::clone(&process.files)),
            Who::Person => self.person().ok().map(|process| Arc::clone(&process.files)),
        };
        if let Some(files) = files {
            files.befall(after, fate.clone());
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
            0..=1 => Change::Release { reason, counts: rng.bool() },
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
        // Now and then a command is given twice.
        if rng.u8(..4) == 0 {
            let _ = person.stores.board.change(id, change.clone(), &by).await;
        }
        person.stores.board.change(id, change, &by).await.map(drop)
    }

    /// A person claims, and perhaps completes, or forgets it.
    async fn claim_task(&self, rng: &mut Rng) -> StoreResult<()> {
        let (name, worker) = ("ann".to_owned(), "lease:ann".to_owned());
        let claimant = Claimant { name, capabilities: Vec::new(), worker, lease: Some(LEASE) };
        let person = self.person()?;
        let task = person.stores.board.claim(self.some_task(rng), &claimant).await?;
        if rng.bool() {
            let by = Actor::holder("ann", task.attempt);
            person.stores.board.change(task.id, Change::Complete(TaskResult::default()), &by).await?;
        }
        Ok(())
    }

    async fn send_mail(&self, rng: &mut Rng) -> StoreResult<()> {
        let to = if rng.u8(..4) == 0 { LEAD } else { MEMBERS[rng.usize(..self.minds.members.len())] };
        let kind = if rng.u8(..10) == 0 { MessageType::ShutdownRequest } else { MessageType::Message };
        for number in 0..rng.usize(1..4) {
            let message = Message::new(kind, HUMAN, format!("{number} of them"), self.nature.now());
            self.person()?.stores.mailbox.send(to, message).await?;
        }
        Ok(())
    }

    /// Says yes or no, as the dice say, to every plan and review that waits, whoever was asked.
    async fn answer_requests(&self, rng: &mut Rng) -> StoreResult<()> {
        self.decide(|| rng.u8(..4) > 0).await
    }

    /// Says yes to all.
    pub async fn approve_all(&self) {
        if let Err(error) = self.decide(|| true).await {
            self.nature.note(|| format!("nothing is approved: {error}"));
        }
    }

    async fn decide(&self, mut decides: impl FnMut() -> bool) -> StoreResult<()> {
        let person = self.person()?;
        for request in person.stores.requests.all().await?.open_approvals() {
            let process = self.next_process();
            let (by, now, approve) = (Answerer { name: HUMAN, process: &process }, self.nature.now(), decides());
            let compose = |request: &Request| answers::reply(request, HUMAN, approve, Some("go on"), now);
            let asked = Asked { id: &request.id, kind: request.kind };
            // Somebody may have answered it just now.
            let _ = answers::answer(&person.stores, by, now, asked, approve, compose).await;
        }
        Ok(())
    }

    async fn stop_for_money(&self, stops: bool) {
        if stops {
            self.stop_lead(Command::Stop).await;
            self.click(Mode::Continuous, false);
        }
    }

    async fn raise_budget(&self, stops: bool) -> StoreResult<()> {
        lock(&self.nature.laws).spending.raise();
        self.stop_for_money(stops).await;
        Ok(())
    }

    /// As the command does: while nobody leads, by a process of its own.
    async fn reset_ledger(&self, stops: bool) -> StoreResult<()> {
        self.stop_for_money(stops).await;
        let process = self.open("person", Purpose::Act)?;
        let port: Arc<dyn FileSystem> = Arc::new(Files(Arc::clone(&process.files)));
        let nobody = Incarnation { pid: u32::MAX, started_ms: 0 };
        let held = occupy(port, Path::new(WORKSPACE), &nobody, "brigade-cost")?;
        let line = LedgerLine::new(self.nature.now(), LedgerEntry::Reset { team: TEAM.to_owned() });
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
            worker: worker.stores.workers.me().to_owned(),
            lease: None,
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
            0 => Change::Release { reason: String::new(), counts: false },
            _ => Change::Complete(TaskResult::default()),
        };
        worker.stores.board.change(id, change, &Actor::holder("eve", attempt)).await.map(drop)
    }
}

/// Other programs, which take no locks and sync nothing.
impl World {
    fn foreign_files(&self) -> Files {
        let files = ProcessFiles::new("foreign".to_owned(), &self.nature);
        self.nature.enlist(&files);
        Files(files)
    }

    /// Writes what is wanted into the state file, in place or by a rename.
    pub fn click(&self, mode: Mode, in_place: bool) {
        let path = PathBuf::from(WORKSPACE).join("agent_state.json");
        let (files, Ok(bytes)) = (self.foreign_files(), self.nature.read(&path)) else { return };
        let Ok(mut document) = Document::parse(&bytes) else { return };
        let number = self.clicks.fetch_add(1, Ordering::Relaxed) + 1;
        document.put("desired_state", &mode);
        document.put("setBy", &HUMAN);
        document.put("note", &"clicked");
        document.put("timestamp", &self.nature.now().to_iso());
        document.put("click", &number);
        let text = document.to_pretty();
        let written = if in_place {
            files.write(&path, text.as_bytes())
        } else {
            let temporary = path.with_extension("theirs");
            files.write(&temporary, text.as_bytes()).and_then(|()| files.rename(&temporary, &path))
        };
        // One that failed halfway says nothing, or garbage.
        lock(&self.nature.laws).clicked(written.is_ok().then_some((number, mode)));
    }

    fn foreign_mail(&self, rng: &mut Rng) {
        let to = MEMBERS[rng.usize(..self.minds.members.len())];
        let mut message = Message::new(MessageType::Message, "ford", "from elsewhere", self.nature.now());
        let id = format!("f-{:016x}", rng.u64(..));
        message.id = Some(id.clone());
        let path = Path::new(WORKSPACE).join(".team/inbox").join(format!("{to}.jsonl"));
        let files = self.foreign_files();
        for _ in 0..rng.usize(1..=2) {
            // A torn line of somebody else's is closed first.
            if files.append(&path, format!("\n{}\n", message.to_line()).as_bytes()).is_ok() {
                lock(&self.nature.laws).sent(to, "ford", &id, true);
            }
        }
    }

    /// Writes a task's file in place, as it is, slowly.
    async fn tear_task(&self, rng: &mut Rng) {
        let id = self.some_task(rng);
        let path = Path::new(WORKSPACE).join(".tasks").join(id.file_name());
        let (files, Ok(bytes)) = (self.foreign_files(), self.nature.read(&path)) else { return };
        lock(&self.nature.laws).touched(id.0);
        if files.write(&path, &bytes[..bytes.len() / 2]).is_err() {
            return lock(&self.nature.laws).spoiled(id.0);
        }
        let is_whole = async {
            tokio::time::sleep(TORN_TIME).await;
            files.write(&path, &bytes).is_ok()
        };
        let spoils = Spoils { world: self, id };
        if is_whole.await {
            std::mem::forget(spoils);
        }
    }
}

/// Notes that a file was left half written, however that came.
struct Spoils<'a> {
    world: &'a World,
    id: TaskId,
}

impl Drop for Spoils<'_> {
    fn drop(&mut self) {
        lock(&self.world.nature.laws).spoiled(self.id.0);
    }
}
