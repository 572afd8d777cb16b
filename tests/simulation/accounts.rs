//! Stores that tell the laws what they are asked for and what they accepted, and that dawdle now and then.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use brigade::domain::change::{Actor, ActorKind, Change};
use brigade::domain::message::Message;
use brigade::domain::name::Name;
use brigade::domain::task::{NewTask, Task, TaskId};
use brigade::ports::{
    Board, BoardView, Claimant, Delivery, LostClaims, Mailbox, Reclaimed, StoreError, StoreResult, Stores,
};

use super::files::ProcessFiles;
use super::nature::lock;

/// The stores of this process, accounted for.
pub fn over(files: &Arc<ProcessFiles>, stores: &Stores) -> Stores {
    let board = Accounted { files: Arc::clone(files), inner: Arc::clone(&stores.board) };
    let mailbox = Accounted { files: Arc::clone(files), inner: Arc::clone(&stores.mailbox) };
    Stores { board: Arc::new(board), mailbox: Arc::new(mailbox), ..stores.clone() }
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
        self.inner.claim_next(claimant).await
    }
    async fn claim(&self, id: TaskId, claimant: &Claimant) -> StoreResult<Task> {
        self.dawdle().await;
        self.inner.claim(id, claimant).await
    }
    async fn change(&self, id: TaskId, change: Change, by: &Actor) -> StoreResult<Task> {
        self.dawdle().await;
        lock(&self.files.nature.laws).asked(id, &change);
        let changed = self.inner.change(id, change.clone(), by).await;
        let attempt = by.attempt.filter(|_| by.kind == ActorKind::Teammate && !by.force);
        self.account(&changed, |laws, task| laws.changed(id, &change, attempt, task));
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
        let from = message.from.clone();
        let sent = self.inner.send(to, message).await;
        self.account(&sent, |laws, id| laws.sent(to, &from, id, false));
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
