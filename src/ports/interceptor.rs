//! Stores that pass each call to an interceptor, which may delay, refuse, repeat or observe it.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;

use super::{
    Board, BoardView, Claimant, Delivery, Ledger, Mailbox, QuarantinedTask, ReclaimRequest, Reclaimed, Requests,
    Roster, StateStore, StoreResult, Stores, Transcripts, WorkerSurvey, Workers,
};
use crate::domain::agent::transcript::Record;
use crate::domain::task::transition::{Actor, Change};
use crate::domain::task::{NewTask, Task, TaskId};
use crate::domain::team::approval::{ApprovalAnswer, Approvals, Request, RequestKind, ReviewSubject};
use crate::domain::team::budget::{LedgerRecord, LedgerTotals};
use crate::domain::team::message::Message;
use crate::domain::team::name::Name;
use crate::domain::team::records::{RosterMember, WorkerTeammate};
use crate::domain::team::state::{SharedState, StateUpdate};
use crate::domain::time::UnixMs;

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
    /// [`Transcripts::append`] for a member.
    AppendTranscript(&'a str),
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

/// Implements ports for [`Intercepted`], one line for each method: its call, as the interceptor sees it. Methods in braces are
/// passed through.
macro_rules! intercept {
    ($($port:ident {
        $($method:ident($($argument:ident: $type:ty),*) -> $result:ty => $call:expr;)*
        { $($uncalled:tt)* }
    })*) => {$(
        #[async_trait]
        impl<I: Interceptor> $port for Intercepted<dyn $port, I> {
            $(async fn $method(&self, $($argument: $type),*) -> StoreResult<$result> {
                let perform = || self.inner.$method($(Clone::clone(&$argument)),*);
                self.interceptor.intercept($call, perform).await
            })*
            $($uncalled)*
        }
    )*};
}

intercept! {
    Board {
        create(by: &Actor, tasks: Vec<NewTask>, skip_known_sources: bool) -> Vec<Task> => Call::CreateTasks;
        view() -> Arc<BoardView> => Call::ViewBoard;
        get(id: TaskId) -> Task => Call::Read;
        claim_next(claimant: &Claimant) -> Option<Task> => Call::ClaimNext(claimant);
        claim(id: TaskId, claimant: &Claimant) -> Task => Call::Claim(claimant);
        change(id: TaskId, change: Change, by: &Actor) -> Task => Call::ChangeTask(id, &change, by);
        delete(id: TaskId, by: &Actor) -> Task => Call::DeleteTask(id);
        deleted(ids: &[TaskId]) -> BTreeSet<TaskId> => Call::Read;
        quarantined_tasks() -> BTreeMap<TaskId, QuarantinedTask> => Call::Read;
        reclaim(request: &ReclaimRequest) -> Vec<Reclaimed> => Call::Reclaim;
        {}
    }
    Mailbox {
        send(to: &str, message: Message) -> String => Call::SendMessage(to, &message);
        open_inboxes(names: &[Name]) -> () => Call::OpenInboxes;
        add_inboxes(names: &[Name]) -> () => Call::OpenInboxes;
        take(name: &str, delivered: &HashSet<String>) -> Vec<Delivery> => Call::TakeMail(name);
        settle(name: &str, delivered: &HashSet<String>) -> () => Call::SettleMail(delivered);
        peek(name: &str) -> Vec<Delivery> => Call::PeekMail(name);
        recipients_with_mail() -> Vec<String> => Call::Read;
        {}
    }
    Transcripts {
        load(name: &str) -> Vec<Record> => Call::Read;
        append(name: &str, records: &[Record], sync: bool) -> () => Call::AppendTranscript(name);
        {}
    }
    Requests {
        record(request: Request) -> () => Call::ChangeRequest;
        reserve(id: &str, kind: RequestKind, by: &str, process: &str, now: UnixMs) -> Request => Call::ChangeRequest;
        answer(id: &str, kind: RequestKind, answer: ApprovalAnswer) -> Request => Call::AnswerRequest(id);
        reassign(id: &str, kind: RequestKind, to: &str) -> Option<Request> => Call::ChangeRequest;
        rebind_review(id: &str, from: &str, work: &ReviewSubject, at: UnixMs) -> () => Call::ChangeRequest;
        withdraw(id: &str, kind: RequestKind, reason: &str, at: UnixMs) -> () => Call::ChangeRequest;
        all() -> Approvals => Call::Read;
        {}
    }
    Ledger {
        read() -> LedgerTotals => Call::Read;
        append(lines: Vec<LedgerRecord>) -> () => Call::AppendLedger;
        {}
    }
    StateStore {
        read() -> Option<SharedState> => Call::Read;
        update(update: StateUpdate) -> SharedState => Call::UpdateState;
        {}
    }
    Roster {
        report(team: &str, members: &[RosterMember]) -> () => Call::ReportRoster;
        remove(team: &str, names: &[String]) -> () => Call::ReportRoster;
        read() -> Vec<RosterMember> => Call::Read;
        {}
    }
    Workers {
        renew(teammates: BTreeMap<String, WorkerTeammate>) -> () => Call::ChangeWorkers;
        survey(claimants: &BTreeSet<String>) -> WorkerSurvey => Call::Read;
        remove(worker: &str) -> () => Call::ChangeWorkers;
        {
            fn worker_id(&self) -> &str {
                self.inner.worker_id()
            }
        }
    }
}
