//! Requests that wait for an answer.

use async_trait::async_trait;

use super::StoreResult;
use crate::domain::team::approval::{ApprovalAnswer, Approvals, Request, RequestKind, ReviewSubject};
use crate::domain::time::UnixMs;

/// Requests that wait for an answer, such as plan approvals. Their messages are sent separately.
///
/// Results of [`Requests::record`] and [`Requests::answer`] survive a crash and, with power durability, a power cut. A reader
/// of mail from another program also records the requests in it. Recording a request twice is safe.
#[async_trait]
pub trait Requests: Send + Sync {
    /// Records a request. An id that is stored already changes nothing.
    async fn record(&self, request: Request) -> StoreResult<()>;

    /// Reserves a request for `process`, which sends and records the answer next in the name of `by`. The same process may
    /// reserve it again. A request that is unknown, answered, reserved by another process or for another member is an error.
    async fn reserve(&self, id: &str, kind: RequestKind, by: &str, process: &str, now: UnixMs) -> StoreResult<Request>;

    /// Records the answer of `answer.by`. A request that is unknown, answered or for another member is an error.
    async fn answer(&self, id: &str, kind: RequestKind, answer: ApprovalAnswer) -> StoreResult<Request>;

    /// Changes the responder; `None` if the request is not open.
    async fn reassign(&self, id: &str, kind: RequestKind, to: &str) -> StoreResult<Option<Request>>;

    /// Binds a review to another attempt. The holder `from` gets the answer of an open one.
    async fn rebind_review(&self, id: &str, from: &str, work: &ReviewSubject, at: UnixMs) -> StoreResult<()>;

    /// Withdraws an open request.
    async fn withdraw(&self, id: &str, kind: RequestKind, reason: &str, at: UnixMs) -> StoreResult<()>;

    /// Returns all stored requests.
    async fn all(&self) -> StoreResult<Approvals>;
}
