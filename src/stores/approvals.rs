//! The stores of requests that wait for an answer: the file `.team/requests.json`, or memory.
//!
//! Every change replaces the file under its lock. Mail that carries requests and answers is not handled here.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::file::atomic_write::replace;
use super::file::{Durability, blocking, failed, if_found};
use super::fs::{FileSystem, locked};
use crate::domain::approval::{ApprovalAnswer, Approvals, Request, RequestKind, ReviewSubject};
use crate::domain::time::UnixMs;
use crate::ports::{Requests, StoreResult};

const FILE: &str = "requests.json";
const LOCK: &str = "requests.lock";
/// The largest file that is read, in bytes: many times the size that the limits allow.
const FILE_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// Requests that wait for an answer.
pub enum RequestStore {
    /// In `.team/requests.json`.
    File(RequestFile),
    /// In memory, for tests and for teams that write no files.
    Memory(Mutex<Approvals>),
}

/// The file of the requests.
pub struct RequestFile {
    files: Arc<dyn FileSystem>,
    folder: PathBuf,
    durability: Durability,
}

impl RequestStore {
    /// Requests of the workspace whose `.team` is `folder`. Creates nothing before the first request.
    pub fn file(files: Arc<dyn FileSystem>, folder: PathBuf, durability: Durability) -> Self {
        Self::File(RequestFile { files, folder, durability })
    }

    /// Requests in memory.
    pub fn memory() -> Self {
        Self::Memory(Mutex::default())
    }

    async fn change<R: Send>(&self, change: impl FnOnce(&mut Approvals) -> R + Send) -> StoreResult<R> {
        match self {
            Self::File(file) => blocking(|| file.change(change)).await,
            Self::Memory(approvals) => Ok(change(&mut approvals.lock())),
        }
    }
}

impl RequestFile {
    fn change<R>(&self, change: impl FnOnce(&mut Approvals) -> R) -> StoreResult<R> {
        self.files.create_folder(&self.folder).map_err(failed("create", &self.folder))?;
        let lock = self.folder.join(LOCK);
        let read_change_write = || {
            let mut approvals = self.read()?;
            let before = approvals.clone();
            let result = change(&mut approvals);
            if approvals != before {
                let bytes = serde_json::to_vec_pretty(&approvals)
                    .map_err(|error| failed("write", &self.folder.join(FILE))(error.into()))?;
                replace(&*self.files, &self.folder, FILE, &bytes, self.durability)?;
            }
            Ok(result)
        };
        locked(&*self.files, &lock, read_change_write).map_err(failed("lock", &lock))?
    }

    /// Takes no lock and creates nothing: the file is only ever replaced as a whole.
    fn read(&self) -> StoreResult<Approvals> {
        let path = self.folder.join(FILE);
        let Some((bytes, _)) = if_found("read", &path, self.files.read(&path, 0, FILE_BYTES_MAX))? else {
            return Ok(Approvals { v: 1, ..Approvals::default() });
        };
        serde_json::from_slice(&bytes).map_err(|error| {
            let text = format!(
                "{error}: another program changed it. Move it away, and members ask again for open plan and review approvals"
            );
            failed("read", &path)(io::Error::new(io::ErrorKind::InvalidData, text))
        })
    }
}

#[async_trait]
impl Requests for RequestStore {
    async fn record(&self, request: Request) -> StoreResult<()> {
        Ok(self.change(|approvals| approvals.record(request)).await??)
    }

    async fn reserve(&self, id: &str, kind: RequestKind, by: &str, process: &str, now: UnixMs) -> StoreResult<Request> {
        Ok(self.change(|approvals| approvals.reserve(id, kind, by, process, now)).await??)
    }

    async fn answer(&self, id: &str, kind: RequestKind, answer: ApprovalAnswer) -> StoreResult<Request> {
        Ok(self.change(|approvals| approvals.answer(id, kind, answer)).await??)
    }

    async fn reassign(&self, id: &str, kind: RequestKind, to: &str) -> StoreResult<Option<Request>> {
        self.change(|approvals| approvals.reassign(id, kind, to)).await
    }

    async fn rebind_review(&self, id: &str, from: &str, work: &ReviewSubject, at: UnixMs) -> StoreResult<()> {
        self.change(|approvals| approvals.rebind_review(id, from, work, at)).await
    }

    async fn withdraw(&self, id: &str, kind: RequestKind, reason: &str, at: UnixMs) -> StoreResult<()> {
        self.change(|approvals| approvals.withdraw(id, kind, reason, at)).await
    }

    async fn all(&self) -> StoreResult<Approvals> {
        match self {
            Self::File(file) => blocking(|| file.read()).await,
            Self::Memory(approvals) => Ok(approvals.lock().clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    use crate::domain::approval::RequestError;
    use crate::ports::StoreError;
    use crate::stores::fs::RealFileSystem;

    fn file(folder: &Path) -> RequestStore {
        RequestStore::file(Arc::new(RealFileSystem::default()), folder.join(".team"), Durability::Process)
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
}
