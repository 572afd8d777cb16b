//! Stores that pass each call to an interceptor, which may delay, refuse, repeat or observe it.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;

use super::{
    Board, BoardView, Claimant, Delivery, Ledger, Mailbox, QuarantinedTranscript, ReclaimRequest, Reclaimed, Requests,
    Roster, StateStore, StoreError, StoreResult, Stores, Transcripts, WorkerSurvey, Workers,
};
use crate::domain::approval::{ApprovalAnswer, Approvals, Request, RequestKind, ReviewSubject};
use crate::domain::budget::{LedgerRecord, LedgerTotals};
use crate::domain::message::Message;
use crate::domain::name::Name;
use crate::domain::records::{RosterMember, WorkerTeammate};
use crate::domain::state::{SharedState, StateUpdate};
use crate::domain::task::{NewTask, Task, TaskId};
use crate::domain::time::UnixMs;
use crate::domain::transcript::Record;
use crate::domain::transition::{Actor, Change};

/// A call of a store, as an [`Interceptor`] sees it. Calls that no interceptor distinguishes share a variant.
#[derive(Debug, Clone, Copy)]
pub enum Call<'a> {
    /// A call that changes nothing and has no variant of its own.
    Read,
    /// [`Board::create`].
    CreateTasks,
    /// [`Board::view`].
    ViewBoard,
    /// [`Board::claim_next`].
    ClaimNext(&'a Claimant),
    /// [`Board::claim`].
    Claim(&'a Claimant),
    /// [`Board::change`].
    ChangeTask(TaskId, &'a Change, &'a Actor),
    /// [`Board::delete`].
    DeleteTask(TaskId),
    /// [`Board::reclaim`].
    Reclaim,
    /// [`Mailbox::send`] to a recipient.
    SendMessage(&'a str, &'a Message),
    /// [`Mailbox::open_inboxes`] or [`Mailbox::add_inboxes`].
    OpenInboxes,
    /// [`Mailbox::take`] for a recipient.
    TakeMail(&'a str),
    /// [`Mailbox::settle`] of these keys.
    SettleMail(&'a HashSet<String>),
    /// [`Mailbox::peek`] for a recipient.
    PeekMail(&'a str),
    /// [`Transcripts::append`].
    AppendTranscript,
    /// [`Requests::answer`] of the request with this id.
    AnswerRequest(&'a str),
    /// Any other change of [`Requests`].
    ChangeRequest,
    /// [`Ledger::append`].
    AppendLedger,
    /// [`StateStore::update`].
    UpdateState,
    /// A change of [`Roster`].
    ReportRoster,
    /// A change of [`Workers`].
    ChangeWorkers,
}

impl Call<'_> {
    /// Returns true if the call changes nothing.
    #[must_use]
    pub fn is_read(self) -> bool {
        matches!(self, Self::Read | Self::ViewBoard | Self::PeekMail(_))
    }
}

/// Code around each call of a store.
pub trait Interceptor: Send + Sync + 'static {
    /// Performs `call`: runs `perform`, usually once. Every run of `perform` is one call of the inner store.
    fn intercept<T, F>(
        &self,
        call: Call<'_>,
        perform: impl Fn() -> F + Send + Sync,
    ) -> impl Future<Output = StoreResult<T>> + Send
    where
        T: Any + Send + Sync,
        F: Future<Output = StoreResult<T>> + Send;

    /// Returns the reason why nothing may be claimed now. Then [`Board::claim_next`] finds nothing, and [`Board::claim`] is
    /// refused.
    fn claim_refusal(&self) -> Option<String> {
        None
    }
}

impl Stores {
    /// Returns the same stores with `interceptor` around each call of board, mailbox, transcripts, requests, state, roster, ledger
    /// and workers.
    #[must_use]
    pub fn with_interceptor(&self, interceptor: &Arc<impl Interceptor>) -> Self {
        Self {
            board: Intercepted::new(&self.board, interceptor),
            mailbox: Intercepted::new(&self.mailbox, interceptor),
            transcripts: Intercepted::new(&self.transcripts, interceptor),
            requests: Intercepted::new(&self.requests, interceptor),
            state: Intercepted::new(&self.state, interceptor),
            roster: Intercepted::new(&self.roster, interceptor),
            ledger: Intercepted::new(&self.ledger, interceptor),
            workers: Intercepted::new(&self.workers, interceptor),
            ..self.clone()
        }
    }
}

/// A store with an interceptor.
struct Intercepted<S: ?Sized, I> {
    inner: Arc<S>,
    interceptor: Arc<I>,
}

impl<S: ?Sized, I> Intercepted<S, I> {
    fn new(inner: &Arc<S>, interceptor: &Arc<I>) -> Arc<Self> {
        Arc::new(Self { inner: Arc::clone(inner), interceptor: Arc::clone(interceptor) })
    }
}

#[async_trait]
impl<I: Interceptor> Board for Intercepted<dyn Board, I> {
    async fn create(&self, by: &Actor, tasks: Vec<NewTask>, skip_known_sources: bool) -> StoreResult<Vec<Task>> {
        let create = || self.inner.create(by, tasks.clone(), skip_known_sources);
        self.interceptor.intercept(Call::CreateTasks, create).await
    }
    async fn view(&self) -> StoreResult<Arc<BoardView>> {
        self.interceptor.intercept(Call::ViewBoard, || self.inner.view()).await
    }
    async fn get(&self, id: TaskId) -> StoreResult<Task> {
        self.interceptor.intercept(Call::Read, || self.inner.get(id)).await
    }
    async fn claim_next(&self, claimant: &Claimant) -> StoreResult<Option<Task>> {
        if self.interceptor.claim_refusal().is_some() {
            return Ok(None);
        }
        self.interceptor.intercept(Call::ClaimNext(claimant), || self.inner.claim_next(claimant)).await
    }
    async fn claim(&self, id: TaskId, claimant: &Claimant) -> StoreResult<Task> {
        if let Some(reason) = self.interceptor.claim_refusal() {
            return Err(StoreError::Invalid(reason));
        }
        self.interceptor.intercept(Call::Claim(claimant), || self.inner.claim(id, claimant)).await
    }
    async fn change(&self, id: TaskId, change: Change, by: &Actor) -> StoreResult<Task> {
        let call = Call::ChangeTask(id, &change, by);
        self.interceptor.intercept(call, || self.inner.change(id, change.clone(), by)).await
    }
    async fn delete(&self, id: TaskId, by: &Actor) -> StoreResult<Task> {
        self.interceptor.intercept(Call::DeleteTask(id), || self.inner.delete(id, by)).await
    }
    async fn deleted(&self, ids: &[TaskId]) -> StoreResult<BTreeSet<TaskId>> {
        self.interceptor.intercept(Call::Read, || self.inner.deleted(ids)).await
    }
    async fn set_aside(&self) -> StoreResult<BTreeMap<TaskId, String>> {
        self.interceptor.intercept(Call::Read, || self.inner.set_aside()).await
    }
    async fn reclaim(&self, request: &ReclaimRequest) -> StoreResult<Vec<Reclaimed>> {
        self.interceptor.intercept(Call::Reclaim, || self.inner.reclaim(request)).await
    }
}

#[async_trait]
impl<I: Interceptor> Mailbox for Intercepted<dyn Mailbox, I> {
    async fn send(&self, to: &str, message: Message) -> StoreResult<String> {
        let call = Call::SendMessage(to, &message);
        self.interceptor.intercept(call, || self.inner.send(to, message.clone())).await
    }
    async fn open_inboxes(&self, names: &[Name]) -> StoreResult<()> {
        self.interceptor.intercept(Call::OpenInboxes, || self.inner.open_inboxes(names)).await
    }
    async fn add_inboxes(&self, names: &[Name]) -> StoreResult<()> {
        self.interceptor.intercept(Call::OpenInboxes, || self.inner.add_inboxes(names)).await
    }
    async fn take(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<Vec<Delivery>> {
        self.interceptor.intercept(Call::TakeMail(name), || self.inner.take(name, delivered)).await
    }
    async fn settle(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<()> {
        self.interceptor.intercept(Call::SettleMail(delivered), || self.inner.settle(name, delivered)).await
    }
    async fn peek(&self, name: &str) -> StoreResult<Vec<Delivery>> {
        self.interceptor.intercept(Call::PeekMail(name), || self.inner.peek(name)).await
    }
    async fn recipients_with_mail(&self) -> StoreResult<Vec<String>> {
        self.interceptor.intercept(Call::Read, || self.inner.recipients_with_mail()).await
    }
}

#[async_trait]
impl<I: Interceptor> Transcripts for Intercepted<dyn Transcripts, I> {
    async fn load(&self, name: &str) -> StoreResult<Vec<Record>> {
        self.interceptor.intercept(Call::Read, || self.inner.load(name)).await
    }
    async fn append(&self, name: &str, records: &[Record], sync: bool) -> StoreResult<()> {
        self.interceptor.intercept(Call::AppendTranscript, || self.inner.append(name, records, sync)).await
    }
    fn take_quarantined(&self) -> Vec<QuarantinedTranscript> {
        self.inner.take_quarantined()
    }
}

#[async_trait]
impl<I: Interceptor> Requests for Intercepted<dyn Requests, I> {
    async fn record(&self, request: Request) -> StoreResult<()> {
        self.interceptor.intercept(Call::ChangeRequest, || self.inner.record(request.clone())).await
    }
    async fn reserve(&self, id: &str, kind: RequestKind, by: &str, process: &str, now: UnixMs) -> StoreResult<Request> {
        self.interceptor.intercept(Call::ChangeRequest, || self.inner.reserve(id, kind, by, process, now)).await
    }
    async fn answer(&self, id: &str, kind: RequestKind, answer: ApprovalAnswer) -> StoreResult<Request> {
        self.interceptor.intercept(Call::AnswerRequest(id), || self.inner.answer(id, kind, answer.clone())).await
    }
    async fn reassign(&self, id: &str, kind: RequestKind, to: &str) -> StoreResult<Option<Request>> {
        self.interceptor.intercept(Call::ChangeRequest, || self.inner.reassign(id, kind, to)).await
    }
    async fn rebind_review(&self, id: &str, from: &str, work: &ReviewSubject, at: UnixMs) -> StoreResult<()> {
        self.interceptor.intercept(Call::ChangeRequest, || self.inner.rebind_review(id, from, work, at)).await
    }
    async fn withdraw(&self, id: &str, kind: RequestKind, reason: &str, at: UnixMs) -> StoreResult<()> {
        self.interceptor.intercept(Call::ChangeRequest, || self.inner.withdraw(id, kind, reason, at)).await
    }
    async fn all(&self) -> StoreResult<Approvals> {
        self.interceptor.intercept(Call::Read, || self.inner.all()).await
    }
}

#[async_trait]
impl<I: Interceptor> Ledger for Intercepted<dyn Ledger, I> {
    async fn read(&self) -> StoreResult<LedgerTotals> {
        self.interceptor.intercept(Call::Read, || self.inner.read()).await
    }
    async fn append(&self, lines: Vec<LedgerRecord>) -> StoreResult<()> {
        self.interceptor.intercept(Call::AppendLedger, || self.inner.append(lines.clone())).await
    }
}

#[async_trait]
impl<I: Interceptor> StateStore for Intercepted<dyn StateStore, I> {
    async fn read(&self) -> StoreResult<Option<SharedState>> {
        self.interceptor.intercept(Call::Read, || self.inner.read()).await
    }
    async fn update(&self, update: StateUpdate) -> StoreResult<SharedState> {
        self.interceptor.intercept(Call::UpdateState, || self.inner.update(update.clone())).await
    }
}

#[async_trait]
impl<I: Interceptor> Roster for Intercepted<dyn Roster, I> {
    async fn report(&self, team: &str, members: &[RosterMember]) -> StoreResult<()> {
        self.interceptor.intercept(Call::ReportRoster, || self.inner.report(team, members)).await
    }
    async fn remove(&self, team: &str, names: &[String]) -> StoreResult<()> {
        self.interceptor.intercept(Call::ReportRoster, || self.inner.remove(team, names)).await
    }
    async fn read(&self) -> StoreResult<Vec<RosterMember>> {
        self.interceptor.intercept(Call::Read, || self.inner.read()).await
    }
}

#[async_trait]
impl<I: Interceptor> Workers for Intercepted<dyn Workers, I> {
    fn worker_id(&self) -> &str {
        self.inner.worker_id()
    }
    async fn renew(&self, teammates: BTreeMap<String, WorkerTeammate>) -> StoreResult<()> {
        self.interceptor.intercept(Call::ChangeWorkers, || self.inner.renew(teammates.clone())).await
    }
    async fn survey(&self, claimants: &BTreeSet<String>) -> StoreResult<WorkerSurvey> {
        self.interceptor.intercept(Call::Read, || self.inner.survey(claimants)).await
    }
    async fn remove(&self, worker: &str) -> StoreResult<()> {
        self.interceptor.intercept(Call::ChangeWorkers, || self.inner.remove(worker)).await
    }
}
