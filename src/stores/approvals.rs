//! The stores of requests that wait for an answer: the file `.team/requests.json`, or memory.
//!
//! Every change replaces the file under its lock. Mail that carries requests and answers is not handled here.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::file::atomic_write::replace;
use super::file::{Durability, blocking, failed};
use super::fs::{FileSystem, locked};
use crate::domain::approval::{ApprovalAnswer, Approvals, Request, RequestKind, ReviewSubject};
use crate::domain::time::UnixMs;
use crate::ports::{Requests, StoreError, StoreResult};

const FILE: &str = "requests.json";
const LOCK: &str = "requests.lock";
/// The largest file that is read, in bytes: many times the size that the limits allow.
const FILE_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// Requests in `.team/requests.json`.
#[derive(Clone)]
pub struct FileRequests {
    files: Arc<dyn FileSystem>,
    folder: PathBuf,
    durability: Durability,
}

impl FileRequests {
    /// Requests of the workspace whose `.team` is `folder`. Creates nothing before the first request.
    #[must_use]
    pub fn new(files: Arc<dyn FileSystem>, folder: PathBuf, durability: Durability) -> Self {
        Self { files, folder, durability }
    }

    async fn transaction<R: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Approvals) -> StoreResult<R> + Send + 'static,
    ) -> StoreResult<R> {
        let this = self.clone();
        blocking(move || {
            this.files.create_folder(&this.folder).map_err(failed("create", &this.folder))?;
            let lock = this.folder.join(LOCK);
            locked(&*this.files, &lock, || this.read_change_write(change)).map_err(failed("lock", &lock))?
        })
        .await
    }

    fn read_change_write<R>(&self, change: impl FnOnce(&mut Approvals) -> StoreResult<R>) -> StoreResult<R> {
        let path = self.folder.join(FILE);
        let mut approvals = self.read(&path)?;
        let before = approvals.clone();
        let result = change(&mut approvals)?;
        if approvals != before {
            let bytes = serde_json::to_vec_pretty(&approvals).map_err(|error| failed("write", &path)(error.into()))?;
            replace(&*self.files, &self.folder, FILE, &bytes, self.durability)?;
        }
        Ok(result)
    }

    fn read(&self, path: &Path) -> StoreResult<Approvals> {
        match self.files.read(path, 0, FILE_BYTES_MAX) {
            Ok((bytes, _)) => serde_json::from_slice(&bytes).map_err(|error| {
                let text = format!(
                "{error}: another program changed it. Move it away, and members ask again for open plan and review approvals"
                );
                failed("read", path)(io::Error::new(io::ErrorKind::InvalidData, text))
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Approvals { v: 1, ..Approvals::default() }),
            Err(error) => Err(failed("read", path)(error)),
        }
    }
}

#[async_trait]
impl Requests for FileRequests {
    async fn record(&self, request: Request) -> StoreResult<()> {
        self.transaction(move |approvals| approvals.record(request).map_err(StoreError::from)).await
    }

    async fn reserve(&self, id: &str, kind: RequestKind, by: &str, process: &str, now: UnixMs) -> StoreResult<Request> {
        let (id, by, process) = (id.to_owned(), by.to_owned(), process.to_owned());
        self.transaction(move |approvals| approvals.reserve(&id, kind, &by, &process, now).map_err(StoreError::from))
            .await
    }

    async fn answer(&self, id: &str, kind: RequestKind, answer: ApprovalAnswer) -> StoreResult<Request> {
        let id = id.to_owned();
        self.transaction(move |approvals| approvals.answer(&id, kind, answer).map_err(StoreError::from)).await
    }

    async fn reassign(&self, id: &str, kind: RequestKind, to: &str) -> StoreResult<Option<Request>> {
        let (id, to) = (id.to_owned(), to.to_owned());
        self.transaction(move |approvals| Ok(approvals.reassign(&id, kind, &to))).await
    }

    async fn rebind_review(&self, id: &str, from: &str, work: &ReviewSubject, at: UnixMs) -> StoreResult<()> {
        let (id, from, work) = (id.to_owned(), from.to_owned(), work.clone());
        self.transaction(move |approvals| {
            approvals.rebind_review(&id, &from, &work, at);
            Ok(())
        })
        .await
    }

    async fn withdraw(&self, id: &str, kind: RequestKind, reason: &str, at: UnixMs) -> StoreResult<()> {
        let (id, reason) = (id.to_owned(), reason.to_owned());
        self.transaction(move |approvals| {
            approvals.withdraw(&id, kind, &reason, at);
            Ok(())
        })
        .await
    }

    /// Takes no lock and creates nothing: the file is only ever replaced as a whole.
    async fn all(&self) -> StoreResult<Approvals> {
        let this = self.clone();
        blocking(move || this.read(&this.folder.join(FILE))).await
    }
}

/// Requests in memory, for tests and for teams that write no files.
#[derive(Debug, Clone, Default)]
pub struct MemoryRequests(Arc<Mutex<Approvals>>);

#[async_trait]
impl Requests for MemoryRequests {
    async fn record(&self, request: Request) -> StoreResult<()> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).record(request)?)
    }

    async fn reserve(&self, id: &str, kind: RequestKind, by: &str, process: &str, now: UnixMs) -> StoreResult<Request> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).reserve(id, kind, by, process, now)?)
    }

    async fn answer(&self, id: &str, kind: RequestKind, answer: ApprovalAnswer) -> StoreResult<Request> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).answer(id, kind, answer)?)
    }

    async fn reassign(&self, id: &str, kind: RequestKind, to: &str) -> StoreResult<Option<Request>> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).reassign(id, kind, to))
    }

    async fn rebind_review(&self, id: &str, from: &str, work: &ReviewSubject, at: UnixMs) -> StoreResult<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).rebind_review(id, from, work, at);
        Ok(())
    }

    async fn withdraw(&self, id: &str, kind: RequestKind, reason: &str, at: UnixMs) -> StoreResult<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).withdraw(id, kind, reason, at);
        Ok(())
    }

    async fn all(&self) -> StoreResult<Approvals> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::approval::RequestError;
    use crate::stores::fs::RealFileSystem;

    fn file(folder: &Path) -> FileRequests {
        FileRequests::new(Arc::new(RealFileSystem::default()), folder.join(".team"), Durability::Process)
    }

    fn request(id: &str) -> Request {
        Request::new(id, RequestKind::Shutdown, "lead", "bob", UnixMs(1))
    }

    fn answer(approve: bool) -> ApprovalAnswer {
        ApprovalAnswer { approve, text: "after this task".into(), by: "bob".into(), at: UnixMs(2), for_run: false }
    }

    #[tokio::test]
    async fn request_survives_reopening_the_store() {
        let folder = tempfile::tempdir().unwrap();
        file(folder.path()).record(request("a")).await.unwrap();
        let reopened = file(folder.path());
        let answered = reopened.answer("a", RequestKind::Shutdown, answer(false)).await.unwrap();
        assert_eq!(answered.answer.unwrap().text, "after this task");
        let again = file(folder.path()).answer("a", RequestKind::Shutdown, answer(true)).await;
        assert!(matches!(again, Err(StoreError::Request(RequestError::AlreadyAnswered { .. }))), "{again:?}");
    }

    #[tokio::test]
    async fn concurrent_reservations_grant_exactly_one() {
        let folder = tempfile::tempdir().unwrap();
        file(folder.path()).record(request("a")).await.unwrap();
        let reservations = (0..16).map(|number| {
            let (store, process) = (file(folder.path()), format!("bob {number}"));
            let reserve = async move { store.reserve("a", RequestKind::Shutdown, "bob", &process, UnixMs(2)).await };
            tokio::spawn(reserve)
        });
        let mut granted = 0;
        for reservation in reservations.collect::<Vec<_>>() {
            granted += usize::from(reservation.await.unwrap().is_ok());
        }
        assert_eq!(granted, 1);
    }

    #[tokio::test]
    async fn concurrent_answers_accept_exactly_one() {
        let folder = tempfile::tempdir().unwrap();
        file(folder.path()).record(request("a")).await.unwrap();
        let answers = (0..16).map(|_| {
            let store = file(folder.path());
            tokio::spawn(async move { store.answer("a", RequestKind::Shutdown, answer(true)).await.is_ok() })
        });
        let mut granted = 0;
        for answer in answers.collect::<Vec<_>>() {
            granted += usize::from(answer.await.unwrap());
        }
        assert_eq!(granted, 1);
    }
}
