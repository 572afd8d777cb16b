//! Stores that tell the laws what they are asked for and what they accepted, and that dawdle now and then.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use brigade::domain::change::{Actor, ActorKind, Change};
use brigade::domain::message::{Message, MessageType};
use brigade::domain::name::Name;
use brigade::domain::request::{Answer, Request, RequestBook, RequestKind};
use brigade::domain::task::{NewTask, Task, TaskId};
use brigade::domain::time::UnixMs;
use brigade::ports::{
    Board, BoardView, Claimant, Delivery, LostClaims, Mailbox, Reclaimed, Requests, StoreError, StoreResult, Stores,
};

use super::files::ProcessFiles;
use super::nature::lock;

/// The stores of this process, accounted for.
pub fn over(files: &Arc<ProcessFiles>, stores: &Stores) -> Stores {
    let board = Accounted { files: Arc::clone(files), inner: Arc::clone(&stores.board) };
    let mailbox = Accounted { files: Arc::clone(files), inner: Arc::clone(&stores.mailbox) };
    let requests = Accounted { files: Arc::clone(files), inner: Arc::clone(&stores.requests) };
    let (board, mailbox, requests) = (Arc::new(board), Arc::new(mailbox), Arc::new(requests));
    Stores { board, mailbox, requests, ..stores.clone() }
}

struct Accounted<T: ?Sized> {
    files: Arc<ProcessFiles>,
    inner: Arc<T>,
}

impl<T: ?Sized> Accounted<T> {
    async fn dawdle(&self) {
        if let Some(delay) = self.files.nature.delay() {
            tokio::time::sleep(delay).await;
        }
    }

    /// What was accepted by a process that lives counts.
    fn account<R>(&self, outcome: &StoreResult<R>, note: impl FnOnce(&mut super::laws::Laws, &R)) {
        match outcome {
            Ok(result) if !self.files.is_dead() => note(&mut lock(&self.files.nature.laws), result),
            Err(StoreError::Io { .. }) => self.files.nature.trouble(),
            _ => {}
        }
    }
}

#[async_trait]
impl Board for Accounted<dyn Board> {
    async fn create(&self, by: &Actor, tasks: Vec<NewTask>, skip: bool) -> StoreResult<Vec<Task>> {
        self.dawdle().await;
        let created = self.inner.create(by, tasks, skip).await;
        self.account(&created, |laws, tasks| laws.created(tasks));
        created
    }
    async fn view(&self) -> StoreResult<Arc<BoardView>> {
        let view = self.inner.view().await;
        self.account(&view, |_, _| ());
        view
    }
    async fn get(&self, id: TaskId) -> StoreResult<Task> {
        self.inner.get(id).await
    }
    async fn claim_next(&self, claimant: &Claimant) -> StoreResult<Option<Task>> {
        self.dawdle().await;
        let claimed = self.inner.claim_next(claimant).await;
        if matches!(claimed, Ok(Some(_))) {
            lock(&self.files.nature.laws).claims(&claimant.name);
        }
        claimed
    }
    async fn claim(&self, id: TaskId, claimant: &Claimant) -> StoreResult<Task> {
        self.dawdle().await;
        let claimed = self.inner.claim(id, claimant).await;
        if claimed.is_ok() {
            lock(&self.files.nature.laws).claims(&claimant.name);
        }
        claimed
    }
    async fn change(&self, id: TaskId, change: Change, by: &Actor) -> StoreResult<Task> {
        self.dawdle().await;
        lock(&self.files.nature.laws).asked(id, &change);
        let changed = self.inner.change(id, change.clone(), by).await;
        let attempt = by.attempt.filter(|_| by.kind == ActorKind::Teammate && !by.force);
        self.account(&changed, |laws, task| laws.changed(id, &change, attempt, task));
        self.account(&changed, |laws, task| match &change {
            Change::Release { counts: true, .. } if attempt.is_some() => laws.gave_up(id, &by.name),
            Change::Complete(_) if by.kind == ActorKind::Teammate => {
                let may = laws.approvals.may_write(&by.name, Some((id, task.attempt)));
                if !may {
                    laws.violate(format!("who plans first completes nothing before: {} completed {id}", by.name));
                }
            }
            _ => {}
        });
        self.files.nature.note(|| {
            let outcome = changed.as_ref().map_or_else(ToString::to_string, |task| task.status.to_string());
            format!("{}: {} asks for {change:?} of {id}: {outcome}", self.files.name, by.name)
        });
        changed
    }
    async fn delete(&self, id: TaskId, by: &Actor) -> StoreResult<Task> {
        lock(&self.files.nature.laws).asked_to_delete(id);
        self.inner.delete(id, by).await
    }
    async fn deleted(&self, ids: &[TaskId]) -> StoreResult<BTreeSet<TaskId>> {
        self.inner.deleted(ids).await
    }
    async fn reclaim(&self, lost: &LostClaims) -> StoreResult<Vec<Reclaimed>> {
        self.dawdle().await;
        self.inner.reclaim(lost).await
    }
}

#[async_trait]
impl Mailbox for Accounted<dyn Mailbox> {
    async fn send(&self, to: &str, message: Message) -> StoreResult<String> {
        self.dawdle().await;
        let Message { from, content, .. } = message.clone();
        let is_answer = message.approve.is_some() && message.kind != MessageType::ShutdownResponse;
        let answered = message.request_id.clone().filter(|_| is_answer);
        let sent = self.inner.send(to, message).await;
        self.account(&sent, |laws, id| {
            laws.sent(to, &from, id, false);
            let twice = laws.calls.sent(&content, to);
            let again = answered.and_then(|request| laws.approvals.answer_sent(&request, &self.files));
            twice.into_iter().chain(again).for_each(|wrong| laws.violate(wrong));
        });
        sent
    }
    async fn open_inboxes(&self, names: &[Name]) -> StoreResult<()> {
        self.inner.open_inboxes(names).await
    }
    async fn take(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<Vec<Delivery>> {
        let taken = self.inner.take(name, delivered).await;
        self.dawdle().await;
        taken
    }
    async fn settle(&self, name: &str, delivered: &HashSet<String>) -> StoreResult<()> {
        self.inner.settle(name, delivered).await
    }
    async fn peek(&self, name: &str) -> StoreResult<Vec<Delivery>> {
        self.inner.peek(name).await
    }
    async fn waiting(&self) -> StoreResult<Vec<String>> {
        self.inner.waiting().await
    }
}

#[async_trait]
impl Requests for Accounted<dyn Requests> {
    async fn open(&self, request: Request) -> StoreResult<()> {
        self.inner.open(request).await
    }
    async fn reserve(&self, id: &str, kind: RequestKind, by: &str, process: &str, now: UnixMs) -> StoreResult<Request> {
        self.inner.reserve(id, kind, by, process, now).await
    }
    async fn answer(&self, id: &str, kind: RequestKind, answer: Answer) -> StoreResult<Request> {
        let answered = self.inner.answer(id, kind, answer).await;
        if matches!(answered, Err(StoreError::Io { .. })) {
            lock(&self.files.nature.laws).approvals.answer_unrecorded(id);
        }
        answered
    }
    async fn hand_on(&self, id: &str, kind: RequestKind, to: &str) -> StoreResult<Option<Request>> {
        self.inner.hand_on(id, kind, to).await
    }
    async fn adopt(&self, id: &str, kind: RequestKind, from: &str, attempt: u32, at: UnixMs) -> StoreResult<()> {
        self.inner.adopt(id, kind, from, attempt, at).await
    }
    async fn withdraw(&self, id: &str, kind: RequestKind, reason: &str, at: UnixMs) -> StoreResult<()> {
        self.inner.withdraw(id, kind, reason, at).await
    }
    async fn all(&self) -> StoreResult<RequestBook> {
        self.inner.all().await
    }
}
