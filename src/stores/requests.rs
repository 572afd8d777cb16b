//! Where requests that wait for an answer are kept: `.team/requests.json`, or memory.
//!
//! One small file, replaced whole under its lock. It knows nothing of the mail that carries requests and answers.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::file::replace::replace;
use super::file::{Durability, blocking, failed};
use super::fs::{FileSystem, locked};
use crate::domain::request::{Answer, Request, RequestBook, RequestKind};
use crate::domain::time::UnixMs;
use crate::ports::{Requests, StoreError, StoreResult};

const FILE: &str = "requests.json";
const LOCK: &str = "requests.lock";
/// The largest file that is read, in bytes: many times what the rules let it become.
const FILE_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// Requests in `.team/requests.json`.
#[derive(Clone)]
pub struct FileRequests {
    files: Arc<dyn FileSystem>,
    folder: PathBuf,
    durability: Durability,
}

impl FileRequests {
    /// The requests of the workspace whose `.team` is `folder`. Nothing is written before the first request.
    #[must_use]
    pub fn new(files: Arc<dyn FileSystem>, folder: PathBuf, durability: Durability) -> Self {
        Self { files, folder, durability }
    }

    async fn section<R: Send + 'static>(
        &self,
        change: impl FnOnce(&mut RequestBook) -> StoreResult<R> + Send + 'static,
    ) -> StoreResult<R> {
        let this = self.clone();
        blocking(move || {
            this.files.create_folder(&this.folder).map_err(failed("make", &this.folder))?;
            let lock = this.folder.join(LOCK);
            locked(&*this.files, &lock, || this.read_change_write(change)).map_err(failed("lock", &lock))?
        })
        .await
    }

    fn read_change_write<R>(&self, change: impl FnOnce(&mut RequestBook) -> StoreResult<R>) -> StoreResult<R> {
        let path = self.folder.join(FILE);
        let mut book = self.read(&path)?;
        let before = book.clone();
        let result = change(&mut book)?;
        if book != before {
            let bytes = serde_json::to_vec_pretty(&book).map_err(|error| failed("write", &path)(error.into()))?;
            replace(&*self.files, &self.folder, FILE, &bytes, self.durability)?;
        }
        Ok(result)
    }

    fn read(&self, path: &Path) -> StoreResult<RequestBook> {
        match self.files.read(path, 0, FILE_BYTES_MAX) {
            Ok((bytes, _)) => serde_json::from_slice(&bytes).map_err(|error| {
                let text = format!(
                    "{error}: somebody else wrote it. Move it away, and plans and reviews that wait are asked for anew"
                );
                failed("read", path)(io::Error::new(io::ErrorKind::InvalidData, text))
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(RequestBook { v: 1, ..RequestBook::default() }),
            Err(error) => Err(failed("read", path)(error)),
        }
    }
}

#[async_trait]
impl Requests for FileRequests {
    async fn open(&self, request: Request) -> StoreResult<()> {
        self.section(move |book| book.record(request).map_err(StoreError::from)).await
    }

    async fn reserve(&self, id: &str, kind: RequestKind, by: &str, process: &str, now: UnixMs) -> StoreResult<Request> {
        let (id, by, process) = (id.to_owned(), by.to_owned(), process.to_owned());
        self.section(move |book| book.reserve(&id, kind, &by, &process, now).map_err(StoreError::from)).await
    }

    async fn answer(&self, id: &str, kind: RequestKind, answer: Answer) -> StoreResult<Request> {
        let id = id.to_owned();
        self.section(move |book| book.answer(&id, kind, answer).map_err(StoreError::from)).await
    }

    async fn hand_on(&self, id: &str, kind: RequestKind, to: &str) -> StoreResult<Option<Request>> {
        let (id, to) = (id.to_owned(), to.to_owned());
        self.section(move |book| Ok(book.hand_on(&id, kind, &to))).await
    }

    async fn adopt(&self, id: &str, kind: RequestKind, from: &str, attempt: u32, at: UnixMs) -> StoreResult<()> {
        let (id, from) = (id.to_owned(), from.to_owned());
        self.section(move |book| {
            book.adopt(&id, kind, &from, attempt, at);
            Ok(())
        })
        .await
    }

    async fn withdraw(&self, id: &str, kind: RequestKind, reason: &str, at: UnixMs) -> StoreResult<()> {
        let (id, reason) = (id.to_owned(), reason.to_owned());
        self.section(move |book| {
            book.withdraw(&id, kind, &reason, at);
            Ok(())
        })
        .await
    }

    /// The file is replaced whole, so that reading it needs no lock, and makes nothing.
    async fn all(&self) -> StoreResult<RequestBook> {
        let this = self.clone();
        blocking(move || this.read(&this.folder.join(FILE))).await
    }
}

/// Requests in memory, for tests and for teams that leave no trace.
#[derive(Debug, Clone, Default)]
pub struct MemoryRequests(Arc<Mutex<RequestBook>>);

#[async_trait]
impl Requests for MemoryRequests {
    async fn open(&self, request: Request) -> StoreResult<()> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).record(request)?)
    }

    async fn reserve(&self, id: &str, kind: RequestKind, by: &str, process: &str, now: UnixMs) -> StoreResult<Request> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).reserve(id, kind, by, process, now)?)
    }

    async fn answer(&self, id: &str, kind: RequestKind, answer: Answer) -> StoreResult<Request> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).answer(id, kind, answer)?)
    }

    async fn hand_on(&self, id: &str, kind: RequestKind, to: &str) -> StoreResult<Option<Request>> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).hand_on(id, kind, to))
    }

    async fn adopt(&self, id: &str, kind: RequestKind, from: &str, attempt: u32, at: UnixMs) -> StoreResult<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).adopt(id, kind, from, attempt, at);
        Ok(())
    }

    async fn withdraw(&self, id: &str, kind: RequestKind, reason: &str, at: UnixMs) -> StoreResult<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).withdraw(id, kind, reason, at);
        Ok(())
    }

    async fn all(&self) -> StoreResult<RequestBook> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::request::RequestError;
    use crate::stores::fs::RealFileSystem;

    fn file(folder: &Path) -> FileRequests {
        FileRequests::new(Arc::new(RealFileSystem::default()), folder.join(".team"), Durability::Process)
    }

    fn request(id: &str) -> Request {
        Request::new(id, RequestKind::Shutdown, "lead", "bob", UnixMs(1))
    }

    fn answer(approve: bool) -> Answer {
        Answer { approve, text: "after this task".into(), by: "bob".into(), at: UnixMs(2) }
    }

    #[tokio::test]
    async fn a_request_outlives_whoever_recorded_it() {
        let folder = tempfile::tempdir().unwrap();
        file(folder.path()).open(request("a")).await.unwrap();
        let reopened = file(folder.path());
        let answered = reopened.answer("a", RequestKind::Shutdown, answer(false)).await.unwrap();
        assert_eq!(answered.answer.unwrap().text, "after this task");
        let again = file(folder.path()).answer("a", RequestKind::Shutdown, answer(true)).await;
        assert!(matches!(again, Err(StoreError::Request(RequestError::Answered { .. }))), "{again:?}");
    }

    #[tokio::test]
    async fn of_many_who_want_to_answer_at_once_one_may() {
        let folder = tempfile::tempdir().unwrap();
        file(folder.path()).open(request("a")).await.unwrap();
        let takers = (0..16).map(|number| {
            let (store, process) = (file(folder.path()), format!("bob {number}"));
            let reserve = async move { store.reserve("a", RequestKind::Shutdown, "bob", &process, UnixMs(2)).await };
            tokio::spawn(reserve)
        });
        let mut given = 0;
        for taken in takers.collect::<Vec<_>>() {
            given += usize::from(taken.await.unwrap().is_ok());
        }
        assert_eq!(given, 1);
    }

    #[tokio::test]
    async fn of_many_answers_at_once_one_counts() {
        let folder = tempfile::tempdir().unwrap();
        file(folder.path()).open(request("a")).await.unwrap();
        let answers = (0..16).map(|_| {
            let store = file(folder.path());
            tokio::spawn(async move { store.answer("a", RequestKind::Shutdown, answer(true)).await.is_ok() })
        });
        let mut given = 0;
        for answer in answers.collect::<Vec<_>>() {
            given += usize::from(answer.await.unwrap());
        }
        assert_eq!(given, 1);
    }
}
