//! Observes the stores of a process: reports requested and accepted changes to the invariants. Delays some calls.

use std::any::Any;
use std::future::Future;
use std::sync::Arc;

use brigade::domain::task::transition::{Actor, ActorKind, Change};
use brigade::domain::task::{Task, TaskId};
use brigade::domain::team::message::{Message, MessageType};
use brigade::domain::team::phase::ClaimRef;
use brigade::ports::{Call, Interceptor, StoreError, StoreResult, Stores};

use super::files::ProcessFiles;
use super::host::lock;
use super::invariants::Invariants;

/// The stores of this process, observed.
pub fn observed(files: &Arc<ProcessFiles>, stores: &Stores) -> Stores {
    stores.with_interceptor(&Arc::new(StoreObserver { files: Arc::clone(files) }))
}

struct StoreObserver {
    files: Arc<ProcessFiles>,
}

impl Interceptor for StoreObserver {
    async fn intercept<T, F>(&self, call: Call<'_>, perform: impl Fn() -> F + Send + Sync) -> StoreResult<T>
    where
        T: Any + Send + Sync,
        F: Future<Output = StoreResult<T>> + Send,
    {
        let (slow_before, slow_after) = match call {
            Call::CreateTasks | Call::ClaimNext(_) | Call::Claim(_) | Call::ChangeTask(..) | Call::Reclaim => {
                (true, false)
            }
            Call::SendMessage(..) => (true, false),
            Call::TakeMail(_) => (false, true),
            _ => (false, false),
        };
        self.delay_at_random(slow_before).await;
        match call {
            Call::ChangeTask(id, change, _) => self.invariants().change_requested(id, change),
            Call::DeleteTask(id) => self.invariants().delete_requested(id),
            _ => {}
        }
        let outcome = perform().await;
        match &outcome {
            Ok(reply) => self.accepted(call, reply),
            Err(error) => self.failed(call, error),
        }
        self.delay_at_random(slow_after).await;
        outcome
    }
}

impl StoreObserver {
    fn invariants(&self) -> std::sync::MutexGuard<'_, Invariants> {
        lock(&self.files.host.invariants)
    }

    async fn delay_at_random(&self, is_slow: bool) {
        if is_slow && let Some(delay) = self.files.host.delay() {
            tokio::time::sleep(delay).await;
        }
    }

    /// An accepted change counts if its process still runs.
    fn accepted(&self, call: Call<'_>, reply: &dyn Any) {
        match call {
            Call::Claim(claimant) => self.invariants().claims(&claimant.name),
            Call::ClaimNext(claimant) if reply.downcast_ref::<Option<Task>>().unwrap().is_some() => {
                self.invariants().claims(&claimant.name);
            }
            Call::CreateTasks if !self.files.is_dead() => {
                self.invariants().created(reply.downcast_ref::<Vec<Task>>().unwrap());
            }
            Call::ChangeTask(id, change, by) => {
                let task: &Task = reply.downcast_ref().unwrap();
                if !self.files.is_dead() {
                    self.changed(id, change, by, task);
                }
                self.note_change(id, change, by, &task.status.to_string());
            }
            Call::SendMessage(to, message) if !self.files.is_dead() => {
                self.sent(to, message, reply.downcast_ref::<String>().unwrap());
            }
            _ => {}
        }
    }

    fn failed(&self, call: Call<'_>, error: &StoreError) {
        let is_fault = matches!(error, StoreError::Io { .. });
        match call {
            Call::AnswerRequest(id) if is_fault => self.invariants().approvals.answer_unrecorded(id),
            Call::CreateTasks | Call::ViewBoard | Call::ChangeTask(..) | Call::SendMessage(..) if is_fault => {
                self.files.host.note_fault();
            }
            _ => {}
        }
        if let Call::ChangeTask(id, change, by) = call {
            self.note_change(id, change, by, &error.to_string());
        }
    }

    fn note_change(&self, id: TaskId, change: &Change, by: &Actor, outcome: &str) {
        self.files.host.note(|| format!("{}: {} asks for {change:?} of {id}: {outcome}", self.files.name, by.name));
    }

    fn changed(&self, id: TaskId, change: &Change, by: &Actor, task: &Task) {
        let mut invariants = self.invariants();
        let attempt = by.attempt.filter(|_| by.kind == ActorKind::Teammate && !by.force);
        invariants.changed(id, change, attempt, task);
        match change {
            Change::Release { is_failure: true, reason } if attempt.is_some() => {
                invariants.released_as_failure(id, &by.name, reason)
            }
            Change::Release { is_failure: false, .. } | Change::ReleaseAtCap { .. } if attempt.is_some() => {
                invariants.released(id, &by.name)
            }
            Change::Complete(_) if by.kind == ActorKind::Teammate => {
                let claim = ClaimRef { task: id, attempt: task.attempt };
                if !invariants.approvals.may_write(&by.name, Some(claim)) {
                    invariants.violate(format!("plan before completing: {} completed {id}", by.name));
                }
            }
            _ => {}
        }
    }

    fn sent(&self, to: &str, message: &Message, id: &str) {
        let mut invariants = self.invariants();
        invariants.sent(to, &message.from, id, false);
        let twice = invariants.calls.record_message(&message.content, to);
        let is_answer = message.approve.is_some() && message.kind != MessageType::ShutdownResponse;
        let request = message.request_id.as_ref().filter(|_| is_answer);
        let again = request.and_then(|request| invariants.approvals.answer_sent(request, &self.files));
        twice.into_iter().chain(again).for_each(|wrong| invariants.violate(wrong));
    }
}
