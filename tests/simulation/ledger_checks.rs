//! Stores that report requested and accepted changes to the invariants, and that are slow at times.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use brigade::domain::approval::{ApprovalAnswer, Approvals, Request, RequestKind};
use brigade::domain::message::{Message, MessageType};
use brigade::domain::name::Name;
use brigade::domain::phase::ClaimRef;
use brigade::domain::task::{NewTask, Task, TaskId};
use brigade::domain::time::UnixMs;
use brigade::domain::transition::{Actor, ActorKind, Change};
use brigade::ports::{
    Board, BoardView, Claimant, Delivery, Mailbox, ReclaimRequest, Reclaimed, Requests, StoreError, StoreResult, Stores,
};

use super::files::ProcessFiles;
use super::host::lock;

/// The stores of this process with these reports.
pub fn wrap(files: &Arc<ProcessFiles>, stores: &Stores) -> Stores {
    let board = CheckedStore { files: Arc::clone(files), inner: Arc::clone(&stores.board) };
    let mailbox = CheckedStore { files: Arc::clone(files), inner: Arc::clone(&stores.mailbox) };
    let requests = CheckedStore { files: Arc::clone(files), inner: Arc::clone(&stores.requests) };
    let (board, mailbox, requests) = (Arc::new(board), Arc::new(mailbox), Arc::new(requests));
    Stores { board, mailbox, requests, ..stores.clone() }
}

struct CheckedStore<T: ?Sized> {
    files: Arc<ProcessFiles>,
    inner: Arc<T>,
}

impl<T: ?Sized> CheckedStore<T> {
    async fn delay_at_random(&self) {
        if let Some(delay) = self.files.host.delay() {
            tokio::time::sleep(delay).await;
        }
    }

    /// An accepted change counts if its process still runs.
    fn record_outcome<R>(&self, outcome: &StoreResult<R>, note: impl FnOnce(&mut super::invariants::Invariants, &R)) {
        match outcome {
            Ok(result) if !self.files.is_dead() => note(&mut lock(&self.files.host.invariants), result),
            Err(StoreError::Io { .. }) => self.files.host.note_fault(),
            _ => {}
        }
    }
}

#[async_trait]
impl Board for CheckedStore<dyn Board> {
    async fn create(&self, by: &Actor, tasks: Vec<NewTask>, skip: bool) -> StoreResult<Vec<Task>> {
        self.delay_at_random().await;
        let created = self.inner.create(by, tasks, skip).await;
        self.record_outcome(&created, |invariants, tasks| invariants.created(tasks));
        created
    }
    async fn view(&self) -> StoreResult<Arc<BoardView>> {
        let view = self.inner.view().await;
        self.record_outcome(&view, |_, _| ());
        view
    }
    async fn get(&self, id: TaskId) -> StoreResult<Task> {
        self.inner.get(id).await
    }
    async fn claim_next(&self, claimant: &Claimant) -> StoreResult<Option<Task>> {
        self.delay_at_random().await;
        let claimed = self.inner.claim_next(claimant).await;
        if matches!(claimed, Ok(Some(_))) {
            lock(&self.files.host.invariants).claims(&claimant.name);
        }
        claimed
    }
    async fn claim(&self, id: TaskId, claimant: &Claimant) -> StoreResult<Task> {
        self.delay_at_random().await;
        let claimed = self.inner.claim(id, claimant).await;
        if claimed.is_ok() {
            lock(&self.files.host.invariants).claims(&claimant.name);
        }
        claimed
    }
    async fn change(&self, id: TaskId, change: Change, by: &Actor) -> StoreResult<Task> {
        self.delay_at_random().await;
        lock(&self.files.host.invariants).change_requested(id, &change);
        let changed = self.inner.change(id, change.clone(), by).await;
        let attempt = by.attempt.filter(|_| by.kind == ActorKind::Teammate && !by.force);
        self.record_outcome(&changed, |invariants, task| invariants.changed(id, &change, attempt, task));
        self.record_outcome(&changed, |invariants, task| match &change {
            Change::Release { counts: true, .. } if attempt.is_some() => invariants.released_as_failure(id, &by.name),
            Change::Complete(_) if by.kind == ActorKind::Teammate => {
                let may = invariants.approvals.may_write(&by.name, Some(ClaimRef { task: id, attempt: task.attempt }));
                if !may {
                    invariants.violate(format!("plan before completing: {} completed {id}", by.name));
                }
            }
            _ => {}
        });
        self.files.host.note(|| {
            let outcome = changed.as_ref().map_or_else(ToString::to_string, |task| task.status.to_string());
            format!("{}: {} asks for {change:?} of {id}: {outcome}", self.files.name, by.name)
        });
        changed
    }
    async fn delete(&self, id: TaskId, by: &Actor) -> StoreResult<Task> {
        lock(&self.files.host.invariants).delete_requested(id);
        self.inner.delete(id, by).await
    }
    async fn deleted(&self, ids: &[TaskId]) -> StoreResult<BTreeSet<TaskId>> {
        self.inner.deleted(ids).await
    }
    async fn set_aside(&self) -> StoreResult<BTreeMap<TaskId, String>> {
        self.inner.set_aside().await
    }
    async fn reclaim(&self, lost: &ReclaimRequest) -> StoreResult<Vec<Reclaimed>> {
        self.delay_at_random().await;
        self.inner.reclaim(lost).await
    }
}

#[async_trait]
impl Mailbox for CheckedStore<dyn Mailbox> {
    async fn send(&self, to: &str, message: Message) -> StoreResult<String> {
        self.delay_at_random().await;
        let Message { from, content, .. } = message.clone();
        let is_answer = message.approve.is_some() && message.kind != MessageType::ShutdownResponse;
        let answered = message.request_id.clone().filter(|_| is_answer);
        let sent = self.inner.send(to, message).await;
        self.record_outcome(&sent, |invariants, id| {
            invariants.sent(to, &from, id, false);
            let twice = invariants.calls.record_message(&content, to);
            let again = answered.and_then(|request| invariants.approvals.answer_sent(&request, &self.files));
            twice.into_iter().chain(again).for_each(|wrong| invariants.violate(wrong));
        });
        sent
    }
    async fn open_inboxes(&self, names: &[Name]) -> StoreResult<()> {
        self.inner.open_inboxes(names).await
    }
    async fn take(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<Vec<Delivery>> {
        let taken = self.inner.take(name, delivered).await;
        self.delay_at_random().await;
        taken
    }
    async fn settle(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<()> {
        self.inner.settle(name, delivered).await
    }
    async fn peek(&self, name: &str) -> StoreResult<Vec<Delivery>> {
        self.inner.peek(name).await
    }
    async fn recipients_with_mail(&self) -> StoreResult<Vec<String>> {
        self.inner.recipients_with_mail().await
    }
}

#[async_trait]
impl Requests for CheckedStore<dyn Requests> {
    async fn record(&self, request: Request) -> StoreResult<()> {
        self.inner.record(request).await
    }
    async fn reserve(&self, id: &str, kind: RequestKind, by: &str, process: &str, now: UnixMs) -> StoreResult<Request> {
        self.inner.reserve(id, kind, by, process, now).await
    }
    async fn answer(&self, id: &str, kind: RequestKind, answer: ApprovalAnswer) -> StoreResult<Request> {
        let answered = self.inner.answer(id, kind, answer).await;
        if matches!(answered, Err(StoreError::Io { .. })) {
            lock(&self.files.host.invariants).approvals.answer_unrecorded(id);
        }
        answered
    }
    async fn reassign(&self, id: &str, kind: RequestKind, to: &str) -> StoreResult<Option<Request>> {
        self.inner.reassign(id, kind, to).await
    }
    async fn rebind_review(&self, id: &str, from: &str, attempt: u32, at: UnixMs) -> StoreResult<()> {
        self.inner.rebind_review(id, from, attempt, at).await
    }
    async fn withdraw(&self, id: &str, kind: RequestKind, reason: &str, at: UnixMs) -> StoreResult<()> {
        self.inner.withdraw(id, kind, reason, at).await
    }
    async fn all(&self) -> StoreResult<Approvals> {
        self.inner.all().await
    }
}
