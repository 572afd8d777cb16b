//! The requests in memory.

use async_trait::async_trait;
use brigade::domain::approval::{ApprovalAnswer, Approvals, Request, RequestKind, ReviewSubject};
use brigade::domain::time::UnixMs;
use brigade::ports::{Requests, StoreResult};
use parking_lot::Mutex;

/// The requests in memory.
#[derive(Default)]
pub struct MemoryRequests {
    approvals: Mutex<Approvals>,
}

#[async_trait]
impl Requests for MemoryRequests {
    async fn record(&self, request: Request) -> StoreResult<()> {
        Ok(self.approvals.lock().record(request)?)
    }

    async fn reserve(&self, id: &str, kind: RequestKind, by: &str, process: &str, now: UnixMs) -> StoreResult<Request> {
        Ok(self.approvals.lock().reserve(id, kind, by, process, now)?)
    }

    async fn answer(&self, id: &str, kind: RequestKind, answer: ApprovalAnswer) -> StoreResult<Request> {
        Ok(self.approvals.lock().answer(id, kind, answer)?)
    }

    async fn reassign(&self, id: &str, kind: RequestKind, to: &str) -> StoreResult<Option<Request>> {
        Ok(self.approvals.lock().reassign(id, kind, to))
    }

    async fn rebind_review(&self, id: &str, from: &str, work: &ReviewSubject, at: UnixMs) -> StoreResult<()> {
        self.approvals.lock().rebind_review(id, from, work, at);
        Ok(())
    }

    async fn withdraw(&self, id: &str, kind: RequestKind, reason: &str, at: UnixMs) -> StoreResult<()> {
        self.approvals.lock().withdraw(id, kind, reason, at);
        Ok(())
    }

    async fn all(&self) -> StoreResult<Approvals> {
        Ok(self.approvals.lock().clone())
    }
}
